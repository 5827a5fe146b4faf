//! Why a study has no result. Owns the texts.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

use syncline::simulation::SimulationError;

use crate::data::DataError;
use crate::data::shard::TooFewImages;

/// Why there is no result, or only part of it.
#[derive(Debug)]
#[non_exhaustive]
pub enum SimulateError {
    /// The data set cannot be used.
    Data(DataError),
    /// The options do not go together.
    Options {
        /// Which, and why.
        reason: String,
    },
    /// Results could not be written.
    Output {
        /// Where to.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A simulation came to no end.
    Simulation {
        /// Which, as `OSP, 8 ranks`.
        run: String,
        /// Its reason.
        source: SimulationError,
    },
    /// The data set is too small for this many ranks.
    TooFewImages(TooFewImages),
}

impl fmt::Display for SimulateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(source) => source.fmt(f),
            Self::Options { reason } => f.write_str(reason),
            Self::Output { path, source } => {
                write!(f, "cannot write {}: {source}", path.display())
            }
            Self::Simulation { run, source } => write!(f, "the simulation of {run}: {source}"),
            Self::TooFewImages(source) => source.fmt(f),
        }
    }
}

impl Error for SimulateError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Data(source) => Some(source),
            Self::Options { .. } => None,
            Self::Output { source, .. } => Some(source),
            Self::Simulation { source, .. } => Some(source),
            Self::TooFewImages(source) => Some(source),
        }
    }
}

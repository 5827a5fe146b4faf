//! From paths to runs.
//!
//! Owns what a path may be: a run directory, a directory of those, or a file of `syncline train
//! --json`. Called by `syncline report`.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use syncline::record::{LogError, RunDir};

use super::measured::Measured;
use crate::report::Report;

/// Why a path gave no run.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The system refused to read it.
    Io {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A run log is damaged, or a directory holds none.
    Log(LogError),
    /// A file that `syncline train --json` did not write.
    NoReport {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Self::Log(error) => error.fmt(f),
            Self::NoReport { path, reason } => {
                let path = path.display();
                write!(f, "{path} is no file of 'syncline train --json': {reason}")?;
                f.write_str("; of a run log, name the directory")
            }
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Log(error) => Some(error),
            Self::NoReport { .. } => None,
        }
    }
}

impl From<LogError> for LoadError {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

/// The runs at these paths, in their order; a path that is named twice counts once.
///
/// # Errors
///
/// A path cannot be read, is garbage or holds no run.
pub fn load(paths: &[PathBuf]) -> Result<Vec<Measured>, LoadError> {
    let mut seen = BTreeSet::new();
    let mut runs = Vec::new();
    for path in paths {
        let refused = |source| LoadError::Io { path: path.clone(), source };
        if !fs::metadata(path).map_err(refused)?.is_dir() {
            if seen.insert(fs::canonicalize(path).map_err(refused)?) {
                runs.extend(report(path)?);
            }
            continue;
        }
        for dir in run_dirs(path)? {
            if seen.insert(fs::canonicalize(&dir).map_err(refused)?) {
                runs.push(Measured::of_logs(&RunDir::read(&dir)?));
            }
        }
    }
    Ok(runs)
}

/// The directory itself if it is a run's, else those in it that are, by name.
fn run_dirs(path: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let refused = |source| LoadError::Io { path: path.to_owned(), source };
    if !RunDir::ranks_in(path)?.is_empty() {
        return Ok(vec![path.to_owned()]);
    }
    let mut dirs = Vec::new();
    for entry in fs::read_dir(path).map_err(refused)? {
        let path = entry.map_err(refused)?.path();
        if path.is_dir() && !RunDir::ranks_in(&path)?.is_empty() {
            dirs.push(path);
        }
    }
    dirs.sort();
    if dirs.is_empty() { Err(LogError::NoLogs { path: path.to_owned() }.into()) } else { Ok(dirs) }
}

fn report(path: &Path) -> Result<Vec<Measured>, LoadError> {
    let text = fs::read(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
    let bad = |reason| LoadError::NoReport { path: path.to_owned(), reason };
    let report: Report = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    if report.runs.is_empty() {
        return Err(bad("it holds no run".to_owned()));
    }
    Ok(report.runs.iter().map(|run| Measured::of_train(run, path)).collect())
}

//! The sync layer's error type.
//!
//! Owns what can go wrong above the communicator. Errors of the communicator itself are passed on
//! whole. Called by everything here.

use std::fmt;

/// Result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
///
/// After any error but [`Self::Config`] and [`Self::InvalidArgument`] the session (or
/// [`crate::GradientSync`]) is finished: ranks may be at different places, and parameters half
/// written.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The communicator failed; the session is finished, as the communicator is.
    Communication(syncline_comm::Error),
    /// A setting that cannot work; nothing was sent.
    Config {
        /// Which, and why.
        reason: String,
    },
    /// A call on a session that has finished, by [`crate::Session::finish`] or an error.
    Finished {
        /// Which.
        why: String,
    },
    /// This call's tensors are not the session's, or it may not come now; nothing was sent.
    InvalidArgument {
        /// What differs.
        reason: String,
    },
    /// Ranks did not start with the same tensors and settings, or gave their steps unequal numbers
    /// of micro-batches.
    JobMismatch {
        /// What differs.
        what: String,
        /// The ranks that are in the minority.
        ranks: Vec<u32>,
    },
    /// A message to or from the parameter server, or an action of a model under audit, that breaks
    /// the protocol.
    Protocol {
        /// Who sent or did what.
        reason: String,
    },
    /// Replicas that must be equal are not: a rank ran other code or settings, or its memory is
    /// broken. Nothing that was trained since the last good check can be trusted.
    ReplicasDiffer {
        /// Steps finished when it was seen.
        step: u64,
        /// The ranks that are in the minority.
        ranks: Vec<u32>,
    },
    /// The operating system refused a thread for the parameter server.
    Thread(std::io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Communication(error) => error.fmt(f),
            Self::Config { reason } => write!(f, "sync settings: {reason}"),
            Self::Finished { why } => write!(f, "the session is finished: {why}"),
            Self::InvalidArgument { reason } => write!(f, "invalid argument: {reason}"),
            Self::JobMismatch { what, ranks } => write!(
                f,
                "ranks disagree: {what} of ranks {ranks:?} differs from that of the others; \
                 all must have equal tensors, settings and numbers of micro-batches"
            ),
            Self::Protocol { reason } => write!(f, "sync protocol broken: {reason}"),
            Self::ReplicasDiffer { step, ranks } => write!(
                f,
                "replicas differ after step {step}: ranks {ranks:?} hold other bits than the \
                 others; check that all ranks run one build, with equal learning rates"
            ),
            Self::Thread(error) => write!(f, "no thread for the parameter server: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Communication(error) => Some(error),
            Self::Thread(error) => Some(error),
            _ => None,
        }
    }
}

impl From<syncline_comm::Error> for Error {
    fn from(error: syncline_comm::Error) -> Self {
        Self::Communication(error)
    }
}

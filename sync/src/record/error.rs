//! What can be wrong with a run log. Each error names the file. Called by the writer and the
//! reader.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a run log could not be written or read.
#[derive(Debug)]
#[non_exhaustive]
pub enum LogError {
    /// The system refused.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried: "create", "write", "read".
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A directory without a `rank-<r>.jsonl` in it.
    NoLogs {
        /// The directory.
        path: PathBuf,
    },
    /// A line that is no record.
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A file whose records do not tell of one run of one rank, or not of the run that the other
    /// files tell of.
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, action, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
            Self::NoLogs { path } => {
                write!(f, "no run log in {}: it holds no rank-<r>.jsonl", path.display())
            }
            Self::Line { path, line, reason } => {
                write!(f, "{}, line {line} is no record: {reason}", path.display())
            }
            Self::Inconsistent { path, reason } => write!(f, "{}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for LogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

//! What can be wrong with a data set. Owns the wording; used by the readers beside it.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a data set could not be read. Offsets count bytes of the file after decompression.
#[derive(Debug)]
#[non_exhaustive]
pub enum DataError {
    /// The number at a file's start is not the one of this kind of file.
    BadMagic {
        /// The file.
        path: PathBuf,
        /// Magic number of the kind that was wanted.
        expected: u32,
        /// What the file has at offset 0.
        found: u32,
    },
    /// A value outside of its range.
    BadValue {
        /// The file.
        path: PathBuf,
        /// Where the value lies: an offset, or a line and a column.
        place: String,
        /// What was wanted.
        expected: String,
        /// What was there.
        found: String,
    },
    /// Two files that belong together disagree.
    Disagree {
        /// What they disagree about, such as "number of items".
        what: &'static str,
        /// First file and its figure.
        left: (PathBuf, String),
        /// Second file and its figure.
        right: (PathBuf, String),
    },
    /// The system refused to read.
    Io {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// The file's header announces more than any known set holds, so the header is wrong.
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes announced.
        announced: u128,
        /// Most bytes accepted.
        limit: u64,
    },
    /// More bytes than the header announces.
    Trailing {
        /// The file.
        path: PathBuf,
        /// Where the data should end.
        offset: u64,
    },
    /// The file ends too early.
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the part begins that is cut short.
        offset: u64,
        /// Bytes that part should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// The set is not where it was looked for.
    NotFound {
        /// Name of the set.
        set: &'static str,
        /// The file that was tried last.
        path: PathBuf,
        /// What to do about it.
        hint: String,
    },
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadMagic { path, expected, found } => write!(
                f,
                "{}: not the expected kind of IDX file: offset 0 should hold {expected:#010x}, \
                 but holds {found:#010x}",
                path.display()
            ),
            Self::BadValue { path, place, expected, found } => {
                write!(f, "{}, {place}: expected {expected}, found {found}", path.display())
            }
            Self::Disagree { what, left, right } => write!(
                f,
                "{what} differs: {} has {}, {} has {}",
                left.0.display(),
                left.1,
                right.0.display(),
                right.1
            ),
            Self::Io { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Self::TooLarge { path, announced, limit } => write!(
                f,
                "{}: the header announces {announced} bytes of data, more than the {limit} \
                 accepted",
                path.display()
            ),
            Self::Trailing { path, offset } => {
                write!(f, "{}: data goes on after its announced end at {offset}", path.display())
            }
            Self::Truncated { path, offset, expected, found } => write!(
                f,
                "{}: cut short: expected {expected} bytes from offset {offset} on, found {found}",
                path.display()
            ),
            Self::NotFound { set, path, hint } => {
                write!(f, "{set} not found: no file {}; {hint}", path.display())
            }
        }
    }
}

impl Error for DataError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

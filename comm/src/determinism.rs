//! Grades of determinism: what a reduction promises about its bits.
//!
//! Owns the names. What is promised is kept by [`Algorithm::Direct`](crate::Algorithm::Direct)'s
//! plan and by the node path; `communicator/grade.rs` sees to it that one of them is taken.

use crate::error::{Error, ErrorKind, Result};
use std::fmt;
use std::str::FromStr;

/// What calls that reduce (`all_reduce`, `reduce`, `reduce_scatter` and their uneven forms) promise
/// about their bits. In every grade all ranks of an all-reduce get the same. Other calls copy, and
/// ignore it.
///
/// Set for a job by [`Config::determinism`](crate::Config::determinism) and for single calls by
/// [`Communicator::with_determinism`](crate::Communicator::with_determinism). Ranks that make a
/// call in different grades get [`ErrorKind::ContractMismatch`].
///
/// What canonical bits cost, for `n` ranks and a vector of `c` bytes, where a fast call would have
/// gone another way (the node path of one host, two ranks, integers and min and max of floats have
/// canonical bits anyhow):
///
/// | | fast, by a ring | canonical |
/// |---|---|---|
/// | bytes that a rank sends in an all-reduce | `2(n-1)/n` c | the same |
/// | bytes that leave a host of `l` ranks | `2(n-1)/n` c | `2l(n-l)/n` c |
/// | rounds, one after the other | `2(n-1)` | 2 |
/// | messages that come in at the same time | 1 | `n-1` |
/// | scratch memory | none | `(n-1)/n` c; `(n-1)` c on the root of a reduce |
///
/// So it costs little among ranks on hosts of their own, and most where many ranks of a host share
/// a slow way out: every one of them sends to every rank elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Determinism {
    /// The bits of one fold of the contributions in the order of ranks 0, 1, 2 ..., element by
    /// element: `f16` and `bf16` are summed in `f32` and rounded once, and an average is divided
    /// once. They depend on nothing else: not on algorithm, transport, chunks, message shape,
    /// placement of ranks, or other elements.
    Canonical,
    /// The bits of whichever algorithm should be fastest. Equal calls on equal worlds with equal
    /// settings give equal bits; another size, placement or network may give others.
    #[default]
    Fast,
}

impl Determinism {
    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Canonical => "canonical",
            Self::Fast => "fast",
        }
    }
}

impl fmt::Display for Determinism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Determinism {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Canonical, Self::Fast].into_iter().find(|one| one.name() == text).ok_or_else(|| {
            let text = format!("determinism {text:?} is none of fast, canonical");
            Error::new(ErrorKind::Config, text)
        })
    }
}

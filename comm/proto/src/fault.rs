//! The one error that crosses ranks: whoever finds it first announces it, all report the same.

use crate::call::{Call, RankCall};
use crate::id::Rank;
use alloc::string::String;
use bincode::{Decode, Encode};
use core::fmt;

/// What went wrong, in the classes a caller acts on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
pub enum FaultKind {
    /// A rank ended the job on purpose.
    Aborted,
    /// Two ranks made different calls at the same place.
    ContractMismatch,
    /// A rank's process or host is gone.
    PeerLost,
    /// A peer sent what the protocol does not allow.
    Protocol,
    /// The deadline passed.
    Timeout,
    /// A transport failed for a reason that is not the peer's end.
    Transport,
}

/// First cause, as its first detector saw it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Fault {
    /// The class.
    pub kind: FaultKind,
    /// World rank that saw it first.
    pub detected_by: Rank,
    /// World rank at fault, where one is known.
    pub culprit: Option<Rank>,
    /// The detector's call, when it was inside one.
    pub call: Option<Call>,
    /// The other side's call, for a mismatch.
    pub other: Option<RankCall>,
    /// Payload bytes of the call that had arrived.
    pub bytes_done: u64,
    /// Payload bytes the call was to receive.
    pub bytes_total: u64,
    /// The cause in words: errno text, address, who is behind.
    pub detail: String,
}

impl Fault {
    /// A fault outside any call.
    pub fn new(kind: FaultKind, detected_by: Rank, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detected_by,
            culprit: None,
            call: None,
            other: None,
            bytes_done: 0,
            bytes_total: 0,
            detail: detail.into(),
        }
    }

    /// Names the rank at fault.
    #[must_use]
    pub fn with_culprit(mut self, rank: Rank) -> Self {
        self.culprit = Some(rank);
        self
    }

    /// Names the detector's call.
    #[must_use]
    pub fn with_call(mut self, call: Call) -> Self {
        self.call = Some(call);
        self
    }

    /// Two ranks disagree about `mine.seq`.
    pub fn mismatch(detected_by: Rank, mine: Call, other: RankCall) -> Self {
        Self {
            other: Some(other),
            ..Self::new(FaultKind::ContractMismatch, detected_by, "")
                .with_culprit(other.rank)
                .with_call(mine)
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.culprit) {
            (FaultKind::Aborted, _) => write!(f, "rank {} aborted the job", self.detected_by)?,
            (FaultKind::ContractMismatch, _) => f.write_str("ranks made different calls")?,
            (FaultKind::PeerLost, Some(rank)) => write!(f, "rank {rank} is lost")?,
            (FaultKind::PeerLost, None) => f.write_str("a rank is lost")?,
            (FaultKind::Protocol, Some(rank)) => write!(f, "rank {rank} broke the protocol")?,
            (FaultKind::Protocol, None) => f.write_str("protocol broken")?,
            (FaultKind::Timeout, _) => f.write_str("deadline passed")?,
            (FaultKind::Transport, Some(rank)) => write!(f, "transport to rank {rank} failed")?,
            (FaultKind::Transport, None) => f.write_str("transport failed")?,
        }
        if let Some(call) = &self.call {
            write!(f, "; rank {} called {call}", self.detected_by)?;
        }
        if let Some(other) = &self.other {
            write!(f, ", rank {} called {}", other.rank, other.call)?;
        }
        if self.bytes_total > 0 {
            write!(f, "; {} of {} bytes done", self.bytes_done, self.bytes_total)?;
        }
        if !self.detail.is_empty() {
            write!(f, "; {}", self.detail)?;
        }
        write!(f, " (first seen by rank {})", self.detected_by)
    }
}

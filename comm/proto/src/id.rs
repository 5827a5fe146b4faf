//! Names of things: ranks, communicators, operations, messages.
//!
//! Plain values; nothing here acts.

use bincode::{Decode, Encode};
use core::fmt;

/// A process's number in a communicator, `0..world_size`.
pub type Rank = u32;

/// A communicator's number, the same on all of its ranks. 0 is the world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Encode, Decode)]
pub struct CommId(pub u32);

impl CommId {
    /// The communicator of all ranks.
    pub const WORLD: Self = Self(0);
}

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::WORLD { f.write_str("world") } else { write!(f, "comm{}", self.0) }
    }
}

/// An operation's number on this rank alone; never on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// What a message is, between one sender and one receiver: both compute it, neither is told.
///
/// Point-to-point messages set [`MessageId::POINT_TO_POINT`] in `step`, the rest of which is the
/// user's tag, and count `seq` per (peer, tag).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MessageId {
    /// The communicator.
    pub comm: CommId,
    /// The collective's sequence number on that communicator.
    pub seq: u64,
    /// The plan's tag.
    pub step: u32,
    /// Which chunk of the step's span.
    pub chunk: u32,
}

impl MessageId {
    /// Bit of `step` that marks send/recv messages.
    pub const POINT_TO_POINT: u32 = 1 << 31;

    /// Whether this is a send/recv message.
    pub fn is_point_to_point(&self) -> bool {
        self.step & Self::POINT_TO_POINT != 0
    }
}

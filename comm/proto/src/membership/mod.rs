//! The control plane: how ranks meet, how they know of each other's end, how a fault spreads.
//!
//! One [`hub::Hub`] beside rank 0, one [`member::Member`] in every rank, a reliable stream between
//! each member and the hub. No training data passes here. Members gather blobs (addresses, the
//! outcome of set-up), beat, say goodbye, and announce faults; the hub spreads the first fault to
//! all, so that every rank reports the same cause within one hop each way.
//!
//! ```text
//!   member 0 ──┐                      Blob, Beat, Fault, Leaving  ─▶
//!   member 1 ──┼── hub (beside rank 0)
//!   member 2 ──┘                      ◀─  Round, Table, Fault, Left, AllLeft
//! ```

pub mod hub;
pub mod member;

use crate::fault::Fault;
use crate::id::Rank;
use alloc::string::String;
use alloc::vec::Vec;
use bincode::{Decode, Encode};
use core::time::Duration;

pub use hub::{Hub, HubInput, HubOutput};
pub use member::{Member, MemberInput, MemberOutput};

/// What the two sides tell each other.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum ControlMessage {
    /// Hub: every rank has left; the stream may close.
    AllLeft,
    /// Member: alive, and has begun so many calls.
    Beat {
        /// Collective calls begun.
        calls: u64,
    },
    /// Member: its part of gather round `round`.
    Blob {
        /// Counted from 0 by every rank alike.
        round: u32,
        /// Its part.
        bytes: Vec<u8>,
    },
    /// Either: the first cause.
    Fault(Fault),
    /// Member: will make no further call. Hub: a rank has left.
    Left {
        /// Which.
        rank: Rank,
        /// Whether it unwound from a panic.
        panicking: bool,
    },
    /// Hub: all parts of a round, by rank.
    Round {
        /// Which.
        round: u32,
        /// By rank.
        blobs: Vec<Vec<u8>>,
    },
    /// Hub: what it last heard from each rank.
    Table(Vec<Standing>),
}

/// What the hub last heard from a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Standing {
    /// Collective calls begun.
    pub calls: u64,
    /// How long ago it said so.
    pub age_ms: u32,
    /// Whether it has left.
    pub has_left: bool,
}

/// The control plane's clockwork, the same on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Between beats.
    pub beat: Duration,
    /// Silence after which a rank is lost.
    pub silence: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { beat: Duration::from_millis(500), silence: Duration::from_secs(20) }
    }
}

/// Silence that is worth a word.
const SILENT_MS: u32 = 1200;

/// Who is behind, in words, from the hub's table; empty when the table says nothing.
pub fn verdict(table: &[Standing], me: Rank) -> String {
    use core::fmt::Write as _;
    let most = table.iter().map(|s| s.calls).max().unwrap_or(0);
    // Who is behind, or has not been heard of for several beats though it began as many calls.
    let behind = table.iter().zip(0..).filter(|(s, rank)| {
        *rank != me && (s.calls < most || (s.age_ms > SILENT_MS && !s.has_left))
    });
    let mut text = String::new();
    for (standing, rank) in behind.take(8) {
        text.push_str(if text.is_empty() { "behind: " } else { ", " });
        let Standing { calls, age_ms, has_left } = standing;
        let state = if *has_left { "has left" } else { "last heard" };
        let _ =
            write!(text, "rank {rank} ({calls} of {most} calls begun, {state} {age_ms} ms ago)");
    }
    text
}

#[cfg(test)]
mod tests;

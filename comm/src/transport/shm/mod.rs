//! Ranks of one host, through memory they share.
//!
//! One segment per host: rings for messages ([`transport()`]), and staging for collectives that
//! need no messages at all (`crate::offload::node`). The memory is an anonymous file that travels
//! by descriptor, so nothing is left behind by a process that is killed.
//!
//! Invariant of the `unsafe` below: what peers write into the segment is only ever read through
//! atomics, or through pointers whose range this process computed itself and which the protocol's
//! counters (acquire, release) have handed to it; a peer that breaks the protocol can make bytes
//! wrong, never move an access out of bounds.

mod backing;
pub(crate) mod bell;
mod cma;
mod handshake;
pub(crate) mod layout;
mod ring;
mod segment;
mod socket;
mod stream;
mod transport;

pub use cma::Puller;
pub use handshake::SegmentHost;
pub use layout::{LANES, MAX_LOCAL_SIZE};
pub use segment::NodeSegment;
pub use stream::RingStream;
pub use transport::{ShmTransport, transport};

use std::fmt;

/// Why a host's ranks cannot share memory; the caller takes TCP instead and says so once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShmUnavailable {
    /// In words, with errno texts, sizes and limits.
    pub reason: String,
}

impl fmt::Display for ShmUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shared memory is unavailable: {}", self.reason)
    }
}

impl std::error::Error for ShmUnavailable {}

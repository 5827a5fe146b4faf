//! Moving messages between two ranks: the contract every transport meets.
//!
//! A transport owns its connections and the requests posted to it. It never calls the engine,
//! never blocks, and never touches a request's memory after its completion or after
//! [`Transport::cancel_all`].
//!
//! **Matching.** A receive is met by the message with the same (peer, [`MessageId`]), in whatever
//! order the two come. Small messages (up to [`EAGER_MAX_BYTES`]) may arrive before their receive
//! is posted and are kept, a counted copy; larger ones wait at the sender until the receiver
//! says that it has posted them.
//!
//! **Contract.** A message whose fingerprint differs from the receive's is not folded in: it comes
//! out as [`Event::Arrived`], as does every message that arrives unposted; the engine compares
//! the calls and ends both with a typed error.
//!
//! **Order.** Messages of [`Class::Urgent`] overtake those of [`Class::Background`] at message
//! boundaries. No other order is promised.
//!
//! **End.** A peer's end or a broken connection is one [`Event::Failed`] for that peer; other
//! peers go on. Requests to a failed peer stay until `cancel_all`.

#[cfg(test)]
mod conformance;

pub mod loopback;
pub mod paced;
pub mod shm;
pub mod stream;
pub mod tcp;

use crate::memory::LocalSlice;
use std::fmt;
use std::io;
use syncline_kernels::{DType, ReduceOp, Stores, copy, reduce_bytes};
use syncline_proto::call::{Call, Fingerprint};
use syncline_proto::collective::machine::Transfer;
use syncline_proto::id::{MessageId, OpId, Rank};
use syncline_proto::time::Instant;

/// Largest message that is sent before its receive is known to be posted.
pub const EAGER_MAX_BYTES: usize = 32 << 10;

/// A posted transfer's name, given back in its completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId {
    /// The operation.
    pub op: OpId,
    /// Its transfer.
    pub transfer: Transfer,
}

/// How urgent a communicator's messages are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Class {
    /// Somebody waits for it.
    #[default]
    Urgent,
    /// It may wait for what is urgent.
    Background,
}

/// How a receive folds in what arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SinkFold {
    /// `here = here op arrived`, element by element.
    Reduce(DType, ReduceOp),
    /// `here = arrived`.
    Replace,
}

/// Where arriving bytes go.
#[derive(Debug)]
pub struct Sink {
    /// The memory, exactly as long as the message.
    pub memory: LocalSlice,
    /// How.
    pub fold: SinkFold,
}

impl Sink {
    /// Folds `bytes` in at `offset`. For [`SinkFold::Reduce`] both must be multiples of the
    /// element's size.
    pub fn fold_in(&mut self, offset: usize, bytes: &[u8]) {
        let target = &mut self.memory.bytes_mut()[offset..offset + bytes.len()];
        match self.fold {
            SinkFold::Reduce(dtype, op) => reduce_bytes(dtype, op, target, bytes),
            SinkFold::Replace => copy(target, bytes, Stores::Cached),
        }
    }

    /// Bytes of one element, the granularity of [`Sink::fold_in`].
    pub fn granularity(&self) -> usize {
        match self.fold {
            SinkFold::Reduce(dtype, _) => dtype.size(),
            SinkFold::Replace => 1,
        }
    }
}

/// What to do.
#[derive(Debug)]
pub enum Work {
    /// Receive into.
    Recv(Sink),
    /// Send from.
    Send(LocalSlice),
}

/// A transfer to start.
#[derive(Debug)]
pub struct WorkRequest {
    /// Comes back in the completion.
    pub id: RequestId,
    /// World rank.
    pub peer: Rank,
    /// The message's name.
    pub message: MessageId,
    /// The call it belongs to.
    pub fingerprint: Fingerprint,
    /// Its urgency.
    pub class: Class,
    /// What.
    pub work: Work,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A message came that no posted receive with that fingerprint waits for, or a receiver asked
    /// for one that no such send has.
    Arrived {
        /// World rank.
        peer: Rank,
        /// The sender's call.
        call: Call,
        /// Which message.
        message: MessageId,
        /// Whether the peer asks for the message, rather than sends it.
        is_asked: bool,
    },
    /// A request is done; its memory is the operation's again.
    Completed(RequestId),
    /// A peer cannot be reached any more.
    Failed(PeerFailure),
}

/// Why a peer cannot be reached.
#[derive(Debug)]
pub struct PeerFailure {
    /// World rank.
    pub peer: Rank,
    /// Whether the peer's end closed, rather than the peer breaking the protocol.
    pub is_end: bool,
    /// Transport, local and remote address, errno text.
    pub detail: String,
}

/// Point-to-point back end to some peers.
pub trait Transport: Send + fmt::Debug {
    /// `tcp`, `shm`, `loopback`.
    fn name(&self) -> &'static str;

    /// Starts a transfer. Never blocks; may move bytes at once.
    fn post(&mut self, now: Instant, request: WorkRequest);

    /// All transfers of the moment are posted: what they have for the peer can go, together.
    fn push(&mut self) {}

    /// Moves what can be moved, appends what happened; whether anything moved.
    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool;

    /// When to call [`poll`](Self::poll) even if nothing arrives.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Sources of readiness for the engine's sleep.
    fn register(&mut self, _registry: &mio::Registry) -> io::Result<()> {
        Ok(())
    }

    /// `token` became ready while the engine slept or looked.
    fn handle_ready(&mut self, _token: mio::Token, _readable: bool, _writable: bool) {}

    /// The engine is about to sleep. `false`: there is work, do not. A transport whose peers
    /// must be told that a bell is needed tells them here, before it looks a last time.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// The engine is awake again.
    fn finish_sleep(&mut self) {}

    /// Nothing has moved for a while: peers are told which receives wait for them, so that ranks
    /// that all wait, because they made different calls, find out.
    fn tell_posted(&mut self) {}

    /// Whether every byte handed in has been taken by the operating system or the peer.
    fn is_flushed(&self) -> bool;

    /// Forgets every request. Afterwards none of their memory is touched.
    fn cancel_all(&mut self);

    /// Bytes copied beside the fold itself, for the zero-copy tests.
    fn bytes_copied(&self) -> u64;
}

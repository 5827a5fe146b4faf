//! What the communicator asks of the engine.

use crate::memory::LocalSlice;
use crate::transport::Class;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use syncline_kernels::{DType, ReduceOp};
use syncline_proto::call::{Call, CollectiveKind};
use syncline_proto::collective::Plan;
use syncline_proto::id::{MessageId, Rank};

/// How the operation is carried out.
#[derive(Debug)]
pub(crate) enum Body {
    /// By the communicator's lane.
    Node {
        /// Member index of the root.
        root: Rank,
        /// Which collective.
        kind: CollectiveKind,
    },
    /// By messages.
    Plan {
        /// This rank's part.
        plan: Plan,
        /// World ranks of the communicator, by its ranks.
        members: Arc<[Rank]>,
        /// Elements per chunk, the same on all ranks.
        chunk_len: u64,
    },
}

/// This rank's end of a point-to-point message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Endpoint {
    /// World rank of the other end.
    pub(crate) peer: Rank,
    /// Whether this rank sends.
    pub(crate) is_send: bool,
    /// Its name; chunk 0.
    pub(crate) message: MessageId,
}

/// An operation to start.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) call: Call,
    pub(crate) body: Body,
    pub(crate) dtype: DType,
    /// Ignored by what reduces nothing.
    pub(crate) op: ReduceOp,
    /// Divide the output by this at the end of a plan.
    pub(crate) average_over: Option<u32>,
    pub(crate) class: Class,
    /// For point-to-point messages.
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) input: LocalSlice,
    pub(crate) output: LocalSlice,
    /// How long it may take from its start.
    pub(crate) timeout: Duration,
    /// Memory that the operation owns, given back at its end.
    pub(crate) buffer: Option<Box<dyn Any + Send>>,
}

//! What a call asks for, and the 16-byte fingerprint by which ranks check that they agree.

use crate::id::{CommId, Rank};
use bincode::{Decode, Encode};
use core::fmt;
use syncline_kernels::{DType, ReduceOp};

/// Which collective. The codes are the wire's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum CollectiveKind {
    /// Every rank gets every rank's block.
    AllGather = 1,
    /// Every rank gets the reduction of all ranks' data.
    AllReduce = 2,
    /// Every rank sends a block of its own to every rank.
    AllToAll = 3,
    /// Nobody leaves before everybody came.
    Barrier = 4,
    /// Every rank gets the root's data.
    Broadcast = 5,
    /// The root gets every rank's block.
    Gather = 6,
    /// The root gets the reduction of all ranks' data.
    Reduce = 7,
    /// Every rank gets its block of the reduction.
    ReduceScatter = 8,
    /// Every rank gets its block of the root's data.
    Scatter = 9,
    /// Point to point; not a collective, but checked the same way.
    SendRecv = 10,
    /// Making of a new communicator.
    Split = 11,
}

impl CollectiveKind {
    /// All, in the wire's order.
    pub const ALL: [Self; 11] = [
        Self::AllGather,
        Self::AllReduce,
        Self::AllToAll,
        Self::Barrier,
        Self::Broadcast,
        Self::Gather,
        Self::Reduce,
        Self::ReduceScatter,
        Self::Scatter,
        Self::SendRecv,
        Self::Split,
    ];

    /// The kind with this code on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// Whether contributions are folded.
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// The name users know, as in `all_reduce`.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::AllReduce => "all_reduce",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::Broadcast => "broadcast",
            Self::Gather => "gather",
            Self::Reduce => "reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::Scatter => "scatter",
            Self::SendRecv => "send_recv",
            Self::Split => "split",
        }
    }
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What every rank of a call must agree on; travels in the header of each of its frames.
///
/// `count` is what the public function's documentation calls it: elements of the buffer for
/// `all_reduce`, `reduce`, `broadcast` and send/recv, elements per rank for the rest, a hash of
/// the counts for the `_v` forms whose counts all ranks know, 0 for `all_to_all_v`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
pub struct Fingerprint {
    /// [`CollectiveKind`] code.
    pub kind: u8,
    /// [`DType`] code.
    pub dtype: u8,
    /// [`ReduceOp`] code, with [`Fingerprint::CANONICAL`] where canonical bits are asked for; or
    /// [`Fingerprint::NO_OP`].
    pub op: u8,
    /// [`Algorithm`](crate::collective::Algorithm) code.
    pub algorithm: u8,
    /// The root, or [`Fingerprint::NO_ROOT`].
    pub root: u32,
    /// Elements.
    pub count: u64,
}

impl Fingerprint {
    /// Bit of `op`: the result must be canonical
    /// ([`is_canonical`](crate::collective::tuning::is_canonical)).
    pub const CANONICAL: u8 = 0x40;
    /// `op` of a call that reduces nothing.
    pub const NO_OP: u8 = u8::MAX;
    /// `root` of a call that has none.
    pub const NO_ROOT: u32 = u32::MAX;
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// Little-endian, fields in order.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&[self.kind, self.dtype, self.op, self.algorithm]);
        bytes[4..8].copy_from_slice(&self.root.to_le_bytes());
        bytes[8..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// Any 16 bytes are a fingerprint; whether it is ours is for the comparison to say.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let [kind, dtype, op, algorithm, r0, r1, r2, r3, count @ ..] = bytes;
        Self {
            kind,
            dtype,
            op,
            algorithm,
            root: u32::from_le_bytes([r0, r1, r2, r3]),
            count: u64::from_le_bytes(count),
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match CollectiveKind::from_code(self.kind) {
            Some(kind) => write!(f, "{kind}(count {}", self.count)?,
            None => write!(f, "call {}(count {}", self.kind, self.count)?,
        }
        match DType::from_code(self.dtype) {
            Some(dtype) => write!(f, ", {dtype}")?,
            None => write!(f, ", dtype {}", self.dtype)?,
        }
        if let Some(op) = ReduceOp::from_code(self.op & !Self::CANONICAL) {
            let grade = if self.op & Self::CANONICAL == 0 { "" } else { " (canonical)" };
            write!(f, ", {op}{grade}")?;
        }
        if self.root != Self::NO_ROOT {
            write!(f, ", root {}", self.root)?;
        }
        f.write_str(")")
    }
}

/// Where and when a call was made: enough to name it in an error on any rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Call {
    /// The communicator.
    pub comm: CommId,
    /// Its number on that communicator.
    pub seq: u64,
    /// What was asked.
    pub fingerprint: Fingerprint,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{} on {}", self.fingerprint, self.seq, self.comm)
    }
}

/// A rank and what it called, for messages that compare two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RankCall {
    /// World rank.
    pub rank: Rank,
    /// Its call.
    pub call: Call,
}

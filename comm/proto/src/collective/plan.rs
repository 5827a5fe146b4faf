//! What a collective does on one rank, as data.
//!
//! A plan speaks of elements in areas, never of bytes or addresses. The driver turns spans into
//! memory; the prover turns them into sets of contributions.

use crate::id::Rank;
use alloc::vec::Vec;

/// Which memory a span lies in. Where a call works in place, everything is `Output`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Area {
    /// The caller's data, never written.
    Input,
    /// Where the result goes.
    Output,
    /// Memory of the operation's own, [`Plan::scratch_len`] elements.
    Scratch,
}

/// `len` elements of an area from `offset`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span {
    /// The memory.
    pub area: Area,
    /// First element.
    pub offset: u64,
    /// Elements; 0 is legal, and its message still travels.
    pub len: u64,
}

impl Span {
    /// `len` elements of the input from `offset`.
    pub const fn input(offset: u64, len: u64) -> Self {
        Self { area: Area::Input, offset, len }
    }

    /// `len` elements of the output from `offset`.
    pub const fn output(offset: u64, len: u64) -> Self {
        Self { area: Area::Output, offset, len }
    }

    /// `len` elements of the scratch from `offset`.
    pub const fn scratch(offset: u64, len: u64) -> Self {
        Self { area: Area::Scratch, offset, len }
    }

    /// Whether two spans share an element.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.area == other.area
            && self.offset < other.offset + other.len
            && other.offset < self.offset + self.len
    }
}

/// What becomes of arriving elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fold {
    /// `here = here op arrived`.
    Reduce,
    /// `here = arrived`.
    Replace,
}

/// One thing to do.
///
/// `peer` is a rank of the plan's communicator. `tag` is the message's name between the two: the
/// sender's and the receiver's plan give it the same, and no two messages of one direction
/// between two ranks share one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// `target = source`, here.
    Copy {
        /// Read.
        source: Span,
        /// Written; the same length, no overlap.
        target: Span,
    },
    /// Receive into a span.
    Recv {
        /// From whom.
        peer: Rank,
        /// Which message.
        tag: u32,
        /// Where to.
        span: Span,
        /// How.
        fold: Fold,
    },
    /// `target = target op source`, here.
    Reduce {
        /// Read.
        source: Span,
        /// Read and written; the same length, no overlap.
        target: Span,
    },
    /// `target = s0 op s1 op s2 …`, here, from the left and rounded once (the kernels'
    /// `reduce_many`): first the parts of `before`, then `own`, then the parts of `after`. All
    /// parts are as long as `target`.
    ReduceMany {
        /// Read; any number of parts, one after the other.
        before: Span,
        /// Read; one part. It may be `target` itself.
        own: Span,
        /// Read; any number of parts.
        after: Span,
        /// Written; else no overlap with what is read.
        target: Span,
    },
    /// Send a span.
    Send {
        /// To whom.
        peer: Rank,
        /// Which message.
        tag: u32,
        /// What.
        span: Span,
    },
}

impl Step {
    /// Whether it involves no peer.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Copy { .. } | Self::Reduce { .. } | Self::ReduceMany { .. })
    }
}

/// Steps that may run at once. Local steps come first, in order; then all sends and receives are
/// posted together; the round ends when the last has completed. No step of a round may read or
/// write what another receive of it writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// In the order given.
    pub steps: Vec<Step>,
}

/// What a collective does on one rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Elements of scratch needed.
    pub scratch_len: u64,
    /// One after the other.
    pub rounds: Vec<Round>,
}

impl Plan {
    /// Adds a round, unless it is empty: a rank that has nothing to do skips what others do.
    pub fn push_round(&mut self, steps: Vec<Step>) {
        if !steps.is_empty() {
            self.rounds.push(Round { steps });
        }
    }

    /// Elements this rank receives.
    pub fn elements_received(&self) -> u64 {
        self.steps().map(|s| if let Step::Recv { span, .. } = s { span.len } else { 0 }).sum()
    }

    /// Elements this rank sends.
    pub fn elements_sent(&self) -> u64 {
        self.steps().map(|s| if let Step::Send { span, .. } = s { span.len } else { 0 }).sum()
    }

    /// All steps in order.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.rounds.iter().flat_map(|round| &round.steps)
    }
}

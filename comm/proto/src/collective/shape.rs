//! How long the buffers of a collective are, on every rank.
//!
//! Owns the meaning of counts and root per kind, and nothing of how data gets anywhere. Used by
//! [`super::tuning::plan`], by the prover, and by the engine to check a caller's buffers.

use super::blocks::Blocks;
use crate::call::CollectiveKind;
use crate::id::Rank;
use alloc::vec::Vec;

/// Element counts of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Counts {
    /// What this rank exchanges with each rank, known to it alone: `all_to_all_v`.
    Exchange {
        /// Elements to each rank.
        send: Vec<u64>,
        /// Elements from each rank.
        recv: Vec<u64>,
    },
    /// Each rank's own block, known to all ranks: the other `_v` forms.
    PerRank(Vec<u64>),
    /// One count that says everything.
    Uniform(u64),
}

/// Counts and root of a call.
///
/// | kind | `Uniform` count is | input | output |
/// |---|---|---|---|
/// | `all_reduce` | the vector | 0 | count, in place |
/// | `broadcast` | the vector | 0 | count, in place, given by the root |
/// | `reduce` | the vector | count | count on the root, else 0 |
/// | `all_gather` | a rank's block | block | all blocks |
/// | `reduce_scatter` | a rank's block | all blocks | block |
/// | `gather` | a rank's block | block | all blocks on the root, else 0 |
/// | `scatter` | a rank's block | all blocks on the root, else 0 | block |
/// | `all_to_all` | a pair's block | a block for each rank | a block from each rank |
/// | `barrier` | ignored | 0 | 0 |
///
/// Blocks lie one after the other in the order of ranks, without gaps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Elements.
    pub counts: Counts,
    /// The root, for kinds that have one; else ignored.
    pub root: Rank,
}

/// Elements of a rank's buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Elements of [`Area::Input`](super::Area::Input).
    pub input: u64,
    /// Elements of [`Area::Output`](super::Area::Output).
    pub output: u64,
}

impl Shape {
    /// One count, root 0.
    pub fn uniform(count: u64) -> Self {
        Self { counts: Counts::Uniform(count), root: 0 }
    }

    /// A block per rank, root 0.
    pub fn per_rank(counts: Vec<u64>) -> Self {
        Self { counts: Counts::PerRank(counts), root: 0 }
    }

    /// What one rank exchanges with each.
    pub fn exchange(send: Vec<u64>, recv: Vec<u64>) -> Self {
        Self { counts: Counts::Exchange { send, recv }, root: 0 }
    }

    /// The same with another root.
    #[must_use]
    pub fn with_root(self, root: Rank) -> Self {
        Self { root, ..self }
    }

    /// Buffer lengths of `rank`; `None` if the counts do not fit the kind or the world, the root
    /// is outside the world, or a sum does not fit 64 bits.
    pub fn extent(&self, kind: CollectiveKind, rank: Rank, world_size: u32) -> Option<Extent> {
        use CollectiveKind as K;
        if rank >= world_size || (has_root(kind) && self.root >= world_size) {
            return None;
        }
        let (input, output) = match kind {
            K::AllReduce | K::Broadcast => (0, self.vector()?),
            K::Reduce => (self.vector()?, self.on_root(rank, self.vector()?)),
            K::AllGather | K::Gather | K::ReduceScatter | K::Scatter => {
                let blocks = self.blocks(world_size)?;
                let (own, all) = (blocks.len(rank), blocks.total());
                match kind {
                    K::AllGather => (own, all),
                    K::Gather => (own, self.on_root(rank, all)),
                    K::ReduceScatter => (all, own),
                    _ => (self.on_root(rank, all), own),
                }
            }
            K::AllToAll => {
                let (send, recv) = self.exchanged(world_size)?;
                (send.total(), recv.total())
            }
            K::Barrier => (0, 0),
            K::SendRecv | K::Split => return None,
        };
        Some(Extent { input, output })
    }

    /// The count of a kind that works on one vector.
    pub(super) fn vector(&self) -> Option<u64> {
        if let Counts::Uniform(count) = self.counts { Some(count) } else { None }
    }

    /// The blocks of a kind with one block per rank.
    pub(super) fn blocks(&self, world_size: u32) -> Option<Blocks> {
        match &self.counts {
            Counts::Uniform(count) => Blocks::uniform(*count, world_size),
            Counts::PerRank(counts) if counts.len() == world_size as usize => {
                Blocks::per_rank(counts)
            }
            _ => None,
        }
    }

    /// The blocks (sent, received) of `all_to_all`.
    pub(super) fn exchanged(&self, world_size: u32) -> Option<(Blocks, Blocks)> {
        match &self.counts {
            Counts::Uniform(count) => {
                let blocks = Blocks::uniform(*count, world_size)?;
                Some((blocks.clone(), blocks))
            }
            Counts::Exchange { send, recv }
                if send.len() == world_size as usize && recv.len() == world_size as usize =>
            {
                Some((Blocks::per_rank(send)?, Blocks::per_rank(recv)?))
            }
            _ => None,
        }
    }

    fn on_root(&self, rank: Rank, len: u64) -> u64 {
        if rank == self.root { len } else { 0 }
    }
}

/// Whether a kind has a root.
pub fn has_root(kind: CollectiveKind) -> bool {
    use CollectiveKind as K;
    matches!(kind, K::Broadcast | K::Gather | K::Reduce | K::Scatter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use CollectiveKind as K;
    use alloc::vec;

    fn extent(shape: &Shape, kind: K, rank: Rank) -> Option<(u64, u64)> {
        shape.extent(kind, rank, 3).map(|extent| (extent.input, extent.output))
    }

    #[test]
    fn extents_follow_the_table() {
        let shape = Shape::uniform(5).with_root(1);
        let expected = [
            (K::AllGather, (5, 15), (5, 15)),
            (K::AllReduce, (0, 5), (0, 5)),
            (K::AllToAll, (15, 15), (15, 15)),
            (K::Barrier, (0, 0), (0, 0)),
            (K::Broadcast, (0, 5), (0, 5)),
            (K::Gather, (5, 15), (5, 0)),
            (K::Reduce, (5, 5), (5, 0)),
            (K::ReduceScatter, (15, 5), (15, 5)),
            (K::Scatter, (15, 5), (0, 5)),
        ];
        for (kind, root, other) in expected {
            assert_eq!(extent(&shape, kind, 1), Some(root), "{kind}");
            assert_eq!(extent(&shape, kind, 2), Some(other), "{kind}");
        }
    }

    #[test]
    fn uneven_counts() {
        let shape = Shape::per_rank(vec![1, 0, 4]);
        assert_eq!(extent(&shape, K::AllGather, 2), Some((4, 5)));
        assert_eq!(extent(&shape, K::Scatter, 1), Some((0, 0)));
        let shape = Shape::exchange(vec![1, 2, 3], vec![0, 0, 9]);
        assert_eq!(extent(&shape, K::AllToAll, 0), Some((6, 9)));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(extent(&Shape::uniform(1).with_root(3), K::Reduce, 0), None);
        assert_eq!(extent(&Shape::uniform(1).with_root(3), K::AllReduce, 0), Some((0, 1)));
        assert_eq!(extent(&Shape::uniform(1), K::AllReduce, 3), None);
        assert_eq!(extent(&Shape::per_rank(vec![1, 2]), K::Gather, 0), None);
        assert_eq!(extent(&Shape::per_rank(vec![1, 2, 3]), K::AllReduce, 0), None);
        assert_eq!(extent(&Shape::per_rank(vec![1, 2, 3]), K::AllToAll, 0), None);
        assert_eq!(extent(&Shape::exchange(vec![1; 3], vec![1; 2]), K::AllToAll, 0), None);
        assert_eq!(extent(&Shape::uniform(u64::MAX), K::AllGather, 0), None);
        assert_eq!(extent(&Shape::uniform(1), K::Split, 0), None);
    }
}

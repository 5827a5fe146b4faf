//! How a call is cut into chunks, and a chunk into parts: numbers only.
//!
//! Every member computes the same shape, because it depends only on what the members' calls are
//! checked to agree on. Used by the stages.

use std::ops::Range;
use syncline_kernels::{DType, MAX_SOURCES};
use syncline_proto::call::CollectiveKind;

/// Cuts fall on multiples of this, so that no element and no cache line is shared. Bytes.
const ALIGN: usize = 64;
/// Up to this many bytes per member, everybody folds everything: one hand-over instead of two.
const FLAT_MAX_BYTES: usize = 16 << 10;

/// What flows where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flow {
    /// Everybody copies all it has; who wants the result folds all of it.
    FoldWhole,
    /// Everybody copies all but its part, folds its part, and takes the parts of the others.
    FoldParts,
    /// Everybody copies the others' blocks and folds its own: reduce_scatter.
    FoldBlocks,
    /// The copies are what is wanted.
    Copy,
    /// Two members, who want the same of each other: each takes out the other's chunk and puts its
    /// own next one where it lay.
    Exchange,
}

/// The cut of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) flow: Flow,
    /// Bytes of a block: all of the data, or what one member contributes or gets.
    pub(super) block: usize,
    /// Bytes of each block that a chunk holds, but for the last; a multiple of [`ALIGN`].
    pub(super) slice: usize,
    /// At least one: also an empty call is checked.
    pub(super) chunks: u64,
    members: u32,
}

/// Bytes that two members exchange at once, of which each takes out and puts in this much at a
/// time, so that it stays in the first cache.
const EXCHANGE_BYTES: usize = crate::transport::shm::layout::EXCHANGE_BYTES;
pub(super) const EXCHANGE_BLOCK_BYTES: usize = 4 << 10;

impl Shape {
    /// For blocks of `block` bytes, with staging buffers of `chunk_bytes`.
    pub(super) fn new(
        kind: CollectiveKind,
        block: usize,
        members: u32,
        chunk_bytes: usize,
    ) -> Self {
        use CollectiveKind as Kind;
        let flow = match kind {
            Kind::AllGather | Kind::AllReduce | Kind::AllToAll | Kind::ReduceScatter
                if members == 2 =>
            {
                Flow::Exchange
            }
            Kind::Reduce if members == 2 => Flow::FoldWhole,
            Kind::AllReduce | Kind::Reduce if block <= FLAT_MAX_BYTES => Flow::FoldWhole,
            Kind::AllReduce | Kind::Reduce => Flow::FoldParts,
            Kind::ReduceScatter => Flow::FoldBlocks,
            _ => Flow::Copy,
        };
        // Blocks that lie side by side in a member's staging.
        let rows = match kind {
            Kind::AllToAll | Kind::ReduceScatter | Kind::Scatter => members as usize,
            _ => 1,
        };
        let slice_max = match flow {
            Flow::Exchange => EXCHANGE_BYTES.min(chunk_bytes),
            _ => chunk_bytes / rows / ALIGN * ALIGN,
        };
        let chunks = block.div_ceil(slice_max).max(1);
        let slice = block.div_ceil(chunks).next_multiple_of(ALIGN);
        Self { flow, block, slice, chunks: chunks as u64, members }
    }

    /// Whether a lane can do this at all.
    pub(super) fn supports(kind: CollectiveKind, members: u32) -> bool {
        let is_collective = !matches!(kind, CollectiveKind::SendRecv | CollectiveKind::Split);
        is_collective && members as usize <= MAX_SOURCES
    }

    /// What chunk `index` holds of a block.
    pub(super) fn range(&self, index: u64) -> Range<usize> {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let start = index.saturating_mul(self.slice).min(self.block);
        start..(start + self.slice).min(self.block)
    }

    /// The part of a chunk of `len` bytes that `member` folds.
    pub(super) fn part(&self, member: u32, len: usize) -> Range<usize> {
        let part = len.div_ceil(self.members as usize).next_multiple_of(ALIGN);
        let start = (member as usize * part).min(len);
        start..(start + part).min(len)
    }

    /// Where the slice for or of `member` lies in a staging buffer with a row per member.
    pub(super) fn row(&self, member: u32, len: usize) -> Range<usize> {
        let start = member as usize * self.slice;
        start..start + len
    }
}

const _: () = assert!(ALIGN.is_multiple_of(size_of::<u64>()) && DType::U64.size() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 64 << 10;

    #[test]
    fn chunks_cover_the_block_once_and_fit_the_staging() {
        for kind in CollectiveKind::ALL {
            for members in [1, 2, 3, 8, 64] {
                for block in [0, 1, 63, 64, 65, CHUNK - 1, CHUNK, CHUNK + 1, 7 * CHUNK + 13] {
                    let shape = Shape::new(kind, block, members, CHUNK);
                    let mut next = 0;
                    for index in 0..shape.chunks {
                        let range = shape.range(index);
                        assert_eq!(range.start, next);
                        assert!(range.len() <= shape.slice && shape.slice <= CHUNK);
                        assert!(block == 0 || !range.is_empty(), "{shape:?} chunk {index}");
                        next = range.end;
                    }
                    assert_eq!(next, block);
                    let rows = matches!(
                        kind,
                        CollectiveKind::AllToAll
                            | CollectiveKind::ReduceScatter
                            | CollectiveKind::Scatter
                    );
                    let rows = rows && shape.flow != Flow::Exchange;
                    assert!(!rows || shape.row(members - 1, shape.slice).end <= CHUNK);
                }
            }
        }
    }

    #[test]
    fn parts_cover_the_chunk_once() {
        for members in [1, 2, 3, 7, 64] {
            let shape = Shape::new(CollectiveKind::AllReduce, 0, members, CHUNK);
            for len in [0, 1, 64, 65, 1000, CHUNK] {
                let mut next = 0;
                for member in 0..members {
                    let part = shape.part(member, len);
                    assert_eq!(part.start, next);
                    assert!(part.end == len || part.end.is_multiple_of(ALIGN));
                    next = part.end;
                }
                assert_eq!(next, len);
            }
        }
    }
}

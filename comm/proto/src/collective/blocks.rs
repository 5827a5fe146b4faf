//! Who takes part, and which part of a vector belongs to whom: the vocabulary of every plan
//! function.
//!
//! Owns the partition of vectors into blocks and the numbering of ranks inside an algorithm. Makes
//! no steps. Used by the plan functions of this folder and by the prover.

use super::plan::{Area, Span};
use crate::id::Rank;
use alloc::vec::Vec;

/// Part `index` of `count` elements shared out over `parts`, as (offset, length): the first
/// `count % parts` blocks hold one element more than the rest, so lengths differ by at most one.
///
/// # Panics
/// If `index >= parts`.
pub fn block(index: u32, parts: u32, count: u64) -> (u64, u64) {
    assert!(index < parts, "block {index} of {parts}");
    let (small, larger) = (count / u64::from(parts), count % u64::from(parts));
    let index = u64::from(index);
    (index * small + index.min(larger), small + u64::from(index < larger))
}

/// A vector cut into consecutive blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// Where each block ends; the first starts at 0.
    ends: Vec<u64>,
}

impl Blocks {
    /// `count` elements shared out over `parts` as [`block`] does.
    pub fn balanced(count: u64, parts: u32) -> Self {
        let end = |index| {
            let (offset, len) = block(index, parts, count);
            offset + len
        };
        Self { ends: (0..parts).map(end).collect() }
    }

    /// `parts` blocks of `count` elements; `None` if the sum does not fit 64 bits.
    pub fn uniform(count: u64, parts: u32) -> Option<Self> {
        (1..=u64::from(parts)).map(|n| count.checked_mul(n)).collect::<Option<_>>().map(Self::new)
    }

    /// One block per count; `None` if the sum does not fit 64 bits.
    pub fn per_rank(counts: &[u64]) -> Option<Self> {
        let mut sum = 0_u64;
        let mut ends = Vec::with_capacity(counts.len());
        for count in counts {
            sum = sum.checked_add(*count)?;
            ends.push(sum);
        }
        Some(Self { ends })
    }

    fn new(ends: Vec<u64>) -> Self {
        Self { ends }
    }

    /// How many blocks.
    pub fn count(&self) -> u32 {
        u32::try_from(self.ends.len()).expect("there are at most as many blocks as ranks")
    }

    /// Elements of all blocks.
    pub fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Elements of the longest block.
    pub fn longest(&self) -> u64 {
        (0..self.count()).map(|index| self.len(index)).max().unwrap_or(0)
    }

    /// First element of a block.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn offset(&self, index: u32) -> u64 {
        if index == 0 { 0 } else { self.ends[index as usize - 1] }
    }

    /// Elements of a block.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn len(&self, index: u32) -> u64 {
        self.ends[index as usize] - self.offset(index)
    }

    /// A block, in an area that holds the whole vector.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn span(&self, area: Area, index: u32) -> Span {
        Span { area, offset: self.offset(index), len: self.len(index) }
    }

    /// Blocks `first..end`, in an area that holds the whole vector.
    ///
    /// # Panics
    /// If there are not that many blocks, or `first >= end`.
    pub fn range(&self, area: Area, first: u32, end: u32) -> Span {
        let offset = self.offset(first);
        Span { area, offset, len: self.ends[end as usize - 1] - offset }
    }
}

/// The ranks an algorithm runs over, and this rank's place among them.
///
/// Algorithms count in indices `0..size`; [`Group::rank_at`] turns them into ranks. A whole world
/// needs no list; a subset or another order has one.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    index: u32,
    size: u32,
    members: Option<&'a [Rank]>,
}

impl<'a> Group<'a> {
    /// All ranks, in their own order.
    ///
    /// # Panics
    /// If `rank >= world_size`.
    pub fn world(rank: Rank, world_size: u32) -> Self {
        assert!(rank < world_size, "rank {rank} of {world_size}");
        Self { index: rank, size: world_size, members: None }
    }

    /// The listed ranks, in the list's order; `None` if `rank` is not one of them.
    pub fn listed(rank: Rank, members: &'a [Rank]) -> Option<Self> {
        let index = members.iter().position(|member| *member == rank)?;
        let size = u32::try_from(members.len()).ok()?;
        Some(Self { index: u32::try_from(index).ok()?, size, members: Some(members) })
    }

    /// This rank's index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How many take part.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The rank at an index.
    ///
    /// # Panics
    /// If a list is shorter than `index`.
    pub fn rank_at(&self, index: u32) -> Rank {
        self.members.map_or(index, |members| members[index as usize])
    }

    /// The index of a rank; `None` if it does not take part.
    pub fn index_of(&self, rank: Rank) -> Option<u32> {
        match self.members {
            None => (rank < self.size).then_some(rank),
            Some(members) => (0..).zip(members).find(|(_, m)| **m == rank).map(|(index, _)| index),
        }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank_at(self.index)
    }

    /// The index `distance` places on, around the end.
    pub fn after(&self, distance: u32) -> u32 {
        wrap(u64::from(self.index) + u64::from(distance), self.size)
    }

    /// The index `distance` places back, around the start.
    pub fn before(&self, distance: u32) -> u32 {
        let distance = distance % self.size;
        wrap(u64::from(self.index) + u64::from(self.size - distance), self.size)
    }
}

fn wrap(index: u64, size: u32) -> u32 {
    u32::try_from(index % u64::from(size)).expect("a remainder is smaller than its divisor")
}

/// The number of doublings that reach `size`: the smallest `k` with `2^k >= size`.
pub fn ceil_log2(size: u32) -> u32 {
    u32::BITS - size.saturating_sub(1).leading_zeros()
}

/// The number of doublings that stay within `size`: the largest `k` with `2^k <= size`.
///
/// # Panics
/// If `size` is 0.
pub fn floor_log2(size: u32) -> u32 {
    size.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_vector_and_differ_by_one() {
        for parts in 1..20 {
            for count in [0, 1, 2, 19, 20, 21, 1000] {
                let blocks = Blocks::balanced(count, parts);
                let mut next = 0;
                for index in 0..parts {
                    assert_eq!(
                        (blocks.offset(index), blocks.len(index)),
                        block(index, parts, count)
                    );
                    assert_eq!(blocks.offset(index), next);
                    next += blocks.len(index);
                    assert!(
                        blocks.len(index) == count.div_ceil(u64::from(parts))
                            || blocks.len(index) == count / u64::from(parts)
                    );
                }
                assert_eq!(next, count);
                assert_eq!(blocks.total(), count);
                assert_eq!(blocks.longest(), count.div_ceil(u64::from(parts)));
            }
        }
    }

    #[test]
    fn sums_that_overflow_are_refused() {
        assert!(Blocks::uniform(u64::MAX / 2, 2).is_some());
        assert!(Blocks::uniform(u64::MAX / 2, 3).is_none());
        assert!(Blocks::per_rank(&[u64::MAX, 0]).is_some());
        assert!(Blocks::per_rank(&[u64::MAX, 1]).is_none());
    }

    #[test]
    fn indices_wrap() {
        let group = Group::listed(7, &[3, 7, 9]).unwrap();
        assert_eq!((group.index(), group.size(), group.rank()), (1, 3, 7));
        assert_eq!(group.rank_at(group.after(2)), 3);
        assert_eq!(group.rank_at(group.before(2)), 9);
        assert_eq!(group.before(3), 1);
        assert!(Group::listed(4, &[3, 7, 9]).is_none());
    }

    #[test]
    fn logarithms() {
        let ceil: Vec<_> = (1..=9).map(ceil_log2).collect();
        let floor: Vec<_> = (1..=9).map(floor_log2).collect();
        assert_eq!(ceil, [0, 1, 2, 2, 3, 3, 3, 3, 4]);
        assert_eq!(floor, [0, 1, 1, 2, 2, 2, 2, 3, 3]);
    }
}

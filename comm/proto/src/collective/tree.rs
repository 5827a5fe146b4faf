//! Binomial tree: the number of ranks that have the data doubles with each step.
//!
//! Broadcast from 0 over eight ranks; reduce runs the same arrows backwards, last step first:
//!
//! ```text
//! step 0   0 ----------> 4
//! step 1   0 ----> 2     4 ----> 6
//! step 2   0 -> 1  2 -> 3  4 -> 5  6 -> 7
//! ```
//!
//! For `n` ranks and `c` elements, `L = ceil(log2 n)`, `v` the distance from the root, and
//! `children(v)` the number of `k` with `2^k < lowest set bit of v` (any `k < L` for the root) and
//! `v + 2^k < n`:
//!
//! | | longest chain of steps | elements a rank sends |
//! |---|---|---|
//! | broadcast | `L` | `children(v) * c` |
//! | reduce | `L` | `c`, the root 0 |
//! | all-reduce | `2L` | the sum of both |
//!
//! Each child is served in a round of its own, the farthest first: together they would share the
//! link and the farthest, which has most to do, would wait for the nearest.
//!
//! Source: the textbook tree; see R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of
//! collective communication operations in MPICH", IJHPCA 2005.

use super::blocks::{Group, ceil_log2};
use super::plan::{Fold, Plan, Span, Step};
use alloc::vec;

/// Tags a tree of any size takes.
pub(super) const TAGS: u32 = u32::BITS;

/// All-reduce of `count` elements in place: reduce to index 0, then broadcast from it.
pub fn all_reduce(group: &Group<'_>, count: u64) -> Plan {
    let mut plan = Plan::default();
    let vector = Span::output(0, count);
    reduce_rounds(&mut plan, group, 0, 0, vector);
    broadcast_rounds(&mut plan, group, 0, TAGS, vector);
    plan
}

/// Broadcast of `count` elements in place from index `root`.
pub fn broadcast(group: &Group<'_>, root: u32, count: u64) -> Plan {
    let mut plan = Plan::default();
    broadcast_rounds(&mut plan, group, root, 0, Span::output(0, count));
    plan
}

/// Reduce of `count` elements from every input to the output of index `root`.
///
/// Ranks with children reduce into scratch, because an input is never written.
pub fn reduce(group: &Group<'_>, root: u32, count: u64) -> Plan {
    let input = Span::input(0, count);
    let place = group.before(root);
    let is_leaf = place != 0 && (place % 2 == 1 || place + 1 == group.size());
    let mut plan = Plan::default();
    let vector = match place {
        0 => Span::output(0, count),
        _ if is_leaf => input,
        _ => Span::scratch(0, count),
    };
    if !is_leaf {
        plan.push_round(vec![Step::Copy { source: input, target: vector }]);
    }
    if place != 0 && !is_leaf {
        plan.scratch_len = count;
    }
    reduce_rounds(&mut plan, group, root, 0, vector);
    plan
}

/// Appends rounds that reduce `vector` of every index into that of `root`; takes [`TAGS`] tags.
/// The others are left with partial results.
pub(super) fn reduce_rounds(
    plan: &mut Plan,
    group: &Group<'_>,
    root: u32,
    first_tag: u32,
    vector: Span,
) {
    let tree = Tree { group, root };
    for level in 0..tree.levels() {
        let (peer, tag) = (tree.child(level), first_tag + level);
        if let Some(peer) = peer {
            let fold = Fold::Reduce;
            plan.push_round(vec![Step::Recv { peer, tag, span: vector, fold }]);
        }
    }
    if let Some((peer, level)) = tree.parent() {
        plan.push_round(vec![Step::Send { peer, tag: first_tag + level, span: vector }]);
    }
}

/// Appends rounds that bring `vector` of `root` to every index; takes [`TAGS`] tags.
pub(super) fn broadcast_rounds(
    plan: &mut Plan,
    group: &Group<'_>,
    root: u32,
    first_tag: u32,
    vector: Span,
) {
    let tree = Tree { group, root };
    if let Some((peer, level)) = tree.parent() {
        let fold = Fold::Replace;
        plan.push_round(vec![Step::Recv { peer, tag: first_tag + level, span: vector, fold }]);
    }
    for level in (0..tree.levels()).rev() {
        if let Some(peer) = tree.child(level) {
            plan.push_round(vec![Step::Send { peer, tag: first_tag + level, span: vector }]);
        }
    }
}

/// This rank's place in the tree.
struct Tree<'a> {
    group: &'a Group<'a>,
    root: u32,
}

impl Tree<'_> {
    /// Distance from the root.
    fn place(&self) -> u32 {
        self.group.before(self.root)
    }

    /// Levels at which this rank may have a child: those below the one of its parent.
    fn levels(&self) -> u32 {
        match self.place() {
            0 => ceil_log2(self.group.size()),
            place => place.trailing_zeros(),
        }
    }

    /// The rank `2^level` places on.
    fn child(&self, level: u32) -> Option<u32> {
        let place = self.place().checked_add(1 << level)?;
        (place < self.group.size()).then(|| self.rank_at(place))
    }

    /// Parent and level of the edge to it.
    fn parent(&self) -> Option<(u32, u32)> {
        let place = self.place();
        (place != 0).then(|| (self.rank_at(place & (place - 1)), place.trailing_zeros()))
    }

    fn rank_at(&self, place: u32) -> u32 {
        self.group.rank_at(Group::world(self.root, self.group.size()).after(place))
    }
}

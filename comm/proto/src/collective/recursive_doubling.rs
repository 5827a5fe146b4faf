//! Doubling distance: what a rank knows doubles with each step.
//!
//! All-reduce of eight ranks exchanges whole vectors:
//!
//! ```text
//! step 0   0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7
//! step 1   0 <-> 2   1 <-> 3   4 <-> 6   5 <-> 7
//! step 2   0 <-> 4   1 <-> 5   2 <-> 6   3 <-> 7
//! ```
//!
//! With `m = 2^F` the largest power of two within `n` ranks, the `n - m` extra ranks hand their
//! vector to rank `index - m` before, and get the result from it after.
//!
//! For `n` ranks and `c` elements, `L = ceil(log2 n)`, per rank:
//!
//! | | rounds with traffic | elements sent |
//! |---|---|---|
//! | all-reduce, `index < m` | `F` | `F * c` |
//! | all-reduce, `index < m`, with an extra | `F + 2` | `F * c + c` |
//! | all-reduce, `index >= m` | 2 | `c` |
//! | all-gather | `L` | step `k`: the blocks of `min(2^k, n - 2^k)` ranks from its own on |
//! | barrier | `L` | 0 |
//!
//! All-reduce gives the same bits on every rank: in each pair the lower rank's vector is the left
//! operand on both sides, so that both compute the very same expression. To that end the vector
//! may move between output and scratch; ranks with an odd number of set bits below `m` pay one
//! copy for it.
//!
//! Sources: R. Thakur, R. Rabenseifner and W. Gropp, IJHPCA 2005; barrier: D. Hensgen, R. Finkel
//! and U. Manber, "Two algorithms for barrier synchronization", IJPP 1988; all-gather: J. Bruck
//! et al., IEEE TPDS 1997, with spans in place of its rotation.

use super::blocks::{Blocks, Group, ceil_log2, floor_log2};
use super::plan::{Area, Fold, Plan, Span, Step};
use crate::id::Rank;
use alloc::vec;
use alloc::vec::Vec;

/// All-reduce of `count` elements in place.
pub fn all_reduce(group: &Group<'_>, count: u64) -> Plan {
    let levels = floor_log2(group.size());
    let mut plan = Plan::default();
    let output = Span::output(0, count);
    if !fold_extras_in(&mut plan, group, 0, output) {
        receive_result(&mut plan, group, 1 + levels, output);
        return plan;
    }
    let (mut vector, mut other) = (output, Span::scratch(0, count));
    if levels > 0 {
        plan.scratch_len = count;
    }
    for level in 0..levels {
        let partner = group.index() ^ (1 << level);
        let (peer, tag) = (group.rank_at(partner), 1 + level);
        plan.push_round(vec![
            Step::Recv { peer, tag, span: other, fold: Fold::Replace },
            Step::Send { peer, tag, span: vector },
        ]);
        if partner < group.index() {
            core::mem::swap(&mut vector, &mut other);
        }
        plan.push_round(vec![Step::Reduce { source: other, target: vector }]);
    }
    if vector.area != Area::Output {
        plan.push_round(vec![Step::Copy { source: vector, target: output }]);
    }
    send_result(&mut plan, group, 1 + levels, output);
    plan
}

/// All-gather: input of one block, output of all.
///
/// After step `k` a rank has the blocks of the `2^(k+1)` ranks from its own on. They may go around
/// the end of the output; then a step has two messages.
pub fn all_gather(rank: Rank, world_size: u32, blocks: &Blocks) -> Plan {
    let group = Group::world(rank, world_size);
    let mut plan = Plan::default();
    let source = Span::input(0, blocks.len(rank));
    plan.push_round(vec![Step::Copy { source, target: blocks.span(Area::Output, rank) }]);
    for level in 0..ceil_log2(world_size) {
        let distance = 1 << level;
        let owned = distance.min(world_size - distance);
        let mut steps = Vec::with_capacity(4);
        for (part, span) in wrapped(blocks, group.after(distance), owned) {
            let (peer, tag) = (group.after(distance), 2 * level + part);
            steps.push(Step::Recv { peer, tag, span, fold: Fold::Replace });
        }
        for (part, span) in wrapped(blocks, rank, owned) {
            let (peer, tag) = (group.before(distance), 2 * level + part);
            steps.push(Step::Send { peer, tag, span });
        }
        plan.push_round(steps);
    }
    plan
}

/// Barrier by dissemination: in step `k` everybody tells `rank + 2^k`.
pub fn barrier(rank: Rank, world_size: u32) -> Plan {
    let group = Group::world(rank, world_size);
    let mut plan = Plan::default();
    let span = Span::output(0, 0);
    for tag in 0..ceil_log2(world_size) {
        let (source, target) = (group.before(1 << tag), group.after(1 << tag));
        plan.push_round(vec![
            Step::Recv { peer: source, tag, span, fold: Fold::Replace },
            Step::Send { peer: target, tag, span },
        ]);
    }
    plan
}

/// Reduces the vectors of ranks beyond the power of two into those below it. Whether this rank is
/// below it, and so has more to do; if not, it is left with [`receive_result`].
pub(super) fn fold_extras_in(plan: &mut Plan, group: &Group<'_>, tag: u32, vector: Span) -> bool {
    let core = 1 << floor_log2(group.size());
    if let Some(partner) = group.index().checked_sub(core) {
        plan.push_round(vec![Step::Send { peer: group.rank_at(partner), tag, span: vector }]);
        return false;
    }
    if group.index() + core < group.size() {
        let peer = group.rank_at(group.index() + core);
        plan.push_round(vec![Step::Recv { peer, tag, span: vector, fold: Fold::Reduce }]);
    }
    true
}

/// On a rank beyond the power of two: gets the result.
pub(super) fn receive_result(plan: &mut Plan, group: &Group<'_>, tag: u32, vector: Span) {
    let core = 1 << floor_log2(group.size());
    let peer = group.rank_at(group.index() - core);
    plan.push_round(vec![Step::Recv { peer, tag, span: vector, fold: Fold::Replace }]);
}

/// On a rank below the power of two: sends the result to the extra rank it has, if it has one.
pub(super) fn send_result(plan: &mut Plan, group: &Group<'_>, tag: u32, vector: Span) {
    let extra = group.index() + (1 << floor_log2(group.size()));
    if extra < group.size() {
        plan.push_round(vec![Step::Send { peer: group.rank_at(extra), tag, span: vector }]);
    }
}

/// Blocks of `len` ranks from `first` on, in one part or, around the end, two.
fn wrapped(blocks: &Blocks, first: u32, len: u32) -> impl Iterator<Item = (u32, Span)> {
    let world_size = blocks.count();
    let end = first + len;
    let head = (0, blocks.range(Area::Output, first, end.min(world_size)));
    let tail = (end > world_size).then(|| (1, blocks.range(Area::Output, 0, end - world_size)));
    [Some(head), tail].into_iter().flatten()
}

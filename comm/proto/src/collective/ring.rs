//! Around a ring: every rank talks to its two neighbours only, and every link carries the same
//! load.
//!
//! Reduce-scatter of four ranks; a digit names the block that moves to the right:
//!
//! ```text
//! step 0   rank 0 -0-> rank 1 -1-> rank 2 -2-> rank 3 -3-> rank 0
//! step 1   rank 0 -3-> rank 1 -0-> rank 2 -1-> rank 3 -2-> rank 0
//! step 2   rank 0 -2-> rank 1 -3-> rank 2 -0-> rank 3 -1-> rank 0
//! ```
//!
//! For `n` ranks and `c` elements, the vector or all blocks together (`b(i)`: elements of block
//! `i`, `p`: the rank's place in the ring, indices modulo `n`), per rank:
//!
//! | | rounds with traffic | elements sent |
//! |---|---|---|
//! | all-reduce | `2(n-1)` | `2c - b(p+1) - b(p+2)` |
//! | reduce-scatter | `n-1` | `c - b(p)` |
//! | all-gather | `n-1` | `c - b(p+1)` |
//! | broadcast | 1 to scatter, `n-1` to gather | `c - b(v+1)`; root `2c - b(0) - b(1)`; last 0 |
//! | reduce | `n-1` to reduce, 1 to gather | `c`; root `c - b(p+1)` |
//!
//! In a broadcast `v` is the distance from the root. The last rank before the root sends nothing,
//! because the root has everything.
//!
//! Sources: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", JPDC 2009; broadcast and reduce: R. van de Geijn, "On global combine
//! operations", JPDC 1994.

use super::blocks::{Blocks, Group};
use super::plan::{Area, Fold, Plan, Span, Step};
use crate::id::Rank;
use alloc::vec;
use alloc::vec::Vec;

/// All-reduce of `count` elements in place.
pub fn all_reduce(group: &Group<'_>, count: u64) -> Plan {
    let mut plan = Plan::default();
    all_reduce_rounds(&mut plan, group, 0, count);
    plan
}

/// Appends the rounds of [`all_reduce`]; takes `2(n-1)` tags from `tag`.
pub(super) fn all_reduce_rounds(plan: &mut Plan, group: &Group<'_>, tag: u32, count: u64) {
    let blocks = Blocks::balanced(count, group.size());
    reduce_rounds(plan, group, tag, &blocks, Area::Output);
    for step in 0..group.size() - 1 {
        let send = blocks.span(Area::Output, group.after(group.size() + 1 - step));
        let recv = blocks.span(Area::Output, group.before(step));
        let tag = tag + group.size() - 1 + step;
        plan.push_round(shift(group, tag, send, recv, Fold::Replace));
    }
}

/// Reduce-scatter: input of all blocks, each rank's own into its output.
///
/// A block travels in two scratch buffers by turns, because a round must not write what it sends.
pub fn reduce_scatter(group: &Group<'_>, blocks: &Blocks) -> Plan {
    let size = group.size();
    let longest = blocks.longest();
    let buffers = u64::from(size.saturating_sub(2).min(2));
    let mut plan = Plan { scratch_len: buffers * longest, rounds: Vec::new() };
    let own = |index| blocks.span(Area::Input, group.rank_at(index));
    let Some(last) = size.checked_sub(2) else {
        let target = Span::output(0, blocks.len(group.rank()));
        plan.push_round(vec![Step::Copy { source: own(group.index()), target }]);
        return plan;
    };
    let mut partial = own(group.before(1));
    for step in 0..=last {
        let mine = own(group.before(step + 2));
        let target = match step {
            _ if step == last => Span::output(0, mine.len),
            _ => Span::scratch(u64::from(step % 2) * longest, mine.len),
        };
        plan.push_round(shift(group, step, partial, target, Fold::Replace));
        plan.push_round(vec![Step::Reduce { source: mine, target }]);
        partial = target;
    }
    plan
}

/// All-gather: input of one block, output of all.
pub fn all_gather(group: &Group<'_>, blocks: &Blocks) -> Plan {
    let mut plan = Plan::default();
    let at = |index| blocks.span(Area::Output, group.rank_at(index));
    let input = Span::input(0, blocks.len(group.rank()));
    let copy = Step::Copy { source: input, target: at(group.index()) };
    if group.size() == 1 {
        plan.push_round(vec![copy]);
    }
    for step in 0..group.size() - 1 {
        let send = if step == 0 { input } else { at(group.before(step)) };
        let mut steps = shift(group, step, send, at(group.before(step + 1)), Fold::Replace);
        if step == 0 {
            steps.push(copy);
        }
        plan.push_round(steps);
    }
    plan
}

/// Broadcast of `count` elements in place: the root scatters, the ring gathers.
pub fn broadcast(group: &Group<'_>, root: u32, count: u64) -> Plan {
    let mut plan = Plan::default();
    let size = group.size();
    let blocks = Blocks::balanced(count, size);
    let at = |place| blocks.span(Area::Output, place);
    // Places count from the root.
    let place = group.before(root);
    let rank_at = |place: u32| group.rank_at(Group::world(root, size).after(place));
    if place == 0 {
        let send = |place| Step::Send { peer: rank_at(place), tag: 0, span: at(place) };
        plan.push_round((1..size).map(send).collect());
    } else {
        let (peer, span) = (rank_at(0), at(place));
        plan.push_round(vec![Step::Recv { peer, tag: 0, span, fold: Fold::Replace }]);
    }
    let line = Group::world(place, size);
    for step in 0..size - 1 {
        let mut steps = Vec::with_capacity(2);
        let tag = 1 + step;
        if place + 1 < size {
            steps.push(Step::Send { peer: rank_at(place + 1), tag, span: at(line.before(step)) });
        }
        if place > 0 {
            let (peer, span) = (rank_at(place - 1), at(line.before(step + 1)));
            steps.push(Step::Recv { peer, tag, span, fold: Fold::Replace });
        }
        plan.push_round(steps);
    }
    plan
}

/// Reduce of `count` elements from every input to the root's output: the ring reduces and
/// scatters, the root gathers. `root` is an index of the group.
pub fn reduce(group: &Group<'_>, root: u32, count: u64) -> Plan {
    let is_root = group.index() == root;
    let area = if is_root { Area::Output } else { Area::Scratch };
    let mut plan = Plan { scratch_len: if is_root { 0 } else { count }, rounds: Vec::new() };
    let target = Span { area, offset: 0, len: count };
    plan.push_round(vec![Step::Copy { source: Span::input(0, count), target }]);
    let blocks = Blocks::balanced(count, group.size());
    reduce_rounds(&mut plan, group, 0, &blocks, area);
    // The index `i` has block `i + 1` now.
    let tag = group.size() - 1;
    if is_root {
        let recv = |distance| {
            let peer = group.rank_at(group.after(distance));
            let span = blocks.span(area, group.after(distance + 1));
            Step::Recv { peer, tag, span, fold: Fold::Replace }
        };
        plan.push_round((1..group.size()).map(recv).collect());
    } else {
        let span = blocks.span(area, group.after(1));
        plan.push_round(vec![Step::Send { peer: group.rank_at(root), tag, span }]);
    }
    plan
}

/// Reduces in place until index `i` has the whole of block `i + 1`; takes `n-1` tags.
fn reduce_rounds(plan: &mut Plan, group: &Group<'_>, tag: u32, blocks: &Blocks, area: Area) {
    for step in 0..group.size() - 1 {
        let send = blocks.span(area, group.before(step));
        let recv = blocks.span(area, group.before(step + 1));
        plan.push_round(shift(group, tag + step, send, recv, Fold::Reduce));
    }
}

/// One step of the ring: to the right neighbour, from the left.
fn shift(group: &Group<'_>, tag: u32, send: Span, recv: Span, fold: Fold) -> Vec<Step> {
    let right: Rank = group.rank_at(group.after(1));
    let left: Rank = group.rank_at(group.before(1));
    vec![
        Step::Recv { peer: left, tag, span: recv, fold },
        Step::Send { peer: right, tag, span: send },
    ]
}

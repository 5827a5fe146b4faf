//! Recursive halving, then recursive doubling: the ring's bytes in the tree's steps.
//!
//! Eight ranks; each pair splits what it has, the lower rank keeps the lower half:
//!
//! ```text
//! halving    step 0: 0 <-> 1, half the vector
//!            step 1: 0 <-> 2, a quarter
//!            step 2: 0 <-> 4, an eighth
//! doubling   the same steps backwards, with whole results
//! ```
//!
//! The largest messages go to the nearest ranks, which are likely to be on the same host.
//!
//! With `m = 2^F` the largest power of two within `n` ranks, the `n - m` extra ranks hand their
//! vector to rank `index - m` before, and get the result from it after. Per rank, for `c` elements
//! cut in `m` blocks, `b` being the block it ends up with, and `d` the sum of what it has before
//! each doubling:
//!
//! | | rounds with traffic | elements sent |
//! |---|---|---|
//! | `index < m` | `2F` | `c - b + d` |
//! | `index < m`, with an extra | `2F + 2` | `c - b + d + c` |
//! | `index >= m` | 2 | `c` |
//!
//! Where `m` divides `c`, `d` is `c - b` too, which makes `2c(m-1)/m` in all.
//!
//! Source: R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.

use super::blocks::{Blocks, Group, floor_log2};
use super::plan::{Area, Fold, Plan, Span, Step};
use super::recursive_doubling::{fold_extras_in, receive_result, send_result};
use alloc::vec;

/// All-reduce of `count` elements in place.
pub fn all_reduce(group: &Group<'_>, count: u64) -> Plan {
    let levels = floor_log2(group.size());
    let mut plan = Plan::default();
    let vector = Span::output(0, count);
    let last_tag = 1 + 2 * levels;
    if !fold_extras_in(&mut plan, group, 0, vector) {
        receive_result(&mut plan, group, last_tag, vector);
        return plan;
    }
    let blocks = Blocks::balanced(count, 1 << levels);
    for level in 0..levels {
        let keep = owned(group.index(), level + 1, levels);
        let give = owned(group.index() ^ (1 << level), level + 1, levels);
        exchange(&mut plan, group, level, 1 + level, &blocks, (give, keep), Fold::Reduce);
    }
    for level in (0..levels).rev() {
        let have = owned(group.index(), level + 1, levels);
        let lack = owned(group.index() ^ (1 << level), level + 1, levels);
        let tag = 1 + levels + level;
        exchange(&mut plan, group, level, tag, &blocks, (have, lack), Fold::Replace);
    }
    send_result(&mut plan, group, last_tag, vector);
    plan
}

/// First and end of the blocks that `index` has after `halvings` of `levels`.
fn owned(index: u32, halvings: u32, levels: u32) -> (u32, u32) {
    let mut first = 0;
    for level in 0..halvings {
        if index & (1 << level) != 0 {
            first += 1 << (levels - level - 1);
        }
    }
    (first, first + (1 << (levels - halvings)))
}

fn exchange(
    plan: &mut Plan,
    group: &Group<'_>,
    level: u32,
    tag: u32,
    blocks: &Blocks,
    (send, recv): ((u32, u32), (u32, u32)),
    fold: Fold,
) {
    let peer = group.rank_at(group.index() ^ (1 << level));
    plan.push_round(vec![
        Step::Recv { peer, tag, span: blocks.range(Area::Output, recv.0, recv.1), fold },
        Step::Send { peer, tag, span: blocks.range(Area::Output, send.0, send.1) },
    ]);
}

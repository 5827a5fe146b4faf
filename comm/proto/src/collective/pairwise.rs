//! One partner at a time: in step `k` every rank sends to `rank + k` and receives from `rank - k`.
//!
//! ```text
//! step 1   0 -> 1 -> 2 -> 3 -> 0
//! step 2   0 -> 2 -> 0, 1 -> 3 -> 1
//! step 3   0 -> 3 -> 2 -> 1 -> 0
//! ```
//!
//! For `n` ranks, per rank: `n-1` steps; all-to-all sends its input less its own block,
//! reduce-scatter of `c` elements `c - b`, where `b` is the own block. No scratch, and never more
//! than one message in each direction: what large blocks want.
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
//! operations in MPICH", IJHPCA 2005.

use super::blocks::{Blocks, Group};
use super::plan::{Area, Fold, Plan, Span, Step};
use crate::id::Rank;
use alloc::vec;

/// All-to-all: block `i` of the input to rank `i`, block `i` of the output from rank `i`.
pub fn all_to_all(rank: Rank, world_size: u32, send: &Blocks, recv: &Blocks) -> Plan {
    let source = send.span(Area::Input, rank);
    let target = recv.span(Area::Output, rank);
    let to = |peer| send.span(Area::Input, peer);
    let from = |peer| recv.span(Area::Output, peer);
    exchange(rank, world_size, Step::Copy { source, target }, Fold::Replace, to, from)
}

/// Reduce-scatter: input of all blocks, each rank's own into its output.
///
/// Folds its own block first, then that of `rank - 1`, `rank - 2` ...
pub fn reduce_scatter(rank: Rank, world_size: u32, blocks: &Blocks) -> Plan {
    let source = blocks.span(Area::Input, rank);
    let target = Span::output(0, source.len);
    let to = |peer| blocks.span(Area::Input, peer);
    exchange(rank, world_size, Step::Copy { source, target }, Fold::Reduce, to, |_| target)
}

fn exchange(
    rank: Rank,
    world_size: u32,
    copy: Step,
    fold: Fold,
    to: impl Fn(Rank) -> Span,
    from: impl Fn(Rank) -> Span,
) -> Plan {
    let group = Group::world(rank, world_size);
    let mut plan = Plan::default();
    plan.push_round(vec![copy]);
    for tag in 1..world_size {
        let (source, target) = (group.before(tag), group.after(tag));
        plan.push_round(vec![
            Step::Recv { peer: source, tag, span: from(source), fold },
            Step::Send { peer: target, tag, span: to(target) },
        ]);
    }
    plan
}

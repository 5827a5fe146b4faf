//! Everybody to everybody at once: the fewest rounds there can be.
//!
//! ```text
//! all-reduce    round 1: block i of everybody -> rank i     round 2: rank i -> everybody
//! other kinds   one round
//! ```
//!
//! For `n` ranks and `c` elements (the vector, or all blocks together; `b`: the rank's own block;
//! `s`: what it sends in `all_to_all`, less its own block), per rank:
//!
//! | | rounds with traffic | messages sent | elements sent |
//! |---|---|---|---|
//! | all-reduce | 2 | `2(n-1)` | `c - b + (n-1)b` |
//! | reduce-scatter | 1 | `n-1` | `c - b` |
//! | all-gather | 1 | `n-1` | `(n-1)b` |
//! | all-to-all | 1 | `n-1` | `s` |
//! | broadcast | 1 | root `n-1`, else 0 | root `(n-1)c` |
//! | reduce | 1 | 1, root 0 | `c`, root 0 |
//! | gather | 1 | 1, root 0 | `b`, root 0 |
//! | scatter | 1 | root `n-1`, else 0 | root `c - b` |
//! | barrier | 1 | `n-1` | 0 |
//!
//! Reductions receive into scratch, `(n-1)b` elements of it (`(n-1)c` on the root of a reduce), and
//! then fold all ranks' contributions at once, in the order of ranks 0, 1, 2 ..., rounding once:
//! whatever the world's layout, the chunks or the order of arrival, the result has the bits of one
//! `reduce_many` of the kernels. That is what *canonical* means
//! ([`is_canonical`](super::tuning::is_canonical)).
//!
//! Canonical bits cost an all-reduce no traffic: with equal blocks a rank sends `2(n-1)c/n`
//! elements, as around a ring, in two rounds instead of `2(n-1)`. They cost the scratch,
//! `(n-1)/n` of the vector, `n-1` messages that come in at the same time, and on the way out of a
//! host of `l` ranks `2l(n-l)c/n` elements, `l` times a ring's where hosts are many.
//!
//! Peers are taken in the order `rank + 1, rank + 2, ...`, so that they are not all met by
//! everybody at the same moment.

use super::blocks::{Blocks, Group};
use super::plan::{Area, Fold, Plan, Span, Step};
use crate::id::Rank;
use alloc::vec;
use alloc::vec::Vec;

/// All-reduce of `count` elements in place.
pub fn all_reduce(rank: Rank, world_size: u32, count: u64) -> Plan {
    let peers = Peers::new(rank, world_size);
    let blocks = Blocks::balanced(count, world_size);
    let own = blocks.span(Area::Output, rank);
    let mut plan = Plan::default();
    if world_size == 1 {
        return plan;
    }
    let gathering = Gathering { rank, world_size, own };
    plan.scratch_len = gathering.scratch_len();
    let slot = |peer| gathering.slot(peer);
    plan.push_round(peers.exchange(0, slot, |peer| blocks.span(Area::Output, peer)));
    let mut steps = vec![gathering.fold(own)];
    steps.extend(peers.exchange(1, |peer| blocks.span(Area::Output, peer), |_| own));
    plan.push_round(steps);
    plan
}

/// Reduce-scatter: input of all blocks, each rank's own into its output.
pub fn reduce_scatter(rank: Rank, world_size: u32, blocks: &Blocks) -> Plan {
    let input = |peer| blocks.span(Area::Input, peer);
    let gathering = Gathering { rank, world_size, own: input(rank) };
    let steps = Peers::new(rank, world_size).exchange(0, |peer| gathering.slot(peer), input);
    gathering.finish(steps)
}

/// All-gather: input of one block, output of all.
pub fn all_gather(rank: Rank, world_size: u32, blocks: &Blocks) -> Plan {
    let input = Span::input(0, blocks.len(rank));
    let output = |peer| blocks.span(Area::Output, peer);
    let mut steps = Peers::new(rank, world_size).exchange(0, output, |_| input);
    steps.push(Step::Copy { source: input, target: output(rank) });
    single(steps)
}

/// All-to-all: block `i` of the input to rank `i`, block `i` of the output from rank `i`.
pub fn all_to_all(rank: Rank, world_size: u32, send: &Blocks, recv: &Blocks) -> Plan {
    let input = |peer| send.span(Area::Input, peer);
    let output = |peer| recv.span(Area::Output, peer);
    let mut steps = Peers::new(rank, world_size).exchange(0, output, input);
    steps.push(Step::Copy { source: input(rank), target: output(rank) });
    single(steps)
}

/// Broadcast of `count` elements in place.
pub fn broadcast(rank: Rank, world_size: u32, root: Rank, count: u64) -> Plan {
    let span = Span::output(0, count);
    let peers = Peers::new(rank, world_size);
    if rank == root {
        return single(peers.sends(0, |_| span).collect());
    }
    single(vec![Step::Recv { peer: root, tag: 0, span, fold: Fold::Replace }])
}

/// Reduce of `count` elements from every input to the root's output.
pub fn reduce(rank: Rank, world_size: u32, root: Rank, count: u64) -> Plan {
    let input = Span::input(0, count);
    if rank != root {
        return single(vec![Step::Send { peer: root, tag: 0, span: input }]);
    }
    let gathering = Gathering { rank, world_size, own: input };
    let steps = Peers::new(rank, world_size).recvs(0, |peer| gathering.slot(peer)).collect();
    gathering.finish(steps)
}

/// Gather: every rank's block into the root's output.
pub fn gather(rank: Rank, world_size: u32, root: Rank, blocks: &Blocks) -> Plan {
    let input = Span::input(0, blocks.len(rank));
    if rank != root {
        return single(vec![Step::Send { peer: root, tag: 0, span: input }]);
    }
    let output = |peer| blocks.span(Area::Output, peer);
    let mut steps: Vec<_> = Peers::new(rank, world_size).recvs(0, output).collect();
    steps.push(Step::Copy { source: input, target: output(rank) });
    single(steps)
}

/// Scatter: each rank's block of the root's input into its output.
pub fn scatter(rank: Rank, world_size: u32, root: Rank, blocks: &Blocks) -> Plan {
    let output = Span::output(0, blocks.len(rank));
    if rank != root {
        return single(vec![Step::Recv { peer: root, tag: 0, span: output, fold: Fold::Replace }]);
    }
    let input = |peer| blocks.span(Area::Input, peer);
    let mut steps: Vec<_> = Peers::new(rank, world_size).sends(0, input).collect();
    steps.push(Step::Copy { source: input(rank), target: output });
    single(steps)
}

/// Barrier: an empty message from everybody to everybody.
pub fn barrier(rank: Rank, world_size: u32) -> Plan {
    let nothing = |_| Span::output(0, 0);
    single(Peers::new(rank, world_size).exchange(0, nothing, nothing))
}

/// Receives the other ranks' contributions into scratch, in the order of ranks, and folds them and
/// its own at once.
struct Gathering {
    rank: Rank,
    world_size: u32,
    own: Span,
}

impl Gathering {
    /// Of so many other ranks' contributions.
    fn slots(&self, first: u32, count: u32) -> Span {
        let len = self.own.len;
        Span::scratch(u64::from(first) * len, u64::from(count) * len)
    }

    /// Where another rank's contribution goes.
    fn slot(&self, peer: Rank) -> Span {
        self.slots(peer - u32::from(peer > self.rank), 1)
    }

    fn scratch_len(&self) -> u64 {
        self.slots(0, self.world_size - 1).len
    }

    fn fold(&self, target: Span) -> Step {
        let before = self.slots(0, self.rank);
        let after = self.slots(self.rank, self.world_size - 1 - self.rank);
        Step::ReduceMany { before, own: self.own, after, target }
    }

    /// The plan that folds into the output what `transfers` bring.
    fn finish(&self, transfers: Vec<Step>) -> Plan {
        let mut plan = single(transfers);
        plan.push_round(vec![self.fold(Span::output(0, self.own.len))]);
        plan.scratch_len = self.scratch_len();
        plan
    }
}

/// The other ranks.
struct Peers {
    rank: Rank,
    world_size: u32,
}

impl Peers {
    fn new(rank: Rank, world_size: u32) -> Self {
        Self { rank, world_size }
    }

    fn recvs(&self, tag: u32, mut span: impl FnMut(Rank) -> Span) -> impl Iterator<Item = Step> {
        let group = Group::world(self.rank, self.world_size);
        (1..self.world_size).map(move |distance| {
            let peer = group.before(distance);
            Step::Recv { peer, tag, span: span(peer), fold: Fold::Replace }
        })
    }

    fn sends(&self, tag: u32, mut span: impl FnMut(Rank) -> Span) -> impl Iterator<Item = Step> {
        let group = Group::world(self.rank, self.world_size);
        (1..self.world_size).map(move |distance| {
            let peer = group.after(distance);
            Step::Send { peer, tag, span: span(peer) }
        })
    }

    fn exchange(
        &self,
        tag: u32,
        recv: impl FnMut(Rank) -> Span,
        send: impl FnMut(Rank) -> Span,
    ) -> Vec<Step> {
        self.recvs(tag, recv).chain(self.sends(tag, send)).collect()
    }
}

fn single(steps: Vec<Step>) -> Plan {
    let mut plan = Plan::default();
    plan.push_round(steps);
    plan
}

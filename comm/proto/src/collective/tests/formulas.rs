//! What the heads of the algorithms' files say about steps and elements, compared with the plans.

use super::*;
use crate::collective::Step;
use crate::collective::blocks::{block, ceil_log2, floor_log2};
use Algorithm as A;
use CollectiveKind as K;

/// Rounds with traffic, and elements sent.
type Traffic = (u32, u64);

fn traffic(plan: &Plan) -> Traffic {
    let is_transfer = |step: &Step| matches!(step, Step::Recv { .. } | Step::Send { .. });
    let rounds = plan.rounds.iter().filter(|round| round.steps.iter().any(is_transfer));
    (u32::try_from(rounds.count()).unwrap(), plan.elements_sent())
}

/// A world on one host and a call.
#[derive(Clone, Copy)]
struct Case {
    rank: u32,
    n: u32,
    /// The argument of the shape.
    count: u64,
    root: u32,
}

impl Case {
    /// Block of a vector of `count`; the index is modulo the world size.
    fn b(&self, index: u32) -> u64 {
        block(index % self.n, self.n, self.count).1
    }

    fn others(&self) -> u64 {
        u64::from(self.n - 1)
    }

    /// Distance from the root.
    fn v(&self) -> u32 {
        (self.rank + self.n - self.root) % self.n
    }

    fn is_root(&self) -> bool {
        self.rank == self.root
    }

    fn children(&self) -> u64 {
        let v = self.v();
        let levels = if v == 0 { ceil_log2(self.n) } else { v.trailing_zeros() };
        (0..levels).filter(|level| v + (1 << level) < self.n).count() as u64
    }
}

fn compare(kind: K, algorithm: A, formula: impl Fn(Case) -> Traffic) {
    assert!(is_supported(kind, algorithm));
    for n in 2..=33 {
        let topology = Topology::single_host(n);
        for root in [0, n / 2, n - 1] {
            for count in [0, 1, 7, 64, 1000] {
                let shape = Shape::uniform(count).with_root(root);
                for (rank, plan) in (0..).zip(plans(kind, algorithm, &topology, &[shape])) {
                    let case = Case { rank, n, count, root };
                    let (found, stated) = (traffic(&plan), formula(case));
                    assert_eq!(found, stated, "{kind}, {algorithm}, rank {rank} of {n}, {count}");
                }
            }
        }
    }
}

#[test]
fn ring() {
    compare(K::AllReduce, A::Ring, |c| {
        let sent = 2 * c.count - c.b(c.rank + 1) - c.b(c.rank + 2);
        (2 * (c.n - 1), sent)
    });
    compare(K::ReduceScatter, A::Ring, |c| (c.n - 1, c.others() * c.count));
    compare(K::AllGather, A::Ring, |c| (c.n - 1, c.others() * c.count));
    compare(K::Broadcast, A::Ring, |c| {
        let in_line = if c.v() + 1 < c.n { c.count - c.b(c.v() + 1) } else { 0 };
        (c.n, in_line + if c.is_root() { c.count - c.b(0) } else { 0 })
    });
    compare(K::Reduce, A::Ring, |c| (c.n, c.count - if c.is_root() { c.b(c.rank + 1) } else { 0 }));
}

#[test]
fn tree() {
    let rounds = |c: Case| u32::from(c.v() != 0) + u32::try_from(c.children()).unwrap();
    let up = |c: Case| if c.v() == 0 { 0 } else { c.count };
    compare(K::Broadcast, A::Tree, |c| (rounds(c), c.children() * c.count));
    compare(K::Reduce, A::Tree, |c| (rounds(c), up(c)));
    compare(K::AllReduce, A::Tree, |c| {
        let c = Case { root: 0, ..c };
        (2 * rounds(c), up(c) + c.children() * c.count)
    });
}

#[test]
fn direct() {
    compare(K::AllReduce, A::Direct, |c| {
        let own = c.b(c.rank);
        (2, c.count - own + c.others() * own)
    });
    for kind in [K::AllGather, K::AllToAll, K::ReduceScatter] {
        compare(kind, A::Direct, |c| (1, c.others() * c.count));
    }
    compare(K::Barrier, A::Direct, |_| (1, 0));
    for kind in [K::Broadcast, K::Scatter] {
        compare(kind, A::Direct, |c| (1, if c.is_root() { c.others() * c.count } else { 0 }));
    }
    for kind in [K::Gather, K::Reduce] {
        compare(kind, A::Direct, |c| (1, if c.is_root() { 0 } else { c.count }));
    }
}

#[test]
fn pairwise() {
    compare(K::AllToAll, A::Ring, |c| (c.n - 1, c.others() * c.count));
    for n in 1..=33 {
        for rank in 0..n {
            let blocks = crate::collective::blocks::Blocks::uniform(5, n).unwrap();
            let plan = crate::collective::pairwise::reduce_scatter(rank, n, &blocks);
            assert_eq!(traffic(&plan), (n - 1, u64::from(n - 1) * 5));
        }
    }
}

/// Steps and elements of the extra ranks' detour: `None` on a rank beyond the power of two.
fn detour(c: Case) -> Option<(u32, u64)> {
    let core = 1 << floor_log2(c.n);
    let has_extra = c.rank + core < c.n;
    (c.rank < core).then_some(if has_extra { (2, c.count) } else { (0, 0) })
}

#[test]
fn recursive_doubling() {
    compare(K::AllReduce, A::RecursiveDoubling, |c| match detour(c) {
        None => (2, c.count),
        Some((rounds, sent)) => {
            let levels = floor_log2(c.n);
            (levels + rounds, u64::from(levels) * c.count + sent)
        }
    });
    compare(K::AllGather, A::RecursiveDoubling, |c| {
        let blocks = (0..ceil_log2(c.n)).map(|k| u64::from((1 << k).min(c.n - (1 << k))));
        (ceil_log2(c.n), blocks.sum::<u64>() * c.count)
    });
    compare(K::Barrier, A::RecursiveDoubling, |c| (ceil_log2(c.n), 0));
}

#[test]
fn halving_doubling() {
    compare(K::AllReduce, A::HalvingDoubling, |c| match detour(c) {
        None => (2, c.count),
        Some((rounds, sent)) => {
            let levels = floor_log2(c.n);
            // Blocks a rank ends up with, and what it has before each doubling, from the formula
            // of a rank's number read backwards.
            let reversed = c.rank.reverse_bits().checked_shr(u32::BITS - levels).unwrap_or(0);
            let has = |blocks: u32| -> u64 {
                let first = reversed / blocks * blocks;
                (first..first + blocks).map(|i| block(i, 1 << levels, c.count).1).sum()
            };
            let doubling: u64 = (0..levels).map(|k| has(1 << k)).sum();
            (2 * levels + rounds, c.count - has(1) + doubling + sent)
        }
    });
}

#[test]
fn hierarchical() {
    for n in 2..=33_u32 {
        for topology in topologies(n) {
            let hosts = topology.hosts();
            for count in [0, 7, 64] {
                let shapes = [Shape::uniform(count)];
                let plans = plans(K::AllReduce, A::Hierarchical, &topology, &shapes);
                for (rank, plan) in (0..).zip(plans) {
                    let ranks = || (0..n).filter(|r| hosts[*r as usize] == hosts[rank as usize]);
                    let place = u32::try_from(ranks().position(|r| r == rank).unwrap()).unwrap();
                    let size = u32::try_from(ranks().count()).unwrap();
                    let tree = Case { rank: place, n: size, count, root: 0 };
                    let up = if place == 0 { 0 } else { count };
                    let mut sent = up + tree.children() * count;
                    let is_leader = |r: &u32| !hosts[..*r as usize].contains(&hosts[*r as usize]);
                    if is_leader(&rank) {
                        let leaders: Vec<u32> = (0..n).filter(is_leader).collect();
                        let place = leaders.iter().position(|r| *r == rank).unwrap();
                        let place = u32::try_from(place).unwrap();
                        let size = u32::try_from(leaders.len()).unwrap();
                        let ring = Case { rank: place, n: size, count, root: 0 };
                        if size > 1 {
                            sent += 2 * count - ring.b(place + 1) - ring.b(place + 2);
                        }
                    }
                    assert_eq!(plan.elements_sent(), sent, "rank {rank} of {hosts:?}, {count}");
                }
            }
        }
    }
}

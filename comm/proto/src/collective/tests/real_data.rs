//! Plans run by [`PlanMachine`] on numbers, with messages taken and delivered in random order.

use super::*;
use crate::collective::machine::{Direction, PlanMachine, PlanOutput, Transfer};
use crate::collective::{Area, Fold, Span, Step};
use alloc::collections::BTreeMap;
use core::ops::Range;
use syncline_kernels::{
    Element, ReduceOp, Stores, as_bytes, as_bytes_mut, f16, reduce, reduce_many_bytes,
};

/// Sender, receiver, tag and chunk.
type Name = (u32, u32, u32, u32);

struct Rank<T> {
    machine: PlanMachine,
    /// By [`Area`].
    areas: [Vec<T>; 3],
    finished: bool,
}

struct World<T> {
    op: ReduceOp,
    ranks: Vec<Rank<T>>,
    sends: BTreeMap<Name, Transfer>,
    recvs: BTreeMap<Name, Transfer>,
    /// Taken from the sender, not delivered yet.
    under_way: BTreeMap<Name, Vec<T>>,
}

impl<T: Element> World<T> {
    fn drain(&mut self, rank: u32) {
        let at = rank as usize;
        while let Some(output) = self.ranks[at].machine.poll_output() {
            match output {
                PlanOutput::Finished => self.ranks[at].finished = true,
                PlanOutput::Local(Step::Copy { source, target }) => {
                    let data = self.ranks[at].read(source);
                    self.ranks[at].write(target, Fold::Replace, &data, self.op);
                }
                PlanOutput::Local(Step::Reduce { source, target }) => {
                    let data = self.ranks[at].read(source);
                    self.ranks[at].write(target, Fold::Reduce, &data, self.op);
                }
                PlanOutput::Local(Step::ReduceMany { before, own, after, target }) => {
                    let parts = [before, own, after].map(|span| self.ranks[at].read(span));
                    let data = folded_once(self.op, &parts.concat(), range(target).len());
                    self.ranks[at].write(target, Fold::Replace, &data, self.op);
                }
                PlanOutput::Local(step) => panic!("{step:?} is not local"),
                PlanOutput::Post(transfer) => self.post(rank, transfer),
            }
        }
    }

    fn post(&mut self, rank: u32, transfer: Transfer) {
        let Transfer { peer, tag, chunk, direction, span } = transfer;
        // A transport reads and writes at any moment until it says that it is done.
        let sends = self.sends.iter().filter(|((from, ..), _)| *from == rank);
        let recvs = self.recvs.iter().filter(|((_, to, ..), _)| *to == rank);
        let both_read = |other: &Transfer| [other.direction, direction] == [Direction::Send; 2];
        let conflict = sends.chain(recvs).find(|(_, o)| !both_read(o) && o.span.overlaps(&span));
        assert!(conflict.is_none(), "rank {rank}: {transfer:?} beside {conflict:?}");
        let before = match direction {
            Direction::Recv(_) => self.recvs.insert((peer, rank, tag, chunk), transfer),
            Direction::Send => self.sends.insert((rank, peer, tag, chunk), transfer),
        };
        assert!(before.is_none(), "two messages of one name");
    }

    fn run(mut self, rng: &mut fastrand::Rng) -> Vec<Vec<T>> {
        for rank in 0..u32::try_from(self.ranks.len()).unwrap() {
            self.drain(rank);
        }
        loop {
            let takes = self.sends.keys().map(|name| (*name, true));
            let arrivals = self.under_way.keys().filter(|name| self.recvs.contains_key(name));
            let events: Vec<_> = takes.chain(arrivals.map(|name| (*name, false))).collect();
            let Some((name, is_take)) = rng.choice(events) else { break };
            let rank = if is_take { name.0 } else { name.1 };
            let done = if is_take {
                let send = self.sends.remove(&name).unwrap();
                self.under_way.insert(name, self.ranks[rank as usize].read(send.span));
                send
            } else {
                let data = self.under_way.remove(&name).unwrap();
                let recv = self.recvs.remove(&name).unwrap();
                let Direction::Recv(fold) = recv.direction else { panic!("{recv:?} receives") };
                self.ranks[rank as usize].write(recv.span, fold, &data, self.op);
                recv
            };
            self.ranks[rank as usize].machine.handle_completed(&done);
            self.drain(rank);
        }
        assert!(self.ranks.iter().all(|rank| rank.finished));
        assert!(self.recvs.is_empty() && self.under_way.is_empty());
        self.ranks.into_iter().map(|rank| rank.areas).map(|[_, output, _]| output).collect()
    }
}

impl<T: Element> Rank<T> {
    fn read(&self, span: Span) -> Vec<T> {
        self.areas[span.area as usize][range(span)].to_vec()
    }

    fn write(&mut self, span: Span, fold: Fold, data: &[T], op: ReduceOp) {
        assert_ne!(span.area, Area::Input);
        let target = &mut self.areas[span.area as usize][range(span)];
        match fold {
            Fold::Reduce => reduce(op, target, data),
            Fold::Replace => target.copy_from_slice(data),
        }
    }
}

fn range(span: Span) -> Range<usize> {
    let (offset, len) = (usize::try_from(span.offset).unwrap(), usize::try_from(span.len).unwrap());
    offset..offset + len
}

/// Runs a call; `data[r]` is what rank `r` contributes. Returns the outputs.
fn run<T: Element>(
    (kind, algorithm): (CollectiveKind, Algorithm),
    topology: &Topology,
    shape: &Shape,
    op: ReduceOp,
    data: &[Vec<T>],
    rng: &mut fastrand::Rng,
) -> Vec<Vec<T>> {
    let chunk_len = rng.u64(1..6);
    let garbage = data.iter().flatten().next().copied();
    let plans = plans(kind, algorithm, topology, core::slice::from_ref(shape));
    let world_size = topology.world_size();
    let rank = |(rank, plan): (u32, Plan)| {
        let extent = shape.extent(kind, rank, world_size).unwrap();
        let fill = |len: u64| vec![garbage; usize::try_from(len).unwrap()];
        let fill = |len| fill(len).into_iter().map(Option::unwrap).collect::<Vec<T>>();
        let mut areas = [fill(extent.input), fill(extent.output), fill(plan.scratch_len)];
        let own = &data[rank as usize];
        let source = if extent.input == 0 { Area::Output } else { Area::Input };
        let gives = kind != CollectiveKind::Broadcast || rank == shape.root;
        if gives && own.len() == areas[source as usize].len() {
            areas[source as usize].clone_from(own);
        }
        Rank { machine: PlanMachine::new(plan, chunk_len), areas, finished: false }
    };
    let ranks = (0..).zip(plans).map(rank).collect();
    let (sends, recvs, under_way) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    World { op, ranks, sends, recvs, under_way }.run(rng)
}

fn folded<T: Element>(op: ReduceOp, data: &[Vec<T>]) -> Vec<T> {
    let mut total = data[0].clone();
    data[1..].iter().for_each(|more| reduce(op, &mut total, more));
    total
}

/// All parts of `data`, each of `len` elements, folded by the kernel that rounds once.
fn folded_once<T: Element>(op: ReduceOp, data: &[T], len: usize) -> Vec<T> {
    let mut total = data[..len].to_vec();
    if len > 0 {
        let parts: Vec<&[u8]> = data.chunks(len).map(as_bytes).collect();
        reduce_many_bytes(T::DTYPE, op, as_bytes_mut(&mut total), &parts, Stores::Cached);
    }
    total
}

/// The outputs a call should give.
fn oracle(
    kind: CollectiveKind,
    shape: &Shape,
    op: ReduceOp,
    data: &[Vec<i64>],
    count: usize,
) -> Vec<Vec<i64>> {
    use CollectiveKind as K;
    let ranks = 0..data.len();
    let root = shape.root as usize;
    let on_root = |r: usize, v: Vec<i64>| if r == root { v } else { Vec::new() };
    let block = |v: &[i64], r: usize| v[r * count..(r + 1) * count].to_vec();
    let output = |r: usize| match kind {
        K::AllGather => data.concat(),
        K::AllReduce => folded(op, data),
        K::AllToAll => data.iter().flat_map(|sent| block(sent, r)).collect(),
        K::Broadcast => data[root].clone(),
        K::Gather => on_root(r, data.concat()),
        K::Reduce => on_root(r, folded(op, data)),
        K::ReduceScatter => block(&folded(op, data), r),
        K::Scatter => block(&data[root], r),
        K::Barrier | K::SendRecv | K::Split => Vec::new(),
    };
    ranks.map(output).collect()
}

/// Elements a rank contributes.
fn contribution(kind: CollectiveKind, count: usize, world_size: u32) -> usize {
    use CollectiveKind as K;
    match kind {
        K::AllToAll | K::ReduceScatter | K::Scatter => count * world_size as usize,
        _ => count,
    }
}

#[test]
fn integers_are_exact() {
    let mut rng = fastrand::Rng::with_seed(11);
    for (kind, algorithm) in pairs() {
        for world_size in 1..=9 {
            for topology in topologies(world_size) {
                let count = *rng.choice(&[1, 2, 7, 20]).unwrap();
                let len = contribution(kind, count, world_size);
                let rank = |_| (0..len).map(|_| rng.i64(-1000..1000)).collect();
                let data: Vec<Vec<i64>> = (0..world_size).map(rank).collect();
                let op = *rng.choice(&[ReduceOp::Sum, ReduceOp::Max]).unwrap();
                let root = rng.u32(..world_size);
                let shape = Shape::uniform(count as u64).with_root(root);
                let pair = (kind, algorithm);
                let found = run(pair, &topology, &shape, op, &data, &mut rng);
                let wanted = oracle(kind, &shape, op, &data, count);
                assert_eq!(found, wanted, "{kind}, {algorithm}, {topology:?}, {shape:?}");
            }
        }
    }
}

#[test]
fn floats_have_the_same_bits_on_all_ranks() {
    let mut rng = fastrand::Rng::with_seed(12);
    let special = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e38, -1e38];
    for (kind, algorithm) in pairs().filter(|(kind, _)| *kind == CollectiveKind::AllReduce) {
        for world_size in 1..=9 {
            for topology in topologies(world_size) {
                let number = |rng: &mut fastrand::Rng| match rng.u8(..4) {
                    0 => *rng.choice(&special).unwrap(),
                    _ => rng.f32() * 10_f32.powi(rng.i32(-10..10)),
                };
                let rank = |_| (0..40).map(|_| number(&mut rng)).collect();
                let data: Vec<Vec<f32>> = (0..world_size).map(rank).collect();
                let op = *rng.choice(&[ReduceOp::Sum, ReduceOp::Max]).unwrap();
                let (pair, shape) = ((kind, algorithm), Shape::uniform(40));
                let found = run(pair, &topology, &shape, op, &data, &mut rng);
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                for output in &found {
                    assert_eq!(bits(output), bits(&found[0]), "{algorithm}, {topology:?}");
                }
            }
        }
    }
}

/// What [`is_canonical`] says, for the type in which it is hardest.
#[test]
fn canonical_algorithms_have_the_bits_of_one_fold() {
    let mut rng = fastrand::Rng::with_seed(13);
    let bits = |v: &[f16]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let (mut same, mut other) = (0, 0);
    for (kind, algorithm) in pairs().filter(|(kind, _)| kind.reduces()) {
        for world_size in 1..=9 {
            for topology in topologies(world_size) {
                let len = contribution(kind, 30, world_size);
                let number = |rng: &mut fastrand::Rng| rng.f32() * 2_f32.powi(rng.i32(-6..6));
                let rank = |_| (0..len).map(|_| f16::from_f32(number(&mut rng))).collect();
                let data: Vec<Vec<f16>> = (0..world_size).map(rank).collect();
                let op = *rng.choice(&[ReduceOp::Sum, ReduceOp::Prod]).unwrap();
                let shape = Shape::uniform(30).with_root(world_size - 1);
                let found = run((kind, algorithm), &topology, &shape, op, &data, &mut rng);
                let all = folded_once(op, &data.concat(), len);
                let wanted = |rank: usize| match kind {
                    CollectiveKind::Reduce if rank + 1 < data.len() => &[][..],
                    CollectiveKind::ReduceScatter => &all[rank * 30..(rank + 1) * 30],
                    _ => &all[..],
                };
                let is_same = (0..).zip(&found).all(|(r, got)| bits(got) == bits(wanted(r)));
                if is_canonical(kind, algorithm, world_size) {
                    assert!(is_same, "{kind}, {algorithm}, {topology:?}, {op}");
                }
                *(if is_same { &mut same } else { &mut other }) += 1;
            }
        }
    }
    // Data that all algorithms agree on would show nothing.
    assert!(same > 100 && other > 100, "{same} {other}");
}

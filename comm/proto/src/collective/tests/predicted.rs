//! Predicted times, compared with plans played through with a clock.
//!
//! The clock knows more than the formulas: which rank waits for which, what shares a link, how
//! uneven blocks and hosts are. A formula may be off by a factor, but not by an order.

use super::*;
use crate::collective::tuning::{Link, LinkCost, cost};
use crate::collective::{Fold, Step};
use alloc::collections::BTreeMap;

/// A message that waits for its way out.
#[derive(Clone, Copy)]
struct Message {
    ready: u64,
    from: u32,
    to: u32,
    tag: u32,
    bytes: u64,
}

/// A way out of, or into, a rank (local) or a host (remote).
type Port = (bool, bool, u32);

struct Clock<'a> {
    links: LinkCost,
    topology: &'a Topology,
    plans: &'a [Plan],
    /// Round that each rank is in, and when it came to it.
    at: Vec<(usize, u64)>,
    waiting: Vec<Message>,
    /// When a port is free again.
    ports: BTreeMap<Port, u64>,
    /// By sender, receiver and tag.
    arrivals: BTreeMap<(u32, u32, u32), u64>,
}

impl<'a> Clock<'a> {
    fn run(links: LinkCost, topology: &'a Topology, plans: &'a [Plan]) -> u64 {
        let (ports, arrivals) = (BTreeMap::new(), BTreeMap::new());
        let at = vec![(0, 0); plans.len()];
        let mut clock = Self { links, topology, plans, at, waiting: Vec::new(), ports, arrivals };
        for rank in 0..topology.world_size() {
            clock.enter_round(rank);
        }
        // What starts earliest goes first; nothing that follows from it starts before it.
        let start = |clock: &Self, m: &Message| {
            let port = clock.out_port(m);
            m.ready.max(clock.ports.get(&port).copied().unwrap_or(0))
        };
        let first = |clock: &Self| {
            let starts = clock.waiting.iter().map(|m| start(clock, m)).enumerate();
            starts.min_by_key(|(index, start)| (*start, *index)).map(|(index, _)| index)
        };
        while let Some(index) = first(&clock) {
            let message = clock.waiting.remove(index);
            clock.transfer(message);
            clock.end_rounds(message.to);
        }
        let is_done = |(rank, at): (usize, &(usize, u64))| at.0 == plans[rank].rounds.len();
        assert!(clock.at.iter().enumerate().all(is_done));
        clock.at.iter().map(|(_, time)| *time).max().unwrap()
    }

    fn enter_round(&mut self, rank: u32) {
        let (index, mut time) = self.at[rank as usize];
        let Some(round) = self.plans[rank as usize].rounds.get(index) else { return };
        for step in &round.steps {
            match *step {
                Step::Copy { source, .. } | Step::Reduce { source, .. } => {
                    time += ns(source.len, self.links.reduce_bytes_per_s);
                }
                Step::ReduceMany { before, own, after, .. } => {
                    let read = before.len + own.len + after.len;
                    time += ns(read, self.links.reduce_bytes_per_s);
                }
                Step::Send { peer, tag, span } => {
                    let (ready, from, to, bytes) = (time, rank, peer, span.len);
                    self.waiting.push(Message { ready, from, to, tag, bytes });
                    time += self.link(rank, peer).message_ns;
                }
                Step::Recv { .. } => {}
            }
        }
        self.at[rank as usize].1 = time;
        self.end_rounds(rank);
    }

    /// A round ends when all it receives is here and reduced.
    fn end_rounds(&mut self, rank: u32) {
        let (index, mut time) = self.at[rank as usize];
        let Some(round) = self.plans[rank as usize].rounds.get(index) else { return };
        let mut arrived = Vec::new();
        for step in &round.steps {
            if let Step::Recv { peer, tag, span, fold } = *step {
                let Some(arrival) = self.arrivals.get(&(peer, rank, tag)) else { return };
                arrived.push((*arrival, span.len, fold, self.link(peer, rank).message_ns));
            }
        }
        arrived.sort_unstable();
        for (index, (arrival, bytes, fold, message_ns)) in arrived.into_iter().enumerate() {
            time = arrival.max(if index == 0 { time } else { time + message_ns });
            if fold == Fold::Reduce {
                time += ns(bytes, self.links.reduce_bytes_per_s);
            }
        }
        self.at[rank as usize] = (index + 1, time);
        self.enter_round(rank);
    }

    fn transfer(&mut self, message: Message) {
        let Message { ready, from, to, tag, bytes } = message;
        let link = self.link(from, to);
        let time = ns(bytes, link.bytes_per_s);
        let out = self.ports.entry(self.out_port(&message)).or_insert(0);
        *out = ready.max(*out) + time;
        let left = *out;
        let (is_local, _, _) = self.out_port(&message);
        let into = if is_local { to } else { self.topology.hosts()[to as usize] };
        let into = self.ports.entry((is_local, true, into)).or_insert(0);
        *into = left.max(*into + time);
        self.arrivals.insert((from, to, tag), *into + link.latency_ns);
    }

    fn out_port(&self, message: &Message) -> Port {
        let hosts = self.topology.hosts();
        let (from, to) = (hosts[message.from as usize], hosts[message.to as usize]);
        (from == to, false, if from == to { message.from } else { from })
    }

    fn link(&self, from: u32, to: u32) -> Link {
        let hosts = self.topology.hosts();
        let is_local = hosts[from as usize] == hosts[to as usize];
        if is_local { self.links.local } else { self.links.remote }
    }
}

fn ns(bytes: u64, bytes_per_s: u64) -> u64 {
    bytes * 1_000 / (bytes_per_s / 1_000_000)
}

#[test]
fn predictions_are_near_a_clocked_run() {
    let links = LinkCost::default();
    for (kind, algorithm) in pairs() {
        for world_size in [2, 3, 5, 8, 13, 16, 24] {
            for topology in topologies(world_size) {
                let is_even = [1, world_size].contains(&topology.host_count());
                let bounds = if is_even { 0.75..2.05 } else { 0.4..3.0 };
                for bytes in [0, 64, 8 << 10, 1 << 20, 64 << 20] {
                    let plans = plans(kind, algorithm, &topology, &[Shape::uniform(bytes)]);
                    let clocked = Clock::run(links, &topology, &plans);
                    let predicted = cost(kind, algorithm, bytes, &topology, &links).unwrap();
                    assert!(
                        bounds.contains(&(predicted as f64 / clocked as f64)),
                        "{kind}, {algorithm}, {bytes} bytes, {topology:?}: predicted {predicted} \
                         ns, clocked {clocked} ns"
                    );
                }
            }
        }
    }
}

//! What a seed means: a world, its calls, its faults.

use std::time::Duration;
use syncline_kernels::ReduceOp;
use syncline_proto::call::CollectiveKind;
use syncline_proto::collective::topology::Topology;
use syncline_proto::collective::{Algorithm, tuning};
use syncline_proto::id::Rank;
use syncline_proto::time::Instant;

/// Two groups that cannot reach each other for a while.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Ranks of one side.
    pub side: Vec<Rank>,
    /// From when.
    pub from: Instant,
    /// Until when.
    pub until: Instant,
}

impl Partition {
    /// Whether the two are on different sides.
    pub fn divides(&self, a: Rank, b: Rank) -> bool {
        self.side.contains(&a) != self.side.contains(&b)
    }
}

/// What goes wrong.
#[derive(Clone, PartialEq, Debug)]
pub struct Faults {
    /// Scale of all delays.
    pub latency: Duration,
    /// Part of packets lost (and sent again by the stream).
    pub loss: f64,
    /// A cut that heals.
    pub partition: Option<Partition>,
    /// A rank that computes fifty times longer.
    pub slow: Option<Rank>,
    /// A rank that dies, and when.
    pub crash: Option<(Rank, Instant)>,
    /// A rank that handles nothing from then on, though its connections stand.
    pub freeze: Option<(Rank, Instant)>,
    /// A rank whose call of this number differs from the others'.
    pub mismatch: Option<(Rank, usize)>,
}

impl Faults {
    /// Whether every call must succeed all the same.
    pub fn are_harmless(&self, timeout: Duration) -> bool {
        let heals = self.partition.as_ref().is_none_or(|p| p.until.since(p.from) * 2 < timeout);
        self.crash.is_none() && self.freeze.is_none() && self.mismatch.is_none() && heals
    }
}

/// One call of all ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Which collective.
    pub kind: CollectiveKind,
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// Elements, in the meaning of its shape.
    pub count: u64,
    /// Root, where there is one.
    pub root: Rank,
    /// How it reduces.
    pub op: ReduceOp,
}

/// A world and what happens to it.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// All randomness comes from it.
    pub seed: u64,
    /// Hosts by rank.
    pub topology: Topology,
    /// Calls, one after the other.
    pub steps: Vec<Step>,
    /// Elements per chunk.
    pub chunk_len: u64,
    /// Deadline of each call.
    pub timeout: Duration,
    /// What goes wrong.
    pub faults: Faults,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5EED_5EED);
        let world_size = random.u32(1..=9);
        let mut hosts = Vec::new();
        for _ in 0..world_size {
            let next = hosts.last().map_or(0, |last| *last + u32::from(random.u8(..) < 90));
            hosts.push(next);
        }
        let topology = Topology::new(hosts);
        let steps = (0..random.usize(1..=6)).map(|_| Step::draw(&mut random, world_size)).collect();
        let latency = Duration::from_micros(random.u64(5..2000));
        let timeout = Duration::from_secs(10);
        let mut scenario = Self {
            seed,
            topology,
            steps,
            chunk_len: random.u64(1..40),
            timeout,
            faults: Faults {
                latency,
                loss: if random.bool() { random.f64() * 0.1 } else { 0.0 },
                partition: None,
                slow: random.bool().then(|| random.u32(0..world_size)),
                crash: None,
                freeze: None,
                mismatch: None,
            },
        };
        scenario.draw_fault(&mut random, world_size);
        scenario
    }

    fn draw_fault(&mut self, random: &mut fastrand::Rng, world_size: u32) {
        let rank = random.u32(0..world_size);
        let when = Instant::ZERO + self.faults.latency.mul_f64(random.f64() * 60.0);
        let faults = &mut self.faults;
        match random.u32(0..8) {
            0 | 1 if world_size > 1 => faults.crash = Some((rank, when)),
            2 if world_size > 1 => faults.freeze = Some((rank, when)),
            3 | 4 if world_size > 1 => {
                faults.mismatch = Some((rank, random.usize(0..self.steps.len())));
            }
            5 if world_size > 1 => {
                let long = random.u8(..) < 60;
                let length = if long { self.timeout * 3 } else { Duration::from_secs(2) };
                let side = (0..world_size).filter(|_| random.bool()).collect();
                faults.partition = Some(Partition { side, from: when, until: when + length });
            }
            _ => {}
        }
    }
}

impl Step {
    fn draw(random: &mut fastrand::Rng, world_size: u32) -> Self {
        let kinds: Vec<_> = CollectiveKind::ALL
            .into_iter()
            .filter(|k| Algorithm::ALL.iter().any(|a| tuning::is_supported(*k, *a)))
            .collect();
        let kind = kinds[random.usize(0..kinds.len())];
        let algorithms: Vec<_> =
            Algorithm::ALL.into_iter().filter(|a| tuning::is_supported(kind, *a)).collect();
        let edge = [0, 1, u64::from(world_size), u64::from(world_size) + 1];
        Self {
            kind,
            algorithm: algorithms[random.usize(0..algorithms.len())],
            count: if random.bool() { edge[random.usize(0..4)] } else { random.u64(0..120) },
            root: random.u32(0..world_size),
            op: [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][random.usize(0..3)],
        }
    }
}

//! What an all-reduce asks of one rank as the world grows, held against what its algorithm says.
//!
//! Owns the bounds. Messages and elements are those of the plans that ranks carry out; a small
//! vector is also played, without faults, to see that as many messages travel. Time is the cost
//! model's, at its default links: assumed, not measured. Called by `cargo sim -- --scale`.

use crate::scenario::{Faults, Scenario, Step};
use crate::world::{Report, run_with};
use std::time::Duration;
use syncline_kernels::ReduceOp;
use syncline_proto::call::CollectiveKind;
use syncline_proto::collective::shape::Shape;
use syncline_proto::collective::topology::Topology;
use syncline_proto::collective::tuning::{self, LinkCost};
use syncline_proto::collective::{Algorithm, Step as PlanStep};

/// No more messages are played: each becomes several events of a line of text.
const PLAYED_MAX: u64 = 600_000;
const ELEMENT_BYTES: u64 = 8;

/// What one algorithm asks of a rank.
#[derive(Clone, PartialEq, Debug)]
pub struct Cost {
    /// Of all-reduce.
    pub algorithm: Algorithm,
    /// Ranks of the world.
    pub ranks: u32,
    /// Messages that the rank sends which sends most.
    pub messages: u64,
    /// What the algorithm says of it.
    pub messages_bound: u64,
    /// Vectors that the rank sends which sends most.
    pub vectors: f64,
    /// What the algorithm says of it.
    pub vectors_bound: f64,
    /// Vectors of scratch memory of the rank that needs most.
    pub scratch: f64,
    /// By the cost model.
    pub predicted_us: f64,
    /// Messages that travelled when it was played; none where there were too many to play.
    pub played: Option<u64>,
    /// Messages of all ranks' plans.
    pub planned: u64,
}

impl Cost {
    /// Of a vector of about `bytes`, with so many ranks on each host; `None` where the algorithm is
    /// for another topology or has no plan.
    pub fn of(algorithm: Algorithm, ranks: u32, ranks_per_host: u32, bytes: u64) -> Option<Self> {
        let topology = Topology::new((0..ranks).map(|rank| rank / ranks_per_host).collect());
        let has_levels = topology.host_count() > 1 && ranks_per_host > 1;
        if algorithm == Algorithm::Hierarchical && !has_levels {
            return None;
        }
        let kind = CollectiveKind::AllReduce;
        // Whole blocks, so that no rank has an element more than another.
        let count =
            (bytes / ELEMENT_BYTES).next_multiple_of(u64::from(ranks)).max(u64::from(ranks));
        let links = LinkCost::default();
        let predicted_ns = tuning::cost(kind, algorithm, bytes, &topology, &links)?;
        let (mut planned, mut messages, mut elements, mut scratch) = (0, 0, 0, 0);
        for rank in 0..ranks {
            let plan = tuning::plan(kind, algorithm, rank, &topology, &Shape::uniform(count))?;
            let sent = plan.steps().filter(|step| matches!(step, PlanStep::Send { .. })).count();
            planned += sent as u64;
            messages = messages.max(sent as u64);
            elements = elements.max(plan.elements_sent());
            scratch = scratch.max(plan.scratch_len);
        }
        let of_vector = |elements: u64| elements as f64 / count as f64;
        let (messages_bound, vectors_bound) = bound(algorithm, ranks, ranks_per_host);
        Some(Self {
            algorithm,
            ranks,
            messages,
            messages_bound,
            vectors: of_vector(elements),
            vectors_bound,
            scratch: of_vector(scratch),
            predicted_us: predicted_ns as f64 / 1e3,
            played: (planned <= PLAYED_MAX).then(|| play(algorithm, topology)),
            planned,
        })
    }

    /// What grows faster than its algorithm says, in words; nothing if all is well.
    pub fn excess(&self) -> Option<String> {
        if self.messages > self.messages_bound {
            return Some(format!("{} messages, {} at most", self.messages, self.messages_bound));
        }
        if self.vectors > self.vectors_bound * 1.001 {
            return Some(format!("{} vectors, {} at most", self.vectors, self.vectors_bound));
        }
        let played = self.played.filter(|played| *played != self.planned)?;
        Some(format!("{played} messages travelled, {} were planned", self.planned))
    }
}

/// Messages and vectors that a rank may send at most, from the tables at the head of each algorithm
/// in `syncline-proto`.
fn bound(algorithm: Algorithm, ranks: u32, ranks_per_host: u32) -> (u64, f64) {
    let n = u64::from(ranks);
    let log = |n: u64| u64::from(n.next_power_of_two().ilog2());
    let around = |n: u64| 2.0 * (n - 1) as f64 / n as f64;
    // A world that is no power of two folds the others in before and out after.
    let extra = u64::from(!n.is_power_of_two());
    match algorithm {
        Algorithm::Direct | Algorithm::Ring => (2 * (n - 1), around(n)),
        Algorithm::RecursiveDoubling => (log(n) + extra, (log(n) + extra) as f64),
        Algorithm::HalvingDoubling => (2 * log(n) + extra, around(n) + extra as f64),
        Algorithm::Tree => (log(n) + 1, (log(n) + 1) as f64),
        Algorithm::Hierarchical | Algorithm::Node => {
            let (hosts, inside) = (n.div_ceil(u64::from(ranks_per_host)), ranks_per_host.into());
            (log(inside) + 2 * (hosts - 1), log(inside) as f64 + around(hosts))
        }
    }
}

/// Messages that travel in one call on a small vector, all of whose results are right.
///
/// # Panics
/// If the call breaks a promise: there are no faults.
fn play(algorithm: Algorithm, topology: Topology) -> u64 {
    let step = Step {
        kind: CollectiveKind::AllReduce,
        algorithm,
        count: u64::from(topology.world_size()),
        root: 0,
        op: ReduceOp::Sum,
    };
    let scenario = Scenario {
        seed: 1,
        topology,
        steps: vec![step],
        chunk_len: u64::MAX,
        timeout: Duration::from_secs(60),
        faults: Faults {
            latency: Duration::from_micros(10),
            loss: 0.0,
            partition: None,
            slow: None,
            crash: None,
            freeze: None,
            mismatch: None,
        },
    };
    let mut messages = 0;
    let Report { violation, .. } = run_with(&scenario, &mut |_| messages += 1);
    assert_eq!(violation, None, "a call without faults succeeds");
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_grows_faster_than_its_algorithm_says() {
        for (ranks, per_host) in [(2, 1), (7, 1), (8, 4), (32, 8), (33, 8)] {
            for algorithm in Algorithm::ALL {
                if let Some(cost) = Cost::of(algorithm, ranks, per_host, 1 << 16) {
                    assert_eq!(cost.excess(), None, "{cost:?}");
                    assert_eq!(cost.played, Some(cost.planned));
                }
            }
        }
    }

    #[test]
    fn what_is_too_much_is_said() {
        let good = Cost::of(Algorithm::Ring, 8, 1, 1 << 16).unwrap();
        let more = Cost { messages: good.messages + 1, ..good.clone() };
        assert_eq!(more.excess().as_deref(), Some("15 messages, 14 at most"));
        let larger = Cost { vectors: 1.8, ..good.clone() };
        assert_eq!(larger.excess().as_deref(), Some("1.8 vectors, 1.75 at most"));
        let other = Cost { played: Some(1), ..good };
        assert!(other.excess().unwrap().contains("1 messages travelled"));
    }
}

//! Virtual time and the wires: a queue of events, and how long things take.

use crate::scenario::Faults;
use std::collections::BTreeMap;
use std::time::Duration;
use syncline_proto::call::Call;
use syncline_proto::collective::machine::Transfer;
use syncline_proto::id::{MessageId, OpId, Rank};
use syncline_proto::membership::ControlMessage;
use syncline_proto::time::Instant;

/// Something that will happen.
#[derive(Debug)]
pub enum Event {
    /// A control stream ends at the hub (or, for rank 0's crash, everywhere).
    ControlClosed {
        /// Whose stream.
        rank: Rank,
    },
    /// A rank dies.
    Crash {
        /// Which.
        rank: Rank,
    },
    /// A message arrives.
    Deliver {
        /// From.
        source: Rank,
        /// To.
        target: Rank,
        /// Its name.
        message: MessageId,
        /// The sender's call.
        call: Call,
        /// Elements.
        data: Vec<i64>,
    },
    /// A rank begins its next call.
    NextCall {
        /// Which rank.
        rank: Rank,
    },
    /// The memory of a send is read, and its request completes.
    Send {
        /// The sender.
        rank: Rank,
        /// Of which operation.
        op: OpId,
        /// World rank.
        target: Rank,
        /// What.
        transfer: Transfer,
    },
    /// To a rank's member, from the hub.
    ToMember {
        /// Which rank.
        rank: Rank,
        /// What.
        message: ControlMessage,
    },
    /// To the hub, from a rank's member.
    ToHub {
        /// Which rank.
        rank: Rank,
        /// What.
        message: ControlMessage,
    },
    /// Machines look at their clocks.
    Tick,
}

/// Events in order of time, and of their making at equal times.
#[derive(Debug, Default)]
pub struct Queue {
    events: BTreeMap<(Instant, u64), Event>,
    made: u64,
}

impl Queue {
    /// Adds an event.
    pub fn push(&mut self, at: Instant, event: Event) {
        self.events.insert((at, self.made), event);
        self.made += 1;
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(Instant, Event)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }
}

/// How long messages take.
#[derive(Debug)]
pub struct Wires {
    faults: Faults,
    random: fastrand::Rng,
    /// Control streams keep their order: nothing arrives before what was sent earlier.
    control_free: BTreeMap<(Rank, bool), Instant>,
}

impl Wires {
    /// With its own stream of random numbers.
    pub fn new(faults: Faults, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { faults, random, control_free: BTreeMap::new() }
    }

    /// When a data message sent now arrives. Chunks go over several connections, so they overtake
    /// one another; a lost packet is sent again by the stream below, later.
    pub fn data_arrival(&mut self, now: Instant, source: Rank, target: Rank) -> Instant {
        let mut delay = self.faults.latency.mul_f64(0.5 + self.random.f64() * 4.0);
        while self.random.f64() < self.faults.loss {
            delay += Duration::from_millis(200);
        }
        self.through_partition(now + delay, source, target)
    }

    /// When a control message arrives.
    pub fn control_arrival(&mut self, now: Instant, rank: Rank, to_hub: bool) -> Instant {
        let delay = self.faults.latency.mul_f64(0.5 + self.random.f64() * 4.0);
        let at = self.through_partition(now + delay, rank, 0);
        let free = self.control_free.entry((rank, to_hub)).or_default();
        *free = at.max(*free);
        *free
    }

    /// When the memory of a posted send is read.
    pub fn send_time(&mut self, now: Instant) -> Instant {
        now + self.faults.latency.mul_f64(self.random.f64())
    }

    /// How long a rank computes before its next call.
    pub fn think_time(&mut self, rank: Rank) -> Duration {
        let slow = if self.faults.slow == Some(rank) { 50.0 } else { 1.0 };
        self.faults.latency.mul_f64(self.random.f64() * slow)
    }

    /// What arrives while the wire is cut waits until it is whole again.
    fn through_partition(&self, at: Instant, source: Rank, target: Rank) -> Instant {
        match &self.faults.partition {
            Some(cut) if cut.divides(source, target) && (cut.from..cut.until).contains(&at) => {
                cut.until + at.since(cut.from).mul_f64(0.01)
            }
            _ => at,
        }
    }
}

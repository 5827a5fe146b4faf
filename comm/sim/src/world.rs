//! Plays a scenario to its end.

use crate::checker::{self, Violation};
use crate::network::{Event, Queue, Wires};
use crate::rank::{Ended, SimRank};
use crate::scenario::Scenario;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use syncline_proto::collective::machine::Direction;
use syncline_proto::id::Rank;
use syncline_proto::machine::Machine;
use syncline_proto::membership::{Hub, HubInput, HubOutput, MemberInput, MemberOutput, Pace};
use syncline_proto::operations::{OperationInput, OperationOutput};
use syncline_proto::time::Instant;

const TICK: Duration = Duration::from_millis(50);
const PACE: Pace = Pace { beat: Duration::from_millis(500), silence: Duration::from_secs(20) };

/// What a scenario did.
#[derive(Debug)]
pub struct Report {
    /// What it broke, if anything.
    pub violation: Option<Violation>,
    /// Hash over every event, to compare two runs.
    pub trace: u64,
    /// Events played.
    pub events: u64,
    /// Calls that ended well, on all ranks.
    pub succeeded: usize,
    /// Calls that ended with an error, on all ranks.
    pub failed: usize,
}

/// Runs a scenario; `log` gets a line per event.
pub fn run(scenario: &Scenario, mut log: impl FnMut(&str)) -> Report {
    play(scenario, &mut log, &mut |_| {})
}

/// Runs a scenario with a hand on every message's elements as it is sent, to show that the checker
/// sees what it must: an emptied message is lost.
pub fn run_with(scenario: &Scenario, tamper: &mut dyn FnMut(&mut Vec<i64>)) -> Report {
    play(scenario, &mut |_| {}, tamper)
}

fn play(
    scenario: &Scenario,
    log: &mut dyn FnMut(&str),
    tamper: &mut dyn FnMut(&mut Vec<i64>),
) -> Report {
    let mut world = World::new(scenario, tamper);
    let mut trace = DefaultHasher::new();
    let mut events = 0;
    let end = Instant::ZERO + checker::latest_end(scenario);
    while let Some((at, event)) = world.queue.pop() {
        if at > end || world.is_over() {
            break;
        }
        world.now = at;
        let line = format!("{:>12} {event:?}", at.0);
        line.hash(&mut trace);
        log(&line);
        events += 1;
        world.play(event);
    }
    let ended: Vec<&[Ended]> = world.ranks.iter().map(|rank| &*rank.ended).collect();
    let working: Vec<bool> = world.ranks.iter().map(SimRank::is_working).collect();
    let calls = || ended.iter().flat_map(|calls| calls.iter());
    Report {
        violation: checker::check(scenario, &ended, &working),
        trace: trace.finish(),
        events,
        succeeded: calls().filter(|call| call.is_ok()).count(),
        failed: calls().filter(|call| call.is_err()).count(),
    }
}

struct World<'a> {
    scenario: &'a Scenario,
    now: Instant,
    queue: Queue,
    wires: Wires,
    ranks: Vec<SimRank>,
    hub: Hub,
    tamper: &'a mut dyn FnMut(&mut Vec<i64>),
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, tamper: &'a mut dyn FnMut(&mut Vec<i64>)) -> Self {
        let world_size = scenario.topology.world_size();
        let mut hub = Hub::new(world_size, PACE, Instant::ZERO, Instant(u64::MAX));
        let mut queue = Queue::default();
        for rank in 0..world_size {
            hub.handle_input(Instant::ZERO, HubInput::Joined { rank });
            queue.push(Instant::ZERO, Event::NextCall { rank });
        }
        queue.push(Instant::ZERO + TICK, Event::Tick);
        if let Some((rank, at)) = scenario.faults.crash {
            queue.push(at, Event::Crash { rank });
        }
        Self {
            scenario,
            now: Instant::ZERO,
            queue,
            wires: Wires::new(scenario.faults.clone(), scenario.seed),
            ranks: (0..world_size).map(|rank| SimRank::new(rank, PACE)).collect(),
            hub,
            tamper,
        }
    }

    /// Every working rank has ended all its calls, or one with an error.
    fn is_over(&self) -> bool {
        let is_over = |rank: &SimRank| {
            let all = rank.ended.len() == self.scenario.steps.len();
            !rank.is_working() || all || rank.ended.last().is_some_and(Result::is_err)
        };
        self.ranks.iter().all(is_over)
    }

    fn play(&mut self, event: Event) {
        if let Some((rank, at)) = self.scenario.faults.freeze
            && self.now >= at
        {
            self.ranks[rank as usize].frozen = true;
        }
        match event {
            Event::ControlClosed { rank } => self.control_closed(rank),
            Event::Crash { rank } => {
                self.ranks[rank as usize].alive = false;
                let at = self.wires.control_arrival(self.now, rank, true);
                self.queue.push(at, Event::ControlClosed { rank });
            }
            Event::Deliver { source, target, message, call, data } => {
                let rank = &mut self.ranks[target as usize];
                if rank.is_working() {
                    let input = match rank.deliver(source, message, call, data) {
                        Some((op, transfer)) => OperationInput::Completed { op, transfer },
                        None => OperationInput::Arrived { peer: source, call },
                    };
                    rank.operations.handle_input(self.now, input);
                    self.settle(target);
                }
            }
            Event::NextCall { rank } => self.next_call(rank),
            Event::Send { rank, op, target, transfer } => {
                let sender = &mut self.ranks[rank as usize];
                // After an error the memory is the caller's again: nothing reads it.
                if sender.alive && sender.call().is_some_and(|call| call.seq == op.0) {
                    let call = sender.call().expect("just looked");
                    let message = sender.message_id(&transfer);
                    let mut data = sender.read(transfer.span);
                    let len = data.len();
                    (self.tamper)(&mut data);
                    let at = self.wires.data_arrival(self.now, rank, target);
                    if data.len() == len {
                        let deliver = Event::Deliver { source: rank, target, message, call, data };
                        self.queue.push(at, deliver);
                    }
                    let input = OperationInput::Completed { op, transfer };
                    self.ranks[rank as usize].operations.handle_input(self.now, input);
                    self.settle(rank);
                }
            }
            Event::Tick => self.tick(),
            Event::ToHub { rank, message } => {
                if self.ranks[0].is_working() {
                    self.hub.handle_input(self.now, HubInput::Message { rank, message });
                    self.settle_hub();
                }
            }
            Event::ToMember { rank, message } => {
                if self.ranks[rank as usize].is_working() {
                    let input = MemberInput::Message(message);
                    self.ranks[rank as usize].member.handle_input(self.now, input);
                    self.settle(rank);
                }
            }
        }
    }

    fn control_closed(&mut self, closed: Rank) {
        let detail = String::from("end of stream");
        if closed != 0 {
            self.hub.handle_input(self.now, HubInput::Closed { rank: closed, detail });
            return self.settle_hub();
        }
        for rank in (0..).take(self.ranks.len()) {
            if self.ranks[rank as usize].is_working() {
                let input = MemberInput::HubClosed { detail: detail.clone() };
                self.ranks[rank as usize].member.handle_input(self.now, input);
                self.settle(rank);
            }
        }
    }

    fn next_call(&mut self, rank: Rank) {
        let sim = &mut self.ranks[rank as usize];
        let failed = sim.ended.last().is_some_and(Result::is_err);
        if !sim.is_working() || failed || sim.begun == self.scenario.steps.len() {
            return;
        }
        let start = sim.begin(self.scenario, self.now);
        sim.operations.handle_input(self.now, OperationInput::Start(start));
        self.settle(rank);
    }

    fn tick(&mut self) {
        self.queue.push(self.now + TICK, Event::Tick);
        for rank in (0..).take(self.ranks.len()) {
            let sim = &mut self.ranks[rank as usize];
            if sim.is_working() {
                sim.operations.handle_timeout(self.now);
                sim.member.handle_timeout(self.now);
                self.settle(rank);
            }
        }
        if self.ranks[0].is_working() {
            self.hub.handle_timeout(self.now);
            self.settle_hub();
        }
    }

    fn settle_hub(&mut self) {
        while let Some(output) = self.hub.poll_output() {
            if let HubOutput::Send { rank, message } = output {
                let at = self.wires.control_arrival(self.now, rank, false);
                self.queue.push(at, Event::ToMember { rank, message });
            }
        }
    }

    /// Does what a rank's machines want until they want nothing.
    fn settle(&mut self, rank: Rank) {
        loop {
            let sim = &mut self.ranks[rank as usize];
            if let Some(output) = sim.member.poll_output() {
                match output {
                    MemberOutput::Fault(fault) => {
                        let input = OperationInput::Fault(Arc::new(fault));
                        sim.operations.handle_input(self.now, input);
                    }
                    MemberOutput::Send(message) => {
                        let at = self.wires.control_arrival(self.now, rank, true);
                        self.queue.push(at, Event::ToHub { rank, message });
                    }
                    _ => {}
                }
                continue;
            }
            let Some(output) = sim.operations.poll_output() else { return };
            match output {
                OperationOutput::Announce(fault) => {
                    let input = MemberInput::Report((*fault).clone());
                    sim.member.handle_input(self.now, input);
                }
                OperationOutput::Finished { result, .. } => {
                    sim.end(result.map_err(|fault| (*fault).clone()));
                    let pause = self.wires.think_time(rank);
                    self.queue.push(self.now + pause, Event::NextCall { rank });
                }
                OperationOutput::Local { step, .. } => sim.local(step),
                OperationOutput::Post { op, peer, transfer } => match transfer.direction {
                    Direction::Recv(_) => {
                        if let Some(transfer) = sim.post_recv(op, peer, transfer) {
                            let input = OperationInput::Completed { op, transfer };
                            sim.operations.handle_input(self.now, input);
                        }
                    }
                    Direction::Send => {
                        let at = self.wires.send_time(self.now);
                        self.queue.push(at, Event::Send { rank, op, target: peer, transfer });
                    }
                },
            }
        }
    }
}

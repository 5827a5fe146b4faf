//! The one loop: steps machines over transports and offloads, for whichever thread waits.
//!
//! Owns every operation in flight and the memory lent to it. Never chooses an algorithm (the
//! communicator does), never blocks outside [`Engine::sleep`], never returns an operation's end
//! before its memory is home. Driven by [`Driver`]: by the thread that waits for a result, or by
//! a background thread while started operations run and nobody waits.

mod done;
mod driver;
mod faults;
mod fold;
mod launch;
mod sleeper;
mod slice;
#[cfg(test)]
mod tests;
mod wait;

pub(crate) use done::{Done, Outcome};
pub(crate) use driver::{Driver, Patience};
pub(crate) use launch::{Body, Endpoint, Launch};

use crate::control::ControlPlane;
use crate::memory::{LocalSlice, Scratch, Spares};
use crate::offload::node::{NodeCall, NodeEvent, NodeLane};
use crate::time::now;
use crate::transport::{Class, Event, RequestId, Sink, SinkFold, Transport, Work, WorkRequest};
use faults::Watch;
use sleeper::Sleeper;
use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use syncline_kernels::{DType, ReduceOp, Stores, copy, finish_average_bytes, reduce_bytes};
use syncline_proto::call::{Call, CollectiveKind, RankCall};
use syncline_proto::collective::machine::{Direction, Transfer};
use syncline_proto::collective::{Area, Fold, Span, Step};
use syncline_proto::fault::Fault;
use syncline_proto::id::{CommId, MessageId, OpId, Rank};
use syncline_proto::machine::Machine;
use syncline_proto::operations::{OperationInput, OperationOutput, Operations, Start};
use syncline_proto::time::Instant;

/// Steps between looks at what is not waited for.
const LOOK_EVERY: u32 = 64;
/// Steps between looks at the clock for lanes.
const CLOCK_EVERY: u32 = 16;
/// Operations that have not moved for so long make their receives known.
const STALL: Duration = Duration::from_millis(100);
/// No sleep is longer; a lost wake-up costs this much.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// Bytes this rank has moved, all communicators of the job together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Payload handed to transports.
    pub bytes_sent: u64,
    /// Payload taken from transports.
    pub bytes_received: u64,
    /// Bytes copied on the way beside the fold itself.
    pub bytes_copied: u64,
    /// Operations begun.
    pub operations: u64,
}

/// An operation in flight. Field order: slices go before the memory they point into.
#[derive(Debug)]
struct Running {
    call: Call,
    dtype: DType,
    op: ReduceOp,
    /// Divide the output by this at the end.
    average_over: Option<u32>,
    class: Class,
    endpoint: Option<Endpoint>,
    input: LocalSlice,
    output: LocalSlice,
    scratch: LocalSlice,
    scratch_memory: Scratch,
    buffer: Option<Box<dyn Any + Send>>,
    done: Arc<Done>,
}

/// All of one rank's operations, transports and offloads.
#[derive(Debug)]
pub(crate) struct Engine {
    rank: Rank,
    operations: Operations,
    running: BTreeMap<OpId, Running>,
    transports: Vec<Box<dyn Transport>>,
    /// Index into `transports`, by world rank.
    route: Vec<usize>,
    lanes: BTreeMap<CommId, NodeLane>,
    spares: Spares,
    events: Vec<Event>,
    node_events: Vec<NodeEvent>,
    sleeper: Sleeper,
    watch: Watch,
    counters: Counters,
    next_op: u64,
    steps: u32,
    /// When a transport last moved anything.
    moved_at: Instant,
    /// For deadlines: a little behind the clock, which costs more to read than a step.
    recently: Instant,
}

impl Engine {
    /// Over `transports`, of which `route` names one for each world rank.
    pub(crate) fn new(
        rank: Rank,
        mut transports: Vec<Box<dyn Transport>>,
        route: Vec<usize>,
        control: Option<Arc<ControlPlane>>,
    ) -> io::Result<Self> {
        let sleeper = Sleeper::new()?;
        for transport in &mut transports {
            transport.register(sleeper.registry())?;
        }
        if let Some(control) = &control {
            control.inbox().set_bell(Arc::clone(sleeper.bell()));
        }
        Ok(Self {
            rank,
            operations: Operations::new(rank),
            running: BTreeMap::new(),
            transports,
            route,
            lanes: BTreeMap::new(),
            spares: Spares::default(),
            events: Vec::new(),
            node_events: Vec::new(),
            sleeper,
            watch: Watch::new(rank, control),
            counters: Counters::default(),
            next_op: 0,
            steps: 0,
            moved_at: now(),
            recently: now(),
        })
    }

    /// Gives a communicator its way around messages.
    pub(crate) fn add_lane(&mut self, comm: CommId, lane: NodeLane) {
        self.lanes.insert(comm, lane);
    }

    /// Takes it back; its last call must be over.
    pub(crate) fn remove_lane(&mut self, comm: CommId) {
        self.lanes.remove(&comm);
    }

    /// What this rank has moved.
    pub(crate) fn counters(&self) -> Counters {
        let bytes_copied = self.transports.iter().map(|t| t.bytes_copied()).sum();
        Counters { bytes_copied, ..self.counters }
    }

    /// The first fault, if the job has met one.
    pub(crate) fn fault(&self) -> Option<&Arc<Fault>> {
        self.watch.fault()
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether all that was sent has left this process.
    pub(crate) fn is_flushed(&self) -> bool {
        self.transports.iter().all(|t| t.is_flushed())
    }

    /// The number of an operation that begins, which is counted.
    fn number(&mut self, launch: &Launch) -> OpId {
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.counters.operations += 1;
        if launch.endpoint.is_none() {
            self.watch.count_call();
        }
        op
    }

    /// Carries out at once, within so many looks at its lane, what needs nothing but a lane: such
    /// a call costs no entry, no clock and no hand-over. Else it is started.
    pub(crate) fn run(&mut self, launch: Launch, looks: u32) -> Result<Outcome, Arc<Done>> {
        let Body::Node { root, kind } = launch.body else { return Err(self.start(launch)) };
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(LOOK_EVERY) {
            // Peers of other calls must not wait until this rank has nothing short to do.
            self.poll_transports();
            self.tick();
        }
        let is_watched = self.watch.has_news() || self.watch.fault().is_some();
        if !self.running.is_empty() || is_watched || launch.buffer.is_some() {
            return Err(self.start(launch));
        }
        let op = self.number(&launch);
        let lane = self.lanes.get_mut(&launch.call.comm).expect("a lane, or no node call");
        lane.start(node_call(op, &launch, root, kind, Instant::NEVER));
        for _ in 0..looks {
            let has_moved = lane.poll(self.recently, &mut self.node_events);
            // Nothing else runs.
            let Some(NodeEvent::Finished { result, .. }) = self.node_events.pop() else {
                if has_moved {
                    // It takes longer than a look.
                    break;
                }
                std::hint::spin_loop();
                continue;
            };
            let fault = result.err();
            if let Some(fault) = &fault {
                self.fail(Arc::clone(fault), true);
            }
            let fault = fault.map(|fault| self.watch.fault().cloned().unwrap_or(fault));
            return Ok(Outcome { fault, buffer: None });
        }
        lane.set_deadline(now() + launch.timeout);
        let done = Arc::new(Done::default());
        self.running.insert(op, Running::new(launch, Arc::clone(&done)));
        Err(done)
    }

    /// Starts an operation. Its end comes through the returned value, also when it fails at
    /// once.
    pub(crate) fn start(&mut self, mut launch: Launch) -> Arc<Done> {
        let op = self.number(&launch);
        let done = Arc::new(Done::default());
        if let Some(fault) = self.watch.fault().cloned() {
            done.finish(Outcome { fault: Some(fault), buffer: launch.buffer });
            return done;
        }
        let deadline = now() + launch.timeout;
        let call = launch.call;
        match launch.body {
            Body::Node { root, kind } => {
                let lane = self.lanes.get_mut(&call.comm).expect("a lane, or no node call");
                lane.start(node_call(op, &launch, root, kind, deadline));
                self.running.insert(op, Running::new(launch, Arc::clone(&done)));
            }
            Body::Plan { ref mut plan, ref mut members, chunk_len } => {
                let (plan, members) = (std::mem::take(plan), Arc::clone(members));
                let mut running = Running::new(launch, Arc::clone(&done));
                let element_bytes = running.dtype.size() as u64;
                let scratch_bytes = plan.scratch_len * element_bytes;
                let scratch_bytes = usize::try_from(scratch_bytes).expect("scratch fits memory");
                running.scratch_memory = self.spares.take(scratch_bytes);
                running.scratch = running.scratch_memory.lend();
                self.running.insert(op, running);
                let start = Start { op, call, plan, members, chunk_len, element_bytes, deadline };
                self.operations.handle_input(now(), OperationInput::Start(start));
                self.act();
            }
        }
        done
    }

    /// Does what can be done now; whether anything was.
    pub(crate) fn step(&mut self) -> bool {
        self.steps = self.steps.wrapping_add(1);
        let look = self.steps.is_multiple_of(LOOK_EVERY);
        let mut progressed = false;
        if !self.lanes.is_empty() {
            if self.steps.is_multiple_of(CLOCK_EVERY) {
                self.recently = now();
            }
            progressed |= self.poll_lanes();
        }
        if !self.operations.is_idle() || look {
            progressed |= self.poll_transports();
        }
        if look || self.watch.has_news() {
            self.tick();
        }
        progressed
    }

    fn poll_lanes(&mut self) -> bool {
        let mut progressed = false;
        for lane in self.lanes.values_mut() {
            progressed |= lane.poll(self.recently, &mut self.node_events);
        }
        if self.node_events.is_empty() {
            return progressed;
        }
        let mut events = std::mem::take(&mut self.node_events);
        for NodeEvent::Finished { op, result } in events.drain(..) {
            match result {
                // The lane has divided already.
                Ok(()) => self.finish(op, None),
                Err(fault) => self.fail(fault, true),
            }
        }
        self.node_events = events;
        true
    }

    fn poll_transports(&mut self) -> bool {
        let now = now();
        let mut progressed = false;
        for transport in &mut self.transports {
            progressed |= transport.poll(now, &mut self.events);
        }
        if progressed {
            self.moved_at = now;
        }
        if self.events.is_empty() {
            return progressed;
        }
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            self.handle_event(now, event);
        }
        self.events = events;
        self.act();
        true
    }

    fn handle_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Arrived { peer, call, message, is_asked } if message.is_point_to_point() => {
                self.check_point_to_point(peer, call, message, is_asked);
            }
            Event::Arrived { peer, call, .. } => {
                self.operations.handle_input(now, OperationInput::Arrived { peer, call });
            }
            Event::Completed(RequestId { op, transfer }) => {
                let bytes =
                    self.running.get(&op).map_or(0, |r| transfer.span.len * r.dtype.size() as u64);
                match transfer.direction {
                    Direction::Recv(_) => self.counters.bytes_received += bytes,
                    Direction::Send => self.counters.bytes_sent += bytes,
                }
                self.operations.handle_input(now, OperationInput::Completed { op, transfer });
            }
            Event::Failed(failure) => {
                if let Some(fault) = self.watch.peer_failed(now, failure) {
                    self.fail(Arc::new(fault), true);
                }
            }
        }
    }

    /// The other end of a point-to-point message of ours made another call.
    fn check_point_to_point(&mut self, peer: Rank, call: Call, message: MessageId, is_send: bool) {
        let wanted = Endpoint { peer, is_send, message: MessageId { chunk: 0, ..message } };
        let mine = self.running.values().find(|running| {
            running.endpoint == Some(wanted) && running.call.fingerprint != call.fingerprint
        });
        if let Some(running) = mine {
            let other = RankCall { rank: peer, call };
            self.fail(Arc::new(Fault::mismatch(self.rank, running.call, other)), true);
        }
    }

    /// Does what the operations want.
    fn act(&mut self) {
        while let Some(output) = self.operations.poll_output() {
            match output {
                OperationOutput::Announce(fault) => self.fail(fault, true),
                OperationOutput::Finished { op, result } => {
                    if result.is_ok() {
                        let over = self.running.get(&op).and_then(|r| r.average_over);
                        self.finish(op, over);
                    }
                    // After a fault `fail` has ended all.
                }
                OperationOutput::Local { op, step } => {
                    // It may take long.
                    self.push();
                    self.local(op, step);
                }
                OperationOutput::Post { op, peer, transfer } => self.post(op, peer, transfer),
            }
        }
        self.push();
    }

    fn push(&mut self) {
        self.transports.iter_mut().for_each(|transport| transport.push());
    }

    fn post(&mut self, op: OpId, peer: Rank, transfer: Transfer) {
        let running = &self.running[&op];
        let memory = running.part(transfer.span);
        let message = match running.endpoint {
            Some(endpoint) => MessageId { chunk: transfer.chunk, ..endpoint.message },
            None => MessageId {
                comm: running.call.comm,
                seq: running.call.seq,
                step: transfer.tag,
                chunk: transfer.chunk,
            },
        };
        let work = match transfer.direction {
            Direction::Recv(Fold::Replace) => Work::Recv(Sink { memory, fold: SinkFold::Replace }),
            Direction::Recv(Fold::Reduce) => {
                Work::Recv(Sink { memory, fold: SinkFold::Reduce(running.dtype, running.op) })
            }
            Direction::Send => Work::Send(memory),
        };
        let request = WorkRequest {
            id: RequestId { op, transfer },
            peer,
            message,
            fingerprint: running.call.fingerprint,
            class: running.class,
            work,
        };
        self.transports[self.route[peer as usize]].post(now(), request);
    }

    fn local(&mut self, op: OpId, step: Step) {
        let running = &self.running[&op];
        match step {
            Step::Copy { source, target } => {
                let (source, mut target) = (running.part(source), running.part(target));
                copy(target.bytes_mut(), source.bytes(), Stores::Cached);
            }
            Step::Reduce { source, target } => {
                let (source, mut target) = (running.part(source), running.part(target));
                reduce_bytes(running.dtype, running.op, target.bytes_mut(), source.bytes());
            }
            Step::ReduceMany { before, own, after, target } => {
                let sources = [before, own, after].map(|span| running.part(span));
                let mut target = running.part(target);
                fold::reduce_many(running.dtype, running.op, &sources, &mut target);
            }
            Step::Recv { .. } | Step::Send { .. } => unreachable!("local steps only"),
        }
    }

    fn finish(&mut self, op: OpId, average_over: Option<u32>) {
        let Some(running) = self.running.remove(&op) else { return };
        // Nothing uses the slice of the scratch any more.
        let Running { dtype, mut output, buffer, done, scratch_memory, .. } = running;
        self.spares.give(scratch_memory);
        if let Some(world_size) = average_over {
            finish_average_bytes(dtype, output.bytes_mut(), world_size);
        }
        done.finish(Outcome { fault: None, buffer });
    }

    /// Sleeps until something may be done. Call only after [`Engine::step`] found nothing.
    pub(crate) fn sleep(&mut self) {
        let mut may_sleep = true;
        for transport in &mut self.transports {
            may_sleep &= transport.prepare_sleep();
        }
        for lane in self.lanes.values_mut() {
            may_sleep &= lane.prepare_sleep();
        }
        let stall = if self.operations.is_idle() { SLEEP_MAX } else { STALL };
        let mut until = if may_sleep && !self.watch.has_news() { now() + stall } else { now() };
        let timeouts = self.transports.iter().filter_map(|t| t.next_timeout());
        let lanes = self.lanes.values().filter_map(NodeLane::next_deadline);
        let others = self.operations.poll_timeout().into_iter().chain(self.watch.next_timeout());
        until = timeouts.chain(lanes).chain(others).fold(until, Instant::min);
        let transports = &mut self.transports;
        self.sleeper.sleep(until, |token, readable, writable| {
            for transport in transports.iter_mut() {
                transport.handle_ready(token, readable, writable);
            }
        });
        for transport in &mut self.transports {
            transport.finish_sleep();
        }
        for lane in self.lanes.values_mut() {
            lane.finish_sleep();
        }
        self.recently = now();
        self.poll_transports();
        self.tick();
    }

    /// Deadlines, news from the control plane, peers that went away.
    fn tick(&mut self) {
        let now = now();
        if self.operations.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.operations.handle_timeout(now);
            self.act();
        }
        if !self.operations.is_idle() && now.since(self.moved_at) >= STALL {
            self.moved_at = now;
            self.transports.iter_mut().for_each(|transport| transport.tell_posted());
        }
        let blocked_on = || {
            let lanes = self.lanes.values().flat_map(NodeLane::waiting_for);
            self.operations.waiting_for().into_iter().chain(lanes).collect::<Vec<_>>()
        };
        if let Some((fault, announce)) = self.watch.tick(now, blocked_on) {
            self.fail(fault, announce);
        }
    }

    /// Ends everything with the first fault. Afterwards no memory lent to the engine is touched.
    pub(crate) fn fail(&mut self, fault: Arc<Fault>, announce: bool) {
        let Some(fault) = self.watch.fail(fault, announce) else { return };
        for transport in &mut self.transports {
            transport.cancel_all();
        }
        for lane in self.lanes.values_mut() {
            lane.cancel_all();
        }
        self.operations.handle_input(now(), OperationInput::Fault(Arc::clone(&fault)));
        while self.operations.poll_output().is_some() {}
        for running in std::mem::take(&mut self.running).into_values() {
            let Running { buffer, done, .. } = running;
            done.finish(Outcome { fault: Some(Arc::clone(&fault)), buffer });
        }
    }
}

/// What a lane is told of a launch.
fn node_call(
    op: OpId,
    launch: &Launch,
    root: Rank,
    kind: CollectiveKind,
    deadline: Instant,
) -> NodeCall {
    let (input, output) = (&launch.input, &launch.output);
    NodeCall {
        op,
        call: launch.call,
        kind,
        dtype: launch.dtype,
        reduce_op: Some(launch.op),
        root,
        input: input.part(0, input.len()),
        output: output.part(0, output.len()),
        deadline,
    }
}

impl Running {
    fn new(launch: Launch, done: Arc<Done>) -> Self {
        let Launch { call, dtype, op, average_over, class, endpoint, input, output, .. } = launch;
        Self {
            call,
            dtype,
            op,
            average_over,
            class,
            endpoint,
            input,
            output,
            scratch: LocalSlice::empty(),
            scratch_memory: Scratch::default(),
            buffer: launch.buffer,
            done,
        }
    }

    /// The memory of a span.
    fn part(&self, span: Span) -> LocalSlice {
        let area = match span.area {
            Area::Input => &self.input,
            Area::Output => &self.output,
            Area::Scratch => &self.scratch,
        };
        let bytes = |elements: u64| {
            usize::try_from(elements).expect("spans lie in memory") * self.dtype.size()
        };
        area.part(bytes(span.offset), bytes(span.len))
    }
}

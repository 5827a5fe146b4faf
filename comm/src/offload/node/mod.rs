//! Collectives inside one host: members copy into shared staging, fold straight out of it, and
//! copy back. No messages, no connections.
//!
//! Owns one lane of the host's segment per communicator whose members all live here. Never blocks:
//! the engine polls, and sleeps when nothing moves. Calls of a lane run strictly in order.
//!
//! **A call** is cut into chunks (`shape`), each of which passes up to three stages
//! (`stages`): copy in, fold, copy out. A member tells how far it is by counters (`lane`) and
//! begins a stage when all members' counters allow. Two staging buffers per member let it copy
//! the next chunk in while it waits for the others' parts of this one.
//!
//! **Contract.** Before a member publishes its first chunk of a call it writes the call down. No
//! byte of others is folded or copied out before all members have come and all calls have been
//! compared; if they differ, every member finds the same [`Fault::mismatch`].
//!
//! Invariant of the `unsafe` here and below: memory that a call lends is touched only while the
//! call is in the lane's queue, by the thread that polls; staging only as `lane.rs` says.
//!
//! **Order.** Contributions are folded in member order, each element once, so results are the
//! same bits on all members and for all sizes.

mod lane;
mod running;
mod shape;
mod stages;
mod wake;

use crate::memory::LocalSlice;
use crate::time::now;
use crate::transport::shm::NodeSegment;
use crate::transport::shm::bell::Word;
use lane::{Lane, Stage};
use running::Running;
use shape::Shape;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use syncline_kernels::{DType, ReduceOp};
use syncline_proto::call::{Call, CollectiveKind, RankCall};
use syncline_proto::fault::{Fault, FaultKind};
use syncline_proto::id::{OpId, Rank};
use syncline_proto::time::Instant;

/// Bytes a poll moves before it returns, so that nobody else starves.
const POLL_BYTES: usize = 1 << 20;

/// A lane of the segment. All members of a communicator use the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneId {
    /// Which, `0..LANES`.
    pub index: u32,
    /// Counted up each time the lane passes to another communicator, which must not happen
    /// before all members of the last have closed it.
    pub generation: u16,
}

/// A member of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneMember {
    /// Its place in the segment.
    pub local_index: u32,
    /// World rank, for errors.
    pub rank: Rank,
}

/// A collective to run.
///
/// `input` is what this member contributes and `output` where its result goes; either is empty
/// where the kind has none on this member. In place, `input` is empty and the contribution lies in
/// `output`, where the result will be: all of it (all_reduce, broadcast, reduce on the root), or
/// this member's block of it (all_gather, gather on the root). all_to_all, reduce_scatter and
/// scatter are never in place.
#[derive(Debug)]
pub struct NodeCall {
    /// Comes back at the end.
    pub op: OpId,
    /// What members compare.
    pub call: Call,
    /// Which collective.
    pub kind: CollectiveKind,
    /// Of the elements.
    pub dtype: DType,
    /// For those that reduce.
    pub reduce_op: Option<ReduceOp>,
    /// Member index, for those that have one.
    pub root: u32,
    /// What this member contributes.
    pub input: LocalSlice,
    /// Where its result goes.
    pub output: LocalSlice,
    /// When it fails with [`FaultKind::Timeout`].
    pub deadline: Instant,
}

/// What happened on a lane.
#[derive(Debug)]
pub enum NodeEvent {
    /// A call is over; its memory is the caller's again.
    Finished {
        /// Which.
        op: OpId,
        /// How. After an error the lane is unusable, and calls behind this one fail likewise.
        result: Result<(), Arc<Fault>>,
    },
}

/// One member's end of a lane.
#[derive(Debug)]
pub struct NodeLane {
    lane: Lane,
    ranks: Vec<Rank>,
    running: Option<Running>,
    queue: VecDeque<NodeCall>,
    /// The next call's number, and its first chunk's.
    next_number: u64,
    next_chunk: u64,
    /// Chunks below it are drained by all: those of calls before one that all have come to.
    floor: u64,
    broken: Option<Arc<Fault>>,
}

impl NodeLane {
    /// Opens a lane for the members of a communicator, in its rank order; this rank is member
    /// `me`. Every member opens it before its first call, in any order.
    ///
    /// # Panics
    /// If there is no such lane, or a member is not of the segment, or `me` is not this rank.
    pub fn open(segment: Arc<NodeSegment>, id: LaneId, members: &[LaneMember], me: u32) -> Self {
        let locals: Vec<u32> = members.iter().map(|member| member.local_index).collect();
        Self {
            lane: Lane::new(segment, id, &locals, me),
            ranks: members.iter().map(|member| member.rank).collect(),
            running: None,
            queue: VecDeque::new(),
            next_number: 0,
            next_chunk: 0,
            floor: 0,
            broken: None,
        }
    }

    /// Whether a lane of so many members can run such a call, of any type and size. The answer
    /// depends on nothing that members could see differently.
    pub fn supports(kind: CollectiveKind, members: u32) -> bool {
        Shape::supports(kind, members)
    }

    /// Queues a call, and begins it if it is the first.
    ///
    /// # Panics
    /// If the kind is not supported, or `input` and `output` do not fit it; see [`NodeCall`].
    pub fn start(&mut self, call: NodeCall) {
        call.check(self.lane.me(), self.lane.size());
        self.queue.push_back(call);
        if self.broken.is_none() && self.running.is_none() {
            self.begin_next();
        }
    }

    /// The running call, or the last in the queue, ends by then.
    pub fn set_deadline(&mut self, deadline: Instant) {
        let running = self.running.iter_mut().map(|running| &mut running.call);
        if let Some(call) = self.queue.back_mut().or_else(|| running.last()) {
            call.deadline = deadline;
        }
    }

    /// Does what can be done now and appends what ended; whether anything moved.
    #[inline]
    pub fn poll(&mut self, now: Instant, events: &mut Vec<NodeEvent>) -> bool {
        if self.running.is_none() && self.queue.is_empty() {
            return false;
        }
        self.poll_busy(now, events)
    }

    /// Arranges to be rung when something can move. `false`: it can already.
    pub fn prepare_sleep(&mut self) -> bool {
        let Some(running) = &self.running else { return self.queue.is_empty() };
        self.lane.prepare_sleep(running.waits_for());
        !self.can_move()
    }

    /// The engine is awake again.
    pub fn finish_sleep(&mut self) {
        if self.running.is_some() {
            self.lane.finish_sleep();
        }
    }

    /// Forgets every call. Afterwards none of their memory is touched, and the lane is unusable:
    /// later calls fail.
    pub fn cancel_all(&mut self) {
        self.running = None;
        self.queue.clear();
        let rank = self.ranks[self.lane.me() as usize];
        let cancelled = || Arc::new(Fault::new(FaultKind::Aborted, rank, "the lane was cancelled"));
        self.broken.get_or_insert_with(cancelled);
    }

    /// World ranks that the running call waits for.
    pub fn waiting_for(&self) -> Vec<Rank> {
        let Some(running) = &self.running else { return Vec::new() };
        let ranks = self.behind(running).into_values().flatten();
        BTreeSet::from_iter(ranks).into_iter().collect()
    }

    /// The earliest deadline of the calls here.
    pub fn next_deadline(&self) -> Option<Instant> {
        let running = self.running.iter().map(|running| running.call.deadline);
        running.chain(self.queue.iter().map(|call| call.deadline)).min()
    }

    /// Runs one call to its end on the calling thread, which yields after `spins` fruitless polls:
    /// for measurements and tests, which have no engine. `input` and `output` as in [`NodeCall`].
    ///
    /// # Errors
    /// As the call's; [`FaultKind::Timeout`] after `limit`.
    ///
    /// # Panics
    /// As [`NodeLane::start`].
    #[doc(hidden)]
    pub fn run(
        &mut self,
        args: RunArgs,
        input: &[u8],
        output: &mut [u8],
        limit: Duration,
    ) -> Result<(), Arc<Fault>> {
        let RunArgs { call, kind, dtype, reduce_op, root, spins } = args;
        // SAFETY: both borrows outlive this function, which returns only after the call's end or,
        // should it unwind, after `CancelOnDrop`; an input is never written.
        let lend = |start: *mut u8, len| unsafe { LocalSlice::new(start, len) };
        let deadline = now() + limit;
        let guard = CancelOnDrop(self);
        guard.0.start(NodeCall {
            op: OpId(call.seq),
            call,
            kind,
            dtype,
            reduce_op,
            root,
            input: lend(input.as_ptr().cast_mut(), input.len()),
            output: lend(output.as_mut_ptr(), output.len()),
            deadline,
        });
        let mut events = Vec::new();
        let mut fruitless = 0_u32;
        let result = loop {
            if let Some(NodeEvent::Finished { result, .. }) = events.pop() {
                break result;
            }
            if guard.0.poll(now(), &mut events) {
                fruitless = 0;
            } else if fruitless < spins {
                fruitless += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        };
        std::mem::forget(guard);
        result
    }

    fn poll_busy(&mut self, now: Instant, events: &mut Vec<NodeEvent>) -> bool {
        let mut progressed = false;
        let mut bytes = 0;
        while bytes < POLL_BYTES && self.broken.is_none() {
            let Some(moved) = self.advance() else { break };
            progressed = true;
            bytes += moved;
            if let Some(over) = self.running.take_if(|running| running.is_over()) {
                events.push(NodeEvent::Finished { op: over.call.op, result: Ok(()) });
                self.begin_next();
            }
        }
        if !progressed && self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.time_out(now);
        }
        match self.broken.clone() {
            Some(fault) => {
                self.fail_all(&fault, events);
                true
            }
            None => progressed,
        }
    }

    fn begin_next(&mut self) {
        let Some(call) = self.queue.pop_front() else { return };
        let size = self.lane.size();
        let block = call.block_bytes(size);
        let shape = Shape::new(call.kind, block, size, self.lane.chunk_bytes());
        let running = Running::new(call, shape, self.next_number, self.next_chunk);
        self.next_number += 1;
        self.next_chunk += running.shape.chunks;
        let running = self.running.insert(running);
        // Others may wait for this member already.
        if size > 1 && running.can_copy(&mut self.lane, self.floor) {
            running.copy_next(&self.lane);
        }
    }

    /// One stage of one chunk, the oldest that can begin; the bytes it moved.
    fn advance(&mut self) -> Option<usize> {
        let running = self.running.as_mut()?;
        let lane = &mut self.lane;
        if lane.size() == 1 {
            running.finish_alone();
        } else if !running.is_checked && running.all_have_come(lane) {
            self.check_calls();
            return Some(0);
        } else if running.is_checked && running.can_drain(lane) {
            running.drain_next(lane);
        } else if running.is_checked && running.can_fold(lane) {
            running.fold_next(lane);
        } else if running.can_copy(lane, self.floor) {
            running.copy_next(lane);
        } else {
            return None;
        }
        Some(running.shape.slice)
    }

    /// Whether [`NodeLane::advance`] would do something.
    fn can_move(&mut self) -> bool {
        let Some(running) = &self.running else { return false };
        let lane = &mut self.lane;
        let can_go_on = match running.is_checked {
            false => running.all_have_come(lane),
            true => running.can_drain(lane) || running.can_fold(lane),
        };
        can_go_on || self.broken.is_some() || running.can_copy(lane, self.floor)
    }

    /// All members have come to the running call: they must have made the same.
    fn check_calls(&mut self) {
        let Some(running) = &mut self.running else { return };
        let (number, size) = (running.number, self.lane.size());
        if (0..size).all(|member| self.lane.is_same_call(member, number)) {
            running.is_checked = true;
            self.floor = running.first;
            return;
        }
        let mine = running.call.call;
        let calls = (0..size).map(|member| self.lane.read_call(member, number, &mine));
        self.broken = Some(Arc::new(mismatch(&self.ranks, &calls.collect::<Vec<_>>())));
    }

    fn time_out(&mut self, now: Instant) {
        let Some(running) = &self.running else { return };
        let rank = self.ranks[self.lane.me() as usize];
        let behind = self.behind(running);
        let mut culprits: Vec<Rank> = behind.values().flatten().copied().collect();
        culprits.dedup();
        let clauses = behind.iter().map(|(why, ranks)| {
            let ranks: Vec<String> = ranks.iter().map(Rank::to_string).collect();
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            format!("{noun} {}, which {why}", ranks.join(", "))
        });
        let detail = format!("waiting for {}", clauses.collect::<Vec<_>>().join(", and for "));
        // A call further back may be the one whose deadline has passed.
        let late = std::iter::once(&running.call).chain(&self.queue);
        let late = late.into_iter().find(|call| call.deadline <= now).unwrap_or(&running.call);
        let mut fault = Fault::new(FaultKind::Timeout, rank, detail).with_call(late.call);
        if let [culprit] = culprits[..] {
            fault = fault.with_culprit(culprit);
        }
        fault.bytes_done = running.bytes_done();
        fault.bytes_total = running.shape.block as u64;
        self.broken = Some(Arc::new(fault));
    }

    /// Who is behind what the running call waits for, by what they have not done.
    fn behind(&self, running: &Running) -> BTreeMap<&'static str, Vec<Rank>> {
        let mut behind: BTreeMap<_, Vec<Rank>> = BTreeMap::new();
        for (stage, count) in Stage::ALL.into_iter().zip(running.waits_for()) {
            let why = match stage {
                Stage::Copied if !running.is_checked => "have not entered the call",
                Stage::Copied => "have not copied in their data",
                Stage::Reduced => "have not reduced their part",
                Stage::Drained => "have not taken out what is reduced",
            };
            // Before all have come the other counts say nothing.
            if count == u64::MAX || !running.is_checked && stage != Stage::Copied {
                continue;
            }
            for member in 0..self.lane.size() {
                if member != self.lane.me() && self.lane.count(member, stage) < count {
                    behind.entry(why).or_default().push(self.ranks[member as usize]);
                }
            }
        }
        behind
    }

    fn fail_all(&mut self, fault: &Arc<Fault>, events: &mut Vec<NodeEvent>) {
        let running = self.running.take().map(|running| running.call);
        for call in running.into_iter().chain(self.queue.drain(..)) {
            events.push(NodeEvent::Finished { op: call.op, result: Err(Arc::clone(fault)) });
        }
    }
}

/// What [`NodeLane::run`] runs, but for the memory.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunArgs {
    pub call: Call,
    pub kind: CollectiveKind,
    pub dtype: DType,
    pub reduce_op: Option<ReduceOp>,
    pub root: u32,
    pub spins: u32,
}

struct CancelOnDrop<'a>(&'a mut NodeLane);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.0.cancel_all();
    }
}

impl NodeCall {
    /// Bytes of the call's blocks: of all the data for all_reduce, reduce and broadcast, per
    /// member for the rest.
    fn block_bytes(&self, size: u32) -> usize {
        use CollectiveKind as Kind;
        let (input, output) = (self.input.len(), self.output.len());
        match self.kind {
            Kind::Barrier | Kind::SendRecv | Kind::Split => 0,
            Kind::AllReduce | Kind::Broadcast | Kind::ReduceScatter | Kind::Scatter => output,
            Kind::Reduce => input.max(output),
            Kind::AllGather | Kind::AllToAll => output / size as usize,
            Kind::Gather => input.max(output / size as usize),
        }
    }

    /// # Panics
    /// If the memory does not fit the kind.
    fn check(&self, me: u32, size: u32) {
        use CollectiveKind as Kind;
        assert!(Shape::supports(self.kind, size), "{} on a lane of {size}", self.kind);
        assert!(self.root < size, "root {} of {size}", self.root);
        let (input, output) = (self.input.len(), self.output.len());
        let block = self.block_bytes(size);
        let all = block.checked_mul(size as usize).expect("blocks lie in memory");
        let is_root = self.root == me;
        let or_in_place = |len: usize| [0, len];
        let (inputs, outputs) = match self.kind {
            Kind::AllReduce => (or_in_place(block), [block; 2]),
            Kind::Reduce if is_root => (or_in_place(block), [block; 2]),
            Kind::Reduce => ([block; 2], [0; 2]),
            Kind::Broadcast if is_root => (or_in_place(block), [block; 2]),
            Kind::Broadcast => ([0; 2], [block; 2]),
            Kind::AllGather => (or_in_place(block), [all; 2]),
            Kind::Gather if is_root => (or_in_place(block), [all; 2]),
            Kind::Gather => ([block; 2], [0; 2]),
            Kind::AllToAll => ([all; 2], [all; 2]),
            Kind::ReduceScatter => ([all; 2], [block; 2]),
            Kind::Scatter if is_root => ([all; 2], [block; 2]),
            Kind::Scatter => ([0; 2], [block; 2]),
            Kind::Barrier | Kind::SendRecv | Kind::Split => ([0; 2], [0; 2]),
        };
        let fits = inputs.contains(&input) && outputs.contains(&output);
        assert!(fits, "{} with {input} bytes in and {output} bytes out", self.kind);
        assert!(block.is_multiple_of(self.dtype.size()), "{block} bytes of {}", self.dtype);
    }
}

/// The fault of members that made different calls: the first that differs from the call most of
/// them made, the earlier on a tie, is at fault. The same on every member.
fn mismatch(ranks: &[Rank], calls: &[Call]) -> Fault {
    let votes = |call: &Call| calls.iter().filter(|other| *other == call).count();
    let best = calls.iter().map(votes).max().unwrap_or(0);
    let usual = calls.iter().position(|call| votes(call) == best).unwrap_or(0);
    let odd = calls.iter().position(|call| *call != calls[usual]).unwrap_or(usual);
    let other = RankCall { rank: ranks[odd], call: calls[odd] };
    Fault::mismatch(ranks[usual], calls[usual], other)
}

#[cfg(test)]
mod tests;

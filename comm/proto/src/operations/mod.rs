//! Every plan-driven operation of one rank: contract, deadline, abort.
//!
//! Starts plans, checks that peers made the same call, watches deadlines, and ends everything
//! with the first fault. Never touches memory or a wire: the driver moves the bytes that
//! [`OperationOutput::Post`] names and reports back. Driven by the engine and by the simulator.

use crate::call::{Call, CollectiveKind, Fingerprint, RankCall};
use crate::collective::machine::{Direction, PlanMachine, PlanOutput, Transfer};
use crate::collective::{Plan, Step};
use crate::fault::{Fault, FaultKind};
use crate::id::{CommId, OpId, Rank};
use crate::machine::Machine;
use crate::time::Instant;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// How many finished calls are remembered, to tell a late frame of an agreeing peer from one of
/// a peer that made another call.
const HISTORY: usize = 256;

/// A new operation.
#[derive(Debug)]
pub struct Start {
    /// Chosen by the driver, never reused.
    pub op: OpId,
    /// What it is.
    pub call: Call,
    /// What this rank does.
    pub plan: Plan,
    /// World ranks of the communicator, by its ranks.
    pub members: Arc<[Rank]>,
    /// Elements per chunk; the same on all ranks.
    pub chunk_len: u64,
    /// Bytes per element.
    pub element_bytes: u64,
    /// When it fails with [`FaultKind::Timeout`].
    pub deadline: Instant,
}

/// What happens to operations.
#[derive(Debug)]
pub enum OperationInput {
    /// A frame arrived whose message nobody here has posted. Peers that made another call are
    /// found out by it. `peer` is a world rank.
    Arrived {
        /// Who sent it.
        peer: Rank,
        /// What the sender called.
        call: Call,
    },
    /// A transfer is done.
    Completed {
        /// Of which operation.
        op: OpId,
        /// As posted.
        transfer: Transfer,
    },
    /// A fault from elsewhere: announced by a peer, or seen by a transport.
    Fault(Arc<Fault>),
    /// Begin.
    Start(Start),
}

/// What the driver must do.
#[derive(Debug)]
pub enum OperationOutput {
    /// Tell every rank. Comes once, before the `Finished` of the operations it ends.
    Announce(Arc<Fault>),
    /// The operation is over. After an error, no transfer of it may touch memory any more.
    Finished {
        /// Which.
        op: OpId,
        /// How.
        result: Result<(), Arc<Fault>>,
    },
    /// A copy or reduction inside this rank, before the next output.
    Local {
        /// Of which operation.
        op: OpId,
        /// What.
        step: Step,
    },
    /// Start a transfer. `peer` is the world rank.
    Post {
        /// Of which operation.
        op: OpId,
        /// World rank.
        peer: Rank,
        /// What; its `peer` is the communicator's rank.
        transfer: Transfer,
    },
}

#[derive(Debug)]
struct Operation {
    call: Call,
    members: Arc<[Rank]>,
    machine: PlanMachine,
    element_bytes: u64,
    deadline: Instant,
    elements_received: u64,
    /// Per peer (communicator rank): receives posted less receives completed.
    waiting_for: BTreeMap<Rank, u64>,
}

/// All operations of one rank.
#[derive(Debug)]
pub struct Operations {
    rank: Rank,
    running: BTreeMap<OpId, Operation>,
    /// Calls running or finished lately, to check arrivals against.
    calls: BTreeMap<(CommId, u64), Fingerprint>,
    history: VecDeque<(CommId, u64)>,
    /// The highest collective begun on each communicator: what is much older is forgotten.
    newest: BTreeMap<CommId, u64>,
    /// Arrivals that no call here has claimed yet.
    early: BTreeMap<(CommId, u64), Vec<RankCall>>,
    fault: Option<Arc<Fault>>,
    outputs: VecDeque<OperationOutput>,
}

impl Operations {
    /// For the process with this world rank.
    pub fn new(rank: Rank) -> Self {
        Self {
            rank,
            running: BTreeMap::new(),
            calls: BTreeMap::new(),
            history: VecDeque::new(),
            newest: BTreeMap::new(),
            early: BTreeMap::new(),
            fault: None,
            outputs: VecDeque::new(),
        }
    }

    /// The fault that ended everything, if one has.
    pub fn fault(&self) -> Option<&Arc<Fault>> {
        self.fault.as_ref()
    }

    /// Whether any operation is running.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// The call of a running operation.
    pub fn call(&self, op: OpId) -> Option<Call> {
        self.running.get(&op).map(|operation| operation.call)
    }

    /// World ranks that running operations have receives outstanding from.
    pub fn waiting_for(&self) -> Vec<Rank> {
        let mut ranks: Vec<_> = self.running.values().flat_map(Operation::blocked_on).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    fn start(&mut self, start: Start) {
        let Start { op, call, plan, members, chunk_len, element_bytes, deadline } = start;
        if let Some(fault) = &self.fault {
            let result = Err(Arc::clone(fault));
            self.outputs.push_back(OperationOutput::Finished { op, result });
            return;
        }
        // Point-to-point messages have sequences of their own, checked message by message.
        let is_collective = call.fingerprint.kind != CollectiveKind::SendRecv as u8;
        if is_collective {
            self.calls.insert((call.comm, call.seq), call.fingerprint);
            let newest = self.newest.entry(call.comm).or_default();
            *newest = call.seq.max(*newest);
        }
        self.running.insert(
            op,
            Operation {
                call,
                members,
                machine: PlanMachine::new(plan, chunk_len),
                element_bytes,
                deadline,
                elements_received: 0,
                waiting_for: BTreeMap::new(),
            },
        );
        if is_collective {
            for theirs in self.early.remove(&(call.comm, call.seq)).unwrap_or_default() {
                self.compare(call, theirs);
            }
        }
        if self.fault.is_none() {
            self.advance(op);
        }
    }

    fn compare(&mut self, mine: Call, theirs: RankCall) {
        if mine.fingerprint != theirs.call.fingerprint {
            self.fail(Arc::new(Fault::mismatch(self.rank, mine, theirs)), true);
        }
    }

    fn arrived(&mut self, peer: Rank, call: Call) {
        let key = (call.comm, call.seq);
        let theirs = RankCall { rank: peer, call };
        match self.calls.get(&key) {
            Some(fingerprint) => self.compare(Call { fingerprint: *fingerprint, ..call }, theirs),
            // A late word about a call that all have long finished.
            None if self.newest.get(&call.comm).is_some_and(|newest| call.seq <= *newest) => {}
            None => {
                let early = self.early.entry(key).or_default();
                if !early.contains(&theirs) {
                    early.push(theirs);
                }
            }
        }
    }

    fn completed(&mut self, op: OpId, transfer: Transfer) {
        let Some(operation) = self.running.get_mut(&op) else { return };
        if matches!(transfer.direction, Direction::Recv(_)) {
            operation.elements_received += transfer.span.len;
            if let Some(count) = operation.waiting_for.get_mut(&transfer.peer) {
                *count -= 1;
            }
        }
        operation.machine.handle_completed(&transfer);
        self.advance(op);
    }

    fn advance(&mut self, op: OpId) {
        let Some(operation) = self.running.get_mut(&op) else { return };
        while let Some(output) = operation.machine.poll_output() {
            match output {
                PlanOutput::Finished => {
                    let call = operation.call;
                    self.running.remove(&op);
                    self.remember(call);
                    self.outputs.push_back(OperationOutput::Finished { op, result: Ok(()) });
                    return;
                }
                PlanOutput::Local(step) => {
                    self.outputs.push_back(OperationOutput::Local { op, step });
                }
                PlanOutput::Post(transfer) => {
                    if matches!(transfer.direction, Direction::Recv(_)) {
                        *operation.waiting_for.entry(transfer.peer).or_default() += 1;
                    }
                    let peer = operation.members[transfer.peer as usize];
                    self.outputs.push_back(OperationOutput::Post { op, peer, transfer });
                }
            }
        }
    }

    fn remember(&mut self, call: Call) {
        if call.fingerprint.kind == CollectiveKind::SendRecv as u8 {
            return;
        }
        self.history.push_back((call.comm, call.seq));
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.calls.remove(&oldest);
        }
    }

    /// Ends everything with the first fault; later ones change nothing.
    fn fail(&mut self, fault: Arc<Fault>, announce: bool) {
        if self.fault.is_some() {
            return;
        }
        self.fault = Some(Arc::clone(&fault));
        self.outputs.retain(|o| matches!(o, OperationOutput::Finished { .. }));
        if announce {
            self.outputs.push_back(OperationOutput::Announce(Arc::clone(&fault)));
        }
        for op in core::mem::take(&mut self.running).into_keys() {
            let result = Err(Arc::clone(&fault));
            self.outputs.push_back(OperationOutput::Finished { op, result });
        }
    }
}

impl Operation {
    /// World ranks with receives outstanding.
    fn blocked_on(&self) -> impl Iterator<Item = Rank> + '_ {
        let outstanding = self.waiting_for.iter().filter(|(_, count)| **count > 0);
        outstanding.map(|(peer, _)| self.members[*peer as usize])
    }

    fn timeout_fault(&self, rank: Rank) -> Fault {
        let blocked: Vec<Rank> = self.blocked_on().collect();
        let total = self.machine.plan().elements_received();
        let detail = if blocked.is_empty() {
            String::from("all data received, a peer does not take ours")
        } else {
            format!("waiting for data from {}", RankList(&blocked))
        };
        Fault {
            culprit: if let [only] = blocked[..] { Some(only) } else { None },
            bytes_done: self.elements_received * self.element_bytes,
            bytes_total: total * self.element_bytes,
            ..Fault::new(FaultKind::Timeout, rank, detail).with_call(self.call)
        }
    }
}

impl Machine for Operations {
    type Input = OperationInput;
    type Output = OperationOutput;

    fn handle_input(&mut self, _now: Instant, input: OperationInput) {
        match input {
            OperationInput::Arrived { peer, call } => self.arrived(peer, call),
            OperationInput::Completed { op, transfer } => self.completed(op, transfer),
            OperationInput::Fault(fault) => self.fail(fault, false),
            OperationInput::Start(start) => self.start(start),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        let late = self.running.values().filter(|o| o.deadline <= now).min_by_key(|o| o.deadline);
        if let Some(operation) = late {
            let fault = operation.timeout_fault(self.rank);
            self.fail(Arc::new(fault), true);
        }
    }

    fn poll_output(&mut self) -> Option<OperationOutput> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.running.values().map(|operation| operation.deadline).min()
    }
}

/// Ranks as `rank 3` or `ranks 1-3, 7`.
#[derive(Clone, Copy, Debug)]
pub struct RankList<'a>(pub &'a [Rank]);

impl core::fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        let mut first = true;
        for run in self.0.chunk_by(|a, b| *b == *a + 1) {
            if !core::mem::take(&mut first) {
                f.write_str(", ")?;
            }
            match run {
                [only] => write!(f, "{only}")?,
                [start, .., end] => write!(f, "{start}-{end}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

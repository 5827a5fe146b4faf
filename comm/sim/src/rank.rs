//! One simulated rank: its machines, its memory, its mail.

use crate::scenario::{Scenario, Step};
use std::collections::BTreeMap;
use syncline_kernels::{DType, ReduceOp, as_bytes, as_bytes_mut, reduce_bytes};
use syncline_proto::call::{Call, Fingerprint};
use syncline_proto::collective::machine::{Direction, Transfer};
use syncline_proto::collective::shape::{Extent, Shape, has_root};
use syncline_proto::collective::{Area, Fold, Plan, Span, Step as PlanStep, tuning};
use syncline_proto::fault::Fault;
use syncline_proto::id::{CommId, MessageId, OpId, Rank};
use syncline_proto::membership::{Member, Pace};
use syncline_proto::operations::{Operations, Start};
use syncline_proto::time::Instant;

/// How a call of a rank ended.
pub(crate) type Ended = Result<Vec<i64>, Fault>;

/// The value of element `index` of a rank's input.
pub(crate) fn input(rank: Rank, index: u64) -> i64 {
    i64::from(rank) * 1_000_003 + i64::try_from(index).expect("small") * 17 - 5000
}

#[derive(Debug)]
pub(crate) struct SimRank {
    pub(crate) rank: Rank,
    pub(crate) operations: Operations,
    pub(crate) member: Member,
    pub(crate) alive: bool,
    pub(crate) frozen: bool,
    /// Calls begun.
    pub(crate) begun: usize,
    /// Calls that ended, in order.
    pub(crate) ended: Vec<Ended>,
    areas: [Vec<i64>; 3],
    op: ReduceOp,
    call: Option<Call>,
    posted: BTreeMap<(Rank, MessageId), (OpId, Transfer)>,
    early: BTreeMap<(Rank, MessageId), (Call, Vec<i64>)>,
}

impl SimRank {
    pub(crate) fn new(rank: Rank, pace: Pace) -> Self {
        Self {
            rank,
            operations: Operations::new(rank),
            member: Member::new(rank, pace, Instant::ZERO),
            alive: true,
            frozen: false,
            begun: 0,
            ended: Vec::new(),
            areas: Default::default(),
            op: ReduceOp::Sum,
            call: None,
            posted: BTreeMap::new(),
            early: BTreeMap::new(),
        }
    }

    /// Whether it handles what happens.
    pub(crate) fn is_working(&self) -> bool {
        self.alive && !self.frozen
    }

    /// Makes the next call of the scenario: fills memory, gives what starts it.
    pub(crate) fn begin(&mut self, scenario: &Scenario, now: Instant) -> Start {
        let index = self.begun;
        self.begun += 1;
        let mut step = scenario.steps[index].clone();
        if scenario.faults.mismatch == Some((self.rank, index)) {
            step.count += 1;
        }
        let world_size = scenario.topology.world_size();
        let shape = Shape::uniform(step.count).with_root(step.root);
        let plan = tuning::plan(step.kind, step.algorithm, self.rank, &scenario.topology, &shape)
            .expect("the scenario draws supported calls");
        let extent = shape.extent(step.kind, self.rank, world_size).expect("it fits");
        self.fill(&step, extent, &plan);
        let call = call_of(&step, index);
        self.op = step.op;
        self.call = Some(call);
        Start {
            op: OpId(index as u64),
            call,
            plan,
            members: (0..world_size).collect(),
            chunk_len: scenario.chunk_len,
            element_bytes: 8,
            deadline: now + scenario.timeout,
        }
    }

    fn fill(&mut self, step: &Step, extent: Extent, plan: &Plan) {
        let values = |len: u64| (0..len).map(|i| input(self.rank, i)).collect::<Vec<_>>();
        let in_place = extent.input == 0
            && !matches!(step.kind, syncline_proto::call::CollectiveKind::Scatter);
        let output =
            if in_place { values(extent.output) } else { vec![i64::MIN; size(extent.output)] };
        self.areas = [values(extent.input), output, vec![i64::MIN; size(plan.scratch_len)]];
    }

    /// The call is over.
    pub(crate) fn end(&mut self, result: Result<(), Fault>) {
        let output = std::mem::take(&mut self.areas[1]);
        self.ended.push(result.map(|()| output));
        self.posted.clear();
        self.call = None;
    }

    pub(crate) fn call(&self) -> Option<Call> {
        self.call
    }

    pub(crate) fn message_id(&self, transfer: &Transfer) -> MessageId {
        let call = self.call.expect("transfers belong to a call");
        MessageId { comm: call.comm, seq: call.seq, step: transfer.tag, chunk: transfer.chunk }
    }

    /// The elements of a span, as they are now.
    pub(crate) fn read(&self, span: Span) -> Vec<i64> {
        self.areas[area(span.area)][range(span)].to_vec()
    }

    pub(crate) fn local(&mut self, step: PlanStep) {
        match step {
            PlanStep::Copy { source, target } => {
                let data = self.read(source);
                self.fold(target, Fold::Replace, &data);
            }
            PlanStep::Reduce { source, target } => {
                let data = self.read(source);
                self.fold(target, Fold::Reduce, &data);
            }
            PlanStep::ReduceMany { before, own, after, target } => {
                let parts = [before, own, after].map(|span| self.read(span)).concat();
                for (index, part) in parts.chunks(size(target.len).max(1)).enumerate() {
                    let fold = if index == 0 { Fold::Replace } else { Fold::Reduce };
                    self.fold(target, fold, part);
                }
            }
            PlanStep::Recv { .. } | PlanStep::Send { .. } => unreachable!("local steps only"),
        }
    }

    /// A receive is posted; what is complete if its message was here already.
    pub(crate) fn post_recv(
        &mut self,
        op: OpId,
        peer: Rank,
        transfer: Transfer,
    ) -> Option<Transfer> {
        let id = self.message_id(&transfer);
        let mine = self.call.expect("in a call");
        match self.early.remove(&(peer, id)) {
            Some((call, data)) if call.fingerprint == mine.fingerprint => {
                self.receive(transfer, &data);
                Some(transfer)
            }
            // The machine has compared the calls when the message came.
            Some(_) => None,
            None => {
                self.posted.insert((peer, id), (op, transfer));
                None
            }
        }
    }

    /// A message arrives: what it completes, or `None` if the machine must look at its call.
    pub(crate) fn deliver(
        &mut self,
        source: Rank,
        message: MessageId,
        call: Call,
        data: Vec<i64>,
    ) -> Option<(OpId, Transfer)> {
        let agrees = self.call.is_some_and(|mine| mine.fingerprint == call.fingerprint);
        match self.posted.remove(&(source, message)) {
            Some((op, transfer)) if agrees => {
                self.receive(transfer, &data);
                Some((op, transfer))
            }
            _ => {
                self.early.insert((source, message), (call, data));
                None
            }
        }
    }

    fn receive(&mut self, transfer: Transfer, data: &[i64]) {
        let Direction::Recv(fold) = transfer.direction else { unreachable!("a receive") };
        self.fold(transfer.span, fold, data);
    }

    fn fold(&mut self, span: Span, fold: Fold, data: &[i64]) {
        let target = &mut self.areas[area(span.area)][range(span)];
        match fold {
            Fold::Reduce => {
                reduce_bytes(DType::I64, self.op, as_bytes_mut(target), as_bytes(data));
            }
            Fold::Replace => target.copy_from_slice(data),
        }
    }
}

fn call_of(step: &Step, index: usize) -> Call {
    let fingerprint = Fingerprint {
        kind: step.kind as u8,
        dtype: DType::I64.code(),
        op: step.op.code(),
        algorithm: step.algorithm as u8,
        root: if has_root(step.kind) { step.root } else { Fingerprint::NO_ROOT },
        count: step.count,
    };
    Call { comm: CommId::WORLD, seq: index as u64, fingerprint }
}

fn area(area: Area) -> usize {
    match area {
        Area::Input => 0,
        Area::Output => 1,
        Area::Scratch => 2,
    }
}

fn size(elements: u64) -> usize {
    usize::try_from(elements).expect("simulated buffers are small")
}

fn range(span: Span) -> std::ops::Range<usize> {
    size(span.offset)..size(span.offset + span.len)
}

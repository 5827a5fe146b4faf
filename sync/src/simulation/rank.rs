//! One rank: its model, its tensors, and what it does at the moment.
//!
//! Owns the lending of tensors to the model, and the sums of what its steps cost. Called by the
//! driver.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::driver::Trainer;
use super::outcome::RankOutcome;
use crate::lockstep::TensorList;
use crate::model::{Event, ReduceId, SyncModel, Tensors, Timing};
use crate::server::osp::wire::Stage;

/// What a rank does, apart from being blocked in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Computing,
    Draining,
    EndingEpoch,
    EndingStep,
    Over,
}

/// What a rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Collect,
    Gather,
    /// A reduction that it asked for to wait for it.
    Reduce(ReduceId),
    /// Of this rank's shard.
    Reply(u32),
    /// To its last push of that stage.
    Stage(u32, Stage),
    /// A reduction that it had started before.
    Started(ReduceId),
}

/// A rank and its model.
#[derive(Debug)]
pub(super) struct Rank<M> {
    pub(super) model: M,
    pub(super) parameters: TensorList,
    pub(super) gradients: TensorList,
    pub(super) phase: Phase,
    /// What it waits for, and since when.
    pub(super) blocked: Option<(Wait, f64)>,
    /// When it started which reduction.
    pub(super) began: BTreeMap<ReduceId, f64>,
    /// Replies of each shard that were not asked for yet; empty before the first of any.
    pub(super) replies: Vec<VecDeque<Vec<u32>>>,
    /// When it pushed to which of OSP's servers.
    pub(super) pushed: BTreeMap<(u32, Stage), f64>,
    /// Their replies that were not asked for yet.
    pub(super) stage_replies: BTreeMap<(u32, Stage), Vec<u32>>,
    /// Steps that are over.
    pub(super) step: u64,
    /// Sum of this epoch's losses.
    pub(super) losses: f64,
    /// Loss of the step at hand.
    pub(super) loss: f32,
    pub(super) gathers: u64,
    pub(super) collects: u64,
    /// Actions of the step at hand.
    pub(super) actions: u64,
    /// When the step at hand began.
    pub(super) began_s: f64,
    /// Computation of the step at hand, in seconds.
    pub(super) compute_s: f64,
    /// Time blocked since that began.
    pub(super) exposed_s: f64,
    /// When the first measured step began.
    pub(super) measured_since: Option<f64>,
    pub(super) outcome: RankOutcome,
}

impl<M: SyncModel> Rank<M> {
    pub(super) fn new(model: M, parameters: TensorList) -> Self {
        let gradients = parameters.iter().map(|tensor| vec![0.0; tensor.len()]).collect();
        Self {
            model,
            parameters,
            gradients,
            phase: Phase::Computing,
            blocked: None,
            began: BTreeMap::new(),
            replies: Vec::new(),
            pushed: BTreeMap::new(),
            stage_replies: BTreeMap::new(),
            step: 0,
            losses: 0.0,
            loss: 0.0,
            gathers: 0,
            collects: 0,
            actions: 0,
            began_s: 0.0,
            compute_s: 0.0,
            exposed_s: 0.0,
            measured_since: None,
            outcome: RankOutcome::default(),
        }
    }

    /// Gives the model an event, with the gradients while a step ends.
    pub(super) fn handle(&mut self, event: Event) {
        let mut parameters: Vec<&mut [f32]> =
            self.parameters.iter_mut().map(Vec::as_mut_slice).collect();
        let gradients: Vec<&[f32]> = match self.phase {
            Phase::EndingStep => self.gradients.iter().map(Vec::as_slice).collect(),
            _ => Vec::new(),
        };
        let mut tensors = Tensors { parameters: &mut parameters, gradients: &gradients };
        self.model.handle_event(event, &mut tensors);
    }

    /// Computes the gradients of the step at hand; returns its loss.
    pub(super) fn compute_gradients(&mut self, index: u32, trainer: &mut dyn Trainer) -> f32 {
        trainer.gradients(index, self.step, &self.parameters, &mut self.gradients)
    }

    /// Tells the model that one gradient is there.
    pub(super) fn handle_ready(&mut self, tensor: usize, compute: Duration) {
        let gradients = [self.gradients[tensor].as_slice()];
        let mut tensors = Tensors { parameters: &mut [], gradients: &gradients };
        self.model.handle_event(Event::GradientReady { tensor, compute }, &mut tensors);
    }

    /// Whether it waits for this.
    pub(super) fn waits_for(&self, wait: Wait) -> bool {
        self.blocked.is_some_and(|(what, _)| what == wait)
    }

    /// Lets it go on, and says how long it was blocked, in seconds.
    pub(super) fn release(&mut self, now: f64) -> f64 {
        let blocked_s = self.blocked.take().map_or(0.0, |(_, since)| now - since);
        self.exposed_s += blocked_s;
        if self.measured_since.is_some() && self.phase != Phase::Draining {
            self.outcome.exposed_s += blocked_s;
        }
        blocked_s
    }

    /// Gives the model a reduction's end, for which it was blocked so long.
    pub(super) fn handle_reduced(
        &mut self,
        id: ReduceId,
        data: Vec<f32>,
        blocked_s: f64,
        now: f64,
    ) {
        let elapsed_s = self.began.remove(&id).map_or(blocked_s, |began| now - began);
        let timing = Timing { elapsed: duration(elapsed_s), blocked: duration(blocked_s) };
        self.handle(Event::Reduced { id, data, timing });
    }

    /// Gives the model the reply of one of OSP's servers, for which it was blocked so long.
    pub(super) fn handle_stage(
        &mut self,
        (server, stage): (u32, Stage),
        message: Vec<u32>,
        blocked_s: f64,
        now: f64,
    ) {
        let elapsed_s = self.pushed.remove(&(server, stage)).map_or(blocked_s, |began| now - began);
        let timing = Timing { elapsed: duration(elapsed_s), blocked: duration(blocked_s) };
        self.handle(Event::StageReplied { server, message, timing });
    }

    /// The next reply of this shard, if it is here.
    pub(super) fn take_reply(&mut self, server: u32) -> Option<Vec<u32>> {
        self.replies.get_mut(server as usize)?.pop_front()
    }

    /// Adds the step that is over to the sums, if it is to be measured.
    pub(super) fn count_step(&mut self) {
        self.step += 1;
        if self.measured_since.is_some() {
            let traffic = self.model.traffic();
            self.outcome.steps += 1;
            self.outcome.compute_s += self.compute_s;
            self.outcome.bytes += traffic.important_bytes + traffic.deferred_bytes;
            self.outcome.deferred_bytes += traffic.deferred_bytes;
            self.outcome.staleness += self.model.staleness();
        }
    }
}

/// As near as a duration comes; what is longer than any is the longest.
pub(super) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

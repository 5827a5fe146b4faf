//! OSP on a parameter server, the paper's own form: the worker.
//!
//! Owns what this worker knows of the servers' parameters, the bitmap of the step at hand, and the
//! trainer's copies. Never averages: the servers do ([`crate::server::osp`]). Built by
//! [`super::build`].
//!
//! ```text
//! step t  : computes with x(t)             while ICS(t-1) is under way
//! its end : 1  wait for the replies to ICS(t-1): w is at t everywhere
//!           2  push RS(t), wait: w(t+1) where important, and the bitmap of t+1
//!           3  x(t+1) = w where important, w(t) - provisional step (LGP) where deferred
//!           4  push ICS(t) on the background communicator
//! step t+1: ...
//! ```
//!
//! Bytes per step and rank: S(G) out and S(G) in, but for a server on the same rank, and the
//! moments where they are shipped ([`settings::MomentSource`]); of these, the part of S(G^i) is
//! exposed while ICS fits into the computation. What differs from the all-reduce form: the bitmap
//! splits a step later ([`super::osp::GibLag::Two`]), each worker clips its own gradient, and a
//! budget that falls to 0 leaves one more step with deferred slices.
//!
//! A rank that only serves ([`settings::Placement::Dedicated`]) keeps step with the workers: it
//! pushes nothing, with the same heads, and waits for replies without parameters. So it is never
//! ahead of them by more than they are of one another, and drains, agreements and comparisons come
//! at the same step everywhere. It learns the parameters when they are collected.
//!
//! Source: arXiv 2306.16926.

pub mod settings;

use std::collections::VecDeque;

use super::check::{self, Fingerprint};
use super::osp::budget::{BudgetPolicy, Decision};
use super::osp::correction::Before;
use super::osp::measure::{self, Measurements};
use super::worker::clip;
use super::{Action, Event, Job, Memory, StepEnded, SyncModel, Tensors, Timing, Traffic};
use crate::error::{Error, Result};
use crate::layout::{ELEMENT_BYTES, Layout, Slice};
use crate::optimiser::{Moments, StepSize};
use crate::server::osp::wire::{self, Head, Push, Stage};
use settings::{Assignment, MomentTransfer, OspServerConfig};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Ranks agree on what the epoch has shown.
    Agreeing,
    /// Ranks compare what they know of the servers.
    Checking,
    /// The servers' parameters are brought together.
    Collecting,
    /// Replies to the last ICS, with no step to follow.
    Draining,
    /// The trainer computes.
    Idle,
    /// Replies to the ICS of the step before.
    WaitingIcs,
    /// Replies to the RS of this step.
    WaitingRs,
}

/// Overlapped synchronous parallel, on a parameter server: one worker.
#[derive(Debug)]
pub struct OspServer {
    job: Job,
    config: OspServerConfig,
    layout: Layout,
    assignment: Assignment,
    transfer: MomentTransfer,
    /// The servers' parameters, as far as they are known here: on deferred slices a step behind
    /// while an ICS is under way.
    parameters: Vec<f32>,
    /// The servers' moments; up to rounding where they are reconstructed.
    moments: Moments,
    /// Updates before this model's first.
    updates: u64,
    /// Finished steps.
    step: u64,
    state: State,
    ended: StepEnded,
    /// What the gradients at hand are multiplied with.
    scale: f32,
    /// The bitmap of the last step: whether each slice was important.
    gib: Vec<bool>,
    /// That of the next.
    next: Vec<bool>,
    /// Step and rate of the ICS under way.
    ics: Option<(u64, f32)>,
    /// Replies to come to the stage at hand, and what those that are here cost.
    awaited: usize,
    timing: Timing,
    /// Whether anything was pushed since the last collection.
    is_open: bool,
    policy: Box<dyn BudgetPolicy>,
    decision: Decision,
    measurements: Measurements,
    actions: VecDeque<Action>,
}

impl OspServer {
    /// A worker at rest, whose servers hold these parameters and this memory.
    ///
    /// # Panics
    /// If the tensors are not those of `layout`.
    pub fn new(
        job: Job,
        config: OspServerConfig,
        layout: Layout,
        parameters: &[&mut [f32]],
        memory: Memory,
    ) -> Self {
        let flat: Vec<f32> = parameters.iter().flat_map(|tensor| tensor.iter().copied()).collect();
        assert_eq!(flat.len(), layout.len(), "the layout's parameters");
        let slices = layout.slices().len();
        let mut policy = config.osp.budget.policy(config.osp.ceiling);
        Self {
            assignment: Assignment::new(config.placement, job.world_size, &layout),
            transfer: config.moment_transfer(&job.optimiser),
            parameters: flat,
            moments: memory.moments,
            updates: memory.updates,
            step: 0,
            state: State::Idle,
            ended: StepEnded { learning_rate: 0.0, loss: 0.0, compute: Default::default() },
            scale: 1.0,
            gib: vec![true; slices],
            next: vec![true; slices],
            ics: None,
            awaited: 0,
            timing: Timing::default(),
            is_open: false,
            decision: policy.begin(layout.bytes()),
            policy,
            measurements: Measurements::default(),
            actions: VecDeque::new(),
            job,
            config,
            layout,
        }
    }

    /// What this worker knows of the servers' parameters, flat.
    pub fn known_parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// The bitmap of the last step: whether each slice was important.
    pub fn gib(&self) -> &[bool] {
        &self.gib
    }

    /// Whether this rank trains.
    fn is_worker(&self) -> bool {
        self.config.placement.server_only_rank() != Some(self.job.rank)
    }

    /// Slices of one server and one stage of the step whose bitmap is `gib`.
    fn slices(&self, which: usize, stage: Stage) -> impl Iterator<Item = &Slice> {
        let range = self.assignment.parts()[which].slices.clone();
        let flags = &self.gib[range.clone()];
        let slices = self.layout.slices()[range].iter().zip(flags);
        slices.filter(move |(_, flag)| **flag == (stage == Stage::Rs)).map(|(slice, _)| slice)
    }

    /// Elements of one server and one stage.
    fn stage_len(&self, which: usize, stage: Stage) -> usize {
        self.slices(which, stage).map(|slice| slice.len).sum()
    }

    /// Servers that take part in a stage: all in RS, those with deferred slices in ICS.
    fn takes_part(&self, which: usize, stage: Stage) -> bool {
        stage == Stage::Rs || self.stage_len(which, stage) > 0
    }

    fn reply_words(&self, which: usize, stage: Stage) -> usize {
        let values = match self.transfer {
            MomentTransfer::Shipped if self.job.optimiser.has_second_moment() => 3,
            MomentTransfer::Shipped => 2,
            _ => 1,
        };
        let flags = match stage {
            Stage::Rs => wire::flag_words(self.assignment.parts()[which].slices.len()),
            Stage::Ics => 0,
        };
        flags + if self.is_worker() { values * self.stage_len(which, stage) } else { 0 }
    }

    fn push(&mut self, stage: Stage, tensors: &Tensors<'_, '_>) {
        // Each rank begins at another server, so that no link gets the pushes of all at once.
        let count = self.assignment.parts().len();
        for which in (1..=count).map(|next| (self.job.rank as usize + next) % count) {
            if !self.takes_part(which, stage) {
                continue;
            }
            let mut body = Vec::new();
            for slice in self.slices(which, stage).filter(|_| self.is_worker()) {
                let gradient = &tensors.gradients[slice.tensor][slice.within()];
                body.extend(gradient.iter().map(|value| (value * self.scale).to_bits()));
            }
            let push = Push {
                stage,
                worker: self.job.rank,
                step: self.step,
                learning_rate: self.ended.learning_rate,
                budget: self.decision.bytes,
                words: u32::try_from(body.len()).expect("a server of under 2^32 parameters"),
            };
            self.actions.push_back(Action::PushStage {
                server: self.assignment.parts()[which].server,
                stage,
                head: Head::Push(push).encode(),
                body,
                reply_words: wire::HEAD_WORDS + self.reply_words(which, stage),
            });
        }
        self.is_open = true;
    }

    fn await_replies(&mut self, stage: Stage, state: State) {
        let parts = self.assignment.parts().iter().enumerate();
        let servers: Vec<u32> = parts
            .filter(|(which, _)| self.takes_part(*which, stage))
            .map(|(_, part)| part.server)
            .collect();
        self.awaited = servers.len();
        self.timing = Timing::default();
        self.actions.extend(servers.into_iter().map(|server| Action::AwaitStage { server, stage }));
        self.state = state;
    }

    fn handle_reply(
        &mut self,
        server: u32,
        message: &[u32],
        timing: Timing,
        tensors: &mut Tensors<'_, '_>,
    ) -> Result<()> {
        let (stage, step, rate) = match (self.state, self.ics) {
            (State::WaitingRs, _) => (Stage::Rs, self.step, self.ended.learning_rate),
            (State::WaitingIcs | State::Draining, Some((step, rate))) => (Stage::Ics, step, rate),
            (state, _) => panic!("a server replied in state {state:?}"),
        };
        let which = self.assignment.parts().iter().position(|part| part.server == server);
        let which = which.expect("a reply of a server that was asked");
        let words = self.reply_words(which, stage);
        let mut rest = wire::decode_reply(message, stage, server, step, words)?;
        if stage == Stage::Rs {
            let range = self.assignment.parts()[which].slices.clone();
            let (flags, values) = rest.split_at(wire::flag_words(range.len()));
            wire::decode_flags(flags, &mut self.next[range]);
            rest = values;
        }
        if self.is_worker() {
            self.take_state(which, stage, rate, rest);
        }
        self.timing.elapsed = self.timing.elapsed.max(timing.elapsed);
        self.timing.blocked = self.timing.blocked.saturating_add(timing.blocked);
        self.awaited -= 1;
        if self.awaited == 0 {
            self.finish_stage(tensors);
        }
        Ok(())
    }

    /// Takes in parameters, and moments, of the slices of one server and one stage.
    fn take_state(&mut self, which: usize, stage: Stage, rate: f32, values: &[u32]) {
        let slices: Vec<Slice> = self.slices(which, stage).copied().collect();
        let len: usize = slices.iter().map(|slice| slice.len).sum();
        let (parameters, moments) = values.split_at(len);
        // A rate of 0 shows nothing of the velocity, and without momentum nobody reads it.
        let is_reconstructed =
            self.transfer == MomentTransfer::Reconstructed && rate != 0.0 && rate.is_finite();
        let mut rest = parameters;
        for slice in &slices {
            let (values, later) = rest.split_at(slice.len);
            let known = &mut self.parameters[slice.flat()];
            if is_reconstructed {
                let velocity = &mut self.moments.first[slice.flat()];
                for ((v, old), bits) in velocity.iter_mut().zip(known.iter()).zip(values) {
                    *v = (old - f32::from_bits(*bits)) / rate;
                }
            }
            known.iter_mut().zip(values).for_each(|(w, bits)| *w = f32::from_bits(*bits));
            rest = later;
        }
        let mut rest = moments;
        for target in [&mut self.moments.first, &mut self.moments.second] {
            for slice in slices.iter().filter(|_| !rest.is_empty()) {
                let (values, later) = rest.split_at(slice.len);
                let known = &mut target[slice.flat()];
                known.iter_mut().zip(values).for_each(|(m, bits)| *m = f32::from_bits(*bits));
                rest = later;
            }
        }
    }

    /// All replies to a stage are here.
    fn finish_stage(&mut self, tensors: &mut Tensors<'_, '_>) {
        let is_overlapped = self.state != State::WaitingRs;
        let stage = if is_overlapped { Stage::Ics } else { Stage::Rs };
        self.measure(stage, is_overlapped);
        match self.state {
            State::WaitingIcs => {
                self.ics = None;
                self.begin_rs(tensors);
            }
            State::Draining => {
                self.ics = None;
                self.collect();
            }
            _ => self.finish_rs(tensors),
        }
    }

    /// As [`Measurements`] count, a rank moves 2 (N-1)/N of what it reduces; here it is as much as
    /// U_max's formula takes for the same slices.
    fn measure(&mut self, stage: Stage, is_overlapped: bool) {
        let ranks = f64::from(self.job.world_size);
        if self.job.world_size <= 1 || !self.is_worker() {
            return;
        }
        let parts = 0..self.assignment.parts().len();
        let len: usize = parts.map(|which| self.stage_len(which, stage)).sum();
        let bytes = (len * ELEMENT_BYTES) as u64;
        let workers = self.config.placement.workers(self.job.world_size);
        let moved = self.config.moved_bytes(bytes, workers);
        let counted = moved * ranks / (2.0 * (ranks - 1.0)) / ELEMENT_BYTES as f64;
        let counted = counted.round() as usize;
        self.measurements.transfer(counted, self.job.world_size, self.timing, is_overlapped);
    }

    /// Step 2.
    fn begin_rs(&mut self, tensors: &Tensors<'_, '_>) {
        self.gib.clone_from(&self.next);
        self.scale = clip(tensors.gradients, self.job.clip_norm);
        self.push(Stage::Rs, tensors);
        self.await_replies(Stage::Rs, State::WaitingRs);
    }

    /// Steps 3 and 4.
    fn finish_rs(&mut self, tensors: &mut Tensors<'_, '_>) {
        let size = StepSize {
            learning_rate: self.ended.learning_rate,
            gradient_scale: self.scale,
            updates: self.updates + self.step,
        };
        let slices = self.layout.slices().iter().zip(&self.gib);
        for (slice, is_important) in slices.filter(|_| self.is_worker()) {
            let target = &mut tensors.parameters[slice.tensor][slice.within()];
            let parameters = &self.parameters[slice.flat()];
            if *is_important {
                target.copy_from_slice(parameters);
            } else {
                let gradient = &tensors.gradients[slice.tensor][slice.within()];
                let moments = self.moments.range(slice.flat());
                let before = Before { parameters, moments, average: &[], gradient };
                self.config.osp.lgp.provisional(&self.job.optimiser, before, size, target);
            }
        }
        if self.gib.contains(&false) {
            self.push(Stage::Ics, tensors);
            self.ics = Some((self.step, self.ended.learning_rate));
        }
        self.step += 1;
        self.state = State::Idle;
        if self.job.check_is_due(self.step) {
            let words = vec![self.fingerprint()];
            self.actions.push_back(Action::Gather { words });
            self.state = State::Checking;
        }
    }

    /// With nothing under way: the servers' parameters, as they have them.
    fn collect(&mut self) {
        if std::mem::take(&mut self.is_open) {
            let head = Head::Done { worker: self.job.rank }.encode();
            let done = |server| Action::EndStages { server, head };
            self.actions.extend(self.assignment.parts().iter().map(|part| done(part.server)));
        }
        self.actions.push_back(Action::Collect);
        self.state = State::Collecting;
    }

    fn handle_collected(
        &mut self,
        parameters: Vec<f32>,
        versions: &[u64],
        tensors: &mut Tensors<'_, '_>,
    ) -> Result<()> {
        if versions.iter().any(|version| *version != self.step) {
            let step = self.step;
            let reason = format!("after {step} steps the servers are at versions {versions:?}");
            return Err(Error::Protocol { reason });
        }
        for slice in self.layout.slices() {
            let target = &mut tensors.parameters[slice.tensor][slice.within()];
            target.copy_from_slice(&parameters[slice.flat()]);
        }
        self.parameters = parameters;
        Ok(())
    }

    /// What all workers must know alike.
    fn fingerprint(&self) -> u64 {
        let mut print = Fingerprint::new(self.step);
        self.gib.iter().for_each(|flag| print.word(u64::from(*flag)));
        print.floats(&self.parameters);
        print.value()
    }

    fn or_fail(&mut self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.actions.clear();
            self.actions.push_back(Action::Fail(error));
        }
    }
}

impl SyncModel for OspServer {
    fn handle_event(&mut self, event: Event, tensors: &mut Tensors<'_, '_>) {
        match (self.state, event) {
            (State::Agreeing, Event::Gathered { words }) => {
                let workers = self.config.placement.workers(self.job.world_size);
                let seen = measure::agree(&words, workers, self.layout.bytes());
                self.decision = self.policy.decide(&seen);
                self.state = State::Idle;
            }
            (State::Checking, Event::Gathered { words }) => {
                let server_only = self.config.placement.server_only_rank();
                let ranks = check::disagreeing_but(&words, server_only);
                if !ranks.is_empty() {
                    let error = Error::ReplicasDiffer { step: self.step, ranks };
                    self.actions.push_back(Action::Fail(error));
                }
                self.state = State::Idle;
            }
            (State::Collecting, Event::Collected { parameters, versions }) => {
                self.state = State::Idle;
                let outcome = self.handle_collected(parameters, &versions, tensors);
                self.or_fail(outcome);
            }
            (State::Idle, Event::Drain) if self.ics.is_some() => {
                self.await_replies(Stage::Ics, State::Draining);
            }
            (State::Idle, Event::Drain) => self.collect(),
            (State::Idle, Event::EpochEnded { mean_loss }) => {
                let mean_loss = if self.is_worker() { mean_loss } else { 0.0 };
                let words = self.measurements.take_words(mean_loss);
                self.actions.push_back(Action::Gather { words });
                self.state = State::Agreeing;
            }
            (State::Idle, Event::StepEnded(ended)) => {
                if self.is_worker() {
                    self.measurements.step(&ended);
                }
                self.ended = ended;
                if self.ics.is_some() {
                    self.await_replies(Stage::Ics, State::WaitingIcs);
                } else {
                    self.begin_rs(tensors);
                }
            }
            (_, Event::StageReplied { server, message, timing }) => {
                let outcome = self.handle_reply(server, &message, timing, tensors);
                self.or_fail(outcome);
            }
            (state, event) => panic!("OSP does not wait for '{}' in {state:?}", event.name()),
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn staleness(&self) -> u64 {
        u64::from(self.ics.is_some())
    }

    fn traffic(&self) -> Traffic {
        let deferred = self.layout.slices().iter().zip(&self.gib).filter(|(_, flag)| !**flag);
        let deferred_bytes = deferred.map(|(slice, _)| slice.bytes()).sum();
        Traffic { important_bytes: self.layout.bytes() - deferred_bytes, deferred_bytes }
    }

    fn decision(&self) -> &Decision {
        &self.decision
    }
}

#[cfg(test)]
mod tests;

//! Local SGD: each rank makes some steps on its own, then all ranks average their parameters.
//!
//! Owns the count of steps since the last average, and this rank's optimiser. Never overlaps an
//! exchange with computation: [`super::Diloco`] does. Built by [`super::build`].
//!
//! ```text
//! step     1  2  3  4 | average | 5  6  7  8 | average | ...          every = 4
//! lacks    1  2  3        0       1  2  3        0                    steps of the other ranks
//! ```
//!
//! Per `every` steps: one blocking all_reduce of S(G) bytes; of two or three times as much where
//! the optimiser's moments are averaged too.
//!
//! With `every` at 1 and SGD without clipping, a step leaves the parameters of BSP up to rounding,
//! with momentum and decay as well, averaged or not: all of it is linear in the gradient, so that
//! the average of `w - r v_i` is `w - r` times the average of `v_i`. Adam and clipping are not
//! linear: each rank's own gradient is normalised or clipped before anything is averaged.
//!
//! A drain averages what is there, whenever it comes: replicas are equal after it, and the steps
//! of every rank count with 1/N each, as they do in all averages.

use std::collections::VecDeque;

use super::check::{self, Fingerprint};
use super::inner::Inner;
use super::osp::budget::Decision;
use super::{Action, Event, Job, Memory, ReduceId, SyncModel, Tensors, Traffic};
use crate::error::{Error, Result};
use crate::layout::ELEMENT_BYTES;

/// Settings of local SGD, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSgdConfig {
    /// Steps from one average to the next, at least 1. The default is ours.
    pub every: u64,
    /// Whether the optimiser's moments are averaged with the parameters. By default each rank
    /// keeps its own, which moves fewer bytes. A [`Event::Drain`] averages them in either case,
    /// so that one memory can go on to another model.
    pub averages_memory: bool,
}

impl Default for LocalSgdConfig {
    fn default() -> Self {
        Self { every: 8, averages_memory: false }
    }
}

impl LocalSgdConfig {
    /// Whether the settings can work.
    ///
    /// # Errors
    /// [`Error::Config`] that names the first setting that cannot.
    pub fn validate(&self) -> Result<()> {
        if self.every == 0 {
            let reason = "local SGD averages every 1 step or more, not every 0".to_owned();
            return Err(Error::Config { reason });
        }
        Ok(())
    }

    /// How many steps of other ranks a rank's parameters lack at most.
    pub fn staleness_bound(&self) -> u64 {
        self.every - 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The average that ends a round of local steps.
    Averaging,
    /// Ranks compare their replicas.
    Checking,
    /// The average of a drain.
    Draining,
    /// The trainer computes.
    Idle,
}

/// Local SGD of one rank.
#[derive(Debug)]
pub struct LocalSgd {
    job: Job,
    config: LocalSgdConfig,
    inner: Inner,
    stage: Stage,
    /// Finished steps.
    step: u64,
    /// Steps since the last average.
    since: u64,
    /// Steps finished at the last comparison of replicas.
    checked: u64,
    /// Whether parameters and memory are the same on all ranks.
    is_together: bool,
    next_id: ReduceId,
    traffic: Traffic,
    actions: VecDeque<Action>,
    decision: Decision,
}

impl LocalSgd {
    /// A model at rest, whose parameters and memory are the same on all ranks.
    pub fn new(job: Job, config: LocalSgdConfig, memory: Memory) -> Self {
        Self {
            job,
            config,
            inner: Inner::new(job, memory),
            stage: Stage::Idle,
            step: 0,
            since: 0,
            checked: 0,
            is_together: true,
            next_id: 0,
            traffic: Traffic::default(),
            actions: VecDeque::new(),
            decision: Decision::never(),
        }
    }

    fn average(&mut self, stage: Stage, tensors: &Tensors<'_, '_>) -> u64 {
        let has_moments = self.has_moments(stage);
        let data = self.inner.pack(tensors, has_moments);
        let bytes = (data.len() * ELEMENT_BYTES) as u64;
        self.actions.push_back(Action::Reduce { id: self.next_id, data });
        self.next_id += 1;
        self.stage = stage;
        bytes
    }

    /// Whether the average of this stage has the moments in it.
    fn has_moments(&self, stage: Stage) -> bool {
        stage == Stage::Draining || self.config.averages_memory
    }

    fn handle_reduced(&mut self, data: Vec<f32>, tensors: &mut Tensors<'_, '_>) {
        let has_moments = self.has_moments(self.stage);
        self.inner.unpack(data, tensors, has_moments);
        self.is_together = has_moments;
        self.since = 0;
        let is_due = self.stage == Stage::Averaging && self.check_is_due();
        self.stage = Stage::Idle;
        if is_due {
            self.checked = self.step;
            let mut print = Fingerprint::new(self.step);
            tensors.parameters.iter().for_each(|tensor| print.floats(tensor));
            if has_moments {
                print.floats(&self.inner.moments().first);
                print.floats(&self.inner.moments().second);
            }
            self.actions.push_back(Action::Gather { words: vec![print.value()] });
            self.stage = Stage::Checking;
        }
    }

    /// Whether a comparison has become due since the last one. Replicas differ between averages,
    /// so that it waits for the next one.
    fn check_is_due(&self) -> bool {
        let count = |step: u64| step.checked_div(self.job.check_every).unwrap_or(0);
        count(self.step) > count(self.checked)
    }
}

impl SyncModel for LocalSgd {
    fn handle_event(&mut self, event: Event, tensors: &mut Tensors<'_, '_>) {
        match (self.stage, event) {
            (Stage::Averaging | Stage::Draining, Event::Reduced { data, .. }) => {
                self.handle_reduced(data, tensors);
            }
            (Stage::Checking, Event::Gathered { words }) => {
                self.actions.extend(check::compare(self.step, &words).map(Action::Fail));
                self.stage = Stage::Idle;
            }
            (Stage::Idle, Event::Drain) => {
                if !self.is_together {
                    self.average(Stage::Draining, tensors);
                }
            }
            (Stage::Idle, Event::EpochEnded { .. }) => {}
            (Stage::Idle, Event::StepEnded(ended)) => {
                self.inner.step(&ended, tensors);
                self.step += 1;
                self.since += 1;
                self.is_together = false;
                self.traffic = Traffic::default();
                if self.since >= self.config.every {
                    self.traffic.important_bytes = self.average(Stage::Averaging, tensors);
                }
            }
            (stage, event) => panic!("local SGD does not wait for '{}' in {stage:?}", event.name()),
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn staleness(&self) -> u64 {
        self.since
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn decision(&self) -> &Decision {
        &self.decision
    }

    fn take_memory(&mut self) -> Option<Memory> {
        Some(self.inner.take_memory())
    }
}

#[cfg(test)]
mod tests;

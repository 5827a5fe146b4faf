//! Streaming DiLoCo: ranks train on their own, and bring the model together a fragment at a time,
//! while they go on.
//!
//! Owns the global copy of all parameters, the outer optimiser's velocity, and what is in flight.
//! Never has more than one fragment in flight: `delay < every / fragments`. Built by
//! [`super::build`].
//!
//! ```text
//! step            1    2    3    4    5    6    7    8        every 8, fragments 2, delay 1
//! fragment 0                     send take                    next: send 12, take 13
//! fragment 1                                         send     take 9, send 16
//!
//! send   outer gradient d = global - local, averaged over all ranks in the background
//! take   `delay` steps later: v = momentum v + d
//!                             global = global - rate (d + momentum v)          Nesterov
//!                             local = merge of local and global
//! ```
//!
//! Per fragment and `every` steps: one all_reduce of its bytes, hidden behind `delay` steps; with a
//! delay of 0 it blocks. Source: Streaming DiLoCo, arXiv 2501.18512, after summaries and code by
//! others; merging by differences: LOSCAR-SGD, arXiv 2605.20866. We depart from the former
//! in that outer gradients travel as 32-bit floats.
//!
//! With `every` 1, one fragment, no delay, an outer rate of 1 and no outer momentum, this is local
//! SGD with `every` 1 up to rounding: the global copy becomes the average of all local ones.
//!
//! # Drain
//! What is in flight is taken as usual. Then parameters and inner moments become the average over
//! all ranks, and so does the global copy: the steps of every rank since a fragment was last sent
//! count with 1/N, as an outer step of rate 1 without momentum. An outer step at the outer rate
//! would keep only that share of them. The outer velocity stays, the same on all ranks; it is lost
//! in a switch to another model, the inner memory is not.

mod fragment;

use std::collections::VecDeque;

use super::check::{self, Fingerprint};
use super::inner::Inner;
use super::osp::budget::Decision;
use super::{Action, Event, Job, Lane, Memory, ReduceId, SyncModel, Tensors, Traffic};
use crate::error::{Error, Result};
use crate::layout::{ELEMENT_BYTES, Layout};
use crate::optimiser::{Moments, Optimiser, Sgd, StepSize};
use fragment::Fragment;
pub use fragment::FragmentCut;

/// Most fragments of a model.
pub const MAX_FRAGMENTS: u32 = 4096;

/// How a rank goes on from its own parameters and new global ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Merge {
    /// `local = alpha local + (1 - alpha) global`, as in the paper: 0 overwrites. Of the steps
    /// that this rank made while the fragment was in flight, only a share of `alpha` is kept.
    Blend {
        /// Weight of the rank's own parameters, from 0 to below 1.
        alpha: f32,
    },
    /// `local = global + (local - what was sent)`: the steps in flight are kept whole.
    Delta,
}

/// Settings of Streaming DiLoCo, the same on every rank.
///
/// Of the defaults, the outer rate of 0.4, Nesterov's momentum, overwriting and a delay of at most
/// 5 are the paper's, by the summaries that we could read. The outer momentum of 0.9, `every`, the
/// number of fragments and their cut are ours; the paper strides three layers a fragment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DilocoConfig {
    /// Steps from one exchange of a fragment to its next.
    pub every: u64,
    /// Fragments, whose exchanges are spread over `every` steps: from 1 to `every`, and at most
    /// [`MAX_FRAGMENTS`].
    pub fragments: u32,
    /// Which parameters are a fragment.
    pub cut: FragmentCut,
    /// Steps that hide an exchange: `delay * fragments < every`.
    pub delay: u64,
    /// Learning rate of the outer optimiser, above 0.
    pub outer_rate: f32,
    /// Its momentum, from 0 to below 1.
    pub outer_momentum: f32,
    /// Whether that is Nesterov's.
    pub is_nesterov: bool,
    /// How a rank takes new global parameters.
    pub merge: Merge,
}

impl Default for DilocoConfig {
    fn default() -> Self {
        Self {
            every: 32,
            fragments: 4,
            cut: FragmentCut::Contiguous,
            delay: 5,
            outer_rate: 0.4,
            outer_momentum: 0.9,
            is_nesterov: true,
            merge: Merge::Blend { alpha: 0.0 },
        }
    }
}

impl DilocoConfig {
    /// Whether the settings can work.
    ///
    /// # Errors
    /// [`Error::Config`] that names the first setting that cannot.
    pub fn validate(&self) -> Result<()> {
        let Self { every, fragments, delay, outer_rate, outer_momentum, .. } = *self;
        let require = |holds: bool, reason: String| {
            if holds { Ok(()) } else { Err(Error::Config { reason: format!("DiLoCo: {reason}") }) }
        };
        let is_spread = fragments > 0 && fragments <= MAX_FRAGMENTS && every >= fragments.into();
        let rule = format!("from 1 to {MAX_FRAGMENTS} fragments, and one a step at most");
        require(is_spread, format!("{rule}, not {fragments} in {every} steps"))?;
        let is_hidden = delay.saturating_mul(fragments.into()) < every;
        let rule = "a delay is below every / fragments";
        require(is_hidden, format!("{rule}, not {delay} of {every} / {fragments}"))?;
        let is_positive = outer_rate.is_finite() && outer_rate > 0.0;
        require(is_positive, format!("the outer rate is above 0, not {outer_rate}"))?;
        let is_share = (0.0..1.0).contains(&outer_momentum);
        require(is_share, format!("the outer momentum lies in 0..1, not {outer_momentum}"))?;
        if let Merge::Blend { alpha } = self.merge {
            let is_share = (0.0..1.0).contains(&alpha);
            require(is_share, format!("the merge's alpha lies in 0..1, not {alpha}"))?;
        }
        Ok(())
    }

    /// How many steps of other ranks any of a rank's parameters lack at most.
    pub fn staleness_bound(&self) -> u64 {
        (self.every - 1).saturating_add(self.delay)
    }

    fn outer(&self) -> Optimiser {
        let Self { outer_momentum: momentum, is_nesterov, .. } = *self;
        Sgd { momentum, weight_decay: 0.0, is_nesterov }.into()
    }
}

/// An outer gradient under way.
#[derive(Debug)]
struct Flight {
    id: ReduceId,
    fragment: usize,
    /// Steps finished when it was sent.
    step: u64,
    /// This rank's parameters then; empty if the merge does not need them.
    sent: Vec<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The average of a drain.
    Averaging,
    /// Ranks compare their replicas.
    Checking,
    /// What was in flight when a drain came.
    DrainingFlight,
    /// The trainer computes.
    Idle,
    /// An outer gradient without delay.
    ReducingNow,
    /// An outer gradient whose delay is over.
    Taking,
}

/// Streaming DiLoCo of one rank.
#[derive(Debug)]
pub struct Diloco {
    job: Job,
    config: DilocoConfig,
    inner: Inner,
    fragments: Vec<Fragment>,
    /// Global parameters, flat; the same bits on all ranks.
    global: Vec<f32>,
    outer: Optimiser,
    /// The outer optimiser's; the same bits on all ranks.
    velocity: Moments,
    stage: Stage,
    /// Finished steps.
    step: u64,
    flight: Option<Flight>,
    /// Whether parameters and inner memory are the same on all ranks.
    is_together: bool,
    next_id: ReduceId,
    traffic: Traffic,
    /// Room for an outer gradient, while none is in flight.
    buffer: Vec<f32>,
    actions: VecDeque<Action>,
    decision: Decision,
}

impl Diloco {
    /// A model at rest, whose parameters and memory are the same on all ranks.
    ///
    /// # Panics
    /// If the tensors are not those of `layout`, or `config` is not valid.
    pub fn new(
        job: Job,
        config: DilocoConfig,
        layout: &Layout,
        parameters: &[&mut [f32]],
        memory: Memory,
    ) -> Self {
        let global: Vec<f32> =
            parameters.iter().flat_map(|tensor| tensor.iter().copied()).collect();
        assert_eq!(global.len(), layout.len(), "the layout's parameters");
        let outer = config.outer();
        Self {
            job,
            config,
            inner: Inner::new(job, memory),
            fragments: fragment::cut(layout, config.cut, config.fragments, config.every),
            velocity: Moments::new(&outer, global.len()),
            outer,
            global,
            stage: Stage::Idle,
            step: 0,
            flight: None,
            is_together: true,
            next_id: 0,
            traffic: Traffic::default(),
            buffer: Vec::new(),
            actions: VecDeque::new(),
            decision: Decision::never(),
        }
    }

    /// Global parameters, flat: what all ranks agree on.
    pub fn global_parameters(&self) -> &[f32] {
        &self.global
    }

    fn take_id(&mut self) -> ReduceId {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Sends the fragment whose turn it is, if any.
    fn send_due(&mut self, tensors: &Tensors<'_, '_>) {
        let (step, every) = (self.step, self.config.every);
        let Some(index) = self.fragments.iter().position(|part| part.is_due(step, every)) else {
            return self.check();
        };
        let fragment = &self.fragments[index];
        let mut data = std::mem::take(&mut self.buffer);
        data.clear();
        let mut sent = Vec::new();
        for part in &fragment.parts {
            let local = &tensors.parameters[part.tensor][part.within()];
            let global = &self.global[part.flat()];
            data.extend(global.iter().zip(local).map(|(global, local)| global - local));
            if self.config.merge == Merge::Delta {
                sent.extend_from_slice(local);
            }
        }
        let bytes = (data.len() * ELEMENT_BYTES) as u64;
        let id = self.take_id();
        self.flight = Some(Flight { id, fragment: index, step, sent });
        if self.config.delay == 0 {
            self.traffic.important_bytes = bytes;
            self.actions.push_back(Action::Reduce { id, data });
            self.stage = Stage::ReducingNow;
        } else {
            self.traffic.deferred_bytes = bytes;
            self.actions.push_back(Action::StartReduce { id, data, lane: Lane::Background });
            self.check();
        }
    }

    /// The outer step on a fragment whose averaged outer gradient is here, and its merge.
    fn take(&mut self, data: Vec<f32>, tensors: &mut Tensors<'_, '_>) {
        let flight = self.flight.take().expect("an outer gradient was waited for");
        let fragment = &mut self.fragments[flight.fragment];
        let size = StepSize::new(self.config.outer_rate, 0);
        let (mut gradients, mut sent) = (data.as_slice(), flight.sent.as_slice());
        for part in &fragment.parts {
            let (gradient, later) = gradients.split_at(part.len);
            gradients = later;
            let global = &mut self.global[part.flat()];
            self.outer.step(global, self.velocity.range_mut(part.flat()), gradient, size);
            let local = &mut tensors.parameters[part.tensor][part.within()];
            match self.config.merge {
                // Not a product with 0, which keeps what is not finite.
                Merge::Blend { alpha: 0.0 } => local.copy_from_slice(global),
                Merge::Blend { alpha } => {
                    for (local, global) in local.iter_mut().zip(global) {
                        *local = alpha * *local + (1.0 - alpha) * *global;
                    }
                }
                Merge::Delta => {
                    let (before, later) = sent.split_at(part.len);
                    sent = later;
                    for ((local, global), before) in local.iter_mut().zip(global).zip(before) {
                        *local = *global + (*local - before);
                    }
                }
            }
        }
        assert!(gradients.is_empty(), "{} elements too many", gradients.len());
        fragment.taken_at = flight.step;
        self.buffer = data;
    }

    /// The last thing of a step: compares what must be the same on all ranks, where due.
    fn check(&mut self) {
        self.stage = Stage::Idle;
        if self.job.check_is_due(self.step) {
            let mut print = Fingerprint::new(self.step);
            print.floats(&self.global);
            print.floats(&self.velocity.first);
            self.actions.push_back(Action::Gather { words: vec![print.value()] });
            self.stage = Stage::Checking;
        }
    }

    /// Brings all ranks together, unless they are.
    fn average(&mut self, tensors: &Tensors<'_, '_>) {
        self.stage = Stage::Idle;
        if !self.is_together {
            let data = self.inner.pack(tensors, true);
            let id = self.take_id();
            self.actions.push_back(Action::Reduce { id, data });
            self.stage = Stage::Averaging;
        }
    }

    fn handle_average(&mut self, data: Vec<f32>, tensors: &mut Tensors<'_, '_>) {
        self.global.copy_from_slice(&data[..self.inner.len()]);
        self.inner.unpack(data, tensors, true);
        self.fragments.iter_mut().for_each(|fragment| fragment.taken_at = self.step);
        self.is_together = true;
        self.stage = Stage::Idle;
    }

    fn handle_step(&mut self, tensors: &Tensors<'_, '_>) {
        self.step += 1;
        self.is_together = false;
        self.traffic = Traffic::default();
        match &self.flight {
            Some(flight) if flight.step + self.config.delay == self.step => {
                self.actions.push_back(Action::Wait { id: flight.id });
                self.stage = Stage::Taking;
            }
            _ => self.send_due(tensors),
        }
    }
}

impl SyncModel for Diloco {
    fn handle_event(&mut self, event: Event, tensors: &mut Tensors<'_, '_>) {
        match (self.stage, event) {
            (Stage::Averaging, Event::Reduced { data, .. }) => self.handle_average(data, tensors),
            (Stage::Checking, Event::Gathered { words }) => {
                self.actions.extend(check::compare(self.step, &words).map(Action::Fail));
                self.stage = Stage::Idle;
            }
            (Stage::DrainingFlight, Event::Reduced { data, .. }) => {
                self.take(data, tensors);
                self.average(tensors);
            }
            (Stage::Idle, Event::Drain) => match &self.flight {
                Some(flight) => {
                    self.actions.push_back(Action::Wait { id: flight.id });
                    self.stage = Stage::DrainingFlight;
                }
                None => self.average(tensors),
            },
            (Stage::Idle, Event::EpochEnded { .. }) => {}
            (Stage::Idle, Event::StepEnded(ended)) => {
                self.inner.step(&ended, tensors);
                self.handle_step(tensors);
            }
            (Stage::ReducingNow, Event::Reduced { data, .. }) => {
                self.take(data, tensors);
                self.check();
            }
            (Stage::Taking, Event::Reduced { data, .. }) => {
                self.take(data, tensors);
                self.send_due(tensors);
            }
            (stage, event) => panic!("DiLoCo does not wait for '{}' in {stage:?}", event.name()),
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn staleness(&self) -> u64 {
        let taken = self.fragments.iter().map(|fragment| fragment.taken_at).min();
        taken.map_or(0, |taken| self.step - taken)
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

//! OSP in its all-reduce form: important gradients before the next step, the rest during it.
//!
//! Owns the global parameters `w`, the optimiser's memory and each slice's version. Never drops a
//! gradient: each is averaged over all ranks and applied to `w` exactly once, deferred ones
//! late. Built by [`super::build`].
//!
//! ```text
//! (here with an ICS that spans one step)
//! step t  : computes with x(t)              while ICS(t-1) is under way
//! its end : 1  wait for ICS(t-1), apply it: w is at t everywhere
//!           2  choose the bitmap            from averaged gradients only: equal on every rank
//!           3  RS(t): reduce important gradients, blocking; apply: w there is at t+1
//!           4  x(t+1) = w where important, w(t) - provisional step (LGP) where deferred
//!           5  start ICS(t): reduce deferred gradients, on the background communicator
//! step t+1: ...
//! ```
//!
//! **RS inside the backward pass** ([`OspConfig::rs_parts`]; ours). Where the trainer tells of each
//! gradient as it is ready, the bitmap of step t is chosen before the pass, and RS(t) starts in
//! parts while it goes on. ICS(t-1) is then still under way, so that its slices are ranked by
//! ICS(t-2); all else stays in the order above.
//!
//! Steps: two all_reduces, more with parts. Bytes: S(G) as in BSP, of which only S(G^i) are
//! exposed while ICS fits into the computation. Source: arXiv 2306.16926. We depart from it in that
//! there is no server: every rank keeps `w` and computes bitmap and budget itself; in slices
//! smaller than a tensor ([`Granularity`]); in momentum; and in averaging with an all_reduce. What
//! the paper leaves open or we could not read is a field of [`OspConfig`].
//!
//! **An ICS that spans k steps** ([`OspConfig::span`]; ours). Whether a reduction has arrived is
//! known to one rank only, so that does not count: ICS(t) is merged at the end of step t+k, before
//! RS(t+k), on every rank. Until then its slices stay deferred whatever the bitmap says. This
//! rank's gradients of the steps between are added up (the carry) and go into the slice's next
//! reduction, an ICS or an RS, or that of a drain. So each gradient is in exactly one reduction, a
//! slice takes its gradients in order (the versions are checked), and a slice is sent at least once
//! in k steps. A sum of n gradients is applied as n steps of the optimiser, each by their mean, at
//! the rate of the step that sent it: momentum keeps its time scale. What a rank computes with is
//! what `w` would be if all that is under way, then all that is carried, had its own gradients for
//! averages; [`IcsMerge`] says what of that outlives a merge. Bounds: no ICS is older than k steps;
//! a gradient is in `w` at most 2k-1 steps after its own, one where k = 1. Bytes: a deferred slice
//! is sent once in k steps. Memory: two more copies of the parameters. With k = 1 nothing is ever
//! carried.

pub mod budget;
pub mod correction;
mod flight;
mod global;
pub mod importance;
pub(crate) mod measure;
mod rs;
mod stages;
pub mod window;

use std::collections::VecDeque;

use super::check::{self, Fingerprint};
use super::{Action, Event, Job, Lane, Memory, StepEnded, SyncModel, Tensors, Timing, Traffic};
use crate::config::require;
use crate::error::Result;
use crate::layout::{ELEMENT_BYTES, Granularity, Layout};
use crate::optimiser::{Optimiser, StepSize};
use budget::{BudgetPolicy, BudgetRule, Ceiling, Decision, UmaxModel};
use correction::Lgp;
use flight::{Flights, MOST_PARTS};
use global::Global;
use importance::{Gib, Importance};
use measure::Measurements;
use rs::Rs;
use window::Window;

/// Which step a bitmap made from the gradients of step t splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GibLag {
    /// Step t+1: fresher; the choice lies between the two stages.
    One,
    /// Step t+2, as when a server sends it with the reply of RS.
    Two,
}

/// What a rank's copy of a deferred slice keeps of the local steps that were made while its ICS was
/// under way, once that is merged. The same thing where ICS spans one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcsMerge {
    /// All of them: the merge changes the copy by what the averaged gradients differ from the
    /// rank's own. For plain descent: `x + (w_new - x when sent)`.
    Delta,
    /// None: the copy becomes the global value, and only the last gradient's step is on it.
    Overwrite,
}

/// Settings of OSP, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OspConfig {
    /// How many bytes are deferred.
    pub budget: BudgetRule,
    /// What sets U_max.
    pub ceiling: Ceiling,
    /// How products become a score (the paper's PGP).
    pub importance: Importance,
    /// Which step a bitmap splits.
    pub gib_lag: GibLag,
    /// Steps from one bitmap to the next, at least 1.
    pub gib_every: u64,
    /// What a rank computes with on deferred slices.
    pub lgp: Lgp,
    /// Steps that ICS spans, from 1 to 64: each is merged exactly so many steps after its own.
    pub span: u64,
    /// What remains of local steps at a merge.
    pub merge: IcsMerge,
    /// In how many parts at most, up to 64, RS starts while the backward pass goes on, each as soon
    /// as its gradients are there ([`Session::gradient_ready`](crate::Session::gradient_ready)).
    /// The bitmap is then made before the pass, when the last ICS is under way: its slices are
    /// ranked by the gradients before. 0: RS is one reduction after the pass, as it always is with
    /// servers.
    pub rs_parts: u64,
    /// Tensors with fewer elements are never deferred: they would save no time.
    pub min_deferred_len: usize,
    /// The unit of importance.
    pub granularity: Granularity,
}

impl Default for OspConfig {
    fn default() -> Self {
        Self {
            budget: BudgetRule::LossDriven { smoothing: 0.3, rise: 0.1 },
            ceiling: Ceiling { umax: UmaxModel::Sharded, cap: 0.8, loss_rate: 0.0 },
            importance: Importance::Mean,
            gib_lag: GibLag::One,
            gib_every: 1,
            lgp: Lgp::Local,
            span: 1,
            merge: IcsMerge::Delta,
            rs_parts: 4,
            min_deferred_len: 1024,
            granularity: Granularity::Slices { max_bytes: 16 * 1024 },
        }
    }
}

impl OspConfig {
    /// Whether the settings can work, with this optimiser.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) that names the first setting that cannot.
    pub(crate) fn validate(&self, optimiser: &Optimiser) -> Result<()> {
        match self.budget {
            BudgetRule::Fixed { share, .. } => {
                require((0.0..=1.0).contains(&share), "the share lies in 0..=1", share)?;
            }
            BudgetRule::LossDriven { smoothing, rise } => {
                require((0.0..1.0).contains(&smoothing), "smoothing lies in 0..1", smoothing)?;
                require(rise >= 0.0, "the rise is not negative", rise)?;
            }
            BudgetRule::Windowed(rule) => {
                let is_sgd = matches!(optimiser, Optimiser::Sgd(_));
                let text = "the bound on noise is infinite unless the optimiser is SGD";
                require(is_sgd || rule.bound.is_infinite(), text, rule.bound)?;
                rule.validate()?;
            }
        }
        let (cap, loss_rate) = (self.ceiling.cap, self.ceiling.loss_rate);
        require((0.0..=1.0).contains(&cap), "the cap lies in 0..=1", cap)?;
        require((0.0..1.0).contains(&loss_rate), "the loss rate lies in 0..1", loss_rate)?;
        require((1..=64).contains(&self.span), "the span lies in 1..=64", self.span)?;
        require(self.gib_every > 0, "gib_every is at least 1", self.gib_every)?;
        require(self.rs_parts <= MOST_PARTS, "RS has at most 64 parts", self.rs_parts)?;
        if let Lgp::Ema { gamma, lambda } = self.lgp {
            require((0.0..1.0).contains(&gamma), "gamma lies in 0..1", gamma)?;
            require((0.0..=1.0).contains(&lambda), "lambda lies in 0..=1", lambda)?;
        }
        if let Granularity::Slices { max_bytes } = self.granularity {
            let reason = "a slice holds at least one element";
            require(max_bytes >= ELEMENT_BYTES, reason, max_bytes)?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Ranks agree on what the epoch has shown.
    Agreeing,
    /// Ranks compare their replicas.
    Checking,
    /// What is under way, with no step to follow.
    Draining,
    /// What was carried, after that.
    DrainingCarry,
    /// Ranks agree on what a window has shown.
    EndingWindow,
    /// The trainer computes.
    Idle,
    /// The oldest ICS.
    WaitingIcs,
    /// RS of this step.
    WaitingRs,
}

/// Overlapped synchronous parallel.
#[derive(Debug)]
pub struct Osp {
    job: Job,
    config: OspConfig,
    layout: Layout,
    global: Global,
    /// Finished steps.
    step: u64,
    stage: Stage,
    /// The end of the step at hand.
    ended: StepEnded,
    /// The bitmap of the last step.
    gib: Gib,
    /// The bitmap of the next step, under [`GibLag::Two`].
    upcoming: Option<Gib>,
    /// Where the round of [`Importance::RoundRobin`] is.
    cursor: usize,
    flights: Flights,
    rs: Rs,
    /// Whether the bitmap of the step at hand is made.
    is_split: bool,
    /// Bytes that went into the last step's ICS.
    sent_bytes: u64,
    last_size: StepSize,
    window: Window,
    policy: Box<dyn BudgetPolicy>,
    decision: Decision,
    measurements: Measurements,
    /// Room for the gradients of a drain and of ICS, while none is under way.
    buffers: [Vec<f32>; 2],
    actions: VecDeque<Action>,
}

impl Osp {
    /// A model at rest, whose global parameters are these.
    ///
    /// # Panics
    /// If the tensors are not those of `layout`.
    pub fn new(
        job: Job,
        config: OspConfig,
        layout: Layout,
        parameters: &[&mut [f32]],
        memory: Memory,
    ) -> Self {
        let flat: Vec<f32> = parameters.iter().flat_map(|tensor| tensor.iter().copied()).collect();
        assert_eq!(flat.len(), layout.len(), "the layout's parameters");
        let slices = layout.slices().len();
        let mut policy = config.budget.policy(config.ceiling);
        let has_average = matches!(config.lgp, Lgp::Ema { .. });
        let flights = Flights::new(slices, flat.len(), config.span);
        Self {
            job,
            config,
            global: Global::new(flat, memory.moments, memory.updates, slices, has_average),
            step: 0,
            stage: Stage::Idle,
            ended: StepEnded { learning_rate: 0.0, loss: 0.0, compute: Default::default() },
            gib: Gib::all_important(slices),
            upcoming: None,
            cursor: 0,
            flights,
            rs: Rs::default(),
            is_split: false,
            sent_bytes: 0,
            last_size: StepSize::new(0.0, 0),
            window: Window::default(),
            decision: policy.begin(layout.bytes()),
            policy,
            measurements: Measurements::default(),
            buffers: Default::default(),
            actions: VecDeque::new(),
            layout,
        }
    }

    /// Global parameters, flat: what all ranks agree on. On deferred slices they are behind while
    /// an ICS is under way.
    pub fn global_parameters(&self) -> &[f32] {
        &self.global.parameters
    }

    /// How many gradients were applied to each slice.
    pub fn versions(&self) -> &[u64] {
        &self.global.versions
    }

    /// The bitmap of the last step.
    pub fn gib(&self) -> &Gib {
        &self.gib
    }

    fn handle_agreement(&mut self, words: &[u64]) {
        let mut seen = measure::agree(words, self.job.world_size, self.layout.bytes());
        // An ICS hides behind all the steps that it spans.
        let span = u32::try_from(self.config.span).unwrap_or(u32::MAX);
        seen.compute = seen.compute.saturating_mul(span);
        let decision = self.policy.decide(&seen);
        self.decide(decision);
    }

    fn handle_window(&mut self, words: &[u64]) {
        let (ranks, bytes) = (self.job.world_size, self.layout.bytes());
        let seen = std::mem::take(&mut self.window).agree(words, ranks, self.config.span, bytes);
        let decision = self.policy.decide_window(&seen);
        self.decide(decision);
    }

    fn decide(&mut self, decision: Decision) {
        self.decision = decision;
        if self.decision.bytes == 0 {
            // They will be old when they are next asked for.
            self.global.scores.fill(f32::INFINITY);
        }
    }

    /// What of this rank's state must have the same bits everywhere.
    fn fingerprint(&self) -> u64 {
        let mut print = Fingerprint::new(self.step);
        self.gib.flags().iter().for_each(|flag| print.word(u64::from(*flag)));
        self.global.versions.iter().for_each(|version| print.word(*version));
        print.floats(&self.global.parameters);
        print.value()
    }
}

impl SyncModel for Osp {
    fn handle_event(&mut self, event: Event, tensors: &mut Tensors<'_, '_>) {
        match (self.stage, event) {
            (Stage::Agreeing, Event::Gathered { words }) => {
                self.handle_agreement(&words);
                self.stage = Stage::Idle;
            }
            (Stage::Checking, Event::Gathered { words }) => {
                self.check_replicas(&words);
            }
            (Stage::EndingWindow, Event::Gathered { words }) => {
                self.handle_window(&words);
                self.begin_check();
            }
            (Stage::Idle, Event::Drain) => self.begin_drain(),
            (Stage::Idle, Event::EpochEnded { mean_loss }) => {
                let words = self.measurements.take_words(mean_loss);
                self.actions.push_back(Action::Gather { words });
                self.stage = Stage::Agreeing;
            }
            (Stage::Idle, Event::StepEnded(ended)) => {
                self.measurements.step(&ended);
                let StepEnded { learning_rate, loss, compute } = ended;
                self.window.step(compute.as_secs_f64(), loss, learning_rate);
                self.ended = ended;
                self.begin_step(tensors);
            }
            (Stage::Idle, Event::GradientReady { tensor, .. }) => {
                self.begin_early(tensor, tensors.gradients[0]);
            }
            (_, Event::Reduced { id, data, timing }) => {
                self.handle_reduced(id, data, timing, tensors);
            }
            (stage, event) => panic!("OSP does not wait for '{}' in {stage:?}", event.name()),
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn overlaps(&self) -> bool {
        self.config.rs_parts > 0
    }

    fn staleness(&self) -> u64 {
        let oldest = self.global.versions.iter().min().copied();
        self.step - oldest.unwrap_or(self.step)
    }

    fn traffic(&self) -> Traffic {
        Traffic {
            important_bytes: self.layout.bytes() - self.gib.deferred_bytes(),
            deferred_bytes: self.sent_bytes,
        }
    }

    fn decision(&self) -> &Decision {
        &self.decision
    }

    fn take_memory(&mut self) -> Option<Memory> {
        let moments = std::mem::take(&mut self.global.moments);
        Some(Memory { moments, updates: self.global.updates + self.step })
    }
}

#[cfg(test)]
mod span_tests;
#[cfg(test)]
mod tests;

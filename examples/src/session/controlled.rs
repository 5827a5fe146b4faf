//! A run whose course policies choose while it trains: what a [`Controller`] decides, carried out
//! over sessions.
//!
//! Owns what this rank tells at each meeting, the snapshots, and the group of ranks that goes on
//! while others sit out. Never decides. Called by the trainer's synchroniser.
//!
//! ```text
//! meeting   the group, if there is one, is dissolved: its state becomes that of all ranks
//!           words of all ranks ──▶ controller ──▶ decisions, carried out in their order
//!           with ranks evicted, the others make a group from the state of all
//! ```
//!
//! So at a meeting all ranks hold one state, whoever sat out before. A rank that sits out computes
//! one step for nothing, which shows how fast it is, and waits at the meeting.

use std::time::{Duration, Instant};

use syncline::control::{
    self, Action, ControlConfig, Controller, Place, RankReport, Sketch, Stragglers, Timing,
    momentum, runs_apart,
};
use syncline::policy::configuration::Momentum;
use syncline::policy::guard::GuardConfig;
use syncline::record::Decision;
use syncline::{
    AspConfig, Communicator, ModelKind, Optimiser, Session, Snapshot, Switch, TensorSpec,
};

use super::group::Group;
use super::momentum_under;
use crate::BoxError;
use crate::spec::{RunSpec, StragglerPolicyKind};
use crate::worker::{Position, Stretch};

/// Snapshots that are kept beside that of the start.
const MOST_SNAPSHOTS: usize = 3;

/// Windows from one snapshot to the next.
const SNAPSHOT_WINDOWS: u64 = 5;
/// Windows that a rank sits out at least.
const EVICTED_WINDOWS: u64 = 3;

/// Whether policies choose a run's course.
pub(super) fn is_controlled(spec: &RunSpec) -> bool {
    let steering = &spec.steering;
    let has_policy = steering.guards || steering.stragglers != StragglerPolicyKind::None;
    has_policy || spec.model.is_chosen_by_policy()
}

/// The settings of a run of so many samples of all ranks.
fn control_config(spec: &RunSpec, total_samples: u64) -> Result<ControlConfig, BoxError> {
    let asp = ModelKind::Asp(AspConfig::default());
    let usual = ControlConfig::new(asp, spec.ranks, spec.batch, total_samples);
    let window_steps = u64::from(spec.steering.window);
    let plan = spec.model.plan()?;
    let (strict, relaxed, timing) = match plan.as_ref().map(|plan| plan.phases()) {
        None => (usual.strict, usual.relaxed, usual.timing),
        Some([only]) if runs_apart(&only.model) => (usual.strict, only.model, Timing::Share(0.0)),
        Some([only]) => (only.model, usual.relaxed, Timing::Share(1.0)),
        Some([first, second]) => {
            (first.model, second.model, Timing::Share(first.share.unwrap_or(1.0)))
        }
        Some(phases) => {
            let (name, count) = (spec.model.name(), phases.len());
            return Err(format!(
                "a guard or a policy about stragglers goes with one or two phases, not with the \
                 {count} of {name}"
            )
            .into());
        }
    };
    let guard = GuardConfig {
        patience: 2,
        smoothing: 0.9,
        snapshot_every: SNAPSHOT_WINDOWS.saturating_mul(window_steps),
        ..GuardConfig::default()
    };
    Ok(ControlConfig {
        strict,
        relaxed,
        timing,
        stragglers: match spec.steering.stragglers {
            StragglerPolicyKind::Elastic => Stragglers::Elastic,
            StragglerPolicyKind::Greedy => Stragglers::Greedy,
            StragglerPolicyKind::None => Stragglers::None,
        },
        window_steps,
        evicted_steps: EVICTED_WINDOWS.saturating_mul(window_steps),
        guard: spec.steering.guards.then_some(guard),
        ..usual
    })
}

/// Where a controlled run is.
#[derive(Debug)]
pub(super) struct Controlled {
    spec: RunSpec,
    /// With a length that is not known before training starts.
    control: ControlConfig,
    /// With the whole momentum.
    optimiser: Optimiser,
    momentum: Momentum,
    controller: Option<Controller>,
    own: RankReport,
    /// Steps of the stretch at hand.
    stretch_steps: u64,
    /// Of the last step.
    rate: f32,
    /// Samples when the model in force began.
    since: u64,
    share: f32,
    snapshots: Vec<(Position, Snapshot)>,
    /// Whether the last snapshot has been gone back to already.
    is_reused: bool,
    pub(super) group: Option<Group>,
}

/// What a meeting came to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) decisions: Vec<Decision>,
    pub(super) switching: Duration,
    pub(super) resume_at: Option<Position>,
}

impl Controlled {
    /// At the start of the run.
    ///
    /// # Errors
    ///
    /// Settings that cannot work.
    pub(super) fn new(spec: &RunSpec, optimiser: Optimiser) -> Result<Self, BoxError> {
        let control = control_config(spec, 1)?;
        Controller::new(control)?;
        let mut controlled = Self {
            spec: spec.clone(),
            control,
            optimiser,
            momentum: momentum::parse(&spec.steering.momentum)?,
            controller: None,
            own: RankReport { is_finite: true, ..RankReport::default() },
            stretch_steps: 0,
            rate: 0.0,
            since: 0,
            share: 1.0,
            snapshots: Vec::new(),
            is_reused: false,
            group: None,
        };
        controlled.share = controlled.share_at(0);
        Ok(controlled)
    }

    /// The model and the optimiser that the run starts with.
    pub(super) fn first(&self) -> (ModelKind, Optimiser) {
        (self.control.first_model(), self.optimiser())
    }

    pub(super) fn has_guard(&self) -> bool {
        self.control.guard.is_some()
    }

    /// Keeps the state at the start, to which training can go back when there is no other.
    pub(super) fn keep_start(&mut self, snapshot: Snapshot) {
        self.snapshots = vec![(Position::default(), snapshot)];
    }

    /// The stretch from here to the next meeting.
    pub(super) fn stretch(&mut self, at: Position, rank: u32) -> Stretch {
        // What cannot work was found when the run started; if not, the meeting tells.
        let Ok(controller) = self.controller(at) else { return Stretch::of_all(1) };
        let steps = controller.steps_to_meeting(at.samples);
        self.stretch_steps = steps;
        match &self.group {
            None => Stretch::of_all(steps),
            Some(group) => {
                let members = group.members().to_vec();
                let takes_part = members.contains(&rank);
                Stretch { steps, members: Some(members), takes_part }
            }
        }
    }

    /// The controller, which exists from the first stretch on.
    fn controller(&mut self, at: Position) -> Result<&mut Controller, BoxError> {
        if let (None, Some((start, _))) = (&self.controller, self.snapshots.first_mut()) {
            start.total = at.total;
        }
        let made = match self.controller.take() {
            Some(controller) => controller,
            None => Controller::new(control_config(&self.spec, at.total)?)?,
        };
        Ok(self.controller.insert(made))
    }

    /// Takes note of a step of this rank.
    pub(super) fn note_step(
        &mut self,
        gradients: &[&[f32]],
        compute: Duration,
        loss: f32,
        rate: f32,
    ) {
        let members = self.group.as_ref().map_or(self.spec.ranks, |group| group.count());
        let own = &mut self.own;
        if own.steps == 0 {
            own.first_loss = f64::from(loss);
        }
        own.steps += 1;
        own.computed_steps += 1;
        own.compute += compute;
        own.loss_sum += f64::from(loss);
        own.is_finite &= loss.is_finite();
        // That of an update of all ranks, which fewer have a part of.
        self.rate = rate * self.spec.ranks as f32 / members as f32;
        // Of the window's last step only, for it takes a pass over the gradient.
        if own.steps == self.stretch_steps {
            own.sketch = Sketch::of(gradients, self.spec.seed);
        }
    }

    /// Takes note of a step that a rank which sits out computed for nothing.
    pub(super) fn note_trial(&mut self, compute: Duration) {
        self.own.computed_steps += 1;
        self.own.compute += compute;
    }

    /// Meets: tells, hears, decides and carries out.
    pub(super) fn meet(
        &mut self,
        at: Position,
        session: &mut Session,
        communicator: &Communicator,
        tensors: &[TensorSpec],
        parameters: &mut [&mut [f32]],
    ) -> Result<Outcome, BoxError> {
        let mut outcome = Outcome::default();
        let start = Instant::now();
        if let Some(mut group) = self.group.take() {
            let sat_out = group.own().is_none();
            group.dissolve(session, communicator, parameters)?;
            // A rank that sat out has waited for the others here, which is no cost of the change.
            if !sat_out {
                outcome.switching += start.elapsed();
            }
        }
        let words = session.gather(&self.own.to_words())?;
        self.own = RankReport { is_finite: true, ..RankReport::default() };
        let place = Place { step: at.step, samples: at.samples, rate: f64::from(self.rate) };
        let decisions = self.controller(at)?.observe(&place, &words)?;
        for decision in decisions {
            self.carry_out(&decision, at, session, parameters, &mut outcome)?;
        }
        if outcome.resume_at.is_some() {
            return Ok(outcome);
        }
        let start = Instant::now();
        let has_changed = self.adjust_momentum(at, session, parameters)?;
        let has_group = self.regroup(at, session, communicator, tensors, parameters)?;
        if has_changed || has_group {
            outcome.switching += start.elapsed();
        }
        Ok(outcome)
    }

    fn carry_out(
        &mut self,
        decision: &control::Decision,
        at: Position,
        session: &mut Session,
        parameters: &mut [&mut [f32]],
        outcome: &mut Outcome,
    ) -> Result<(), BoxError> {
        let start = Instant::now();
        let mut record = decision.to_record();
        match &decision.action {
            Action::GiveUp => return Err(decision.reason.clone().into()),
            Action::TakeSnapshot => self.keep(at, session.snapshot(parameters)?),
            Action::RollBack(model) => {
                (self.since, self.share) = (0, 1.0);
                let target = Switch { model: *model, optimiser: Some(self.optimiser()) };
                let (back_to, snapshot) = self.last_sound()?;
                session.restore(snapshot, target, parameters)?;
                outcome.resume_at = Some(back_to);
                self.controller(at)?.resume_at(back_to.samples);
                if let Some(record) = &mut record {
                    record.to = format!("{} from step {}", record.to, back_to.step);
                }
            }
            Action::Switch(model) => {
                self.since = at.samples;
                self.share = self.share_under(model, 0);
                let target = Switch { model: *model, optimiser: Some(self.optimiser()) };
                session.switch_to(target, parameters)?;
            }
            Action::Clear(_) | Action::Detect(_) | Action::Evict(_) | Action::Readmit(_) => {
                outcome.decisions.extend(record);
                return Ok(());
            }
        }
        let elapsed = start.elapsed();
        outcome.switching += elapsed;
        if let Some(record) = &mut record {
            record.cost_ms = Some(elapsed.as_secs_f64() * 1e3);
        }
        outcome.decisions.extend(record);
        Ok(())
    }

    /// Raises the momentum if enough updates were made since the switch.
    fn adjust_momentum(
        &mut self,
        at: Position,
        session: &mut Session,
        parameters: &mut [&mut [f32]],
    ) -> Result<bool, BoxError> {
        let share = self.share_at(at.samples.saturating_sub(self.since));
        if share == self.share || at.samples >= at.total {
            return Ok(false);
        }
        self.share = share;
        let target = Switch { model: session.config().model, optimiser: Some(self.optimiser()) };
        session.switch_to(target, parameters)?;
        Ok(true)
    }

    /// Makes the group of those that go on, if others sit out.
    fn regroup(
        &mut self,
        at: Position,
        session: &mut Session,
        communicator: &Communicator,
        tensors: &[TensorSpec],
        parameters: &mut [&mut [f32]],
    ) -> Result<bool, BoxError> {
        let controller = self.controller(at)?;
        if controller.evicted().is_empty() || at.samples >= at.total {
            return Ok(false);
        }
        let members = controller.members();
        self.group = Some(Group::form(members, session, communicator, tensors, parameters)?);
        Ok(true)
    }

    fn keep(&mut self, at: Position, snapshot: Snapshot) {
        // All ranks hold the same one, and so drop the same one.
        if !snapshot.is_finite() {
            return;
        }
        self.is_reused = false;
        if self.snapshots.len() > MOST_SNAPSHOTS {
            self.snapshots.remove(1);
        }
        self.snapshots.push((at, snapshot));
    }

    /// The last snapshot, or the one before if that has not helped.
    fn last_sound(&mut self) -> Result<(Position, &Snapshot), BoxError> {
        if self.is_reused && self.snapshots.len() > 1 {
            self.snapshots.pop();
        }
        self.is_reused = true;
        let (at, snapshot) = self.snapshots.last().ok_or("there is no state to go back to")?;
        Ok((*at, snapshot))
    }

    fn optimiser(&self) -> Optimiser {
        momentum_under(self.optimiser, self.share)
    }

    fn share_at(&self, samples_since: u64) -> f32 {
        let controller = self.controller.as_ref();
        let model = controller.map_or_else(|| self.control.first_model(), Controller::model);
        self.share_under(&model, samples_since)
    }

    fn share_under(&self, model: &ModelKind, samples_since: u64) -> f32 {
        if !runs_apart(model) {
            return 1.0;
        }
        let RunSpec { ranks, batch, .. } = self.spec;
        self.momentum.share(ranks, samples_since / u64::from(batch.max(1)))
    }
}

//! Proves, while a model runs, that it keeps the rules which all models of its kind share: those
//! that reduce, and OSP on servers. The others have their audit in their shards
//! ([`crate::server::audit`]).
//!
//! Owns the rules and the account of one model: what it started, waited for and moved. Never
//! changes an event or an action, never communicates; it costs a few comparisons a step. Wrapped
//! around models by [`crate::lockstep`] in debug builds, always, and by [`crate::model::build`]
//! where [`SessionConfig::audits`] says so.
//!
//! | rule | what breaks it |
//! |---|---|
//! | fresh names | a reduction whose id is not above all earlier ones |
//! | one wait | a wait for what is not under way: never started, or waited for before |
//! | bounded flight | more reductions under way than the model states |
//! | right result | a result that was not asked for, or of another length than was sent |
//! | whole exchange | a step, round or window that does not reduce each element exactly once |
//! | honest traffic | bytes reported that are not those of the step's reductions |
//! | bounded staleness | parameters that lack more updates than the model states |
//! | quiet drain | anything under way, or lacking, after a drain |
//! | its turn | an action between two events, or one that is not of the model's kind |
//!
//! Under OSP on servers a reduction is a push and its reply, `bounded flight` means the ICS of one
//! step, and there are three rules more; each server audits what it does with the pushes.
//!
//! | rule | what breaks it |
//! |---|---|
//! | one end | a server that is told twice that no push comes, or was not pushed to |
//! | each gradient once | servers that have not applied exactly the steps that were made |
//! | one state | parameters that are not, to the bit, those of the servers after a drain |
//!
//! What "each element once" means depends on the model: in each step (BSP; OSP, important and
//! deferred parts together), in each step at most and in `span` steps at least (OSP with a longer
//! ICS), at the end of each round of local steps (local SGD), in each window of `every` steps
//! (DiLoCo). Elements are counted, not named: one that is sent twice in the place of
//! another is not seen here, but by a model's own tests. A break becomes [`Action::Fail`] with
//! [`Error::Protocol`], which names rule, step and numbers; the model is not asked again.

mod stages;

use std::collections::BTreeMap;

use crate::config::{ModelKind, OspConfig, SessionConfig};
use crate::error::Error;
use crate::layout::ELEMENT_BYTES;
use crate::model::osp::budget::Decision;
use crate::model::{Action, Event, Lane, Memory, ReduceId, SyncModel, Tensors, Traffic};
use crate::policy::batch::Batch;
use stages::{Break, Stages};

/// What one model may do and must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Its name.
    model: &'static str,
    coverage: Coverage,
    /// Elements of the one reduction that a drain may make, if it may.
    drain_len: Option<usize>,
    /// Most reductions under way between two calls.
    flights: usize,
    /// Most updates that a rank's parameters may lack.
    staleness: u64,
}

/// When each element is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coverage {
    /// In each step once.
    Step {
        /// All of them.
        elements: usize,
    },
    /// In each step pushed to servers once.
    Stages {
        /// All of them; 0 on a rank that only serves.
        elements: usize,
    },
    /// Together in the last of `every` steps since the last time or drain; not before.
    Round {
        /// Steps.
        every: u64,
        /// All of them, with those of the optimiser if it is averaged.
        elements: usize,
    },
    /// In each step at most once, and at least once in `every` steps, counted from the last drain.
    Within {
        /// Steps.
        every: u64,
        /// All of them.
        elements: usize,
    },
    /// Once in each `every` steps, counted from the start.
    Window {
        /// Steps.
        every: u64,
        /// All of them.
        elements: usize,
    },
}

impl Rules {
    /// The rules of the model of `config` on `rank`, for so many parameters; `None` for models
    /// whose parameter server runs apart from the steps, which its shards audit.
    pub fn of(config: &SessionConfig, rank: u32, elements: usize) -> Option<Self> {
        let model = config.model.name();
        let moments = if config.optimiser.has_second_moment() { 2 } else { 1 };
        let with_moments = elements * (1 + moments);
        match config.model {
            ModelKind::Asp(_)
            | ModelKind::Dssp(_)
            | ModelKind::Gba(_)
            | ModelKind::R2sp(_)
            | ModelKind::Ssp(_) => None,
            ModelKind::Bsp | ModelKind::BspBuckets(_) => {
                let coverage = Coverage::Step { elements };
                Some(Self { model, coverage, drain_len: None, flights: 0, staleness: 0 })
            }
            ModelKind::Diloco(diloco) => Some(Self {
                model,
                coverage: Coverage::Window { every: diloco.every, elements },
                drain_len: Some(with_moments),
                flights: 1,
                staleness: diloco.staleness_bound(),
            }),
            ModelKind::LocalSgd(local) => {
                let len = if local.averages_memory { with_moments } else { elements };
                Some(Self {
                    model,
                    coverage: Coverage::Round { every: local.every, elements: len },
                    drain_len: Some(with_moments),
                    flights: 0,
                    staleness: local.staleness_bound(),
                })
            }
            ModelKind::OspServer(server) => {
                let is_worker = server.placement.server_only_rank() != Some(rank);
                let coverage = Coverage::Stages { elements: if is_worker { elements } else { 0 } };
                Some(Self { model, coverage, drain_len: None, flights: 0, staleness: 1 })
            }
            ModelKind::Osp(OspConfig { span: 1, .. }) => {
                let coverage = Coverage::Step { elements };
                Some(Self { model, coverage, drain_len: None, flights: 1, staleness: 1 })
            }
            // What was added up while a slice was under way goes with its next reduction.
            ModelKind::Osp(OspConfig { span, .. }) => Some(Self {
                model,
                coverage: Coverage::Within { every: span, elements },
                drain_len: Some(elements),
                flights: usize::try_from(span).unwrap_or(usize::MAX),
                staleness: 2 * span - 1,
            }),
        }
    }
}

/// A model under audit, or a model as it is where there are no rules.
#[derive(Debug)]
pub struct Audited<M> {
    model: M,
    audit: Option<Audit>,
}

impl<M: SyncModel> Audited<M> {
    /// `model`, which has seen no event yet.
    pub fn new(model: M, rules: Option<Rules>) -> Self {
        Self { model, audit: rules.map(Audit::new) }
    }

    /// The model itself.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The same, to break it.
    #[cfg(test)]
    pub(crate) fn model_mut(&mut self) -> &mut M {
        &mut self.model
    }

    /// The same, out of the audit.
    #[cfg(test)]
    pub(crate) fn into_model(self) -> M {
        self.model
    }
}

impl<M: SyncModel> SyncModel for Audited<M> {
    fn handle_event(&mut self, event: Event, tensors: &mut Tensors<'_, '_>) {
        let Some(audit) = &mut self.audit else { return self.model.handle_event(event, tensors) };
        audit.see_event(&event);
        if audit.is_over() {
            return;
        }
        let collected = match &event {
            Event::Collected { parameters, .. } => Some(parameters.clone()),
            _ => None,
        };
        self.model.handle_event(event, tensors);
        if let Some(parameters) = collected {
            audit.require_all(stages::agree(&parameters, tensors));
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        let Some(audit) = &mut self.audit else { return self.model.poll_action() };
        if !audit.is_over() {
            let action = self.model.poll_action();
            match &action {
                Some(action) => audit.see_action(action),
                None => audit.see_end(self.model.traffic(), self.model.staleness()),
            }
            if !audit.is_over() {
                return action;
            }
        }
        audit.take_failure()
    }

    fn overlaps(&self) -> bool {
        self.model.overlaps()
    }

    fn next_batch(&self) -> Option<Batch> {
        self.model.next_batch()
    }

    fn staleness(&self) -> u64 {
        self.model.staleness()
    }

    fn traffic(&self) -> Traffic {
        self.model.traffic()
    }

    fn decision(&self) -> &Decision {
        self.model.decision()
    }

    fn take_memory(&mut self) -> Option<Memory> {
        self.model.take_memory()
    }
}

/// What the model is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Drain,
    EpochEnd,
    /// Nothing: the trainer computes.
    None,
    /// A gradient of the step at hand is there.
    Ready,
    Step,
}

/// Whether a rule was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// No.
    Clean,
    /// Yes, as this says; it was not reported yet.
    Broken(String),
    /// Yes, and it was reported.
    Reported,
}

/// The account of one model.
#[derive(Debug)]
struct Audit {
    rules: Rules,
    call: Call,
    /// Steps begun.
    step: u64,
    /// Highest id so far.
    last_id: Option<ReduceId>,
    /// Elements of each reduction under way in the background.
    started: BTreeMap<ReduceId, usize>,
    /// The same of reductions that this step waits for.
    urgent: BTreeMap<ReduceId, usize>,
    /// Of OSP on servers only.
    stages: Stages,
    /// The reduction whose result must come next, and its elements.
    awaited: Option<(ReduceId, usize)>,
    /// Elements that this call, with the gradients before it, reduces while everybody waits.
    blocking: usize,
    /// Elements that this call reduces in the background.
    behind: usize,
    /// Steps since the last round's end, or elements of the window so far.
    progress: u64,
    /// Steps since the last drain.
    since_drain: u64,
    verdict: Verdict,
}

impl Audit {
    fn new(rules: Rules) -> Self {
        Self {
            rules,
            call: Call::None,
            step: 0,
            last_id: None,
            started: BTreeMap::new(),
            urgent: BTreeMap::new(),
            stages: Stages::default(),
            awaited: None,
            blocking: 0,
            behind: 0,
            progress: 0,
            since_drain: 0,
            verdict: Verdict::Clean,
        }
    }

    /// Whether the model is not asked any more.
    fn is_over(&self) -> bool {
        self.verdict != Verdict::Clean
    }

    fn take_failure(&mut self) -> Option<Action> {
        match std::mem::replace(&mut self.verdict, Verdict::Reported) {
            Verdict::Broken(reason) => Some(Action::Fail(Error::Protocol { reason })),
            _ => None,
        }
    }

    /// Takes note of a break, unless `holds`. Only the first counts.
    fn require(&mut self, holds: bool, rule: &str, numbers: impl FnOnce() -> String) {
        if !holds && !self.is_over() {
            let (model, step, numbers) = (self.rules.model, self.step, numbers());
            let reason = format!("audit of {model} in step {step}: {rule}: {numbers}");
            self.verdict = Verdict::Broken(reason);
        }
    }

    fn require_all<T: Default>(&mut self, outcome: Result<T, Break>) -> T {
        match outcome {
            Ok(found) => found,
            Err((rule, numbers)) => {
                self.require(false, rule, || numbers);
                T::default()
            }
        }
    }

    fn see_event(&mut self, event: &Event) {
        let call = match event {
            Event::Drain => Call::Drain,
            Event::EpochEnded { .. } => Call::EpochEnd,
            Event::GradientReady { .. } => Call::Ready,
            Event::StepEnded(_) => Call::Step,
            Event::Reduced { id, data, .. } => {
                let (found, wanted) = (Some((*id, data.len())), self.awaited.take());
                let numbers = || format!("{found:?} came, {wanted:?} was awaited (id, elements)");
                return self.require(found == wanted, "right result", numbers);
            }
            Event::Collected { .. } | Event::StageReplied { .. } => {
                let outcome = self.stages.see_event(event, self.step);
                return self.require_all(outcome);
            }
            Event::Gathered { .. } | Event::Replied { .. } => return,
        };
        let at = self.call;
        self.require(at == Call::None, "its turn", || format!("{call:?} during {at:?}"));
        self.call = call;
        self.step += u64::from(call == Call::Step);
    }

    fn see_action(&mut self, action: &Action) {
        if matches!(action, Action::Fail(_)) {
            return;
        }
        let call = self.call;
        self.require(call != Call::None, "its turn", || format!("{action:?} between events"));
        let awaited = self.awaited;
        let numbers = || format!("another action while {awaited:?} is awaited (id, elements)");
        self.require(awaited.is_none(), "its turn", numbers);
        let is_waiting = self.stages.is_waiting();
        self.require(!is_waiting, "its turn", || "another action while a server's".to_owned());
        match action {
            Action::Fail(_) | Action::Gather { .. } => {}
            action if matches!(self.rules.coverage, Coverage::Stages { .. }) => {
                let step = (call == Call::Step).then(|| self.step - 1);
                let outcome = self.stages.see_action(action, step);
                let [rs, ics] = self.require_all(outcome);
                self.blocking += rs;
                self.behind += ics;
            }
            Action::AwaitReply { .. }
            | Action::AwaitStage { .. }
            | Action::Collect
            | Action::EndStages { .. }
            | Action::Push { .. }
            | Action::PushStage { .. } => {
                self.require(false, "its turn", || format!("{action:?}, which is for servers"));
            }
            Action::Reduce { id, data } => {
                self.see_name(*id);
                self.blocking += data.len();
                self.awaited = Some((*id, data.len()));
            }
            Action::StartReduce { id, data, lane: Lane::Urgent } => {
                self.see_name(*id);
                self.blocking += data.len();
                self.urgent.insert(*id, data.len());
            }
            Action::StartReduce { id, data, lane: Lane::Background } => {
                self.see_name(*id);
                self.behind += data.len();
                self.started.insert(*id, data.len());
                let (count, most) = (self.started.len(), self.rules.flights);
                let numbers = || format!("{count} under way, of {most}");
                self.require(count <= most, "bounded flight", numbers);
            }
            Action::Wait { id } => {
                let len = self.started.remove(id).or_else(|| self.urgent.remove(id));
                self.awaited = len.map(|len| (*id, len));
                let is_started = self.awaited.is_some();
                self.require(is_started, "one wait", || format!("{id} is not under way"));
            }
        }
    }

    fn see_name(&mut self, id: ReduceId) {
        let last = self.last_id;
        let numbers = || format!("{id} after {last:?}");
        self.require(last.is_none_or(|last| id > last), "fresh names", numbers);
        self.last_id = Some(id);
    }

    /// The model has nothing left to do.
    fn see_end(&mut self, traffic: Traffic, staleness: u64) {
        let awaited = self.awaited;
        let numbers = || format!("rests while {awaited:?} is awaited (id, elements)");
        self.require(awaited.is_none(), "its turn", numbers);
        let is_waiting = self.stages.is_waiting();
        self.require(!is_waiting, "its turn", || "rests while a reply is awaited".to_owned());
        let most = self.rules.staleness;
        let numbers = || format!("{staleness} updates lack, of {most}");
        self.require(staleness <= most, "bounded staleness", numbers);
        let call = std::mem::replace(&mut self.call, Call::None);
        if matches!(call, Call::None | Call::Ready) {
            return;
        }
        let left = self.urgent.len();
        self.require(left == 0, "one wait", || format!("{left} urgent reductions under way"));
        match call {
            Call::Drain => self.see_drained(staleness),
            Call::EpochEnd => self.see_moved("whole exchange", "an epoch's end", 0),
            Call::None | Call::Ready => {}
            Call::Step => {
                self.see_step_s_coverage();
                let found = Traffic {
                    important_bytes: (self.blocking * ELEMENT_BYTES) as u64,
                    deferred_bytes: (self.behind * ELEMENT_BYTES) as u64,
                };
                let numbers = || format!("{traffic:?} is told, {found:?} was moved");
                // A rank that only serves tells what the others move.
                let only_serves = self.rules.coverage == Coverage::Stages { elements: 0 };
                self.require(traffic == found || only_serves, "honest traffic", numbers);
            }
        }
        let (overlapped, waits) = (self.stages.overlapped(), self.stages.under_way());
        let numbers = || format!("{staleness} updates are told to lack, {overlapped} ICS to come");
        let is_staged = matches!(self.rules.coverage, Coverage::Stages { .. });
        let is_told = !is_staged || (staleness > 0) == (overlapped > 0);
        self.require(is_told, "bounded staleness", numbers);
        self.require(waits == overlapped, "one wait", || "replies of RS were not awaited".into());
        (self.blocking, self.behind) = (0, 0);
    }

    fn see_step_s_coverage(&mut self) {
        match self.rules.coverage {
            Coverage::Stages { elements } | Coverage::Step { elements } => {
                self.see_moved("whole exchange", "a step", elements);
            }
            Coverage::Round { every, elements } => {
                self.progress += 1;
                let is_last = self.progress >= every;
                let expected = if is_last { elements } else { 0 };
                self.see_moved("whole exchange", "a step of a round", expected);
                self.progress = if is_last { 0 } else { self.progress };
            }
            Coverage::Within { every, elements } => {
                self.since_drain += 1;
                let found = self.blocking + self.behind;
                let numbers = || format!("{found} elements in a step, of {elements} at most");
                self.require(found <= elements, "whole exchange", numbers);
                self.progress += found as u64;
                if self.since_drain.is_multiple_of(every) {
                    let (found, least) = (self.progress, elements as u64);
                    let numbers = || format!("{found} elements in {every} steps, of {least}");
                    self.require(found >= least, "whole exchange", numbers);
                    self.progress = 0;
                }
            }
            Coverage::Window { every, elements } => {
                self.progress += (self.blocking + self.behind) as u64;
                if self.step.is_multiple_of(every) {
                    let (found, wanted) = (self.progress, elements as u64);
                    let numbers =
                        || format!("{found} elements in {every} steps, which are to be {wanted}");
                    self.require(found == wanted, "whole exchange", numbers);
                    self.progress = 0;
                }
            }
        }
    }

    fn see_drained(&mut self, staleness: u64) {
        let left = self.started.len();
        let numbers = || format!("{left} reductions under way, {staleness} updates lack");
        self.require(left == 0 && staleness == 0, "quiet drain", numbers);
        if matches!(self.rules.coverage, Coverage::Stages { .. }) {
            let is_quiet = self.stages.take_collected() && self.stages.is_quiet();
            let numbers = || "the servers were not brought together".to_owned();
            return self.require(is_quiet, "quiet drain", numbers);
        }
        let expected = self.rules.drain_len.unwrap_or(0);
        let found = self.blocking + self.behind;
        if matches!(self.rules.coverage, Coverage::Within { .. }) {
            let numbers = || format!("{found} elements in a drain, of {expected} at most");
            self.require(found <= expected, "quiet drain", numbers);
        } else if found > 0 {
            self.see_moved("quiet drain", "a drain", expected);
        }
        if matches!(self.rules.coverage, Coverage::Round { .. } | Coverage::Within { .. }) {
            (self.progress, self.since_drain) = (0, 0);
        }
    }

    fn see_moved(&mut self, rule: &str, what: &str, expected: usize) {
        let found = self.blocking + self.behind;
        let numbers = || format!("{found} elements in {what}, which are to be {expected}");
        self.require(found == expected, rule, numbers);
    }
}

#[cfg(test)]
mod tests;

//! A planned course of a run: the sync models of its phases, and the momentum in each.
//!
//! Owns when which of them changes, by the samples of all ranks, so that all ranks change at the
//! same step without a word. Called by the trainer's synchroniser.

use std::collections::BTreeMap;
use std::time::Duration;

use syncline::control::{Plan, momentum, runs_apart};
use syncline::policy::configuration::Momentum;
use syncline::record::{Decision, DecisionKind};
use syncline::{ModelKind, Optimiser, Switch};

use super::momentum_under;
use crate::BoxError;
use crate::spec::RunSpec;
use crate::worker::Position;

/// Where a run is in its plan.
#[derive(Debug)]
pub(super) struct Planned {
    plan: Plan,
    momentum: Momentum,
    /// With the whole momentum.
    optimiser: Optimiser,
    ranks: u32,
    batch: u64,
    /// The phase in force.
    index: usize,
    /// Samples of all ranks when it began.
    since: u64,
    /// Share of the momentum in force.
    share: f32,
}

/// A change that is due.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) switch: Switch,
    from: String,
    to: String,
    reason: String,
    evidence: BTreeMap<String, f64>,
}

impl Change {
    /// The record of the change, which took so long.
    pub(super) fn decision(self, cost: Duration) -> Decision {
        Decision {
            t_s: 0.0,
            step: 0,
            samples: 0,
            kind: DecisionKind::Switch,
            from: self.from,
            to: self.to,
            reason: self.reason,
            evidence: self.evidence,
            cost_ms: Some(cost.as_secs_f64() * 1e3),
        }
    }
}

impl Planned {
    /// At the start of the run.
    pub(super) fn new(spec: &RunSpec, optimiser: Optimiser) -> Result<Self, BoxError> {
        let Some(plan) = spec.model.plan()? else {
            return Err(format!("'{}' is no plan", spec.model.name()).into());
        };
        let mut planned = Self {
            plan,
            momentum: momentum::parse(&spec.steering.momentum)?,
            optimiser,
            ranks: spec.ranks,
            batch: u64::from(spec.batch),
            index: 0,
            since: 0,
            share: 1.0,
        };
        planned.share = planned.share_at(0);
        Ok(planned)
    }

    /// The model in force.
    pub(super) fn model(&self) -> ModelKind {
        self.plan.phases()[self.index].model
    }

    /// The optimiser in force.
    pub(super) fn optimiser(&self) -> Optimiser {
        momentum_under(self.optimiser, self.share)
    }

    /// Steps of all ranks until something changes.
    pub(super) fn steps_to_change(&self, at: Position) -> u64 {
        // A phase that is too short for a step has one.
        if self.plan.index_at(at.samples, at.total) != self.index {
            return 1;
        }
        let phase = self.plan.samples_left(at.samples, at.total);
        let next = runs_apart(&self.model()).then(|| {
            let updates = self.updates(at.samples);
            momentum::next_change(self.momentum, self.ranks, updates)
        });
        let ramp = next.flatten().map(|next| {
            next.saturating_mul(self.batch).saturating_add(self.since).saturating_sub(at.samples)
        });
        let per_step = self.batch * u64::from(self.ranks);
        let samples = [phase, ramp].into_iter().flatten().min();
        samples.map_or(u64::MAX, |samples| samples.div_ceil(per_step).max(1))
    }

    /// What changes here, if anything; it is in force from here on.
    pub(super) fn change_at(&mut self, at: Position) -> Option<Change> {
        if at.samples >= at.total {
            return None;
        }
        let before = (self.index, self.share);
        let from = self.words();
        let index = self.plan.index_at(at.samples, at.total);
        if index != self.index {
            (self.index, self.since) = (index, at.samples);
        }
        self.share = self.share_at(at.samples);
        if before == (self.index, self.share) {
            return None;
        }
        let reason = if before.0 == self.index {
            let updates = self.updates(at.samples);
            format!("{updates} updates since the switch raise the momentum")
        } else {
            let percent = 100.0 * at.samples as f64 / at.total as f64;
            format!("the plan {}: {percent:.2} % of the samples are done", self.plan)
        };
        let evidence = BTreeMap::from([
            ("samples_of_all_ranks".to_owned(), at.samples as f64),
            ("samples_of_the_job".to_owned(), at.total as f64),
        ]);
        let switch = Switch { model: self.model(), optimiser: Some(self.optimiser()) };
        Some(Change { switch, from, to: self.words(), reason, evidence })
    }

    /// The model in force, and the momentum if that is not whole.
    fn words(&self) -> String {
        let name = &self.plan.phases()[self.index].name;
        match self.optimiser() {
            Optimiser::Sgd(sgd) if self.share < 1.0 => {
                format!("{name} with momentum {}", sgd.momentum)
            }
            _ => name.clone(),
        }
    }

    /// Updates of all workers since the phase began.
    fn updates(&self, samples: u64) -> u64 {
        samples.saturating_sub(self.since) / self.batch
    }

    fn share_at(&self, samples: u64) -> f32 {
        if !runs_apart(&self.model()) {
            return 1.0;
        }
        self.momentum.share(self.ranks, self.updates(samples))
    }
}

#[cfg(test)]
mod tests {
    use syncline::Sgd;

    use super::*;
    use crate::spec::tests::spec;

    fn planned(model: &str, momentum: &str) -> Planned {
        let mut spec = RunSpec { ranks: 4, batch: 10, ..spec(model) };
        spec.steering.momentum = momentum.to_owned();
        Planned::new(&spec, Sgd { momentum: 0.5, ..Sgd::default() }.into()).unwrap()
    }

    fn at(step: u64) -> Position {
        Position { step, samples: step * 40, total: 4000 }
    }

    fn momentum_of(optimiser: Optimiser) -> f32 {
        let Optimiser::Sgd(sgd) = optimiser else { panic!("{optimiser:?}") };
        sgd.momentum
    }

    #[test]
    fn phases_change_at_their_samples() {
        let mut planned = planned("bsp:12.5%+osp:10%+asp", "keep");
        assert_eq!((planned.steps_to_change(at(0)), planned.steps_to_change(at(12))), (13, 1));
        assert!(planned.change_at(at(12)).is_none());
        let change = planned.change_at(at(13)).unwrap();
        assert_eq!(change.switch.model.name(), "osp");
        let decision = change.decision(Duration::from_millis(2));
        assert_eq!((decision.from.as_str(), decision.to.as_str()), ("bsp", "osp"));
        assert_eq!(
            (decision.cost_ms, decision.evidence["samples_of_all_ranks"]),
            (Some(2.0), 520.0)
        );
        assert!(decision.reason.contains("13.00 % of the samples"), "{}", decision.reason);
        // 22.5 % of 4000 are 900: 9.5 steps of 40 more, so 10.
        assert_eq!(planned.steps_to_change(at(13)), 10);
        assert_eq!(planned.change_at(at(23)).unwrap().switch.model.name(), "asp");
        assert_eq!(planned.steps_to_change(at(23)), u64::MAX);
        assert!(planned.change_at(at(99)).is_none());
    }

    #[test]
    fn nothing_changes_at_the_end_of_the_job() {
        let mut planned = planned("bsp:99.9%+asp", "keep");
        assert_eq!(planned.steps_to_change(at(0)), 100);
        assert!(planned.change_at(at(100)).is_none());
    }

    #[test]
    fn a_phase_too_short_for_a_step_has_one() {
        let mut planned = planned("bsp:0.001%+asp", "keep");
        assert_eq!((planned.model().name(), planned.steps_to_change(at(0))), ("bsp", 1));
        assert_eq!(planned.change_at(at(1)).unwrap().switch.model.name(), "asp");
    }

    /// 4 workers, a part more every 8 updates, which are two steps of all.
    #[test]
    fn the_momentum_rises_after_the_switch() {
        let mut ramp = planned("bsp:10%+asp", "ramp:8");
        assert_eq!(momentum_of(ramp.optimiser()), 0.5);
        let mut step = ramp.steps_to_change(at(0));
        assert_eq!(step, 10);
        let mut found = Vec::new();
        while let Some(change) = ramp.change_at(at(step)) {
            found.push((step, momentum_of(change.switch.optimiser.unwrap())));
            step += ramp.steps_to_change(at(step)).min(50);
        }
        assert_eq!(found, [(10, 0.125), (12, 0.25), (14, 0.375), (16, 0.5)]);
        let mut zero = planned("bsp:10%+asp:10%+bsp", "zero");
        assert_eq!(momentum_of(zero.change_at(at(10)).unwrap().switch.optimiser.unwrap()), 0.0);
        assert_eq!(momentum_of(zero.change_at(at(20)).unwrap().switch.optimiser.unwrap()), 0.5);
    }

    #[test]
    fn adam_has_no_momentum_to_change() {
        let spec = RunSpec { ranks: 4, batch: 10, ..spec("bsp:10%+asp") };
        let adam: Optimiser = syncline::Adam::default().into();
        let mut planned = Planned::new(&spec, adam).unwrap();
        assert_eq!(planned.change_at(at(10)).unwrap().switch.optimiser, Some(adam));
    }
}

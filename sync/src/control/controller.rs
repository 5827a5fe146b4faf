//! The controller: what a job does next, from what all ranks tell of a window of steps.
//!
//! Owns the composition of the policies and the state that follows from their decisions: the model,
//! the ranks that take part, the share under BSP. Never communicates, waits or reads a clock: all
//! ranks pass the same words and so decide alike. Called by trainers, at each meeting.
//!
//! ```text
//! window     words of all ranks ──▶ guard ──▶ phase ──▶ stragglers ──▶ decisions
//! guard      roll back, and BSP for twice the share of the job
//! phase      BSP first, then the relaxed model: at a share of the samples, or by gradient noise
//! stragglers under BSP only: nothing, the relaxed model meanwhile (greedy), or BSP without them
//! ```
//!
//! Under BSP a meeting costs a gather of [`WORDS`](super::WORDS) words a rank. Models whose ranks
//! run apart have no common step: ranks then take equally many steps from one meeting to the next,
//! and whoever is there first waits for the last. A longer window makes that rarer.
//!
//! The two policies about stragglers and the order of phases are those of Sync-Switch (arXiv
//! 2104.08364); the choice by noise and the guard are ours.

use super::decision::{Action, Decision};
use super::plan::runs_apart;
use super::settings::{ControlConfig, Stragglers, Timing};
use super::window::{RankReport, mean_first_loss, mean_loss, norms};
use crate::config::ModelKind;
use crate::error::{Error, Result};
use crate::policy::configuration::Workload;
use crate::policy::guard::{Guard, Verdict};
use crate::policy::phase::{Phase, PhasePolicy, Window};
use crate::policy::straggler::{Detector, Evidence};

/// Where a job is at a meeting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Steps so far.
    pub step: u64,
    /// Samples of all ranks so far, those of ranks that sat out not counted.
    pub samples: u64,
    /// The learning rate of one average update of all ranks.
    pub rate: f64,
}

/// Decides for a whole job; equal on every rank.
#[derive(Debug)]
pub struct Controller {
    config: ControlConfig,
    model: ModelKind,
    /// Ranks that sit out, ascending.
    evicted: Vec<u32>,
    guard: Option<Guard>,
    phase: Option<PhasePolicy>,
    detector: Detector,
    /// Samples that BSP lasts at least.
    quota: u64,
}

impl Controller {
    /// A controller at the start of a job.
    ///
    /// # Errors
    /// [`Error::Config`] that names the first setting that cannot work.
    pub fn new(config: ControlConfig) -> Result<Self> {
        config.validate()?;
        let fraction = config.timing.share();
        Ok(Self {
            model: config.first_model(),
            evicted: Vec::new(),
            guard: config.guard.map(|guard| Guard::new(guard, fraction)).transpose()?,
            phase: phase_policy(&config.timing)?,
            detector: Detector::new(config.detector, config.ranks as usize)?,
            quota: Workload { total_samples: config.total_samples }.quota(fraction)?,
            config,
        })
    }

    /// The model in force.
    pub fn model(&self) -> ModelKind {
        self.model
    }

    /// Ranks that sit out, ascending.
    pub fn evicted(&self) -> &[u32] {
        &self.evicted
    }

    /// Ranks that take part, ascending.
    pub fn members(&self) -> Vec<u32> {
        (0..self.config.ranks).filter(|rank| !self.evicted.contains(rank)).collect()
    }

    /// Steps until the next meeting, at least 1. `samples` are those of all ranks so far.
    pub fn steps_to_meeting(&self, samples: u64) -> u64 {
        let window = if self.evicted.is_empty() {
            self.config.window_steps
        } else {
            self.config.evicted_steps
        };
        let members = self.config.ranks - self.evicted.len() as u32;
        let per_step = u64::from(members) * u64::from(self.config.batch);
        let left = self.quota.saturating_sub(samples);
        // The switch comes at the end of the quota, not of the window in which that lies.
        if left > 0 { window.min(left.div_ceil(per_step)) } else { window }
    }

    /// Takes note of where a roll back has led to: the share under BSP counts from there.
    pub fn resume_at(&mut self, samples: u64) {
        let fraction = self.guard.as_ref().map_or(0.0, Guard::fraction);
        let workload = Workload { total_samples: self.config.total_samples };
        // Within 0..=1, as the guard has it.
        let share = workload.quota(fraction).unwrap_or(self.config.total_samples);
        self.quota = samples.saturating_add(share).min(self.config.total_samples);
    }

    /// Takes in the window that ends here, as all ranks told it, and says what follows, to be done
    /// in this order.
    ///
    /// After a [roll back](Action::RollBack), [`Self::resume_at`] comes next.
    ///
    /// # Errors
    /// [`Error::Protocol`] if `words` are not one report of each rank.
    pub fn observe(&mut self, place: &Place, words: &[u64]) -> Result<Vec<Decision>> {
        let reports = RankReport::all_from_words(words)?;
        if reports.len() != self.config.ranks as usize {
            let (has, wanted) = (reports.len(), self.config.ranks);
            return Err(Error::Protocol { reason: format!("{has} reports of {wanted} ranks") });
        }
        let loss = mean_loss(&reports);
        let mut takes_snapshot = false;
        if let Some(guard) = &mut self.guard {
            guard.begin(mean_first_loss(&reports));
            match guard.observe(place.step, loss, runs_apart(&self.model)) {
                Verdict::GiveUp { reason } => {
                    let decision = Decision::new(Action::GiveUp, reason).with("loss", loss);
                    return Ok(vec![decision]);
                }
                Verdict::Healthy { takes_snapshot: is_due } => takes_snapshot = is_due,
                Verdict::RollBack { fraction, reason, .. } => {
                    return Ok(vec![self.roll_back(fraction, loss, &reason)?]);
                }
                Verdict::Suspect { .. } => {}
            }
        }
        let mut decisions = Vec::new();
        // At the end of the job nothing is worth a change.
        if place.samples < self.config.total_samples {
            self.steer(place, loss, &reports, &mut decisions);
            if takes_snapshot {
                let reason = format!("the loss of {loss:.4} is sound");
                decisions.push(Decision::new(Action::TakeSnapshot, reason).with("loss", loss));
            }
        }
        Ok(decisions)
    }

    fn roll_back(&mut self, fraction: f64, loss: f64, reason: &str) -> Result<Decision> {
        let from = self.model.name();
        self.config.strict = ModelKind::Bsp;
        self.model = ModelKind::Bsp;
        self.evicted.clear();
        self.phase = phase_policy(&self.config.timing)?;
        self.detector = Detector::new(self.config.detector, self.config.ranks as usize)?;
        let reason = format!("{reason}; BSP for {:.2} % of the job", 100.0 * fraction);
        Ok(Decision::new(Action::RollBack(ModelKind::Bsp), reason)
            .between(from, "bsp")
            .with("loss", loss)
            .with("share_under_bsp", fraction))
    }

    fn steer(
        &mut self,
        place: &Place,
        loss: f64,
        reports: &[RankReport],
        decisions: &mut Vec<Decision>,
    ) {
        let (phase, reason, ratio) = self.phase_after(place, loss, reports);
        let stragglers = self.stragglers(phase, reports, decisions);
        let is_greedy = self.config.stragglers == Stragglers::Greedy && !stragglers.is_empty();
        self.evict(phase, &stragglers, decisions);
        let (model, reason) = match phase {
            Phase::Bsp if is_greedy => {
                (self.config.relaxed, format!("ranks {stragglers:?} are slow: none waits for them"))
            }
            Phase::Bsp if self.config.stragglers == Stragglers::Greedy => {
                (self.config.strict, format!("no rank is slow; {reason}"))
            }
            Phase::Bsp => (self.config.strict, reason),
            Phase::Relaxed => (self.config.relaxed, reason),
        };
        if model == self.model {
            return;
        }
        let mut decision = Decision::new(Action::Switch(model), reason)
            .between(self.model.name(), model.name())
            .with("samples_of_all_ranks", place.samples as f64)
            .with("loss", loss);
        if let Some(ratio) = ratio {
            decision = decision.with("staleness_to_noise", ratio);
        }
        self.model = model;
        decisions.push(decision);
    }

    /// The phase from here on, why, and staleness relative to noise if that was asked.
    fn phase_after(
        &mut self,
        place: &Place,
        loss: f64,
        reports: &[RankReport],
    ) -> (Phase, String, Option<f64>) {
        let quota = self.quota;
        let percent = 100.0 * place.samples as f64 / self.config.total_samples as f64;
        let by_share = if place.samples < quota { Phase::Bsp } else { Phase::Relaxed };
        let Some(policy) = &mut self.phase else {
            return (by_share, format!("{percent:.2} % of the samples are done"), None);
        };
        let (average_norm2, distance2) = norms(reports);
        let decision = policy.decide(&Window {
            samples: place.samples,
            average_norm2,
            distance2,
            loss,
            rate: place.rate,
            world_size: reports.iter().filter(|report| report.steps > 0).count() as u32,
        });
        if place.samples < quota {
            let reason = format!("{percent:.2} % of the samples, and BSP lasts longer");
            return (Phase::Bsp, reason, decision.ratio);
        }
        (decision.phase, decision.reason.into_owned(), decision.ratio)
    }

    /// The ranks that are slow; says which have become so, or are so no more.
    fn stragglers(
        &mut self,
        phase: Phase,
        reports: &[RankReport],
        decisions: &mut Vec<Decision>,
    ) -> Vec<u32> {
        if self.config.stragglers == Stragglers::None {
            return Vec::new();
        }
        let speeds: Vec<Option<f64>> =
            reports.iter().map(|report| report.speed(self.config.batch)).collect();
        for verdict in self.detector.observe(&speeds) {
            let (true, Evidence::Compared { speed, threshold, reason, .. }) =
                (verdict.has_changed, verdict.evidence)
            else {
                continue;
            };
            let rank = verdict.rank as u32;
            let (action, from, to) = if verdict.is_straggler {
                (Action::Detect(rank), "as fast as others", format!("rank {rank} is slow"))
            } else {
                (Action::Clear(rank), "slow", format!("rank {rank} is as fast as others"))
            };
            decisions.push(
                Decision::new(action, reason)
                    .between(from, to)
                    .with("speed_samples_per_s", speed)
                    .with("threshold_samples_per_s", threshold),
            );
        }
        if phase == Phase::Relaxed {
            return Vec::new();
        }
        self.detector.stragglers().into_iter().map(|rank| rank as u32).collect()
    }

    /// Makes the ranks that sit out those that should.
    fn evict(&mut self, phase: Phase, stragglers: &[u32], decisions: &mut Vec<Decision>) {
        // More than half of the ranks are no stragglers, but the rule.
        let is_minority = 2 * stragglers.len() < self.config.ranks as usize;
        let is_crowd = !is_minority;
        let wanted = match self.config.stragglers {
            Stragglers::Elastic if is_minority => stragglers.to_vec(),
            _ => Vec::new(),
        };
        let back: Vec<u32> =
            self.evicted.iter().filter(|rank| !wanted.contains(rank)).copied().collect();
        let out: Vec<u32> =
            wanted.iter().filter(|rank| !self.evicted.contains(rank)).copied().collect();
        let words = |evicted: &[u32], ranks: u32| match evicted {
            [] => "all ranks".to_owned(),
            _ => format!("{} ranks, without {evicted:?}", ranks - evicted.len() as u32),
        };
        let ranks = self.config.ranks;
        let mut change = |action, reason: String, evicted: Vec<u32>| {
            let decision = Decision::new(action, reason)
                .between(words(&self.evicted, ranks), words(&evicted, ranks))
                .with("ranks_that_take_part", f64::from(ranks) - evicted.len() as f64);
            decisions.push(decision);
            self.evicted = evicted;
        };
        if !back.is_empty() {
            let reason = match phase {
                Phase::Bsp if is_crowd => "too many ranks are slow to leave them out".to_owned(),
                Phase::Bsp => format!("ranks {back:?} are as fast as the others"),
                Phase::Relaxed => "the share under BSP is done".to_owned(),
            };
            let kept = wanted.iter().filter(|rank| !out.contains(rank)).copied().collect();
            change(Action::Readmit(back), reason, kept);
        }
        if !out.is_empty() {
            let reason = format!("ranks {out:?} are slow, and all others wait for them");
            change(Action::Evict(out), reason, wanted);
        }
    }
}

fn phase_policy(timing: &Timing) -> Result<Option<PhasePolicy>> {
    match timing {
        Timing::Noise(config) => PhasePolicy::new(*config).map(Some),
        Timing::Share(_) => Ok(None),
    }
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;

//! The divergence guard: when to keep a snapshot, and when to go back to one.
//!
//! Owns the watch over the loss and the book of snapshots. Never saves nor restores: it says at
//! which step. Called after each step, with the mean loss over all ranks.
//!
//! The rule is ours. Published runs of Sync-Switch diverge when they switch to ASP too early or
//! with too high a rate; so after a rollback the job goes on under BSP, for twice the share.

use std::borrow::Cow;

use super::require;
use super::statistics::LossAverage;
use crate::error::Result;

/// Settings of a [`Guard`], the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardConfig {
    /// A loss this many mean distances above the mean is a spike.
    pub factor: f64,
    /// Spikes in a row that mean divergence, at least 1. A loss that is no number does at once.
    pub patience: u32,
    /// Weight of the past in the mean of the loss and of its distance, from 0 to below 1.
    pub smoothing: f64,
    /// Steps from one snapshot to the next, at least 1.
    pub snapshot_every: u64,
    /// Share under BSP after the first rollback if it was 0 before, which doubling does not change.
    pub least_fraction: f64,
    /// The largest share under BSP, from `least_fraction` to 1.
    pub most_fraction: f64,
    /// Rollbacks after which the guard gives up.
    pub max_rollbacks: u32,
    /// What of a loss that does not fall while updates may be missing, if that is watched.
    pub stall: Option<Stall>,
}

/// A loss near where training began that does not fall, or lies above it: what is left of a network
/// whose units have died is no spike, and may even be a little below the loss of the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// Such losses in a row that mean divergence, at least 1.
    pub patience: u32,
    /// Share of the first loss by which a loss that is no longer near it is below it at least, from
    /// 0 to below 1.
    pub progress: f64,
    /// Share of the lowest loss so far by which one that falls is below that at least, from 0 to
    /// below 1.
    pub fall: f64,
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self {
            factor: 8.0,
            patience: 5,
            smoothing: 0.95,
            snapshot_every: 100,
            least_fraction: 0.0625,
            most_fraction: 1.0,
            max_rollbacks: 5,
            stall: Some(Stall { patience: 3, progress: 0.25, fall: 0.02 }),
        }
    }
}

/// What to do after a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Stop: going back has not helped.
    GiveUp {
        /// Why, with the numbers.
        reason: Cow<'static, str>,
    },
    /// Go on.
    Healthy {
        /// Whether to keep a snapshot of the state after this step.
        takes_snapshot: bool,
    },
    /// Restore the snapshot, and go on under BSP.
    RollBack {
        /// The step that the snapshot was kept after; none if the start is all there is.
        to_step: Option<u64>,
        /// Share of the job under BSP from here on.
        fraction: f64,
        /// Why, with the numbers.
        reason: Cow<'static, str>,
    },
    /// Go on, and keep no snapshot: the loss is a spike, or near where training began.
    Suspect {
        /// Such losses in a row.
        spikes: u32,
    },
}

/// Watches a loss.
#[derive(Clone, Debug)]
pub struct Guard {
    config: GuardConfig,
    fraction: f64,
    average: LossAverage,
    spikes: u32,
    /// The first loss.
    first: Option<f64>,
    /// The lowest loss since the last rollback.
    lowest: f64,
    /// Losses in a row that stalled, while updates may be missing.
    stalled: u32,
    rollbacks: u32,
    /// The last snapshot's step, and the average at it.
    snapshot: Option<(u64, LossAverage)>,
}

impl Guard {
    /// A guard of a job that runs this share of its samples under BSP.
    ///
    /// # Errors
    /// [`Config`](crate::Error::Config) that names the first setting that cannot work.
    pub fn new(config: GuardConfig, fraction: f64) -> Result<Self> {
        let factor = config.factor;
        require(factor.is_finite() && factor > 0.0, "the factor is above 0", factor)?;
        require(config.patience > 0, "patience is at least 1", config.patience)?;
        let smoothing = config.smoothing;
        require((0.0..1.0).contains(&smoothing), "smoothing lies in 0..1", smoothing)?;
        let every = config.snapshot_every;
        require(every > 0, "there is a step between snapshots", every)?;
        let (least, most) = (config.least_fraction, config.most_fraction);
        require(least > 0.0 && least <= most, "the least share is above 0, up to the most", least)?;
        require(most <= 1.0, "the most is at most 1", most)?;
        require((0.0..=1.0).contains(&fraction), "a share lies in 0..=1", fraction)?;
        let average = LossAverage::new(smoothing);
        if let Some(Stall { patience, progress, fall }) = config.stall {
            require(patience > 0, "a stall's patience is at least 1", patience)?;
            let rule = "a stall's progress lies in 0..1";
            require((0.0..1.0).contains(&progress), rule, progress)?;
            require((0.0..1.0).contains(&fall), "a stall's fall lies in 0..1", fall)?;
        }
        Ok(Self {
            config,
            fraction,
            average,
            spikes: 0,
            first: None,
            lowest: f64::INFINITY,
            stalled: 0,
            rollbacks: 0,
            snapshot: None,
        })
    }

    /// Share of the job under BSP, as it is now.
    pub fn fraction(&self) -> f64 {
        self.fraction
    }

    /// Takes in the loss before the job's first update; without this, the first loss observed is
    /// taken for it, which may be one that has diverged already. Calls after the first, and losses
    /// that are no number, change nothing.
    pub fn begin(&mut self, loss: f64) {
        if loss.is_finite() {
            self.first.get_or_insert(loss);
        }
    }

    /// Takes in the loss of a step, which the job made while updates may have been missing
    /// (`is_relaxed`) or under BSP. Steps ascend, but after a rollback they begin again after the
    /// one that was restored.
    pub fn observe(&mut self, step: u64, loss: f64, is_relaxed: bool) -> Verdict {
        if !loss.is_finite() {
            return self.diverged(format!("the loss of step {step} is {loss}"));
        }
        let factor = self.config.factor;
        if let Some(threshold) = self.average.threshold(factor).filter(|most| loss > *most) {
            self.spikes += 1;
            if self.spikes < self.config.patience {
                return Verdict::Suspect { spikes: self.spikes };
            }
            return self.diverged(format!(
                "{} losses in a row were spikes: that of step {step} is {loss:.4}, above \
                 {threshold:.4}, {factor} mean distances above the mean",
                self.spikes
            ));
        }
        self.spikes = 0;
        let first = *self.first.get_or_insert(loss);
        let lowest = self.lowest;
        self.lowest = lowest.min(loss);
        let stall = self.config.stall.filter(|_| is_relaxed);
        if let Some(Stall { patience, progress, fall }) = stall {
            let falls = loss <= first && loss < lowest * (1.0 - fall);
            let is_near = loss > first * (1.0 - progress);
            self.stalled = if is_near && !falls { self.stalled + 1 } else { 0 };
            if self.stalled >= patience {
                return self.diverged(format!(
                    "{patience} losses in a row, the last {loss:.4} at step {step}, do not fall \
                     from where training began, at {first:.4}"
                ));
            }
            if is_near {
                return Verdict::Suspect { spikes: self.stalled };
            }
        }
        self.average.add(loss);
        let every = self.config.snapshot_every;
        let is_due = self.snapshot.is_none_or(|(last, _)| step >= last.saturating_add(every));
        if is_due {
            self.snapshot = Some((step, self.average));
        }
        Verdict::Healthy { takes_snapshot: is_due }
    }

    fn diverged(&mut self, reason: String) -> Verdict {
        self.spikes = 0;
        self.stalled = 0;
        self.lowest = f64::INFINITY;
        if self.rollbacks >= self.config.max_rollbacks {
            let rollbacks = self.rollbacks;
            return Verdict::GiveUp {
                reason: format!("{reason}, after {rollbacks} rollbacks").into(),
            };
        }
        self.rollbacks += 1;
        let GuardConfig { least_fraction, most_fraction, smoothing, .. } = self.config;
        // A share above the cap was asked for by the job: a rollback does not shorten BSP.
        let most = most_fraction.max(self.fraction);
        self.fraction = (2.0 * self.fraction).clamp(least_fraction.min(most), most);
        let to_step = self.snapshot.map(|(step, _)| step);
        self.average =
            self.snapshot.map_or_else(|| LossAverage::new(smoothing), |(_, average)| average);
        Verdict::RollBack { to_step, fraction: self.fraction, reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: GuardConfig = GuardConfig {
        factor: 4.0,
        patience: 3,
        smoothing: 0.9,
        snapshot_every: 10,
        least_fraction: 0.125,
        most_fraction: 0.75,
        max_rollbacks: 3,
        stall: None,
    };

    /// A guard that has seen steps 1 to `steps` with a loss of 2.
    fn settled(config: GuardConfig, steps: u64) -> Guard {
        let mut guard = Guard::new(config, 0.25).unwrap();
        for step in 1..=steps {
            assert!(matches!(guard.observe(step, 2.0, false), Verdict::Healthy { .. }));
        }
        guard
    }

    fn takes_snapshot(verdict: &Verdict) -> bool {
        *verdict == Verdict::Healthy { takes_snapshot: true }
    }

    #[test]
    fn snapshots_come_every_so_many_healthy_steps() {
        let mut guard = Guard::new(CONFIG, 0.25).unwrap();
        let steps = (1..=35).filter(|step| takes_snapshot(&guard.observe(*step, 2.0, false)));
        assert_eq!(steps.collect::<Vec<u64>>(), [1, 11, 21, 31]);
    }

    #[test]
    fn no_snapshot_is_kept_while_the_loss_is_suspect() {
        let mut guard = settled(CONFIG, 20);
        // Step 21 is due, but a spike; so is 22; 23 is well again.
        assert_eq!(guard.observe(21, 9.0, false), Verdict::Suspect { spikes: 1 });
        assert_eq!(guard.observe(22, 9.0, false), Verdict::Suspect { spikes: 2 });
        assert!(takes_snapshot(&guard.observe(23, 2.0, false)));
        assert_eq!(guard.observe(24, 9.0, false), Verdict::Suspect { spikes: 1 });
    }

    #[test]
    fn lasting_spikes_go_back_to_the_last_snapshot_and_double_the_share() {
        let mut guard = settled(CONFIG, 18);
        // The least spread is 1 per cent of 2, so the limit is 2 + 4 * 0.02.
        assert_eq!(guard.observe(19, 2.07, false), Verdict::Healthy { takes_snapshot: false });
        for (step, spikes) in [(20, 1), (21, 2)] {
            assert_eq!(guard.observe(step, 3.0, false), Verdict::Suspect { spikes });
        }
        let Verdict::RollBack { to_step, fraction, reason } = guard.observe(22, 3.0, false) else {
            panic!("no rollback");
        };
        assert_eq!((to_step, fraction, guard.fraction()), (Some(11), 0.5, 0.5));
        assert!(reason.contains("3 losses in a row") && reason.contains("step 22"), "{reason}");
        // Steps begin again, and so does the count of spikes.
        assert_eq!(guard.observe(12, 2.0, false), Verdict::Healthy { takes_snapshot: false });
        assert_eq!(guard.observe(13, 3.0, false), Verdict::Suspect { spikes: 1 });
        assert!(takes_snapshot(&guard.observe(21, 2.0, false)));
    }

    #[test]
    fn a_loss_that_is_no_number_goes_back_at_once_and_the_share_is_capped() {
        let mut guard = settled(CONFIG, 12);
        let mut fractions = Vec::new();
        for loss in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            match guard.observe(13, loss, false) {
                Verdict::RollBack { to_step: Some(11), fraction, .. } => fractions.push(fraction),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(fractions, [0.5, 0.75, 0.75]);
        let Verdict::GiveUp { reason } = guard.observe(13, f64::NAN, false) else {
            panic!("no end")
        };
        assert!(reason.contains("after 3 rollbacks"), "{reason}");
    }

    #[test]
    fn without_a_snapshot_it_goes_back_to_the_start() {
        let mut guard = Guard::new(CONFIG, 0.0).unwrap();
        let verdict = guard.observe(1, f64::NAN, false);
        assert!(matches!(verdict, Verdict::RollBack { to_step: None, fraction: 0.125, .. }));
    }

    #[test]
    fn a_rollback_never_shortens_bsp() {
        let mut guard = Guard::new(CONFIG, 0.9).unwrap();
        guard.observe(1, f64::NAN, false);
        assert_eq!(guard.fraction(), 0.9);
    }

    #[test]
    fn a_falling_noisy_loss_is_healthy() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut guard = Guard::new(GuardConfig::default(), 0.25).unwrap();
            for step in 1..5000_u64 {
                let trend = 0.05 + 2.3 / (1.0 + step as f64 / 200.0);
                let loss = trend * (0.7 + 0.6 * random.f64());
                let verdict = guard.observe(step, loss, false);
                assert!(!matches!(verdict, Verdict::RollBack { .. }), "{seed} {step}: {verdict:?}");
            }
        }
    }

    #[test]
    fn bad_settings_are_refused() {
        for config in [
            GuardConfig { factor: f64::NAN, ..CONFIG },
            GuardConfig { patience: 0, ..CONFIG },
            GuardConfig { smoothing: 1.0, ..CONFIG },
            GuardConfig { snapshot_every: 0, ..CONFIG },
            GuardConfig { least_fraction: 0.0, ..CONFIG },
            GuardConfig { least_fraction: 0.8, ..CONFIG },
            GuardConfig { most_fraction: 1.5, ..CONFIG },
        ] {
            assert!(Guard::new(config, 0.5).is_err(), "{config:?}");
        }
        assert!(Guard::new(CONFIG, f64::NAN).is_err());
    }

    #[test]
    fn a_loss_that_stays_where_training_began_is_divergence_while_updates_may_be_missing() {
        let stall = Some(Stall { patience: 3, progress: 0.25, fall: 0.02 });
        let mut guard = Guard::new(GuardConfig { stall, ..CONFIG }, 0.0).unwrap();
        guard.begin(2.0);
        // Under BSP a slow start is no fault.
        assert!(takes_snapshot(&guard.observe(1, 2.1, false)));
        assert!(matches!(guard.observe(2, 2.1, false), Verdict::Healthy { .. }));
        // A loss that falls is none, however slowly; nor is one that has fallen and stays there.
        for (step, loss) in [(3, 1.95), (4, 1.9), (5, 1.85), (6, 1.8)] {
            assert_eq!(guard.observe(step, loss, true), Verdict::Suspect { spikes: 0 });
        }
        assert!(matches!(guard.observe(7, 1.4, true), Verdict::Healthy { .. }));
        assert!(matches!(guard.observe(8, 1.49, true), Verdict::Healthy { .. }));
        assert_eq!(guard.observe(9, 1.6, true), Verdict::Suspect { spikes: 1 });
        assert_eq!(guard.observe(10, 1.6, true), Verdict::Suspect { spikes: 2 });
        let Verdict::RollBack { to_step, fraction, reason } = guard.observe(11, 1.6, true) else {
            panic!("no rollback");
        };
        assert_eq!((to_step, fraction), (Some(1), 0.125));
        assert!(reason.contains("began, at 2.0000"), "{reason}");
        // Above the start, a fall is not one; the first loss observed is not the start's.
        let mut guard = Guard::new(GuardConfig { stall, ..CONFIG }, 0.0).unwrap();
        guard.begin(2.6);
        guard.begin(f64::NAN);
        for (step, loss) in [(1, 5.7), (2, 3.0)] {
            let spikes = step as u32;
            assert_eq!(guard.observe(step, loss, true), Verdict::Suspect { spikes });
        }
        assert_eq!(guard.observe(3, 2.3, true), Verdict::Suspect { spikes: 0 });
        assert_eq!(guard.observe(4, 2.31, true), Verdict::Suspect { spikes: 1 });
        assert_eq!(guard.observe(5, 2.3, true), Verdict::Suspect { spikes: 2 });
        assert!(matches!(guard.observe(6, 2.3, true), Verdict::RollBack { to_step: None, .. }));
        let sound = Stall { patience: 1, progress: 0.1, fall: 0.1 };
        for stall in [
            Stall { patience: 0, ..sound },
            Stall { progress: 1.0, ..sound },
            Stall { fall: 1.0, ..sound },
        ] {
            let error = Guard::new(GuardConfig { stall: Some(stall), ..CONFIG }, 0.0).unwrap_err();
            assert!(error.to_string().contains("a stall's"), "{error}");
        }
    }
}

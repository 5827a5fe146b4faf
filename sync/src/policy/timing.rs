//! The timing policy: after which share of a job to switch from BSP to ASP.
//!
//! Owns the binary search over switch points, what it cost and when it pays. Never runs a job: it
//! names the next trial, and is told how it went. All state is the list of trials, so a search that
//! was stopped goes on from the list. Called by whoever runs recurring jobs.
//!
//! The search is our reading of Sync-Switch (arXiv 2104.08364), which fits its released data; the
//! text of its algorithm could not be read. It takes for granted that a later switch never lowers
//! accuracy, which noisy runs break: more runs per setting help.

use super::require;
use super::statistics::mean;
use crate::error::Result;

/// What to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchConfig {
    /// How many switch points to try: M, up to 40.
    pub settings: u32,
    /// Runs of each: R, at least 1.
    pub runs: u32,
    /// How much mean accuracy may be lost against BSP: beta.
    pub tolerance: f64,
    /// What BSP reaches, if that is known; else the search starts with runs of BSP.
    pub reference: Option<Reference>,
}

impl Default for SearchConfig {
    fn default() -> Self {
        Self { settings: 4, runs: 5, tolerance: 0.01, reference: None }
    }
}

/// What jobs under BSP reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reference {
    /// Mean converged accuracy.
    pub accuracy: f64,
    /// Mean seconds of a job.
    pub seconds: f64,
}

/// One job to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Share of the samples under BSP, from 0 to 1; the rest is under ASP.
    pub fraction: f64,
    /// Which run of this share, from 0.
    pub run: u32,
}

/// How a job went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Converged accuracy; none if it diverged.
    pub accuracy: Option<f64>,
    /// How long it took, the time until it diverged included.
    pub seconds: f64,
}

/// A job that was run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Which.
    pub trial: Trial,
    /// How it went.
    pub outcome: Outcome,
}

/// A search, resumable: its two fields are all there is to save.
#[derive(Clone, Debug, PartialEq)]
pub struct TimingSearch {
    /// What to search.
    pub config: SearchConfig,
    /// What was run, in any order.
    pub records: Vec<Record>,
}

/// Where a search is.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Trials are left, all of one switch point.
    Running {
        /// Those not recorded yet; they do not depend on each other.
        trials: Vec<Trial>,
    },
    /// It has ended.
    Found {
        /// The least share under BSP that was good enough; 1 if none was.
        fraction: f64,
        /// Mean accuracy that was asked for at least.
        least_accuracy: f64,
    },
    /// BSP itself diverged, so there is nothing to compare with.
    NoReference,
}

/// What is known of one switch point.
enum Setting {
    Unfinished(Vec<Trial>),
    Diverged,
    Finished { accuracy: f64 },
}

impl TimingSearch {
    /// A search with nothing run.
    ///
    /// # Errors
    /// [`Config`](crate::Error::Config) that names the first number that cannot work.
    pub fn new(config: SearchConfig) -> Result<Self> {
        Self::resume(config, Vec::new())
    }

    /// A search that goes on from these records.
    ///
    /// # Errors
    /// [`Config`](crate::Error::Config) that names the first number that cannot work.
    pub fn resume(config: SearchConfig, records: Vec<Record>) -> Result<Self> {
        require((1..=40).contains(&config.settings), "settings lie in 1..=40", config.settings)?;
        require(config.runs > 0, "each setting has a run", config.runs)?;
        let tolerance = config.tolerance;
        let is_tolerance = tolerance.is_finite() && tolerance >= 0.0;
        require(is_tolerance, "the tolerance is not negative", tolerance)?;
        if let Some(Reference { accuracy, seconds }) = config.reference {
            require(accuracy.is_finite(), "the reference is a number", accuracy)?;
            require_seconds(seconds)?;
        }
        let mut search = Self { config, records: Vec::new() };
        for record in records {
            search.record(record.trial, record.outcome)?;
        }
        Ok(search)
    }

    /// The next job to run; none when the search has ended.
    pub fn next(&self) -> Option<Trial> {
        match self.progress() {
            Progress::Running { trials } => trials.first().copied(),
            _ => None,
        }
    }

    /// Takes in how a job went. An accuracy that is not finite counts as diverged.
    ///
    /// # Errors
    /// [`Config`](crate::Error::Config) if that trial is not of this search or was recorded before,
    /// or its seconds are not a length of time.
    pub fn record(&mut self, trial: Trial, outcome: Outcome) -> Result<()> {
        let Trial { fraction, run } = trial;
        require((0.0..=1.0).contains(&fraction), "a share lies in 0..=1", fraction)?;
        require(run < self.config.runs, "a run is below the number of runs", run)?;
        let is_fresh = self.records.iter().all(|record| record.trial != trial);
        require(is_fresh, "a trial is recorded once", format!("{trial:?} again"))?;
        require_seconds(outcome.seconds)?;
        let accuracy = outcome.accuracy.filter(|accuracy| accuracy.is_finite());
        self.records.push(Record { trial, outcome: Outcome { accuracy, ..outcome } });
        Ok(())
    }

    /// Where the search is: the binary search, done again from the records.
    pub fn progress(&self) -> Progress {
        let reference = match (self.config.reference, self.setting(1.0)) {
            (Some(reference), _) => reference.accuracy,
            (None, Setting::Unfinished(trials)) => return Progress::Running { trials },
            (None, Setting::Diverged) => return Progress::NoReference,
            (None, Setting::Finished { accuracy }) => accuracy,
        };
        let least_accuracy = reference - self.config.tolerance;
        let (mut good, mut bad) = (1.0, 0.0);
        for _ in 0..self.config.settings {
            // Halves of halves: exact in binary.
            let fraction = (good + bad) / 2.0;
            match self.setting(fraction) {
                Setting::Unfinished(trials) => return Progress::Running { trials },
                Setting::Finished { accuracy } if accuracy >= least_accuracy => good = fraction,
                Setting::Finished { .. } | Setting::Diverged => bad = fraction,
            }
        }
        Progress::Found { fraction: good, least_accuracy }
    }

    /// What is known of a share. One diverged run settles it, so that the others are not run.
    fn setting(&self, fraction: f64) -> Setting {
        let outcomes = self.outcomes(fraction);
        let accuracies: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.accuracy).collect();
        if accuracies.len() < outcomes.len() {
            return Setting::Diverged;
        }
        let is_open = |trial: &Trial| self.records.iter().all(|record| record.trial != *trial);
        let trials = (0..self.config.runs).map(|run| Trial { fraction, run });
        let open: Vec<Trial> = trials.filter(is_open).collect();
        if open.is_empty() {
            Setting::Finished { accuracy: mean(&accuracies) }
        } else {
            Setting::Unfinished(open)
        }
    }

    fn outcomes(&self, fraction: f64) -> Vec<Outcome> {
        let of_share = self.records.iter().filter(|record| record.trial.fraction == fraction);
        of_share.map(|record| record.outcome).collect()
    }

    /// Mean seconds of the recorded jobs with this share under BSP.
    fn mean_seconds(&self, fraction: f64) -> Option<f64> {
        let outcomes = self.outcomes(fraction);
        let seconds: Vec<f64> = outcomes.iter().map(|outcome| outcome.seconds).collect();
        (!seconds.is_empty()).then(|| mean(&seconds))
    }

    /// What the search costs so far and what its result saves.
    pub fn cost(&self) -> Cost {
        let seconds = self.records.iter().map(|record| record.outcome.seconds).sum();
        let known = self.config.reference.map(|reference| reference.seconds);
        let bsp = known.or_else(|| self.mean_seconds(1.0));
        let chosen = match self.progress() {
            Progress::Found { fraction: 1.0, .. } => bsp,
            Progress::Found { fraction, .. } => self.mean_seconds(fraction),
            _ => None,
        };
        let saving = bsp.zip(chosen).map(|(bsp, chosen)| bsp - chosen);
        Cost {
            seconds,
            bsp_jobs: bsp.filter(|bsp| *bsp > 0.0).map(|bsp| seconds / bsp),
            saving,
            pay_back: saving.filter(|saving| *saving > 0.0).map(|saving| seconds / saving),
        }
    }
}

/// What a search cost and what it saves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Seconds of all recorded jobs.
    pub seconds: f64,
    /// The same in jobs under BSP, if it is known how long one takes.
    pub bsp_jobs: Option<f64>,
    /// Seconds that each later job saves against BSP; none before the search ends.
    pub saving: Option<f64>,
    /// How many later jobs save what the search cost; none if they save nothing.
    pub pay_back: Option<f64>,
}

/// Seconds of a job with this share of its samples under BSP, from those of pure jobs:
/// T(f) = f T_BSP + (1 - f) T_ASP. Without the switch itself.
pub fn predicted_seconds(fraction: f64, bsp_seconds: f64, asp_seconds: f64) -> f64 {
    fraction * bsp_seconds + (1.0 - fraction) * asp_seconds
}

fn require_seconds(seconds: f64) -> Result<()> {
    require(seconds.is_finite() && seconds >= 0.0, "seconds are not negative", seconds)
}

#[cfg(test)]
#[path = "timing_tests.rs"]
mod tests;

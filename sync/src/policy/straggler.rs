//! Which rank is slow, by what it did over the last windows.
//!
//! Owns the windows, the rules and the confirmation. Never acts: what a straggler means is for
//! others to say. Called once per step or window with the speeds of all ranks.
//!
//! The rule by standard deviations is Sync-Switch's (arXiv 2104.08364) as we recall it; its window
//! and its confirmation could not be read. The rule by median deviations is ours: a very slow rank
//! widens a standard deviation and hides behind it, but hardly moves a median.

use std::collections::VecDeque;
use std::time::Duration;

use super::require;
use super::statistics::{deviation, mean, median, median_deviation};
use crate::error::Result;

/// Below which speed a rank is suspected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Mean less this many standard deviations. One slow rank of n is at most sqrt(n - 1) of them
    /// below the mean, so from 5 ranks on 2 can be reached.
    Sigma {
        /// 1 in Sync-Switch, as we recall it.
        sigmas: f64,
    },
    /// Median less this many median absolute deviations.
    Mad {
        /// 3 is usual.
        k: f64,
    },
}

/// Settings of a [`Detector`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StragglerConfig {
    /// Below which speed a rank is suspected.
    pub rule: Rule,
    /// Observations of a rank that make its speed, at least 1.
    pub window: usize,
    /// Windows in a row that are needed to call a rank a straggler, and to clear it; at least 1.
    pub confirm: u32,
    /// A rank that is slower than the median by less than this share is never suspected, so that
    /// ranks that are equal but for noise are left alone; from 0 to below 1.
    pub min_gap: f64,
}

impl Default for StragglerConfig {
    fn default() -> Self {
        Self { rule: Rule::Mad { k: 3.0 }, window: 10, confirm: 5, min_gap: 0.1 }
    }
}

/// Ranks below which no rule can tell who is slow: of two, each is as far from the middle.
const LEAST_RANKS: usize = 3;

/// What the detector says of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Which.
    pub rank: usize,
    /// Whether it is held to be a straggler.
    pub is_straggler: bool,
    /// Whether this window changed that.
    pub has_changed: bool,
    /// What this window shows.
    pub evidence: Evidence,
}

/// What one window shows of one rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// The rank was compared with the others.
    Compared {
        /// Its speed.
        speed: f64,
        /// Below which it would be suspected.
        threshold: f64,
        /// Whether it is.
        is_suspect: bool,
        /// Windows in a row that have spoken against the verdict in force before this one.
        against: u32,
        /// The same in words, with the rule and its numbers.
        reason: String,
    },
    /// Fewer than three ranks have a full window; the verdict stays.
    TooFew,
    /// This rank gave no number, or has no full window yet; the verdict stays.
    Unknown,
}

/// Finds stragglers.
#[derive(Clone, Debug)]
pub struct Detector {
    config: StragglerConfig,
    ranks: Vec<Observed>,
}

#[derive(Clone, Debug, Default)]
struct Observed {
    speeds: VecDeque<f64>,
    is_straggler: bool,
    against: u32,
}

/// What all ranks together make of a window.
struct Comparison {
    centre: f64,
    spread: f64,
    median: f64,
    threshold: f64,
}

impl Detector {
    /// A detector for this many ranks. Make another when the membership changes.
    ///
    /// # Errors
    /// [`Config`](crate::Error::Config) that names the first setting that cannot work.
    pub fn new(config: StragglerConfig, world_size: usize) -> Result<Self> {
        let factor = match config.rule {
            Rule::Sigma { sigmas: factor } | Rule::Mad { k: factor } => factor,
        };
        require(factor.is_finite() && factor > 0.0, "the rule's factor is above 0", factor)?;
        require(config.window > 0, "a window has an observation", config.window)?;
        require(config.confirm > 0, "confirm is at least 1", config.confirm)?;
        let gap = config.min_gap;
        require((0.0..1.0).contains(&gap), "the least gap lies in 0..1", gap)?;
        Ok(Self { config, ranks: vec![Observed::default(); world_size] })
    }

    /// Takes in one speed per rank, such as samples per second of computation, and says of each
    /// rank what it is. A rank that has none gives `None`; numbers that are negative or not finite
    /// count as none. Time that a rank spends waiting for others must not be in its speed.
    ///
    /// # Panics
    /// If there is not one entry per rank.
    pub fn observe(&mut self, speeds: &[Option<f64>]) -> Vec<Verdict> {
        assert_eq!(speeds.len(), self.ranks.len(), "one speed per rank");
        let window = self.config.window;
        let levels: Vec<Option<f64>> = self
            .ranks
            .iter_mut()
            .zip(speeds)
            .map(|(rank, speed)| {
                let speed = speed.filter(|speed| speed.is_finite() && *speed >= 0.0)?;
                rank.speeds.push_back(speed);
                if rank.speeds.len() > window {
                    rank.speeds.pop_front();
                }
                let speeds = rank.speeds.make_contiguous();
                (speeds.len() == window).then(|| self.config.rule.level(speeds))
            })
            .collect();
        let known: Vec<f64> = levels.iter().flatten().copied().collect();
        let seen = (known.len() >= LEAST_RANKS).then(|| self.config.compare(&known));
        let config = self.config;
        let ranks = self.ranks.iter_mut().zip(levels).enumerate();
        ranks
            .map(|(rank, (state, level))| state.judge(rank, level, seen.as_ref(), &config))
            .collect()
    }

    /// Ranks held to be stragglers, ascending.
    pub fn stragglers(&self) -> Vec<usize> {
        (0..self.ranks.len()).filter(|rank| self.ranks[*rank].is_straggler).collect()
    }
}

impl Observed {
    fn judge(
        &mut self,
        rank: usize,
        level: Option<f64>,
        seen: Option<&Comparison>,
        config: &StragglerConfig,
    ) -> Verdict {
        let (evidence, has_changed) = match (level, seen) {
            (None, _) => (Evidence::Unknown, false),
            (Some(_), None) => (Evidence::TooFew, false),
            (Some(speed), Some(seen)) => self.count(speed, seen, config),
        };
        Verdict { rank, is_straggler: self.is_straggler, has_changed, evidence }
    }

    /// Counts windows against the verdict in force, and turns it when they are enough.
    fn count(
        &mut self,
        speed: f64,
        seen: &Comparison,
        config: &StragglerConfig,
    ) -> (Evidence, bool) {
        let is_suspect = speed < seen.threshold;
        self.against = if is_suspect == self.is_straggler { 0 } else { self.against + 1 };
        let against = self.against;
        let has_changed = against >= config.confirm;
        if has_changed {
            self.is_straggler = is_suspect;
            self.against = 0;
        }
        let reason = config.words(speed, seen);
        let threshold = seen.threshold;
        (Evidence::Compared { speed, threshold, is_suspect, against, reason }, has_changed)
    }
}

impl Rule {
    /// A rank's speed over a window: by the median, one odd step does not count.
    fn level(self, speeds: &[f64]) -> f64 {
        match self {
            Self::Sigma { .. } => mean(speeds),
            Self::Mad { .. } => median(speeds),
        }
    }
}

impl StragglerConfig {
    fn compare(&self, speeds: &[f64]) -> Comparison {
        let (centre, spread, factor) = match self.rule {
            Rule::Sigma { sigmas } => (mean(speeds), deviation(speeds), sigmas),
            Rule::Mad { k } => (median(speeds), median_deviation(speeds), k),
        };
        let median = median(speeds);
        // The gap bounds it: with equal speeds the spread is nothing, and any noise would count.
        let threshold = (centre - factor * spread).min((1.0 - self.min_gap) * median);
        Comparison { centre, spread, median, threshold }
    }

    fn words(&self, speed: f64, seen: &Comparison) -> String {
        let Comparison { centre, spread, median, threshold } = seen;
        let rule = match self.rule {
            Rule::Sigma { sigmas } => {
                format!("mean {centre:.3} - {sigmas} x deviation {spread:.3}")
            }
            Rule::Mad { k } => format!("median {centre:.3} - {k} x median deviation {spread:.3}"),
        };
        let sign = if speed < *threshold { "<" } else { ">=" };
        let (whole, share) = (1.0 - self.min_gap, speed / median.max(f64::MIN_POSITIVE));
        format!(
            "speed {speed:.3} {sign} {threshold:.3}, the lesser of {rule} and {whole} of the \
             median {median:.3}; {share:.2} of the median"
        )
    }
}

/// Samples per second of a step that computed for so long; none if that is no time at all.
pub fn speed(samples: u64, compute: Duration) -> Option<f64> {
    (!compute.is_zero()).then(|| samples as f64 / compute.as_secs_f64())
}

#[cfg(test)]
#[path = "straggler_tests.rs"]
mod tests;

//! The phase of a job, BSP or relaxed, from the noise of its gradients: no search.
//!
//! Owns the comparison of staleness with noise, and what ends a relaxed phase. Never measures: the
//! norms come from whoever has both the gradient of this rank and the average of all, with one sum
//! over the ranks so that all have the same. Called once per window of steps.
//!
//! The rule is ours, in place of a search for a switch point. With learning rate r, smoothness L,
//! signal s (the squared norm of the true gradient) and noise v (the variance of the average
//! gradient), one step of SGD pays L r v for noise. A gradient at parameters that lack the last k
//! updates is off by at most L times their distance, whose mean square is r^2 (k^2 s + k v): the
//! signal in k updates adds up, the noise does not. So, relative to what noise costs anyway,
//!
//! ```text
//! staleness / noise = L r (k^2 s / v + k)
//! ```
//!
//! Early in training s / v is large and staleness dominates; later it drowns in noise. The phase is
//! relaxed while the quotient is small. L is not known: `rate_smoothness` stands for L r at the
//! highest rate seen, and is at most 1/2 where the bound holds. Its default is not measured.

use std::borrow::Cow;

use super::require;
use super::statistics::LossAverage;
use crate::error::Result;

/// How the ranks synchronise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// All wait for all.
    Bsp,
    /// Updates may be missing: OSP with much deferred, SSP, ASP.
    Relaxed,
}

/// Settings of a [`PhasePolicy`], the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhaseConfig {
    /// Relaxed from where staleness costs at most this share of what noise costs.
    pub tolerance: f64,
    /// BSP again from where it costs more than this many times the tolerance; at least 1.
    pub hysteresis: f64,
    /// Samples that a phase lasts at least. An alarm ends a relaxed phase earlier.
    pub dwell_samples: u64,
    /// Updates that a relaxed phase may lack: k. About world_size - 1 for ASP, 1 for OSP.
    pub staleness: u32,
    /// L r at the highest rate seen, above 0 and at most 1/2.
    pub rate_smoothness: f64,
    /// Weight of the past in the means of signal and noise and loss, from 0 to below 1.
    pub smoothing: f64,
    /// A loss this many mean distances above the mean is a spike.
    pub spike_factor: f64,
    /// A fall of the rate by at least this share from one window to the next is a drop.
    pub rate_drop: f64,
}

impl Default for PhaseConfig {
    fn default() -> Self {
        Self {
            tolerance: 0.1,
            hysteresis: 2.0,
            dwell_samples: 10_000,
            staleness: 1,
            rate_smoothness: 0.02,
            smoothing: 0.9,
            spike_factor: 6.0,
            rate_drop: 0.3,
        }
    }
}

/// What a window of steps has shown, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Samples that all ranks together have taken in so far; never less than before.
    pub samples: u64,
    /// Squared norm of the average gradient.
    pub average_norm2: f64,
    /// Mean over the ranks of the squared distance of a rank's gradient from the average.
    pub distance2: f64,
    /// Mean training loss over all ranks.
    pub loss: f64,
    /// The learning rate of one average update, whatever the phase makes of it.
    pub rate: f64,
    /// Ranks.
    pub world_size: u32,
}

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The phase has not lasted long enough.
    Dwell,
    /// The loss rose far above its mean.
    LossSpike,
    /// Staleness compared with noise.
    Noise,
    /// A number that is none.
    NotFinite,
    /// There is but one rank, whose gradient has no other to differ from.
    OneRank,
    /// The learning rate fell.
    RateDrop,
}

/// A phase and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The phase from here on.
    pub phase: Phase,
    /// What decided.
    pub cause: Cause,
    /// Staleness relative to noise, if this window gave one.
    pub ratio: Option<f64>,
    /// The same in words, with the numbers.
    pub reason: Cow<'static, str>,
}

/// Chooses the phase; starts with BSP.
#[derive(Clone, Debug)]
pub struct PhasePolicy {
    config: PhaseConfig,
    phase: Phase,
    /// Samples when the phase began, or was confirmed by an alarm.
    since: u64,
    means: Option<Means>,
    loss: LossAverage,
    last_rate: f64,
    highest_rate: f64,
}

/// Running means of what the norms estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Means {
    average_norm2: f64,
    noise: f64,
}

impl PhasePolicy {
    /// A policy at the start of a job.
    ///
    /// # Errors
    /// [`Config`](crate::Error::Config) that names the first setting that cannot work.
    pub fn new(config: PhaseConfig) -> Result<Self> {
        let is_positive = |value: f64| value.is_finite() && value > 0.0;
        require(is_positive(config.tolerance), "the tolerance is above 0", config.tolerance)?;
        let hysteresis = config.hysteresis;
        let is_wide = hysteresis.is_finite() && hysteresis >= 1.0;
        require(is_wide, "the hysteresis is at least 1", hysteresis)?;
        let product = config.rate_smoothness;
        require(product > 0.0 && product <= 0.5, "rate_smoothness is above 0, up to 0.5", product)?;
        let smoothing = config.smoothing;
        require((0.0..1.0).contains(&smoothing), "smoothing lies in 0..1", smoothing)?;
        require(is_positive(config.spike_factor), "the factor is above 0", config.spike_factor)?;
        let drop = config.rate_drop;
        require(drop > 0.0 && drop < 1.0, "a drop is above 0 and below 1", drop)?;
        Ok(Self {
            config,
            phase: Phase::Bsp,
            since: 0,
            means: None,
            loss: LossAverage::new(smoothing),
            last_rate: 0.0,
            highest_rate: 0.0,
        })
    }

    /// The phase in force.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The phase after this window.
    pub fn decide(&mut self, window: &Window) -> Decision {
        if let Some((cause, reason)) = self.alarm(window) {
            (self.phase, self.since) = (Phase::Bsp, window.samples);
            return Decision { phase: Phase::Bsp, cause, ratio: None, reason };
        }
        if window.world_size < 2 {
            let reason = Cow::Borrowed("one rank exchanges nothing");
            return Decision { phase: self.phase, cause: Cause::OneRank, ratio: None, reason };
        }
        let ratio = self.ratio(window);
        let PhaseConfig { tolerance, hysteresis, dwell_samples, .. } = self.config;
        let (wanted, limit) = match self.phase {
            Phase::Bsp if ratio <= tolerance => (Phase::Relaxed, tolerance),
            Phase::Bsp => (Phase::Bsp, tolerance),
            Phase::Relaxed if ratio > hysteresis * tolerance => {
                (Phase::Bsp, hysteresis * tolerance)
            }
            Phase::Relaxed => (Phase::Relaxed, hysteresis * tolerance),
        };
        let lasted = window.samples.saturating_sub(self.since);
        let is_early = wanted != self.phase && lasted < dwell_samples;
        let cause = if is_early { Cause::Dwell } else { Cause::Noise };
        let reason = if is_early {
            format!("{lasted} samples of at least {dwell_samples}: {:?} stays", self.phase)
        } else {
            let sign = if ratio <= limit { "<=" } else { ">" };
            format!("staleness costs {ratio:.4} of what noise costs, {sign} {limit:.4}")
        };
        if wanted != self.phase && !is_early {
            (self.phase, self.since) = (wanted, window.samples);
        }
        Decision { phase: self.phase, cause, ratio: Some(ratio), reason: reason.into() }
    }

    /// What ends a relaxed phase at once. Takes in loss and rate.
    fn alarm(&mut self, window: &Window) -> Option<(Cause, Cow<'static, str>)> {
        let Window { average_norm2, distance2, loss, rate, .. } = *window;
        if [average_norm2, distance2, loss, rate].iter().any(|number| !number.is_finite()) {
            let reason = format!(
                "not finite: loss {loss}, norms {average_norm2} and {distance2}, or rate {rate}"
            );
            return Some((Cause::NotFinite, reason.into()));
        }
        let last = std::mem::replace(&mut self.last_rate, rate);
        self.highest_rate = self.highest_rate.max(rate);
        let spike = self.loss.threshold(self.config.spike_factor).filter(|most| loss > *most);
        self.loss.add(loss);
        if rate < last * (1.0 - self.config.rate_drop) {
            // The noise of the rate before says nothing of what comes.
            self.means = None;
            return Some((Cause::RateDrop, format!("the rate fell from {last} to {rate}").into()));
        }
        let most = spike?;
        let reason = format!("the loss of {loss:.4} is a spike: above {most:.4}");
        Some((Cause::LossSpike, reason.into()))
    }

    /// Staleness relative to noise, from the running means of both norms.
    fn ratio(&mut self, window: &Window) -> f64 {
        // Of n gradients, the mean squared distance is (n - 1) / n of a gradient's variance, and
        // the variance of their average is one n-th of it.
        let noise = window.distance2.max(0.0) / f64::from(window.world_size - 1);
        let smoothing = self.config.smoothing;
        let mix = |past: f64, value: f64| smoothing * past + (1.0 - smoothing) * value;
        let means =
            self.means.map_or(Means { average_norm2: window.average_norm2, noise }, |past| Means {
                average_norm2: mix(past.average_norm2, window.average_norm2),
                noise: mix(past.noise, noise),
            });
        self.means = Some(means);
        // The squared norm of the average holds its noise too.
        let signal = (means.average_norm2 - means.noise).max(0.0);
        let share = if self.highest_rate > 0.0 { window.rate / self.highest_rate } else { 1.0 };
        let product = self.config.rate_smoothness * share;
        staleness_to_noise(signal, means.noise, self.config.staleness, product)
    }
}

/// What staleness costs relative to noise: L r (k^2 s / v + k), for signal s, noise v, staleness k
/// and `rate_smoothness` L r. Infinite without noise, unless nothing is stale.
pub fn staleness_to_noise(signal: f64, noise: f64, staleness: u32, rate_smoothness: f64) -> f64 {
    if staleness == 0 {
        return 0.0;
    }
    if noise <= 0.0 {
        return f64::INFINITY;
    }
    let updates = f64::from(staleness);
    rate_smoothness * (updates * updates * (signal / noise) + updates)
}

#[cfg(test)]
#[path = "phase_tests.rs"]
mod tests;

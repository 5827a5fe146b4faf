//! The configuration policy: batch, rate and momentum on either side of a switch.
//!
//! Owns the hyper-parameters that go with a protocol, and the translation of samples into steps.
//! Never decides when to switch. Called by whoever drives a session through a switch.
//!
//! The rules are those of Sync-Switch (arXiv 2104.08364), read from its released code and logs.
//! With n workers, B samples per worker and a rate r for B samples, an update of BSP takes n B
//! samples at rate n r; one of ASP takes B samples at rate r. A rate that stays at n r when the
//! batch shrinks makes the loss NaN.

use super::require;
use crate::error::Result;

/// How workers wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Not at all: each update has the gradient of one worker.
    Asp,
    /// Every step: each update has the average of all.
    Bsp,
}

/// What becomes of the momentum under ASP. In the released runs of Sync-Switch, keeping it gave the
/// best accuracy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Momentum {
    /// It stays.
    #[default]
    Keep,
    /// It is none.
    Zero,
    /// It is divided by the workers.
    Scaled,
    /// Divided by the workers for so many updates, then whole.
    Delayed {
        /// Updates since the switch.
        updates: u64,
    },
    /// 1/n of it, then 2/n, 3/n, until it is whole.
    RampLinear {
        /// Updates from one to the next, at least 1.
        every: u64,
    },
    /// 1/n of it, then 2/n, 4/n, until it is whole.
    RampMultiplicative {
        /// Updates from one to the next, at least 1.
        every: u64,
    },
}

/// What is the same on both sides of a switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Configuration {
    /// Samples per worker and step: B.
    pub batch: u32,
    /// The momentum under BSP, from 0 to below 1.
    pub momentum: f32,
    /// What becomes of it under ASP.
    pub policy: Momentum,
}

/// What goes with a protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Samples that each update takes in.
    pub samples_per_update: u64,
    /// The learning rate.
    pub rate: f32,
    /// The momentum.
    pub momentum: f32,
}

impl Configuration {
    /// The settings for a protocol with this many workers. `rate` is the one for `batch` samples,
    /// as a [schedule](super::schedule) gives it; `updates` counts those since the switch to ASP.
    ///
    /// After k of n workers are evicted, pass n - k.
    pub fn settings(&self, protocol: Protocol, workers: u32, rate: f32, updates: u64) -> Settings {
        let batch = u64::from(self.batch);
        match protocol {
            Protocol::Asp => Settings {
                samples_per_update: batch,
                rate,
                momentum: self.momentum * self.policy.share(workers, updates),
            },
            Protocol::Bsp => Settings {
                samples_per_update: batch * u64::from(workers),
                rate: rate * workers as f32,
                momentum: self.momentum,
            },
        }
    }
}

impl Momentum {
    /// Share of the momentum in force, this many updates after the switch to ASP.
    pub fn share(self, workers: u32, updates: u64) -> f32 {
        let workers = u64::from(workers.max(1));
        let parts = match self {
            Self::Keep => workers,
            Self::Zero => 0,
            Self::Scaled => 1,
            Self::Delayed { updates: least } if updates >= least => workers,
            Self::Delayed { .. } => 1,
            Self::RampLinear { every } => updates / every.max(1) + 1,
            // Shifted by at most 32, which is more than any u32 of workers.
            Self::RampMultiplicative { every } => 1 << (updates / every.max(1)).min(32),
        };
        parts.min(workers) as f32 / workers as f32
    }
}

/// A job's work, which a switch divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Samples of the whole job, all workers and epochs together.
    pub total_samples: u64,
}

/// Steps of both phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Under BSP first.
    pub bsp: u64,
    /// Updates under ASP then, of all workers together.
    pub asp: u64,
}

impl Workload {
    /// Samples under BSP if that has this share of the work, to the nearest one.
    ///
    /// # Errors
    /// [`Config`](crate::Error::Config) if the share is not in 0..=1.
    pub fn quota(&self, fraction: f64) -> Result<u64> {
        require((0.0..=1.0).contains(&fraction), "a share of the work lies in 0..=1", fraction)?;
        Ok(((fraction * self.total_samples as f64).round() as u64).min(self.total_samples))
    }

    /// Steps of both phases after `done` samples under BSP, with this many workers under BSP and
    /// `batch` samples per worker. The last step of each phase may take in a part of a batch more
    /// than its share: no sample is left out.
    ///
    /// # Errors
    /// [`Config`](crate::Error::Config) if the share is not in 0..=1, or there is no worker or no
    /// batch.
    pub fn remaining(&self, fraction: f64, done: u64, workers: u32, batch: u32) -> Result<Steps> {
        require(workers > 0, "there is at least one worker", workers)?;
        require(batch > 0, "a batch has at least one sample", batch)?;
        let batch = u64::from(batch);
        let per_step = batch * u64::from(workers);
        let bsp = self.quota(fraction)?.saturating_sub(done).div_ceil(per_step);
        let after = done.saturating_add(bsp.saturating_mul(per_step));
        Ok(Steps { bsp, asp: self.total_samples.saturating_sub(after).div_ceil(batch) })
    }

    /// Steps of both phases of the whole job.
    ///
    /// # Errors
    /// As [`Self::remaining`].
    pub fn steps(&self, fraction: f64, workers: u32, batch: u32) -> Result<Steps> {
        self.remaining(fraction, 0, workers, batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURATION: Configuration =
        Configuration { batch: 128, momentum: 0.9, policy: Momentum::Keep };

    #[test]
    fn batch_and_rate_change_together() {
        let settings = |protocol, workers| CONFIGURATION.settings(protocol, workers, 0.125, 7);
        let bsp = Settings { samples_per_update: 1024, rate: 1.0, momentum: 0.9 };
        assert_eq!(settings(Protocol::Bsp, 8), bsp);
        let asp = Settings { samples_per_update: 128, rate: 0.125, momentum: 0.9 };
        assert_eq!(settings(Protocol::Asp, 8), asp);
        // Two of eight evicted.
        let elastic = Settings { samples_per_update: 768, rate: 0.75, momentum: 0.9 };
        assert_eq!(settings(Protocol::Bsp, 6), elastic);
        // The rate per sample is the same throughout.
        for (protocol, workers) in [(Protocol::Bsp, 8), (Protocol::Bsp, 6), (Protocol::Asp, 8)] {
            let settings = settings(protocol, workers);
            assert_eq!(settings.rate / settings.samples_per_update as f32, 0.125 / 128.0);
        }
    }

    #[test]
    fn momentum_variants_by_hand() {
        let shares = |policy: Momentum, updates: &[u64]| -> Vec<f32> {
            updates.iter().map(|updates| policy.share(8, *updates)).collect()
        };
        assert_eq!(shares(Momentum::Keep, &[0, 9]), [1.0, 1.0]);
        assert_eq!(shares(Momentum::Zero, &[0, 9]), [0.0, 0.0]);
        assert_eq!(shares(Momentum::Scaled, &[0, 1 << 40]), [0.125, 0.125]);
        let delayed = Momentum::Delayed { updates: 4000 };
        assert_eq!(shares(delayed, &[0, 3999, 4000]), [0.125, 0.125, 1.0]);
        let linear = Momentum::RampLinear { every: 2000 };
        assert_eq!(
            shares(linear, &[0, 1999, 2000, 13_999, 14_000]),
            [0.125, 0.125, 0.25, 0.875, 1.0]
        );
        assert_eq!(shares(linear, &[u64::MAX - 1]), [1.0]);
        let multiplicative = Momentum::RampMultiplicative { every: 6400 };
        let updates = [6399, 6400, 12_800, 19_200, u64::MAX];
        assert_eq!(shares(multiplicative, &updates), [0.125, 0.25, 0.5, 1.0, 1.0]);
        // Momentum under BSP is left alone.
        let zero = Configuration { policy: Momentum::Zero, ..CONFIGURATION };
        assert_eq!(zero.settings(Protocol::Bsp, 8, 0.1, 0).momentum, 0.9);
    }

    /// Steps of the released logs, where ASP goes on counting from BSP's last step.
    #[test]
    fn steps_of_the_three_published_setups() {
        let steps = |asp_steps: u64, fraction, workers| {
            let workload = Workload { total_samples: asp_steps * 128 };
            workload.steps(fraction, workers, 128).unwrap()
        };
        assert_eq!(steps(64_000, 0.05, 8), Steps { bsp: 400, asp: 60_800 });
        let second = steps(128_000, 0.125, 8);
        assert_eq!((second.bsp, second.bsp + second.asp), (2000, 114_000));
        let third = steps(64_000, 0.5, 16);
        assert_eq!((third.bsp, third.bsp + third.asp), (2000, 34_000));
        assert_eq!(steps(64_000, 1.0, 8), Steps { bsp: 8000, asp: 0 });
        assert_eq!(steps(64_000, 0.0, 8), Steps { bsp: 0, asp: 64_000 });
    }

    #[test]
    fn eviction_makes_the_rest_longer() {
        let workload = Workload { total_samples: 64_000 * 128 };
        // Half of the 400 steps are done; six workers do the rest of the quota.
        let rest = workload.remaining(0.05, 200 * 1024, 6, 128).unwrap();
        assert_eq!(rest.bsp, (200_u64 * 1024).div_ceil(768));
        // The last step overshoots by 256 samples, which ASP has no need to repeat.
        assert_eq!(rest, Steps { bsp: 267, asp: 60_798 });
    }

    #[test]
    fn no_sample_is_left_out() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..2000 {
            let workload = Workload { total_samples: random.u64(0..5000) };
            let (workers, batch) = (random.u32(1..9), random.u32(1..50));
            let done = random.u64(0..6000);
            let steps = workload.remaining(random.f64(), done, workers, batch).unwrap();
            let batch = u64::from(batch);
            let all = done + steps.bsp * batch * u64::from(workers) + steps.asp * batch;
            assert!(all >= workload.total_samples);
            let most = batch * u64::from(workers);
            assert!(steps.bsp == 0 && steps.asp == 0 || all < workload.total_samples + most);
        }
    }

    #[test]
    fn bad_shares_are_refused() {
        let workload = Workload { total_samples: 10 };
        for fraction in [-0.1, 1.1, f64::NAN] {
            assert!(workload.steps(fraction, 1, 1).is_err());
        }
        assert!(workload.steps(0.5, 0, 1).is_err());
        assert!(workload.steps(0.5, 1, 0).is_err());
    }
}

//! How many samples each rank takes, when ranks differ in speed.
//!
//! Owns the split of a fixed global batch. Never measures a speed. Called once per window, at a
//! step that all ranks have in common.
//!
//! The rule is that of R2SP's extension to unequal workers (INFOCOM 2019), read from its abstract:
//! the batch of a rank is proportional to its speed, and the sum stays, so that all ranks need the
//! same time and the learning rate need not change. Since batches differ, so do the weights of the
//! ranks' mean gradients: see [`Decision::weights`].

use std::borrow::Cow;

use super::require;
use crate::error::Result;

/// A rank's part of the global batch of a step: the parts of all ranks lie one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Samples of the ranks before it.
    pub start: u32,
    /// Its own, at least 1.
    pub samples: u32,
}

impl Batch {
    /// The parts of a split, in order of ranks.
    pub fn parts(batches: &[u32]) -> Vec<Self> {
        let starts = batches.iter().scan(0, |next, samples| {
            let start = *next;
            *next += samples;
            Some(start)
        });
        starts.zip(batches).map(|(start, samples)| Self { start, samples: *samples }).collect()
    }
}

/// A split of the global batch and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Samples of each rank, at least 1; the sum never changes.
    pub batches: Vec<u32>,
    /// Whether it is another split than before.
    pub has_changed: bool,
    /// Why, with the numbers.
    pub reason: Cow<'static, str>,
}

impl Decision {
    /// What each rank's mean gradient counts in the average of all: its share of the samples.
    pub fn weights(&self) -> Vec<f32> {
        let total: u64 = self.batches.iter().map(|batch| u64::from(*batch)).sum();
        self.batches.iter().map(|batch| (f64::from(*batch) / total as f64) as f32).collect()
    }
}

/// Splits the global batch, and leaves the split alone while another gains little.
#[derive(Clone, Debug)]
pub struct BatchPolicy {
    total: u32,
    least_gain: f64,
    batches: Vec<u32>,
}

impl BatchPolicy {
    /// Equal parts of `total` samples, until speeds are known. The split changes only if that makes
    /// the time of the slowest rank shorter by more than `least_gain`, a share from 0 to below 1.
    ///
    /// # Errors
    /// [`Config`](crate::Error::Config) if there is less than one sample per rank, or no rank.
    pub fn new(total: u32, world_size: usize, least_gain: f64) -> Result<Self> {
        require(world_size > 0, "there is at least one rank", world_size)?;
        let is_enough = usize::try_from(total).is_ok_and(|total| total >= world_size);
        require(is_enough, "the global batch has a sample per rank", total)?;
        require((0.0..1.0).contains(&least_gain), "the least gain lies in 0..1", least_gain)?;
        let batches = proportional(total, &vec![1.0; world_size]);
        Ok(Self { total, least_gain, batches })
    }

    /// The split in force.
    pub fn batches(&self) -> &[u32] {
        &self.batches
    }

    /// The split for these speeds, in samples per second, one per rank. Speeds that are not above 0
    /// and finite leave it as it is.
    ///
    /// # Panics
    /// If there is not one speed per rank.
    pub fn decide(&mut self, speeds: &[f64]) -> Decision {
        assert_eq!(speeds.len(), self.batches.len(), "one speed per rank");
        if let Some(rank) = speeds.iter().position(|speed| !speed.is_normal() || *speed < 0.0) {
            let reason = format!("the speed of rank {rank} is {}: no change", speeds[rank]);
            return self.keep(reason);
        }
        let batches = proportional(self.total, speeds);
        if batches == self.batches {
            return self.keep("the split fits the speeds");
        }
        let (before, after) = (longest(&self.batches, speeds), longest(&batches, speeds));
        let gain = 1.0 - after / before;
        let per_cent = 100.0 * gain;
        // Written so that a gain that is no number changes nothing.
        let is_worth_it = gain > self.least_gain;
        if !is_worth_it {
            let least = 100.0 * self.least_gain;
            return self.keep(format!("a gain of {per_cent:.1} %, {least:.1} % needed: no change"));
        }
        self.batches = batches;
        let reason =
            format!("a step of {after:.4} s instead of {before:.4} s: {per_cent:.1} % less");
        Decision { batches: self.batches.clone(), has_changed: true, reason: reason.into() }
    }

    fn keep(&self, reason: impl Into<Cow<'static, str>>) -> Decision {
        Decision { batches: self.batches.clone(), has_changed: false, reason: reason.into() }
    }
}

/// Seconds of the rank that takes longest.
fn longest(batches: &[u32], speeds: &[f64]) -> f64 {
    let seconds = batches.iter().zip(speeds).map(|(batch, speed)| f64::from(*batch) / speed);
    seconds.fold(0.0, f64::max)
}

/// `total` samples in proportion to these speeds, at least one each: the whole parts of the exact
/// shares, then one sample at a time to whom, or from whom, most is due. Of equals, the first.
fn proportional(total: u32, speeds: &[f64]) -> Vec<u32> {
    // By the largest speed, so that no sum overflows.
    let largest = speeds.iter().copied().fold(0.0, f64::max);
    let sum: f64 = speeds.iter().map(|speed| speed / largest).sum();
    let shares: Vec<f64> =
        speeds.iter().map(|speed| f64::from(total) * (speed / largest / sum)).collect();
    let mut batches: Vec<u32> = shares.iter().map(|share| (share.floor() as u32).max(1)).collect();
    let due = |batches: &[u32], rank: usize| shares[rank] - f64::from(batches[rank]);
    loop {
        let given: u64 = batches.iter().map(|batch| u64::from(*batch)).sum();
        if given == u64::from(total) {
            return batches;
        }
        let is_short = given < u64::from(total);
        let sign = if is_short { 1.0 } else { -1.0 };
        let may_change = |rank: &usize| is_short || batches[*rank] > 1;
        let worth = |rank: usize| sign * due(&batches, rank);
        let ranks = (0..batches.len()).rev().filter(may_change);
        let Some(rank) = ranks.max_by(|a, b| worth(*a).total_cmp(&worth(*b))) else {
            return batches;
        };
        batches[rank] = if is_short { batches[rank] + 1 } else { batches[rank] - 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_by_hand() {
        assert_eq!(proportional(12, &[1.0, 2.0, 3.0]), [2, 4, 6]);
        assert_eq!(proportional(10, &[1.0, 1.0, 1.0]), [4, 3, 3]);
        // Shares 3.5, 3.5: the odd sample goes to the first.
        assert_eq!(proportional(7, &[5.0, 5.0]), [4, 3]);
        // Shares 0.0099, 9.9: one sample is the least.
        assert_eq!(proportional(10, &[1.0, 1000.0]), [1, 9]);
        assert_eq!(proportional(3, &[1.0, 1e300, 1e300]), [1, 1, 1]);
        assert_eq!(proportional(8, &[f64::MAX, f64::MAX]), [4, 4]);
    }

    #[test]
    fn parts_lie_one_after_another() {
        let part = |start, samples| Batch { start, samples };
        assert_eq!(Batch::parts(&[4, 3, 1]), [part(0, 4), part(4, 3), part(7, 1)]);
    }

    #[test]
    fn sums_stay_and_no_rank_is_more_than_a_sample_off() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..2000 {
            let world_size = random.usize(1..17);
            let total = random.u32(16..3000);
            let speeds: Vec<f64> = (0..world_size).map(|_| 0.5 + random.f64()).collect();
            let batches = proportional(total, &speeds);
            assert_eq!(batches.iter().sum::<u32>(), total);
            let sum: f64 = speeds.iter().sum();
            for (batch, speed) in batches.iter().zip(&speeds) {
                assert!(*batch >= 1);
                let share = f64::from(total) * speed / sum;
                let distance = (f64::from(*batch) - share).abs();
                assert!(distance <= 1.0 || share < 1.5, "{batch} of {share}");
            }
        }
    }

    #[test]
    fn extreme_speeds_keep_the_sum() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..1000 {
            let world_size = random.usize(1..17);
            let total = random.u32(world_size as u32..200);
            let mut speed = || (0..random.i32(0..60)).fold(1.0, |speed, _| speed * 1e5);
            let speeds: Vec<f64> = (0..world_size).map(|_| speed()).collect();
            let batches = proportional(total, &speeds);
            assert_eq!(batches.iter().sum::<u32>(), total, "{speeds:?}");
            assert!(batches.iter().all(|batch| *batch >= 1));
        }
    }

    #[test]
    fn a_slow_rank_gets_less_and_the_gain_is_named() {
        let mut policy = BatchPolicy::new(64, 4, 0.05).unwrap();
        assert_eq!(policy.batches(), [16; 4]);
        let decision = policy.decide(&[100.0, 100.0, 100.0, 20.0]);
        assert_eq!(
            (decision.batches.as_slice(), decision.has_changed),
            (&[20, 20, 20, 4][..], true)
        );
        assert!(decision.reason.contains("0.2000 s instead of 0.8000 s: 75.0 %"), "{decision:?}");
        assert_eq!(decision.weights(), [0.3125, 0.3125, 0.3125, 0.0625]);
        // Back to equal speeds, back to equal parts.
        assert_eq!(policy.decide(&[50.0; 4]).batches, [16; 4]);
    }

    #[test]
    fn small_noise_changes_nothing() {
        let mut policy = BatchPolicy::new(512, 8, 0.05).unwrap();
        let mut random = fastrand::Rng::with_seed(3);
        let mut speeds = |slow: f64| -> Vec<f64> {
            let base = |rank| if rank == 7 { slow } else { 100.0 };
            (0..8).map(|rank| base(rank) * (1.0 + 0.02 * (random.f64() - 0.5))).collect()
        };
        assert!((0..500).all(|_| !policy.decide(&speeds(100.0)).has_changed));
        assert!(policy.decide(&speeds(50.0)).has_changed);
        assert!((0..500).all(|_| !policy.decide(&speeds(50.0)).has_changed));
    }

    #[test]
    fn speeds_that_are_none_change_nothing() {
        let mut policy = BatchPolicy::new(6, 2, 0.0).unwrap();
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let decision = policy.decide(&[1.0, bad]);
            assert_eq!((decision.batches.as_slice(), decision.has_changed), (&[3, 3][..], false));
            assert!(decision.reason.contains("rank 1"), "{decision:?}");
        }
    }

    #[test]
    fn too_few_samples_are_refused() {
        assert!(BatchPolicy::new(3, 4, 0.05).is_err());
        assert!(BatchPolicy::new(3, 0, 0.05).is_err());
        assert!(BatchPolicy::new(8, 4, 1.0).is_err());
    }
}

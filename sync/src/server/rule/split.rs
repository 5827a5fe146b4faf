//! R2SP's batches, at the shard of rank 0: who is slow takes fewer samples.
//!
//! Owns the speeds that workers told, and the split that follows from them by
//! [`BatchPolicy`]. Never changes a split within a round, so that the batches of a step add up to
//! the same sum on whatever rank: since workers have their turns one after another, what is decided
//! at a turn of worker 0 is told to all before the next. Called by [`super::turns`].
//!
//! ```text
//! turn of worker 0 ── speeds since last look ──▶ split ──▶ replies of this round ──▶ next steps
//! ```
//!
//! A delay that does not shrink with the batch drives its worker to a single sample.

use crate::error::{Error, Result};
use crate::policy::batch::{Batch, BatchPolicy};
use crate::server::config::BatchRule;

/// A worker's first pushes, whose times are no measure of what comes: as for the gap.
const SKIPPED: u32 = 4;

/// The split in force, and what the next one will follow from.
#[derive(Debug)]
pub(super) struct Split {
    policy: BatchPolicy,
    every: u32,
    /// Since the last look at the speeds.
    rounds: u32,
    speeds: Vec<Told>,
    parts: Vec<Batch>,
}

/// What one worker told since the last look.
#[derive(Clone, Debug, Default)]
struct Told {
    skipped: u32,
    sample_ns: u64,
    count: u32,
}

impl Split {
    /// Equal parts, each of `batch` samples, for a start; `None` if they are never to change.
    ///
    /// # Errors
    /// [`Error::Config`] if all together take more samples than can be counted.
    pub(super) fn new(rule: BatchRule, workers: usize, batch: Option<u32>) -> Result<Option<Self>> {
        let (BatchRule::BySpeed { every, least_gain }, Some(batch)) = (rule, batch) else {
            return Ok(None);
        };
        let total = u32::try_from(workers).ok().and_then(|workers| batch.checked_mul(workers));
        let too_many = || Error::Config { reason: format!("{workers} batches of {batch} samples") };
        let policy = BatchPolicy::new(total.ok_or_else(too_many)?, workers, least_gain)?;
        let (speeds, parts) = (vec![Told::default(); workers], Batch::parts(policy.batches()));
        Ok(Some(Self { policy, every, rounds: 0, speeds, parts }))
    }

    /// A worker told how long each of its samples took; 0 if it does not know.
    pub(super) fn note_speed(&mut self, worker: usize, sample_ns: u32) {
        let told = &mut self.speeds[worker];
        if told.skipped < SKIPPED {
            told.skipped += 1;
        } else if sample_ns > 0 {
            told.sample_ns += u64::from(sample_ns);
            told.count += 1;
        }
    }

    /// A round begins: worker 0 has its turn.
    pub(super) fn begin_round(&mut self) {
        self.rounds += 1;
        if self.rounds < self.every || self.speeds.iter().any(|told| told.count == 0) {
            return;
        }
        self.rounds = 0;
        let per_ns = |told: &Told| f64::from(told.count) / told.sample_ns as f64;
        let speeds: Vec<f64> = self.speeds.iter().map(|told| 1e9 * per_ns(told)).collect();
        if self.policy.decide(&speeds).has_changed {
            self.parts = Batch::parts(self.policy.batches());
        }
        for told in &mut self.speeds {
            (told.sample_ns, told.count) = (0, 0);
        }
    }

    /// What a worker takes next.
    pub(super) fn part(&self, worker: usize) -> Batch {
        self.parts[worker]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(every: u32, batch: Option<u32>) -> Option<Split> {
        Split::new(BatchRule::BySpeed { every, least_gain: 0.05 }, 3, batch).unwrap()
    }

    /// One round in which each sample of worker 2 takes `slow` ns, of the others 10.
    fn round(split: &mut Split, slow: u32) -> Vec<u32> {
        split.begin_round();
        (0..3).for_each(|worker| split.note_speed(worker, if worker == 2 { slow } else { 10 }));
        (0..3).map(|worker| split.part(worker).samples).collect()
    }

    #[test]
    fn a_slow_worker_takes_fewer_after_so_many_rounds_and_the_sum_stays() {
        let mut split = split(5, Some(16)).unwrap();
        // The first four tell nothing; of the fifth round on, each counts.
        for index in 0..4 {
            assert_eq!(round(&mut split, 1_000_000), [16; 3], "round {index}");
        }
        assert_eq!(round(&mut split, 20), [16; 3]);
        assert_eq!(round(&mut split, 20), [19, 19, 10]);
        assert_eq!(split.part(2), Batch { start: 38, samples: 10 });
        // Back to its old speed, which four more rounds have to show.
        for _ in 0..4 {
            assert_eq!(round(&mut split, 10), [19, 19, 10]);
        }
        // Of the five that count now, the first was still slow.
        assert_eq!(round(&mut split, 10), [17, 17, 14]);
    }

    #[test]
    fn without_a_batch_without_a_rule_or_without_speeds_all_stays() {
        assert!(split(5, None).is_none());
        assert!(Split::new(BatchRule::Equal, 3, Some(16)).unwrap().is_none());
        let mut idle = split(1, Some(4)).unwrap();
        assert!((0..20).all(|_| round(&mut idle, 0) == [4; 3]));
        let large = Split::new(BatchRule::default(), 3, Some(u32::MAX));
        assert!(large.unwrap_err().to_string().contains("3 batches of"));
    }
}

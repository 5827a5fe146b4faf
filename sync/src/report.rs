//! What a step cost, and the statistics of many.
//!
//! Owns the numbers that a trainer prints. Never measures: the session does. Called by the session
//! and by trainers.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::osp::budget::Limit;

/// What one step cost on this rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Steps of this session so far, with this one.
    pub step: u64,
    /// From the end of the last step to the call for this one: forward and backward pass.
    pub compute: Duration,
    /// The whole call: exposed communication and the arithmetic of update and packing.
    pub total: Duration,
    /// Batch-synchronisation time (BST): the time in which this rank waited for communication. The
    /// sum of the next four.
    pub exposed: Duration,
    /// In RS, the blocking reduction.
    pub rs: Duration,
    /// For what was left of ICS, the overlapped reduction of the step before.
    pub ics_wait: Duration,
    /// For replies of the parameter server.
    pub pull_wait: Duration,
    /// In comparing replicas.
    pub check_wait: Duration,
    /// Bytes of gradient that the step waited for.
    pub bytes_important: u64,
    /// Of these, what was on its way before the backward pass was over.
    pub bytes_overlapped: u64,
    /// Bytes of gradient that are exchanged during the next step.
    pub bytes_deferred: u64,
    /// The latter's share of both.
    pub deferred_share: f64,
    /// How many updates the parameters of the next step lack at most.
    pub staleness: u64,
    /// What kept the deferred bytes from being more.
    pub limit: Limit,
}

/// Mean and tail of some durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many.
    pub count: usize,
    /// Their mean.
    pub mean: Duration,
    /// The middle one.
    pub p50: Duration,
    /// The one that 99 in 100 do not exceed.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

impl Summary {
    /// Of these durations; all zero if there are none.
    pub fn of(durations: &[Duration]) -> Self {
        let mut sorted = durations.to_vec();
        sorted.sort_unstable();
        let count = sorted.len();
        let Some(max) = sorted.last().copied() else { return Self::default() };
        // The nearest rank: the smallest one that is not below the share asked for.
        let at = |percent: usize| sorted[(count * percent).div_ceil(100).saturating_sub(1)];
        let mean_ns = sorted.iter().map(Duration::as_nanos).sum::<u128>() / count as u128;
        let mean = Duration::from_nanos(u64::try_from(mean_ns).unwrap_or(u64::MAX));
        Self { count, mean, p50: at(50), p99: at(99), max }
    }
}

/// Statistics of many steps of this rank.
#[derive(Clone, Debug, Default)]
pub struct RunStats {
    exposed: Vec<Duration>,
    compute: Duration,
    total: Duration,
    bytes: u64,
    deferred_bytes: u64,
    staleness: BTreeMap<u64, u64>,
}

impl RunStats {
    /// Takes in one step.
    pub fn add(&mut self, report: &StepReport) {
        self.exposed.push(report.exposed);
        self.compute += report.compute;
        self.total += report.total;
        self.bytes += report.bytes_important + report.bytes_deferred;
        self.deferred_bytes += report.bytes_deferred;
        *self.staleness.entry(report.staleness).or_default() += 1;
    }

    /// Steps.
    pub fn steps(&self) -> usize {
        self.exposed.len()
    }

    /// Batch-synchronisation times.
    pub fn bst(&self) -> Summary {
        Summary::of(&self.exposed)
    }

    /// Share of the steps' time, computation included, in which the rank waited for
    /// communication, in per cent; 0 before the first step.
    pub fn exposed_percent(&self) -> f64 {
        let exposed: Duration = self.exposed.iter().sum();
        let all = (self.compute + self.total).as_secs_f64();
        if all > 0.0 { 100.0 * exposed.as_secs_f64() / all } else { 0.0 }
    }

    /// Share of all bytes of gradient that were deferred, from 0 to 1.
    pub fn deferred_share(&self) -> f64 {
        if self.bytes > 0 { self.deferred_bytes as f64 / self.bytes as f64 } else { 0.0 }
    }

    /// How many steps had each staleness.
    pub fn staleness(&self) -> &BTreeMap<u64, u64> {
        &self.staleness
    }

    /// Mean staleness; 0 before the first step.
    pub fn mean_staleness(&self) -> f64 {
        let sum: u64 = self.staleness.iter().map(|(staleness, count)| staleness * count).sum();
        sum as f64 / self.steps().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn summaries_by_hand() {
        assert_eq!(Summary::of(&[]), Summary::default());
        let one = Summary::of(&[ms(3)]);
        assert_eq!((one.mean, one.p50, one.p99, one.max), (ms(3), ms(3), ms(3), ms(3)));
        let hundred: Vec<Duration> = (1..=100).rev().map(ms).collect();
        let summary = Summary::of(&hundred);
        let mean = Duration::from_micros(50_500);
        assert_eq!((summary.mean, summary.p50, summary.p99), (mean, ms(50), ms(99)));
        assert_eq!((summary.max, summary.count), (ms(100), 100));
    }

    #[test]
    fn run_statistics_by_hand() {
        let report = |exposed, staleness| StepReport {
            step: 1,
            compute: ms(10),
            total: ms(10),
            exposed: ms(exposed),
            rs: ms(exposed),
            ics_wait: ms(0),
            pull_wait: ms(0),
            check_wait: ms(0),
            bytes_important: 60,
            bytes_overlapped: 0,
            bytes_deferred: 20,
            deferred_share: 0.25,
            staleness,
            limit: Limit::Cap,
        };
        let mut stats = RunStats::default();
        assert_eq!((stats.exposed_percent(), stats.deferred_share()), (0.0, 0.0));
        stats.add(&report(8, 1));
        stats.add(&report(2, 4));
        assert_eq!((stats.steps(), stats.bst().mean), (2, ms(5)));
        assert_eq!((stats.exposed_percent(), stats.deferred_share()), (25.0, 0.25));
        assert_eq!(stats.mean_staleness(), 2.5);
        assert_eq!(stats.staleness().get(&4), Some(&1));
    }
}

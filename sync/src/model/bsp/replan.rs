//! When BSP's buckets are planned anew, and from what.
//!
//! Owns the measurements of one rank and the plan that follows from those of all. Never reads a
//! clock. Called by [`super::buckets`].
//!
//! In the measured steps nothing overlaps: gradients are timed as they come, and reductions one by
//! one after the pass, in turn of growing sizes and of all tensors at once. What ranks exchange are
//! one word per tensor and one per size. A bucket starts when the last rank is ready, so of ready
//! times the largest counts; the last rank to join a reduction waits for nobody, so of those the
//! smallest does.

use std::time::Duration;

use crate::bucket::rule::{BucketRule, PlanConfig, grow};
use crate::bucket::{Buckets, CostModel, Gradient};
use crate::policy::statistics::median;

/// How the buckets of a step are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Of growing sizes, reduced after the pass.
    Grown,
    /// As the rule says.
    Settled,
    /// All in one, reduced after the pass.
    Whole,
}

impl Stage {
    /// Whether the step is for measuring.
    pub(super) fn is_measured(self) -> bool {
        self != Self::Settled
    }
}

/// Measurements on the way to a plan.
#[derive(Debug)]
pub(super) struct Replan {
    config: PlanConfig,
    step: u64,
    /// By tensor, in nanoseconds: when it was ready in each measured step.
    ready: Vec<Vec<f64>>,
    /// By bucket of growing size: the shortest reduction.
    grown: Vec<Duration>,
    /// The shortest reduction of everything.
    whole: Option<Duration>,
}

impl Replan {
    /// For as many tensors; none if the rule plans nothing.
    pub(super) fn new(rule: BucketRule, tensors: usize) -> Option<Self> {
        let BucketRule::Planned(config) = rule else { return None };
        let ready = vec![Vec::new(); tensors];
        Some(Self { config, step: 0, ready, grown: Vec::new(), whole: None })
    }

    /// How the step at hand is cut.
    pub(super) fn stage(&self) -> Stage {
        let PlanConfig { warmup_steps, measured_steps, .. } = self.config;
        match self.step.checked_sub(warmup_steps) {
            Some(measured) if measured < measured_steps => match measured % 2 {
                0 => Stage::Grown,
                _ => Stage::Whole,
            },
            _ => Stage::Settled,
        }
    }

    /// A tensor is ready.
    pub(super) fn ready(&mut self, stage: Stage, tensor: usize, compute: Duration) {
        if stage.is_measured() {
            self.ready[tensor].push(compute.as_nanos() as f64);
        }
    }

    /// A bucket is reduced.
    pub(super) fn reduced(&mut self, stage: Stage, index: usize, blocked: Duration) {
        let shorter = |time: Duration| time.min(blocked);
        match stage {
            Stage::Settled => {}
            Stage::Whole => self.whole = Some(self.whole.map_or(blocked, shorter)),
            Stage::Grown => match self.grown.get_mut(index) {
                Some(time) => *time = shorter(*time),
                None => self.grown.push(blocked),
            },
        }
    }

    /// Goes on to the next step; this rank's words if it was the last to measure.
    pub(super) fn end_step(&mut self) -> Option<Vec<u64>> {
        self.step += 1;
        let last = self.config.warmup_steps + self.config.measured_steps;
        (self.step == last).then(|| {
            let ready = self.ready.iter().map(|times| median(times) as u64);
            let reduced = self.grown.iter().chain(&self.whole);
            ready.chain(reduced.map(|time| nanoseconds(*time))).collect()
        })
    }

    /// The order of tensors and the buckets that follow from the words of all ranks, where `sizes`
    /// are the tensors' bytes; none if the times of reductions do not tell what a byte costs.
    pub(super) fn plan(&self, words: &[u64], sizes: &[u64]) -> Option<(Vec<usize>, Buckets)> {
        let tensors = sizes.len();
        let own = tensors + self.grown.len() + usize::from(self.whole.is_some());
        if tensors == 0 {
            return None;
        }
        let ranks: Vec<&[u64]> = words.chunks_exact(own).collect();
        let column = |index: usize| ranks.iter().map(move |words| words[index]);
        let mut order: Vec<usize> = (0..tensors).rev().filter(|at| sizes[*at] > 0).collect();
        let samples = self.samples(&order, sizes, |at| column(tensors + at).min().unwrap_or(0));
        let cost = CostModel::fit(&samples)?;
        let ready: Vec<u64> = (0..tensors).map(|at| column(at).max().unwrap_or(0)).collect();
        // Stable: of tensors that are ready together, the last comes first.
        order.sort_by_key(|tensor| ready[*tensor]);
        let mut before = 0;
        let gradients: Vec<Gradient> = order
            .iter()
            .map(|tensor| {
                let backward = Duration::from_nanos(ready[*tensor] - before);
                before = ready[*tensor];
                Gradient { bytes: sizes[*tensor], backward }
            })
            .collect();
        let buckets = self.config.planner.plan(&gradients, cost);
        Some((order, buckets))
    }

    /// Bytes and time of the measured reductions, whose times are `nanoseconds` by their place.
    fn samples(
        &self,
        order: &[usize],
        sizes: &[u64],
        nanoseconds: impl Fn(usize) -> u64,
    ) -> Vec<(u64, Duration)> {
        let gradient =
            |tensor: &usize| Gradient { bytes: sizes[*tensor], backward: Duration::ZERO };
        let gradients: Vec<Gradient> = order.iter().map(gradient).collect();
        let sum = |part: &[Gradient]| part.iter().map(|gradient| gradient.bytes).sum();
        let grown = grow(&gradients);
        let all: Option<u64> = self.whole.map(|_| sum(&gradients));
        let bytes = grown.into_iter().map(|run| sum(&gradients[run])).chain(all);
        bytes
            .enumerate()
            .map(|(at, bytes)| (bytes, Duration::from_nanos(nanoseconds(at))))
            .collect()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

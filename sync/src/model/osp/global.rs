//! The global state of OSP: parameters, moments and versions, the same bits on every rank.
//!
//! Owns how an averaged gradient enters it. Never sees a rank's own gradient. Called by the model.

use std::ops::Range;

use super::correction::{Before, Lgp};
use super::{Job, OspConfig};
use crate::optimiser::{Moments, StepSize};

/// The global state, replicated.
#[derive(Debug)]
pub(super) struct Global {
    pub(super) parameters: Vec<f32>,
    pub(super) moments: Moments,
    /// Updates before this model's first.
    pub(super) updates: u64,
    /// Running mean of averaged gradients; empty unless the correction wants it.
    pub(super) average: Vec<f32>,
    /// Per slice: how many gradients were applied.
    pub(super) versions: Vec<u64>,
    /// Per slice: importance; infinite while unknown.
    pub(super) scores: Vec<f32>,
    /// Per slice: the last averaged gradient's sum of squares.
    pub(super) squares: Vec<f64>,
    /// Room for the mean of several gradients.
    mean: Vec<f32>,
}

/// How to apply the averaged gradients of one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    pub(super) step: u64,
    pub(super) size: StepSize,
    pub(super) is_scored: bool,
    pub(super) job: Job,
    pub(super) config: OspConfig,
}

impl Global {
    /// The state of a start, for `slices` slices.
    pub(super) fn new(
        parameters: Vec<f32>,
        moments: Moments,
        updates: u64,
        slices: usize,
        has_average: bool,
    ) -> Self {
        Self {
            average: vec![0.0; if has_average { parameters.len() } else { 0 }],
            parameters,
            moments,
            updates,
            versions: vec![0; slices],
            scores: vec![f32::INFINITY; slices],
            squares: vec![0.0; slices],
            mean: Vec::new(),
        }
    }

    /// Applies the average over the ranks of the sum of `count` gradients, the last of which is
    /// of the update's step, to slice `index`, which must have had all earlier ones.
    pub(super) fn apply(
        &mut self,
        index: usize,
        flat: Range<usize>,
        gradient: &[f32],
        count: u64,
        update: &Update,
    ) {
        let version = self.versions[index] + count;
        assert_eq!(version, update.step + 1, "a slice takes each gradient in its turn");
        self.versions[index] = version;
        let mut mean = std::mem::take(&mut self.mean);
        let each = mean_of(gradient, count, &mut mean);
        let parameters = &mut self.parameters[flat.clone()];
        if update.is_scored {
            self.scores[index] = update.config.importance.score(parameters, each);
        }
        for number in 0..count {
            if let Lgp::Ema { gamma, .. } = update.config.lgp {
                for (mean, new) in self.average[flat.clone()].iter_mut().zip(each) {
                    *mean = gamma * *mean + (1.0 - gamma) * new;
                }
            }
            let size = nth(update.size, number, count);
            let moments = self.moments.range_mut(flat.clone());
            update.job.optimiser.step(parameters, moments, each, size);
        }
        self.mean = mean;
    }

    pub(super) fn before<'a>(&'a self, flat: Range<usize>, gradient: &'a [f32]) -> Before<'a> {
        let average = self.average.get(flat.clone()).unwrap_or_default();
        let (parameters, moments) = (&self.parameters[flat.clone()], self.moments.range(flat));
        Before { parameters, moments, average, gradient }
    }
}

/// The mean of `count` gradients whose sum is given.
pub(super) fn mean_of<'a>(sum: &'a [f32], count: u64, room: &'a mut Vec<f32>) -> &'a [f32] {
    if count == 1 {
        return sum;
    }
    room.clear();
    room.extend(sum.iter().map(|x| x / count as f32));
    room
}

/// The size of step `number` of `count` that end with the one of size `last`.
pub(super) fn nth(last: StepSize, number: u64, count: u64) -> StepSize {
    StepSize { updates: (last.updates + number + 1).saturating_sub(count), ..last }
}

//! Two stages of averaging, for gradients that a trainer's own optimiser applies.
//!
//! Owns the bitmap of each step, this rank's deferred gradients while they are under way, and what
//! it is owed once their average is here. Never communicates, and sees no parameter. Called by
//! [`super::GradientSync`].
//!
//! ```text
//! step        t-1                      t
//! deferred    given  g                 given  ... + (average - g)     g, average: of step t-1
//! important   given  average           given  ... + 0
//! ```
//!
//! Invariant: all that a rank was given so far, plus what is owed to it, plus the averages less its
//! own gradients of what is under way, is the sum of the averages of all steps so far.

use crate::layout::Layout;
use crate::model::check::Fingerprint;
use crate::model::osp::importance::{Gib, mean_magnitude};

use super::config::DeferConfig;

/// The split of one rank's gradients.
#[derive(Debug)]
pub(super) struct Deferral {
    layout: Layout,
    min_len: usize,
    /// Bytes that a step may defer.
    budget: u64,
    /// The bitmap of the last step.
    gib: Gib,
    /// Per slice: importance, by the last averaged gradient; infinite before the first.
    scores: Vec<f32>,
    /// This rank's gradients of what is under way.
    held: Share,
    /// What earlier gradients of this rank lacked of their average.
    owed: Share,
}

/// Some slices, in order, and their values, one after the other.
#[derive(Debug, Default)]
struct Share {
    slices: Vec<usize>,
    values: Vec<f32>,
}

impl Share {
    fn clear(&mut self) {
        self.slices.clear();
        self.values.clear();
    }
}

impl Deferral {
    pub(super) fn new(layout: Layout, config: &DeferConfig) -> Self {
        let slices = layout.slices().len();
        Self {
            min_len: config.min_deferred_len,
            budget: config.budget(layout.bytes()),
            gib: Gib::all_important(slices),
            scores: vec![f32::INFINITY; slices],
            held: Share::default(),
            owed: Share::default(),
            layout,
        }
    }

    /// Bytes of the last step that it waited for, and that it did not.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let deferred = self.gib.deferred_bytes();
        (self.layout.bytes() - deferred, deferred)
    }

    /// Of what all ranks must have alike after `step`, in which `average` is of the important
    /// gradients.
    pub(super) fn fingerprint(&self, step: u64, average: &[f32]) -> u64 {
        let mut print = Fingerprint::new(step);
        self.gib.flags().iter().for_each(|flag| print.word(u64::from(*flag)));
        print.floats(&self.scores);
        print.floats(average);
        print.value()
    }

    /// Makes the first score one that no other rank has, and keeps it.
    #[cfg(test)]
    pub(super) fn break_score(&mut self) {
        self.budget = 0;
        self.scores[0] += 1.0;
    }

    /// Takes in the average of what was deferred.
    ///
    /// # Panics
    /// If it has another length.
    pub(super) fn merge(&mut self, average: &[f32]) {
        assert_eq!(average.len(), self.held.values.len(), "the average of what is under way");
        debug_assert!(self.owed.slices.is_empty(), "paid in every step");
        std::mem::swap(&mut self.held, &mut self.owed);
        let mut rest = average;
        for index in &self.owed.slices {
            let (slice, later) = rest.split_at(self.layout.slices()[*index].len);
            self.scores[*index] = mean_magnitude(slice);
            rest = later;
        }
        let lacking = self.owed.values.iter_mut().zip(average);
        lacking.for_each(|(own, average)| *own = average - *own);
    }

    /// Splits a step, with nothing under way: writes what to average at once and what behind the
    /// next step.
    pub(super) fn split(
        &mut self,
        gradients: &[&mut [f32]],
        important: &mut Vec<f32>,
        deferred: &mut Vec<f32>,
    ) {
        debug_assert!(self.held.slices.is_empty(), "merged before");
        if self.budget > 0 {
            self.gib = Gib::select(&self.layout, &self.scores, self.min_len, self.budget);
        }
        important.clear();
        for (index, slice) in self.layout.slices().iter().enumerate() {
            let gradient = &gradients[slice.tensor][slice.within()];
            if self.gib.is_important(index) {
                important.extend_from_slice(gradient);
            } else {
                self.held.slices.push(index);
                self.held.values.extend_from_slice(gradient);
            }
        }
        deferred.clone_from(&self.held.values);
    }

    /// Makes of a step's gradients what the trainer applies, from the average of the important
    /// ones.
    pub(super) fn finish(&mut self, average: &[f32], gradients: &mut [&mut [f32]]) {
        let mut rest = average;
        for (index, slice) in self.layout.slices().iter().enumerate() {
            if self.gib.is_important(index) {
                let (values, later) = rest.split_at(slice.len);
                if self.budget > 0 {
                    self.scores[index] = mean_magnitude(values);
                }
                gradients[slice.tensor][slice.within()].copy_from_slice(values);
                rest = later;
            }
        }
        self.pay(gradients);
    }

    /// Makes of `gradients` what this rank is owed, and nothing else.
    pub(super) fn settle(&mut self, gradients: &mut [&mut [f32]]) {
        gradients.iter_mut().for_each(|tensor| tensor.fill(0.0));
        self.pay(gradients);
    }

    fn pay(&mut self, gradients: &mut [&mut [f32]]) {
        let mut rest = self.owed.values.as_slice();
        for index in &self.owed.slices {
            let slice = self.layout.slices()[*index];
            let (values, later) = rest.split_at(slice.len);
            let target = &mut gradients[slice.tensor][slice.within()];
            target.iter_mut().zip(values).for_each(|(g, owed)| *g += owed);
            rest = later;
        }
        self.owed.clear();
    }
}

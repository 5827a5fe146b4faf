//! What is under way in the background, and what waits for its turn, where ICS spans steps.
//!
//! Owns, per slice, this rank's gradients that no reduction has taken yet, and what the rank shows
//! of those under way. Never decides when a reduction ends. Called by the model.
//!
//! ```text
//! span 3     step s   s+1    s+2    s+3
//! slice      sent     carry  carry  merged, then sent again: the sum of three gradients
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use crate::model::ReduceId;
use crate::optimiser::StepSize;

/// Names of reductions per step: one of a drain ahead of it, those of RS, one of its ICS.
const NAMES: u64 = 2 + MOST_PARTS;

/// Parts of RS, at most.
pub(super) const MOST_PARTS: u64 = 64;

/// The name of what a drain reduces ahead of this step.
pub(super) fn drain_id(step: u64) -> ReduceId {
    NAMES * step
}

/// The name of the first part of this step's RS.
pub(super) fn rs_id(step: u64) -> ReduceId {
    drain_id(step) + 1
}

/// A reduction in the background.
#[derive(Debug)]
pub(super) struct Ics {
    pub(super) step: u64,
    pub(super) size: StepSize,
    /// Its slices, in order.
    pub(super) slices: Vec<usize>,
    /// Sum of squares of what this rank gave to it; 0 where nobody asks for it.
    pub(super) own_squares: f64,
}

impl Ics {
    /// The name of the reduction of this step.
    pub(super) fn id_of(step: u64) -> ReduceId {
        drain_id(step + 1) - 1
    }

    pub(super) fn id(&self) -> ReduceId {
        Self::id_of(self.step)
    }
}

/// One slice's part of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Whether it is under way.
    pub(super) is_held: bool,
    /// The step it was last sent in.
    pub(super) sent_in: u64,
    /// Gradients in the carry.
    pub(super) carried: u64,
    /// Gradients in the reduction under way.
    pub(super) sent: u64,
    /// Gradients of these that the rank's copy shows.
    pub(super) shown: u64,
    /// The size of the step it was sent with.
    pub(super) size: StepSize,
}

/// Reductions under way, oldest first, and the gradients between them.
#[derive(Debug)]
pub(super) struct Flights {
    pub(super) queue: VecDeque<Ics>,
    pub(super) parts: Vec<Part>,
    /// Sums of gradients that were not sent, flat; empty where ICS spans one step.
    carry: Vec<f32>,
    /// What of the gradients under way the rank's copy shows, flat; empty as above.
    shown: Vec<f32>,
}

impl Flights {
    pub(super) fn new(slices: usize, len: usize, span: u64) -> Self {
        let size = StepSize::new(0.0, 0);
        let part = Part { is_held: false, sent_in: 0, carried: 0, sent: 0, shown: 0, size };
        let len = if span > 1 { len } else { 0 };
        Self {
            queue: VecDeque::new(),
            parts: vec![part; slices],
            carry: vec![0.0; len],
            shown: vec![0.0; len],
        }
    }

    /// Whether a slice is under way and was sent in step `due` or later.
    pub(super) fn is_held(&self, index: usize, due: u64) -> bool {
        self.parts[index].is_held && self.parts[index].sent_in >= due
    }

    /// Adds a gradient to what is sent next.
    pub(super) fn carry(&mut self, index: usize, flat: Range<usize>, gradient: &[f32]) {
        self.parts[index].carried += 1;
        self.carry[flat].iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
    }

    /// Sum of the gradients that were not sent, of which there is at least one.
    pub(super) fn carried(&self, flat: Range<usize>) -> &[f32] {
        &self.carry[flat]
    }

    /// Of the gradients under way, the sum that the rank's copy shows.
    pub(super) fn shown(&self, flat: Range<usize>) -> &[f32] {
        &self.shown[flat]
    }

    /// Appends `gradient` and what was carried to `data`; there are so many gradients in it.
    pub(super) fn append(
        &self,
        index: usize,
        flat: Range<usize>,
        gradient: &[f32],
        data: &mut Vec<f32>,
    ) -> u64 {
        let carried = self.parts[index].carried;
        if carried == 0 {
            data.extend_from_slice(gradient);
        } else {
            data.extend(self.carry[flat].iter().zip(gradient).map(|(sum, g)| sum + g));
        }
        carried + 1
    }

    /// What was carried is part of a reduction; how many gradients that was.
    pub(super) fn take_carry(&mut self, index: usize, flat: Range<usize>) -> u64 {
        let carried = std::mem::take(&mut self.parts[index].carried);
        if carried > 0 {
            self.carry[flat].fill(0.0);
        }
        carried
    }

    /// The same, into a place of the same length.
    pub(super) fn write(
        &self,
        index: usize,
        flat: Range<usize>,
        gradient: &[f32],
        place: &mut [f32],
    ) {
        place.copy_from_slice(gradient);
        if self.parts[index].carried > 0 {
            place.iter_mut().zip(&self.carry[flat]).for_each(|(g, sum)| *g += sum);
        }
    }

    /// Slice `index` is under way with `sent` gradients since `step`; the copy shows none of them.
    pub(super) fn launch(&mut self, index: usize, sent: u64, step: u64, size: StepSize) {
        let carried = self.parts[index].carried;
        self.parts[index] = Part { is_held: true, sent_in: step, carried, sent, shown: 0, size };
    }

    /// Of the gradients under way, the copy shows this sum of `count`.
    pub(super) fn show(&mut self, index: usize, flat: Range<usize>, sum: &[f32], count: u64) {
        self.parts[index].shown = count;
        self.shown[flat].copy_from_slice(sum);
    }
}

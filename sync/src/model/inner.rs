//! A rank's own optimiser: steps on its own gradient, between exchanges of parameters.
//!
//! Owns the optimiser's memory of this rank, and the copies between the trainer's tensors and the
//! flat buffer that ranks average. Never decides when they do. Called by the models that exchange
//! parameters instead of gradients: [`super::LocalSgd`] and [`super::Diloco`].

use super::{Job, Memory, StepEnded, Tensors};
use crate::optimiser::{Moments, StepSize, clip_scale, sum_of_squares};

/// The optimiser of one rank, with its memory.
#[derive(Debug)]
pub(super) struct Inner {
    job: Job,
    memory: Memory,
    /// Room for a flat copy, between exchanges.
    buffer: Vec<f32>,
}

impl Inner {
    /// An optimiser that remembers this.
    pub(super) fn new(job: Job, memory: Memory) -> Self {
        Self { job, memory, buffer: Vec::new() }
    }

    /// Elements of all parameters.
    pub(super) fn len(&self) -> usize {
        self.memory.moments.first.len()
    }

    /// What the optimiser remembers.
    pub(super) fn moments(&self) -> &Moments {
        &self.memory.moments
    }

    /// One step on this rank's gradients, which are clipped by their own norm.
    pub(super) fn step(&mut self, ended: &StepEnded, tensors: &mut Tensors<'_, '_>) {
        let mut size = StepSize::new(ended.learning_rate, self.memory.updates);
        if self.job.clip_norm.is_some() {
            let squares: f64 = tensors.gradients.iter().map(|tensor| sum_of_squares(tensor)).sum();
            size.gradient_scale = clip_scale(squares.sqrt(), self.job.clip_norm);
        }
        let mut start = 0;
        for (parameters, gradient) in tensors.parameters.iter_mut().zip(tensors.gradients) {
            let range = start..start + parameters.len();
            start = range.end;
            let moments = self.memory.moments.range_mut(range);
            self.job.optimiser.step(parameters, moments, gradient, size);
        }
        self.memory.updates += 1;
    }

    /// Parameters, and behind them the moments if `has_moments`, flat.
    pub(super) fn pack(&mut self, tensors: &Tensors<'_, '_>, has_moments: bool) -> Vec<f32> {
        let mut data = std::mem::take(&mut self.buffer);
        data.clear();
        tensors.parameters.iter().for_each(|tensor| data.extend_from_slice(tensor));
        if has_moments {
            data.extend_from_slice(&self.memory.moments.first);
            data.extend_from_slice(&self.memory.moments.second);
        }
        data
    }

    /// Takes over what [`Self::pack`] packed, averaged.
    ///
    /// # Panics
    /// If `data` has another length than what was packed.
    pub(super) fn unpack(
        &mut self,
        data: Vec<f32>,
        tensors: &mut Tensors<'_, '_>,
        has_moments: bool,
    ) {
        let mut rest = data.as_slice();
        let mut take = |target: &mut [f32]| {
            let (values, later) = rest.split_at(target.len());
            target.copy_from_slice(values);
            rest = later;
        };
        tensors.parameters.iter_mut().for_each(|tensor| take(tensor));
        if has_moments {
            take(&mut self.memory.moments.first);
            take(&mut self.memory.moments.second);
        }
        assert!(rest.is_empty(), "{} elements too many", rest.len());
        self.buffer = data;
    }

    /// The memory, out of an optimiser that is of no use then.
    pub(super) fn take_memory(&mut self) -> Memory {
        let empty = Memory { moments: Moments::default(), updates: 0 };
        std::mem::replace(&mut self.memory, empty)
    }
}

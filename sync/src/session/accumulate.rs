//! Gradients of several micro-batches in one step.
//!
//! Owns this rank's sums until the step that ends them, and how many micro-batches are in them.
//! Never communicates. Called by the session.

use super::Session;
use super::agree::check_lengths;
use crate::error::{Error, Result};

/// The micro-batches of the step to come, but for its last one.
#[derive(Debug, Default)]
pub(super) struct Accumulated {
    /// By tensor, sums that become means; empty until the first micro-batch of all.
    gradients: Vec<Vec<f32>>,
    /// By tensor: whether the last micro-batch is in it, and it is the mean.
    is_mean: Vec<bool>,
    micro_batches: u64,
    loss: f32,
}

impl Accumulated {
    /// How many there are.
    pub(super) fn micro_batches(&self) -> u64 {
        self.micro_batches
    }

    fn add(&mut self, gradients: &[&[f32]], loss: f32) {
        if self.micro_batches == 0 {
            self.is_mean = vec![false; gradients.len()];
            self.gradients.resize_with(gradients.len(), Vec::new);
            for (sum, gradient) in self.gradients.iter_mut().zip(gradients) {
                sum.clear();
                sum.extend_from_slice(gradient);
            }
            self.loss = loss;
        } else {
            for (sum, gradient) in self.gradients.iter_mut().zip(gradients) {
                sum.iter_mut().zip(*gradient).for_each(|(sum, g)| *sum += g);
            }
            self.loss += loss;
        }
        self.micro_batches += 1;
    }

    /// The gradient of `tensor` that the step counts, where the last micro-batch has this one.
    pub(super) fn fold<'a>(&'a mut self, tensor: usize, gradient: &'a [f32]) -> &'a [f32] {
        if self.micro_batches == 0 {
            return gradient;
        }
        let mean = &mut self.gradients[tensor];
        if !std::mem::replace(&mut self.is_mean[tensor], true) {
            let count = (self.micro_batches + 1) as f32;
            mean.iter_mut().zip(gradient).for_each(|(sum, g)| *sum = (*sum + g) / count);
        }
        mean
    }

    /// The same for all tensors, those that are folded already as they are.
    pub(super) fn fold_all<'a>(&'a mut self, gradients: &[&'a [f32]]) -> Vec<&'a [f32]> {
        if self.micro_batches == 0 {
            return gradients.to_vec();
        }
        for (tensor, gradient) in gradients.iter().enumerate() {
            self.fold(tensor, gradient);
        }
        self.gradients.iter().map(Vec::as_slice).collect()
    }

    /// The mean loss, where the last micro-batch has this one.
    pub(super) fn mean_loss(&self, loss: f32) -> f32 {
        match self.micro_batches {
            0 => loss,
            count => (self.loss + loss) / (count + 1) as f32,
        }
    }

    /// Starts the next step, with the room kept.
    pub(super) fn clear(&mut self) {
        self.micro_batches = 0;
    }

    /// Refuses what may not come between a micro-batch and the end of its step.
    pub(super) fn check_none(&self) -> Result<()> {
        match self.micro_batches {
            0 => Ok(()),
            count => Err(Error::InvalidArgument {
                reason: format!("{count} micro-batches are accumulated for a step not ended"),
            }),
        }
    }
}

impl Session {
    /// Adds the gradients and the loss of a micro-batch to this rank's sums, and sends nothing.
    /// [`Self::step`] then ends the step with the last micro-batch, and counts the mean of all of
    /// them: sums in the order of calls, divided by how many there are. The compute time that it
    /// reports is that of all of them.
    ///
    /// Gradients may be told early ([`Self::gradient_ready`]) in the last micro-batch only: after
    /// the last call of this. Until the step ends, nothing else may be called.
    ///
    /// All ranks give a step equally many micro-batches, or else the average would be one of
    /// unequal shares. Numbers that differ are found at the next comparison of replicas, or
    /// earlier; at the latest in a switch or in [`Self::finish`]. Models with a server are free in
    /// this as in their steps.
    ///
    /// The first call takes memory for one copy of the gradients, which the session keeps.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a length differs from the session's tensors, after
    /// [`Self::gradient_ready`] in the same step, or on a rank that only serves; the sums are as
    /// before then.
    pub fn accumulate(&mut self, gradients: &[&[f32]], loss: f32) -> Result<()> {
        self.check_running()?;
        self.check_trains()?;
        self.announced.check_none()?;
        check_lengths("gradients", &self.tensors, gradients.iter().map(|tensor| tensor.len()))?;
        self.accumulated.add(gradients, loss);
        Ok(())
    }

    /// Refuses what may come only where no part of a step was given.
    pub(super) fn check_between_steps(&self) -> Result<()> {
        self.announced.check_none()?;
        self.accumulated.check_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_counts_every_micro_batch_once_and_the_next_step_starts_anew() {
        let mut accumulated = Accumulated::default();
        assert_eq!(accumulated.fold(0, &[3.0]), [3.0]);
        assert_eq!(accumulated.mean_loss(2.0), 2.0);
        for scale in [1.0, 2.0] {
            accumulated.add(&[&[scale], &[], &[-scale, 8.0]], scale);
            accumulated.add(&[&[2.0], &[], &[3.0, 1.0]], 4.0);
            assert!(accumulated.check_none().is_err());
            // A gradient that was told early counts as it was then.
            assert_eq!(accumulated.fold(0, &[9.0]), [(scale + 2.0 + 9.0) / 3.0]);
            let last: [&[f32]; 3] = [&[77.0], &[], &[4.0, 0.0]];
            let means = accumulated.fold_all(&last);
            assert_eq!(means[0], [(scale + 2.0 + 9.0) / 3.0]);
            assert!(means[1].is_empty());
            assert_eq!(means[2], [(-scale + 3.0 + 4.0) / 3.0, 3.0]);
            assert_eq!(accumulated.mean_loss(1.0), (scale + 4.0 + 1.0) / 3.0);
            accumulated.clear();
            accumulated.check_none().expect("none");
        }
    }

    #[test]
    fn the_sign_of_a_zero_survives() {
        let mut accumulated = Accumulated::default();
        accumulated.add(&[&[-0.0]], 0.0);
        assert!(accumulated.fold(0, &[-0.0])[0].is_sign_negative());
    }
}

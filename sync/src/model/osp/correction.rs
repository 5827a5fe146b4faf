//! LGP: what a rank computes with on deferred slices until their averaged gradient is here.
//!
//! Owns the provisional step of each variant. Never changes the global state: parameters `w` and
//! moments go in as they are before the step, and what comes out is the trainer's copy only,
//! which the exact value replaces one step later. Called by the model.
//!
//! Invariant: with equal gradients on all ranks, [`Lgp::Local`] gives the bits of the global step,
//! because it *is* that step, with the rank's own gradient in place of the average.

use super::global::nth;
use crate::optimiser::{Moments, MomentsRef, Optimiser, StepSize};

/// The provisional step on deferred slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lgp {
    /// As [`Self::Local`], with the rank's gradient mixed with a running mean of averaged ones.
    Ema {
        /// Weight of the past in the running mean, from 0 to below 1.
        gamma: f32,
        /// Weight of the rank's own gradient, from 0 to 1.
        lambda: f32,
    },
    /// The optimiser's step, momentum and all, with the rank's gradient in place of the average.
    Local,
    /// Plain descent along the rank's gradient, without momentum or decay: for studies.
    LocalPlain,
    /// Stay at the last global value: for studies.
    None,
}

/// The global state of one slice before the step, and this rank's gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before<'a> {
    pub(crate) parameters: &'a [f32],
    pub(crate) moments: MomentsRef<'a>,
    /// Running mean of averaged gradients; of use to [`Lgp::Ema`] only, empty for the others.
    pub(crate) average: &'a [f32],
    pub(crate) gradient: &'a [f32],
}

impl Lgp {
    /// Writes the provisional parameters to `target`.
    pub(crate) fn provisional(
        self,
        optimiser: &Optimiser,
        before: Before<'_>,
        size: StepSize,
        target: &mut [f32],
    ) {
        let Before { parameters, moments, average, gradient } = before;
        let own = gradient.iter().copied();
        match self {
            Self::Ema { lambda, .. } => {
                let mixed = own.zip(average).map(|(g, m)| lambda * g + (1.0 - lambda) * m);
                optimiser.preview(parameters, moments, mixed, size, target);
            }
            Self::Local => optimiser.preview(parameters, moments, own, size, target),
            Self::LocalPlain => {
                let rate = size.learning_rate * size.gradient_scale;
                for ((x, w), g) in target.iter_mut().zip(parameters).zip(own) {
                    *x = w - rate * g;
                }
            }
            Self::None => target.copy_from_slice(parameters),
        }
    }
}

/// The state of one slice as this rank guesses it, its own gradients standing in for averages.
#[derive(Debug)]
pub(crate) struct Guess<'a> {
    pub(crate) parameters: Vec<f32>,
    pub(crate) moments: Moments,
    /// As [`Before::average`].
    pub(crate) average: &'a [f32],
}

impl Lgp {
    /// Moves a guess by `count` gradients of this rank whose sum is `sum`, the last one of which
    /// is applied with `size`.
    pub(crate) fn advance(
        self,
        optimiser: &Optimiser,
        guess: &mut Guess<'_>,
        (sum, count): (&[f32], u64),
        size: StepSize,
    ) {
        let share = 1.0 / count.max(1) as f32;
        let each: Vec<f32> = match self {
            Self::Ema { lambda, .. } => {
                let pairs = sum.iter().zip(guess.average);
                pairs.map(|(g, m)| lambda * (g * share) + (1.0 - lambda) * m).collect()
            }
            Self::Local => sum.iter().map(|g| g * share).collect(),
            Self::LocalPlain => {
                let rate = size.learning_rate * size.gradient_scale;
                guess.parameters.iter_mut().zip(sum).for_each(|(x, g)| *x -= rate * g);
                return;
            }
            Self::None => return,
        };
        for number in 0..count {
            let size = nth(size, number, count);
            optimiser.step(&mut guess.parameters, guess.moments.all_mut(), &each, size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimiser::{MomentsMut, Sgd};

    const SGD: Optimiser =
        Optimiser::Sgd(Sgd { momentum: 0.9, weight_decay: 0.01, is_nesterov: false });
    const SIZE: StepSize = StepSize { learning_rate: 0.1, gradient_scale: 1.0, updates: 0 };

    fn provisional(lgp: Lgp, average: &[f32]) -> Vec<f32> {
        let (parameters, first, gradient) = (&[1.1, -0.7], &[0.3, 0.2], &[0.05, -4.0]);
        let moments = MomentsRef { first, second: &[] };
        let mut target = vec![f32::NAN; 2];
        let before = Before { parameters, moments, average, gradient };
        lgp.provisional(&SGD, before, SIZE, &mut target);
        target
    }

    #[test]
    fn local_is_the_optimiser_s_step_to_the_bit() {
        let (mut w, mut v) = ([1.1, -0.7], [0.3, 0.2]);
        let moments = MomentsMut { first: &mut v, second: &mut [] };
        SGD.step(&mut w, moments, &[0.05, -4.0], SIZE);
        assert_eq!(provisional(Lgp::Local, &[]), w);
    }

    #[test]
    fn ema_mixes_and_with_all_weight_on_the_own_gradient_is_local() {
        let all = Lgp::Ema { gamma: 0.9, lambda: 1.0 };
        assert_eq!(provisional(all, &[5.0, 5.0]), provisional(Lgp::Local, &[]));
        let (mut w, mut v) = ([1.1, -0.7], [0.3, 0.2]);
        let moments = MomentsMut { first: &mut v, second: &mut [] };
        SGD.step(&mut w, moments, &[1.0, 2.0], SIZE);
        let none = Lgp::Ema { gamma: 0.9, lambda: 0.0 };
        assert_eq!(provisional(none, &[1.0, 2.0]), w);
    }

    /// One gradient moves a guess as the provisional step does; two move it twice by their mean.
    #[test]
    fn a_guess_moves_as_the_optimiser_does() {
        let (gradient, twice) = ([0.05, -4.0], [0.1, -8.0]);
        let guess = |sum: &[f32], count| {
            let moments = Moments { first: vec![0.3, 0.2], second: Vec::new() };
            let mut guess = Guess { parameters: vec![1.1, -0.7], moments, average: &[] };
            Lgp::Local.advance(&SGD, &mut guess, (sum, count), SIZE);
            guess.parameters
        };
        assert_eq!(guess(&gradient, 1), provisional(Lgp::Local, &[]));
        let (mut w, mut v) = ([1.1, -0.7], [0.3, 0.2]);
        for _ in 0..2 {
            let moments = MomentsMut { first: &mut v, second: &mut [] };
            SGD.step(&mut w, moments, &gradient, SIZE);
        }
        assert_eq!(guess(&twice, 2), w);
        assert_eq!(guess(&gradient, 0), [1.1, -0.7]);
    }

    #[test]
    fn plain_and_none_by_hand() {
        assert_eq!(provisional(Lgp::LocalPlain, &[]), [1.1 - 0.1 * 0.05, -0.7 + 0.1 * 4.0]);
        assert_eq!(provisional(Lgp::None, &[]), [1.1, -0.7]);
    }
}

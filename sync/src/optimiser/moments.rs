//! What an optimiser remembers of the gradients before: one or two numbers a parameter.
//!
//! Owns the buffers, never their meaning. Called by whoever owns parameters.

use super::Optimiser;
use std::ops::Range;

/// The moments of a flat range of parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    /// Velocity (SGD), or mean of the gradients (Adam).
    pub first: Vec<f32>,
    /// Mean of their squares (Adam); empty for optimisers without it.
    pub second: Vec<f32>,
}

/// [`Moments`], lent to be changed.
#[derive(Debug)]
pub struct MomentsMut<'a> {
    /// See [`Moments::first`].
    pub first: &'a mut [f32],
    /// See [`Moments::second`].
    pub second: &'a mut [f32],
}

/// [`Moments`], lent to be read.
#[derive(Clone, Copy, Debug)]
pub struct MomentsRef<'a> {
    /// See [`Moments::first`].
    pub first: &'a [f32],
    /// See [`Moments::second`].
    pub second: &'a [f32],
}

impl Moments {
    /// All zero, for `len` parameters.
    pub fn new(optimiser: &Optimiser, len: usize) -> Self {
        let second = if optimiser.has_second_moment() { vec![0.0; len] } else { Vec::new() };
        Self { first: vec![0.0; len], second }
    }

    /// All of them, to be changed.
    pub fn all_mut(&mut self) -> MomentsMut<'_> {
        MomentsMut { first: &mut self.first, second: &mut self.second }
    }

    /// Those of the parameters in `range`.
    pub fn range(&self, range: Range<usize>) -> MomentsRef<'_> {
        let second = self.second.get(range.clone()).unwrap_or_default();
        MomentsRef { first: &self.first[range], second }
    }

    /// The same, to be changed.
    pub fn range_mut(&mut self, range: Range<usize>) -> MomentsMut<'_> {
        let second = self.second.get_mut(range.clone()).unwrap_or_default();
        MomentsMut { first: &mut self.first[range], second }
    }

    /// A copy of those of the parameters in `range`.
    pub fn part(&self, range: Range<usize>) -> Self {
        let MomentsRef { first, second } = self.range(range);
        Self { first: first.to_vec(), second: second.to_vec() }
    }

    /// Multiplies the velocity, as a policy may want where the learning rate jumps.
    pub fn scale_first(&mut self, factor: f32) {
        self.first.iter_mut().for_each(|value| *value *= factor);
    }
}

//! What a layer is, and the simplest one. Owned by `network`.

use std::fmt;
use std::ops::Range;

use super::tensor::Tensor;

/// One step of the network, on a batch of items.
///
/// Layers with parameters know where theirs stand in the network's list. `output` and `d_input`
/// come with the right length and any content, and are overwritten. A layer may keep what it
/// needs of `forward` for the `backward` that follows with the same batch.
pub(crate) trait Layer: fmt::Debug + Send {
    /// Values per item that come out.
    fn output_len(&self) -> usize;

    /// Places of its tensors in the network's list.
    fn tensors(&self) -> Range<usize> {
        0..0
    }

    /// Computes `output` from `input`.
    fn forward(&mut self, parameters: &[Tensor], input: &[f32], output: &mut [f32]);

    /// From the loss's derivative by this layer's output, computes that by its parameters, which
    /// overwrites their place in `gradients`, and, where wanted, that by its input.
    fn backward(
        &mut self,
        parameters: &[Tensor],
        pass: &Pass<'_>,
        gradients: &mut [Tensor],
        d_input: Option<&mut [f32]>,
    );
}

/// What a layer saw on the way forward, and what comes back.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    /// Its input.
    pub(crate) input: &'a [f32],
    /// Its output.
    pub(crate) output: &'a [f32],
    /// The loss's derivative by its output.
    pub(crate) d_output: &'a [f32],
}

/// Cuts off below zero.
#[derive(Debug)]
pub(crate) struct Relu {
    pub(crate) len: usize,
}

impl Layer for Relu {
    fn output_len(&self) -> usize {
        self.len
    }

    fn forward(&mut self, _: &[Tensor], input: &[f32], output: &mut [f32]) {
        // Written so that NaN passes: a diverged training must show.
        output.iter_mut().zip(input).for_each(|(y, x)| *y = if *x < 0.0 { 0.0 } else { *x });
    }

    fn backward(
        &mut self,
        _: &[Tensor],
        pass: &Pass<'_>,
        _: &mut [Tensor],
        d_input: Option<&mut [f32]>,
    ) {
        let Some(d_input) = d_input else { return };
        for ((dx, dy), y) in d_input.iter_mut().zip(pass.d_output).zip(pass.output) {
            *dx = if *y > 0.0 { *dy } else { 0.0 };
        }
    }
}

/// Adds `bias` to each row of `rows`.
pub(crate) fn set_rows(rows: &mut [f32], bias: &[f32]) {
    rows.chunks_exact_mut(bias.len()).for_each(|row| row.copy_from_slice(bias));
}

/// Replaces `sums` by the sum of all rows of `rows`.
pub(crate) fn sum_rows(rows: &[f32], sums: &mut [f32]) {
    sums.fill(0.0);
    for row in rows.chunks_exact(sums.len()) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
}

//! Fully connected layer: `y = x W + b` with `W` of shape [inputs, outputs]. Owned by `network`.

use std::ops::Range;

use super::layer::{Layer, Pass, set_rows, sum_rows};
use super::matmul::{Product, View};
use super::tensor::Tensor;

/// See the module.
#[derive(Debug)]
pub(crate) struct Dense {
    inputs: usize,
    outputs: usize,
    /// Place of the weights among the parameters; the biases follow.
    weight: usize,
    product: Product,
}

impl Dense {
    /// A layer whose two tensors this appends to `parameters`.
    pub(crate) fn new(
        name: &str,
        inputs: usize,
        outputs: usize,
        parameters: &mut Vec<Tensor>,
        random: &mut fastrand::Rng,
    ) -> Self {
        let weight = parameters.len();
        parameters.push(Tensor::he(format!("{name}.weight"), &[inputs, outputs], inputs, random));
        parameters.push(Tensor::zeros(format!("{name}.bias"), &[outputs]));
        Self { inputs, outputs, weight, product: Product::default() }
    }
}

impl Layer for Dense {
    fn output_len(&self) -> usize {
        self.outputs
    }

    fn tensors(&self) -> Range<usize> {
        self.weight..self.weight + 2
    }

    fn forward(&mut self, parameters: &[Tensor], input: &[f32], output: &mut [f32]) {
        let batch = input.len() / self.inputs;
        let weight = View::new(&parameters[self.weight].data, self.inputs, self.outputs);
        set_rows(output, &parameters[self.weight + 1].data);
        self.product.add(View::new(input, batch, self.inputs), weight, output);
    }

    fn backward(
        &mut self,
        parameters: &[Tensor],
        pass: &Pass<'_>,
        gradients: &mut [Tensor],
        d_input: Option<&mut [f32]>,
    ) {
        let batch = pass.input.len() / self.inputs;
        let input = View::new(pass.input, batch, self.inputs);
        let d_output = View::new(pass.d_output, batch, self.outputs);
        let d_weight = &mut gradients[self.weight].data;
        d_weight.fill(0.0);
        self.product.add(input.transposed(), d_output, d_weight);
        sum_rows(pass.d_output, &mut gradients[self.weight + 1].data);
        if let Some(d_input) = d_input {
            let weight = View::new(&parameters[self.weight].data, self.inputs, self.outputs);
            d_input.fill(0.0);
            self.product.add(d_output, weight.transposed(), d_input);
        }
    }
}

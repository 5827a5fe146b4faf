//! A vector for each class: `y = E[x]`, with `E` of shape [classes, length]. Owned by `network`.

use super::layer::{Layer, Pass};
use super::tensor::Tensor;

/// Looks up each value of an item, which is a class, and puts the vectors one after the other.
///
/// The gradient of a batch has zeros in the rows of all classes that the batch does not have.
#[derive(Debug)]
pub(crate) struct Embedding {
    /// Classes in an item.
    context: usize,
    /// Values of a vector.
    length: usize,
    /// Place of the vectors among the parameters.
    table: usize,
}

impl Embedding {
    /// A layer whose one tensor, standard normal, this appends to `parameters`.
    pub(crate) fn new(
        context: usize,
        classes: usize,
        length: usize,
        parameters: &mut Vec<Tensor>,
        random: &mut fastrand::Rng,
    ) -> Self {
        let table = parameters.len();
        // Variance 2 / 2.
        let name = "embedding.weight".to_owned();
        parameters.push(Tensor::he(name, &[classes, length], 2, random));
        Self { context, length, table }
    }
}

impl Layer for Embedding {
    fn output_len(&self) -> usize {
        self.context * self.length
    }

    /// # Panics
    ///
    /// A value is not a class.
    fn forward(&mut self, parameters: &[Tensor], input: &[f32], output: &mut [f32]) {
        let vectors = &parameters[self.table].data;
        for (class, vector) in input.iter().zip(output.chunks_exact_mut(self.length)) {
            vector.copy_from_slice(&vectors[*class as usize * self.length..][..self.length]);
        }
    }

    fn backward(
        &mut self,
        _: &[Tensor],
        pass: &Pass<'_>,
        gradients: &mut [Tensor],
        d_input: Option<&mut [f32]>,
    ) {
        let sums = &mut gradients[self.table].data;
        sums.fill(0.0);
        for (class, d_vector) in pass.input.iter().zip(pass.d_output.chunks_exact(self.length)) {
            let sum = &mut sums[*class as usize * self.length..][..self.length];
            sum.iter_mut().zip(d_vector).for_each(|(sum, value)| *sum += value);
        }
        // A class has no neighbours to compare with.
        if let Some(d_input) = d_input {
            d_input.fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_looked_up_and_their_gradients_summed() {
        let mut parameters = Vec::new();
        let mut random = fastrand::Rng::with_seed(1);
        let mut layer = Embedding::new(2, 4, 3, &mut parameters, &mut random);
        assert_eq!((layer.output_len(), parameters[0].shape.as_slice()), (6, &[4, 3][..]));
        parameters[0].data = (0..12u8).map(f32::from).collect();
        let input = [2.0, 0.0, 2.0, 2.0];
        let mut output = vec![0.0; 12];
        layer.forward(&parameters, &input, &mut output);
        assert_eq!(output, [6.0, 7.0, 8.0, 0.0, 1.0, 2.0, 6.0, 7.0, 8.0, 6.0, 7.0, 8.0]);
        let mut gradients = vec![Tensor { data: vec![9.0; 12], ..parameters[0].clone() }];
        let d_output: Vec<f32> = (1..=12u8).map(f32::from).collect();
        let pass = Pass { input: &input, output: &output, d_output: &d_output };
        let mut d_input = [5.0; 4];
        layer.backward(&parameters, &pass, &mut gradients, Some(&mut d_input));
        let expected = [4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 18.0, 21.0, 24.0, 0.0, 0.0, 0.0];
        assert_eq!((gradients[0].data.as_slice(), d_input), (&expected[..], [0.0; 4]));
    }
}

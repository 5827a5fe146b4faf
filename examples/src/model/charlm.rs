//! A language model of bytes: from `context` of them, which comes next? Called by `network`.
//!
//! After Bengio and others, "A Neural Probabilistic Language Model" (2003), with a ReLU in place
//! of their tanh and without their direct connections.

use super::dense::Dense;
use super::embedding::Embedding;
use super::layer::{Layer, Relu};
use super::network::Network;
use super::tensor::Tensor;

/// embedding - dense - relu - dense: a vector of `length` values for each of `context` classes,
/// `hidden` values between the dense layers, a score for each of `classes`.
pub(super) fn charlm(
    context: usize,
    length: usize,
    hidden: usize,
    classes: usize,
    seed: u64,
) -> (Network, Vec<Tensor>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut parameters = Vec::new();
    let embedding = Embedding::new(context, classes, length, &mut parameters, &mut random);
    let flat = embedding.output_len();
    let dense1 = Dense::new("dense1", flat, hidden, &mut parameters, &mut random);
    let dense2 = Dense::new("dense2", hidden, classes, &mut parameters, &mut random);
    let relu = Relu { len: hidden };
    let layers: Vec<Box<dyn Layer>> =
        vec![Box::new(embedding), Box::new(dense1), Box::new(relu), Box::new(dense2)];
    (Network::from_layers(layers, context, classes), parameters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::ImageShape;
    use crate::model::NetKind;
    use crate::model::network::tests::check_gradients_on;
    use crate::model::network::zeros_like;

    #[test]
    fn gradients_are_slopes() {
        let (network, parameters) = charlm(3, 4, 9, 5, 1);
        // Class 1 occurs nowhere; class 4 twice in one item.
        let items = [0.0, 2.0, 3.0, 4.0, 4.0, 0.0, 3.0, 2.0, 4.0, 2.0, 0.0, 2.0];
        check_gradients_on(network, parameters, &items, &[2, 0, 4, 3]);
    }

    #[test]
    fn rows_of_bytes_that_a_batch_lacks_have_no_gradient() {
        let (mut network, parameters) = charlm(2, 3, 8, 4, 1);
        let mut gradients = zeros_like(&parameters);
        network.loss_and_gradients(&parameters, &[0.0, 2.0, 2.0, 0.0], &[3, 1], &mut gradients);
        let is_zero: Vec<bool> =
            gradients[0].data.chunks_exact(3).map(|row| row.iter().all(|x| *x == 0.0)).collect();
        assert_eq!(is_zero, [false, true, false, true]);
    }

    #[test]
    fn tensors_are_those_documented() {
        let shape = ImageShape { height: 32, width: 1, channels: 1 };
        let (_, parameters) = Network::new(NetKind::Charlm, shape, 86, 1);
        let sizes: Vec<(&str, usize)> =
            parameters.iter().map(|tensor| (tensor.name.as_str(), tensor.len())).collect();
        let expected = [
            ("embedding.weight", 2752),
            ("dense1.weight", 524_288),
            ("dense1.bias", 512),
            ("dense2.weight", 44_032),
            ("dense2.bias", 86),
        ];
        assert_eq!(sizes, expected);
    }
}

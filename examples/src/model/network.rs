//! The networks, and running a batch through them. See `model` for what this never does.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::charlm::charlm;
use super::conv::Conv;
use super::dense::Dense;
use super::layer::{Layer, Pass, Relu};
use super::loss;
use super::pool::MaxPool;
use super::tensor::Tensor;
use crate::data::ImageShape;

/// Which network to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetKind {
    /// Two convolutions, pooling, two dense layers
    Cnn,
    /// Three dense layers
    Mlp,
    /// For a text: a vector for each byte, two dense layers
    Charlm,
}

impl NetKind {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cnn => "cnn",
            Self::Mlp => "mlp",
            Self::Charlm => "charlm",
        }
    }

    /// Whether its items are classes in a row, and not pixels.
    pub fn is_for_text(self) -> bool {
        self == Self::Charlm
    }
}

/// How well a network does on some items.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Items in their labelled class.
    pub correct: usize,
    /// Sum of their losses, in nats; not finite if training has diverged.
    pub loss: f64,
}

/// A network and its working memory. Its parameters are outside of it: a list of tensors whose
/// order never changes, first layer first, weights before biases.
#[derive(Debug)]
pub struct Network {
    layers: Vec<Box<dyn Layer>>,
    input_len: usize,
    classes: usize,
    /// `activations[i]` is what layer `i` puts out for the batch at hand.
    activations: Vec<Vec<f32>>,
    /// The loss's derivative by one layer's output, and by its input.
    derivatives: [Vec<f32>; 2],
}

impl Network {
    /// A network for images of `shape`, and its initial parameters, which `seed` fixes. A text is
    /// images of one column.
    ///
    /// The convolutions have 32 and 64 channels for small images, and 8 and 16 for those of more
    /// than 256 pixels, so that both take about the same time per image.
    pub fn new(kind: NetKind, shape: ImageShape, classes: usize, seed: u64) -> (Self, Vec<Tensor>) {
        let small = shape.height * shape.width <= 256;
        match kind {
            NetKind::Cnn if small => Self::cnn(shape, [32, 64], 32, classes, seed),
            NetKind::Cnn => Self::cnn(shape, [8, 16], 64, classes, seed),
            NetKind::Mlp => Self::mlp(shape, [256, 128], classes, seed),
            NetKind::Charlm => charlm(shape.values(), 32, 512, classes, seed),
        }
    }

    /// conv - relu - conv - relu - pool - dense - relu - dense, with the given numbers of channels
    /// out of the convolutions and of values between the dense layers.
    pub fn cnn(
        shape: ImageShape,
        channels: [usize; 2],
        hidden: usize,
        classes: usize,
        seed: u64,
    ) -> (Self, Vec<Tensor>) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut parameters = Vec::new();
        let conv1 = Conv::new("conv1", shape, channels[0], &mut parameters, &mut random);
        let conv2 = Conv::new("conv2", conv1.output(), channels[1], &mut parameters, &mut random);
        let relu1 = Relu { len: conv1.output_len() };
        let relu2 = Relu { len: conv2.output_len() };
        let pool = MaxPool::new(conv2.output());
        let flat = pool.output_len();
        let dense1 = Dense::new("dense1", flat, hidden, &mut parameters, &mut random);
        let dense2 = Dense::new("dense2", hidden, classes, &mut parameters, &mut random);
        let relu3 = Relu { len: hidden };
        let layers: Vec<Box<dyn Layer>> = vec![
            Box::new(conv1),
            Box::new(relu1),
            Box::new(conv2),
            Box::new(relu2),
            Box::new(pool),
            Box::new(dense1),
            Box::new(relu3),
            Box::new(dense2),
        ];
        (Self::from_layers(layers, shape.values(), classes), parameters)
    }

    /// dense - relu - dense - relu - dense, with the given numbers of values between them.
    pub fn mlp(
        shape: ImageShape,
        hidden: [usize; 2],
        classes: usize,
        seed: u64,
    ) -> (Self, Vec<Tensor>) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut parameters = Vec::new();
        let mut layers: Vec<Box<dyn Layer>> = Vec::new();
        let mut inputs = shape.values();
        for (index, outputs) in [hidden[0], hidden[1], classes].into_iter().enumerate() {
            let name = format!("dense{}", index + 1);
            let dense = Dense::new(&name, inputs, outputs, &mut parameters, &mut random);
            layers.push(Box::new(dense));
            if index < hidden.len() {
                layers.push(Box::new(Relu { len: outputs }));
            }
            inputs = outputs;
        }
        (Self::from_layers(layers, shape.values(), classes), parameters)
    }

    /// A network of these layers, the first of which takes `input_len` values an item.
    pub(super) fn from_layers(
        layers: Vec<Box<dyn Layer>>,
        input_len: usize,
        classes: usize,
    ) -> Self {
        let activations = layers.iter().map(|_| Vec::new()).collect();
        Self { layers, input_len, classes, activations, derivatives: Default::default() }
    }

    /// The mean loss of a batch, and its derivative by each parameter, which replaces `gradients`.
    ///
    /// # Panics
    ///
    /// `images` does not hold one image per label, the batch is empty, a label is not a class, or
    /// the tensors are not this network's.
    pub fn loss_and_gradients(
        &mut self,
        parameters: &[Tensor],
        images: &[f32],
        labels: &[u8],
        gradients: &mut [Tensor],
    ) -> f32 {
        self.loss_and_gradients_with(parameters, images, labels, gradients, &mut |_, _| {})
    }

    /// As [`Self::loss_and_gradients`]. Tells `on_ready` of each gradient, by its tensor's place,
    /// as soon as it is final, those of the last layer first.
    ///
    /// # Panics
    ///
    /// As [`Self::loss_and_gradients`].
    pub fn loss_and_gradients_with(
        &mut self,
        parameters: &[Tensor],
        images: &[f32],
        labels: &[u8],
        gradients: &mut [Tensor],
        on_ready: &mut dyn FnMut(usize, &[f32]),
    ) -> f32 {
        self.forward(parameters, images, labels.len());
        let Self { layers, activations, derivatives, classes, .. } = self;
        let [d_output, d_input] = derivatives;
        d_output.clone_from(activations.last().expect("a network has layers"));
        let loss = loss::cross_entropy(d_output, labels, *classes);
        for (index, layer) in layers.iter_mut().enumerate().rev() {
            let input = index.checked_sub(1).map_or(images, |before| &activations[before]);
            let pass = Pass { input, output: &activations[index], d_output: &*d_output };
            // Nobody needs the derivative by the images.
            let wanted = (index > 0).then(|| {
                d_input.resize(input.len(), 0.0);
                d_input.as_mut_slice()
            });
            layer.backward(parameters, &pass, gradients, wanted);
            layer.tensors().for_each(|tensor| on_ready(tensor, &gradients[tensor].data));
            std::mem::swap(d_output, d_input);
        }
        loss
    }

    /// How many of the images the network puts into their labelled class.
    ///
    /// # Panics
    ///
    /// As [`Self::loss_and_gradients`].
    pub fn count_correct(&mut self, parameters: &[Tensor], images: &[f32], labels: &[u8]) -> usize {
        self.score(parameters, images, labels).correct
    }

    /// How well the network does on some images.
    ///
    /// # Panics
    ///
    /// As [`Self::loss_and_gradients`].
    pub fn score(&mut self, parameters: &[Tensor], images: &[f32], labels: &[u8]) -> Score {
        self.forward(parameters, images, labels.len());
        let scores = self.activations.last().expect("a network has layers");
        let correct = loss::correct(scores, labels, self.classes);
        Score { correct, loss: loss::total(scores, labels, self.classes) }
    }

    fn forward(&mut self, parameters: &[Tensor], images: &[f32], batch: usize) {
        assert!(batch > 0, "an empty batch");
        assert_eq!(images.len(), batch * self.input_len, "one image per label");
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let (before, rest) = self.activations.split_at_mut(index);
            let input = before.last().map_or(images, Vec::as_slice);
            rest[0].resize(batch * layer.output_len(), 0.0);
            layer.forward(parameters, input, &mut rest[0]);
        }
    }
}

/// Tensors of zeros with the names and shapes of `parameters`.
pub fn zeros_like(parameters: &[Tensor]) -> Vec<Tensor> {
    parameters.iter().map(|tensor| Tensor::zeros(tensor.name.clone(), &tensor.shape)).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const SHAPE: ImageShape = ImageShape { height: 4, width: 6, channels: 2 };

    fn batch(len: usize, seed: u64) -> (Vec<f32>, Vec<u8>) {
        let mut random = fastrand::Rng::with_seed(seed);
        let images = (0..len * SHAPE.values()).map(|_| random.f32() * 2.0 - 1.0).collect();
        (images, (0..len).map(|_| random.u8(0..3)).collect())
    }

    /// Compares each derivative with the slope between two near points. Between points on two
    /// sides of a kink, of a ReLU or of a maximum, the slope means nothing: such places show by
    /// unequal slopes to the left and to the right, and are left out.
    fn check_gradients(network: Network, parameters: Vec<Tensor>) {
        let (images, labels) = batch(5, 9);
        check_gradients_on(network, parameters, &images, &labels);
    }

    /// The same on a given batch.
    pub(in crate::model) fn check_gradients_on(
        mut network: Network,
        mut parameters: Vec<Tensor>,
        images: &[f32],
        labels: &[u8],
    ) {
        let mut random = fastrand::Rng::with_seed(4);
        for tensor in &mut parameters {
            tensor.data.iter_mut().for_each(|x| *x += 0.1 * (random.f32() - 0.5));
        }
        let mut gradients = zeros_like(&parameters);
        // What was there before must not matter.
        gradients.iter_mut().for_each(|tensor| tensor.data.fill(5.0));
        network.loss_and_gradients(&parameters, images, labels, &mut gradients);
        let mut scratch = zeros_like(&parameters);
        for index in 0..parameters.len() {
            let len = parameters[index].len();
            let count = len.min(40);
            let mut checked = 0;
            for at in (0..count).map(|i| i * len / count) {
                let center = parameters[index].data[at];
                let mut loss_at = |x: f32| {
                    parameters[index].data[at] = x;
                    let loss =
                        network.loss_and_gradients(&parameters, images, labels, &mut scratch);
                    f64::from(loss)
                };
                let step = 1e-3;
                let (low, high) = (loss_at(center - step), loss_at(center + step));
                let middle = loss_at(center);
                let left = (middle - low) / f64::from(step);
                let right = (high - middle) / f64::from(step);
                let slope = (left + right) / 2.0;
                let tolerance = 4e-4 + 0.01 * slope.abs();
                if (left - right).abs() > tolerance {
                    continue;
                }
                checked += 1;
                let found = f64::from(gradients[index].data[at]);
                let name = &parameters[index].name;
                assert!((slope - found).abs() < tolerance, "{name}[{at}]: {slope}, {found}");
            }
            let name = &parameters[index].name;
            assert!(checked * 2 > count, "{name}: only {checked} of {count} have a slope");
            let norm: f32 = gradients[index].data.iter().map(|x| x * x).sum();
            assert!(norm > 1e-4, "{name}: no gradient to check");
        }
    }

    #[test]
    fn gradients_of_the_convolutional_network_are_slopes() {
        let (network, parameters) = Network::cnn(SHAPE, [3, 4], 7, 3, 1);
        check_gradients(network, parameters);
    }

    #[test]
    fn gradients_of_the_dense_network_are_slopes() {
        let (network, parameters) = Network::mlp(SHAPE, [9, 7], 3, 1);
        check_gradients(network, parameters);
    }

    #[test]
    fn each_gradient_is_told_once_when_it_is_final_last_layer_first() {
        for (mut network, parameters) in
            [Network::cnn(SHAPE, [3, 4], 7, 3, 1), Network::mlp(SHAPE, [9, 7], 3, 1)]
        {
            let (images, labels) = batch(5, 9);
            let mut gradients = zeros_like(&parameters);
            gradients.iter_mut().for_each(|tensor| tensor.data.fill(f32::NAN));
            let mut told: Vec<(usize, Vec<f32>)> = Vec::new();
            let mut tell = |tensor: usize, gradient: &[f32]| told.push((tensor, gradient.to_vec()));
            network.loss_and_gradients_with(
                &parameters,
                &images,
                &labels,
                &mut gradients,
                &mut tell,
            );
            let layers: Vec<usize> = told.iter().map(|(tensor, _)| tensor / 2).collect();
            assert!(layers.is_sorted_by(|a, b| a >= b), "{layers:?}");
            told.sort_by_key(|(tensor, _)| *tensor);
            let all: Vec<(usize, Vec<f32>)> =
                gradients.into_iter().map(|tensor| tensor.data).enumerate().collect();
            assert_eq!(told, all);
        }
    }

    #[test]
    fn a_batch_s_gradient_is_the_mean_of_its_images() {
        let (mut network, parameters) = Network::cnn(SHAPE, [3, 4], 7, 3, 1);
        let (images, labels) = batch(3, 9);
        let mut whole = zeros_like(&parameters);
        network.loss_and_gradients(&parameters, &images, &labels, &mut whole);
        let mut mean = zeros_like(&parameters);
        for (image, label) in images.chunks_exact(SHAPE.values()).zip(labels.chunks_exact(1)) {
            let mut one = zeros_like(&parameters);
            network.loss_and_gradients(&parameters, image, label, &mut one);
            for (mean, one) in mean.iter_mut().zip(&one) {
                mean.data.iter_mut().zip(&one.data).for_each(|(m, x)| *m += x / 3.0);
            }
        }
        for (whole, mean) in whole.iter().zip(&mean) {
            let differs = |(x, y): (&f32, &f32)| (x - y).abs() > 1e-5;
            assert!(!whole.data.iter().zip(&mean.data).any(differs), "{}", whole.name);
        }
    }

    #[test]
    fn tensors_are_those_documented_and_the_seed_fixes_them() {
        let shape = ImageShape { height: 8, width: 8, channels: 1 };
        let (_, parameters) = Network::new(NetKind::Cnn, shape, 10, 1);
        let sizes: Vec<(&str, usize)> =
            parameters.iter().map(|tensor| (tensor.name.as_str(), tensor.len())).collect();
        let expected = [
            ("conv1.weight", 288),
            ("conv1.bias", 32),
            ("conv2.weight", 18_432),
            ("conv2.bias", 64),
            ("dense1.weight", 32_768),
            ("dense1.bias", 32),
            ("dense2.weight", 320),
            ("dense2.bias", 10),
        ];
        assert_eq!(sizes, expected);
        assert_eq!(parameters, Network::new(NetKind::Cnn, shape, 10, 1).1);
        assert_ne!(parameters, Network::new(NetKind::Cnn, shape, 10, 2).1);
        let (_, mlp) = Network::new(NetKind::Mlp, shape, 10, 1);
        assert_eq!(mlp.iter().map(Tensor::len).sum::<usize>(), 50_826);
    }

    #[test]
    fn batches_of_changing_size_compute_the_same() {
        let (mut network, parameters) = Network::cnn(SHAPE, [3, 4], 7, 3, 1);
        let (images, labels) = batch(6, 2);
        let all = network.count_correct(&parameters, &images, &labels);
        let half = 3 * SHAPE.values();
        let parts = network.count_correct(&parameters, &images[..half], &labels[..3])
            + network.count_correct(&parameters, &images[half..], &labels[3..]);
        assert_eq!(all, parts);
    }
}

//! Parameters and gradients: named arrays. Owned by whoever trains; read and written by the
//! layers and by the synchroniser.

/// A named array of numbers in row-major order: one layer's weights or biases, or their gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Layer and part, such as `conv1.weight`.
    pub name: String,
    /// Extents, slowest first.
    pub shape: Vec<usize>,
    /// As many values as the extents' product.
    pub data: Vec<f32>,
}

impl Tensor {
    /// A tensor of zeros.
    pub fn zeros(name: impl Into<String>, shape: &[usize]) -> Self {
        let data = vec![0.0; shape.iter().product()];
        Self { name: name.into(), shape: shape.to_vec(), data }
    }

    /// Weights drawn as He and others (2015) do for layers before a ReLU: normal, with variance
    /// `2 / inputs`.
    pub(crate) fn he(
        name: String,
        shape: &[usize],
        inputs: usize,
        random: &mut fastrand::Rng,
    ) -> Self {
        let deviation = (2.0 / inputs as f64).sqrt();
        let mut tensor = Self::zeros(name, shape);
        tensor.data.fill_with(|| (normal(random) * deviation) as f32);
        tensor
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }
}

/// Bytes that the values of all `tensors` take.
pub fn total_bytes(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(|tensor| (tensor.len() * size_of::<f32>()) as u64).sum()
}

/// A draw from the standard normal distribution (Box and Muller's method, one of its pair).
fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_weights_have_the_variance_asked_for_and_depend_on_the_seed() {
        let draw = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            Tensor::he("w".to_owned(), &[200, 100], 50, &mut random)
        };
        let tensor = draw(1);
        assert_eq!((tensor.len(), tensor.shape.as_slice()), (20_000, [200, 100].as_slice()));
        let mean = tensor.data.iter().sum::<f32>() / 20_000.0;
        let variance = tensor.data.iter().map(|x| x * x).sum::<f32>() / 20_000.0;
        assert!(mean.abs() < 0.005, "{mean}");
        assert!((variance - 0.04).abs() < 0.002, "{variance}");
        assert_eq!(tensor, draw(1));
        assert_ne!(tensor, draw(2));
        assert_eq!(total_bytes(&[tensor, Tensor::zeros("b", &[3])]), 80_012);
    }
}

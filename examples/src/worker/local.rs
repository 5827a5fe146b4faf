//! Training alone: SGD with momentum, and nobody to wait for. The oracle of what every
//! synchronisation model must do at world size 1, and the cost-free base to compare with.

use super::{EpochReport, StepCost, Synchroniser};
use crate::BoxError;
use crate::model::Tensor;

/// `v = momentum * v + gradient; parameter -= lr * v`, element by element.
#[derive(Clone, Debug)]
pub struct LocalSgd {
    momentum: f32,
    velocities: Vec<Vec<f32>>,
}

impl LocalSgd {
    /// Without velocity yet. `momentum` 0 makes it plain SGD.
    pub fn new(momentum: f32) -> Self {
        Self { momentum, velocities: Vec::new() }
    }
}

impl Synchroniser for LocalSgd {
    fn transport(&self) -> String {
        "none".to_owned()
    }

    fn start(&mut self, parameters: &mut [Tensor]) -> Result<(), BoxError> {
        self.velocities = parameters.iter().map(|tensor| vec![0.0; tensor.len()]).collect();
        Ok(())
    }

    fn step(
        &mut self,
        _: f32,
        parameters: &mut [Tensor],
        gradients: &mut [Tensor],
        lr: f32,
    ) -> Result<StepCost, BoxError> {
        for ((parameter, gradient), velocity) in
            parameters.iter_mut().zip(&*gradients).zip(&mut self.velocities)
        {
            for ((w, g), v) in parameter.data.iter_mut().zip(&gradient.data).zip(velocity) {
                *v = self.momentum * *v + g;
                *w -= lr * *v;
            }
        }
        Ok(StepCost::default())
    }

    fn end_epoch(&mut self, mean_loss: f32) -> Result<EpochReport, BoxError> {
        let cost = StepCost::default();
        Ok(EpochReport { mean_loss, deferred_fraction: 0.0, deferral: None, cost })
    }

    fn finish(&mut self, _: &mut [Tensor]) -> Result<StepCost, BoxError> {
        Ok(StepCost::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_by_hand() {
        let mut parameters = [Tensor::zeros("w", &[2])];
        let mut gradients = parameters.clone();
        gradients[0].data = vec![1.0, -2.0];
        let mut sgd = LocalSgd::new(0.5);
        sgd.start(&mut parameters).unwrap();
        sgd.step(0.0, &mut parameters, &mut gradients, 0.25).unwrap();
        assert_eq!(parameters[0].data, [-0.25, 0.5]);
        sgd.step(0.0, &mut parameters, &mut gradients, 0.25).unwrap();
        assert_eq!(parameters[0].data, [-0.625, 1.25]);
    }
}

//! Stochastic gradient descent with momentum and weight decay.
//!
//! Owns the one formula by which a gradient becomes an update. Never decides which gradient that
//! is, and holds no state: the velocity belongs to whoever owns the parameters. Called by every
//! sync model, by the parameter server's shards and by OSP's correction, so that all of them
//! round in the same way.

/// Settings of the optimiser, the same on every rank.
///
/// One step with gradient `g`, parameters `w`, velocity `v` and learning rate `r`:
///
/// ```text
/// v = momentum * v + (g + weight_decay * w)
/// w = w - r * v
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Share of the velocity that survives a step; 0 is plain gradient descent.
    pub momentum: f32,
    /// What is added to the gradient per unit of parameter.
    pub weight_decay: f32,
}

impl Default for Sgd {
    fn default() -> Self {
        Self { momentum: 0.9, weight_decay: 0.0 }
    }
}

impl Sgd {
    /// Makes one step: changes `parameters` and `velocity` by `gradient`.
    ///
    /// # Panics
    /// If the lengths (elements) differ.
    pub fn step(
        &self,
        parameters: &mut [f32],
        velocity: &mut [f32],
        gradient: &[f32],
        learning_rate: f32,
    ) {
        assert_eq!(parameters.len(), velocity.len(), "one velocity per parameter");
        assert_eq!(parameters.len(), gradient.len(), "one gradient per parameter");
        for ((w, v), g) in parameters.iter_mut().zip(velocity).zip(gradient) {
            *v = self.velocity(*w, *v, *g);
            *w -= learning_rate * *v;
        }
    }

    /// The velocity after a step, from the parameter, the velocity and the gradient before it.
    #[inline]
    pub(crate) fn velocity(&self, parameter: f32, velocity: f32, gradient: f32) -> f32 {
        // Without decay nothing is added, not even 0 * w, which is NaN for an infinite w.
        let decayed = if self.weight_decay == 0.0 {
            gradient
        } else {
            gradient + self.weight_decay * parameter
        };
        self.momentum * velocity + decayed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_by_hand() {
        let sgd = Sgd { momentum: 0.5, weight_decay: 0.25 };
        let (mut w, mut v) = ([4.0, -8.0], [0.0, 2.0]);
        sgd.step(&mut w, &mut v, &[1.0, 3.0], 0.5);
        assert_eq!((v, w), ([2.0, 2.0], [3.0, -9.0]));
        sgd.step(&mut w, &mut v, &[0.25, 2.25], 0.5);
        assert_eq!((v, w), ([2.0, 1.0], [2.0, -9.5]));
    }

    #[test]
    fn without_decay_infinite_parameters_leave_the_velocity_finite() {
        let (mut w, mut v) = ([f32::INFINITY], [1.0]);
        Sgd { momentum: 0.5, weight_decay: 0.0 }.step(&mut w, &mut v, &[1.0], 0.1);
        assert_eq!(v, [1.5]);
    }
}

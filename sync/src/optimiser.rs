//! Optimisers: the formulas by which a gradient becomes an update.
//!
//! Owns each formula once. Never decides which gradient that is, and holds no state: the
//! [`Moments`] belong to whoever owns the parameters. Called by every sync model, by the parameter
//! server's shards and by OSP's correction, so that all of them round in the same way.
//!
//! Source of Adam: Kingma and Ba, arXiv 1412.6980; of decoupled decay (AdamW): Loshchilov and
//! Hutter, arXiv 1711.05101.

mod moments;
#[cfg(test)]
mod tests;

pub use moments::Moments;
pub(crate) use moments::{MomentsMut, MomentsRef};

use crate::error::{Error, Result};
use std::str::FromStr;

/// An optimiser and its settings, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimiser {
    /// Adam, with its moments advanced by averaged gradients only.
    Adam(Adam),
    /// Stochastic gradient descent.
    Sgd(Sgd),
}

/// Stochastic gradient descent with momentum.
///
/// One step with gradient `g`, parameters `w`, velocity `v` and learning rate `r`:
///
/// ```text
/// g = g + weight_decay * w
/// v = momentum * v + g
/// w = w - r * v                    or, with Nesterov's momentum, w - r * (g + momentum * v)
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Share of the velocity that survives a step; 0 is plain gradient descent.
    pub momentum: f32,
    /// What is added to the gradient per unit of parameter.
    pub weight_decay: f32,
    /// Nesterov's momentum: looks a step ahead.
    pub is_nesterov: bool,
}

impl Default for Sgd {
    fn default() -> Self {
        Self { momentum: 0.9, weight_decay: 0.0, is_nesterov: false }
    }
}

/// Adam, or AdamW.
///
/// Update number `t`, from 1:
///
/// ```text
/// m = beta1 * m + (1 - beta1) * g
/// u = beta2 * u + (1 - beta2) * g^2
/// w = w - r * (m / (1 - beta1^t)) / (sqrt(u / (1 - beta2^t)) + epsilon)
/// ```
///
/// Decay is added to `g` (Adam), or taken from `w` as `r * weight_decay * w` (AdamW).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Weight of the past in the mean of the gradients.
    pub beta1: f32,
    /// Weight of the past in the mean of their squares.
    pub beta2: f32,
    /// Keeps the quotient finite.
    pub epsilon: f32,
    /// Decay per unit of parameter.
    pub weight_decay: f32,
    /// AdamW: decay acts on the parameters alone, not on the moments.
    pub is_decoupled: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0, is_decoupled: false }
    }
}

impl Default for Optimiser {
    fn default() -> Self {
        Self::Sgd(Sgd::default())
    }
}

impl From<Sgd> for Optimiser {
    fn from(sgd: Sgd) -> Self {
        Self::Sgd(sgd)
    }
}

impl From<Adam> for Optimiser {
    fn from(adam: Adam) -> Self {
        Self::Adam(adam)
    }
}

impl FromStr for Optimiser {
    type Err = Error;

    /// The optimiser of that name, with default settings: `sgd`, `nesterov`, `adam`, `adamw`.
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "adam" => Ok(Adam::default().into()),
            "adamw" => {
                Ok(Adam { weight_decay: 0.01, is_decoupled: true, ..Adam::default() }.into())
            }
            "nesterov" => Ok(Sgd { is_nesterov: true, ..Sgd::default() }.into()),
            "sgd" => Ok(Sgd::default().into()),
            _ => {
                let reason = format!("no optimiser '{name}'; sgd, nesterov, adam, adamw");
                Err(Error::Config { reason })
            }
        }
    }
}

/// How far one step goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSize {
    /// The learning rate.
    pub learning_rate: f32,
    /// What the gradient is multiplied with first: below 1 where it is clipped.
    pub gradient_scale: f32,
    /// Updates of these parameters before this one.
    pub updates: u64,
}

impl StepSize {
    /// An unclipped step.
    pub fn new(learning_rate: f32, updates: u64) -> Self {
        Self { learning_rate, gradient_scale: 1.0, updates }
    }
}

impl Optimiser {
    /// Makes one step: changes `parameters` and `moments` by `gradient`.
    ///
    /// # Panics
    /// If the lengths (elements) differ.
    pub fn step(
        &self,
        parameters: &mut [f32],
        moments: MomentsMut<'_>,
        gradient: &[f32],
        size: StepSize,
    ) {
        assert_eq!(parameters.len(), gradient.len(), "one gradient per parameter");
        assert_eq!(parameters.len(), moments.first.len(), "one moment per parameter");
        let MomentsMut { first, second } = moments;
        match self {
            Self::Adam(adam) => {
                assert_eq!(parameters.len(), second.len(), "two moments per parameter");
                let step = adam.prepare(size);
                let moments = first.iter_mut().zip(second);
                for ((w, g), (m, u)) in parameters.iter_mut().zip(gradient).zip(moments) {
                    (*w, *m, *u) = step.apply(*w, *m, *u, *g);
                }
            }
            Self::Sgd(sgd) => {
                for ((w, v), g) in parameters.iter_mut().zip(first).zip(gradient) {
                    (*w, *v) = sgd.apply(*w, *v, *g, size);
                }
            }
        }
    }

    /// Writes to `target` what `parameters` would be after a step, and changes nothing else.
    ///
    /// # Panics
    /// If the lengths (elements) differ.
    pub fn preview(
        &self,
        parameters: &[f32],
        moments: MomentsRef<'_>,
        gradient: impl IntoIterator<Item = f32>,
        size: StepSize,
        target: &mut [f32],
    ) {
        assert_eq!(parameters.len(), target.len(), "one target per parameter");
        assert_eq!(parameters.len(), moments.first.len(), "one moment per parameter");
        let states = parameters.iter().zip(gradient);
        match self {
            Self::Adam(adam) => {
                let step = adam.prepare(size);
                let moments = moments.first.iter().zip(moments.second);
                for ((x, (w, g)), (m, u)) in target.iter_mut().zip(states).zip(moments) {
                    *x = step.apply(*w, *m, *u, g).0;
                }
            }
            Self::Sgd(sgd) => {
                for ((x, (w, g)), v) in target.iter_mut().zip(states).zip(moments.first) {
                    *x = sgd.apply(*w, *v, g, size).0;
                }
            }
        }
    }

    /// Whether there is a second moment per parameter.
    pub fn has_second_moment(&self) -> bool {
        matches!(self, Self::Adam(_))
    }

    /// Whether the settings can work.
    ///
    /// # Errors
    /// [`Error::Config`] that names the first setting that cannot.
    pub fn validate(&self) -> Result<()> {
        let require = |holds: bool, rule: &str, value: f32| {
            let reason = format!("{rule}, not {value}");
            if holds { Ok(()) } else { Err(Error::Config { reason }) }
        };
        let share = |value: f32| (0.0..1.0).contains(&value);
        let decay = match self {
            Self::Adam(adam) => {
                require(share(adam.beta1), "beta1 lies in 0..1", adam.beta1)?;
                require(share(adam.beta2), "beta2 lies in 0..1", adam.beta2)?;
                let is_positive = adam.epsilon.is_finite() && adam.epsilon > 0.0;
                require(is_positive, "epsilon is above 0", adam.epsilon)?;
                adam.weight_decay
            }
            Self::Sgd(sgd) => {
                require(share(sgd.momentum), "momentum lies in 0..1", sgd.momentum)?;
                sgd.weight_decay
            }
        };
        require(decay.is_finite() && decay >= 0.0, "weight decay is not negative", decay)
    }
}

impl Sgd {
    /// Parameter and velocity after a step.
    #[inline]
    fn apply(&self, w: f32, v: f32, g: f32, size: StepSize) -> (f32, f32) {
        let g = decayed(g * size.gradient_scale, w, self.weight_decay);
        let v = self.momentum * v + g;
        let direction = if self.is_nesterov { g + self.momentum * v } else { v };
        (w - size.learning_rate * direction, v)
    }
}

/// What of Adam's formula is the same for all elements of a step.
#[derive(Clone, Copy, Debug)]
struct AdamStep {
    adam: Adam,
    size: StepSize,
    /// 1 / (1 - beta^t) of both moments.
    unbias: [f32; 2],
}

impl Adam {
    fn prepare(&self, size: StepSize) -> AdamStep {
        // In f64: 1 - 0.999 has three digits left in f32. A power beyond i32 is 0 long since.
        let t = i32::try_from(size.updates.saturating_add(1)).unwrap_or(i32::MAX);
        let unbias =
            [self.beta1, self.beta2].map(|beta| (1.0 / (1.0 - f64::from(beta).powi(t))) as f32);
        AdamStep { adam: *self, size, unbias }
    }
}

impl AdamStep {
    /// Parameter and moments after a step.
    #[inline]
    fn apply(&self, w: f32, m: f32, u: f32, g: f32) -> (f32, f32, f32) {
        let Self { adam, size, unbias } = self;
        let g = g * size.gradient_scale;
        let (coupled, decoupled) =
            if adam.is_decoupled { (0.0, adam.weight_decay) } else { (adam.weight_decay, 0.0) };
        let g = decayed(g, w, coupled);
        let m = adam.beta1 * m + (1.0 - adam.beta1) * g;
        let u = adam.beta2 * u + (1.0 - adam.beta2) * g * g;
        let direction = m * unbias[0] / ((u * unbias[1]).sqrt() + adam.epsilon);
        (w - size.learning_rate * decayed(direction, w, decoupled), m, u)
    }
}

/// `g + decay * w`. Without decay nothing is added, not even 0 * w, which is NaN for an infinite w.
#[inline]
fn decayed(g: f32, w: f32, decay: f32) -> f32 {
    if decay == 0.0 { g } else { g + decay * w }
}

/// What the gradient is multiplied with, so that its norm is `limit` at most; 1 without a limit,
/// and for a norm that is no number, which clipping cannot mend.
pub(crate) fn clip_scale(norm: f64, limit: Option<f32>) -> f32 {
    match limit {
        Some(limit) if norm > f64::from(limit) && norm.is_finite() => {
            (f64::from(limit) / norm) as f32
        }
        _ => 1.0,
    }
}

/// Sum of squares, in a fixed order.
pub(crate) fn sum_of_squares(values: &[f32]) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0.0_f64; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for values in whole {
        for lane in 0..LANES {
            lanes[lane] += f64::from(values[lane]) * f64::from(values[lane]);
        }
    }
    let rest: f64 = rest.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    lanes.iter().sum::<f64>() + rest
}

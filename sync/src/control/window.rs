//! What a rank tells the others of a window of steps, and what all of them make of it.
//!
//! Owns the words of a report and the sketch of a gradient. Never communicates: whoever drives a
//! session gathers the words. Called by the [`Controller`](super::Controller) and by trainers.
//!
//! The distances of all ranks' gradients from their average are not known to any rank that has but
//! its own gradient and some words of the others. So each sends a sketch: sums, with random signs,
//! of the gradient's elements over a few buckets. Sketches are linear, and the squared norm of one
//! is, on average over the signs, that of the gradient (Charikar, Chen and Farach-Colton, 2002).
//! Its relative deviation is at most `sqrt(2 / SKETCH_LEN)`, 18 %, before the policy's smoothing.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::model::osp::importance::mix;

/// Buckets of a sketch.
pub const SKETCH_LEN: usize = 64;
/// Words of a report: six, and two buckets in each of the others.
pub const WORDS: usize = 6 + SKETCH_LEN / 2;

/// A gradient, reduced to a few sums.
#[derive(Clone, Debug, PartialEq)]
pub struct Sketch([f32; SKETCH_LEN]);

impl Default for Sketch {
    fn default() -> Self {
        Self([0.0; SKETCH_LEN])
    }
}

impl Sketch {
    /// Of the tensors of one gradient, in an order that is the same on all ranks, as `seed` is.
    pub fn of(gradients: &[&[f32]], seed: u64) -> Self {
        let mut sums = [0.0_f64; SKETCH_LEN];
        let start = mix(seed);
        for (index, value) in (0_u64..).zip(gradients.iter().flat_map(|tensor| tensor.iter())) {
            let hash = mix(start ^ index);
            let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
            sums[(hash % SKETCH_LEN as u64) as usize] += sign * f64::from(*value);
        }
        Self(sums.map(|sum| sum as f32))
    }

    fn norm2(&self) -> f64 {
        self.0.iter().map(|value| f64::from(*value) * f64::from(*value)).sum()
    }
}

/// One rank's window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankReport {
    /// Steps that it trained.
    pub steps: u64,
    /// Steps that it computed: those, or trials of a rank that sat the window out.
    pub computed_steps: u64,
    /// Forward and backward passes of the latter together.
    pub compute: Duration,
    /// Sum of its losses over the former.
    pub loss_sum: f64,
    /// The first of them.
    pub first_loss: f64,
    /// Whether all of them were finite numbers.
    pub is_finite: bool,
    /// Its last gradient.
    pub sketch: Sketch,
}

impl RankReport {
    /// The words for the others.
    pub fn to_words(&self) -> Vec<u64> {
        let compute_ns = u64::try_from(self.compute.as_nanos()).unwrap_or(u64::MAX);
        let mut words = vec![
            self.steps,
            self.computed_steps,
            compute_ns,
            self.loss_sum.to_bits(),
            u64::from(self.is_finite),
            self.first_loss.to_bits(),
        ];
        words.extend(
            self.sketch
                .0
                .as_chunks::<2>()
                .0
                .iter()
                .map(|[low, high]| u64::from(low.to_bits()) | (u64::from(high.to_bits()) << 32)),
        );
        words
    }

    fn from_words(words: &[u64; WORDS]) -> Self {
        let mut sketch = [0.0; SKETCH_LEN];
        for ([low, high], word) in sketch.as_chunks_mut::<2>().0.iter_mut().zip(&words[6..]) {
            *low = f32::from_bits(*word as u32);
            *high = f32::from_bits((*word >> 32) as u32);
        }
        Self {
            steps: words[0],
            computed_steps: words[1],
            compute: Duration::from_nanos(words[2]),
            loss_sum: f64::from_bits(words[3]),
            is_finite: words[4] != 0,
            first_loss: f64::from_bits(words[5]),
            sketch: Sketch(sketch),
        }
    }

    /// The reports of all ranks, from their words one after the other.
    ///
    /// # Errors
    /// [`Error::Protocol`] if there are not whole reports.
    pub fn all_from_words(words: &[u64]) -> Result<Vec<Self>> {
        let (reports, rest) = words.as_chunks::<WORDS>();
        if !rest.is_empty() {
            let reason = format!("{} words are no whole reports of {WORDS} each", words.len());
            return Err(Error::Protocol { reason });
        }
        Ok(reports.iter().map(Self::from_words).collect())
    }

    /// Samples that it computes in a second, with `batch` in a step; none if it computed none.
    pub(super) fn speed(&self, batch: u32) -> Option<f64> {
        let seconds = self.compute.as_secs_f64();
        let samples = self.computed_steps as f64 * f64::from(batch);
        (seconds > 0.0 && samples > 0.0).then(|| samples / seconds)
    }
}

/// Mean over all ranks that trained of the loss of the window's first step; NaN if there is none.
pub(super) fn mean_first_loss(reports: &[RankReport]) -> f64 {
    let trained = reports.iter().filter(|report| report.steps > 0);
    let (sum, count) =
        trained.fold((0.0, 0.0), |(sum, count), report| (sum + report.first_loss, count + 1.0));
    sum / count
}

/// Mean loss over all steps of all ranks; NaN if any of them was not finite, or there are none.
pub(super) fn mean_loss(reports: &[RankReport]) -> f64 {
    let trained = || reports.iter().filter(|report| report.steps > 0);
    if trained().any(|report| !report.is_finite) {
        return f64::NAN;
    }
    let steps: f64 = trained().map(|report| report.steps as f64).sum();
    trained().map(|report| report.loss_sum).sum::<f64>() / steps
}

/// The squared norm of the average gradient, and the mean squared distance of the ranks' gradients
/// from it, both by their sketches; of the ranks that trained.
pub(super) fn norms(reports: &[RankReport]) -> (f64, f64) {
    let trained: Vec<&Sketch> =
        reports.iter().filter(|report| report.steps > 0).map(|report| &report.sketch).collect();
    let count = trained.len().max(1) as f32;
    let mut average = Sketch::default();
    for (at, value) in average.0.iter_mut().enumerate() {
        *value = trained.iter().map(|sketch| sketch.0[at]).sum::<f32>() / count;
    }
    let distance2 = |sketch: &&Sketch| {
        let mut distance = Sketch::default();
        let pairs = sketch.0.iter().zip(&average.0);
        distance.0.iter_mut().zip(pairs).for_each(|(d, (a, b))| *d = a - b);
        distance.norm2()
    };
    let distances: f64 = trained.iter().map(distance2).sum();
    (average.norm2(), distances / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_words() {
        let report = RankReport {
            steps: 7,
            computed_steps: 8,
            compute: Duration::from_nanos(123_456_789),
            loss_sum: -0.1,
            first_loss: 0.3,
            is_finite: true,
            sketch: Sketch::of(&[&[1.0, -2.5], &[3.0e-20]], 9),
        };
        let words = [report.to_words(), RankReport::default().to_words()].concat();
        let all = RankReport::all_from_words(&words).unwrap();
        assert_eq!(all, [report.clone(), RankReport::default()]);
        assert!(RankReport::all_from_words(&words[1..]).is_err());
        assert_eq!(report.speed(10), Some(80.0 / 0.123_456_789));
        assert_eq!(RankReport::default().speed(10), None);
    }

    #[test]
    fn losses_count_by_steps_and_one_bad_one_spoils_all() {
        let report = |steps, loss_sum| RankReport {
            steps,
            loss_sum,
            is_finite: true,
            ..RankReport::default()
        };
        let mut all = [report(1, 5.0), report(3, 3.0), RankReport::default()];
        assert_eq!(mean_loss(&all), 2.0);
        (all[0].first_loss, all[1].first_loss, all[2].first_loss) = (1.0, 4.0, 9.0);
        assert_eq!(mean_first_loss(&all), 2.5, "of those that trained");
        assert!(mean_first_loss(&[]).is_nan());
        all[0].is_finite = false;
        assert!(mean_loss(&all).is_nan() && mean_loss(&[]).is_nan());
    }

    /// Over many seeds the estimates are those of the gradients themselves.
    #[test]
    fn sketches_estimate_norm_and_distance() {
        let mut random = fastrand::Rng::with_seed(4);
        let gradients: Vec<Vec<f32>> =
            (0..4).map(|_| (0..500).map(|_| random.f32() - 0.25).collect()).collect();
        let average: Vec<f32> =
            (0..500).map(|at| gradients.iter().map(|g| g[at]).sum::<f32>() / 4.0).collect();
        let norm2 = |a: &[f32]| a.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
        let distance2 =
            |g: &Vec<f32>| norm2(&g.iter().zip(&average).map(|(a, b)| a - b).collect::<Vec<f32>>());
        let expected = (norm2(&average), gradients.iter().map(distance2).sum::<f64>() / 4.0);
        let seeds = 200;
        let (mut norm, mut distance) = (0.0, 0.0);
        for seed in 0..seeds {
            let report = |g: &Vec<f32>| RankReport {
                steps: 1,
                sketch: Sketch::of(&[&g[..123], &g[123..]], seed),
                ..RankReport::default()
            };
            let reports: Vec<RankReport> = gradients.iter().map(report).collect();
            let (n, d) = norms(&reports);
            norm += n / seeds as f64;
            distance += d / seeds as f64;
        }
        assert!((norm / expected.0 - 1.0).abs() < 0.06, "{norm} {}", expected.0);
        assert!((distance / expected.1 - 1.0).abs() < 0.06, "{distance} {}", expected.1);
        assert_eq!(norms(&[]), (0.0, 0.0));
    }
}

//! The few statistics that several policies use.
//!
//! Owns mean, deviation, median and the running mean of a loss. Never decides anything. Called by
//! the policies and by the planner of buckets.

/// Arithmetic mean; 0 of nothing.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Standard deviation of the values themselves, that is divided by their count.
pub(crate) fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (squares / values.len().max(1) as f64).sqrt()
}

/// The middle value, or the mean of the two; 0 of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[middle],
        _ => sorted[middle - 1] + (sorted[middle] - sorted[middle - 1]) / 2.0,
    }
}

/// Median absolute deviation from the median.
pub(crate) fn median_deviation(values: &[f64]) -> f64 {
    let centre = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    median(&distances)
}

/// Losses before which no loss counts as a spike.
const SETTLE: u32 = 5;
/// A deviation below this share of the mean is taken to be as large as it.
const FLOOR: f64 = 0.01;

/// Exponential means of a loss and of its distance from its mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossAverage {
    smoothing: f64,
    mean: f64,
    deviation: f64,
    count: u32,
}

impl LossAverage {
    /// Of no loss; `smoothing` is the weight of the past, from 0 to below 1.
    pub(crate) fn new(smoothing: f64) -> Self {
        Self { smoothing, mean: 0.0, deviation: 0.0, count: 0 }
    }

    /// Takes in a finite loss.
    pub(crate) fn add(&mut self, loss: f64) {
        let mix = |past: f64, value: f64| self.smoothing * past + (1.0 - self.smoothing) * value;
        if self.count == 0 {
            self.mean = loss;
        } else {
            self.deviation = mix(self.deviation, (loss - self.mean).abs());
            self.mean = mix(self.mean, loss);
        }
        self.count = self.count.saturating_add(1);
    }

    /// A loss above this is a spike; none while too few losses are known.
    pub(crate) fn threshold(&self, factor: f64) -> Option<f64> {
        let spread = self.deviation.max(FLOOR * self.mean.abs());
        (self.count >= SETTLE).then_some(self.mean + factor * spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        assert_eq!((mean(&[]), deviation(&[]), median(&[])), (0.0, 0.0, 0.0));
        let values = [2.0, 9.0, 4.0, 4.0, 5.0, 7.0, 5.0, 4.0];
        assert_eq!((mean(&values), deviation(&values)), (5.0, 2.0));
        assert_eq!((median(&values), median(&values[..3])), (4.5, 4.0));
        // Distances from 4.5: 2.5 4.5 0.5 0.5 0.5 2.5 0.5 0.5.
        assert_eq!(median_deviation(&values), 0.5);
    }

    #[test]
    fn a_running_mean_by_hand() {
        let mut average = LossAverage::new(0.5);
        average.add(4.0);
        average.add(2.0);
        assert_eq!((average.mean, average.deviation), (3.0, 1.0));
        average.add(3.0);
        assert_eq!((average.mean, average.deviation), (3.0, 0.5));
        assert_eq!(average.threshold(2.0), None);
        average.add(3.0);
        average.add(3.0);
        assert_eq!(average.threshold(2.0), Some(3.0 + 2.0 * 0.125));
        for _ in 0..20 {
            average.add(3.0);
        }
        assert_eq!(average.threshold(2.0), Some(3.0 + 2.0 * 0.03));
    }
}

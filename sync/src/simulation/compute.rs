//! How long each rank computes in each step.
//!
//! Owns the draws, which depend on seed, rank and step alone: the order of events changes nothing.
//! Called by the driver.

use std::time::Duration;

use super::error::SimulationError;

/// Times of forward and backward passes.
#[derive(Clone, Debug, PartialEq)]
pub struct Compute {
    /// One fixed time, or measured ones, of which each step of each rank draws one.
    pub times: Vec<Duration>,
    /// From 0 to 1. Each time is multiplied by 1 - jitter + jitter E, where E is drawn from the
    /// exponential distribution with mean 1: the mean stays, the deviation is this share of it.
    pub jitter: f64,
    /// Ranks that are made slow.
    pub stragglers: Vec<Straggler>,
    /// Fixes all draws.
    pub seed: u64,
}

/// A rank that computes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Straggler {
    /// Who.
    pub rank: u32,
    /// How much longer, in each slow step.
    pub delay: Duration,
    /// First slow step, counted from 0.
    pub from: u64,
    /// Last slow step.
    pub to: u64,
}

impl Compute {
    /// The same time on every rank in every step.
    pub fn fixed(time: Duration) -> Self {
        Self { times: vec![time], jitter: 0.0, stragglers: Vec::new(), seed: 0 }
    }

    /// Seconds that `rank` computes in `step`.
    ///
    /// # Panics
    /// If there is no time to draw from.
    pub fn seconds(&self, rank: u32, step: u64) -> f64 {
        let count = self.times.len() as u64;
        let index = if count == 1 { 0 } else { self.draw(rank, step, 0) % count };
        let base = self.times[index as usize].as_secs_f64();
        let slow = |slow: &&Straggler| slow.rank == rank && (slow.from..=slow.to).contains(&step);
        let delay: f64 =
            self.stragglers.iter().filter(slow).map(|slow| slow.delay.as_secs_f64()).sum();
        base * self.factor(rank, step) + delay
    }

    /// Whether all times make sense.
    ///
    /// # Errors
    /// [`SimulationError::Setting`] that names what cannot work.
    pub fn validate(&self, ranks: u32) -> Result<(), SimulationError> {
        let stranger = self.stragglers.iter().find(|slow| slow.rank >= ranks);
        let reason = if self.times.is_empty() {
            "there is at least one computation time".to_owned()
        } else if !(0.0..=1.0).contains(&self.jitter) {
            format!("jitter lies in 0..=1, not {}", self.jitter)
        } else if let Some(slow) = stranger {
            format!("straggler {}: there are {ranks} ranks, counted from 0", slow.rank)
        } else {
            return Ok(());
        };
        Err(SimulationError::Setting { reason })
    }

    fn factor(&self, rank: u32, step: u64) -> f64 {
        if self.jitter == 0.0 {
            return 1.0;
        }
        // Above 0 and up to 1.
        let uniform = ((self.draw(rank, step, 1) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        1.0 - self.jitter - self.jitter * uniform.ln()
    }

    fn draw(&self, rank: u32, step: u64, stream: u64) -> u64 {
        let words = [u64::from(rank), step, stream];
        words.into_iter().fold(mix(self.seed), |state, word| mix(state ^ word))
    }
}

/// The step of SplitMix64 (Steele and others, 2014): spreads every bit over all.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stragglers_are_slow_in_their_steps_only() {
        let delay = Duration::from_millis(30);
        let stragglers = vec![Straggler { rank: 2, delay, from: 5, to: 6 }];
        let compute = Compute { stragglers, ..Compute::fixed(Duration::from_millis(10)) };
        let times = [(2, 4), (2, 5), (2, 6), (2, 7), (1, 5)].map(|(r, s)| compute.seconds(r, s));
        assert_eq!(times, [0.01, 0.04, 0.04, 0.01, 0.01]);
        assert!(compute.validate(2).unwrap_err().to_string().contains("straggler 2"));
        assert!(compute.validate(3).is_ok());
    }

    /// The mean stays; the largest of n is 1 - j + j H(n) on average, H the harmonic number.
    #[test]
    fn jitter_keeps_the_mean_and_has_the_tail_of_an_exponential() {
        let second = Compute::fixed(Duration::from_secs(1));
        let compute = Compute { jitter: 0.2, seed: 3, ..second };
        let steps = 4000;
        let (mut sum, mut largest) = (0.0, 0.0);
        for step in 0..steps {
            let times: Vec<f64> = (0..8).map(|rank| compute.seconds(rank, step)).collect();
            assert!(times.iter().all(|time| *time >= 0.8));
            sum += times.iter().sum::<f64>() / 8.0;
            largest += times.iter().copied().fold(0.0, f64::max);
        }
        let harmonic: f64 = (1..=8).map(|n| 1.0 / f64::from(n)).sum();
        assert!((sum / steps as f64 - 1.0).abs() < 0.01);
        assert!((largest / steps as f64 - (0.8 + 0.2 * harmonic)).abs() < 0.01);
    }

    #[test]
    fn measured_times_are_drawn_by_seed() {
        let times: Vec<Duration> = (1..=4).map(Duration::from_secs).collect();
        let compute =
            |seed| Compute { times: times.clone(), seed, ..Compute::fixed(Duration::ZERO) };
        let draws = |seed| (0..400).map(|s| compute(seed).seconds(1, s)).collect::<Vec<f64>>();
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
        for time in 1..=4 {
            let count = draws(1).iter().filter(|draw| **draw == f64::from(time)).count();
            assert!((60..140).contains(&count), "{time} s came {count} times in 400");
        }
        let none = Compute { times: Vec::new(), ..compute(1) };
        assert!(none.validate(1).is_err());
        for jitter in [-0.1, 1.1, f64::NAN] {
            assert!(Compute { jitter, ..compute(1) }.validate(1).is_err(), "{jitter}");
        }
    }
}

//! What an epoch shows about time and bandwidth, and how all ranks come to agree on it.
//!
//! Owns the samples of one epoch and their summary. Never reads a clock: durations come with the
//! events. Called by the model; what it sends to all ranks comes back from all ranks, and each
//! computes the same [`Observation`] from the same words.

use std::time::Duration;

use super::super::{StepEnded, Timing};
use super::budget::Observation;
use crate::layout::ELEMENT_BYTES;

/// Words that each rank contributes to an agreement.
const WORDS: usize = 3;
/// Where overlapped transfers hide, so many times what they show is taken to hide too: without
/// that, a budget that hides could never grow.
const PROBE: f64 = 1.25;
/// They hide if at most one in so many was waited for.
const RARE: usize = 10;

/// The samples of one epoch of one rank.
#[derive(Debug, Default)]
pub(crate) struct Measurements {
    compute_s: Vec<f64>,
    /// Bytes per second of transfers whose end was seen.
    rates: Vec<f64>,
    /// Bytes per second at least: of overlapped transfers that were over before anybody looked.
    lower_bounds: Vec<f64>,
    /// Overlapped transfers that were waited for.
    late: usize,
    loss_failed: bool,
}

impl Measurements {
    /// Takes note of a step's computation.
    pub(crate) fn step(&mut self, ended: &StepEnded) {
        self.compute_s.push(ended.compute.as_secs_f64());
        self.loss_failed |= !ended.loss.is_finite();
    }

    /// Takes note of a reduction of `len` elements, blocking or overlapped.
    pub(crate) fn transfer(
        &mut self,
        len: usize,
        world_size: u32,
        timing: Timing,
        is_overlapped: bool,
    ) {
        let seconds = timing.elapsed.as_secs_f64();
        if world_size <= 1 || seconds <= 0.0 {
            return;
        }
        // What a ring or a direct exchange sends per rank, and receives.
        let ranks = f64::from(world_size);
        let rate = (len * ELEMENT_BYTES) as f64 * 2.0 * (ranks - 1.0) / ranks / seconds;
        if timing.blocked.is_zero() {
            self.lower_bounds.push(rate);
        } else {
            self.rates.push(rate);
            self.late += usize::from(is_overlapped);
        }
    }

    /// This rank's words for the agreement, and a fresh start.
    pub(crate) fn take_words(&mut self, mean_loss: f64) -> Vec<u64> {
        let samples = std::mem::take(self);
        let mean_loss = if samples.loss_failed { f64::NAN } else { mean_loss };
        // A rank that comes early waits for the others, which is no part of the transfer: the
        // upper quartile leaves most of that out, the maximum over the ranks the rest.
        let rate = quantile(samples.rates, 0.75);
        let hides = samples.lower_bounds.len() > RARE * samples.late;
        // With lower bounds alone nothing is known: not a limit, but not a bandwidth either.
        let bandwidth = if rate > 0.0 && hides {
            rate.max(PROBE * quantile(samples.lower_bounds, 0.75))
        } else {
            rate
        };
        [mean_loss, quantile(samples.compute_s, 0.5), bandwidth].map(f64::to_bits).to_vec()
    }
}

/// What all ranks' words say, the same on every rank: the mean of the losses, and the slowest
/// computation, because the ranks that are faster wait for it in RS anyway. `workers` of the ranks
/// train; the words of others are zeros.
pub(crate) fn agree(words: &[u64], workers: u32, total_bytes: u64) -> Observation {
    let each =
        |index: usize| words.chunks_exact(WORDS).map(move |words| f64::from_bits(words[index]));
    let slowest = each(1).fold(0.0, f64::max);
    let bandwidth = each(2).fold(0.0, f64::max);
    Observation {
        mean_loss: each(0).sum::<f64>() / f64::from(workers),
        compute: Duration::try_from_secs_f64(slowest).unwrap_or_default(),
        bandwidth: (bandwidth > 0.0).then_some(bandwidth),
        world_size: workers,
        total_bytes,
    }
}

/// The element at `share` of the way from the smallest to the largest; 0 of none.
fn quantile(mut samples: Vec<f64>, share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    samples.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(elapsed_ms: u64, blocked_ms: u64) -> Timing {
        let [elapsed, blocked] = [elapsed_ms, blocked_ms].map(Duration::from_millis);
        Timing { elapsed, blocked }
    }

    fn step(compute_ms: u64, loss: f32) -> StepEnded {
        StepEnded { learning_rate: 0.1, loss, compute: Duration::from_millis(compute_ms) }
    }

    #[test]
    fn ranks_agree_on_mean_loss_slowest_computation_and_fastest_link() {
        let mut words = Vec::new();
        for rank in 0..4 {
            let mut samples = Measurements::default();
            for compute_ms in [1, 10 + rank, 500] {
                samples.step(&step(compute_ms, 1.0));
            }
            samples.transfer(1_000_000, 4, timing(10 * (rank + 1), 1), false);
            words.extend(samples.take_words(rank as f64));
        }
        let seen = agree(&words, 4, 77);
        assert_eq!((seen.mean_loss, seen.world_size, seen.total_bytes), (1.5, 4, 77));
        assert_eq!(seen.compute, Duration::from_millis(13));
        assert_eq!(seen.bandwidth, Some(6e6 / 0.01));
    }

    /// 4000 bytes in 1 ms are 4e6 per second.
    #[test]
    fn a_transfer_that_was_over_shows_that_more_would_hide() {
        let bandwidth = |transfers: &[(u64, u64, bool)]| {
            let mut samples = Measurements::default();
            for (elapsed_ms, blocked_ms, is_overlapped) in transfers {
                samples.transfer(1000, 2, timing(*elapsed_ms, *blocked_ms), *is_overlapped);
            }
            agree(&samples.take_words(0.0), 2, 0).bandwidth
        };
        let (rs, hidden, late) = ((2, 2, false), (1, 0, true), (4, 1, true));
        assert_eq!(bandwidth(&[rs]), Some(2e6));
        assert_eq!(bandwidth(&[rs, rs, hidden]), Some(5e6));
        assert_eq!(bandwidth(&[(2, 2, false), (10, 0, true)]), Some(2e6), "a weak lower bound");
        assert_eq!(bandwidth(&[rs, hidden, late]), Some(2e6), "not all of them hide");
        assert_eq!(bandwidth(&[hidden]), None, "no limit was met");
    }

    #[test]
    fn nothing_moved_is_no_bandwidth_and_one_bad_step_is_a_bad_epoch() {
        let mut samples = Measurements::default();
        samples.transfer(1000, 1, timing(1, 1), false);
        samples.step(&step(1, f32::NAN));
        let words = samples.take_words(1.0);
        let seen = agree(&words, 1, 0);
        assert!(seen.mean_loss.is_nan());
        assert_eq!(seen.bandwidth, None);
        assert!(agree(&samples.take_words(1.0), 1, 0).mean_loss.is_finite(), "a fresh start");
    }
}

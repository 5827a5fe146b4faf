//! Figures of a list of times.
//!
//! Owns percentiles, spread, the best stretch, and the clocks that `std` does not have. Called by
//! what every rank executes.

use std::time::Duration;

/// The value below which `part` (0 to 1) of the sorted values lie, which must not be empty.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len() - 1;
    sorted[((last as f64) * part).round() as usize]
}

/// Mean and standard deviation of values, which must not be empty.
pub fn mean_and_stdev(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, square.sqrt())
}

/// The highest mean rate, in messages per second, over any stretch of 1, 2, 4, ... messages, from
/// when its first was posted until its last had arrived, so that what was under way before counts
/// as waiting and nothing counts as moved that was only handed over. 0 without messages, or if one
/// arrived before it was posted: then the clocks are not one.
///
/// Both are seconds of one clock, in ascending order, message by message.
pub fn peak_rate(posted: &[f64], arrived: &[f64]) -> f64 {
    if posted.iter().zip(arrived).any(|(posted, arrived)| arrived < posted) {
        return 0.0;
    }
    let count = posted.len().min(arrived.len());
    let lengths = std::iter::successors(Some(1), |length| Some(length * 2));
    lengths
        .take_while(|length| *length <= count)
        .flat_map(|length| {
            let last = &arrived[length - 1..count];
            posted.iter().zip(last).map(move |(from, to)| length as f64 / (to - from).max(1e-9))
        })
        .fold(0.0, f64::max)
}

/// Seconds of the clock that all processes of a host share.
pub fn host_clock_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// CPU time of this process so far, user's and kernel's, of all its threads: what `getrusage`
/// sums up, in nanoseconds instead of microseconds.
pub fn process_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// CPU seconds per GiB (2^30 bytes); none where no bytes were moved.
pub fn cpu_per_gib(cpu_s: f64, bytes: u64) -> Option<f64> {
    (bytes > 0).then(|| cpu_s / (bytes as f64 / f64::from(1 << 30)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_by_hand() {
        let sorted: Vec<f64> = (1..=101).map(f64::from).collect();
        let found = [0.0, 0.5, 0.9, 0.99, 1.0].map(|part| percentile(&sorted, part));
        assert_eq!(found, [1.0, 51.0, 91.0, 100.0, 101.0]);
        assert_eq!(percentile(&[3.0], 0.999), 3.0);
        assert_eq!(mean_and_stdev(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), (5.0, 2.0));
    }

    #[test]
    fn the_peak_is_the_best_stretch_from_post_to_arrival() {
        // All posted at once and one arrival a second: what waited is not fast.
        let arrived: Vec<f64> = (1..=8).map(f64::from).collect();
        assert!((peak_rate(&[0.0; 8], &arrived) - 1.0).abs() < 1e-9);
        // Arrivals that are noticed together do not make the link faster.
        assert!((peak_rate(&[0.0; 8], &[8.0; 8]) - 1.0).abs() < 1e-9);
        // Two of four take a tenth of the time.
        let (posted, arrived) = ([0.0, 1.0, 2.0, 2.1], [1.0, 2.0, 2.1, 2.2]);
        assert!((peak_rate(&posted, &arrived) - 10.0).abs() < 1e-6);
        assert_eq!(peak_rate(&[], &[]), 0.0);
        assert_eq!(peak_rate(&[5.0], &[1.0]), 0.0);
    }

    #[test]
    fn work_costs_cpu_time() {
        let before = process_cpu();
        let mut sum = 0_u64;
        while process_cpu() - before < Duration::from_millis(2) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0);
        assert_eq!(cpu_per_gib(3.0, 3 << 29), Some(2.0));
        assert_eq!(cpu_per_gib(1.0, 0), None);
    }
}

//! Which gradients travel together: buckets for reductions during the backward pass.
//!
//! Owns the cost model of a reduction, its fit, the timeline of a plan, and the planners. Never
//! sends and never measures. Called when the ranks have agreed on the times of a backward pass; a
//! plan is the same on every rank if the times are.
//!
//! Tensors come in the order in which the backward pass finishes them. A bucket is a run of them;
//! it is reduced when its last tensor is ready and the bucket before it is done. A reduction of x
//! bytes takes a + b x: few buckets save start-ups, many start earlier.
//!
//! | planner | from |
//! |---|---|
//! | [`merge_greedily`] | MG-WFBP (arXiv 1811.11141), read from its released code |
//! | [`plan`] | ours: the plan that ends first, by dynamic programming |
//! | [`fill`] | the simple rule of a cap on bytes, with a smaller first bucket, as DDP has |
//!
//! The greedy rule never ends later than one bucket of all, nor than one per tensor: it closes a
//! bucket only if the next tensor is ready a start-up or more after it could be sent, or after it
//! was reduced. But it looks only one tensor ahead, and can end later than the best plan. [`plan`]
//! never ends later than any.

pub mod rule;

use std::ops::Range;
use std::time::Duration;

use crate::policy::statistics::{median, median_deviation};

/// A tensor of a backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gradient {
    /// Bytes to reduce.
    pub bytes: u64,
    /// From the tensor before it being ready to this one being so.
    pub backward: Duration,
}

/// What a reduction takes: `startup + per_byte * bytes` seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// a: seconds of a reduction of nothing.
    pub startup: f64,
    /// b: seconds per byte.
    pub per_byte: f64,
}

/// Runs of tensors, in the order in which they are ready; together all of them.
pub type Buckets = Vec<Range<usize>>;

impl CostModel {
    /// Seconds of a reduction of so many bytes.
    pub fn seconds(&self, bytes: u64) -> f64 {
        self.startup + self.per_byte * bytes as f64
    }

    /// The model that fits these reductions (bytes, time) by least squares, without outliers: those
    /// further from a first, robust line than 3 standard deviations, by their median. That line has
    /// the median of the slopes of all pairs. None with fewer than two different sizes.
    ///
    /// Neither number is negative: where the line would have it so, it is 0 and the other is fitted
    /// alone. Takes O(n^2 log n) for n samples.
    pub fn fit(samples: &[(u64, Duration)]) -> Option<Self> {
        let points: Vec<(f64, f64)> =
            samples.iter().map(|(bytes, time)| (*bytes as f64, time.as_secs_f64())).collect();
        let rough = median_line(&points)?;
        let residual = |point: &(f64, f64)| point.1 - rough.startup - rough.per_byte * point.0;
        let residuals: Vec<f64> = points.iter().map(residual).collect();
        // 1.4826 median deviations are one standard deviation of normal noise; the share of the
        // time is for samples that lie on a line but for rounding.
        let spread = 3.0 * 1.4826 * median_deviation(&residuals);
        let kept: Vec<(f64, f64)> = points
            .iter()
            .zip(&residuals)
            .filter(|(point, residual)| residual.abs() <= spread.max(1e-6 * point.1))
            .map(|(point, _)| *point)
            .collect();
        let (startup, per_byte) = (rough.startup.max(0.0), rough.per_byte.max(0.0));
        Some(least_squares(&kept).unwrap_or(Self { startup, per_byte }))
    }
}

/// The line with the median slope of all pairs of different sizes, if there is any.
fn median_line(points: &[(f64, f64)]) -> Option<CostModel> {
    let pairs = points.iter().enumerate();
    let slopes: Vec<f64> = pairs
        .flat_map(|(index, a)| points[index + 1..].iter().map(move |b| (a, b)))
        .filter(|(a, b)| a.0 != b.0)
        .map(|(a, b)| (b.1 - a.1) / (b.0 - a.0))
        .collect();
    if slopes.is_empty() {
        return None;
    }
    let per_byte = median(&slopes);
    let starts: Vec<f64> = points.iter().map(|(bytes, time)| time - per_byte * bytes).collect();
    Some(CostModel { startup: median(&starts), per_byte })
}

/// The line of least squares, none of whose numbers is negative; none for points of one size.
fn least_squares(points: &[(f64, f64)]) -> Option<CostModel> {
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    let (x, y) = (x / count, y / count);
    let square: f64 = points.iter().map(|point| (point.0 - x) * (point.0 - x)).sum();
    let product: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    // Written so that the mean of no point, which is no number, gives none.
    let has_sizes = square > 0.0;
    if !has_sizes {
        return None;
    }
    let per_byte = product / square;
    if per_byte < 0.0 {
        return Some(CostModel { startup: y, per_byte: 0.0 });
    }
    let startup = y - per_byte * x;
    if startup < 0.0 {
        let squares: f64 = points.iter().map(|point| point.0 * point.0).sum();
        let products: f64 = points.iter().map(|point| point.0 * point.1).sum();
        return Some(CostModel { startup: 0.0, per_byte: products / squares });
    }
    Some(CostModel { startup, per_byte })
}

/// How a backward pass with these buckets goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timeline {
    /// Seconds until the last gradient is ready.
    pub backward: f64,
    /// Seconds until the last bucket is reduced.
    pub end: f64,
}

impl Timeline {
    /// Seconds of communication that do not hide behind the backward pass.
    pub fn exposed(&self) -> f64 {
        (self.end - self.backward).max(0.0)
    }
}

/// The timeline of these buckets, reduced one after another.
///
/// # Panics
/// If a bucket is empty or reaches past the tensors.
pub fn timeline(gradients: &[Gradient], buckets: &[Range<usize>], cost: CostModel) -> Timeline {
    let ready = ready_times(gradients);
    let end = buckets.iter().fold(0.0, |end: f64, bucket| {
        let start = end.max(ready[bucket.end - 1]);
        start + cost.seconds(bytes(&gradients[bucket.clone()]))
    });
    Timeline { backward: ready.last().copied().unwrap_or(0.0), end }
}

/// Seconds from the start of the backward pass until each tensor is ready.
fn ready_times(gradients: &[Gradient]) -> Vec<f64> {
    let mut now = Duration::ZERO;
    let ready = gradients.iter().map(|gradient| {
        now = now.saturating_add(gradient.backward);
        now.as_secs_f64()
    });
    ready.collect()
}

fn bytes(gradients: &[Gradient]) -> u64 {
    gradients.iter().map(|gradient| gradient.bytes).sum()
}

/// The buckets of MG-WFBP: a bucket takes in the next tensor if that is ready before the bucket
/// would be reduced, and waiting for it takes less than a start-up. Takes O(n).
pub fn merge_greedily(gradients: &[Gradient], cost: CostModel) -> Buckets {
    let ready = ready_times(gradients);
    let (mut buckets, mut first, mut size, mut free) = (Vec::new(), 0, 0, 0.0_f64);
    for (index, gradient) in gradients.iter().enumerate() {
        size += gradient.bytes;
        let start = free.max(ready[index]);
        let end = start + cost.seconds(size);
        let takes_next =
            ready.get(index + 1).is_some_and(|next| *next < end && next - start < cost.startup);
        if !takes_next {
            buckets.push(first..index + 1);
            (first, size, free) = (index + 1, 0, end);
        }
    }
    buckets
}

/// The buckets that end first. Takes O(n^2).
///
/// Every run of first tensors is reduced as soon as it can be, in the fewest buckets that do so.
/// A plan with fewer buckets may end as soon where the last tensors come late.
/// The sooner the first tensors are reduced, the sooner all are, whatever follows: so the best plan
/// of all holds the best plan of its first tensors.
pub fn plan(gradients: &[Gradient], cost: CostModel) -> Buckets {
    let ready = ready_times(gradients);
    // By the number of first tensors: when they are reduced at best, in how many buckets, and where
    // the last of those begins.
    let mut best = vec![(0.0_f64, 0_usize, 0_usize)];
    for end in 1..=gradients.len() {
        let (mut size, mut least) = (0, (f64::INFINITY, 0, 0));
        for first in (0..end).rev() {
            size += gradients[first].bytes;
            let (free, buckets, _) = best[first];
            let reduced = free.max(ready[end - 1]) + cost.seconds(size);
            let is_better = reduced < least.0 || reduced == least.0 && buckets + 1 < least.1;
            if is_better {
                least = (reduced, buckets + 1, first);
            }
        }
        best.push(least);
    }
    let mut buckets = Vec::new();
    let mut end = gradients.len();
    while end > 0 {
        let first = best[end].2;
        buckets.push(first..end);
        end = first;
    }
    buckets.reverse();
    buckets
}

/// Buckets that are closed as soon as they hold `cap_bytes`, the first one `first_bytes` so that
/// the link gets work early. A bucket may be larger by its last tensor. Takes O(n).
pub fn fill(gradients: &[Gradient], first_bytes: u64, cap_bytes: u64) -> Buckets {
    let (mut buckets, mut first, mut size) = (Vec::new(), 0, 0);
    for (index, gradient) in gradients.iter().enumerate() {
        size += gradient.bytes;
        let cap = if buckets.is_empty() { first_bytes } else { cap_bytes };
        if size >= cap || index + 1 == gradients.len() {
            buckets.push(first..index + 1);
            (first, size) = (index + 1, 0);
        }
    }
    buckets
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;

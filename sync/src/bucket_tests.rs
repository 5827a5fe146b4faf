//! Tests of the bucket planners and of the fit: by hand, and against every possible plan.
//!
//! Owns nothing. Called by the test runner.

use super::*;

/// A start-up of 4 ms and 1 ms per byte.
const COST: CostModel = CostModel { startup: 0.004, per_byte: 0.001 };

fn gradients(list: &[(u64, u64)]) -> Vec<Gradient> {
    let gradient =
        |(bytes, ms): &(u64, u64)| Gradient { bytes: *bytes, backward: Duration::from_millis(*ms) };
    list.iter().map(gradient).collect()
}

fn end_ms(gradients: &[Gradient], buckets: &[Range<usize>], cost: CostModel) -> f64 {
    1e3 * timeline(gradients, buckets, cost).end
}

fn is_near(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= 1e-9 * expected.abs()
}

#[test]
fn a_timeline_by_hand() {
    let gradients = gradients(&[(6, 10), (2, 3), (5, 30)]);
    // Ready at 10, 13, 43. Alone: 10 to 20, 20 to 26, 43 to 52.
    let each = timeline(&gradients, &[0..1, 1..2, 2..3], COST);
    assert!(is_near(each.end, 0.052) && is_near(each.exposed(), 0.009), "{each:?}");
    // All in one: 43 to 43 + 4 + 13.
    assert!(is_near(end_ms(&gradients, std::slice::from_ref(&(0..3)), COST), 60.0));
    // The first two wait for 13 and go on to 25.
    assert!(is_near(end_ms(&gradients, &[0..2, 2..3], COST), 52.0));
    assert_eq!(timeline(&[], &[], COST), Timeline { backward: 0.0, end: 0.0 });
    assert_eq!(Timeline { backward: 2.0, end: 1.0 }.exposed(), 0.0);
}

#[test]
fn greedy_merges_by_hand() {
    // Ready at 10, 13, 43: 13 is within a start-up of 10; 43 is after the reduction.
    assert_eq!(merge_greedily(&gradients(&[(6, 10), (2, 3), (5, 30)]), COST), [0..2, 2..3]);
    // 15 is before the end at 20, but 5 after the start: more than a start-up.
    assert_eq!(merge_greedily(&gradients(&[(6, 10), (2, 5)]), COST), [0..1, 1..2]);
    // While the first is reduced (10 to 30), two more become ready: they go together.
    assert_eq!(merge_greedily(&gradients(&[(16, 10), (2, 5), (2, 5)]), COST), [0..1, 1..3]);
    assert!(merge_greedily(&[], COST).is_empty());
}

#[test]
fn plans_at_the_extremes() {
    let gradients = gradients(&[(6, 10), (2, 3), (5, 30)]);
    let free = CostModel { startup: 0.0, per_byte: 0.001 };
    assert!(is_near(end_ms(&gradients, &plan(&gradients, free), free), 48.0));
    let heavy = CostModel { startup: 1.0, per_byte: 0.0 };
    assert_eq!(plan(&gradients, heavy), cut(3, 0));
    assert!(plan(&[], COST).is_empty());
}

#[test]
fn the_greedy_rule_lies_between_the_best_plan_and_both_extremes() {
    let mut worse = 0;
    for seed in 0..2000 {
        let (gradients, cost) = random_case(seed);
        let end = |buckets: &[Range<usize>]| timeline(&gradients, buckets, cost).end;
        let (greedy, best) = (end(&merge_greedily(&gradients, cost)), end(&plan(&gradients, cost)));
        let extremes = [0, u32::MAX].map(|mask| end(&cut(gradients.len(), mask)));
        assert!(best <= greedy * (1.0 + 1e-12), "seed {seed}");
        assert!(greedy <= extremes[0].min(extremes[1]) * (1.0 + 1e-12), "seed {seed}");
        worse += u32::from(greedy > best * (1.0 + 1e-9));
    }
    assert!(worse > 0, "the best plan is no better than the greedy one");
}

/// Up to eight tensors, of times and sizes in a range where merging matters.
fn random_case(seed: u64) -> (Vec<Gradient>, CostModel) {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = random.usize(1..=8);
    let list: Vec<(u64, u64)> =
        (0..count).map(|_| (random.u64(0..20), random.u64(0..12))).collect();
    let startup = 0.001 * f64::from(random.u32(0..12));
    (gradients(&list), CostModel { startup, per_byte: 0.0005 * f64::from(random.u32(0..4)) })
}

/// The buckets that end before each tensor whose bit is set.
fn cut(count: usize, mask: u32) -> Buckets {
    let mut ends: Vec<usize> = (1..count).filter(|end| mask >> (end - 1) & 1 == 1).collect();
    ends.push(count);
    let firsts = std::iter::once(0).chain(ends.clone());
    firsts.zip(ends).map(|(first, end)| first..end).collect()
}

#[test]
fn the_plan_is_the_best_of_all_plans() {
    for seed in 0..400 {
        let (gradients, cost) = random_case(seed);
        let count = gradients.len();
        let end = |buckets: &[Range<usize>]| timeline(&gradients, buckets, cost).end;
        let plans = (0..1_u32 << (count - 1)).map(|mask| end(&cut(count, mask)));
        let best = plans.fold(f64::INFINITY, f64::min);
        let planned = plan(&gradients, cost);
        assert!(end(&planned) <= best, "seed {seed}: {planned:?}");
        assert_eq!(planned, cut(count, mask_of(&planned)), "seed {seed}: a plan holds all tensors");
        let one_per_tensor = cut(count, u32::MAX);
        assert!(end(&planned) <= end(&one_per_tensor).min(end(&cut(count, 0))), "seed {seed}");
    }
}

fn mask_of(buckets: &[Range<usize>]) -> u32 {
    buckets.iter().skip(1).fold(0, |mask, bucket| mask | 1 << (bucket.start - 1))
}

#[test]
fn filled_buckets_by_hand() {
    let gradients = gradients(&[(3, 1), (3, 1), (20, 1), (4, 1), (4, 1), (4, 1), (1, 1)]);
    assert_eq!(fill(&gradients, 1, 10), [0..1, 1..3, 3..6, 6..7]);
    assert_eq!(fill(&gradients, 10, 10), [0..3, 3..6, 6..7]);
    assert_eq!(fill(&gradients, 0, 0).len(), 7);
    assert_eq!(fill(&gradients, u64::MAX, 0), cut(7, 0));
    assert!(fill(&[], 1, 1).is_empty());
}

/// Seconds of these bytes with the start-up and slope of 10 GbE and 8 ranks.
fn measured(bytes: u64, error: f64) -> (u64, Duration) {
    let seconds = CostModel { startup: 5.2e-4, per_byte: 8.6e-10 }.seconds(bytes);
    (bytes, Duration::from_secs_f64(seconds * (1.0 + error)))
}

#[test]
fn a_fit_by_hand() {
    let samples = [(0, 4), (1, 5), (2, 6), (10, 14)];
    let samples = samples.map(|(bytes, ms)| (bytes, Duration::from_millis(ms)));
    let fitted = CostModel::fit(&samples).unwrap();
    assert!(is_near(fitted.startup, 0.004) && is_near(fitted.per_byte, 0.001), "{fitted:?}");
}

#[test]
fn a_fit_survives_noise_and_outliers() {
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut samples: Vec<(u64, Duration)> = (0..60)
            .map(|index| measured(1 << (10 + index % 15), 0.04 * (random.f64() - 0.5)))
            .collect();
        // One sample in six took up to twenty times as long.
        for index in (0..60).step_by(6) {
            samples[index].1 = samples[index].1.mul_f64(2.0 + 18.0 * random.f64());
        }
        let fitted = CostModel::fit(&samples).unwrap();
        assert!((fitted.startup / 5.2e-4 - 1.0).abs() < 0.05, "seed {seed}: {fitted:?}");
        assert!((fitted.per_byte / 8.6e-10 - 1.0).abs() < 0.05, "seed {seed}: {fitted:?}");
    }
}

#[test]
fn a_fit_has_no_negative_number_and_needs_two_sizes() {
    let ms = Duration::from_millis;
    let falling = CostModel::fit(&[(10, ms(9)), (20, ms(7)), (30, ms(5))]).unwrap();
    assert!(is_near(falling.startup, 0.007) && falling.per_byte == 0.0, "{falling:?}");
    let below = CostModel::fit(&[(10, ms(0)), (20, ms(10)), (30, ms(20))]).unwrap();
    assert_eq!(below.startup, 0.0);
    // Through nothing: (10 * 0 + 20 * 10 + 30 * 20) / (100 + 400 + 900) ms per byte.
    assert!(is_near(below.per_byte, 0.0008 / 1.4), "{below:?}");
    assert_eq!(CostModel::fit(&[]), None);
    assert_eq!(CostModel::fit(&[(5, ms(1))]), None);
    assert_eq!(CostModel::fit(&[(5, ms(1)), (5, ms(2))]), None);
}

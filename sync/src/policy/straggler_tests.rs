//! Tests of the straggler detector: rules by hand, confirmation, and input that is no number.
//!
//! Owns nothing. Called by the test runner.

use super::*;

const MAD: StragglerConfig =
    StragglerConfig { rule: Rule::Mad { k: 3.0 }, window: 1, confirm: 1, min_gap: 0.1 };
const SIGMA: StragglerConfig = StragglerConfig { rule: Rule::Sigma { sigmas: 1.0 }, ..MAD };

fn observe(detector: &mut Detector, speeds: &[f64]) -> Vec<usize> {
    let speeds: Vec<Option<f64>> = speeds.iter().map(|speed| Some(*speed)).collect();
    detector.observe(&speeds);
    detector.stragglers()
}

fn once(config: StragglerConfig, speeds: &[f64]) -> Vec<usize> {
    observe(&mut Detector::new(config, speeds.len()).unwrap(), speeds)
}

#[test]
fn thresholds_by_hand() {
    // Mean 8, squared distances 9 4 4 9 16 16 of 6: deviation sqrt(58 / 6) = 3.109.
    let speeds = [5.0, 6.0, 10.0, 11.0, 12.0, 4.0];
    let seen = SIGMA.compare(&speeds);
    assert_eq!(seen.centre, 8.0);
    assert!((seen.threshold - 4.891).abs() < 0.001, "{}", seen.threshold);
    assert_eq!(once(SIGMA, &speeds), [5]);
    // Median 9, distances 1 0 2 5 0; then median 10, distances 0 1 1 6 2.
    let speeds = [10.0, 9.0, 11.0, 4.0, 9.0];
    let seen = MAD.compare(&speeds);
    assert_eq!((seen.centre, seen.spread, seen.threshold), (9.0, 1.0, 6.0));
    let speeds = [10.0, 9.0, 11.0, 4.0, 12.0];
    let seen = MAD.compare(&speeds);
    assert_eq!((seen.centre, seen.spread, seen.threshold), (10.0, 1.0, 7.0));
    assert_eq!(once(MAD, &speeds), [3]);
}

#[test]
fn evidence_has_rule_and_numbers() {
    let mut detector = Detector::new(MAD, 5).unwrap();
    let verdicts = detector.observe(&[10.0, 9.0, 11.0, 4.0, 12.0].map(Some));
    assert!(verdicts[3].is_straggler && verdicts[3].has_changed);
    let Evidence::Compared { speed, threshold, is_suspect, reason, .. } = &verdicts[3].evidence
    else {
        panic!("{verdicts:?}");
    };
    assert_eq!((*speed, *threshold, *is_suspect), (4.0, 7.0, true));
    assert!(reason.contains("4.000 < 7.000"), "{reason}");
    assert!(reason.contains("median 10.000 - 3 x median deviation 1.000"), "{reason}");
}

#[test]
fn a_very_slow_rank_hides_its_neighbour_from_deviations_but_not_from_medians() {
    let speeds = [100.0, 101.0, 99.0, 100.0, 100.0, 102.0, 70.0, 5.0];
    assert_eq!(once(SIGMA, &speeds), [7]);
    assert_eq!(once(MAD, &speeds), [6, 7]);
}

#[test]
fn equal_ranks_and_pairs_are_never_stragglers() {
    for config in [SIGMA, MAD] {
        assert!(once(config, &[7.0; 8]).is_empty());
        // All but one equal: no spread at all, and a rank a hair slower.
        assert!(once(config, &[7.0, 7.0, 7.0, 7.0, 6.99]).is_empty());
        assert_eq!(once(config, &[7.0, 7.0, 7.0, 7.0, 3.0]), [4]);
        assert!(once(config, &[1.0, 100.0]).is_empty());
        assert!(once(config, &[1.0]).is_empty());
        assert!(once(config, &[]).is_empty());
        assert!(once(config, &[0.0; 4]).is_empty());
        assert_eq!(once(config, &[0.0, 5.0, 5.0, 5.0]), [0]);
    }
    let mut pair = Detector::new(MAD, 2).unwrap();
    assert_eq!(pair.observe(&[Some(1.0), Some(9.0)])[0].evidence, Evidence::TooFew);
}

#[test]
fn noise_of_equal_ranks_names_nobody() {
    for (seed, config) in [(1, SIGMA), (2, MAD)] {
        let mut random = fastrand::Rng::with_seed(seed);
        let config = StragglerConfig { window: 10, confirm: 5, ..config };
        let mut detector = Detector::new(config, 8).unwrap();
        for _ in 0..2000 {
            // Up to 15 per cent slower, at random.
            let speeds: Vec<f64> = (0..8).map(|_| 100.0 - 15.0 * random.f64()).collect();
            assert!(observe(&mut detector, &speeds).is_empty());
        }
    }
}

#[test]
fn a_verdict_takes_confirmation_in_both_directions() {
    let config = StragglerConfig { confirm: 3, ..MAD };
    let mut detector = Detector::new(config, 4).unwrap();
    let (slow, fine) = ([10.0, 10.0, 10.0, 5.0], [10.0; 4]);
    let mut run = |windows: &[[f64; 4]]| -> Vec<bool> {
        windows.iter().map(|window| !observe(&mut detector, window).is_empty()).collect()
    };
    assert_eq!(run(&[slow, slow, fine, slow, slow]), [false; 5]);
    assert_eq!(run(&[slow, fine, fine, slow, fine]), [true; 5]);
    assert_eq!(run(&[fine, fine, fine]), [true, false, false]);
}

#[test]
fn one_odd_step_in_a_window_does_not_count_by_median() {
    let config = StragglerConfig { window: 5, ..MAD };
    let mut detector = Detector::new(config, 4).unwrap();
    for step in 0..24 {
        let odd = if step % 5 == 4 { 0.1 } else { 10.0 };
        assert!(observe(&mut detector, &[10.0, 10.0, 10.0, odd]).is_empty());
    }
    // Three slow steps of five are the window's median.
    for expected in [vec![], vec![], vec![3]] {
        assert_eq!(observe(&mut detector, &[10.0, 10.0, 10.0, 5.0]), expected);
    }
}

#[test]
fn no_number_leaves_the_verdict_and_the_others_alone() {
    let mut detector = Detector::new(MAD, 5).unwrap();
    let speeds = [Some(10.0), Some(10.0), Some(10.0), Some(4.0), Some(10.0)];
    detector.observe(&speeds);
    for missing in [None, Some(f64::NAN), Some(f64::INFINITY), Some(-1.0)] {
        let mut speeds = speeds;
        speeds[3] = missing;
        let verdicts = detector.observe(&speeds);
        assert_eq!(verdicts[3].evidence, Evidence::Unknown);
        assert!(verdicts[3].is_straggler && !verdicts[3].has_changed);
        assert!(matches!(verdicts[0].evidence, Evidence::Compared { threshold: 9.0, .. }));
    }
    let verdicts = detector.observe(&[None; 5]);
    assert!(verdicts.iter().all(|verdict| verdict.evidence == Evidence::Unknown));
    assert_eq!(detector.stragglers(), [3]);
}

#[test]
fn nothing_is_said_before_windows_are_full() {
    let config = StragglerConfig { window: 3, ..MAD };
    let mut detector = Detector::new(config, 3).unwrap();
    for expected in [vec![], vec![], vec![1]] {
        assert_eq!(observe(&mut detector, &[10.0, 1.0, 10.0]), expected);
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    for config in [
        StragglerConfig { rule: Rule::Mad { k: 0.0 }, ..MAD },
        StragglerConfig { rule: Rule::Sigma { sigmas: f64::NAN }, ..MAD },
        StragglerConfig { window: 0, ..MAD },
        StragglerConfig { confirm: 0, ..MAD },
        StragglerConfig { min_gap: 1.0, ..MAD },
    ] {
        assert!(Detector::new(config, 4).is_err(), "{config:?}");
    }
    assert_eq!(speed(64, Duration::from_millis(500)), Some(128.0));
    assert_eq!(speed(64, Duration::ZERO), None);
}

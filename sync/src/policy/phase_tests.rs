//! Tests of the phase policy: the quotient by hand, each cause, dwell and hysteresis.
//!
//! Owns nothing. Called by the test runner.

use super::*;

const CONFIG: PhaseConfig = PhaseConfig {
    tolerance: 0.1,
    hysteresis: 2.0,
    dwell_samples: 1000,
    staleness: 1,
    rate_smoothness: 0.02,
    smoothing: 0.0,
    spike_factor: 6.0,
    rate_drop: 0.3,
};

/// Eight ranks, noise 1, and this signal.
fn window(samples: u64, signal: f64) -> Window {
    Window {
        samples,
        average_norm2: signal + 1.0,
        distance2: 7.0,
        loss: 2.0,
        rate: 0.1,
        world_size: 8,
    }
}

/// A policy that is relaxed since sample 1000.
fn relaxed() -> PhasePolicy {
    let mut policy = PhasePolicy::new(CONFIG).unwrap();
    for samples in [200, 400, 600, 800] {
        assert_eq!(policy.decide(&window(samples, 100.0)).phase, Phase::Bsp);
    }
    assert_eq!(policy.decide(&window(1000, 1.0)).phase, Phase::Relaxed);
    policy
}

#[test]
fn the_quotient_by_hand() {
    assert_eq!(staleness_to_noise(4.0, 1.0, 1, 0.5), 2.5);
    assert_eq!(staleness_to_noise(4.0, 2.0, 3, 0.25), 0.25 * (9.0 * 2.0 + 3.0));
    assert_eq!(staleness_to_noise(4.0, 0.0, 1, 0.5), f64::INFINITY);
    assert_eq!(staleness_to_noise(4.0, 0.0, 0, 0.5), 0.0);
    let mut policy = PhasePolicy::new(CONFIG).unwrap();
    // 0.02 * (4 + 1).
    let ratio = policy.decide(&window(0, 4.0)).ratio.unwrap();
    assert!((ratio - 0.1).abs() < 1e-12, "{ratio}");
}

/// The estimators against gradients whose signal and noise are known.
#[test]
fn norms_of_sampled_gradients_give_back_signal_and_noise() {
    let mut random = fastrand::Rng::with_seed(1);
    let (ranks, len) = (4, 20_000);
    // Uniform in -1..1, so that each element has a variance of a third; the signal is 0.5 each.
    let gradients: Vec<Vec<f64>> =
        (0..ranks).map(|_| (0..len).map(|_| 0.5 + 2.0 * random.f64() - 1.0).collect()).collect();
    let average: Vec<f64> = (0..len)
        .map(|index| gradients.iter().map(|gradient| gradient[index]).sum::<f64>() / 4.0)
        .collect();
    let distance2 = |gradient: &Vec<f64>| -> f64 {
        gradient.iter().zip(&average).map(|(g, mean)| (g - mean) * (g - mean)).sum()
    };
    let seen = Window {
        average_norm2: average.iter().map(|value| value * value).sum(),
        distance2: gradients.iter().map(distance2).sum::<f64>() / 4.0,
        world_size: 4,
        ..window(0, 0.0)
    };
    let mut policy = PhasePolicy::new(CONFIG).unwrap();
    policy.decide(&seen);
    let means = policy.means.unwrap();
    let (noise, signal) = (means.noise, means.average_norm2 - means.noise);
    assert!((noise / (20_000.0 / 12.0) - 1.0).abs() < 0.02, "{noise}");
    assert!((signal / (20_000.0 * 0.25) - 1.0).abs() < 0.02, "{signal}");
}

#[test]
fn it_starts_with_bsp_and_relaxes_when_the_signal_drowns() {
    let mut policy = PhasePolicy::new(CONFIG).unwrap();
    assert_eq!(policy.phase(), Phase::Bsp);
    let early = policy.decide(&window(2000, 100.0));
    assert_eq!((early.phase, early.cause), (Phase::Bsp, Cause::Noise));
    assert!(early.reason.contains("2.0200 of what noise costs, > 0.1000"), "{}", early.reason);
    let late = policy.decide(&window(2200, 3.9));
    assert_eq!((late.phase, late.cause), (Phase::Relaxed, Cause::Noise));
    assert!(late.reason.contains("0.0980 of what noise costs, <= 0.1000"), "{}", late.reason);
}

#[test]
fn both_directions_take_a_dwell() {
    let mut policy = PhasePolicy::new(CONFIG).unwrap();
    let mut causes = |windows: &[(u64, f64)]| -> Vec<(Phase, Cause)> {
        let decide = |(samples, signal): &(u64, f64)| policy.decide(&window(*samples, *signal));
        windows.iter().map(decide).map(|decision| (decision.phase, decision.cause)).collect()
    };
    let early = causes(&[(999, 1.0), (1000, 1.0)]);
    assert_eq!(early, [(Phase::Bsp, Cause::Dwell), (Phase::Relaxed, Cause::Noise)]);
    let back = causes(&[(1999, 100.0), (2000, 100.0), (2999, 1.0), (3000, 1.0)]);
    let expected = [
        (Phase::Relaxed, Cause::Dwell),
        (Phase::Bsp, Cause::Noise),
        (Phase::Bsp, Cause::Dwell),
        (Phase::Relaxed, Cause::Noise),
    ];
    assert_eq!(back, expected);
}

#[test]
fn between_the_limits_the_phase_stays() {
    // 6 gives 0.14: too much to relax, too little to tighten.
    let mut bsp = PhasePolicy::new(CONFIG).unwrap();
    assert_eq!(bsp.decide(&window(5000, 6.0)).phase, Phase::Bsp);
    let mut policy = relaxed();
    assert_eq!(policy.decide(&window(5000, 6.0)).phase, Phase::Relaxed);
    assert_eq!(policy.decide(&window(5200, 9.1)).phase, Phase::Bsp);
}

#[test]
fn alarms_end_a_relaxed_phase_at_once_and_start_a_dwell() {
    let fine = window(1200, 1.0);
    for (bad, cause) in [
        (Window { loss: 9.0, ..fine }, Cause::LossSpike),
        (Window { rate: 0.01, ..fine }, Cause::RateDrop),
        (Window { loss: f64::NAN, ..fine }, Cause::NotFinite),
        (Window { average_norm2: f64::INFINITY, ..fine }, Cause::NotFinite),
        (Window { distance2: f64::NAN, ..fine }, Cause::NotFinite),
    ] {
        let mut policy = relaxed();
        let decision = policy.decide(&bad);
        assert_eq!((decision.phase, decision.cause), (Phase::Bsp, cause), "{bad:?}");
        let rate = if cause == Cause::RateDrop { 0.01 } else { 0.1 };
        let decide = |policy: &mut PhasePolicy, samples| {
            policy.decide(&Window { rate, ..window(samples, 1.0) }).phase
        };
        assert_eq!(decide(&mut policy, 2199), Phase::Bsp);
        assert_eq!(decide(&mut policy, 2200), Phase::Relaxed);
    }
}

#[test]
fn a_slow_fall_of_the_rate_is_no_drop_and_makes_staleness_cheaper() {
    let mut policy = relaxed();
    let mut rate = 0.1;
    let mut last = f64::INFINITY;
    for index in 0..20 {
        rate *= 0.9;
        let decision = policy.decide(&Window { rate, ..window(3000 + index, 3.0) });
        assert_eq!((decision.phase, decision.cause), (Phase::Relaxed, Cause::Noise));
        let ratio = decision.ratio.unwrap();
        assert!(ratio < last);
        last = ratio;
    }
}

#[test]
fn more_staleness_relaxes_later() {
    let first = |staleness| {
        let mut policy = PhasePolicy::new(PhaseConfig { staleness, ..CONFIG }).unwrap();
        // The signal halves every window.
        let mut signal = 1000.0;
        (0..40).position(|index| {
            signal /= 2.0;
            policy.decide(&window(2000 + index, signal)).phase == Phase::Relaxed
        })
    };
    // 0.02 * (s + 1) <= 0.1 from s = 4; 0.02 * (16 s + 4) <= 0.1 from s = 1 / 16.
    assert_eq!((first(1), first(4), first(7)), (Some(7), Some(13), None));
}

#[test]
fn identical_gradients_and_single_ranks_stay_with_bsp() {
    let mut policy = PhasePolicy::new(CONFIG).unwrap();
    let same = Window { distance2: 0.0, ..window(5000, 1.0) };
    let decision = policy.decide(&same);
    assert_eq!((decision.phase, decision.ratio), (Phase::Bsp, Some(f64::INFINITY)));
    let mut policy = PhasePolicy::new(CONFIG).unwrap();
    let alone = policy.decide(&Window { world_size: 1, ..window(5000, 1.0) });
    assert_eq!((alone.phase, alone.cause), (Phase::Bsp, Cause::OneRank));
}

#[test]
fn noisy_norms_do_not_flap() {
    let config = PhaseConfig { smoothing: 0.9, ..CONFIG };
    let mut policy = PhasePolicy::new(config).unwrap();
    let mut random = fastrand::Rng::with_seed(2);
    let mut changes = 0;
    let mut phase = Phase::Bsp;
    for step in 0..5000 {
        // Around the tolerance: a quotient of 0.1 at 4, give or take a half.
        let decision = policy.decide(&window(step * 100, 2.0 + 4.0 * random.f64()));
        changes += u32::from(decision.phase != phase);
        phase = decision.phase;
    }
    assert_eq!((changes, phase), (1, Phase::Relaxed));
}

#[test]
fn bad_settings_are_refused() {
    for config in [
        PhaseConfig { tolerance: 0.0, ..CONFIG },
        PhaseConfig { hysteresis: 0.9, ..CONFIG },
        PhaseConfig { rate_smoothness: 0.6, ..CONFIG },
        PhaseConfig { smoothing: 1.0, ..CONFIG },
        PhaseConfig { spike_factor: f64::NAN, ..CONFIG },
        PhaseConfig { rate_drop: 1.0, ..CONFIG },
    ] {
        assert!(PhasePolicy::new(config).is_err(), "{config:?}");
    }
}

//! Properties of an ICS that spans steps, and of budgets that follow windows, over exact sums.

use super::tests::{LENS, bits, flat_bits, lockstep, osp, random_list, session};
use super::*;
use crate::config::{ModelKind, SessionConfig};
use crate::lockstep::{Costs, Lockstep, TensorList};
use crate::optimiser::Sgd;
use budget::Limit;
use std::time::Duration;

/// Settings under which ICS spans `span` steps.
fn variants(span: u64, share: f64) -> Vec<OspConfig> {
    let base = OspConfig { span, ..osp(share) };
    vec![
        base,
        OspConfig { merge: IcsMerge::Overwrite, ..base },
        OspConfig { gib_lag: GibLag::Two, gib_every: 2, ..base },
        OspConfig { importance: Importance::Random, ..base },
        OspConfig { importance: Importance::RoundRobin, merge: IcsMerge::Overwrite, ..base },
        OspConfig { lgp: Lgp::None, ..base },
        OspConfig { lgp: Lgp::Ema { gamma: 0.9, lambda: 0.5 }, ..base },
    ]
}

/// Whole numbers, four ranks, no momentum and a rate of 1: all sums and their fourths are exact.
#[test]
fn each_gradient_is_applied_exactly_once_whatever_the_span() {
    for (span, seed) in [(1, 1), (2, 2), (2, 3), (4, 4), (4, 5)] {
        for config in variants(span, 0.7) {
            let mut random = fastrand::Rng::with_seed(seed);
            let optimiser = Sgd { momentum: 0.0, ..Sgd::default() }.into();
            let session = SessionConfig { optimiser, ..session(ModelKind::Osp(config)) };
            let start: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
            let mut job = Lockstep::new(&session, 4, &start).unwrap();
            let mut sums = start.concat();
            let mut deferred = 0;
            for step in 0..19 {
                let mut gradients: Vec<_> = (0..4).map(|_| random_list(&mut random)).collect();
                // Carries of two and three gradients are divided by two and three: by 12 it goes.
                let whole = |x: &mut f32| *x = (*x * 10.0).round() * 48.0;
                gradients.iter_mut().flatten().flatten().for_each(whole);
                for list in &gradients {
                    sums.iter_mut().zip(list.concat()).for_each(|(sum, x)| *sum += x / 4.0);
                }
                job.step(&gradients, 1.0).unwrap();
                deferred += job.model(0).traffic().deferred_bytes;
                if step == 9 {
                    job.drain().unwrap();
                    let held: Vec<f32> = job.parameters(1).concat().iter().map(|w| -w).collect();
                    assert_eq!(held, sums, "{config:?}");
                }
            }
            job.drain().unwrap();
            let held: Vec<f32> = job.parameters(3).concat().iter().map(|w| -w).collect();
            assert_eq!(held, sums, "{config:?}");
            assert!(deferred > 0, "{config:?} defers nothing");
        }
    }
}

#[test]
fn replicas_agree_and_no_ics_grows_older_than_the_span() {
    for (span, seed) in [(2, 1), (3, 2), (5, 3)] {
        for config in variants(span, 0.6) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut job = lockstep(config, 3, &random_list(&mut random));
            let mut oldest = 0;
            for _ in 0..17 {
                let gradients: Vec<_> = (0..3).map(|_| random_list(&mut random)).collect();
                // Replicas are compared after each step, which fails if they differ.
                job.step(&gradients, 0.05).unwrap();
                let model = job.model(1);
                let age = model.flights.queue.front().map_or(0, |ics| model.step - ics.step);
                oldest = oldest.max(age);
                assert!(model.staleness() < 2 * span, "{}", model.staleness());
            }
            assert_eq!(oldest, span, "{config:?}");
            job.drain().unwrap();
            for rank in 0..3 {
                assert_eq!(job.model(rank).staleness(), 0);
                let global = flat_bits(job.model(0).global_parameters());
                assert_eq!(bits(job.parameters(rank)), global, "{config:?}");
            }
        }
    }
}

/// Every coordinate is sent within `span` steps, so it changes within one more.
#[test]
fn every_slice_is_covered_within_the_span() {
    for config in variants(3, 0.9) {
        let mut random = fastrand::Rng::with_seed(8);
        let mut job = lockstep(config, 2, &random_list(&mut random));
        let mut last = vec![0; job.model(0).layout.slices().len()];
        for step in 0..20 {
            let before = job.model(0).versions().to_vec();
            let gradients: Vec<_> = (0..2).map(|_| random_list(&mut random)).collect();
            job.step(&gradients, 0.05).unwrap();
            for (index, version) in job.model(0).versions().iter().enumerate() {
                if *version > before[index] {
                    last[index] = step;
                }
                assert!(step - last[index] <= 4, "slice {index} at step {step}");
            }
        }
    }
}

/// By hand: one slice, plain descent with rate 1, span 2, gradients 8 (rank 0) and 0 (rank 1).
#[test]
fn a_delta_merge_keeps_local_steps_and_an_overwrite_does_not() {
    let run = |merge| {
        let optimiser = Sgd { momentum: 0.0, ..Sgd::default() }.into();
        let config = OspConfig { span: 2, merge, ..osp(1.0) };
        let session = SessionConfig { optimiser, ..session(ModelKind::Osp(config)) };
        let mut job = Lockstep::new(&session, 2, &vec![vec![0.0; 4]]).unwrap();
        let mut seen = Vec::new();
        for _ in 0..4 {
            job.step(&[vec![vec![8.0; 4]], vec![vec![0.0; 4]]], 1.0).unwrap();
            seen.push((job.parameters(0)[0][0], job.parameters(1)[0][0]));
        }
        job.drain().unwrap();
        assert_eq!(job.parameters(0)[0], [-16.0; 4]);
        seen
    };
    // Step 0 is reduced at once: no bitmap yet. Step 1 is sent, step 2 carried; at the end of step
    // 3 the average of step 1 is merged and the gradients of 2 and 3 are sent.
    assert_eq!(run(IcsMerge::Delta), [(-4.0, -4.0), (-12.0, -4.0), (-20.0, -4.0), (-24.0, -8.0)]);
    assert_eq!(
        run(IcsMerge::Overwrite),
        [(-4.0, -4.0), (-12.0, -4.0), (-20.0, -4.0), (-16.0, -8.0)]
    );
}

/// With one rank and plain descent, the local copy of a delta merge is that of plain descent.
#[test]
fn one_rank_alone_follows_plain_descent_whatever_the_span() {
    for span in [2, 4] {
        let mut random = fastrand::Rng::with_seed(span);
        let start = random_list(&mut random);
        let optimiser = Sgd { momentum: 0.0, ..Sgd::default() }.into();
        let config = OspConfig { span, ..osp(0.8) };
        let session = SessionConfig { optimiser, ..session(ModelKind::Osp(config)) };
        let mut job = Lockstep::new(&session, 1, &start).unwrap();
        let mut w = start.concat();
        for _ in 0..20 {
            let gradients = random_list(&mut random);
            w.iter_mut().zip(gradients.concat()).for_each(|(w, g)| *w -= 0.1 * g);
            job.step(std::slice::from_ref(&gradients), 0.1).unwrap();
            for (found, expected) in job.parameters(0).concat().iter().zip(&w) {
                assert!((found - expected).abs() < 1e-5, "{found} {expected}");
            }
        }
    }
}

/// A longer span sends each deferred slice less often.
#[test]
fn a_longer_span_sends_fewer_bytes() {
    let sent = |span| {
        let mut random = fastrand::Rng::with_seed(4);
        let mut job = lockstep(OspConfig { span, ..osp(0.6) }, 2, &random_list(&mut random));
        let mut sent = 0;
        for _ in 0..24 {
            let gradients: Vec<_> = (0..2).map(|_| random_list(&mut random)).collect();
            job.step(&gradients, 0.05).unwrap();
            sent += job.model(0).traffic().deferred_bytes;
        }
        sent
    };
    assert!(sent(1) > 2 * sent(3), "{} {}", sent(1), sent(3));
}

#[test]
fn round_robin_makes_each_slice_important_in_its_turn() {
    let mut random = fastrand::Rng::with_seed(6);
    let config = OspConfig { importance: Importance::RoundRobin, ..osp(0.75) };
    let mut job = lockstep(config, 2, &random_list(&mut random));
    let mut turns = vec![0_u32; job.model(0).layout.slices().len()];
    for step in 0..41 {
        let gradients: Vec<_> = (0..2).map(|_| random_list(&mut random)).collect();
        job.step(&gradients, 0.05).unwrap();
        if step > 0 {
            let flags = job.model(0).gib().flags();
            turns.iter_mut().zip(flags).for_each(|(turn, flag)| *turn += u32::from(*flag));
        }
    }
    // 40 turns of a quarter of the bytes; where slices differ in size, not all turns are equal.
    assert!(turns.iter().all(|count| (5..=16).contains(count)), "{turns:?}");
}

fn windowed(budget: BudgetRule) -> OspConfig {
    OspConfig { budget, ..osp(0.0) }
}

/// Runs `steps` with gradients that differ between ranks by about `spread`; the decision after.
fn decide(job: &mut Lockstep<Osp>, steps: u64, spread: f32, loss: f32) -> (u64, Limit) {
    let mut random = fastrand::Rng::with_seed(17);
    for _ in 0..steps {
        let scaled = |mut list: TensorList| {
            list.iter_mut().flatten().for_each(|x| *x = *x * spread + 0.01);
            list
        };
        let gradients: Vec<_> = (0..4).map(|_| scaled(random_list(&mut random))).collect();
        job.step_with_losses(&gradients, 0.01, &[loss; 4]).unwrap();
    }
    let decision = job.model(2).decision();
    (decision.bytes, decision.limit)
}

#[test]
fn more_noise_means_less_deferred() {
    let start = random_list(&mut fastrand::Rng::with_seed(1));
    let mut shares = Vec::new();
    for spread in [0.0, 0.01, 1.0, 3.0, 30.0] {
        let mut job = lockstep(windowed(BudgetRule::noise(0.1, 4)), 4, &start);
        assert_eq!(decide(&mut job, 3, spread, 1.0), (0, Limit::FirstWindow));
        shares.push(decide(&mut job, 13, spread, 1.0));
    }
    assert_eq!(shares[0], (198, Limit::Cap), "80 % of 248 bytes");
    assert_eq!(shares[1], (198, Limit::Cap));
    assert!(shares[3].0 < shares[2].0 && shares[4].0 < shares[3].0.max(1), "{shares:?}");
    assert!(shares[2..].iter().all(|share| share.1 == Limit::Noise), "{shares:?}");
}

#[test]
fn a_loss_without_a_value_ends_deferring_until_it_has_one() {
    for bad in [f32::NAN, f32::INFINITY, -1.0, 0.0] {
        let start = random_list(&mut fastrand::Rng::with_seed(1));
        let mut job = lockstep(windowed(BudgetRule::noise(100.0, 4)), 4, &start);
        assert_eq!(decide(&mut job, 8, 1.0, 1.0).1, Limit::Cap);
        assert_eq!(decide(&mut job, 4, 1.0, bad), (0, Limit::NotFinite), "{bad}");
        assert_eq!(decide(&mut job, 4, 1.0, 1.0).1, Limit::Cap);
    }
}

#[test]
fn the_hidden_budget_grows_until_it_is_waited_for() {
    let start = random_list(&mut fastrand::Rng::with_seed(1));
    let mut job = lockstep(windowed(BudgetRule::adaptive(f64::INFINITY, 2)), 4, &start);
    // 1.5 bytes travel for each: 124 of 248 bytes hide behind 18.6 ms.
    job.set_costs(Costs { compute: Duration::from_micros(18_600), bandwidth: 1e4 });
    assert_eq!(job.model(0).decision().limit, Limit::Hide);
    let found: Vec<_> = (0..40).map(|_| decide(&mut job, 2, 1.0, 1.0)).collect();
    assert!(found.iter().all(|(_, limit)| *limit == Limit::Hide), "{found:?}");
    let late: Vec<u64> = found[20..].iter().map(|(bytes, _)| *bytes).collect();
    assert!(late.iter().all(|bytes| (90..=150).contains(bytes)), "{late:?}");
    // A link that costs nothing takes it to the cap.
    job.set_costs(Costs { compute: Duration::from_millis(10), bandwidth: 0.0 });
    for _ in 0..40 {
        decide(&mut job, 2, 1.0, 1.0);
    }
    assert_eq!(decide(&mut job, 2, 1.0, 1.0), (198, Limit::Cap));
}

#[test]
fn the_smaller_budget_is_taken_and_named() {
    let start = random_list(&mut fastrand::Rng::with_seed(1));
    let mut job = lockstep(windowed(BudgetRule::adaptive(0.1, 2)), 4, &start);
    for _ in 0..20 {
        decide(&mut job, 2, 1.0, 1.0);
    }
    let (noisy, limit) = decide(&mut job, 2, 1.0, 1.0);
    assert_eq!(limit, Limit::Noise);
    for _ in 0..40 {
        decide(&mut job, 2, 0.01, 1.0);
    }
    let (calm, limit) = decide(&mut job, 2, 0.01, 1.0);
    assert!(calm > noisy && limit == Limit::Cap, "{calm} {noisy} {limit}");
}

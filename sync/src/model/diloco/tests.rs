//! Streaming DiLoCo by hand, against local SGD, and over seeds.

use super::*;
use crate::config::{LocalSgdConfig, ModelKind, SessionConfig};
use crate::layout::{Granularity, TensorSpec};
use crate::lockstep::{Costs, Lockstep, TensorList};
use crate::optimiser::Adam;
use std::time::Duration;

const LENS: [usize; 4] = [10, 3, 0, 8];

fn plain() -> Optimiser {
    Sgd { momentum: 0.0, ..Sgd::default() }.into()
}

/// One fragment, with an outer optimiser that takes the average as it is.
fn averaging(every: u64, delay: u64) -> DilocoConfig {
    DilocoConfig {
        every,
        fragments: 1,
        delay,
        outer_rate: 1.0,
        outer_momentum: 0.0,
        is_nesterov: false,
        merge: Merge::Delta,
        ..DilocoConfig::default()
    }
}

fn with(optimiser: Optimiser) -> SessionConfig {
    SessionConfig { optimiser, check_every: 1, ..SessionConfig::default() }
}

fn lockstep(
    config: DilocoConfig,
    session: SessionConfig,
    ranks: u32,
    start: &TensorList,
) -> Lockstep<Diloco> {
    let session = SessionConfig { model: ModelKind::Diloco(config), ..session };
    session.validate().unwrap();
    Lockstep::with_models(&session, ranks, start, |job, tensors| {
        let specs: Vec<_> = start.iter().map(|w| TensorSpec::new("t", w.len())).collect();
        let layout = Layout::new(&specs, Granularity::Tensors);
        Diloco::new(job, config, &layout, tensors, Memory::new(&job.optimiser, layout.len()))
    })
}

fn random_list(random: &mut fastrand::Rng) -> TensorList {
    LENS.map(|len| (0..len).map(|_| random.f32() * 2.0 - 1.0).collect()).to_vec()
}

fn lists(random: &mut fastrand::Rng, ranks: u32) -> Vec<TensorList> {
    (0..ranks).map(|_| random_list(random)).collect()
}

/// Any valid settings.
fn random_config(random: &mut fastrand::Rng) -> DilocoConfig {
    let fragments = random.u32(1..6);
    let every = u64::from(fragments) * random.u64(1..5) + random.u64(0..3);
    let delay = random.u64(0..every.div_ceil(u64::from(fragments)));
    let cut = [FragmentCut::Contiguous, FragmentCut::Strided][random.usize(0..2)];
    let merge = match random.u8(0..3) {
        0 => Merge::Blend { alpha: 0.0 },
        1 => Merge::Blend { alpha: 0.5 },
        _ => Merge::Delta,
    };
    DilocoConfig { every, fragments, cut, delay, merge, ..DilocoConfig::default() }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn assert_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}

/// Mean over all ranks, element by element.
fn mean(ranks: u32, local: impl Fn(usize) -> Vec<f32>) -> Vec<f32> {
    let mut sum = local(0);
    for rank in 1..ranks as usize {
        sum.iter_mut().zip(local(rank)).for_each(|(sum, x)| *sum += x);
    }
    sum.iter().map(|sum| sum / ranks as f32).collect()
}

/// Two ranks with gradients of 2 and 4 and a rate of 1. After two steps, -4 and -8 are sent: an
/// outer gradient of 6. Its first step goes to -0.5 (6 + 0.5 * 6) = -4.5, one step later, when
/// ranks are at -6 and -12.
#[test]
fn two_ranks_by_hand() {
    for (merge, expected) in [
        (Merge::Blend { alpha: 0.0 }, [-4.5, -4.5]),
        (Merge::Blend { alpha: 0.5 }, [-5.25, -8.25]),
        (Merge::Delta, [-6.5, -8.5]),
    ] {
        let config = DilocoConfig {
            outer_rate: 0.5,
            outer_momentum: 0.5,
            is_nesterov: true,
            merge,
            ..averaging(2, 1)
        };
        let mut diloco = lockstep(config, with(plain()), 2, &vec![vec![0.0]]);
        let gradients = [vec![vec![2.0]], vec![vec![4.0]]];
        let mut seen = Vec::new();
        for _ in 0..3 {
            diloco.step(&gradients, 1.0).unwrap();
            let model = diloco.model(0);
            seen.push((model.staleness(), model.traffic().deferred_bytes));
        }
        assert_eq!(seen, [(1, 0), (2, 4), (1, 0)]);
        assert_eq!([0, 1].map(|rank| diloco.parameters(rank)[0][0]), expected, "{merge:?}");
        assert_eq!(diloco.model(1).global_parameters(), [-4.5]);
        assert_eq!(diloco.model(1).velocity.first, [6.0]);
    }
}

#[test]
fn turns_and_traffic_by_hand() {
    let config = DilocoConfig { every: 8, fragments: 2, delay: 1, ..DilocoConfig::default() };
    let mut diloco = lockstep(config, with(plain()), 2, &vec![vec![0.0; 4], vec![0.0; 2]]);
    let gradients = vec![vec![vec![1.0; 4], vec![1.0; 2]]; 2];
    let mut seen = Vec::new();
    for _ in 0..14 {
        diloco.step(&gradients, 0.1).unwrap();
        let model = diloco.model(1);
        assert_eq!(model.traffic().important_bytes, 0);
        seen.push((model.traffic().deferred_bytes, model.staleness()));
    }
    let bytes: Vec<u64> = seen.iter().map(|seen| seen.0).collect();
    assert_eq!(bytes, [0, 0, 0, 12, 0, 0, 0, 12, 0, 0, 0, 12, 0, 0]);
    // The second fragment is first taken in step 9, when the first lacks 5 steps.
    let staleness: Vec<u64> = seen.iter().map(|seen| seen.1).collect();
    assert_eq!(staleness, [1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6]);
}

/// Whole numbers: nothing is rounded, so nothing may differ.
#[test]
fn averaging_every_step_is_local_sgd_to_the_bit_on_exact_numbers() {
    for merge in [Merge::Delta, Merge::Blend { alpha: 0.0 }] {
        let mut random = fastrand::Rng::with_seed(1);
        let start: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
        let config = DilocoConfig { merge, ..averaging(1, 0) };
        let mut diloco = lockstep(config, with(plain()), 4, &start);
        let local = LocalSgdConfig { every: 1, averages_memory: false };
        let session = SessionConfig { model: ModelKind::LocalSgd(local), ..with(plain()) };
        let mut local = Lockstep::new(&session, 4, &start).unwrap();
        for _ in 0..8 {
            let mut gradients = lists(&mut random, 4);
            gradients.iter_mut().flatten().flatten().for_each(|x| *x = (*x * 9.0).round() * 4.0);
            diloco.step(&gradients, 1.0).unwrap();
            local.step(&gradients, 1.0).unwrap();
            for rank in 0..4 {
                assert_eq!(diloco.parameters(rank), local.parameters(rank));
            }
            assert_eq!(diloco.model(0).traffic(), local.model(0).traffic());
            assert_eq!(diloco.model(0).staleness(), 0);
        }
    }
}

#[test]
fn averaging_every_step_is_local_sgd_up_to_rounding() {
    for optimiser in [Sgd::default().into(), Adam::default().into()] {
        let mut random = fastrand::Rng::with_seed(2);
        let start = random_list(&mut random);
        let mut diloco = lockstep(averaging(1, 0), with(optimiser), 3, &start);
        let local = LocalSgdConfig { every: 1, averages_memory: false };
        let session = SessionConfig { model: ModelKind::LocalSgd(local), ..with(optimiser) };
        let mut local = Lockstep::new(&session, 3, &start).unwrap();
        for _ in 0..20 {
            let gradients = lists(&mut random, 3);
            diloco.step(&gradients, 0.02).unwrap();
            local.step(&gradients, 0.02).unwrap();
            assert_near(&diloco.parameters(1).concat(), &local.parameters(1).concat());
        }
    }
}

#[test]
fn a_drain_leaves_one_model_and_one_memory_on_all_ranks() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let config = random_config(&mut random);
        let optimiser = [plain(), Sgd::default().into(), Adam::default().into()][seed as usize % 3];
        let ranks = 1 + seed as u32 % 4;
        let start = random_list(&mut random);
        let mut diloco = lockstep(config, with(optimiser), ranks, &start);
        for _ in 0..3 {
            for _ in 0..random.u64(0..2 * config.every) {
                diloco.step(&lists(&mut random, ranks), 0.05).unwrap();
                assert!(diloco.model(0).staleness() <= config.staleness_bound(), "{config:?}");
            }
            diloco.drain().unwrap();
            let drained = bits(&diloco.parameters(0).concat());
            diloco.drain().unwrap();
            assert_eq!(diloco.model(0).staleness(), 0);
            for rank in 0..ranks as usize {
                assert_eq!(bits(&diloco.parameters(rank).concat()), drained, "{config:?}");
                assert_eq!(bits(diloco.model(rank).global_parameters()), drained);
                assert_eq!(diloco.model(rank).velocity, diloco.model(0).velocity);
            }
        }
        let memory = diloco.model_mut(0).take_memory().unwrap();
        for rank in 1..ranks as usize {
            assert_eq!(diloco.model_mut(rank).take_memory().unwrap(), memory);
        }
    }
}

/// With an outer optimiser that averages, and merging by differences, each gradient counts with
/// 1/N wherever it falls. Whole multiples of the number of ranks keep all of it exact.
#[test]
fn merging_by_differences_loses_no_step() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let DilocoConfig { every, fragments, cut, delay, .. } = random_config(&mut random);
        let config = DilocoConfig { fragments, cut, ..averaging(every, delay) };
        let start: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
        let mut diloco = lockstep(config, with(plain()), 4, &start);
        let mut expected = start.concat();
        for step in 0..3 * every {
            let mut gradients = lists(&mut random, 4);
            gradients.iter_mut().flatten().flatten().for_each(|x| *x = (*x * 9.0).round() * 4.0);
            for list in &gradients {
                expected.iter_mut().zip(list.concat()).for_each(|(w, g)| *w -= g / 4.0);
            }
            diloco.step(&gradients, 1.0).unwrap();
            assert_eq!(mean(4, |rank| diloco.parameters(rank).concat()), expected, "{config:?}");
            if step == every {
                diloco.drain().unwrap();
            }
        }
        diloco.drain().unwrap();
        assert_eq!(diloco.parameters(3).concat(), expected, "{config:?}");
    }
}

/// Each rank pulls towards a point of its own: the mean of the points is where all must end.
#[test]
fn a_quadratic_problem_converges() {
    for merge in [Merge::Blend { alpha: 0.0 }, Merge::Blend { alpha: 0.5 }, Merge::Delta] {
        let mut random = fastrand::Rng::with_seed(4);
        let points = lists(&mut random, 4);
        let config = DilocoConfig { merge, ..DilocoConfig::default() };
        let optimiser = Sgd { momentum: 0.5, ..Sgd::default() }.into();
        let mut diloco = lockstep(config, with(optimiser), 4, &points[0]);
        for _ in 0..1500 {
            let gradient = |rank: usize| -> TensorList {
                let pairs = diloco.parameters(rank).iter().zip(&points[rank]);
                pairs.map(|(w, c)| w.iter().zip(c).map(|(w, c)| w - c).collect()).collect()
            };
            let gradients: Vec<TensorList> = (0..4).map(gradient).collect();
            diloco.step(&gradients, 0.01).unwrap();
        }
        diloco.drain().unwrap();
        let target = mean(4, |rank| points[rank].concat());
        for (found, expected) in diloco.parameters(2).concat().iter().zip(&target) {
            assert!((found - expected).abs() < 2e-2, "{merge:?} {found} {expected}");
        }
    }
}

#[test]
fn what_is_in_flight_is_not_exposed() {
    let gradients = vec![vec![vec![1.0; 250]]; 2];
    // 1000 bytes take 1000 / 1e5 = 10 ms.
    let costs = Costs { compute: Duration::from_millis(15), bandwidth: 1e5 };
    for (delay, expected) in [(0, 10), (1, 0)] {
        let config = averaging(2, delay);
        let mut diloco = lockstep(config, with(plain()), 2, &vec![vec![0.0; 250]]);
        diloco.set_costs(costs);
        let mut exposed = Duration::ZERO;
        for _ in 0..3 {
            diloco.step(&gradients, 0.1).unwrap();
            exposed += diloco.exposed(0);
        }
        assert_eq!(exposed, Duration::from_millis(expected));
    }
}

#[test]
fn global_copies_that_differ_are_found_and_named() {
    let start: TensorList = vec![vec![0.0; 4]];
    let mut diloco = lockstep(averaging(4, 1), with(plain()), 4, &start);
    let gradients = vec![vec![vec![1.0; 4]]; 4];
    diloco.step(&gradients, 0.1).unwrap();
    diloco.model_mut(2).global[3] += 1e-6;
    match diloco.step(&gradients, 0.1).unwrap_err() {
        Error::ReplicasDiffer { step, ranks } => assert_eq!((step, ranks), (2, vec![2])),
        error => panic!("{error}"),
    }
}

#[test]
fn what_is_not_finite_goes_through() {
    for value in [f32::NAN, f32::INFINITY] {
        let mut diloco = lockstep(averaging(2, 1), with(plain()), 2, &vec![vec![0.0; 3]]);
        for _ in 0..5 {
            diloco.step(&[vec![vec![value; 3]], vec![vec![1.0; 3]]], 0.1).unwrap();
        }
        diloco.drain().unwrap();
        assert!(diloco.parameters(1).concat().iter().all(|w| !w.is_finite()));
    }
}

#[test]
fn each_bad_setting_is_named() {
    let good = DilocoConfig::default();
    for (bad, text) in [
        (DilocoConfig { every: 0, ..good }, "fragments"),
        (DilocoConfig { fragments: 0, ..good }, "fragments"),
        (DilocoConfig { every: 3, delay: 0, ..good }, "fragments"),
        (DilocoConfig { every: u64::MAX, fragments: u32::MAX, ..good }, "fragments"),
        (DilocoConfig { delay: 8, ..good }, "delay"),
        (DilocoConfig { delay: u64::MAX, ..good }, "delay"),
        (DilocoConfig { outer_rate: 0.0, ..good }, "outer rate"),
        (DilocoConfig { outer_rate: f32::NAN, ..good }, "outer rate"),
        (DilocoConfig { outer_momentum: 1.0, ..good }, "outer momentum"),
        (DilocoConfig { merge: Merge::Blend { alpha: 1.0 }, ..good }, "alpha"),
        (DilocoConfig { merge: Merge::Blend { alpha: f32::NAN }, ..good }, "alpha"),
    ] {
        let error = bad.validate().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    DilocoConfig { every: u64::MAX, delay: u64::MAX / 4, ..good }.validate().unwrap();
}

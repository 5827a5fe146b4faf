//! OSP's invariants, over exact sums in memory.

use super::*;
use crate::config::{ModelKind, SessionConfig};
use crate::error::Error;
use crate::lockstep::{Costs, Lockstep, TensorList};
use crate::optimiser::Sgd;
use std::time::Duration;

/// Two tensors that are cut into slices of four, one that is smaller than a slice.
pub(super) const LENS: [usize; 3] = [37, 3, 22];

pub(super) fn osp(share: f64) -> OspConfig {
    OspConfig {
        budget: BudgetRule::fixed(share),
        min_deferred_len: 0,
        granularity: Granularity::Slices { max_bytes: 16 },
        rs_parts: 0,
        ..OspConfig::default()
    }
}

pub(super) fn session(model: ModelKind) -> SessionConfig {
    let optimiser = Sgd { weight_decay: 0.001, ..Sgd::default() }.into();
    SessionConfig { model, optimiser, seed: 5, check_every: 1, ..SessionConfig::default() }
}

pub(super) fn random_list(random: &mut fastrand::Rng) -> TensorList {
    LENS.map(|len| (0..len).map(|_| random.f32() * 2.0 - 1.0).collect()).to_vec()
}

pub(super) fn lockstep(
    config: OspConfig,
    world_size: u32,
    parameters: &TensorList,
) -> Lockstep<Osp> {
    let session = session(ModelKind::Osp(config));
    session.validate().unwrap();
    Lockstep::with_models(&session, world_size, parameters, |job, tensors| {
        model(job, config, tensors)
    })
}

fn model(job: Job, config: OspConfig, parameters: &[&mut [f32]]) -> Osp {
    let specs: Vec<_> = LENS.iter().map(|len| crate::layout::TensorSpec::new("t", *len)).collect();
    let layout = Layout::new(&specs, config.granularity);
    let memory = Memory::new(&job.optimiser, layout.len());
    Osp::new(job, config, layout, parameters, memory)
}

pub(super) fn bits(list: &TensorList) -> Vec<u32> {
    list.iter().flatten().map(|x| x.to_bits()).collect()
}

pub(super) fn flat_bits(list: &[f32]) -> Vec<u32> {
    list.iter().map(|x| x.to_bits()).collect()
}

/// Every setting whose effect must not break an invariant.
fn variants(share: f64) -> Vec<OspConfig> {
    let base = osp(share);
    let mut all = vec![base];
    all.push(OspConfig { gib_lag: GibLag::Two, ..base });
    all.push(OspConfig { gib_every: 3, ..base });
    all.extend([1, 2, 64].map(|rs_parts| OspConfig { rs_parts, ..base }));
    all.push(OspConfig { gib_lag: GibLag::Two, rs_parts: 4, ..base });
    all.push(OspConfig { gib_every: 2, gib_lag: GibLag::Two, ..base });
    all.push(OspConfig { granularity: Granularity::Tensors, ..base });
    all.push(OspConfig { min_deferred_len: 10, ..base });
    for importance in [Importance::Random, Importance::Signed, Importance::Sum] {
        all.push(OspConfig { importance, ..base });
    }
    for lgp in [Lgp::None, Lgp::LocalPlain, Lgp::Ema { gamma: 0.9, lambda: 0.5 }] {
        all.push(OspConfig { lgp, ..base });
    }
    all
}

#[test]
fn b1_nothing_deferred_is_bsp_to_the_bit() {
    let mut random = fastrand::Rng::with_seed(1);
    let start = random_list(&mut random);
    let mut bsp = Lockstep::new(&session(ModelKind::Bsp), 4, &start).unwrap();
    let mut osps: Vec<_> = variants(0.0).into_iter().map(|c| lockstep(c, 4, &start)).collect();
    for step in 0..20 {
        let gradients: Vec<_> = (0..4).map(|_| random_list(&mut random)).collect();
        let rate = 0.1 / (1 + step / 7) as f32;
        bsp.step(&gradients, rate).unwrap();
        for osp in &mut osps {
            osp.step(&gradients, rate).unwrap();
            for rank in 0..4 {
                assert_eq!(bits(osp.parameters(rank)), bits(bsp.parameters(rank)));
            }
            assert_eq!(osp.model(0).traffic(), bsp.model(0).traffic());
        }
    }
}

#[test]
fn b2_one_rank_alone_is_plain_sgd_to_the_bit() {
    for share in [0.0, 0.4, 1.0] {
        let local = |config: &OspConfig| config.lgp == Lgp::Local;
        for config in variants(share).into_iter().filter(local) {
            let mut random = fastrand::Rng::with_seed(2);
            let start = random_list(&mut random);
            let mut osp = lockstep(config, 1, &start);
            let (mut w, mut v) = (start.concat(), vec![0.0_f32; start.concat().len()]);
            for step in 0..20 {
                let gradients = random_list(&mut random);
                let rate = 0.1 / (1 + step / 7) as f32;
                osp.step(std::slice::from_ref(&gradients), rate).unwrap();
                for ((w, v), g) in w.iter_mut().zip(&mut v).zip(gradients.concat()) {
                    *v = 0.9 * *v + (g + 0.001 * *w);
                    *w -= rate * *v;
                }
                assert_eq!(bits(osp.parameters(0)), flat_bits(&w), "{config:?} step {step}");
            }
            osp.drain().unwrap();
            assert_eq!(bits(osp.parameters(0)), flat_bits(&w));
        }
    }
}

/// What every rank holds after a drain is equal; before it, the replicas of the global state are,
/// and the trainer's copies of important slices; all while some bytes are in fact deferred.
#[test]
fn b3_replicas_agree_and_copies_are_exact_where_important() {
    for config in variants(0.6) {
        let mut random = fastrand::Rng::with_seed(3);
        let start = random_list(&mut random);
        let mut osp = lockstep(config, 3, &start);
        let mut deferred = 0;
        for _ in 0..12 {
            let gradients: Vec<_> = (0..3).map(|_| random_list(&mut random)).collect();
            osp.step(&gradients, 0.05).unwrap();
            let first = osp.model(0);
            deferred += first.traffic().deferred_bytes;
            assert_eq!(first.traffic().deferred_bytes > 0, first.staleness() == 1);
            for rank in 0..3 {
                let model = osp.model(rank);
                assert_eq!(
                    flat_bits(model.global_parameters()),
                    flat_bits(first.global_parameters())
                );
                assert_eq!(model.gib(), first.gib());
                for (index, slice) in model.layout.slices().iter().enumerate() {
                    let copy = &osp.parameters(rank)[slice.tensor][slice.within()];
                    let global = &model.global_parameters()[slice.flat()];
                    if model.gib().is_important(index) {
                        assert_eq!(flat_bits(copy), flat_bits(global));
                    } else if config.lgp != Lgp::None {
                        assert_ne!(flat_bits(copy), flat_bits(global), "no provisional step");
                    }
                }
            }
        }
        assert!(deferred > 0, "{config:?} defers nothing");
        osp.drain().unwrap();
        for rank in 0..3 {
            assert_eq!(osp.model(rank).staleness(), 0);
            let global = flat_bits(osp.model(0).global_parameters());
            assert_eq!(bits(osp.parameters(rank)), global);
        }
    }
}

/// With whole numbers, a power of two of ranks, no momentum and a rate of 1, sums are exact.
#[test]
fn b4_each_gradient_is_applied_exactly_once() {
    for config in variants(0.7) {
        let mut random = fastrand::Rng::with_seed(4);
        let start: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
        let model = ModelKind::Osp(config);
        let optimiser = Sgd { momentum: 0.0, ..Sgd::default() }.into();
        let session =
            SessionConfig { model, optimiser, seed: 5, check_every: 4, ..SessionConfig::default() };
        let mut osp = Lockstep::new(&session, 4, &start).unwrap();
        let mut sums = start.concat();
        let steps = 15;
        for step in 0..steps {
            let mut gradients: Vec<_> = (0..4).map(|_| random_list(&mut random)).collect();
            let whole = |x: &mut f32| *x = (*x * 40.0).round() * 4.0;
            gradients.iter_mut().flatten().flatten().for_each(whole);
            for list in &gradients {
                sums.iter_mut().zip(list.concat()).for_each(|(sum, x)| *sum += x / 4.0);
            }
            osp.step(&gradients, 1.0).unwrap();
            if step == 7 {
                osp.drain().unwrap();
            }
        }
        osp.drain().unwrap();
        let negated: Vec<f32> = osp.parameters(2).concat().iter().map(|w| -w).collect();
        assert_eq!(negated, sums, "{config:?}");
    }
}

#[test]
fn b4_versions_count_the_steps() {
    let mut random = fastrand::Rng::with_seed(4);
    let start = random_list(&mut random);
    let mut osp = lockstep(osp(0.7), 2, &start);
    for step in 1..10 {
        let gradients: Vec<_> = (0..2).map(|_| random_list(&mut random)).collect();
        osp.step(&gradients, 0.1).unwrap();
        let model = osp.model(0);
        for (index, version) in model.versions().iter().enumerate() {
            let expected = if model.gib().is_important(index) { step } else { step - 1 };
            assert_eq!(*version, expected);
        }
    }
    osp.drain().unwrap();
    assert!(osp.model(1).versions().iter().all(|version| *version == 9));
}

#[test]
fn b5_with_equal_gradients_the_provisional_value_is_the_final_one() {
    for config in variants(0.9).into_iter().filter(|config| config.lgp == Lgp::Local) {
        let mut random = fastrand::Rng::with_seed(5);
        let start = random_list(&mut random);
        let mut osp = lockstep(config, 4, &start);
        for _ in 0..6 {
            let gradients = random_list(&mut random);
            // Sums of four equal numbers, and their quarter, are exact.
            osp.step(&vec![gradients; 4], 0.1).unwrap();
            let provisional = bits(osp.parameters(1));
            osp.drain().unwrap();
            assert_eq!(bits(osp.parameters(1)), provisional);
        }
    }
}

/// The trainer may have had any value on deferred slices: the global state does not see it.
#[test]
fn the_global_state_does_not_depend_on_the_trainer_s_copy() {
    let mut random = fastrand::Rng::with_seed(6);
    let start = random_list(&mut random);
    let [mut plain, mut spoiled] = [(); 2].map(|()| lockstep(osp(0.5), 2, &start));
    for _ in 0..8 {
        let gradients: Vec<_> = (0..2).map(|_| random_list(&mut random)).collect();
        spoiled.parameters_mut(1).iter_mut().flatten().for_each(|x| *x = f32::NAN);
        plain.step(&gradients, 0.1).unwrap();
        spoiled.step(&gradients, 0.1).unwrap();
        assert_eq!(bits(spoiled.parameters(1)), bits(plain.parameters(1)));
    }
}

#[test]
fn each_step_takes_its_own_learning_rate() {
    let start: TensorList = vec![vec![0.0; 8]];
    let optimiser = Sgd { momentum: 0.0, ..Sgd::default() }.into();
    let model = ModelKind::Osp(osp(1.0));
    let session =
        SessionConfig { model, optimiser, seed: 5, check_every: 1, ..SessionConfig::default() };
    let mut osp = Lockstep::new(&session, 2, &start).unwrap();
    for rate in [1.0, 0.5, 0.25] {
        osp.step(&vec![vec![vec![4.0; 8]]; 2], rate).unwrap();
    }
    osp.drain().unwrap();
    assert_eq!(osp.parameters(0)[0], [-7.0; 8]);
}

/// The first step is whole; a bitmap then splits the next step, or the one after it.
#[test]
fn the_bitmap_takes_effect_when_its_lag_says() {
    let mut random = fastrand::Rng::with_seed(7);
    let start = random_list(&mut random);
    let mut deferred = |gib_lag, gib_every| {
        let mut osp = lockstep(OspConfig { gib_lag, gib_every, ..osp(0.5) }, 2, &start);
        let mut is_deferred = Vec::new();
        for _ in 0..6 {
            let gradients: Vec<_> = (0..2).map(|_| random_list(&mut random)).collect();
            osp.step(&gradients, 0.1).unwrap();
            is_deferred.push(osp.model(0).traffic().deferred_bytes > 0);
        }
        is_deferred.iter().position(|is_deferred| *is_deferred).unwrap()
    };
    assert_eq!(deferred(GibLag::One, 1), 1);
    assert_eq!(deferred(GibLag::Two, 1), 2);
    assert_eq!(deferred(GibLag::One, 3), 3);
    assert_eq!(deferred(GibLag::Two, 3), 4);
}

/// |w g| of both tensors is known here, so the bitmap is too.
#[test]
fn the_bitmap_is_made_of_the_last_step_s_average_and_its_parameters() {
    let start: TensorList = vec![vec![1.0; 4], vec![0.1; 4]];
    let config = OspConfig { granularity: Granularity::Tensors, ..osp(0.5) };
    let session = session(ModelKind::Osp(config));
    let mut osp = Lockstep::with_models(&session, 2, &start, |job, tensors| {
        let specs = [4, 4].map(|len| crate::layout::TensorSpec::new("t", len));
        let layout = Layout::new(&specs, config.granularity);
        let memory = Memory::new(&job.optimiser, layout.len());
        Osp::new(job, config, layout, tensors, memory)
    });
    // The ranks' own gradients say the contrary of their average.
    let gradients = |first: f32, second: f32| {
        vec![
            vec![vec![9.0 + first; 4], vec![second; 4]],
            vec![vec![-9.0 + first; 4], vec![second; 4]],
        ]
    };
    osp.step(&gradients(0.2, 1.0), 1e-6).unwrap();
    osp.step(&gradients(0.2, 4.0), 1e-6).unwrap();
    assert_eq!(osp.model(1).gib().flags(), [true, false], "0.2 and 0.1");
    osp.step(&gradients(0.2, 1.0), 1e-6).unwrap();
    assert_eq!(osp.model(1).gib().flags(), [false, true], "0.2 and 0.4");
    osp.step(&gradients(0.2, 1.0), 1e-6).unwrap();
    assert_eq!(osp.model(1).gib().flags(), [true, false], "0.2 and 0.1");
}

/// A bitmap that is made every third step is made of the step before, not of any other.
#[test]
fn a_rare_bitmap_is_made_of_the_step_before_it() {
    let start: TensorList = vec![vec![1.0; 4], vec![1.0; 4]];
    let config = OspConfig { gib_every: 3, ..osp(0.5) };
    let session = session(ModelKind::Osp(config));
    let mut osp = Lockstep::with_models(&session, 2, &start, |job, tensors| {
        let specs = [4, 4].map(|len| crate::layout::TensorSpec::new("t", len));
        let layout = Layout::new(&specs, config.granularity);
        let memory = Memory::new(&job.optimiser, layout.len());
        Osp::new(job, config, layout, tensors, memory)
    });
    for (first, second) in [(1.0, 2.0), (1.0, 2.0), (2.0, 1.0), (1.0, 2.0), (1.0, 2.0)] {
        osp.step(&vec![vec![vec![first; 4], vec![second; 4]]; 2], 1e-6).unwrap();
    }
    assert_eq!(osp.model(0).gib().flags(), [true, false]);
}

#[test]
fn replicas_that_differ_are_found_and_named() {
    let mut random = fastrand::Rng::with_seed(8);
    let start = random_list(&mut random);
    let mut osp = lockstep(osp(0.5), 4, &start);
    let gradients: Vec<_> = (0..4).map(|_| random_list(&mut random)).collect();
    osp.step(&gradients, 0.1).unwrap();
    osp.model_mut(2).global.parameters[11] += 1e-6;
    match osp.step(&gradients, 0.1).unwrap_err() {
        Error::ReplicasDiffer { step, ranks } => assert_eq!((step, ranks), (2, vec![2])),
        error => panic!("{error}"),
    }
}

#[test]
fn the_budget_follows_loss_and_link() {
    let mut random = fastrand::Rng::with_seed(9);
    let start = random_list(&mut random);
    let budget = BudgetRule::LossDriven { smoothing: 0.0, rise: 0.1 };
    let mut osp = lockstep(OspConfig { budget, ..osp(0.0) }, 4, &start);
    let total = osp.model(0).layout.bytes();
    let mut epoch = |bandwidth, loss| {
        osp.set_costs(Costs { compute: Duration::from_millis(10), bandwidth });
        let mut deferred = 0;
        for _ in 0..4 {
            let gradients: Vec<_> = (0..4).map(|_| random_list(&mut random)).collect();
            osp.step(&gradients, 0.1).unwrap();
            deferred = osp.model(0).traffic().deferred_bytes;
        }
        osp.end_epoch(&[loss; 4]).unwrap();
        (deferred, osp.model(3).decision().limit, osp.model(1).decision().bytes)
    };
    // 248 bytes, of which 372 travel; 198 at most may be deferred.
    assert_eq!(epoch(1e6, 2.0), (0, budget::Limit::Loss, 0));
    assert_eq!(epoch(1e6, 1.0), (0, budget::Limit::Loss, 99));
    let (deferred, limit, bytes) = epoch(1e6, 0.01);
    assert!((80..=99).contains(&deferred), "{deferred}");
    assert_eq!((limit, bytes), (budget::Limit::Cap, 197));
    // 10 ms move 100 bytes, which is 2/3 of 150; S(G) = 248.
    let (_, limit, bytes) = epoch(1e4, 0.01);
    assert_eq!(limit, budget::Limit::Hide);
    assert!((60..=66).contains(&bytes), "{bytes} of {total}");
    // A loss that is not a number makes it BSP at once.
    assert_eq!(epoch(1e4, f64::NAN).1, budget::Limit::NotFinite);
    assert_eq!(epoch(1e4, 0.01).0, 0);
}

/// A budget of nothing holds from the next step on; a bitmap after it has no old scores in it.
#[test]
fn deferring_ends_at_once_and_starts_afresh() {
    for (gib_lag, first) in [(GibLag::One, 1), (GibLag::Two, 2)] {
        let mut random = fastrand::Rng::with_seed(11);
        let start = random_list(&mut random);
        let budget = BudgetRule::LossDriven { smoothing: 0.0, rise: 0.1 };
        let mut osp = lockstep(OspConfig { budget, gib_lag, ..osp(0.0) }, 2, &start);
        let mut epoch = |loss| {
            let mut deferring = Vec::new();
            for _ in 0..4 {
                let gradients: Vec<_> = (0..2).map(|_| random_list(&mut random)).collect();
                osp.step(&gradients, 0.01).unwrap();
                deferring.push(osp.model(0).traffic().deferred_bytes > 0);
            }
            osp.end_epoch(&[loss; 2]).unwrap();
            deferring
        };
        epoch(2.0);
        epoch(1.0);
        assert!(epoch(f64::NAN).contains(&true));
        assert!(!epoch(1.0).contains(&true));
        let after = epoch(1.0);
        assert_eq!(after.iter().position(|is_deferring| *is_deferring), Some(first));
    }
}

#[test]
fn the_running_mean_is_of_averaged_gradients() {
    let start: TensorList = vec![vec![1.0; 4], vec![1.0; 4]];
    let config = OspConfig { lgp: Lgp::Ema { gamma: 0.75, lambda: 0.5 }, ..osp(1.0) };
    let mut osp = Lockstep::with_models(&session(ModelKind::Osp(config)), 2, &start, |job, w| {
        let specs = [4, 4].map(|len| crate::layout::TensorSpec::new("t", len));
        let layout = Layout::new(&specs, config.granularity);
        let memory = Memory::new(&job.optimiser, layout.len());
        Osp::new(job, config, layout, w, memory)
    });
    for (first, second) in [(8.0, 16.0), (0.0, 64.0)] {
        let gradients = [first, second].map(|x| vec![vec![x; 4], vec![-x; 4]]);
        osp.step(&gradients, 0.1).unwrap();
    }
    // The second step's gradient is still under way.
    assert_eq!(osp.model(0).global.average, [[3.0; 4], [-3.0; 4]].concat());
    osp.drain().unwrap();
    assert_eq!(osp.model(1).global.average, [[10.25; 4], [-10.25; 4]].concat());
}

/// Whatever the order in which each rank announces its gradients, and whether it does.
#[test]
fn gradients_that_come_early_give_the_same_bits() {
    for (parts, span) in [(1, 1), (2, 1), (64, 1), (3, 3)] {
        let config = OspConfig { rs_parts: parts, span, ..osp(0.5) };
        let mut random = fastrand::Rng::with_seed(21);
        let start = random_list(&mut random);
        let (mut plain, mut early) = (lockstep(config, 3, &start), lockstep(config, 3, &start));
        let mut deferred = 0;
        for _ in 0..20 {
            let gradients: Vec<_> = (0..3).map(|_| random_list(&mut random)).collect();
            let mut order = || {
                let mut order: Vec<usize> = (0..LENS.len()).collect();
                random.shuffle(&mut order);
                order.truncate(random.usize(0..=LENS.len()));
                order
            };
            let orders: Vec<_> = (0..3).map(|_| order()).collect();
            plain.step(&gradients, 0.05).unwrap();
            early.step_with_ready(&gradients, &orders, 0.05).unwrap();
            for rank in 0..3 {
                assert_eq!(bits(early.parameters(rank)), bits(plain.parameters(rank)));
                assert_eq!(early.model(rank).gib(), plain.model(rank).gib());
            }
            deferred += early.model(0).traffic().deferred_bytes;
        }
        assert!(deferred > 0);
        plain.drain().unwrap();
        early.drain().unwrap();
        assert_eq!(bits(early.parameters(0)), bits(plain.parameters(0)));
    }
}

/// A part starts as soon as its last tensor is there, the first parts first.
#[test]
fn rs_starts_before_the_step_ends() {
    // Lengths of the reductions that start when each tensor is announced, and at the step's end.
    let starts = |rs_parts: u64, order: [usize; 3]| {
        let start = random_list(&mut fastrand::Rng::with_seed(22));
        let mut copy = start.clone();
        let mut parameters: Vec<&mut [f32]> = copy.iter_mut().map(Vec::as_mut_slice).collect();
        let config = OspConfig { rs_parts, ..osp(0.0) };
        let session = session(ModelKind::Osp(config));
        let mut osp = model(Job::new(0, 2, &session), config, &parameters);
        let mut found = Vec::new();
        let mut take = |osp: &mut Osp| {
            let mut lens = Vec::new();
            while let Some(action) = osp.poll_action() {
                match action {
                    Action::StartReduce { data, lane: Lane::Urgent, .. } => lens.push(data.len()),
                    Action::Wait { .. } => {}
                    action => panic!("{action:?}"),
                }
            }
            found.push(lens);
        };
        for tensor in order {
            let gradients = [&start[tensor][..]];
            let mut tensors = Tensors { parameters: &mut [], gradients: &gradients };
            let compute = Duration::ZERO;
            osp.handle_event(Event::GradientReady { tensor, compute }, &mut tensors);
            take(&mut osp);
        }
        let gradients: Vec<&[f32]> = start.iter().map(Vec::as_slice).collect();
        let mut tensors = Tensors { parameters: &mut parameters, gradients: &gradients };
        let ended = StepEnded { learning_rate: 0.1, loss: 0.0, compute: Duration::ZERO };
        osp.handle_event(Event::StepEnded(ended), &mut tensors);
        take(&mut osp);
        found
    };
    assert_eq!(starts(64, [2, 1, 0]), [vec![22], vec![3], vec![37], vec![]]);
    assert_eq!(starts(64, [0, 1, 2]), [vec![], vec![], vec![22, 3, 37], vec![]]);
    assert_eq!(starts(2, [2, 1, 0]), [vec![], vec![], vec![62], vec![]], "22 + 3 are not a half");
    assert_eq!(starts(3, [2, 1, 0]), [vec![22], vec![], vec![40], vec![]]);
}

#[test]
fn hidden_transfers_are_not_exposed() {
    let mut random = fastrand::Rng::with_seed(10);
    let start = random_list(&mut random);
    let mut osp = lockstep(osp(0.6), 4, &start);
    // All 248 bytes take 37.2 ms.
    osp.set_costs(Costs { compute: Duration::from_millis(30), bandwidth: 1e4 });
    let mut exposed = Vec::new();
    for _ in 0..5 {
        let gradients: Vec<_> = (0..4).map(|_| random_list(&mut random)).collect();
        osp.step(&gradients, 0.1).unwrap();
        exposed.push(osp.exposed(0).as_secs_f64() * 1e3);
    }
    assert!((exposed[0] - 37.2).abs() < 0.1, "{exposed:?}");
    let important = osp.model(0).traffic().important_bytes as f64;
    assert!((exposed[4] - important * 0.15).abs() < 0.1, "{exposed:?}");
}

/// A rank's gradients of one step, long enough that clipping bites.
fn steep(rank: u64, step: u64) -> TensorList {
    random_list(&mut fastrand::Rng::with_seed(rank * 100 + step))
}

fn clipped(model: ModelKind) -> SessionConfig {
    SessionConfig { clip_norm: Some(0.5), ..session(model) }
}

#[test]
fn nothing_deferred_clips_as_bsp_does() {
    let start = steep(9, 9);
    let run = |session: &SessionConfig| {
        let mut ranks = Lockstep::new(session, 4, &start).unwrap();
        for step in 0..6 {
            let gradients: Vec<TensorList> = (0..4).map(|rank| steep(rank, step)).collect();
            ranks.step(&gradients, 0.1).unwrap();
        }
        bits(ranks.parameters(0))
    };
    let bsp = run(&clipped(ModelKind::Bsp));
    assert_eq!(run(&clipped(ModelKind::Osp(osp(0.0)))), bsp);
    assert_ne!(run(&session(ModelKind::Bsp)), bsp, "clipping changes the result");
}

/// A gradient of norm 10 that is always the same is scaled by a tenth of a half in all slices:
/// what is deferred counts with its last value, which is the same.
#[test]
fn a_steady_gradient_is_clipped_alike_in_both_stages() {
    let len = LENS.iter().sum::<usize>() as f32;
    let each = 10.0 / len.sqrt();
    let gradients: TensorList = LENS.map(|len| vec![each; len]).to_vec();
    let start: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
    let optimiser = Sgd { momentum: 0.0, ..Sgd::default() }.into();
    let budget = BudgetRule::Fixed { share: 0.6, warmup_epochs: 0 };
    let model = ModelKind::Osp(OspConfig { budget, ..osp(0.6) });
    let session = SessionConfig { optimiser, ..clipped(model) };
    let mut ranks = Lockstep::new(&session, 2, &start).unwrap();
    let steps = 8;
    for _ in 0..steps {
        ranks.step(&[gradients.clone(), gradients.clone()], 1.0).unwrap();
    }
    ranks.drain().unwrap();
    let expected = -each * 0.05 * steps as f32;
    for value in ranks.parameters(1).iter().flatten() {
        assert!((value - expected).abs() < 1e-5, "{value} {expected}");
    }
}

//! Sessions over the real communicator, ranks as threads.

use std::num::NonZeroU64;
use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::lockstep::{Lockstep, TensorList};
use syncline::policy::gba::Decay;
use syncline::{
    AspConfig, AspRate, BudgetRule, Communicator, DsspConfig, Error, GbaModelConfig, GibLag,
    Granularity, Lgp, ModelKind, OspConfig, Pull, R2spConfig, Session, SessionConfig, Sgd,
    SspConfig, TensorSpec,
};

const LENS: [usize; 4] = [300, 7, 0, 190];

fn specs() -> Vec<TensorSpec> {
    let spec = |(index, len)| TensorSpec::new(format!("tensor {index}"), len);
    LENS.into_iter().enumerate().map(spec).collect()
}

fn osp(share: f64) -> OspConfig {
    OspConfig {
        budget: BudgetRule::fixed(share),
        min_deferred_len: 0,
        granularity: Granularity::Slices { max_bytes: 64 },
        ..OspConfig::default()
    }
}

fn config(model: ModelKind) -> SessionConfig {
    SessionConfig { model, seed: 3, check_every: 3, ..SessionConfig::default() }
}

fn models() -> Vec<ModelKind> {
    vec![
        ModelKind::Bsp,
        ModelKind::Osp(osp(0.0)),
        ModelKind::Osp(osp(0.6)),
        ModelKind::Osp(OspConfig { gib_lag: GibLag::Two, lgp: Lgp::None, ..osp(1.0) }),
        ModelKind::Asp(AspConfig::default()),
        ModelKind::Asp(AspConfig { pull: Pull::NextStep, rate: AspRate::PerPush }),
        ModelKind::Ssp(SspConfig::default()),
        ModelKind::Dssp(DsspConfig::default()),
        ModelKind::R2sp(R2spConfig::default()),
        ModelKind::Gba(GbaModelConfig::default()),
    ]
}

/// Models with a server that make a push count as much as they are told, with this `worker`.
fn server_models(worker: AspConfig) -> [ModelKind; 5] {
    [
        ModelKind::Asp(worker),
        ModelKind::Ssp(SspConfig { staleness: 0, worker }),
        ModelKind::Ssp(SspConfig { staleness: 2, worker }),
        ModelKind::Dssp(DsspConfig { lower: 1, r_max: 3, worker }),
        ModelKind::R2sp(R2spConfig { worker, ..R2spConfig::default() }),
    ]
}

/// Multiples of 1/16 below 1: their average over 4 ranks is exact, however it is added up.
fn list(seed: u64) -> TensorList {
    let mut random = fastrand::Rng::with_seed(seed);
    LENS.map(|len| (0..len).map(|_| random.i32(-16..16) as f32 / 16.0).collect()).to_vec()
}

fn any_list(seed: u64) -> TensorList {
    let mut random = fastrand::Rng::with_seed(seed);
    LENS.map(|len| (0..len).map(|_| random.f32() - 0.5).collect()).to_vec()
}

fn seed(rank: u32, step: u64) -> u64 {
    u64::from(rank) * 1000 + step
}

fn views(list: &TensorList) -> Vec<&[f32]> {
    list.iter().map(Vec::as_slice).collect()
}

fn views_mut(list: &mut TensorList) -> Vec<&mut [f32]> {
    list.iter_mut().map(Vec::as_mut_slice).collect()
}

fn bits(list: &TensorList) -> Vec<u32> {
    list.iter().flatten().map(|x| x.to_bits()).collect()
}

fn world<T: Send>(ranks: u32, body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    threads(ranks, |config| config.timeout = Duration::from_secs(30), body)
}

/// Trains for some steps with gradients that `gradients` makes of rank and step; returns the
/// parameters after each step, and after the end.
fn train(
    communicator: &Communicator,
    config: &SessionConfig,
    steps: u64,
    gradients: impl Fn(u32, u64) -> TensorList,
) -> Vec<TensorList> {
    let rank = communicator.rank();
    // Only rank 0's are to count.
    let mut parameters = list(77 + u64::from(rank));
    let mut session = Session::new(communicator, &specs(), &mut views_mut(&mut parameters), config)
        .expect("started");
    let mut all = Vec::new();
    for step in 0..steps {
        let gradients = gradients(rank, step);
        let report = session
            .step(&mut views_mut(&mut parameters), &views(&gradients), 0.125, 1.0)
            .expect("a step");
        assert_eq!(report.step, step + 1);
        let waits = report.rs + report.ics_wait + report.pull_wait + report.check_wait;
        assert_eq!(report.exposed, waits);
        assert!(report.exposed <= report.total);
        assert_eq!(report.bytes_important + report.bytes_deferred, 4 * 497);
        all.push(parameters.clone());
    }
    session.end_epoch(1.0).expect("an epoch");
    session.finish(&mut views_mut(&mut parameters)).expect("finished");
    all.push(parameters);
    all
}

#[test]
fn a_session_computes_what_lockstep_does() {
    let configs: Vec<_> =
        models().into_iter().filter(|model| model.server().is_none()).map(config).collect();
    let found = world(4, |world| {
        let run = |config| train(&world, config, 8, |rank, step| list(seed(rank, step)));
        configs.iter().map(run).collect::<Vec<_>>()
    });
    for (index, config) in configs.iter().enumerate() {
        let mut expected = Lockstep::new(config, 4, &list(77)).unwrap();
        for step in 0..=8 {
            if step < 8 {
                let gradients: Vec<_> = (0..4).map(|rank| list(seed(rank, step))).collect();
                expected.step(&gradients, 0.125).unwrap();
            } else {
                expected.drain().unwrap();
            }
            for (rank, found) in found.iter().enumerate() {
                let found = &found[index][step as usize];
                assert_eq!(bits(found), bits(expected.parameters(rank)), "{config:?} {step}");
            }
        }
    }
}

#[test]
fn after_the_end_all_replicas_have_the_same_bits() {
    for ranks in [1, 2, 3] {
        let found = world(ranks, |world| {
            let run = |model| {
                let gradients = |rank, step| any_list(seed(rank, step));
                train(&world, &config(model), 7, gradients).pop().unwrap()
            };
            models().into_iter().map(run).collect::<Vec<_>>()
        });
        for (index, model) in models().iter().enumerate() {
            let same = |lists: &Vec<TensorList>| bits(&lists[index]) == bits(&found[0][index]);
            assert!(found.iter().all(same), "{model:?}");
            assert_ne!(bits(&found[0][index]), bits(&list(77)));
        }
    }
}

#[test]
fn osp_that_defers_nothing_is_bsp_to_the_bit() {
    let found = world(3, |world| {
        let run = |model| train(&world, &config(model), 9, |rank, step| any_list(seed(rank, step)));
        [ModelKind::Bsp, ModelKind::Osp(osp(0.0))].map(run)
    });
    for [bsp, osp] in found {
        assert!(bsp.iter().zip(&osp).all(|(bsp, osp)| bits(bsp) == bits(osp)));
    }
}

#[test]
fn one_rank_alone_is_plain_sgd_to_the_bit() {
    let (mut w, mut v) = (list(77).concat(), [0.0; 497]);
    for step in 0..9 {
        for ((w, v), g) in w.iter_mut().zip(&mut v).zip(any_list(seed(0, step)).concat()) {
            *v = 0.9 * *v + g;
            *w -= 0.125 * *v;
        }
    }
    let expected: Vec<u32> = w.iter().map(|w| w.to_bits()).collect();
    let mut models = vec![ModelKind::Bsp, ModelKind::Osp(osp(0.5)), ModelKind::Osp(osp(1.0))];
    models.extend(server_models(AspConfig::default()));
    models.push(ModelKind::Gba(GbaModelConfig::default()));
    for model in models {
        let config = config(model);
        let found = world(1, |world| {
            train(&world, &config, 9, |rank, step| any_list(seed(rank, step))).pop().unwrap()
        });
        assert_eq!(bits(&found[0]), expected, "{model:?}");
    }
}

/// Whole gradients, no momentum, a rate of 1 for each push: the end is minus the sum of them all.
#[test]
fn a_server_applies_each_gradient_exactly_once() {
    for pull in [Pull::AfterPush, Pull::NextStep] {
        for model in server_models(AspConfig { pull, rate: AspRate::PerPush }) {
            check_sum(model, 1.0);
        }
        // All groups are full: 12 pushes before the drain, and 12 after it.
        for group in [1, 2, 4] {
            let gba = GbaModelConfig {
                group: NonZeroU64::new(group),
                decay: Decay::Threshold { iota: u64::MAX },
                pull,
                ..GbaModelConfig::default()
            };
            check_sum(ModelKind::Gba(gba), 1.0 / group as f32);
        }
    }
}

/// Every gradient counts `share` at the end.
fn check_sum(model: ModelKind, share: f32) {
    let optimiser = Sgd { momentum: 0.0, ..Sgd::default() }.into();
    let config = SessionConfig { model, optimiser, ..config(model) };
    // Ranks do not even do equally many steps.
    let steps = |rank: u32| 5 + 3 * u64::from(rank);
    let found = world(3, |world| {
        let rank = world.rank();
        let mut parameters: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
        let mut session = Session::new(&world, &specs(), &mut views_mut(&mut parameters), &config)
            .expect("started");
        for step in 0..steps(rank) {
            if step == 4 {
                session.drain(&mut views_mut(&mut parameters)).expect("drained");
            }
            let gradients = list(seed(rank, step));
            let report = session
                .step(&mut views_mut(&mut parameters), &views(&gradients), 1.0, 1.0)
                .expect("a step");
            // All pushes of the others at most, and an own one that was not pulled yet.
            let others = (0..3).filter(|other| *other != rank).map(steps).sum::<u64>();
            assert!(report.staleness <= others + 1, "{}", report.staleness);
        }
        session.finish(&mut views_mut(&mut parameters)).expect("finished");
        let counted: u64 = session.stats().staleness().values().sum();
        assert_eq!(counted, steps(rank));
        assert_eq!(session.audit().expect("at rest").pushes, (0..3).map(steps).sum::<u64>());
        parameters
    });
    let mut sums = [0.0; 497];
    for rank in 0..3 {
        for step in 0..steps(rank) {
            let gradients = list(seed(rank, step)).concat();
            sums.iter_mut().zip(gradients).for_each(|(sum, x)| *sum -= x * share);
        }
    }
    for parameters in found {
        assert_eq!(parameters.concat(), sums, "{model:?}");
    }
}

#[test]
fn one_rate_means_the_same_to_asp_as_to_the_average() {
    let config = |rate| {
        let model = ModelKind::Asp(AspConfig { rate, ..AspConfig::default() });
        let optimiser = Sgd { momentum: 0.0, ..Sgd::default() }.into();
        SessionConfig { model, optimiser, ..config(model) }
    };
    let distance = |rate| {
        let found = world(4, |world| {
            train(&world, &config(rate), 3, |_, _| LENS.map(|len| vec![1.0; len]).to_vec())
        });
        list(77)[0][0] - found[0].last().unwrap()[0][0]
    };
    assert_eq!((distance(AspRate::PerPush), distance(AspRate::PerRound)), (1.5, 0.375));
}

#[test]
fn ranks_that_disagree_at_the_start_are_all_told_who() {
    type Change = fn(u32, &mut Vec<TensorSpec>, &mut SessionConfig);
    let changes: [(Change, &str); 4] = [
        (|rank, _, config| config.check_every += u64::from(rank == 2), "the settings"),
        (|rank, specs, _| specs.truncate(4 - usize::from(rank == 2)), "the number of tensors"),
        (|rank, specs, _| specs[1].name += if rank == 2 { "?" } else { "" }, "tensor 1 ('tensor 1"),
        (|rank, specs, _| specs[3].len += usize::from(rank == 2), "tensor 3 ('tensor 3', 19"),
    ];
    for (change, text) in changes {
        let errors = world(4, |world| {
            let (mut specs, mut config) = (specs(), config(ModelKind::Bsp));
            change(world.rank(), &mut specs, &mut config);
            let mut parameters: TensorList = specs.iter().map(|s| vec![0.0; s.len]).collect();
            Session::new(&world, &specs, &mut views_mut(&mut parameters), &config).unwrap_err()
        });
        for error in errors {
            let Error::JobMismatch { what, ranks } = &error else { panic!("{error}") };
            assert!(what.starts_with(text) && *ranks == [2], "{error}");
        }
    }
}

#[test]
fn ranks_with_another_learning_rate_are_found() {
    for model in [ModelKind::Bsp, ModelKind::Osp(osp(0.5))] {
        let config = SessionConfig { check_every: 1, ..config(model) };
        let errors = world(3, |world| {
            let mut parameters = list(77);
            let mut session =
                Session::new(&world, &specs(), &mut views_mut(&mut parameters), &config).unwrap();
            let rate = if world.rank() == 1 { 0.2 } else { 0.1 };
            let gradients = list(5);
            let error = session
                .step(&mut views_mut(&mut parameters), &views(&gradients), rate, 1.0)
                .unwrap_err();
            let after = session.end_epoch(1.0).unwrap_err();
            assert!(matches!(after, Error::Finished { .. }), "{after}");
            error
        });
        for error in errors {
            let Error::ReplicasDiffer { step, ranks } = &error else { panic!("{error}") };
            assert_eq!((*step, ranks.as_slice()), (1, &[1][..]));
        }
    }
}

#[test]
fn wrong_tensors_are_refused_and_harm_nothing() {
    world(1, |world| {
        let config = config(ModelKind::Bsp);
        let mut parameters = list(77);
        let mut short = list(77);
        short[3].pop();
        let error = Session::new(&world, &specs(), &mut views_mut(&mut short), &config);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("parameters of 'tensor 3' have 189 elements, not 190"), "{error}");
        let mut session =
            Session::new(&world, &specs(), &mut views_mut(&mut parameters), &config).unwrap();
        let error = session.step(&mut views_mut(&mut parameters), &views(&short), 0.1, 1.0);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("gradients of 'tensor 3' have 189"), "{error}");
        let error = session.drain(&mut views_mut(&mut parameters)[1..]).unwrap_err().to_string();
        assert!(error.contains("parameters of 3 tensors, where the session has 4"), "{error}");
        session.step(&mut views_mut(&mut parameters), &views(&list(1)), 0.1, 1.0).unwrap();
        session.finish(&mut views_mut(&mut parameters)).unwrap();
        let error = session.step(&mut views_mut(&mut parameters), &views(&list(1)), 0.1, 1.0);
        assert!(matches!(error.unwrap_err(), Error::Finished { .. }));
    });
}

/// A rank that gives up must not wait for pushes that never come.
#[test]
fn a_session_that_is_dropped_stops_its_server() {
    let models = ["asp", "ssp", "dssp", "r2sp", "gba"];
    world(2, |world| {
        for (model, steps) in models.into_iter().flat_map(|model| [(model, 0), (model, 2)]) {
            let config = config(model.parse().unwrap());
            let mut parameters = list(77);
            let mut session =
                Session::new(&world, &specs(), &mut views_mut(&mut parameters), &config).unwrap();
            for step in 0..steps {
                let gradients = list(step);
                session
                    .step(&mut views_mut(&mut parameters), &views(&gradients), 0.1, 1.0)
                    .unwrap();
            }
            // A shard answers all pushes of the other rank before it goes.
            world.barrier().unwrap();
            drop(session);
        }
    });
}

#[test]
fn all_ranks_choose_the_same_budget_from_what_they_measured() {
    let osp =
        OspConfig { budget: BudgetRule::LossDriven { smoothing: 0.0, rise: 0.1 }, ..osp(0.0) };
    let config = config(ModelKind::Osp(osp));
    let decisions = world(4, |world| {
        let rank = world.rank();
        let mut parameters = list(77);
        let mut session =
            Session::new(&world, &specs(), &mut views_mut(&mut parameters), &config).unwrap();
        let mut decisions = vec![session.decision().clone()];
        let mut shares = Vec::new();
        for loss in [2.0, 1.0, 0.25] {
            for step in 0..5 {
                let gradients = list(seed(rank, step));
                let report = session
                    .step(&mut views_mut(&mut parameters), &views(&gradients), 0.01, loss)
                    .unwrap();
                shares.push(report.deferred_share);
            }
            // Each rank has another loss; only the mean counts.
            let own = loss * (1.0 + (rank as f32 - 1.5) / 10.0);
            decisions.push(session.end_epoch(own).unwrap().clone());
        }
        session.finish(&mut views_mut(&mut parameters)).unwrap();
        assert!(shares[..10].iter().all(|share| *share == 0.0), "{shares:?}");
        assert_eq!(decisions[1].bytes, 0);
        decisions
    });
    assert!(decisions.iter().all(|other| *other == decisions[0]));
    assert!(decisions[0][3].bytes > 0, "{decisions:?}");
}

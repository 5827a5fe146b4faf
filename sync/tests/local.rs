//! Local SGD and DiLoCo over the real communicator, ranks as threads: what lockstep computes, equal
//! replicas at the end, and switches to and from the other models.

use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::lockstep::{Lockstep, TensorList};
use syncline::{
    AspConfig, BudgetRule, Communicator, DilocoConfig, FragmentCut, LocalSgdConfig, Merge,
    ModelKind, OspConfig, Session, SessionConfig, Sgd, TensorSpec,
};

const LENS: [usize; 4] = [30, 7, 0, 60];
const RANKS: u32 = 4;

fn world<T: Send>(ranks: u32, body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    threads(ranks, |config| config.timeout = Duration::from_secs(30), body)
}

fn specs() -> Vec<TensorSpec> {
    let spec = |(index, len)| TensorSpec::new(format!("tensor {index}"), len);
    LENS.into_iter().enumerate().map(spec).collect()
}

fn local(every: u64, averages_memory: bool) -> ModelKind {
    ModelKind::LocalSgd(LocalSgdConfig { every, averages_memory })
}

fn osp() -> ModelKind {
    let budget = BudgetRule::fixed(0.7);
    ModelKind::Osp(OspConfig { budget, min_deferred_len: 0, ..OspConfig::default() })
}

/// An outer optimiser that takes averages as they are, so that each gradient counts once.
fn diloco(every: u64, fragments: u32, delay: u64) -> ModelKind {
    ModelKind::Diloco(DilocoConfig {
        every,
        fragments,
        delay,
        outer_rate: 1.0,
        outer_momentum: 0.0,
        is_nesterov: false,
        merge: Merge::Delta,
        ..DilocoConfig::default()
    })
}

fn models() -> Vec<ModelKind> {
    let ModelKind::Diloco(delta) = diloco(6, 3, 1) else { unreachable!("made above") };
    let merge = Merge::Blend { alpha: 0.5 };
    vec![
        local(1, false),
        local(3, false),
        local(3, true),
        diloco(1, 1, 0),
        diloco(4, 2, 0),
        diloco(6, 3, 1),
        diloco(5, 1, 4),
        ModelKind::Diloco(DilocoConfig { cut: FragmentCut::Strided, merge, ..delta }),
    ]
}

/// Whole multiples of the number of ranks: sums and averages are exact, in any order.
fn exact(rank: u32, step: u64) -> TensorList {
    let mut random = fastrand::Rng::with_seed(u64::from(rank) * 1000 + step);
    LENS.map(|len| (0..len).map(|_| random.i32(-8..8) as f32 * RANKS as f32).collect()).to_vec()
}

fn any(rank: u32, step: u64) -> TensorList {
    let mut random = fastrand::Rng::with_seed(u64::from(rank) * 1000 + step);
    LENS.map(|len| (0..len).map(|_| random.f32() - 0.5).collect()).to_vec()
}

fn zeros() -> TensorList {
    LENS.map(|len| vec![0.0; len]).to_vec()
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

fn config(model: ModelKind, momentum: f32) -> SessionConfig {
    let optimiser = Sgd { momentum, ..Sgd::default() }.into();
    SessionConfig { model, optimiser, check_every: 2, audits: true, ..SessionConfig::default() }
}

/// Trains for some steps; returns the parameters after each of them and after the end.
fn train(
    world: &Communicator,
    config: &SessionConfig,
    steps: u64,
    gradients: fn(u32, u64) -> TensorList,
    rate: f32,
) -> Vec<TensorList> {
    let mut w = zeros();
    let mut session =
        Session::new(world, &specs(), &mut views_mut(&mut w), config).expect("started");
    let mut all = Vec::new();
    for step in 0..steps {
        let gradients = gradients(world.rank(), step);
        session.step(&mut views_mut(&mut w), &views(&gradients), rate, 1.0).expect("a step");
        all.push(w.clone());
    }
    session.end_epoch(1.0).expect("an epoch");
    session.finish(&mut views_mut(&mut w)).expect("finished");
    all.push(w);
    all
}

#[test]
fn a_session_computes_what_lockstep_does() {
    let configs: Vec<_> = models().into_iter().map(|model| config(model, 0.0)).collect();
    let found = world(RANKS, |world| {
        configs.iter().map(|config| train(&world, config, 14, exact, 1.0)).collect::<Vec<_>>()
    });
    for (index, config) in configs.iter().enumerate() {
        let mut expected = Lockstep::new(config, RANKS, &zeros()).unwrap();
        for step in 0..=14 {
            if step < 14 {
                let gradients: Vec<_> = (0..RANKS).map(|rank| exact(rank, step)).collect();
                expected.step(&gradients, 1.0).unwrap();
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
            let run = |model| train(&world, &config(model, 0.9), 11, any, 0.1).pop().unwrap();
            models().into_iter().map(run).collect::<Vec<_>>()
        });
        for (index, model) in models().iter().enumerate() {
            let same = |lists: &Vec<TensorList>| bits(&lists[index]) == bits(&found[0][index]);
            assert!(found.iter().all(same), "{model:?}");
            assert_ne!(bits(&found[0][index]), bits(&zeros()));
        }
    }
}

/// Switches come in the middle of a round, with and without a fragment in flight.
#[test]
fn no_gradient_is_lost_or_applied_twice_over_switches() {
    let asp = ModelKind::Asp(AspConfig::default());
    let plan = [
        ModelKind::Bsp,
        local(3, false),
        diloco(6, 3, 1),
        osp(),
        diloco(5, 1, 4),
        asp,
        local(4, true),
        diloco(4, 2, 0),
        ModelKind::Bsp,
    ];
    const STEPS: u64 = 7;
    let ends = world(RANKS, |communicator| {
        let rank = communicator.rank();
        let mut w = zeros();
        let config = config(plan[0], 0.0);
        let mut session =
            Session::new(&communicator, &specs(), &mut views_mut(&mut w), &config).unwrap();
        for (index, model) in plan.into_iter().enumerate() {
            if index > 0 {
                let report = session.switch_to(model, &mut views_mut(&mut w)).unwrap();
                assert_eq!((report.from, report.to), (plan[index - 1].name(), model.name()));
            }
            for step in 0..STEPS {
                let gradients = exact(rank, index as u64 * STEPS + step);
                session.step(&mut views_mut(&mut w), &views(&gradients), 1.0, 0.5).unwrap();
            }
        }
        session.finish(&mut views_mut(&mut w)).unwrap();
        w
    });
    let mut expected = zeros().concat();
    for rank in 0..RANKS {
        for step in 0..plan.len() as u64 * STEPS {
            for (w, g) in expected.iter_mut().zip(exact(rank, step).concat()) {
                *w -= g / RANKS as f32;
            }
        }
    }
    ends.iter().for_each(|end| assert_eq!(end.concat(), expected));
}

/// With equal gradients everywhere, local SGD makes the updates of BSP, so that a switch between
/// them must not show, if momentum and count of updates go on. DiLoCo's differences round.
#[test]
fn the_optimiser_s_memory_goes_on() {
    let cycle = [local(2, false), ModelKind::Bsp, local(3, true), osp()];
    for (name, other, tolerance) in [
        ("sgd", None, 0.0),
        ("adam", None, 0.0),
        ("nesterov", Some(diloco(4, 2, 1)), 1e-4),
        ("adam", Some(diloco(3, 1, 0)), 1e-4),
    ] {
        let run = |switches: bool| {
            world(RANKS, move |communicator| {
                let mut w = vec![0.5_f32; 97];
                let specs = [TensorSpec::new("w", 97)];
                let optimiser = name.parse().unwrap();
                let config = SessionConfig { optimiser, ..SessionConfig::default() };
                let mut session =
                    Session::new(&communicator, &specs, &mut [&mut w], &config).unwrap();
                for step in 0..16 {
                    if switches && step % 3 == 2 {
                        let model = match other {
                            Some(other) if step % 2 == 0 => other,
                            _ => cycle[step as usize / 3 % cycle.len()],
                        };
                        session.switch_to(model, &mut [&mut w]).unwrap();
                    }
                    let gradient = exact(0, step).concat();
                    session.step(&mut [&mut w], &[&gradient], 0.01, 0.5).unwrap();
                }
                session.finish(&mut [&mut w]).unwrap();
                w
            })
        };
        let (found, expected) = (run(true), run(false));
        for (found, expected) in found.concat().iter().zip(expected.concat()) {
            assert!((found - expected).abs() <= tolerance, "{name} {found} {expected}");
        }
    }
}

#[test]
fn reports_say_what_moved_and_what_is_lacking() {
    let found = world(2, |world| {
        let report = |model| {
            let mut w = vec![0.0_f32; 64];
            let specs = [TensorSpec::new("w", 64)];
            let config = config(model, 0.9);
            let mut session = Session::new(&world, &specs, &mut [&mut w], &config).unwrap();
            let step = |_| {
                let report = session.step(&mut [&mut w], &[&[1.0; 64]], 0.1, 0.5).unwrap();
                (report.bytes_important, report.bytes_deferred, report.staleness)
            };
            (0..5).map(step).collect::<Vec<_>>()
        };
        (report(local(2, true)), report(diloco(2, 1, 1)))
    });
    for (local, diloco) in found {
        assert_eq!(local, [(0, 0, 1), (512, 0, 0), (0, 0, 1), (512, 0, 0), (0, 0, 1)]);
        assert_eq!(diloco, [(0, 0, 1), (0, 256, 2), (0, 0, 1), (0, 256, 2), (0, 0, 1)]);
    }
}

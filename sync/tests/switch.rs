//! Switching between models in a running session, ranks as threads: no gradient is lost or applied
//! twice, and the optimiser's memory goes on.

use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::policy::gba::Decay;
use syncline::{
    AspConfig, BudgetRule, Communicator, DsspConfig, Error, GbaModelConfig, ModelKind, OspConfig,
    Pull, R2spConfig, Session, SessionConfig, Sgd, SspConfig, TensorSpec,
};

const LEN: usize = 97;
const RANKS: u32 = 4;

fn world<T: Send>(body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    threads(RANKS, |config| config.timeout = Duration::from_secs(30), body)
}

fn osp() -> ModelKind {
    let budget = BudgetRule::fixed(0.7);
    ModelKind::Osp(OspConfig { budget, min_deferred_len: 0, ..OspConfig::default() })
}

/// Whole multiples of the number of ranks: all sums and averages are exact, in any order.
fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(u64::from(rank) * 1000 + step);
    (0..LEN).map(|_| random.i32(-8..8) as f32 * RANKS as f32).collect()
}

#[test]
fn b17_no_gradient_is_lost_or_applied_twice_over_switches() {
    let asp = ModelKind::Asp(AspConfig::default());
    // Its last reply is still under way when the switch begins.
    let worker = AspConfig { pull: Pull::NextStep, ..AspConfig::default() };
    let late = ModelKind::Asp(worker);
    let ssp = ModelKind::Ssp(SspConfig { staleness: 1, ..SspConfig::default() });
    let late_ssp = ModelKind::Ssp(SspConfig { staleness: 0, worker });
    let dssp = ModelKind::Dssp(DsspConfig { lower: 1, r_max: 2, worker });
    let r2sp = ModelKind::R2sp(R2spConfig::default());
    let late_r2sp = ModelKind::R2sp(R2spConfig { worker, ..R2spConfig::default() });
    // All count, however late.
    let decay = Decay::Threshold { iota: u64::MAX };
    let gba = ModelKind::Gba(GbaModelConfig { decay, ..GbaModelConfig::default() });
    let plan = [
        [ModelKind::Bsp, osp(), asp, osp(), late, asp, ModelKind::Bsp],
        [ssp, osp(), late_ssp, dssp, ModelKind::Bsp, r2sp, osp()],
        [gba, ModelKind::Bsp, late_r2sp, asp, gba, gba, osp()],
    ]
    .concat();
    // With a server ranks need not make equally many steps; under GBA groups are to be full.
    let steps = |model: &ModelKind, rank: u32| match model {
        ModelKind::Bsp | ModelKind::Osp(_) | ModelKind::Gba(_) => 5,
        _ => 3 + u64::from(rank),
    };
    let total = |rank: u32| -> u64 { plan.iter().map(|model| steps(model, rank)).sum() };
    let ends = world(|communicator| {
        let rank = communicator.rank();
        let mut w = vec![0.0_f32; LEN];
        let specs = [TensorSpec::new("w", LEN)];
        let optimiser = Sgd { momentum: 0.0, ..Sgd::default() }.into();
        let config = SessionConfig { optimiser, ..SessionConfig::default() };
        let mut session = Session::new(&communicator, &specs, &mut [&mut w], &config).unwrap();
        let mut step = 0;
        for (index, model) in plan.iter().copied().enumerate() {
            if index > 0 {
                let report = session.switch_to(model, &mut [&mut w]).unwrap();
                assert_eq!((report.from, report.to), (plan[index - 1].name(), model.name()));
            }
            for _ in 0..steps(&model, rank) {
                session.step(&mut [&mut w], &[&gradient(rank, step)], 1.0, 0.5).unwrap();
                step += 1;
            }
        }
        session.finish(&mut [&mut w]).unwrap();
        w
    });
    let mut expected = vec![0.0_f32; LEN];
    for (rank, step) in (0..RANKS).flat_map(|rank| (0..total(rank)).map(move |step| (rank, step))) {
        for (w, g) in expected.iter_mut().zip(gradient(rank, step)) {
            *w -= g / RANKS as f32;
        }
    }
    ends.iter().for_each(|end| assert_eq!(*end, expected));
}

/// With equal gradients everywhere BSP and OSP make the same updates, so that a switch between
/// them must not show, if momentum and count of updates go on.
#[test]
fn the_optimiser_s_memory_goes_on() {
    for name in ["sgd", "nesterov", "adam"] {
        let run = |switches: bool| {
            world(move |communicator| {
                let mut w = vec![0.5_f32; LEN];
                let specs = [TensorSpec::new("w", LEN)];
                let optimiser = name.parse().unwrap();
                let config = SessionConfig { optimiser, ..SessionConfig::default() };
                let mut session =
                    Session::new(&communicator, &specs, &mut [&mut w], &config).unwrap();
                for step in 0..12 {
                    if switches && step % 3 == 2 {
                        let model = if step % 2 == 0 { osp() } else { ModelKind::Bsp };
                        session.switch_to(model, &mut [&mut w]).unwrap();
                    }
                    session.step(&mut [&mut w], &[&gradient(0, step)], 0.01, 0.5).unwrap();
                }
                session.finish(&mut [&mut w]).unwrap();
                w
            })
        };
        assert_eq!(run(true), run(false), "{name}");
    }
}

#[test]
fn ranks_that_name_different_targets_all_hear_of_it() {
    let errors = world(|communicator| {
        let mut w = vec![0.5_f32; LEN];
        let specs = [TensorSpec::new("w", LEN)];
        let config = SessionConfig::default();
        let mut session = Session::new(&communicator, &specs, &mut [&mut w], &config).unwrap();
        let model = if communicator.rank() == 2 { osp() } else { ModelKind::Bsp };
        let error = session.switch_to(model, &mut [&mut w]).unwrap_err();
        let after = session.step(&mut [&mut w], &[&[0.0; LEN]], 0.1, 0.5).unwrap_err();
        assert!(matches!(after, Error::Finished { .. }), "{after}");
        error
    });
    for error in errors {
        assert!(matches!(&error, Error::JobMismatch { ranks, .. } if *ranks == [2]), "{error}");
    }
}

/// What came after a snapshot leaves no trace, whatever it was and whichever model it went through.
#[test]
fn a_restored_snapshot_goes_on_as_if_nothing_had_come_after_it() {
    for optimiser in ["sgd", "adam"] {
        for model in [ModelKind::Bsp, osp(), ModelKind::Asp(AspConfig::default())] {
            let run = |diverges: bool| {
                world(move |communicator| {
                    let rank = communicator.rank();
                    let mut w = vec![0.5_f32; LEN];
                    let specs = [TensorSpec::new("w", LEN)];
                    let optimiser = optimiser.parse().unwrap();
                    let config = SessionConfig { optimiser, ..SessionConfig::default() };
                    let mut session =
                        Session::new(&communicator, &specs, &mut [&mut w], &config).unwrap();
                    for step in 0..4 {
                        session.step(&mut [&mut w], &[&gradient(rank, step)], 0.01, 0.5).unwrap();
                    }
                    let snapshot = session.snapshot(&mut [&mut w]).unwrap();
                    assert!(snapshot.is_finite());
                    assert_eq!(snapshot.updates(), 4);
                    let all = session.gather(&[u64::from(rank), 7]).unwrap();
                    assert_eq!(all, [0, 7, 1, 7, 2, 7, 3, 7]);
                    if diverges {
                        session.switch_to(model, &mut [&mut w]).unwrap();
                        for step in 0..3 {
                            let wild = if rank == 2 { f32::NAN } else { step as f32 };
                            session.step(&mut [&mut w], &[&[wild; LEN]], 0.01, wild).unwrap();
                        }
                        let bad = session.snapshot(&mut [&mut w]).unwrap();
                        assert!(!bad.is_finite());
                    }
                    let report = session.restore(&snapshot, ModelKind::Bsp, &mut [&mut w]).unwrap();
                    assert_eq!((report.to, report.updates), ("bsp", 4));
                    for step in 4..8 {
                        session.step(&mut [&mut w], &[&gradient(rank, step)], 0.01, 0.5).unwrap();
                    }
                    session.finish(&mut [&mut w]).unwrap();
                    w
                })
            };
            let (with, without) = (run(true), run(false));
            assert_eq!(with, without, "{optimiser}, {model:?}");
            assert!(with[0].iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn snapshots_that_do_not_fit_or_differ_are_refused() {
    let errors = world(|communicator| {
        let session = |len: usize| {
            let mut w = vec![0.5_f32; len];
            let specs = [TensorSpec::new("w", len)];
            let config = SessionConfig::default();
            let session = Session::new(&communicator, &specs, &mut [&mut w], &config).unwrap();
            (session, w)
        };
        let (mut other, mut other_w) = session(LEN + 1);
        let strange = other.snapshot(&mut [&mut other_w]).unwrap();
        let (mut session, mut w) = session(LEN);
        let error = session.restore(&strange, ModelKind::Bsp, &mut [&mut w]).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        let old = session.snapshot(&mut [&mut w]).unwrap();
        session.step(&mut [&mut w], &[&[1.0; LEN]], 0.1, 0.5).unwrap();
        let new = session.snapshot(&mut [&mut w]).unwrap();
        let mut own = if communicator.rank() == 1 { old } else { new.clone() };
        let error = session.restore(&own, ModelKind::Bsp, &mut [&mut w]).unwrap_err();
        own.broadcast(&communicator, 3).unwrap();
        assert_eq!(own, new);
        error
    });
    for error in errors {
        assert!(matches!(&error, Error::ReplicasDiffer { ranks, .. } if *ranks == [1]), "{error}");
    }
}

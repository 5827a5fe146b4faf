//! Gradients for a trainer's own optimiser, over the real communicator, ranks as threads.

use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::{
    Communicator, DeferConfig, Error, GradientModel, GradientSync, GradientSyncConfig, Granularity,
    TensorSpec,
};

const LENS: [usize; 4] = [300, 7, 0, 190];
const LEN: usize = 497;

fn specs() -> Vec<TensorSpec> {
    let spec = |(index, len)| TensorSpec::new(format!("tensor {index}"), len);
    LENS.into_iter().enumerate().map(spec).collect()
}

fn osp(share: f64) -> GradientSyncConfig {
    let granularity = Granularity::Slices { max_bytes: 64 };
    let defer = DeferConfig { share, min_deferred_len: 0, granularity };
    GradientSyncConfig { model: GradientModel::Osp(defer), check_every: 3 }
}

fn world<T: Send>(ranks: u32, body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    threads(ranks, |config| config.timeout = Duration::from_secs(30), body)
}

/// Multiples of 1/16 below 1: averages over 4 ranks and sums of a few of them are exact.
fn gradients(rank: u32, step: u64) -> [Vec<f32>; 4] {
    let mut random = fastrand::Rng::with_seed(u64::from(rank) * 1000 + step);
    LENS.map(|len| (0..len).map(|_| random.i32(-16..16) as f32 / 16.0).collect())
}

fn average(step: u64) -> Vec<f32> {
    let mut sum = vec![0.0; LEN];
    (0..4).for_each(|rank| add(&mut sum, &gradients(rank, step)));
    sum.iter().map(|sum| sum / 4.0).collect()
}

fn add(sum: &mut [f32], list: &[Vec<f32>; 4]) {
    sum.iter_mut().zip(list.iter().flatten()).for_each(|(sum, g)| *sum += g);
}

fn lend(list: &mut [Vec<f32>; 4]) -> [&mut [f32]; 4] {
    list.each_mut().map(Vec::as_mut_slice)
}

#[test]
fn bsp_and_osp_that_defers_nothing_give_the_average() {
    world(4, |world| {
        for config in [GradientSyncConfig::default(), osp(0.0)] {
            let mut sync = GradientSync::new(&world, &specs(), config).expect("started");
            for step in 0..5 {
                let mut own = gradients(world.rank(), step);
                let report = sync.synchronise(&mut lend(&mut own)).expect("a step");
                assert_eq!(own.concat(), average(step));
                assert_eq!((report.step, report.ics_wait), (step + 1, Duration::ZERO));
                assert_eq!((report.bytes_important, report.bytes_deferred), (4 * 497, 0));
                assert_eq!(report.exposed, report.rs + report.check_wait);
                assert!(report.exposed <= report.total);
                // Nothing is under way at any time.
                sync.resynchronise(&mut lend(&mut own)).expect("averaged");
                assert_eq!(own.concat(), average(step));
            }
            let mut rest = gradients(0, 0);
            sync.drain(&mut lend(&mut rest)).expect("drained");
            assert_eq!(rest.concat(), [0.0; LEN]);
        }
    });
}

#[test]
fn under_osp_each_rank_is_given_the_sum_of_the_averages() {
    world(4, |world| {
        for share in [0.3, 0.8, 1.0] {
            let mut sync = GradientSync::new(&world, &specs(), osp(share)).expect("started");
            let (mut given, mut expected) = (vec![0.0; LEN], vec![0.0; LEN]);
            let mut deferred = 0;
            for step in 0..12 {
                let mut own = gradients(world.rank(), step);
                let report = sync.synchronise(&mut lend(&mut own)).expect("a step");
                assert_eq!(report.bytes_important + report.bytes_deferred, 4 * 497);
                let waits = report.rs + report.ics_wait + report.check_wait;
                assert_eq!(report.exposed, waits);
                deferred += report.bytes_deferred;
                add(&mut given, &own);
                let exact = average(step);
                expected.iter_mut().zip(&exact).for_each(|(sum, g)| *sum += g);
                if step % 5 == 4 {
                    sync.drain(&mut lend(&mut own)).expect("drained");
                    add(&mut given, &own);
                    assert_eq!(given, expected, "{share} {step}");
                }
            }
            assert!(deferred > 0);
            assert_ne!(given, expected);
            let mut rest = gradients(0, 0);
            let refused = sync.resynchronise(&mut lend(&mut rest));
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
            sync.drain(&mut lend(&mut rest)).expect("drained");
            add(&mut given, &rest);
            assert_eq!(given, expected, "{share}");
        }
    });
}

#[test]
fn wrong_tensors_are_refused_and_harm_nothing() {
    world(2, |world| {
        let mut sync = GradientSync::new(&world, &specs(), osp(0.5)).expect("started");
        let mut own = gradients(0, 0);
        let refused = |outcome: Result<(), Error>, text: &str| match outcome {
            Err(Error::InvalidArgument { reason }) => assert!(reason.contains(text), "{reason}"),
            other => panic!("{other:?}"),
        };
        for _ in 0..3 {
            // One rank alone: nothing may be sent.
            if world.rank() == 1 {
                let mut few = lend(&mut own);
                refused(sync.synchronise(&mut few[1..]).map(|_| ()), "gradients of 3 tensors");
                few[3] = &mut [];
                refused(sync.synchronise(&mut few).map(|_| ()), "gradients of 'tensor 3' have 0");
                refused(sync.drain(&mut few), "gradients of 'tensor 3' have 0");
                refused(sync.resynchronise(&mut few), "parameters of 'tensor 3' have 0");
            }
            sync.synchronise(&mut lend(&mut own)).expect("a step");
        }
        assert_eq!(sync.steps(), 3);
        sync.drain(&mut lend(&mut own)).expect("drained");
        sync.resynchronise(&mut lend(&mut own)).expect("averaged");
    });
}

#[test]
fn ranks_that_disagree_at_the_start_are_all_told_who() {
    let errors = world(3, |world| {
        let config = osp(if world.rank() == 2 { 0.25 } else { 0.5 });
        GradientSync::new(&world, &specs(), config).expect_err("other settings")
    });
    for error in errors {
        let Error::JobMismatch { what, ranks } = &error else { panic!("{error}") };
        assert!(what.starts_with("the settings") && *ranks == [2], "{error}");
    }
    let error = world(1, |world| GradientSync::new(&world, &specs(), osp(2.0)).expect_err("2.0"));
    assert!(matches!(error[0], Error::Config { .. }));
}

const FEATURES: usize = 64;
/// Of each rank in each step.
const BATCH: usize = 8;

/// Linear regression on noisy samples, each rank with its own: the trainer's rate is constant, and
/// it has no momentum. The loss on fresh samples, and the weights.
fn regress(world: &Communicator, config: GradientSyncConfig) -> (f32, Vec<f32>) {
    let truth: Vec<f32> = (0..FEATURES).map(|x| (x as f32 / 8.0).sin()).collect();
    let mut random = fastrand::Rng::with_seed(u64::from(world.rank()));
    let sample = |random: &mut fastrand::Rng| {
        let x: Vec<f32> = (0..FEATURES).map(|_| random.f32() * 2.0 - 1.0).collect();
        let y: f32 = x.iter().zip(&truth).map(|(x, w)| x * w).sum::<f32>();
        (x, y + random.f32() * 0.2 - 0.1)
    };
    let error = |w: &[f32], x: &[f32], y: f32| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>() - y;
    let specs = [TensorSpec::new("weights", FEATURES)];
    let mut sync = GradientSync::new(world, &specs, config).expect("started");
    let (mut weights, mut gradient) = (vec![0.0; FEATURES], vec![0.0; FEATURES]);
    let descend = |weights: &mut [f32], gradient: &[f32]| {
        weights.iter_mut().zip(gradient).for_each(|(w, g)| *w -= 0.1 * g);
    };
    for _ in 0..400 {
        gradient.fill(0.0);
        for _ in 0..BATCH {
            let (x, y) = sample(&mut random);
            let error = error(&weights, &x, y) / BATCH as f32;
            gradient.iter_mut().zip(&x).for_each(|(g, x)| *g += error * x);
        }
        sync.synchronise(&mut [&mut gradient]).expect("a step");
        descend(&mut weights, &gradient);
    }
    sync.drain(&mut [&mut gradient]).expect("drained");
    descend(&mut weights, &gradient);
    let before = weights.clone();
    sync.resynchronise(&mut [&mut weights]).expect("averaged");
    let apart = weights.iter().zip(&before).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-4, "after a drain, replicas differ by rounding, not by {apart}");
    let mut random = fastrand::Rng::with_seed(99);
    let losses = (0..500).map(|_| {
        let (x, y) = sample(&mut random);
        error(&weights, &x, y).powi(2)
    });
    (losses.sum::<f32>() / 500.0, weights)
}

#[test]
fn a_trainer_with_its_own_descent_comes_as_far_under_osp() {
    let found = world(4, |world| {
        [GradientSyncConfig::default(), osp(0.5), osp(1.0)].map(|config| regress(&world, config))
    });
    for [bsp, half, all] in &found {
        assert!(bsp.0 < 0.02, "{}", bsp.0);
        for osp in [half, all] {
            assert!(osp.0 < 1.2 * bsp.0, "{} under OSP, {} under BSP", osp.0, bsp.0);
        }
    }
    let bits = |weights: &[f32]| weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
    for rank in &found {
        let pairs = rank.iter().zip(&found[0]);
        pairs.for_each(|((_, own), (_, first))| assert_eq!(bits(own), bits(first)));
    }
}

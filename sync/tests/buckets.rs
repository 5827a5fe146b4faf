//! Gradients that are told before their step ends, over the real communicator, ranks as threads.

use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::{
    BucketRule, ByteCaps, Communicator, Error, LinkRate, ModelKind, Pacing, PlanConfig, Planner,
    Session, SessionConfig, StepReport, TensorSpec,
};

const LENS: [usize; 5] = [700, 3, 0, 1200, 64];

fn specs() -> Vec<TensorSpec> {
    let spec = |(index, len): (usize, &usize)| TensorSpec::new(format!("tensor {index}"), *len);
    LENS.iter().enumerate().map(spec).collect()
}

/// This rank's gradients in this step.
fn gradients(rank: u32, step: u64) -> Vec<Vec<f32>> {
    let mut random = fastrand::Rng::with_seed(1000 * step + u64::from(rank));
    LENS.iter().map(|len| (0..*len).map(|_| random.f32() - 0.5).collect()).collect()
}

fn config(model: ModelKind) -> SessionConfig {
    SessionConfig { model, check_every: 1, ..SessionConfig::default() }
}

#[test]
fn models_that_do_not_overlap_take_no_notice() {
    for name in ["asp", "bsp", "local-sgd"] {
        let model = name.parse().unwrap();
        let found = threads(
            1,
            |_| {},
            |world| {
                [false, true].map(|tells| {
                    let mut parameters = LENS.map(|len| vec![0.5; len]);
                    let mut lent = parameters.each_mut().map(Vec::as_mut_slice);
                    let mut session =
                        Session::new(&world, &specs(), &mut lent, &config(model)).unwrap();
                    for step in 0..4 {
                        let gradients = gradients(0, step);
                        let lent_gradients: Vec<&[f32]> =
                            gradients.iter().map(Vec::as_slice).collect();
                        for tensor in (0..LENS.len()).filter(|_| tells) {
                            session.gradient_ready(tensor, &gradients[tensor]).unwrap();
                        }
                        let report = session.step(&mut lent, &lent_gradients, 0.1, 1.0).unwrap();
                        assert_eq!(report.bytes_overlapped, 0);
                    }
                    session.finish(&mut lent).unwrap();
                    parameters
                })
            },
        );
        assert_eq!(found[0][0], found[0][1], "{name}");
    }
}

#[test]
fn wrong_announcements_are_refused_and_the_session_goes_on() {
    threads(
        1,
        |_| {},
        |world| {
            let mut parameters = LENS.map(|len| vec![0.5; len]);
            let mut lent = parameters.each_mut().map(Vec::as_mut_slice);
            let mut session =
                Session::new(&world, &specs(), &mut lent, &config(ModelKind::Bsp)).unwrap();
            let gradients = gradients(0, 0);
            let refused = |outcome: Result<(), Error>, text: &str| match outcome {
                Err(Error::InvalidArgument { reason }) => {
                    assert!(reason.contains(text), "{reason}");
                }
                other => panic!("{other:?}"),
            };
            refused(session.gradient_ready(5, &[]), "tensor 5");
            refused(session.gradient_ready(1, &[0.0; 4]), "'tensor 1' have 4 elements");
            session.gradient_ready(1, &gradients[1]).unwrap();
            refused(session.gradient_ready(1, &gradients[1]), "twice");
            refused(session.drain(&mut lent), "was not ended");
            refused(session.end_epoch(0.0).map(|_| ()), "was not ended");
            refused(session.gather(&[1]).map(|_| ()), "was not ended");
            refused(session.switch_to(ModelKind::Bsp, &mut lent).map(|_| ()), "was not ended");
            let lent_gradients: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
            session.step(&mut lent, &lent_gradients, 0.1, 1.0).unwrap();
            session.gradient_ready(1, &gradients[1]).unwrap();
            session.step(&mut lent, &lent_gradients, 0.1, 1.0).unwrap();
            session.finish(&mut lent).unwrap();
        },
    );
}

/// Multiples of 1/16 below 1: their average over 4 ranks is exact, however it is added up.
fn exact(rank: u32, step: u64) -> Vec<Vec<f32>> {
    let mut random = fastrand::Rng::with_seed(1000 * step + u64::from(rank));
    LENS.iter().map(|len| (0..*len).map(|_| random.i32(-16..16) as f32 / 16.0).collect()).collect()
}

/// Trains for some steps, each of whose gradients are told in another order on each rank.
fn train(world: &Communicator, model: ModelKind) -> (Vec<Vec<f32>>, Vec<StepReport>) {
    let mut random = fastrand::Rng::with_seed(u64::from(world.rank()));
    let mut parameters = LENS.map(|len| vec![0.5; len]);
    let mut lent = parameters.each_mut().map(Vec::as_mut_slice);
    let config = SessionConfig { clip_norm: Some(2.0), ..config(model) };
    let mut session = Session::new(world, &specs(), &mut lent, &config).expect("started");
    let mut reports = Vec::new();
    for step in 0..8 {
        let gradients = exact(world.rank(), step);
        let mut order: Vec<usize> = (0..LENS.len()).collect();
        random.shuffle(&mut order);
        for tensor in &order[random.usize(0..2)..] {
            session.gradient_ready(*tensor, &gradients[*tensor]).expect("told");
        }
        let lent_gradients: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
        reports.push(session.step(&mut lent, &lent_gradients, 0.125, 1.0).expect("a step"));
    }
    // Between models of one session, too.
    session.switch_to(ModelKind::Bsp, &mut lent).expect("switched");
    session.finish(&mut lent).expect("finished");
    (parameters.to_vec(), reports)
}

fn rules() -> [BucketRule; 3] {
    let before = ByteCaps { first_bytes: 256, cap_bytes: 2800, least_buckets: 1 };
    let planned = |planner| {
        BucketRule::Planned(PlanConfig { before, warmup_steps: 1, measured_steps: 3, planner })
    };
    [BucketRule::Bytes(before), planned(Planner::Best), planned(Planner::Greedy)]
}

#[test]
fn buckets_change_no_bit_over_the_communicator() {
    let found = threads(
        4,
        |_| {},
        |world| {
            let whole = train(&world, ModelKind::Bsp).0;
            (whole, rules().map(|rule| train(&world, ModelKind::BspBuckets(rule)).0))
        },
    );
    for (whole, bucketed) in &found {
        assert_eq!(whole, &found[0].0);
        bucketed.iter().for_each(|parameters| assert_eq!(parameters, whole));
    }
}

/// Two ranks, 160 kB of gradients in 4 tensors, 4 MB/s each way: 40 ms for all of them.
#[test]
#[expect(clippy::disallowed_methods, reason = "a sleep stands for the computation")]
fn what_is_told_early_travels_before_the_step_ends() {
    const LEN: usize = 10_000;
    let rate = LinkRate { bytes_per_s: 4e6 };
    let pacing = Some(Pacing { rate, latency: Duration::ZERO });
    let specs: Vec<TensorSpec> = (0..4).map(|at| TensorSpec::new(format!("{at}"), LEN)).collect();
    let rule = BucketRule::Bytes(ByteCaps { first_bytes: 1, cap_bytes: 1, least_buckets: 1 });
    threads(
        2,
        |config| config.pacing = pacing,
        |world| {
            let mut parameters = [(); 4].map(|()| vec![0.5; LEN]);
            let mut lent = parameters.each_mut().map(Vec::as_mut_slice);
            let config = SessionConfig { check_every: 0, ..config(ModelKind::BspBuckets(rule)) };
            let mut session = Session::new(&world, &specs, &mut lent, &config).unwrap();
            let gradient = vec![0.25; LEN];
            for step in 0..4 {
                let before = world.counters().bytes_sent;
                for tensor in [3, 2, 1] {
                    session.gradient_ready(tensor, &gradient).unwrap();
                    std::thread::sleep(Duration::from_millis(60));
                }
                let sent = world.counters().bytes_sent - before;
                let report = session.step(&mut lent, &[&gradient[..]; 4], 0.125, 1.0).unwrap();
                assert_eq!(report.bytes_overlapped, 3 * 40_000, "{report:?}");
                assert_eq!((report.bytes_important, report.bytes_deferred), (160_000, 0));
                // Nobody waited, and yet the engine sent something.
                assert!(sent > 0, "step {step}: nothing was sent during the pass");
            }
            session.finish(&mut lent).unwrap();
        },
    );
}

#[test]
fn a_lost_rank_is_an_error_of_the_step() {
    let found = threads(
        2,
        |config| config.timeout = Duration::from_secs(20),
        |world| {
            let mut parameters = LENS.map(|len| vec![0.5; len]);
            let mut lent = parameters.each_mut().map(Vec::as_mut_slice);
            let mut session = Session::new(
                &world,
                &specs(),
                &mut lent,
                &config(ModelKind::BspBuckets(rules()[0])),
            )
            .unwrap();
            if world.rank() == 1 {
                return None;
            }
            let gradients = gradients(0, 0);
            let told: Result<(), Error> = (0..LENS.len())
                .rev()
                .try_for_each(|tensor| session.gradient_ready(tensor, &gradients[tensor]));
            let lent_gradients: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
            let step = session.step(&mut lent, &lent_gradients, 0.1, 1.0).map(|_| ());
            let after = session.step(&mut lent, &lent_gradients, 0.1, 1.0).map(|_| ());
            Some((told, step, after))
        },
    );
    let (told, step, after) = found.into_iter().flatten().next().unwrap();
    // Whichever call met the loss first says so; all later ones are refused.
    match told {
        Ok(()) => assert!(matches!(step, Err(Error::Communication(_))), "{step:?}"),
        Err(error) => {
            assert!(matches!(error, Error::Communication(_)), "{error:?}");
            assert!(matches!(step, Err(Error::Finished { .. })), "{step:?}");
        }
    }
    assert!(matches!(after, Err(Error::Finished { .. })), "{after:?}");
}

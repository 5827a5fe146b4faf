//! Steps of several micro-batches, over the real communicator, ranks as threads.

use syncline::comm::testing::threads;
use syncline::{
    BudgetRule, Communicator, Error, Granularity, ModelKind, OspConfig, Session, SessionConfig,
    TensorSpec,
};

const LENS: [usize; 5] = [700, 3, 0, 1200, 64];
const MICRO_BATCHES: u64 = 3;
const STEPS: u64 = 6;

type TensorList = [Vec<f32>; 5];

fn specs() -> Vec<TensorSpec> {
    let spec = |(index, len): (usize, &usize)| TensorSpec::new(format!("tensor {index}"), *len);
    LENS.iter().enumerate().map(spec).collect()
}

fn gradients(rank: u32, micro_batch: u64) -> TensorList {
    let mut random = fastrand::Rng::with_seed(1000 * micro_batch + u64::from(rank));
    LENS.map(|len| (0..len).map(|_| random.f32() - 0.5).collect())
}

fn config(model: ModelKind) -> SessionConfig {
    SessionConfig { model, check_every: 2, audits: true, ..SessionConfig::default() }
}

fn models() -> [ModelKind; 4] {
    let osp = OspConfig {
        budget: BudgetRule::fixed(0.6),
        min_deferred_len: 0,
        granularity: Granularity::Slices { max_bytes: 256 },
        ..OspConfig::default()
    };
    let whole = OspConfig { rs_parts: 0, ..osp };
    let ddp = "ddp".parse().expect("a model");
    [ModelKind::Bsp, ddp, ModelKind::Osp(osp), ModelKind::Osp(whole)]
}

fn lend(list: &TensorList) -> [&[f32]; 5] {
    list.each_ref().map(Vec::as_slice)
}

/// The micro-batches of a step, added up in order and divided.
fn mean(rank: u32, step: u64) -> TensorList {
    let first = MICRO_BATCHES * step;
    let mut sum = gradients(rank, first);
    for micro_batch in first + 1..first + MICRO_BATCHES {
        let more = gradients(rank, micro_batch);
        let pairs = sum.iter_mut().flatten().zip(more.iter().flatten());
        pairs.for_each(|(sum, g)| *sum += g);
    }
    sum.iter_mut().flatten().for_each(|sum| *sum /= MICRO_BATCHES as f32);
    sum
}

/// The parameters after each step and at the end: of micro-batches, or of their means.
fn train(
    world: &Communicator,
    model: ModelKind,
    is_accumulated: bool,
    announced: &[usize],
) -> Vec<TensorList> {
    let mut parameters = LENS.map(|len| vec![0.5; len]);
    let start = &mut parameters.each_mut().map(Vec::as_mut_slice);
    let mut session = Session::new(world, &specs(), start, &config(model)).expect("started");
    let mut all = Vec::new();
    for step in 0..STEPS {
        let mut last = mean(world.rank(), step);
        if is_accumulated {
            let first = MICRO_BATCHES * step;
            for micro_batch in first..first + MICRO_BATCHES - 1 {
                let gradients = gradients(world.rank(), micro_batch);
                session.accumulate(&lend(&gradients), 1.0).expect("accumulated");
            }
            last = gradients(world.rank(), first + MICRO_BATCHES - 1);
        }
        for tensor in announced {
            session.gradient_ready(*tensor, &last[*tensor]).expect("told");
        }
        let lent = &mut parameters.each_mut().map(Vec::as_mut_slice);
        let report = session.step(lent, &lend(&last), 0.1, 1.0).expect("a step");
        assert_eq!(report.step, step + 1);
        all.push(parameters.clone());
    }
    let lent = &mut parameters.each_mut().map(Vec::as_mut_slice);
    session.finish(lent).expect("finished");
    all.push(parameters);
    all
}

#[test]
fn a_step_of_micro_batches_is_one_with_their_mean_to_the_bit() {
    threads(
        3,
        |_| {},
        |world| {
            for model in models() {
                for announced in [&[][..], &[3, 0], &[4, 3, 2, 1, 0]] {
                    let [means, micro_batches] = [false, true]
                        .map(|accumulates| train(&world, model, accumulates, announced));
                    assert_eq!(means, micro_batches, "{model:?} {announced:?}");
                }
            }
        },
    );
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>, text: &str) {
    match outcome {
        Err(Error::InvalidArgument { reason }) => assert!(reason.contains(text), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_else_may_come_before_the_step_ends_and_nothing_is_lost() {
    threads(
        1,
        |_| {},
        |world| {
            for model in models() {
                let mut parameters = LENS.map(|len| vec![0.5; len]);
                let mut lent = parameters.each_mut().map(Vec::as_mut_slice);
                let mut session =
                    Session::new(&world, &specs(), &mut lent, &config(model)).expect("started");
                let snapshot = session.snapshot(&mut lent).expect("a snapshot");
                let [one, two, three] = [0, 1, 2].map(|number| gradients(0, number));
                let [one, two, three] = [lend(&one), lend(&two), lend(&three)];
                refused(session.accumulate(&one[1..], 1.0), "gradients of 4 tensors");
                session.accumulate(&one, 1.0).expect("accumulated");
                refused(session.drain(&mut lent), "1 micro-batches");
                refused(session.finish(&mut lent), "1 micro-batches");
                refused(session.end_epoch(1.0).map(|_| ()), "1 micro-batches");
                refused(session.gather(&[1]), "1 micro-batches");
                refused(session.switch_to(ModelKind::Bsp, &mut lent), "1 micro-batches");
                refused(session.snapshot(&mut lent), "1 micro-batches");
                refused(session.restore(&snapshot, model, &mut lent), "1 micro-batches");
                let mut wrong = two;
                wrong[1] = &[];
                refused(session.accumulate(&wrong, 1.0), "'tensor 1' have 0 elements");
                session.accumulate(&two, 1.0).expect("accumulated");
                session.gradient_ready(3, three[3]).expect("told");
                refused(session.accumulate(&two, 1.0), "was not ended");
                refused(session.step(&mut lent, &wrong, 0.1, 1.0), "'tensor 1' have 0");
                session.step(&mut lent, &three, 0.1, 1.0).expect("a step");
                session.finish(&mut lent).expect("finished");
                let is_finished = session.accumulate(&one, 1.0);
                assert!(matches!(is_finished, Err(Error::Finished { .. })));
                let expected = mean(0, 0);
                for (parameter, g) in parameters.iter().flatten().zip(expected.iter().flatten()) {
                    assert_eq!(*parameter, 0.5 - 0.1 * g);
                }
            }
        },
    );
}

/// Two steps; rank 1 accumulates once more than the others in the first, and they in the second.
fn train_unequally(world: &Communicator, model: ModelKind) -> Result<(), Error> {
    let mut parameters = LENS.map(|len| vec![0.5; len]);
    let mut lent = parameters.each_mut().map(Vec::as_mut_slice);
    let mut session = Session::new(world, &specs(), &mut lent, &config(model))?;
    for step in 0..2 {
        for _ in 0..1 + u32::from((step == 0) == (world.rank() == 1)) {
            session.accumulate(&lend(&gradients(world.rank(), step)), 1.0)?;
        }
        session.step(&mut lent, &lend(&gradients(world.rank(), step)), 0.1, 1.0)?;
    }
    session.finish(&mut lent)
}

#[test]
fn unequal_numbers_of_micro_batches_are_found() {
    threads(
        3,
        |_| {},
        |world| {
            for model in models() {
                let outcome = train_unequally(&world, model);
                let Err(Error::JobMismatch { what, ranks }) = outcome else {
                    panic!("{outcome:?}");
                };
                assert!(what.starts_with("the number of micro-batches"), "{what}");
                assert_eq!(ranks, [1]);
            }
            let asp = "asp".parse().expect("a model");
            train_unequally(&world, asp).expect("free in its micro-batches");
        },
    );
}

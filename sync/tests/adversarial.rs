//! What a trainer would rather not give to a session, under every model, ranks as threads.

#![expect(clippy::unwrap_used, reason = "in a test, the failure is the message")]

use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::{
    BudgetRule, Communicator, Granularity, ModelKind, Optimiser, OspConfig, Session, SessionConfig,
    Sgd, TensorSpec,
};

const RANKS: u32 = 3;

fn world<T: Send>(body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    threads(RANKS, |config| config.timeout = Duration::from_secs(30), body)
}

/// What all ranks end with after `steps` steps with gradients that `gradient` makes of rank, step
/// and parameters.
fn train(
    config: SessionConfig,
    start: &[Vec<f32>],
    steps: u64,
    gradient: impl Fn(u32, u64, &[Vec<f32>]) -> Vec<Vec<f32>> + Sync,
) -> Vec<Vec<Vec<f32>>> {
    world(|communicator| {
        let mut parameters = start.to_vec();
        let specs: Vec<TensorSpec> = (0..)
            .zip(start)
            .map(|(index, tensor): (u32, _)| TensorSpec::new(format!("t{index}"), tensor.len()))
            .collect();
        let mut views: Vec<&mut [f32]> = parameters.iter_mut().map(Vec::as_mut_slice).collect();
        let mut session = Session::new(&communicator, &specs, &mut views, &config).unwrap();
        for step in 0..steps {
            let now: Vec<Vec<f32>> = views.iter().map(|tensor| tensor.to_vec()).collect();
            let gradients = gradient(communicator.rank(), step, &now);
            let gradients: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
            session.step(&mut views, &gradients, 0.125, 1.0).unwrap();
            if step % 4 == 3 {
                session.end_epoch(1.0 / (step + 1) as f32).unwrap();
            }
        }
        // Compares the replicas of all ranks.
        session.finish(&mut views).unwrap();
        drop(views);
        parameters
    })
}

fn config(model: ModelKind) -> SessionConfig {
    let optimiser = Sgd { momentum: 0.5, ..Sgd::default() }.into();
    SessionConfig { model, optimiser, check_every: 4, ..SessionConfig::default() }
}

fn named() -> impl Iterator<Item = (&'static str, ModelKind)> {
    ModelKind::NAMES.into_iter().map(|name| (name, name.parse().unwrap()))
}

fn optimisers() -> [Optimiser; 2] {
    [Sgd { momentum: 0.9, ..Sgd::default() }.into(), syncline::Adam::default().into()]
}

#[test]
fn models_of_one_parameter_train() {
    for (name, model) in named() {
        // DiLoCo's outer steps are few, and have momentum.
        let steps = if name == "diloco" { 1600 } else { 160 };
        // The gradient of (w - 1)^2 / 2.
        let gradient = |_: u32, _: u64, now: &[Vec<f32>]| vec![vec![now[0][0] - 1.0]];
        let ends = train(config(model), &[vec![5.0]], steps, gradient);
        assert!((ends[0][0][0] - 1.0).abs() < 0.05, "{name}: {ends:?}");
        assert!(ends.iter().all(|end| *end == ends[0]), "{name}: {ends:?}");
    }
}

#[test]
fn parameters_without_a_gradient_stay() {
    let start = vec![vec![0.5; 40], vec![], vec![-2.0; 5000], vec![0.0; 3]];
    for optimiser in optimisers() {
        for (name, model) in named() {
            let config = SessionConfig { optimiser, ..config(model) };
            if name == "osp-adaptive" && optimiser.has_second_moment() {
                // A bound on noise is one for SGD.
                assert!(config.validate().is_err());
                continue;
            }
            let zeros =
                |_: u32, _: u64, now: &[Vec<f32>]| now.iter().map(|t| vec![0.0; t.len()]).collect();
            let ends = train(config, &start, 12, zeros);
            ends.iter().for_each(|end| assert_eq!(*end, start, "{name} {optimiser:?}"));
        }
    }
}

#[test]
fn a_layer_larger_than_the_budget_is_not_deferred() {
    let model = ModelKind::Osp(OspConfig {
        budget: BudgetRule::fixed(0.5),
        min_deferred_len: 0,
        granularity: Granularity::Tensors,
        ..OspConfig::default()
    });
    let start = vec![vec![0.0; 900], vec![0.0; 50], vec![0.0; 50]];
    let ones = |_: u32, _: u64, now: &[Vec<f32>]| now.iter().map(|t| vec![1.0; t.len()]).collect();
    let bsp = train(config(ModelKind::Bsp), &start, 9, ones);
    // Equal gradients on all ranks: whatever is deferred, the end is BSP's.
    assert_eq!(train(config(model), &start, 9, ones), bsp);
}

#[test]
fn not_a_number_on_one_rank_reaches_all_and_hangs_none() {
    let start = vec![vec![0.5; 2000], vec![1.0; 10]];
    for poison in [f32::NAN, f32::INFINITY, f32::from_bits(0xffc0_1234)] {
        for (name, model) in named() {
            let gradient = |rank: u32, step: u64, now: &[Vec<f32>]| {
                let mut all: Vec<Vec<f32>> = now.iter().map(|t| vec![0.25; t.len()]).collect();
                if rank == 1 && step == 2 {
                    all[0][7] = poison;
                }
                all
            };
            let ends = train(config(model), &start, 8, gradient);
            for end in &ends {
                let bad = end.concat().iter().filter(|x| !x.is_finite()).count();
                assert_eq!(bad, 1, "{name}");
                assert!(!end[0][7].is_finite(), "{name}");
            }
        }
    }
}

//! Local SGD by hand, against BSP, and over seeds.

use super::*;
use crate::config::{ModelKind, SessionConfig};
use crate::lockstep::{Lockstep, TensorList};
use crate::optimiser::{Adam, Optimiser, Sgd};

const LENS: [usize; 3] = [10, 3, 8];

fn plain() -> Optimiser {
    Sgd { momentum: 0.0, ..Sgd::default() }.into()
}

fn optimisers() -> [Optimiser; 3] {
    [plain(), Sgd { weight_decay: 0.01, ..Sgd::default() }.into(), Adam::default().into()]
}

fn lockstep(
    config: LocalSgdConfig,
    session: SessionConfig,
    ranks: u32,
    start: &TensorList,
) -> Lockstep<LocalSgd> {
    let session = SessionConfig { model: ModelKind::LocalSgd(config), ..session };
    session.validate().unwrap();
    Lockstep::with_models(&session, ranks, start, |job, tensors| {
        let len = tensors.iter().map(|tensor| tensor.len()).sum();
        LocalSgd::new(job, config, Memory::new(&job.optimiser, len))
    })
}

fn with(optimiser: Optimiser) -> SessionConfig {
    SessionConfig { optimiser, check_every: 1, ..SessionConfig::default() }
}

fn random_list(random: &mut fastrand::Rng) -> TensorList {
    LENS.map(|len| (0..len).map(|_| random.f32() * 2.0 - 1.0).collect()).to_vec()
}

fn lists(random: &mut fastrand::Rng, ranks: u32) -> Vec<TensorList> {
    (0..ranks).map(|_| random_list(random)).collect()
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

#[test]
fn two_ranks_by_hand() {
    let config = LocalSgdConfig { every: 2, averages_memory: false };
    let mut local = lockstep(config, with(plain()), 2, &vec![vec![0.0]]);
    let one = |value: f32| vec![vec![value]];
    local.step(&[one(2.0), one(4.0)], 1.0).unwrap();
    assert_eq!((local.parameters(0)[0][0], local.parameters(1)[0][0]), (-2.0, -4.0));
    assert_eq!((local.model(0).staleness(), local.model(0).traffic()), (1, Traffic::default()));
    local.step(&[one(0.0), one(2.0)], 0.5).unwrap();
    assert_eq!((local.parameters(0)[0][0], local.parameters(1)[0][0]), (-3.5, -3.5));
    assert_eq!(local.model(0).staleness(), 0);
    assert_eq!(local.model(0).traffic(), Traffic { important_bytes: 4, deferred_bytes: 0 });
}

#[test]
fn averaged_memory_is_counted_as_traffic() {
    for (optimiser, buffers) in [(plain(), 2), (Adam::default().into(), 3)] {
        let config = LocalSgdConfig { every: 1, averages_memory: true };
        let mut local = lockstep(config, with(optimiser), 2, &vec![vec![0.0; 5]]);
        local.step(&vec![vec![vec![1.0; 5]]; 2], 0.1).unwrap();
        assert_eq!(local.model(1).traffic().important_bytes, 20 * buffers);
    }
}

/// Whole multiples of 1/16 and a rate of 1/2: nothing is rounded, so nothing may differ.
#[test]
fn every_step_with_plain_sgd_is_bsp_to_the_bit_on_exact_numbers() {
    let mut random = fastrand::Rng::with_seed(1);
    let start: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
    let config = LocalSgdConfig { every: 1, averages_memory: false };
    let mut local = lockstep(config, with(plain()), 4, &start);
    let mut bsp = Lockstep::new(&with(plain()), 4, &start).unwrap();
    for _ in 0..6 {
        let mut gradients = lists(&mut random, 4);
        gradients.iter_mut().flatten().flatten().for_each(|x| *x = (*x * 16.0).round() / 16.0);
        local.step(&gradients, 0.5).unwrap();
        bsp.step(&gradients, 0.5).unwrap();
        for rank in 0..4 {
            assert_eq!(local.parameters(rank), bsp.parameters(rank));
        }
    }
}

#[test]
fn every_step_with_momentum_and_decay_is_bsp_up_to_rounding() {
    for averages_memory in [false, true] {
        for is_nesterov in [false, true] {
            let optimiser = Sgd { weight_decay: 0.01, is_nesterov, ..Sgd::default() }.into();
            let mut random = fastrand::Rng::with_seed(2);
            let start = random_list(&mut random);
            let config = LocalSgdConfig { every: 1, averages_memory };
            let mut local = lockstep(config, with(optimiser), 3, &start);
            let mut bsp = Lockstep::new(&with(optimiser), 3, &start).unwrap();
            for _ in 0..20 {
                let gradients = lists(&mut random, 3);
                local.step(&gradients, 0.05).unwrap();
                bsp.step(&gradients, 0.05).unwrap();
                assert_near(&local.parameters(1).concat(), &bsp.parameters(1).concat());
            }
        }
    }
}

#[test]
fn a_drain_leaves_the_mean_on_all_ranks_and_one_memory() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let optimiser = optimisers()[seed as usize % 3];
        let ranks = 1 + seed as u32 % 4;
        let config = LocalSgdConfig { every: random.u64(1..5), averages_memory: random.bool() };
        let start = random_list(&mut random);
        let mut local = lockstep(config, with(optimiser), ranks, &start);
        for _ in 0..random.usize(1..9) {
            local.step(&lists(&mut random, ranks), 0.05).unwrap();
            assert!(local.model(0).staleness() <= config.staleness_bound());
        }
        let before = mean(ranks, |rank| local.parameters(rank).concat());
        local.drain().unwrap();
        assert_near(&local.parameters(0).concat(), &before);
        assert_eq!(local.model(0).staleness(), 0);
        let drained = bits(&local.parameters(0).concat());
        // Nothing has happened since: not even rounding may.
        local.drain().unwrap();
        let memory = local.model_mut(0).take_memory().unwrap();
        for rank in 0..ranks as usize {
            assert_eq!(bits(&local.parameters(rank).concat()), drained);
            if rank > 0 {
                assert_eq!(local.model_mut(rank).take_memory().unwrap(), memory);
            }
        }
    }
}

#[test]
fn each_rank_clips_its_own_gradient() {
    let config = LocalSgdConfig { every: 2, averages_memory: false };
    let session = SessionConfig { clip_norm: Some(1.0), ..with(plain()) };
    let mut local = lockstep(config, session, 2, &vec![vec![0.0], vec![0.0]]);
    let gradient = |x: f32, y: f32| vec![vec![x], vec![y]];
    local.step(&[gradient(3.0, 4.0), gradient(0.5, 0.0)], 1.0).unwrap();
    assert_near(&local.parameters(0).concat(), &[-0.6, -0.8]);
    assert_near(&local.parameters(1).concat(), &[-0.5, 0.0]);
}

/// Each rank pulls towards a point of its own: the mean of the points is where all must end.
#[test]
fn a_quadratic_problem_converges() {
    let mut random = fastrand::Rng::with_seed(4);
    let points = lists(&mut random, 4);
    let optimiser = Sgd { momentum: 0.5, ..Sgd::default() }.into();
    let mut local = lockstep(LocalSgdConfig::default(), with(optimiser), 4, &points[0]);
    for _ in 0..200 {
        let gradient = |rank: usize| -> TensorList {
            let pairs = local.parameters(rank).iter().zip(&points[rank]);
            pairs.map(|(w, c)| w.iter().zip(c).map(|(w, c)| w - c).collect()).collect()
        };
        let gradients: Vec<TensorList> = (0..4).map(gradient).collect();
        local.step(&gradients, 0.02).unwrap();
    }
    local.drain().unwrap();
    let target = mean(4, |rank| points[rank].concat());
    for (found, expected) in local.parameters(2).concat().iter().zip(&target) {
        assert!((found - expected).abs() < 1e-2, "{found} {expected}");
    }
}

/// Comparisons that fall between two averages wait for the next, and fail where ranks differ.
#[test]
fn replicas_are_compared_after_averages_only() {
    let job = Job::new(0, 2, &SessionConfig { check_every: 3, ..with(plain()) });
    let config = LocalSgdConfig { every: 4, averages_memory: false };
    let mut model = LocalSgd::new(job, config, Memory::new(&job.optimiser, 1));
    let mut checked = Vec::new();
    let (mut w, gradient) = ([0.0_f32], [1.0_f32]);
    let mut parameters = [&mut w[..]];
    let gradients = [&gradient[..]];
    let mut tensors = Tensors { parameters: &mut parameters, gradients: &gradients };
    for step in 1..=16 {
        let ended =
            super::super::StepEnded { learning_rate: 1.0, loss: 0.0, compute: Default::default() };
        model.handle_event(Event::StepEnded(ended), &mut tensors);
        while let Some(action) = model.poll_action() {
            match action {
                Action::Reduce { id, data } => {
                    model.handle_event(
                        Event::Reduced { id, data, timing: Default::default() },
                        &mut tensors,
                    );
                }
                Action::Gather { words } => {
                    checked.push(step);
                    let words = vec![words[0], if step == 16 { !words[0] } else { words[0] }];
                    model.handle_event(Event::Gathered { words }, &mut tensors);
                }
                Action::Fail(Error::ReplicasDiffer { ranks, .. }) => assert_eq!(ranks, [1]),
                action => panic!("{action:?}"),
            }
        }
    }
    // Due at 3, 6, 9, 12 and 15.
    assert_eq!(checked, [4, 8, 12, 16]);
}

#[test]
fn what_is_not_finite_goes_through() {
    for value in [f32::NAN, f32::INFINITY] {
        let config = LocalSgdConfig { every: 2, averages_memory: true };
        let session = SessionConfig { clip_norm: Some(1.0), ..with(Adam::default().into()) };
        let mut local = lockstep(config, session, 2, &vec![vec![0.0; 3]]);
        for _ in 0..4 {
            local.step(&[vec![vec![value; 3]], vec![vec![1.0; 3]]], 0.1).unwrap();
        }
        local.drain().unwrap();
        assert!(local.parameters(1).concat().iter().all(|w| !w.is_finite()));
    }
}

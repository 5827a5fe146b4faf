//! Tests of BSP's buckets: over exact sums, and each rule by hand.
//!
//! Owns nothing. Called by the test runner.

use std::collections::VecDeque;
use std::time::Duration;

use super::replan::{Replan, Stage};
use super::*;
use crate::bucket::rule::{ByteCaps, PlanConfig, Planner};
use crate::config::{ModelKind, SessionConfig};
use crate::layout::{Granularity, TensorSpec};
use crate::lockstep::{Costs, Lockstep, TensorList};
use crate::model::Lane;
use crate::optimiser::Sgd;

const LENS: [usize; 6] = [40, 3, 0, 100, 25, 7];
const RANKS: usize = 3;

fn list(random: &mut fastrand::Rng) -> TensorList {
    LENS.map(|len| (0..len).map(|_| random.f32() - 0.5).collect()).to_vec()
}

fn layout(lens: &[usize]) -> Layout {
    let specs: Vec<TensorSpec> =
        lens.iter().map(|len| TensorSpec::new(len.to_string(), *len)).collect();
    Layout::new(&specs, Granularity::Tensors)
}

fn session(model: ModelKind, clip_norm: Option<f32>) -> SessionConfig {
    let optimiser = Sgd { momentum: 0.9, ..Sgd::default() }.into();
    SessionConfig { model, optimiser, clip_norm, check_every: 1, ..SessionConfig::default() }
}

fn caps(cap_bytes: u64) -> BucketRule {
    BucketRule::Bytes(ByteCaps { first_bytes: 8, cap_bytes, least_buckets: 1 })
}

fn planned(planner: Planner) -> BucketRule {
    let before = ByteCaps::default();
    BucketRule::Planned(PlanConfig { before, warmup_steps: 2, measured_steps: 4, planner })
}

fn rules() -> [BucketRule; 5] {
    [caps(1), caps(200), caps(1 << 30), planned(Planner::Best), planned(Planner::Greedy)]
}

/// Some tensors in any order; not the same on every rank.
fn some_order(random: &mut fastrand::Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..LENS.len()).filter(|_| random.u8(0..4) > 0).collect();
    random.shuffle(&mut order);
    order
}

/// The parameters after each of some steps, which are the same on all ranks.
fn run(config: &SessionConfig, tells: bool, seed: u64) -> Vec<TensorList> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut orders = fastrand::Rng::with_seed(seed + 1);
    let mut ranks = Lockstep::new(config, RANKS as u32, &list(&mut random)).unwrap();
    ranks.set_costs(Costs { bandwidth: 1e6, ..Costs::default() });
    let mut all = Vec::new();
    for _ in 0..10 {
        let gradients: Vec<TensorList> = (0..RANKS).map(|_| list(&mut random)).collect();
        let order = |_| if tells { some_order(&mut orders) } else { Vec::new() };
        let orders: Vec<Vec<usize>> = (0..RANKS).map(order).collect();
        ranks.step_with_ready(&gradients, &orders, 0.1).unwrap();
        (1..RANKS).for_each(|rank| assert_eq!(ranks.parameters(rank), ranks.parameters(0)));
        all.push(ranks.parameters(0).clone());
    }
    ranks.drain().unwrap();
    assert_eq!(ranks.parameters(0), all.last().unwrap());
    all
}

#[test]
fn buckets_change_no_bit() {
    for (seed, clip_norm) in [(1, None), (2, Some(0.7)), (3, Some(0.01)), (4, None)] {
        let whole = run(&session(ModelKind::Bsp, clip_norm), false, seed);
        for rule in rules() {
            let config = session(ModelKind::BspBuckets(rule), clip_norm);
            for tells in [false, true] {
                assert_eq!(run(&config, tells, seed), whole, "{rule:?}, {tells}");
            }
        }
    }
    let clipped = run(&session(ModelKind::Bsp, Some(0.7)), false, 1);
    assert_ne!(clipped, run(&session(ModelKind::Bsp, None), false, 1), "clipping does something");
}

fn started(actions: &mut VecDeque<Action>) -> Vec<(u64, Vec<f32>)> {
    let started = |action| match action {
        Action::StartReduce { id, data, lane: Lane::Urgent } => (id, data),
        other => panic!("{other:?}"),
    };
    actions.drain(..).map(started).collect()
}

#[test]
fn a_bucket_starts_when_it_is_full_and_those_before_it_have_started() {
    // Buckets {4, 3}, {2, 1}, {0}: of 4 elements or more.
    let mut buckets = Bucketing::new(
        BucketRule::Bytes(ByteCaps { first_bytes: 16, cap_bytes: 16, least_buckets: 1 }),
        &layout(&[5, 3, 1, 2, 2]),
    );
    assert_eq!(buckets.plan(), [vec![4, 3], vec![2, 1], vec![0]]);
    let mut actions = VecDeque::new();
    let mut add = |tensor: usize, gradient: &[f32]| {
        buckets.add(tensor, gradient, Duration::ZERO, &mut actions);
        started(&mut actions)
    };
    assert!(add(1, &[1.0, 2.0, 3.0]).is_empty());
    assert!(add(2, &[4.0]).is_empty(), "the second waits for the first");
    assert!(add(4, &[5.0, 6.0]).is_empty());
    let both = [(0, vec![5.0, 6.0, 7.0, 8.0]), (1, vec![4.0, 1.0, 2.0, 3.0])];
    assert_eq!(add(3, &[7.0, 8.0]), both);
    // What was told counts, not what the step is given.
    let rest = [&[9.0; 5][..], &[0.0; 3], &[0.0], &[0.0; 2], &[0.0; 2]];
    buckets.end_step(&rest, Duration::ZERO, &mut actions);
    let waits = actions.split_off(1);
    assert_eq!(started(&mut actions), [(2, vec![9.0; 5])]);
    let ids: Vec<String> = waits.iter().map(|action| format!("{action:?}")).collect();
    assert_eq!(ids, ["Wait { id: 0 }", "Wait { id: 1 }", "Wait { id: 2 }"]);
    for (id, data, is_last) in
        [(0, vec![1.0, 2.0, 3.0, 4.0], false), (1, vec![5.0; 4], false), (2, vec![0.5; 5], true)]
    {
        assert_eq!(buckets.reduced(id, data, Duration::ZERO), is_last);
    }
    let mut flat = Vec::new();
    assert_eq!(buckets.finish_step(&mut flat), None);
    assert_eq!(flat, [0.5, 0.5, 0.5, 0.5, 0.5, 5.0, 5.0, 5.0, 5.0, 3.0, 4.0, 1.0, 2.0]);
    // The next step's reductions have other names.
    buckets.add(4, &[0.0; 2], Duration::ZERO, &mut actions);
    buckets.add(3, &[0.0; 2], Duration::ZERO, &mut actions);
    assert_eq!(started(&mut actions)[0].0, 3);
}

#[test]
#[should_panic(expected = "tensor 1 is ready twice")]
fn a_tensor_is_ready_once_a_step() {
    let mut buckets = Bucketing::new(caps(100), &layout(&[2, 2]));
    let mut actions = VecDeque::new();
    buckets.add(1, &[0.0; 2], Duration::ZERO, &mut actions);
    buckets.add(1, &[0.0; 2], Duration::ZERO, &mut actions);
}

#[test]
fn nothing_to_reduce_is_a_step_too() {
    for rule in rules() {
        let config = session(ModelKind::BspBuckets(rule), None);
        let mut none = Lockstep::new(&config, 2, &Vec::new()).unwrap();
        for _ in 0..12 {
            none.step(&[Vec::new(), Vec::new()], 0.1).unwrap();
        }
        let start: TensorList = vec![vec![], vec![]];
        let mut ranks = Lockstep::new(&config, 2, &start).unwrap();
        for _ in 0..8 {
            let gradients = [start.clone(), start.clone()];
            ranks.step_with_ready(&gradients, &[vec![1], vec![0, 1]], 0.1).unwrap();
        }
    }
}

#[test]
fn numbers_that_are_none_pass_through() {
    let config = session(ModelKind::BspBuckets(planned(Planner::Best)), Some(1.0));
    let mut ranks = Lockstep::new(&config, 2, &vec![vec![1.0; 4], vec![1.0; 4]]).unwrap();
    let bad = vec![vec![f32::NAN; 4], vec![f32::INFINITY; 4]];
    for _ in 0..8 {
        ranks.step_with_ready(&[bad.clone(), bad.clone()], &[vec![1], vec![]], 0.1).unwrap();
    }
    assert!(ranks.parameters(0).iter().flatten().all(|x| !x.is_finite()));
}

/// Two ranks, tensors of 8000, 0, 8000 and 16000 bytes. Ready: the last of both counts.
#[test]
fn a_plan_by_hand() {
    let BucketRule::Planned(config) = planned(Planner::Best) else { panic!() };
    let config = PlanConfig { warmup_steps: 0, measured_steps: 2, ..config };
    let mut replan = Replan::new(BucketRule::Planned(config), 4).unwrap();
    let ms = Duration::from_millis;
    let sizes = [8000, 0, 8000, 16_000];
    assert_eq!(replan.stage(), Stage::Grown);
    for (tensor, time) in [(3, 10), (2, 12), (1, 13), (0, 50)] {
        replan.ready(Stage::Grown, tensor, ms(time));
    }
    // Grown: 16000 bytes, then 16000: 2 ms + 1 ms per 8000 bytes.
    replan.reduced(Stage::Grown, 0, ms(4));
    replan.reduced(Stage::Grown, 1, ms(9));
    assert_eq!(replan.end_step(), None);
    assert_eq!(replan.stage(), Stage::Whole);
    for (tensor, time) in [(3, 12), (2, 14), (1, 15), (0, 52)] {
        replan.ready(Stage::Whole, tensor, ms(time));
    }
    replan.reduced(Stage::Whole, 0, ms(6));
    let words = replan.end_step().unwrap();
    let in_ns = |ms: [u64; 7]| ms.map(|ms| ms * 1_000_000);
    assert_eq!(words, in_ns([51, 14, 13, 11, 4, 9, 6]));
    assert_eq!(replan.stage(), Stage::Settled);
    // The other rank is slow with tensor 3 and joins the second reduction last.
    let all = [words, in_ns([40, 0, 13, 20, 5, 4, 30]).to_vec()].concat();
    let (order, buckets) = replan.plan(&all, &sizes).unwrap();
    // Ready at 13 (tensor 2), 20 (tensor 3), 51 (tensor 0); reduced at 16, 24, 54.
    assert_eq!(order, [2, 3, 0]);
    assert_eq!(buckets, [0..1, 1..2, 2..3]);
    // Reductions of one size tell nothing of the cost of a byte.
    assert_eq!(replan.plan(&all, &[0, 0, 0, 0]), None);
}

#[test]
fn every_rank_has_the_same_plan_which_the_times_made() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let rule = planned(Planner::Best);
        let config = session(ModelKind::BspBuckets(rule), None);
        let start = list(&mut random);
        let mut ranks = Lockstep::with_models(&config, RANKS as u32, &start, |job, _| {
            let layout = layout(&LENS);
            Bsp::with_buckets(job, Memory::new(&config.optimiser, layout.len()), rule, &layout)
        });
        ranks.set_costs(Costs { bandwidth: 1e5, ..Costs::default() });
        let plan = |ranks: &Lockstep<Bsp>, rank| ranks.model(rank).buckets.as_ref().unwrap().plan();
        let before = plan(&ranks, 0);
        for _ in 0..7 {
            let gradients: Vec<TensorList> = (0..RANKS).map(|_| list(&mut random)).collect();
            let orders: Vec<Vec<usize>> = (0..RANKS).map(|_| some_order(&mut random)).collect();
            ranks.step_with_ready(&gradients, &orders, 0.1).unwrap();
        }
        let found = plan(&ranks, 0);
        (1..RANKS).for_each(|rank| assert_eq!(plan(&ranks, rank), found));
        assert_ne!(found, before, "the times count");
        let mut tensors = found.concat();
        tensors.sort_unstable();
        assert_eq!(tensors, [0, 1, 3, 4, 5], "each tensor once, but for the empty one");
    }
}

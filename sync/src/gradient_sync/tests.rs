//! The split of gradients over several ranks, with exact averages in memory.

use super::GradientSync;
use super::config::{DeferConfig, GradientModel, GradientSyncConfig};
use super::deferral::Deferral;
use crate::comm::testing::threads;
use crate::error::Error;
use crate::layout::{Granularity, Layout, TensorSpec};

const LENS: [usize; 4] = [40, 3, 0, 21];
const RANKS: usize = 4;

fn deferral(share: f64, min_deferred_len: usize) -> Deferral {
    let specs = LENS.map(|len| TensorSpec::new("t", len));
    let granularity = Granularity::Slices { max_bytes: 32 };
    let config = DeferConfig { share, min_deferred_len, granularity };
    Deferral::new(Layout::new(&specs, granularity), &config)
}

/// Multiples of 1/16 below 1: sums of few of them, and averages over four, are exact.
fn list(seed: u64) -> Vec<Vec<f32>> {
    let mut random = fastrand::Rng::with_seed(seed);
    LENS.map(|len| (0..len).map(|_| random.i32(-16..16) as f32 / 16.0).collect()).to_vec()
}

fn views(list: &mut [Vec<f32>]) -> Vec<&mut [f32]> {
    list.iter_mut().map(Vec::as_mut_slice).collect()
}

fn average(all: &[Vec<f32>]) -> Vec<f32> {
    let sum = |at: usize| all.iter().map(|own| own[at]).sum::<f32>();
    (0..all[0].len()).map(|at| sum(at) / all.len() as f32).collect()
}

/// All ranks; what each was given so far, and what is under way.
struct World {
    ranks: Vec<Deferral>,
    under_way: Vec<Vec<f32>>,
}

impl World {
    fn new(share: f64, min_len: usize) -> Self {
        let ranks = (0..RANKS).map(|_| deferral(share, min_len)).collect();
        Self { ranks, under_way: Vec::new() }
    }

    fn merge(&mut self) {
        if !self.under_way.is_empty() {
            let average = average(&self.under_way);
            self.ranks.iter_mut().for_each(|rank| rank.merge(&average));
            self.under_way.clear();
        }
    }

    /// Makes of the ranks' gradients what they are given.
    fn step(&mut self, gradients: &mut [Vec<Vec<f32>>]) {
        self.merge();
        let mut important = Vec::new();
        for (rank, gradients) in self.ranks.iter_mut().zip(gradients.iter_mut()) {
            let (mut now, mut later) = (Vec::new(), Vec::new());
            rank.split(&views(gradients), &mut now, &mut later);
            important.push(now);
            self.under_way.push(later);
        }
        let important = average(&important);
        for (rank, gradients) in self.ranks.iter_mut().zip(gradients) {
            rank.finish(&important, &mut views(gradients));
        }
        if self.under_way[0].is_empty() {
            self.under_way.clear();
        }
    }

    fn drain(&mut self) -> Vec<Vec<Vec<f32>>> {
        self.merge();
        let settle = |rank: &mut Deferral| {
            let mut given = LENS.map(|len| vec![f32::NAN; len]).to_vec();
            rank.settle(&mut views(&mut given));
            given
        };
        self.ranks.iter_mut().map(settle).collect()
    }
}

fn add(sums: &mut [f32], list: &[Vec<f32>]) {
    sums.iter_mut().zip(list.concat()).for_each(|(sum, x)| *sum += x);
}

#[test]
fn after_a_drain_each_rank_was_given_the_sum_of_all_averages() {
    for share in [0.0, 0.3, 0.7, 1.0] {
        let mut world = World::new(share, 0);
        let mut expected = vec![0.0; 64];
        let mut given = vec![vec![0.0; 64]; RANKS];
        let mut deferred = 0;
        for step in 0..9 {
            let mut gradients: Vec<_> = (0..RANKS as u64).map(|r| list(100 * r + step)).collect();
            let flat: Vec<Vec<f32>> = gradients.iter().map(|own| own.concat()).collect();
            add(&mut expected, &[average(&flat)]);
            world.step(&mut gradients);
            deferred += world.ranks[0].bytes().1;
            given.iter_mut().zip(&gradients).for_each(|(sum, own)| add(sum, own));
            if step == 4 {
                let rest = world.drain();
                given.iter_mut().zip(&rest).for_each(|(sum, own)| add(sum, own));
                given.iter().for_each(|sum| assert_eq!(*sum, expected, "{share}"));
            }
        }
        let rest = world.drain();
        given.iter_mut().zip(&rest).for_each(|(sum, own)| add(sum, own));
        given.iter().for_each(|sum| assert_eq!(*sum, expected, "{share}"));
        assert!(world.drain().concat().concat().iter().all(|x| *x == 0.0));
        assert_eq!(deferred > 0, share > 0.0);
    }
}

#[test]
fn each_step_gives_what_the_split_says() {
    let mut world = World::new(1.0, 8);
    let gradients =
        |step: u64| -> Vec<_> { (0..RANKS as u64).map(|r| list(50 * r + step)).collect() };
    let average_of = |step| {
        let flat: Vec<Vec<f32>> = gradients(step).iter().map(|own| own.concat()).collect();
        average(&flat)
    };
    let mut first = gradients(0);
    world.step(&mut first);
    // Nothing is known of the first step, so all of it is important.
    first.iter().for_each(|own| assert_eq!(own.concat(), average_of(0)));
    assert_eq!(world.ranks[0].bytes(), (4 * 64, 0));
    let mut second = gradients(1);
    world.step(&mut second);
    assert_eq!(world.ranks[0].bytes(), (4 * 3, 4 * 61));
    for (own, given) in gradients(1).iter().zip(&second) {
        assert_eq!((&given[0], &given[3]), (&own[0], &own[3]));
        assert_eq!(given[1], average_of(1)[40..43]);
    }
    let mut third = gradients(2);
    world.step(&mut third);
    for (rank, given) in third.iter().enumerate() {
        let (now, before) = (&gradients(2)[rank], &gradients(1)[rank]);
        for at in 0..40 {
            let expected = now[0][at] + (average_of(1)[at] - before[0][at]);
            assert_eq!(given[0][at], expected);
        }
        assert_eq!(given[1], average_of(2)[40..43]);
    }
}

/// A slice whose average is large becomes important, and is given what it is owed with it.
#[test]
fn what_was_deferred_may_be_important_next() {
    let mut world = World::new(0.7, 0);
    let mut constant = |large: usize, rank: usize| {
        let mut all = vec![LENS.map(|len| vec![0.0; len]).to_vec(); RANKS];
        for (number, own) in all.iter_mut().enumerate() {
            own[0].fill(if large == 0 { 8.0 } else { 1.0 });
            own[3].fill(if large == 3 { 8.0 } else { 1.0 });
            own[0][0] += number as f32;
        }
        world.step(&mut all);
        all.swap_remove(rank)
    };
    // Average of what differs: 1.5. Slices of tensor 0 are deferred from the second step on.
    assert_eq!(constant(3, 1)[0][0], 2.5);
    assert_eq!(constant(0, 1)[0][0], 8.0 + 1.0);
    // Large in the last average, so important now: the average, and what 9 lacked of 9.5.
    assert_eq!(constant(0, 1)[0][0], 9.5 + 0.5);
    assert_eq!(constant(0, 1)[0][0], 9.5);
}

#[test]
fn settings_that_cannot_work_are_named() {
    let check = |model| GradientSyncConfig { model, check_every: 0 }.validate();
    check(GradientModel::Bsp).expect("valid");
    check(GradientModel::osp(1.0)).expect("valid");
    for share in [-0.1, 1.1, f64::NAN] {
        let error = check(GradientModel::osp(share)).expect_err("no share").to_string();
        assert!(error.contains("share"), "{error}");
    }
    let granularity = Granularity::Slices { max_bytes: 3 };
    let error = check(GradientModel::Osp(DeferConfig { granularity, ..DeferConfig::new(0.5) }));
    assert!(error.expect_err("no slice").to_string().contains("one element"));
}

/// What the broken memory of one rank does to a score, no exchange would notice for long.
#[test]
fn ranks_that_weigh_a_slice_differently_are_found() {
    let specs = LENS.map(|len| TensorSpec::new("t", len));
    let config = GradientSyncConfig { model: GradientModel::osp(0.5), check_every: 2 };
    let errors = threads(
        3,
        |_| {},
        |world| {
            let mut sync = GradientSync::new(&world, &specs, config).expect("started");
            let mut gradients = list(u64::from(world.rank()));
            sync.synchronise(&mut views(&mut gradients)).expect("a step");
            sync.synchronise(&mut views(&mut gradients)).expect("a good check");
            sync.synchronise(&mut views(&mut gradients)).expect("a step");
            if world.rank() == 1 {
                sync.deferral.break_score();
            }
            sync.synchronise(&mut views(&mut gradients)).expect_err("another score")
        },
    );
    for error in errors {
        let Error::ReplicasDiffer { step, ranks } = &error else { panic!("{error}") };
        assert_eq!((*step, ranks.as_slice()), (4, &[1][..]));
    }
}

//! Proofs of every plan that [`super::tuning::plan`] can give, formulas, and runs on real data.

mod formulas;
mod matrix;
mod predicted;
mod real_data;
mod tuning;

use super::check::{Flaw, check};
use super::tuning::{is_canonical, is_supported, plan};
use super::{Algorithm, Plan, Shape, Topology};
use crate::call::CollectiveKind;
use alloc::vec;
use alloc::vec::Vec;

/// All pairs that have plans.
pub(super) fn pairs() -> impl Iterator<Item = (CollectiveKind, Algorithm)> {
    let all = |kind| Algorithm::ALL.into_iter().map(move |algorithm| (kind, algorithm));
    let pairs = CollectiveKind::ALL.into_iter().flat_map(all);
    pairs.filter(|(kind, algorithm)| is_supported(*kind, *algorithm))
}

/// The plans of all ranks; `shapes[r]` is rank `r`'s, or the only one is everybody's.
pub(super) fn plans(
    kind: CollectiveKind,
    algorithm: Algorithm,
    topology: &Topology,
    shapes: &[Shape],
) -> Vec<Plan> {
    let shape = |rank: u32| shapes.get(rank as usize).unwrap_or(&shapes[0]);
    let plan = |rank| plan(kind, algorithm, rank, topology, shape(rank));
    (0..topology.world_size()).map(|rank| plan(rank).expect("the pair has plans")).collect()
}

fn prove(
    kind: CollectiveKind,
    algorithm: Algorithm,
    topology: &Topology,
    shape: &Shape,
) -> Result<(), Flaw> {
    let shapes = vec![shape.clone(); topology.world_size() as usize];
    check(kind, &plans(kind, algorithm, topology, &shapes), &shapes)
}

/// A world on several hosts: in turns, in uneven groups, or each rank on its own.
fn topologies(world_size: u32) -> Vec<Topology> {
    let mut rng = fastrand::Rng::with_seed(world_size.into());
    let hosts = world_size.div_ceil(4);
    let mut uneven: Vec<u32> = (0..world_size).map(|_| rng.u32(..hosts)).collect();
    uneven.sort_unstable();
    let mut mixed = uneven.clone();
    rng.shuffle(&mut mixed);
    vec![
        Topology::single_host(world_size),
        Topology::new((0..world_size).map(|rank| rank % hosts).collect()),
        Topology::new(uneven),
        Topology::new(mixed),
        Topology::new((0..world_size).collect()),
    ]
}

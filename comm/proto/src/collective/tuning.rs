//! Which algorithm, and its plan: the one entry by which the engine and the simulator get any.
//!
//! Owns the table of what exists and the choice, which is a pure function of values that all ranks
//! have alike, so that all choose the same. Measures nothing: [`LinkCost`] comes from the caller.

pub use super::cost::{Link, LinkCost, cost};

use super::blocks::Group;
use super::plan::Plan;
use super::shape::{Shape, has_root};
use super::topology::Topology;
use super::{
    Algorithm, direct, halving_doubling, hierarchical, pairwise, recursive_doubling, ring, tree,
};
use crate::call::CollectiveKind;
use crate::id::Rank;
use alloc::vec::Vec;
use core::fmt;

/// The plan of one rank for one call.
///
/// `None` if there is no such plan: see [`is_supported`], and [`Shape::extent`] for shapes that do
/// not fit the kind or the world.
pub fn plan(
    kind: CollectiveKind,
    algorithm: Algorithm,
    rank: Rank,
    topology: &Topology,
    shape: &Shape,
) -> Option<Plan> {
    use Algorithm as A;
    use CollectiveKind as K;
    let world_size = topology.world_size();
    shape.extent(kind, rank, world_size)?;
    let group = topology.group(rank);
    let root = if has_root(kind) { group.index_of(shape.root)? } else { 0 };
    let blocks = || shape.blocks(world_size);
    Some(match (kind, algorithm) {
        (K::AllGather, A::Direct) => direct::all_gather(rank, world_size, &blocks()?),
        (K::AllGather, A::RecursiveDoubling) => {
            recursive_doubling::all_gather(rank, world_size, &blocks()?)
        }
        (K::AllGather, A::Ring) => ring::all_gather(&group, &blocks()?),
        (K::AllReduce, _) => all_reduce(algorithm, topology, &group, shape.vector()?)?,
        (K::AllToAll, A::Direct | A::Ring) => {
            let (send, recv) = shape.exchanged(world_size)?;
            match algorithm {
                A::Direct => direct::all_to_all(rank, world_size, &send, &recv),
                _ => pairwise::all_to_all(rank, world_size, &send, &recv),
            }
        }
        (K::Barrier, A::Direct) => direct::barrier(rank, world_size),
        (K::Barrier, A::RecursiveDoubling) => recursive_doubling::barrier(rank, world_size),
        (K::Broadcast, A::Direct) => {
            direct::broadcast(rank, world_size, shape.root, shape.vector()?)
        }
        (K::Broadcast, A::Ring) => ring::broadcast(&group, root, shape.vector()?),
        (K::Broadcast, A::Tree) => tree::broadcast(&group, root, shape.vector()?),
        (K::Gather, A::Direct) => direct::gather(rank, world_size, shape.root, &blocks()?),
        (K::Reduce, A::Direct) => direct::reduce(rank, world_size, shape.root, shape.vector()?),
        (K::Reduce, A::Ring) => ring::reduce(&group, root, shape.vector()?),
        (K::Reduce, A::Tree) => tree::reduce(&group, root, shape.vector()?),
        (K::ReduceScatter, A::Direct) => direct::reduce_scatter(rank, world_size, &blocks()?),
        (K::ReduceScatter, A::Ring) => ring::reduce_scatter(&group, &blocks()?),
        (K::Scatter, A::Direct) => direct::scatter(rank, world_size, shape.root, &blocks()?),
        _ => return None,
    })
}

/// Whether a kind has an algorithm that can be run from a plan.
///
/// [`Algorithm::Node`] has no plans: its ranks read one another's memory. `Ring` of `all_to_all`
/// is the exchange with one partner at a time of [`pairwise`].
pub fn is_supported(kind: CollectiveKind, algorithm: Algorithm) -> bool {
    use Algorithm as A;
    use CollectiveKind as K;
    match kind {
        K::AllGather => matches!(algorithm, A::Direct | A::RecursiveDoubling | A::Ring),
        K::AllReduce => algorithm != A::Node,
        K::AllToAll | K::ReduceScatter => matches!(algorithm, A::Direct | A::Ring),
        K::Barrier => matches!(algorithm, A::Direct | A::RecursiveDoubling),
        K::Broadcast | K::Reduce => matches!(algorithm, A::Direct | A::Ring | A::Tree),
        K::Gather | K::Scatter => algorithm == A::Direct,
        K::SendRecv | K::Split => false,
    }
}

/// Whether an algorithm gives *canonical* bits whatever the type and the operation: those of one
/// fold of all ranks' contributions in the order of ranks, by the kernels' `reduce_many`.
///
/// [`Algorithm::Direct`] and [`Algorithm::Node`] are such folds. Two contributions are folded once,
/// whatever the plan, and have the same bits in either order. What reduces nothing is canonical
/// anyhow.
pub fn is_canonical(kind: CollectiveKind, algorithm: Algorithm, world_size: u32) -> bool {
    let is_one_fold = matches!(algorithm, Algorithm::Direct | Algorithm::Node);
    is_one_fold || world_size <= 2 || !kind.reduces()
}

/// What a caller asks of the choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    /// Wins if the kind has it.
    pub forced: Option<Algorithm>,
    /// Only what [`is_canonical`].
    pub canonical: bool,
}

/// What was chosen, and why nothing else was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// To be run.
    pub algorithm: Algorithm,
    /// How long it should take.
    pub predicted_ns: u64,
    /// All others, in the order of [`Algorithm::ALL`].
    pub rejected: Vec<(Algorithm, Reason)>,
}

/// Why an algorithm was not chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Its bits would depend on more than the contributions and the order of ranks.
    NotCanonical {
        /// How long it should take.
        predicted_ns: u64,
    },
    /// The caller asked for another.
    NotForced {
        /// How long it should take.
        predicted_ns: u64,
    },
    /// There is no plan for this kind.
    NotSupported,
    /// It is for several hosts with several ranks each.
    OneLevel,
    /// Another should be faster, or as fast and listed earlier.
    Slower {
        /// How long it should take.
        predicted_ns: u64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotCanonical { predicted_ns } => {
                write!(f, "not canonical (predicted {predicted_ns} ns)")
            }
            Self::NotForced { predicted_ns } => {
                write!(f, "another was asked for (predicted {predicted_ns} ns)")
            }
            Self::NotSupported => f.write_str("not made for this collective"),
            Self::OneLevel => f.write_str("needs several hosts with several ranks each"),
            Self::Slower { predicted_ns } => write!(f, "slower (predicted {predicted_ns} ns)"),
        }
    }
}

/// The algorithm with the least predicted time; ties go to the one listed earlier in
/// [`Algorithm::ALL`]. A forced one wins if the kind has it and it gives the bits that are asked
/// for, and is ignored, with its reason in [`Choice::rejected`], if not.
///
/// `bytes` as for [`cost`]; it must be the same on all ranks. For `all_to_all_v`, whose ranks know
/// different counts, give the same constant everywhere.
///
/// # Panics
/// For send/recv and split, which no algorithm carries out.
pub fn choose(
    kind: CollectiveKind,
    bytes: u64,
    topology: &Topology,
    links: &LinkCost,
    demand: Demand,
) -> Choice {
    let is_right = |a| !demand.canonical || is_canonical(kind, a, topology.world_size());
    let forced = demand.forced.filter(|a| is_supported(kind, *a) && is_right(*a));
    let has_levels = topology.host_count() > 1 && topology.ranks_per_host_max() > 1;
    let fits = |algorithm| has_levels || algorithm != Algorithm::Hierarchical;
    let predict = |algorithm| cost(kind, algorithm, bytes, topology, links);
    let candidates = Algorithm::ALL.into_iter().filter(|algorithm| match forced {
        Some(forced) => *algorithm == forced,
        None => fits(*algorithm) && is_right(*algorithm),
    });
    let predicted = candidates.filter_map(|algorithm| Some((predict(algorithm)?, algorithm)));
    // Of equal elements, the first is the minimum; the order of codes is the order of `ALL`.
    let (predicted_ns, algorithm) = predicted.min().expect("every collective has an algorithm");
    let reason = |other| match predict(other) {
        None => Reason::NotSupported,
        Some(predicted_ns) if !is_right(other) => Reason::NotCanonical { predicted_ns },
        Some(predicted_ns) if forced.is_some() => Reason::NotForced { predicted_ns },
        Some(_) if !fits(other) => Reason::OneLevel,
        Some(predicted_ns) => Reason::Slower { predicted_ns },
    };
    let others = Algorithm::ALL.into_iter().filter(|other| *other != algorithm);
    let rejected = others.map(|other| (other, reason(other))).collect();
    Choice { algorithm, predicted_ns, rejected }
}

fn all_reduce(
    algorithm: Algorithm,
    topology: &Topology,
    group: &Group<'_>,
    count: u64,
) -> Option<Plan> {
    Some(match algorithm {
        Algorithm::Direct => direct::all_reduce(group.rank(), topology.world_size(), count),
        Algorithm::HalvingDoubling => halving_doubling::all_reduce(group, count),
        Algorithm::Hierarchical => hierarchical::all_reduce(group.rank(), topology.hosts(), count),
        Algorithm::Node => return None,
        Algorithm::RecursiveDoubling => recursive_doubling::all_reduce(group, count),
        Algorithm::Ring => ring::all_reduce(group, count),
        Algorithm::Tree => tree::all_reduce(group, count),
    })
}

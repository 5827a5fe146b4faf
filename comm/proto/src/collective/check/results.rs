//! Whether the outputs hold what the kind promises.

use super::values::Value;
use super::world::End;
use super::{Flaw, Job};
use crate::call::CollectiveKind;
use crate::collective::blocks::Blocks;
use crate::id::Rank;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Compares every element of every output with what it should hold.
pub(super) fn check(job: &Job<'_>, end: &End) -> Result<(), Flaw> {
    for rank in job.ranks() {
        match job.kind {
            CollectiveKind::Barrier => check_barrier(job, end, rank)?,
            CollectiveKind::AllReduce if rank > 0 => check_replica(job, end, rank)?,
            _ => check_output(job, end, rank)?,
        }
    }
    Ok(())
}

/// What an element should hold.
#[derive(Clone, Copy)]
enum Expected {
    /// One element of one rank.
    One(Rank, u64),
    /// The same element of every rank, reduced.
    Sum(u64),
}

fn check_barrier(job: &Job<'_>, end: &End, rank: Rank) -> Result<(), Flaw> {
    match job.ranks().find(|other| !end.has_heard(rank, *other)) {
        Some(missing) => Err(Flaw::NotSynchronised { rank, missing }),
        None => Ok(()),
    }
}

fn check_replica(job: &Job<'_>, end: &End, rank: Rank) -> Result<(), Flaw> {
    let mut pairs = (0..).zip(end.output(rank).iter().zip(end.output(0)));
    let Some((element, _)) = pairs.find(|(_, (ours, theirs))| ours != theirs) else {
        return Ok(());
    };
    check_output(job, end, rank)?;
    Err(Flaw::ReplicasDiffer { rank, element })
}

fn check_output(job: &Job<'_>, end: &End, rank: Rank) -> Result<(), Flaw> {
    let expected = expected(job, rank);
    debug_assert_eq!(expected.len(), end.output(rank).len());
    for ((element, value), expected) in (0..).zip(end.output(rank)).zip(expected) {
        check_element(job, end, rank, element, *value, expected)?;
    }
    Ok(())
}

fn check_element(
    job: &Job<'_>,
    end: &End,
    rank: Rank,
    element: u64,
    value: Value,
    expected: Expected,
) -> Result<(), Flaw> {
    let is_right = match expected {
        Expected::One(source, at) => end.values.contribution(value) == Some((source, at)),
        Expected::Sum(at) => end.values.is_each_rank_once(value, at),
    };
    if is_right {
        return Ok(());
    }
    if value == Value::UNDEFINED {
        return Err(Flaw::Unwritten { rank, element });
    }
    let wanted: BTreeMap<(Rank, u64), u64> = match expected {
        Expected::One(source, at) => BTreeMap::from([((source, at), 1)]),
        Expected::Sum(at) => job.ranks().map(|source| ((source, at), 1)).collect(),
    };
    let found = end.values.multiplicities(value);
    let times = |map: &BTreeMap<_, _>, key| map.get(key).copied().unwrap_or(0);
    let mut keys = found.keys().chain(wanted.keys());
    let wrong = keys.find(|key| times(&found, key) != times(&wanted, key));
    let &(source, source_element) = wrong.expect("the value is not the expected one");
    let times = times(&found, &(source, source_element));
    Err(Flaw::Contribution { rank, element, source, source_element, times })
}

/// What each element of a rank's output should hold.
fn expected(job: &Job<'_>, rank: Rank) -> Vec<Expected> {
    use CollectiveKind as K;
    let shape = &job.shapes[rank as usize];
    let world_size = job.world_size();
    let output = job.extents[rank as usize].output;
    let blocks = || shape.blocks(world_size).expect("the extent was made from it");
    match job.kind {
        K::AllReduce | K::Reduce => (0..output).map(Expected::Sum).collect(),
        K::Broadcast => (0..output).map(|at| Expected::One(shape.root, at)).collect(),
        K::ReduceScatter => {
            let first = blocks().offset(rank);
            (first..first + output).map(Expected::Sum).collect()
        }
        K::Scatter => {
            let first = blocks().offset(rank);
            (first..first + output).map(|at| Expected::One(shape.root, at)).collect()
        }
        K::AllGather => gathered(job, &blocks(), |_| 0),
        K::Gather if rank == shape.root => gathered(job, &blocks(), |_| 0),
        K::AllToAll => {
            let from = |source: Rank| {
                let exchanged = job.shapes[source as usize].exchanged(world_size);
                let (send, _) = exchanged.expect("the extent was made from it");
                send.offset(rank)
            };
            let (_, recv) = shape.exchanged(world_size).expect("the extent was made from it");
            gathered(job, &recv, from)
        }
        K::Barrier | K::Gather | K::SendRecv | K::Split => Vec::new(),
    }
}

/// One block per rank, taken from `first(source)` of each source.
fn gathered(job: &Job<'_>, blocks: &Blocks, first: impl Fn(Rank) -> u64) -> Vec<Expected> {
    let block = |source| {
        let first = first(source);
        (first..first + blocks.len(source)).map(move |at| Expected::One(source, at))
    };
    job.ranks().flat_map(block).collect()
}

//! All collectives, algorithms, world sizes and counts, proved.

use super::*;

const WORLD_SIZES: core::ops::RangeInclusive<u32> = 1..=33;

fn counts(world_size: u32) -> Vec<u64> {
    let world_size = u64::from(world_size);
    let mut counts = vec![0, 1, 2, 7, 33, 64, world_size - 1, world_size, world_size + 1];
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn roots(kind: CollectiveKind, world_size: u32) -> Vec<u32> {
    if !crate::collective::shape::has_root(kind) {
        return vec![0];
    }
    let mut roots = vec![0, 1, world_size / 2, world_size - 1];
    roots.retain(|root| *root < world_size);
    roots.sort_unstable();
    roots.dedup();
    roots
}

fn prove_all(kind: CollectiveKind) {
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| is_supported(kind, *algorithm)) {
        for world_size in WORLD_SIZES {
            let topology = Topology::single_host(world_size);
            for root in roots(kind, world_size) {
                for count in counts(world_size) {
                    let shape = Shape::uniform(count).with_root(root);
                    if let Err(flaw) = prove(kind, algorithm, &topology, &shape) {
                        panic!("{kind}, {algorithm}, {world_size} ranks, {shape:?}: {flaw}");
                    }
                }
            }
        }
    }
}

#[test]
fn all_gather() {
    prove_all(CollectiveKind::AllGather);
}

#[test]
fn all_reduce() {
    prove_all(CollectiveKind::AllReduce);
}

#[test]
fn all_to_all() {
    prove_all(CollectiveKind::AllToAll);
}

#[test]
fn barrier() {
    prove_all(CollectiveKind::Barrier);
}

#[test]
fn broadcast() {
    prove_all(CollectiveKind::Broadcast);
}

#[test]
fn gather() {
    prove_all(CollectiveKind::Gather);
}

#[test]
fn reduce() {
    prove_all(CollectiveKind::Reduce);
}

#[test]
fn reduce_scatter() {
    prove_all(CollectiveKind::ReduceScatter);
}

#[test]
fn scatter() {
    prove_all(CollectiveKind::Scatter);
}

#[test]
fn several_hosts() {
    for (kind, algorithm) in pairs() {
        for world_size in WORLD_SIZES {
            for topology in topologies(world_size) {
                let count = u64::from(world_size) + 2;
                for shape in [0, 1, count].map(Shape::uniform) {
                    let shape = shape.with_root(world_size / 2);
                    if let Err(flaw) = prove(kind, algorithm, &topology, &shape) {
                        panic!("{kind}, {algorithm}, {topology:?}, {shape:?}: {flaw}");
                    }
                }
            }
        }
    }
}

#[test]
fn uneven_counts() {
    let mut rng = fastrand::Rng::with_seed(4);
    // A third is empty.
    let mut draw =
        move |n: u32| -> Vec<u64> { (0..n).map(|_| rng.u64(0..15).saturating_sub(5)).collect() };
    for (kind, algorithm) in pairs() {
        for world_size in WORLD_SIZES {
            let topology = topologies(world_size).swap_remove(world_size as usize % 5);
            let shapes: Vec<Shape> = match kind {
                CollectiveKind::AllToAll => {
                    let sent: Vec<_> = (0..world_size).map(|_| draw(world_size)).collect();
                    let recv = |rank: usize| sent.iter().map(|sent| sent[rank]).collect();
                    (0..)
                        .zip(&sent)
                        .map(|(r, sent)| Shape::exchange(sent.clone(), recv(r)))
                        .collect()
                }
                CollectiveKind::AllGather
                | CollectiveKind::Gather
                | CollectiveKind::ReduceScatter
                | CollectiveKind::Scatter => {
                    let shape = Shape::per_rank(draw(world_size)).with_root(world_size / 3);
                    vec![shape; world_size as usize]
                }
                _ => continue,
            };
            let plans = plans(kind, algorithm, &topology, &shapes);
            if let Err(flaw) = check(kind, &plans, &shapes) {
                panic!("{kind}, {algorithm}, {shapes:?}: {flaw}");
            }
        }
    }
}

/// Which messages travel must not depend on how much is in them.
#[test]
fn steps_do_not_depend_on_counts() {
    let outline = |plan: &Plan| -> Vec<Vec<(u32, u32, bool)>> {
        let step = |step: &crate::collective::Step| match *step {
            crate::collective::Step::Recv { peer, tag, .. } => Some((peer, tag, false)),
            crate::collective::Step::Send { peer, tag, .. } => Some((peer, tag, true)),
            _ => None,
        };
        plan.rounds.iter().map(|round| round.steps.iter().filter_map(step).collect()).collect()
    };
    for (kind, algorithm) in pairs() {
        for world_size in WORLD_SIZES {
            for topology in topologies(world_size) {
                let of_count = |count| -> Vec<_> {
                    let shapes = [Shape::uniform(count)];
                    plans(kind, algorithm, &topology, &shapes).iter().map(outline).collect()
                };
                let empty = of_count(0);
                assert_eq!(empty, of_count(1), "{kind}, {algorithm}, {world_size}");
                assert_eq!(empty, of_count(1 << 33), "{kind}, {algorithm}, {world_size}");
            }
        }
    }
}

#[test]
fn what_is_not_supported_has_no_plan() {
    let topology = Topology::single_host(2);
    for kind in CollectiveKind::ALL {
        for algorithm in Algorithm::ALL {
            let plan = plan(kind, algorithm, 0, &topology, &Shape::uniform(1));
            assert_eq!(plan.is_some(), is_supported(kind, algorithm), "{kind}, {algorithm}");
        }
    }
    let shape = Shape::uniform(1);
    assert!(plan(CollectiveKind::AllReduce, Algorithm::Ring, 2, &topology, &shape).is_none());
    let shape = Shape::uniform(1).with_root(2);
    assert!(plan(CollectiveKind::Reduce, Algorithm::Tree, 0, &topology, &shape).is_none());
    let shape = Shape::per_rank(vec![1, 2, 3]);
    assert!(plan(CollectiveKind::Gather, Algorithm::Direct, 0, &topology, &shape).is_none());
}

/// Not given out by [`plan`]: `Ring` of `reduce_scatter` is the true ring.
#[test]
fn pairwise_reduce_scatter() {
    let mut rng = fastrand::Rng::with_seed(5);
    for world_size in WORLD_SIZES {
        let shape = Shape::per_rank((0..world_size).map(|_| rng.u64(..5)).collect());
        let blocks = shape.blocks(world_size).unwrap();
        let plan = |rank| crate::collective::pairwise::reduce_scatter(rank, world_size, &blocks);
        let plans: Vec<Plan> = (0..world_size).map(plan).collect();
        assert_eq!(plans.iter().map(|plan| plan.scratch_len).max(), Some(0));
        let shapes = vec![shape; world_size as usize];
        assert_eq!(check(CollectiveKind::ReduceScatter, &plans, &shapes), Ok(()));
    }
}

#[test]
fn a_large_world() {
    for (kind, algorithm) in pairs() {
        let topology = Topology::new((0..130).map(|rank| rank % 9).collect());
        let shape = Shape::uniform(3).with_root(129);
        let proof = prove(kind, algorithm, &topology, &shape);
        assert_eq!(proof, Ok(()), "{kind}, {algorithm}");
    }
}

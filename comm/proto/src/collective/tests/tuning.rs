//! The choice: what is taken where, and that it is the same everywhere.

use super::*;
use crate::collective::tuning::{Choice, Demand, LinkCost, Reason, choose, cost};
use CollectiveKind as K;
use alloc::format;
use alloc::string::String;

const SIZES: [u64; 5] = [0, 64, 8 << 10, 1 << 20, 64 << 20];

fn chosen(kind: K, bytes: u64, topology: &Topology) -> Choice {
    choose(kind, bytes, topology, &LinkCost::default(), Demand::default())
}

fn short(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::HalvingDoubling => "halving",
        Algorithm::RecursiveDoubling => "doubling",
        _ => algorithm.name(),
    }
}

/// Ranks on one host, or hosts times ranks of each; then the choice for each of [`SIZES`]. A change
/// here changes what users run: look at each line.
#[test]
fn golden_table() {
    let hosts =
        |count: u32, each: u32| Topology::new((0..count * each).map(|r| r / each).collect());
    let worlds = [
        ("2", hosts(1, 2)),
        ("8", hosts(1, 8)),
        ("5", hosts(1, 5)),
        ("4x1", hosts(4, 1)),
        ("4x8", hosts(4, 8)),
    ];
    let mut table = String::new();
    for kind in K::ALL.into_iter().filter(|kind| pairs().any(|(k, _)| k == *kind)) {
        for (name, topology) in &worlds {
            let names = SIZES.map(|bytes| short(chosen(kind, bytes, topology).algorithm));
            table += &format!("{kind} {name}: {}\n", names.join(" "));
        }
    }
    assert_eq!(table, GOLDEN, "\n{table}");
}

const GOLDEN: &str = "\
all_gather 2: direct direct direct direct direct
all_gather 8: doubling doubling direct direct direct
all_gather 5: direct direct direct direct direct
all_gather 4x1: direct direct direct ring ring
all_gather 4x8: ring ring ring ring ring
all_reduce 2: doubling doubling halving halving halving
all_reduce 8: doubling doubling halving halving halving
all_reduce 5: doubling doubling direct ring ring
all_reduce 4x1: doubling doubling doubling ring ring
all_reduce 4x8: doubling doubling halving halving ring
all_to_all 2: direct direct direct direct direct
all_to_all 8: direct direct direct direct direct
all_to_all 5: direct direct direct direct direct
all_to_all 4x1: direct direct direct direct direct
all_to_all 4x8: direct direct direct direct direct
barrier 2: direct direct direct direct direct
barrier 8: doubling doubling doubling doubling doubling
barrier 5: direct direct direct direct direct
barrier 4x1: direct direct direct direct direct
barrier 4x8: doubling doubling doubling doubling doubling
broadcast 2: direct direct direct direct direct
broadcast 8: direct direct tree ring ring
broadcast 5: direct direct tree ring ring
broadcast 4x1: direct direct direct ring ring
broadcast 4x8: tree tree tree ring ring
gather 2: direct direct direct direct direct
gather 8: direct direct direct direct direct
gather 5: direct direct direct direct direct
gather 4x1: direct direct direct direct direct
gather 4x8: direct direct direct direct direct
reduce 2: direct direct direct ring ring
reduce 8: direct direct tree ring ring
reduce 5: direct direct ring ring ring
reduce 4x1: direct direct direct ring ring
reduce 4x8: tree tree tree ring ring
reduce_scatter 2: direct ring ring ring ring
reduce_scatter 8: direct direct direct ring ring
reduce_scatter 5: direct direct direct ring ring
reduce_scatter 4x1: direct direct direct ring ring
reduce_scatter 4x8: ring ring ring ring ring
scatter 2: direct direct direct direct direct
scatter 8: direct direct direct direct direct
scatter 5: direct direct direct direct direct
scatter 4x1: direct direct direct direct direct
scatter 4x8: direct direct direct direct direct
";

#[test]
fn predictions_grow_with_bytes_and_choice_is_the_least() {
    for world_size in [1, 2, 3, 8, 13, 33] {
        for topology in topologies(world_size) {
            for kind in K::ALL.into_iter().filter(|kind| pairs().any(|(k, _)| k == *kind)) {
                let mut last = 0;
                for bytes in SIZES {
                    let choice = chosen(kind, bytes, &topology);
                    assert!(choice.predicted_ns >= last, "{kind}, {bytes}, {topology:?}");
                    last = choice.predicted_ns;
                    assert_eq!(choice.rejected.len(), Algorithm::ALL.len() - 1);
                    for (other, reason) in choice.rejected {
                        let predicted = cost(kind, other, bytes, &topology, &LinkCost::default());
                        match reason {
                            Reason::NotCanonical { .. } | Reason::NotForced { .. } => {
                                panic!("nothing was asked for")
                            }
                            Reason::NotSupported => assert_eq!(predicted, None),
                            Reason::OneLevel => assert_eq!(other, Algorithm::Hierarchical),
                            Reason::Slower { predicted_ns } => {
                                assert_eq!(predicted, Some(predicted_ns));
                                let here = (choice.predicted_ns, choice.algorithm);
                                assert!(here < (predicted_ns, other));
                            }
                        }
                    }
                }
            }
        }
    }
}

fn forced(algorithm: Algorithm) -> Demand {
    Demand { forced: Some(algorithm), canonical: false }
}

#[test]
fn what_is_forced_is_taken_if_it_exists() {
    let topology = Topology::single_host(4);
    let links = LinkCost::default();
    for (kind, algorithm) in pairs() {
        let choice = choose(kind, 64, &topology, &links, forced(algorithm));
        assert_eq!(choice.algorithm, algorithm);
        let is_listed = |(other, reason): &(Algorithm, Reason)| match reason {
            Reason::NotForced { .. } => is_supported(kind, *other),
            Reason::NotSupported => !is_supported(kind, *other),
            _ => false,
        };
        assert!(choice.rejected.iter().all(is_listed), "{choice:?}");
    }
    let choice = choose(K::Barrier, 0, &topology, &links, forced(Algorithm::Ring));
    assert_eq!(choice.algorithm, chosen(K::Barrier, 0, &topology).algorithm);
    assert!(choice.rejected.contains(&(Algorithm::Ring, Reason::NotSupported)));
}

#[test]
fn canonical_calls_take_what_is_canonical() {
    let links = LinkCost::default();
    let demand = Demand { canonical: true, ..Demand::default() };
    for world_size in [1, 2, 3, 8, 100] {
        for topology in topologies(world_size) {
            for (kind, bytes) in pairs().flat_map(|(kind, _)| SIZES.map(|bytes| (kind, bytes))) {
                let choice = choose(kind, bytes, &topology, &links, demand);
                assert!(is_canonical(kind, choice.algorithm, world_size), "{kind}");
                for (other, reason) in &choice.rejected {
                    let is_refused = matches!(reason, Reason::NotCanonical { .. });
                    let is_right = is_canonical(kind, *other, world_size);
                    assert_eq!(is_refused, is_supported(kind, *other) && !is_right, "{choice:?}");
                }
                if !kind.reduces() || world_size <= 2 {
                    assert_eq!(choice, chosen(kind, bytes, &topology));
                }
            }
        }
    }
    let demand = Demand { forced: Some(Algorithm::Ring), canonical: true };
    let choice = choose(K::AllReduce, 64, &Topology::single_host(3), &links, demand);
    assert_eq!(choice.algorithm, Algorithm::Direct);
}

#[test]
fn extreme_costs_do_not_overflow() {
    let mut links = LinkCost { reduce_bytes_per_s: 0, ..LinkCost::default() };
    links.local.bytes_per_s = 0;
    links.remote.latency_ns = u64::MAX;
    for (kind, algorithm) in pairs() {
        for topology in topologies(33) {
            for bytes in [0, u64::MAX] {
                assert!(cost(kind, algorithm, bytes, &topology, &links).is_some());
            }
        }
    }
}

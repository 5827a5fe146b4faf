//! Canonical reductions: the bits of one fold in the order of ranks, however they are made.

use std::ops::Range;
use syncline_comm::testing::threads;
use syncline_comm::{
    Algorithm, Class, Communicator, Config, Determinism, ErrorKind, ReduceOp, TransportChoice,
    bf16, f16,
};
use syncline_tests::fold::Folded;

const WORLDS: [u32; 5] = [2, 3, 4, 5, 8];
/// Ends of chunks and of blocks fall inside the last: messages of [`Class::Background`] are cut
/// into chunks of 32 KiB.
const COUNTS: [usize; 5] = [0, 1, 7, 1001, 50_003];

/// What joins the ranks of a test.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The memory of one host, without messages.
    Node,
    /// Messages through the memory of one host.
    Shm,
    Tcp,
    /// Two hosts, played: the first half of the ranks on one, the others on the other.
    TwoHosts,
    /// Ranks in turns on two hosts.
    TwoHostsInTurns,
}

const WAYS: [Way; 5] = [Way::Node, Way::Shm, Way::Tcp, Way::TwoHosts, Way::TwoHostsInTurns];

fn on(way: Way, world_size: u32, body: impl Fn(&Communicator) + Sync) {
    let adjust = |config: &mut Config| {
        let rank = config.place.rank;
        config.calibrates = false;
        match way {
            Way::Node => {}
            Way::Shm => {
                config.transport = TransportChoice::Shm;
                config.algorithm = Some(Algorithm::Direct);
            }
            Way::Tcp => config.transport = TransportChoice::Tcp,
            Way::TwoHosts => config.played_host = Some(u32::from(2 * rank >= world_size)),
            Way::TwoHostsInTurns => config.played_host = Some(rank % 2),
        }
    };
    threads(world_size, adjust, |world| {
        let is_one_host = !matches!(way, Way::TwoHosts | Way::TwoHostsInTurns);
        assert_eq!(world.hosts().iter().all(|host| *host == 0), is_one_host);
        assert_eq!(world.has_node_path(), matches!(way, Way::Node | Way::Shm));
        body(&world);
    });
}

fn input<T: Folded>(rank: u32, range: Range<usize>) -> Vec<T> {
    range.map(|index| T::value(rank, index)).collect()
}

fn folded<T: Folded>(world_size: u32, range: Range<usize>, op: ReduceOp) -> Vec<T> {
    let element = |index| {
        let values: Vec<T> = (0..world_size).map(|rank| T::value(rank, index)).collect();
        T::folded(&values, op)
    };
    range.map(element).collect()
}

fn assert_bits<T: Folded>(got: &[T], wanted: &[T], what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert_eq!(got.bits(), wanted.bits(), "{what} of {}, element {index}", T::DTYPE);
    }
}

/// Every call that reduces, for one type, operation and size.
fn reductions<T: Folded>(world: &Communicator, op: ReduceOp, count: usize) {
    let (rank, n) = (world.rank(), world.world_size());
    let wanted = folded::<T>(n, 0..count, op);
    let mine = input::<T>(rank, 0..count);

    let mut data = mine.clone();
    world.all_reduce(&mut data, op).expect("all_reduce");
    assert_bits(&data, &wanted, &format!("all_reduce {op}"));

    let request = world.start_all_reduce(mine.clone(), op).expect("start");
    assert_bits(&request.wait().expect("started"), &wanted, &format!("started {op}"));

    let root = n - 1;
    let mut output = (rank == root).then(|| vec![T::value(9, 9); count]);
    world.reduce(&mine, output.as_deref_mut(), op, root).expect("reduce");
    output.iter().for_each(|output| assert_bits(output, &wanted, &format!("reduce {op}")));

    let block = count / n as usize;
    let first = block * rank as usize;
    let mut output = vec![T::value(9, 9); block];
    world.reduce_scatter(&mine[..block * n as usize], &mut output, op).expect("reduce_scatter");
    assert_bits(&output, &wanted[first..first + block], &format!("reduce_scatter {op}"));

    // All but the last get half, or a third, of what is left.
    let mut counts = Vec::new();
    for rank in 0..n as usize - 1 {
        counts.push((count - counts.iter().sum::<usize>()) / (2 + rank % 2));
    }
    counts.push(count - counts.iter().sum::<usize>());
    let first: usize = counts[..rank as usize].iter().sum();
    let mut output = vec![T::value(9, 9); counts[rank as usize]];
    world.reduce_scatter_v(&mine, &mut output, &counts, op).expect("reduce_scatter_v");
    let wanted = &wanted[first..first + output.len()];
    assert_bits(&output, wanted, &format!("reduce_scatter_v {op}"));
}

fn all_sizes<T: Folded>(world: &Communicator) {
    let copy = world.duplicate(Class::Background).expect("duplicate").canonical();
    assert_eq!(copy.has_node_path(), world.has_node_path());
    let world = copy;
    for op in ReduceOp::ALL {
        for count in COUNTS {
            reductions::<T>(&world, op, count);
        }
    }
}

fn everywhere(body: impl Fn(&Communicator) + Sync) {
    for way in WAYS {
        for world_size in WORLDS {
            on(way, world_size, &body);
        }
    }
}

#[test]
fn canonical_f32() {
    everywhere(all_sizes::<f32>);
}

#[test]
fn canonical_f64() {
    everywhere(all_sizes::<f64>);
}

#[test]
fn canonical_f16() {
    everywhere(all_sizes::<f16>);
}

#[test]
fn canonical_bf16() {
    everywhere(all_sizes::<bf16>);
}

#[test]
fn canonical_i32() {
    everywhere(all_sizes::<i32>);
}

#[test]
fn canonical_with_large_chunks() {
    for way in WAYS {
        on(way, 3, |world| reductions::<f32>(&world.canonical(), ReduceOp::Sum, 1_200_007));
    }
}

/// The order is that of the communicator's ranks, not of the world's or of places in memory.
#[test]
fn canonical_in_the_order_of_the_communicator() {
    for way in WAYS {
        on(way, 5, |world| {
            let group = world.canonical().split(Some(0), 5 - world.rank()).expect("split");
            let group = group.expect("all are in it");
            assert_eq!(group.members(), [4, 3, 2, 1, 0]);
            assert_eq!(group.determinism(), Determinism::Canonical);
            reductions::<f16>(&group, ReduceOp::Sum, 10_007);
            reductions::<f32>(&group, ReduceOp::Avg, 10_007);
        });
    }
}

/// Two contributions are folded once by whatever algorithm; what has no order is free to take any.
#[test]
fn any_algorithm_where_no_order_shows() {
    for algorithm in Algorithm::ALL {
        for world_size in [2, 5] {
            let adjust = |config: &mut Config| {
                config.algorithm = Some(algorithm);
                config.determinism = Determinism::Canonical;
                config.calibrates = false;
                config.played_host = Some(config.place.rank % 2);
            };
            threads(world_size, adjust, |world| {
                assert_eq!(world.determinism(), Determinism::Canonical);
                reductions::<i32>(&world, ReduceOp::Sum, 1001);
                reductions::<bf16>(&world, ReduceOp::Min, 1001);
                if world_size == 2 {
                    reductions::<f16>(&world, ReduceOp::Sum, 1001);
                    reductions::<f32>(&world, ReduceOp::Avg, 1001);
                }
            });
        }
    }
}

/// Without it, the tests above could pass because nothing shows the order.
#[test]
fn a_fast_ring_has_other_bits_and_is_refused() {
    fn differs<T: Folded>(world: &Communicator) -> bool {
        let wanted = folded::<T>(world.world_size(), 0..1001, ReduceOp::Sum);
        let mut data = input::<T>(world.rank(), 0..1001);
        world.all_reduce(&mut data, ReduceOp::Sum).expect("fast");
        data.iter().zip(&wanted).any(|(got, wanted)| got.bits() != wanted.bits())
    }
    let adjust = |config: &mut Config| {
        config.transport = TransportChoice::Tcp;
        config.algorithm = Some(Algorithm::Ring);
    };
    threads(4, adjust, |world| {
        assert!(differs::<f32>(&world) && differs::<f16>(&world) && differs::<f64>(&world));
        let canonical = world.canonical();
        let mut data = [1.0_f32; 8];
        let error = canonical.all_reduce(&mut data, ReduceOp::Sum).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(text.contains("ring") && text.contains("canonical"), "{text}");
        // Nothing was sent, and what does not depend on the order may go around the ring.
        world.all_reduce(&mut data, ReduceOp::Sum).expect("unharmed");
        assert_eq!(data, [4.0; 8]);
        canonical.all_reduce(&mut data, ReduceOp::Max).expect("no order");
    });
}

#[test]
fn grades_share_one_sequence_of_calls() {
    for way in WAYS {
        on(way, 3, |world| {
            let canonical = world.canonical();
            for count in 1..40 {
                let handle = if count % 3 == 0 { &canonical } else { world };
                let mut data = vec![world.rank(); count];
                handle.all_reduce(&mut data, ReduceOp::Sum).expect("in turns");
                assert_eq!(data, vec![3; count]);
            }
            let fast = canonical.with_determinism(Determinism::Fast);
            assert_eq!(fast.determinism(), Determinism::Fast);
            fast.barrier().expect("what reduces nothing has no grade");
        });
    }
}

#[test]
fn ranks_that_ask_for_different_grades_find_out() {
    for way in WAYS {
        on(way, 3, |world| {
            // What reduces nothing has no grade.
            let mine = if world.rank() == 1 { world.clone() } else { world.canonical() };
            mine.barrier().expect("barrier");
            let mut data = [1_i32; 5];
            let error = mine.all_reduce(&mut data, ReduceOp::Sum).expect_err("grades differ");
            assert_eq!(error.kind(), ErrorKind::ContractMismatch, "{error}");
            assert!(error.to_string().contains("canonical"), "{error}");
        });
    }
}

/// Links are measured by calls of their own grade.
#[test]
fn a_canonical_job_measures_its_links() {
    let adjust = |config: &mut Config| {
        config.determinism = Determinism::Canonical;
        config.played_host = Some(config.place.rank % 2);
    };
    threads(4, adjust, |world| reductions::<f16>(&world, ReduceOp::Sum, 10_007));
}

//! Every collective against the oracle: kinds x transports x worlds x counts x types.

use syncline_comm::testing::threads;
use syncline_comm::{
    Algorithm, Communicator, Config, Element, ReduceOp, TransportChoice, bf16, f16,
};
use syncline_tests::oracle::{input, reduced};

/// Transport, forced algorithm, TCP connections per pair.
const PATHS: [(TransportChoice, Option<Algorithm>, u32); 4] = [
    (TransportChoice::Auto, None, 1),
    (TransportChoice::Shm, Some(Algorithm::Ring), 1),
    (TransportChoice::Tcp, None, 1),
    (TransportChoice::Tcp, Some(Algorithm::HalvingDoubling), 2),
];

fn each_world(body: impl Fn(&Communicator) + Sync) {
    for world_size in [1, 2, 3, 4, 5, 8] {
        for (transport, algorithm, rails) in PATHS {
            let adjust = |config: &mut Config| {
                config.transport = transport;
                config.algorithm = algorithm;
                config.rails = rails;
            };
            threads(world_size, adjust, |world| body(&world));
        }
    }
}

fn counts(world_size: u32) -> Vec<usize> {
    let n = world_size as usize;
    vec![0, 1, n - 1, n, n + 1, 1000, 33_333]
}

fn inputs<T: Element>(rank: u32, count: usize) -> Vec<T> {
    (0..count).map(|index| input(rank, index)).collect()
}

fn all_reduce_of<T: Element>(world: &Communicator, ops: &[ReduceOp]) {
    for &op in ops {
        for count in counts(world.world_size()) {
            let mut data = inputs::<T>(world.rank(), count);
            world.all_reduce(&mut data, op).expect("all_reduce");
            for (index, got) in data.iter().enumerate() {
                let wanted: T = reduced(world.world_size(), index, op);
                assert_eq!(*got, wanted, "{op} of {} element {index} of {count}", T::DTYPE);
            }
        }
    }
}

#[test]
fn b59_all_reduce_every_op_and_type() {
    let all = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min];
    each_world(|world| {
        all_reduce_of::<f32>(world, &[&all[..], &[ReduceOp::Avg]].concat());
        all_reduce_of::<f64>(world, &[&all[..], &[ReduceOp::Prod]].concat());
        all_reduce_of::<i32>(world, &[&all[..], &[ReduceOp::Avg]].concat());
        all_reduce_of::<u64>(world, &all);
        all_reduce_of::<i16>(world, &all);
        all_reduce_of::<u8>(world, &all);
        all_reduce_of::<f16>(world, &all);
        all_reduce_of::<bf16>(world, &all);
    });
}

#[test]
fn b59_gathers_scatters_and_exchanges() {
    each_world(|world| {
        let (rank, n) = (world.rank(), world.world_size());
        for count in counts(n) {
            let mine = inputs::<f32>(rank, count);
            let all: Vec<f32> = (0..n).flat_map(|r| inputs::<f32>(r, count)).collect();

            let mut gathered = vec![-1.0; count * n as usize];
            world.all_gather(&mine, &mut gathered).expect("all_gather");
            assert_eq!(gathered, all);

            let root = n - 1;
            let mut rooted = (rank == root).then(|| vec![-1.0; count * n as usize]);
            world.gather(&mine, rooted.as_deref_mut(), root).expect("gather");
            assert!(rooted.is_none_or(|rooted| rooted == all));

            let mut part = vec![-1.0; count];
            let source = (rank == root).then_some(&all[..]);
            world.scatter(source, &mut part, root).expect("scatter");
            assert_eq!(part, mine);

            let mut sum = vec![-1.0; count];
            world.reduce_scatter(&all, &mut sum, ReduceOp::Sum).expect("reduce_scatter");
            let wanted: Vec<f32> = mine.iter().map(|x| x * n as f32).collect();
            assert_eq!(sum, wanted);

            let mut exchanged = vec![-1.0; count * n as usize];
            let outgoing: Vec<f32> =
                (0..n).flat_map(|to| vec![(rank * 100 + to) as f32; count]).collect();
            world.all_to_all(&outgoing, &mut exchanged).expect("all_to_all");
            let wanted: Vec<f32> =
                (0..n).flat_map(|from| vec![(from * 100 + rank) as f32; count]).collect();
            assert_eq!(exchanged, wanted);
        }
    });
}

#[test]
fn b61_reduce_and_broadcast_leave_inputs_alone() {
    each_world(|world| {
        let (rank, n) = (world.rank(), world.world_size());
        for count in counts(n) {
            for root in [0, n / 2, n - 1] {
                let mine = inputs::<f32>(rank, count);
                let mut output = (rank == root).then(|| vec![-1.0; count]);
                world.reduce(&mine, output.as_deref_mut(), ReduceOp::Sum, root).expect("reduce");
                assert_eq!(mine, inputs::<f32>(rank, count));
                for (index, got) in output.iter().flatten().enumerate() {
                    assert_eq!(*got, reduced::<f32>(n, index, ReduceOp::Sum));
                }
                let mut data = inputs::<f32>(rank, count);
                world.broadcast(&mut data, root).expect("broadcast");
                assert_eq!(data, inputs::<f32>(root, count));
            }
        }
        world.barrier().expect("barrier");
    });
}

#[test]
fn b59_uneven_counts_with_nothing_from_some() {
    each_world(|world| {
        let (rank, n) = (world.rank(), world.world_size());
        let counts: Vec<usize> = (0..n as usize).map(|r| (r * 7 + 3) % 5 * r).collect();
        let total: usize = counts.iter().sum();
        let mine = inputs::<i64>(rank, counts[rank as usize]);
        let all: Vec<i64> = (0..n).flat_map(|r| inputs::<i64>(r, counts[r as usize])).collect();

        let mut gathered = vec![-1; total];
        world.all_gather_v(&mine, &mut gathered, &counts).expect("all_gather_v");
        assert_eq!(gathered, all);

        let mut rooted = (rank == 0).then(|| vec![-1; total]);
        world.gather_v(&mine, rooted.as_deref_mut(), &counts, 0).expect("gather_v");
        assert!(rooted.is_none_or(|rooted| rooted == all));

        let mut part = vec![-1; mine.len()];
        let source = (rank == 0).then_some(&all[..]);
        world.scatter_v(source, &mut part, &counts, 0).expect("scatter_v");
        assert_eq!(part, mine);

        let mut sum = vec![-1; mine.len()];
        world.reduce_scatter_v(&all, &mut sum, &counts, ReduceOp::Sum).expect("reduce_scatter_v");
        assert_eq!(sum, mine.iter().map(|x| x * i64::from(n)).collect::<Vec<_>>());

        // Rank r sends r + to elements to `to`, and nothing to rank 0.
        let sends = |from: u32, to: u32| if to == 0 { 0 } else { (from + to) as usize };
        let send_counts: Vec<usize> = (0..n).map(|to| sends(rank, to)).collect();
        let recv_counts: Vec<usize> = (0..n).map(|from| sends(from, rank)).collect();
        let outgoing = vec![i64::from(rank); send_counts.iter().sum()];
        let mut incoming = vec![-1; recv_counts.iter().sum()];
        world
            .all_to_all_v(&outgoing, &send_counts, &mut incoming, &recv_counts)
            .expect("all_to_all_v");
        let wanted: Vec<i64> =
            (0..n).flat_map(|from| vec![i64::from(from); sends(from, rank)]).collect();
        assert_eq!(incoming, wanted);
    });
}

#[test]
fn messages_match_by_tag_and_order() {
    each_world(|world| {
        let (rank, n) = (world.rank(), world.world_size());
        let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
        let mut requests = Vec::new();
        for tag in [5, 9] {
            for index in 0..4_u32 {
                let data = vec![rank * 1000 + tag * 10 + index; 1 + 20_000 * index as usize];
                requests.push(world.start_send(data, next, tag).expect("start_send"));
            }
        }
        // The later tag first: tags are independent.
        for tag in [9, 5] {
            for index in 0..4_u32 {
                let mut data = vec![0; 1 + 20_000 * index as usize];
                world.recv(&mut data, previous, tag).expect("recv");
                assert!(data.iter().all(|x| *x == previous * 1000 + tag * 10 + index));
            }
        }
        for request in requests {
            request.wait().expect("sent");
        }
    });
}

#[test]
fn split_groups_work_apart() {
    each_world(|world| {
        let (rank, n) = (world.rank(), world.world_size());
        let color = (rank % 3 != 2).then_some(rank % 3);
        let group = world.split(color, n - rank).expect("split");
        assert_eq!(group.is_some(), color.is_some());
        if let Some(group) = group {
            // Descending keys: the highest world rank comes first.
            let members: Vec<u32> = (0..n).rev().filter(|r| Some(r % 3) == color).collect();
            assert_eq!(group.members(), members);
            let mut sum = [rank];
            group.all_reduce(&mut sum, ReduceOp::Sum).expect("all_reduce");
            assert_eq!(sum[0], members.iter().sum::<u32>());
        }
        let copy = world.duplicate(syncline_comm::Class::Background).expect("duplicate");
        let started = copy.start_all_reduce(vec![1.0_f32; 100_000], ReduceOp::Sum).expect("start");
        let mut one = [1.0_f32];
        world.all_reduce(&mut one, ReduceOp::Sum).expect("urgent");
        assert_eq!(one[0], n as f32);
        let data = started.wait().expect("background");
        assert!(data.iter().all(|x| *x == n as f32));
    });
}

#[test]
fn started_calls_progress_without_anybody_waiting() {
    each_world(|world| {
        let n = world.world_size() as f32;
        let requests: Vec<_> = (0..5)
            .map(|i| {
                let data = vec![i as f32; 50_000];
                world.start_all_reduce(data, ReduceOp::Sum).expect("start")
            })
            .collect();
        let start = std::time::Instant::now();
        while !requests.iter().all(|r| r.is_done()) {
            assert!(start.elapsed().as_secs() < 30, "no background progress");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for (request, i) in requests.into_iter().zip(0..) {
            let data = request.wait().expect("done");
            assert!(data.iter().all(|x| *x == i as f32 * n));
        }
    });
}

#[test]
fn b76_calls_from_several_threads_get_one_order() {
    // Each thread has a communicator of its own, as threads without one order must.
    threads(
        3,
        |_| {},
        |world| {
            let copies: Vec<_> =
                (0..4).map(|_| world.duplicate(world_class()).expect("duplicate")).collect();
            std::thread::scope(|scope| {
                for copy in &copies {
                    scope.spawn(move || {
                        for round in 0..50 {
                            let mut data = vec![round as f32; 300];
                            copy.all_reduce(&mut data, ReduceOp::Sum).expect("all_reduce");
                            assert!(data.iter().all(|x| *x == 3.0 * round as f32));
                        }
                    });
                }
            });
        },
    );
}

fn world_class() -> syncline_comm::Class {
    syncline_comm::Class::Urgent
}

#[test]
fn bad_arguments_are_refused_and_harm_nothing() {
    threads(
        2,
        |_| {},
        |world| {
            let kind = |result: syncline_comm::Result<()>| result.expect_err("refused").kind();
            let invalid = syncline_comm::ErrorKind::InvalidArgument;
            assert_eq!(kind(world.broadcast(&mut [1_u8], 2)), invalid);
            assert_eq!(kind(world.all_gather(&[1_u8], &mut [0; 3])), invalid);
            assert_eq!(kind(world.all_to_all(&[1_u8; 3], &mut [0; 3])), invalid);
            assert_eq!(kind(world.send(&[1_u8], 7, 0)), invalid);
            assert_eq!(kind(world.send(&[1_u8], 0, 1 << 31)), invalid);
            assert_eq!(kind(world.all_gather_v(&[1_u8], &mut [0; 2], &[1])), invalid);
            let mut data = [1.0_f32];
            world.all_reduce(&mut data, ReduceOp::Sum).expect("unharmed");
            assert_eq!(data, [2.0]);
        },
    );
}

//! Calls that do not end well.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn different_calls_are_the_same_error_on_all() {
    let agreed = Args { in_place: true, ..Args::new(CollectiveKind::AllReduce, 5_000) };
    let others = [
        Args { count: 4_999, ..agreed },
        Args { count: 1, ..agreed },
        Args { count: 0, ..agreed },
        Args { count: 500_000, ..agreed },
        Args { dtype: DType::I32, ..agreed },
        Args { op: ReduceOp::Max, ..agreed },
        Args { kind: CollectiveKind::Barrier, count: 0, ..agreed },
        Args { kind: CollectiveKind::Broadcast, root: 2, ..agreed },
        Args { kind: CollectiveKind::AllToAll, in_place: false, ..agreed },
    ];
    for (odd, other) in (0..4).cycle().zip(others) {
        let faults = on_members(4, |mut member| {
            for _ in 0..3 {
                member.run(&agreed);
            }
            let args = if member.me == odd { other } else { agreed };
            let data = contribution(&args, 1, member.me, 4);
            let (mut input, mut output) = member.memory(&args, &data);
            let before = output.clone();
            member.start(&args, &mut input, &mut output, now() + LIMIT);
            let (mut next_in, mut next_out) = (Vec::new(), Vec::new());
            let barrier = Args::new(CollectiveKind::Barrier, 0);
            member.start(&barrier, &mut next_in, &mut next_out, now() + LIMIT);
            let ends = member.wait(2);
            assert_eq!(before, output, "data was folded into the output");
            let faults: Vec<_> = ends.into_iter().map(|end| end.1.unwrap_err()).collect();
            assert_eq!(faults[0], faults[1]);
            faults[0].clone()
        });
        let fault = &faults[0];
        assert!(faults.iter().all(|f| f == fault));
        assert_eq!(fault.kind, FaultKind::ContractMismatch);
        assert_eq!(fault.culprit, Some(rank(odd)));
        assert_eq!(fault.other.unwrap().call.fingerprint, other.fingerprint());
        assert_eq!(fault.call.unwrap().fingerprint, agreed.fingerprint());
        assert_eq!(fault.call.unwrap().seq, 4);
    }
}

#[test]
fn who_is_behind_is_named_at_the_deadline() {
    let faults = on_members(3, |mut member| {
        member.run(&Args::new(CollectiveKind::Barrier, 0));
        if member.me == 2 {
            return None;
        }
        let args = Args { in_place: true, ..Args::new(CollectiveKind::AllReduce, 1000) };
        let mut output = vec![0; 4000];
        member.start(&args, &mut [], &mut output, now() + Duration::from_millis(150));
        let end = member.wait(1).remove(0).1.unwrap_err();
        assert!(member.lane.next_deadline().is_none());
        Some(end)
    });
    for fault in faults.iter().flatten() {
        assert_eq!((fault.kind, fault.culprit), (FaultKind::Timeout, Some(rank(2))));
        assert_eq!(fault.detail, "waiting for rank 102, which have not entered the call");
        assert_eq!((fault.bytes_done, fault.bytes_total), (0, 4000));
    }
    assert!(faults[0].is_some() && faults[2].is_none());
}

#[test]
fn cancelled_calls_leave_memory_alone() {
    // Of about a hundred stages.
    for stages in [0, 1, 3, 6, 20] {
        on_members(2, |mut member| {
            member.run(&Args::new(CollectiveKind::Barrier, 0));
            let args = Args { in_place: true, ..Args::new(CollectiveKind::AllReduce, 30 << 10) };
            let mut output = vec![1; 120 << 10];
            member.start(&args, &mut [], &mut output, now() + Duration::from_millis(300));
            let mut events = Vec::new();
            if member.me == 0 {
                for _ in 0..stages {
                    while member.lane.advance().is_none() {
                        thread::yield_now();
                    }
                }
                member.lane.cancel_all();
                let before = output.clone();
                for _ in 0..50 {
                    assert!(!member.lane.poll(now(), &mut events));
                    thread::yield_now();
                }
                assert_eq!(before, output);
                let barrier = Args::new(CollectiveKind::Barrier, 0);
                member.start(&barrier, &mut [], &mut [], now() + LIMIT);
                let fault = member.wait(1).remove(0).1.unwrap_err();
                assert_eq!(fault.kind, FaultKind::Aborted);
            } else {
                let fault = member.wait(1).remove(0).1.unwrap_err();
                assert_eq!((fault.kind, fault.culprit), (FaultKind::Timeout, Some(rank(0))));
            }
        });
    }
}

#[test]
fn a_mad_peer_makes_wrong_bytes_and_nothing_worse() {
    let mut segments = segments(2).into_iter().map(Arc::new);
    let (segment, mad) = (segments.next().unwrap(), segments.next().unwrap());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let layout = mad.layout();
            let (start, end) = (layout.lane_head(3), layout.lane_head(4));
            let mut state = 1_u64;
            while !is_over.load(Ordering::Relaxed) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = start + usize::try_from(state >> 33).unwrap() % (end - start) / 8 * 8;
                // Small counts are likelier to be believed.
                let value = if state & 1 << 20 == 0 { state >> 60 } else { state };
                mad.mapping().word(at).store(value, Ordering::Relaxed);
            }
        });
        let members = [0, 1].map(|local_index| LaneMember { local_index, rank: local_index });
        let mut ends = [0, 0];
        for generation in 0..40 {
            let id = LaneId { index: 3, generation };
            let lane = NodeLane::open(Arc::clone(&segment), id, &members, 0);
            let always_sleeps = generation % 2 == 0;
            let mut member = Member { lane, me: 0, size: 2, seq: 0, always_sleeps };
            let kind = KINDS[usize::from(generation) % KINDS.len()];
            let args = Args::new(kind, 20_000);
            let (mut input, mut output) = member.memory(&args, &contribution(&args, 1, 0, 2));
            let deadline = now() + Duration::from_millis(30);
            member.start(&args, &mut input, &mut output, deadline);
            ends[usize::from(member.wait(1)[0].1.is_ok())] += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(ends[0] + ends[1], 40);
    });
}

#[test]
#[should_panic(expected = "all_gather with 4 bytes in and 9 bytes out")]
fn memory_that_does_not_fit_is_refused() {
    let segment = segments(2).remove(0);
    let members = [0, 1].map(|local_index| LaneMember { local_index, rank: local_index });
    let id = LaneId { index: 0, generation: 0 };
    let lane = NodeLane::open(Arc::new(segment), id, &members, 0);
    let mut member = Member { lane, me: 0, size: 2, seq: 0, always_sleeps: false };
    let args = Args::new(CollectiveKind::AllGather, 1);
    member.start(&args, &mut [0; 4], &mut [0; 9], now() + LIMIT);
}

use super::*;
use crate::collective::{Fold, Round, Span};
use alloc::string::ToString;
use alloc::vec;
use core::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn fingerprint(count: u64) -> Fingerprint {
    Fingerprint { kind: 2, dtype: 2, op: 4, algorithm: 6, root: Fingerprint::NO_ROOT, count }
}

fn call(seq: u64, count: u64) -> Call {
    Call { comm: CommId::WORLD, seq, fingerprint: fingerprint(count) }
}

/// Receives 8 elements from rank 1 of the communicator, world rank 5.
fn start(op: u64, seq: u64, count: u64) -> OperationInput {
    let span = Span::output(0, count);
    let step = Step::Recv { peer: 1, tag: 0, span, fold: Fold::Reduce };
    OperationInput::Start(Start {
        op: OpId(op),
        call: call(seq, count),
        plan: Plan { scratch_len: 0, rounds: vec![Round { steps: vec![step] }] },
        members: Arc::from([0, 5]),
        chunk_len: 4,
        element_bytes: 4,
        deadline: Instant::ZERO + SECOND,
    })
}

fn drain(operations: &mut Operations) -> Vec<OperationOutput> {
    core::iter::from_fn(|| operations.poll_output()).collect()
}

#[test]
fn completes_when_every_chunk_has() {
    let mut operations = Operations::new(0);
    operations.handle_input(Instant::ZERO, start(1, 0, 8));
    assert_eq!(operations.waiting_for(), [5]);
    let posts = drain(&mut operations);
    assert_eq!(posts.len(), 2);
    for output in posts {
        let OperationOutput::Post { op, peer: 5, transfer } = output else { panic!("{output:?}") };
        operations.handle_input(Instant::ZERO, OperationInput::Completed { op, transfer });
    }
    let [OperationOutput::Finished { result: Ok(()), .. }] = drain(&mut operations)[..] else {
        panic!("not finished")
    };
    assert!(operations.is_idle());
    assert_eq!(operations.poll_timeout(), None);
}

#[test]
fn b54_a_peer_with_another_count_is_a_mismatch_early_late_and_afterwards() {
    // The peer's frame comes before our call, during it, and after it has finished.
    for when in 0..3 {
        let mut operations = Operations::new(0);
        let arrived = || OperationInput::Arrived { peer: 5, call: call(0, 7) };
        if when == 0 {
            operations.handle_input(Instant::ZERO, arrived());
        }
        operations.handle_input(Instant::ZERO, start(1, 0, 4));
        if when == 2 {
            let [OperationOutput::Post { op, transfer, .. }] = drain(&mut operations)[..] else {
                panic!()
            };
            operations.handle_input(Instant::ZERO, OperationInput::Completed { op, transfer });
        }
        if when > 0 {
            operations.handle_input(Instant::ZERO, arrived());
        }
        let fault = operations.fault().expect("mismatch").clone();
        assert_eq!(fault.kind, FaultKind::ContractMismatch);
        let text = fault.to_string();
        assert!(text.contains("rank 0 called all_reduce(count 4"), "{text}");
        assert!(text.contains("rank 5 called all_reduce(count 7"), "{text}");
        // Nothing starts any more.
        operations.handle_input(Instant::ZERO, start(2, 1, 4));
        assert!(matches!(
            drain(&mut operations).last(),
            Some(OperationOutput::Finished { op: OpId(2), result: Err(_) })
        ));
    }
}

#[test]
fn an_agreeing_early_frame_is_fine() {
    let mut operations = Operations::new(0);
    let input = OperationInput::Arrived { peer: 5, call: call(0, 4) };
    operations.handle_input(Instant::ZERO, input);
    operations.handle_input(Instant::ZERO, start(1, 0, 4));
    assert!(operations.fault().is_none());
}

#[test]
fn the_deadline_names_who_is_awaited() {
    let mut operations = Operations::new(0);
    operations.handle_input(Instant::ZERO, start(1, 0, 8));
    drain(&mut operations);
    operations.handle_timeout(Instant::ZERO + SECOND / 2);
    assert!(drain(&mut operations).is_empty());
    operations.handle_timeout(operations.poll_timeout().expect("deadline"));
    let outputs = drain(&mut operations);
    let OperationOutput::Announce(fault) = &outputs[0] else { panic!("{outputs:?}") };
    assert_eq!((fault.kind, fault.culprit), (FaultKind::Timeout, Some(5)));
    assert!(fault.to_string().contains("waiting for data from rank 5"), "{fault}");
    assert!(matches!(outputs[1], OperationOutput::Finished { result: Err(_), .. }));
}

#[test]
fn the_first_fault_wins_and_is_not_announced_twice() {
    let mut operations = Operations::new(0);
    operations.handle_input(Instant::ZERO, start(1, 0, 8));
    drain(&mut operations);
    for (rank, detail) in [(3, "first"), (4, "second")] {
        let fault = Fault::new(FaultKind::PeerLost, 1, detail).with_culprit(rank);
        operations.handle_input(Instant::ZERO, OperationInput::Fault(Arc::new(fault)));
    }
    operations.handle_timeout(Instant(u64::MAX));
    let outputs = drain(&mut operations);
    assert_eq!(outputs.len(), 1, "{outputs:?}");
    let OperationOutput::Finished { result: Err(fault), .. } = &outputs[0] else { panic!() };
    assert_eq!(fault.culprit, Some(3));
}

#[test]
fn rank_lists_are_short() {
    assert_eq!(RankList(&[3]).to_string(), "rank 3");
    assert_eq!(RankList(&[1, 2, 3, 7]).to_string(), "ranks 1-3, 7");
}

#[test]
fn late_words_about_forgotten_calls_leave_nothing_behind() {
    let mut operations = Operations::new(0);
    for seq in 0..600 {
        operations.handle_input(Instant::ZERO, start(seq, seq, 4));
        for output in drain(&mut operations) {
            if let OperationOutput::Post { op, transfer, .. } = output {
                operations.handle_input(Instant::ZERO, OperationInput::Completed { op, transfer });
            }
        }
    }
    drain(&mut operations);
    for seq in 0..600 {
        let input = OperationInput::Arrived { peer: 5, call: call(seq, 4) };
        operations.handle_input(Instant::ZERO, input);
    }
    assert!(operations.early.is_empty() && operations.fault().is_none());
    assert!(operations.calls.len() <= HISTORY + 1);
}

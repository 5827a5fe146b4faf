use std::num::NonZeroU64;

use super::*;
use crate::config::{GbaModelConfig, ModelKind, R2spConfig, SspConfig};
use crate::optimiser::Sgd;
use crate::policy::gba::{Decay, Divisor};
use crate::server::config::Gap;

const NOW: Duration = Duration::ZERO;

fn message(header: Header, values: &[f32]) -> Vec<u32> {
    let mut message = Vec::new();
    wire::encode(header, values.iter().copied(), &mut message);
    message
}

fn push(worker: u32, clock: u64, version: u64, values: &[f32]) -> Vec<u32> {
    message(Header::Push { worker, clock, version, learning_rate: 0.5, sample_ns: 0 }, values)
}

fn done(worker: u32) -> Vec<u32> {
    message(Header::Done { worker }, &[0.0; 2])
}

fn shard_with(model: ModelKind, momentum: f32, workers: u32) -> Shard {
    let optimiser = Sgd { momentum, ..Sgd::default() }.into();
    let config = SessionConfig { model, optimiser, ..SessionConfig::default() };
    let memory = Memory::new(&optimiser, 2);
    Shard::new(0, workers, &config, vec![1.0, 2.0], memory).unwrap()
}

fn shard() -> Shard {
    shard_with(ModelKind::Bsp, 0.5, 2)
}

/// To whom, of which clock and version, how stale, and the parameters.
fn read(replies: Vec<Reply>) -> Vec<(u32, u64, u64, u32, Vec<f32>)> {
    let read = |(worker, message): Reply| {
        let (header, values) = wire::decode(&message, 2).unwrap();
        let Header::Reply { server: 0, clock, version, staleness, .. } = header else {
            panic!("{header:?}")
        };
        (worker, clock, version, staleness, values.collect())
    };
    replies.into_iter().map(read).collect()
}

fn take(shard: &mut Shard, worker: u32, message: Vec<u32>) -> Vec<Reply> {
    shard.handle_message(worker, message, NOW).unwrap().replies
}

#[test]
fn pushes_are_applied_in_order_and_answered() {
    let mut shard = shard();
    let handled = shard.handle_message(1, push(1, 0, 0, &[1.0, 2.0]), NOW).unwrap();
    assert_eq!(handled.outcome, Outcome::Pushed);
    assert_eq!(read(handled.replies), [(1, 0, 1, 0, vec![0.5, 1.0])]);
    let replies = take(&mut shard, 0, push(0, 0, 0, &[0.0, 1.0]));
    assert_eq!(read(replies), [(0, 0, 2, 1, vec![0.25, 0.0])]);
    assert_eq!((shard.parameters(), shard.version()), (&[0.25, 0.0][..], 2));
    assert_eq!(shard.audit().widest_staleness, 1);
}

#[test]
fn all_are_done_when_each_said_so_and_may_start_again() {
    let mut shard = shard();
    for worker in [1, 0] {
        assert!(!shard.all_done());
        let handled = shard.handle_message(worker, done(worker), NOW).unwrap();
        assert_eq!((handled.outcome, handled.replies.len()), (Outcome::Done, 0));
        assert!(shard.is_done(worker));
    }
    assert!(shard.all_done());
    shard.check_collected(1, 0).unwrap();
    shard.reopen().unwrap();
    assert!(!shard.is_done(0) && !shard.is_done(1));
    assert_eq!(shard.parameters(), [1.0, 2.0]);
}

#[test]
fn what_breaks_the_protocol_is_refused_and_changes_nothing() {
    let mut shard =
        shard_with(ModelKind::Ssp(SspConfig { staleness: 0, ..Default::default() }), 0.0, 3);
    let reply = Header::Reply { server: 1, clock: 0, version: 0, staleness: 0, batch: None };
    let stop = message(Header::Stop, &[0.0; 2]);
    for (bad, text) in [
        (push(0, 0, 0, &[1.0; 2]), "rank 1 sent a message in the name of rank 0"),
        (push(1, 0, 0, &[1.0; 3]), "3 values for a shard of 2"),
        (push(1, 1, 0, &[1.0; 2]), "push 1 of rank 1 came where push 0 is next"),
        (push(1, 0, 1, &[1.0; 2]), "push 0 of rank 1 is of version 1, 0 was sent"),
        (message(reply, &[1.0; 2]), "rank 1 sent a reply"),
        (stop, "rank 1 told another"),
    ] {
        let error = shard.handle_message(1, bad, NOW).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let refused = |shard: &mut Shard, worker, message, text| {
        let error = shard.handle_message(worker, message, NOW).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    assert!(shard.reopen().is_ok());
    assert!(take(&mut shard, 1, push(1, 0, 0, &[0.0; 2])).is_empty());
    refused(&mut shard, 1, push(1, 1, 0, &[1.0; 2]), "came before the last was answered");
    refused(&mut shard, 1, done(1), "was not answered when its worker was done");
    take(&mut shard, 0, done(0));
    refused(&mut shard, 0, push(0, 0, 0, &[1.0; 2]), "after it was done");
    refused(&mut shard, 9, done(9), "after it was done");
    assert!(shard.reopen().unwrap_err().to_string().contains("may still come"));
    assert_eq!((shard.parameters(), shard.version()), (&[1.0, 2.0][..], 1));
}

#[test]
fn a_held_reply_has_the_parameters_of_when_it_leaves() {
    let ssp = SspConfig { staleness: 0, ..Default::default() };
    let mut shard = shard_with(ModelKind::Ssp(ssp), 0.0, 3);
    assert!(take(&mut shard, 0, push(0, 0, 0, &[1.0, 0.0])).is_empty());
    assert!(take(&mut shard, 2, push(2, 0, 0, &[0.0, 1.0])).is_empty());
    let replies = read(take(&mut shard, 1, push(1, 0, 0, &[1.0, 1.0])));
    let fresh = vec![0.0, 1.0];
    let expected = [(1, 0, 3, 2, fresh.clone()), (0, 0, 3, 0, fresh.clone()), (2, 0, 3, 1, fresh)];
    assert_eq!(replies, expected);
    // A worker that is done holds nobody up.
    assert!(take(&mut shard, 0, push(0, 1, 3, &[0.0; 2])).is_empty());
    assert!(take(&mut shard, 1, done(1)).is_empty());
    assert_eq!(read(take(&mut shard, 2, done(2)))[0].0, 0);
    assert_eq!((shard.audit().held, shard.audit().widest_lead), (3, 1));
}

#[test]
fn in_turn_means_applied_in_turn() {
    let gap = Gap::Fixed(Duration::from_millis(5));
    let r2sp = R2spConfig { gap, ..Default::default() };
    let mut shard = shard_with(ModelKind::R2sp(r2sp), 0.0, 2);
    assert!(take(&mut shard, 1, push(1, 0, 0, &[2.0, 2.0])).is_empty());
    assert_eq!((shard.parameters(), shard.due()), (&[1.0, 2.0][..], None));
    let replies = take(&mut shard, 0, push(0, 0, 0, &[1.0, 1.0]));
    assert_eq!(read(replies), [(0, 0, 1, 0, vec![0.5, 1.5])]);
    let due = shard.due().unwrap();
    assert_eq!(read(shard.tick(due).unwrap()), [(1, 0, 2, 1, vec![-0.5, 0.5])]);
    // From the second round on, each is as late as there are others.
    let mut now = due;
    for clock in 1..4 {
        for worker in [0, 1] {
            let version = shard.version() - 1;
            now += Duration::from_millis(5);
            let message = push(worker, clock, version, &[0.0, 0.0]);
            let replies = shard.handle_message(worker, message, now).unwrap().replies;
            assert_eq!(read(replies)[0].3, 1);
        }
    }
}

fn gba(group: u64, decay: Decay, divisor: Divisor) -> ModelKind {
    let group = NonZeroU64::new(group);
    ModelKind::Gba(GbaModelConfig { group, decay, divisor, ..Default::default() })
}

#[test]
fn a_group_is_one_update_with_its_mean() {
    let mut shard = shard_with(gba(3, Decay::Threshold { iota: 9 }, Divisor::Group), 0.5, 2);
    let first = read(take(&mut shard, 0, push(0, 0, 0, &[3.0, 0.0])));
    assert_eq!(first, [(0, 0, 0, 0, vec![1.0, 2.0])]);
    take(&mut shard, 0, push(0, 1, 0, &[3.0, 3.0]));
    // The rates 0.5, 0.5 and 2: 1 on the average. The gradient: (2, 3).
    let third = Header::Push { worker: 1, clock: 0, version: 0, learning_rate: 2.0, sample_ns: 0 };
    let third = read(take(&mut shard, 1, message(third, &[0.0, 6.0])));
    assert_eq!(third, [(1, 0, 1, 0, vec![-1.0, -1.0])]);
    // Two more: at the drain they count as a group of two. Velocity (1, 1.5) + (2, 2), times 0.5.
    take(&mut shard, 1, push(1, 1, 1, &[4.0, 0.0]));
    let stale = read(take(&mut shard, 0, push(0, 2, 0, &[0.0, 4.0])));
    assert_eq!(stale, [(0, 2, 1, 1, vec![-1.0, -1.0])]);
    take(&mut shard, 1, done(1));
    assert_eq!(shard.version(), 1);
    assert!(take(&mut shard, 0, done(0)).is_empty());
    assert_eq!((shard.parameters(), shard.version()), (&[-2.5, -2.75][..], 2));
    shard.check_collected(0, 2).unwrap();
    shard.reopen().unwrap();
    take(&mut shard, 0, push(0, 3, 2, &[1.0, 1.0]));
}

#[test]
fn what_is_too_late_is_left_out_whatever_it_holds() {
    for (divisor, share) in [(Divisor::Group, 0.5), (Divisor::Weights, 1.0)] {
        let mut shard = shard_with(gba(2, Decay::Threshold { iota: 0 }, divisor), 0.0, 2);
        take(&mut shard, 0, push(0, 0, 0, &[1.0, 1.0]));
        take(&mut shard, 0, push(0, 1, 0, &[1.0, 1.0]));
        assert_eq!(shard.parameters(), [0.5, 1.5]);
        take(&mut shard, 0, push(0, 2, 1, &[1.0, 1.0]));
        take(&mut shard, 1, push(1, 0, 0, &[f32::NAN, f32::INFINITY]));
        assert_eq!(shard.parameters(), [0.5 - 0.5 * share, 1.5 - 0.5 * share]);
        assert_eq!(shard.version(), 2);
    }
}

#[test]
fn a_group_in_which_nothing_counts_is_a_version_without_a_change() {
    let mut shard = shard_with(gba(1, Decay::Threshold { iota: 0 }, Divisor::Group), 0.5, 2);
    // Worker 1 has token 1, since a group of one is one batch.
    take(&mut shard, 0, push(0, 0, 0, &[1.0, 1.0]));
    take(&mut shard, 0, push(0, 1, 1, &[0.0, 0.0]));
    take(&mut shard, 0, push(0, 2, 2, &[0.0, 0.0]));
    let before = (shard.parameters().to_vec(), shard.moments().clone());
    take(&mut shard, 1, push(1, 0, 0, &[f32::NAN, 1.0]));
    assert_eq!((shard.parameters().to_vec(), shard.moments().clone()), before);
    assert_eq!((shard.version(), shard.updates()), (4, 4));
}

/// Rules that break the promise that the audit was told.
#[test]
fn a_shard_with_a_broken_rule_is_an_error() {
    let ssp = |staleness| SspConfig { staleness, ..Default::default() };
    let loose = Rule::Ssp(ssp(1));
    let two = GbaModelConfig { group: NonZeroU64::new(2), ..Default::default() };
    let cases: [(Rule, Promise, &str); 5] = [
        (loose, Promise::Lead(0), "push 0 of rank 1 was answered 1 ahead, not 0"),
        (Rule::Asp, Promise::Lead(1), "push 1 of rank 1 was answered 2 ahead, not 1"),
        (Rule::Asp, Promise::Turns, "push 0 of rank 1 was applied in the turn of rank Some(0)"),
        (Rule::Gba(two), Promise::Groups(3), "push 0 of rank 1 was in an update of 2, not 3"),
        (Rule::Gba(two), Promise::Any, "push 0 of rank 1 was answered before it was applied"),
    ];
    for (rule, promise, text) in cases {
        let keeper = rule::build(rule, 0, 2, None).unwrap();
        let audit = Audit::new(promise, 2);
        let optimiser = Sgd::default().into();
        let memory = Memory::new(&optimiser, 2);
        let mut shard = Shard::with_keeper(0, optimiser, vec![0.0; 2], memory, (keeper, audit), 2);
        let mut pushes = (0..9).map(|clock| push(1, clock, 0, &[1.0; 2]));
        let error = pushes.find_map(|push| shard.handle_message(1, push, NOW).err());
        let error = error.expect("refused").to_string();
        assert!(error.contains(text), "{error}");
    }
}

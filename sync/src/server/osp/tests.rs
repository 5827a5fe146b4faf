//! One server by hand, and what it refuses.

use super::*;
use crate::config::{GibLag, OspConfig, SessionConfig};
use crate::layout::{Granularity, TensorSpec};
use crate::model::osp_server::settings::{MomentSource, Placement};
use crate::optimiser::Sgd;

/// Three slices of two, one and one elements on rank 1 of two; it never has the other rank's.
fn shard(momentum: f32, moments: MomentSource) -> OspShard {
    let osp = OspConfig {
        granularity: Granularity::Tensors,
        gib_lag: GibLag::Two,
        min_deferred_len: 0,
        ..OspConfig::default()
    };
    let placement = Placement::Colocated { rank: 1 };
    let config = OspServerConfig { osp, moments, placement };
    let specs = [2, 1, 1].map(|len| TensorSpec::new("t", len));
    let layout = Layout::new(&specs, osp.granularity);
    let optimiser = Sgd { momentum, ..Sgd::default() }.into();
    let session = SessionConfig { optimiser, ..SessionConfig::default() };
    let memory = Memory::new(&optimiser, 4);
    let start = [1.0, 2.0, 4.0, 8.0];
    let job = Job::new(1, 2, &session);
    assert!(OspShard::new(Job::new(0, 2, &session), config, &layout, &start, &memory).is_none());
    OspShard::new(job, config, &layout, &start, &memory).unwrap()
}

fn push(stage: Stage, worker: u32, step: u64, len: usize) -> Push {
    Push { stage, worker, step, learning_rate: 0.5, budget: 8, words: len as u32 }
}

fn send(shard: &mut OspShard, push: Push, values: &[f32]) -> Result<Vec<Reply>> {
    let Expected::Body(push) = shard.handle_head(push.worker, &Head::Push(push).encode())? else {
        panic!("a push")
    };
    shard.handle_body(&push, values.iter().map(|value| value.to_bits()).collect())
}

fn values(reply: &Reply) -> (Vec<u32>, Vec<f32>) {
    let flags = usize::from(reply.stage == Stage::Rs);
    let (flags, values) = reply.message[wire::HEAD_WORDS..].split_at(flags);
    (flags.to_vec(), values.iter().map(|bits| f32::from_bits(*bits)).collect())
}

/// Two steps of RS with all slices important; the second reply's bitmap defers by the first's
/// scores.
fn two_steps(shard: &mut OspShard) -> Reply {
    for step in 0..2 {
        let first = push(Stage::Rs, 1, step, 4);
        assert!(send(shard, first, &[1.0, 1.0, 1.0, 0.0]).unwrap().is_empty());
        let mut replies = send(shard, Push { worker: 0, ..first }, &[3.0, 1.0, 1.0, 1.0]).unwrap();
        let reply = replies.remove(0);
        assert!(replies.is_empty() && !shard.expects_ics());
        if step == 1 {
            return reply;
        }
        // Averages 2, 1, 1, 0.5, at a rate of a half.
        let (flags, parameters) = values(&reply);
        assert_eq!((flags, &parameters[..4]), (vec![0b111], &[0.0, 1.5, 3.5, 7.75][..]));
    }
    unreachable!("the second step returns");
}

#[test]
fn a_stage_is_applied_when_all_are_in_and_answered_to_all() {
    let mut shard = shard(0.0, MomentSource::Cheapest);
    let reply = two_steps(&mut shard);
    // Scores of step 0, |w g|: 2 (the mean of 2 and 2), 4, 4; 8 bytes take the first slice.
    assert_eq!(values(&reply), (vec![0b110], vec![-1.0, 1.0, 3.0, 7.5]));
    assert!(!shard.expects_ics(), "the bitmap splits the next step");
    assert_eq!(shard.version(), 2);

    // Step 2: RS of the last two slices, ICS of the first.
    send(&mut shard, push(Stage::Rs, 0, 2, 2), &[2.0, 2.0]).unwrap();
    let replies = send(&mut shard, push(Stage::Rs, 1, 2, 2), &[0.0, 0.0]).unwrap();
    assert_eq!(values(&replies[0]).1, [2.5, 7.0]);
    assert!(shard.expects_ics());
    assert_eq!(shard.parameters(), [-1.0, 1.0, 2.5, 7.0]);
    send(&mut shard, push(Stage::Ics, 1, 2, 2), &[2.0, 4.0]).unwrap();
    let replies = send(&mut shard, push(Stage::Ics, 0, 2, 2), &[2.0, 0.0]).unwrap();
    assert_eq!((replies[0].stage, values(&replies[0]).1), (Stage::Ics, vec![-2.0, 0.0]));
    assert!(!shard.expects_ics());
    assert_eq!((shard.version(), shard.memory().updates), (3, 3));
}

/// A worker that does not wait for its ICS cannot make a slice skip a step.
#[test]
fn rs_waits_until_the_step_before_is_applied() {
    let mut shard = shard(0.0, MomentSource::Cheapest);
    two_steps(&mut shard);
    for worker in 0..2 {
        send(&mut shard, push(Stage::Rs, worker, 2, 2), &[0.0; 2]).unwrap();
    }
    let len = shard.stage_len(Stage::Rs);
    for worker in 0..2 {
        let early = push(Stage::Rs, worker, 3, len);
        assert!(send(&mut shard, early, &vec![1.0; len]).unwrap().is_empty());
    }
    assert_eq!(shard.parameters(), [-1.0, 1.0, 3.0, 7.5]);
    send(&mut shard, push(Stage::Ics, 0, 2, 2), &[2.0; 2]).unwrap();
    let replies = send(&mut shard, push(Stage::Ics, 1, 2, 2), &[2.0; 2]).unwrap();
    let stages: Vec<Stage> = replies.iter().map(|reply| reply.stage).collect();
    assert_eq!(stages, [Stage::Ics, Stage::Rs]);
}

#[test]
fn moments_follow_the_parameters_where_they_are_shipped() {
    let mut shard = shard(0.5, MomentSource::Shipped);
    let reply = two_steps(&mut shard);
    // v = 0.5 v + g, twice.
    let expected = [-1.5, 0.75, 2.75, 7.375, 3.0, 1.5, 1.5, 0.75];
    assert_eq!(values(&reply).1, expected);
}

#[test]
fn what_breaks_the_protocol_is_refused_and_changes_nothing() {
    let mut shard = shard(0.0, MomentSource::Cheapest);
    let good = push(Stage::Rs, 0, 0, 4);
    send(&mut shard, good, &[1.0; 4]).unwrap();
    let other = Push { worker: 1, ..good };
    for (sender, bad, text) in [
        (0, good, "twice"),
        (2, good, "no worker"),
        (1, good, "in the name of rank 0"),
        (1, Push { step: 1, ..other }, "step 1: it is the turn of step 0"),
        (1, Push { words: 3, ..other }, "of 3 elements, not 4"),
        (1, Push { words: u32::MAX, ..other }, "elements, not 4"),
        (1, Push { learning_rate: 0.25, ..other }, "rate 0.25 and budget 8"),
        (1, Push { budget: 9, ..other }, "budget 9"),
        (1, Push { stage: Stage::Ics, ..other }, "no turn"),
    ] {
        let error = shard.handle_head(sender, &Head::Push(bad).encode()).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    for (sender, head, text) in [
        (0, Head::Stop, "rank 0 told another"),
        (0, Head::Done { worker: 0 }, "under way"),
        (1, Head::Done { worker: 0 }, "in the name"),
    ] {
        let error = shard.handle_head(sender, &head.encode()).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let error = shard.handle_body(&other, vec![0; 3]).unwrap_err().to_string();
    assert!(error.contains("announced 4 elements and sent 3"), "{error}");
    assert_eq!((shard.version(), shard.parameters()), (0, &[1.0, 2.0, 4.0, 8.0][..]));
    assert_eq!(send(&mut shard, other, &[1.0; 4]).unwrap().len(), 1);

    let done = Head::Done { worker: 1 }.encode();
    assert_eq!(shard.handle_head(1, &done).unwrap(), Expected::Done);
    let error = shard.handle_head(1, &done).unwrap_err().to_string();
    assert!(error.contains("after it was done"), "{error}");
    assert_eq!(shard.handle_head(1, &Head::Stop.encode()).unwrap(), Expected::Stop);
    assert!(!shard.all_done());
    let error = shard.reopen().unwrap_err().to_string();
    assert!(error.contains("rank 0 is not done"), "{error}");
    let other_done = Head::Done { worker: 0 }.encode();
    assert_eq!(shard.handle_head(0, &other_done).unwrap(), Expected::Done);
    shard.reopen().unwrap();
    assert_eq!(shard.handle_head(1, &done).unwrap(), Expected::Done);
}

/// The server is broken behind its own back, after two steps; its audit finds each.
#[test]
fn a_server_that_breaks_a_promise_is_found() {
    type Fault = fn(&mut OspShard);
    let faults: [(Fault, &str); 5] = [
        // A deferred slice is taken for one that is not: its gradient is never applied.
        (|shard| shard.ics.is_open = false, "while a slice lacks 2 steps, of 1"),
        // The same, and the next RS takes it.
        (
            |shard| {
                shard.ics.is_open = false;
                shard.next.fill(true);
            },
            "took step 3 where 2 is next",
        ),
        // An important slice is deferred as well: it would take the step twice.
        (|shard| shard.current = vec![false; 3], "makes 6 elements, of 4"),
        // ICS is made of fewer slices than RS left.
        (
            |shard| {
                shard.current = vec![true; 3];
                shard.ics.is_open = true;
            },
            "while a slice lacks 1 steps, of 0",
        ),
        // It takes the gradients of a rank that trains for those of one that does not.
        (|shard| shard.config.placement = Placement::Dedicated { rank: 0 }, "took 1 gradients"),
    ];
    for (fault, text) in faults {
        let mut shard = shard(0.0, MomentSource::Cheapest);
        two_steps(&mut shard);
        for worker in 0..2 {
            send(&mut shard, push(Stage::Rs, worker, 2, 2), &[1.0; 2]).unwrap();
        }
        fault(&mut shard);
        // Whatever the broken server asks for next.
        let stages = [Stage::Ics, Stage::Rs].into_iter().zip([2, 3]);
        let mut pushes = stages.flat_map(|stage| (0..2).map(move |worker| (stage, worker)));
        let error = pushes.find_map(|((stage, step), worker)| {
            if !shard.gathering(stage).is_open {
                return None;
            }
            let len = if shard.is_worker(worker) { shard.stage_len(stage) } else { 0 };
            send(&mut shard, push(stage, worker, step, len), &vec![1.0; len]).err()
        });
        let error = error.expect("it is found").to_string();
        assert!(error.contains("audit of OSP's server") && error.contains(text), "{error}");
    }
}

/// Added up in order of ranks: 1e8 - 1e8 + 1 is 1, in other orders 0.
#[test]
fn the_order_of_arrival_leaves_no_trace() {
    let terms = [1e8_f32, -1e8, 1.0].map(|value| vec![value.to_bits()]);
    let mut found = Vec::new();
    average(&terms.each_ref().map(Vec::as_slice), 0..1, &mut found);
    assert_eq!(found, [1.0 / 3.0]);
    for first in 0..2 {
        let mut shard = shard(0.0, MomentSource::Cheapest);
        for worker in [first, 1 - first] {
            let gradient = [[0.1, 0.7, 3.0, 1e-9], [1e7, -0.3, 0.2, 5.0]][worker as usize];
            send(&mut shard, push(Stage::Rs, worker, 0, 4), &gradient).unwrap();
        }
        let expected = [(0.1_f32 + 1e7) / 2.0, (0.7_f32 - 0.3) / 2.0];
        let found = [(1.0 - 0.5 * expected[0]).to_bits(), (2.0 - 0.5 * expected[1]).to_bits()];
        let bits: Vec<u32> = shard.parameters()[..2].iter().map(|w| w.to_bits()).collect();
        assert_eq!(bits, found);
    }
}

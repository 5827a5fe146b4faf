//! Broken plans, all of which must be found out.

use super::*;
use crate::collective::plan::{Fold, Round, Span};
use crate::collective::tests::{pairs, plans};
use crate::collective::{Algorithm, Topology};
use alloc::vec;

fn world(rounds: &[&[&[Step]]]) -> Vec<Plan> {
    let plan = |rounds: &&[&[Step]]| Plan {
        scratch_len: 2,
        rounds: rounds.iter().map(|steps| Round { steps: steps.to_vec() }).collect(),
    };
    rounds.iter().map(plan).collect()
}

fn flaw(kind: CollectiveKind, count: u64, rounds: &[&[&[Step]]]) -> Flaw {
    let shapes = vec![Shape::uniform(count); rounds.len()];
    check(kind, &world(rounds), &shapes).expect_err("the plans are broken")
}

fn send(peer: Rank, tag: u32, span: Span) -> Step {
    Step::Send { peer, tag, span }
}

fn recv(peer: Rank, tag: u32, span: Span) -> Step {
    Step::Recv { peer, tag, span, fold: Fold::Replace }
}

fn place(rank: Rank, round: usize, step: usize) -> Place {
    Place { rank, round, step }
}

const OUT: Span = Span::output(0, 2);
const TMP: Span = Span::scratch(0, 2);

#[test]
fn a_good_exchange_passes() {
    let to = |peer| [recv(peer, 0, TMP), send(peer, 0, OUT)];
    let fold = [Step::Reduce { source: TMP, target: OUT }];
    let late = [Step::Reduce { source: OUT, target: TMP }];
    let copy = [Step::Copy { source: TMP, target: OUT }];
    let plans = world(&[&[&to(1), &fold], &[&to(0), &late, &copy]]);
    let shapes = [Shape::uniform(2), Shape::uniform(2)];
    assert_eq!(check(CollectiveKind::AllReduce, &plans, &shapes), Ok(()));
}

#[test]
fn replicas_by_different_expressions() {
    let to = |peer| [recv(peer, 0, TMP), send(peer, 0, OUT)];
    let fold = [Step::Reduce { source: TMP, target: OUT }];
    let found = flaw(CollectiveKind::AllReduce, 2, &[&[&to(1), &fold], &[&to(0), &fold]]);
    assert_eq!(found, Flaw::ReplicasDiffer { rank: 1, element: 0 });
}

#[test]
fn everybody_receives_first() {
    let to = |peer: Rank| ([recv(peer, 0, TMP)], [send(peer, 0, OUT)]);
    let ((r1, s1), (r0, s0)) = (to(1), to(0));
    let found = flaw(CollectiveKind::AllReduce, 2, &[&[&r1, &s1], &[&r0, &s0]]);
    assert_eq!(found, Flaw::Deadlock { stuck: vec![(0, 0), (1, 0)] });
}

#[test]
fn everybody_sends_first() {
    let to = |peer: Rank| ([send(peer, 0, OUT)], [recv(peer, 0, TMP)]);
    let ((s1, r1), (s0, r0)) = (to(1), to(0));
    let found = flaw(CollectiveKind::AllReduce, 2, &[&[&s1, &r1], &[&s0, &r0]]);
    assert_eq!(found, Flaw::Deadlock { stuck: vec![(0, 0), (1, 0)] });
}

#[test]
fn later_message_wanted_first() {
    let (a, b) = (Span::output(0, 1), Span::output(1, 1));
    let found = flaw(
        CollectiveKind::Broadcast,
        2,
        &[&[&[send(1, 0, a), send(1, 1, b)]], &[&[recv(0, 1, b)], &[recv(0, 0, a)]]],
    );
    assert_eq!(found, Flaw::Overtaking { send: place(0, 0, 1) });
}

#[test]
fn aliasing_in_a_round() {
    let half = Span::output(1, 1);
    let both = [&[send(1, 0, OUT), recv(1, 0, half)][..]];
    let other = [&[recv(0, 0, TMP)][..], &[send(0, 0, half)]];
    let found = flaw(CollectiveKind::AllReduce, 2, &[&both, &other]);
    assert_eq!(found, Flaw::Aliased { recv: place(0, 0, 1), with: 0 });

    let twice = [&[recv(0, 0, OUT), recv(0, 1, half)][..]];
    let from = [&[send(1, 0, OUT), send(1, 1, half)][..]];
    let found = flaw(CollectiveKind::Broadcast, 2, &[&from, &twice]);
    assert_eq!(found, Flaw::Aliased { recv: place(1, 0, 1), with: 0 });

    let local = [&[Step::Copy { source: TMP, target: OUT }, recv(0, 0, OUT)][..]];
    let found = flaw(CollectiveKind::Broadcast, 2, &[&[&[send(1, 0, OUT)]], &local]);
    assert_eq!(found, Flaw::Aliased { recv: place(1, 0, 1), with: 0 });

    let onto_itself = [&[Step::Copy { source: half, target: Span::output(1, 1) }][..]];
    let found = flaw(CollectiveKind::AllReduce, 2, &[&onto_itself]);
    assert_eq!(found, Flaw::Aliased { recv: place(0, 0, 0), with: 0 });
}

/// A long span, then short ones inside it: neighbours in order are not enough to compare.
#[test]
fn aliasing_of_spans_that_are_not_neighbours() {
    let at = |offset| Span::output(offset, 1);
    let steps = [send(1, 0, Span::output(0, 9)), send(1, 1, at(3)), recv(1, 0, at(5))];
    let other = [recv(0, 0, Span::output(0, 9)), recv(0, 1, at(3)), send(0, 0, at(5))];
    let found = flaw(CollectiveKind::AllReduce, 9, &[&[&steps], &[&other]]);
    assert_eq!(found, Flaw::Aliased { recv: place(0, 0, 2), with: 0 });
}

#[test]
fn messages_without_counterpart() {
    let found = flaw(CollectiveKind::Broadcast, 2, &[&[&[send(1, 0, OUT)]], &[]]);
    assert_eq!(found, Flaw::Unmatched { at: place(0, 0, 0) });
    let found = flaw(CollectiveKind::Broadcast, 2, &[&[], &[&[recv(0, 0, OUT)]]]);
    assert_eq!(found, Flaw::Unmatched { at: place(1, 0, 0) });
    let twice = [send(1, 0, OUT), send(1, 0, OUT)];
    let found = flaw(CollectiveKind::Broadcast, 2, &[&[&twice], &[&[recv(0, 0, OUT)]]]);
    assert_eq!(found, Flaw::DuplicateTag { at: place(0, 0, 1) });
    let short = [recv(0, 0, Span::output(0, 1))];
    let found = flaw(CollectiveKind::Broadcast, 2, &[&[&[send(1, 0, OUT)]], &[&short]]);
    let (source, target) = (place(0, 0, 0), place(1, 0, 0));
    assert_eq!(found, Flaw::LengthMismatch { source, target, sent: 2, received: 1 });
}

#[test]
fn illegal_steps() {
    let at = place(0, 0, 0);
    let one = |kind, step| flaw(kind, 2, &[&[&[step]], &[]]);
    let kind = CollectiveKind::AllGather;
    let to_input = Step::Copy { source: Span::output(0, 2), target: Span::input(0, 2) };
    assert_eq!(one(kind, to_input), Flaw::InputWritten { at });
    let beyond = send(1, 0, Span::input(1, 2));
    assert_eq!(one(kind, beyond), Flaw::OutOfBounds { at, area: Area::Input, len: 2 });
    let wrapping = send(1, 0, Span::scratch(u64::MAX, 2));
    assert_eq!(one(kind, wrapping), Flaw::OutOfBounds { at, area: Area::Scratch, len: 2 });
    assert_eq!(one(kind, send(0, 0, OUT)), Flaw::PeerInvalid { at });
    assert_eq!(one(kind, send(2, 0, OUT)), Flaw::PeerInvalid { at });
    assert_eq!(one(kind, send(1, 1 << 31, OUT)), Flaw::TagReserved { at });
    assert_eq!(one(kind, send(1, 0, OUT)), Flaw::Unmatched { at });
    let uneven = Step::Copy { source: Span::input(0, 1), target: OUT };
    let mismatch = Flaw::LengthMismatch { source: at, target: at, sent: 1, received: 2 };
    assert_eq!(one(kind, uneven), mismatch);
    // In parts of one element, of which there are two.
    let (before, own) = (Span::output(0, 2), Span::input(0, 1));
    let after = Span::scratch(0, 0);
    let many = |target| one(kind, Step::ReduceMany { before, own, after, target });
    assert_eq!(
        many(Span::scratch(0, 2)),
        Flaw::LengthMismatch { source: at, target: at, sent: 1, received: 2 }
    );
    assert_eq!(many(Span::output(1, 1)), Flaw::Aliased { recv: at, with: 0 });
    assert_eq!(many(Span::input(0, 1)), Flaw::InputWritten { at });
    let undefined = Step::Copy { source: TMP, target: OUT };
    assert_eq!(one(kind, undefined), Flaw::Undefined { at, area: Area::Scratch, element: 0 });
    let on_leaf = Step::Copy { source: Span::input(0, 2), target: OUT };
    for kind in [CollectiveKind::Reduce, CollectiveKind::Gather] {
        let found = flaw(kind, 2, &[&[], &[&[on_leaf]]]);
        assert_eq!(found, Flaw::OutputOfNonRoot { at: place(1, 0, 0) });
    }
}

#[test]
fn wrong_results() {
    let found = flaw(CollectiveKind::AllReduce, 2, &[&[], &[]]);
    let missing =
        Flaw::Contribution { rank: 0, element: 0, source: 1, source_element: 0, times: 0 };
    assert_eq!(found, missing);
    let found = flaw(CollectiveKind::AllGather, 1, &[&[], &[]]);
    assert_eq!(found, Flaw::Unwritten { rank: 0, element: 0 });
    let shape = Shape::per_rank(vec![1]);
    let found = check(CollectiveKind::AllGather, &world(&[&[], &[]]), &[shape.clone(), shape]);
    assert_eq!(found, Err(Flaw::ShapeInvalid { rank: 0 }));
    let found = check(CollectiveKind::AllReduce, &world(&[&[]]), &[]);
    assert_eq!(found, Err(Flaw::ShapeInvalid { rank: 0 }));
}

/// Doubling itself 200 times: counting must end, and not overflow.
#[test]
fn huge_wrong_sums_are_counted() {
    let double =
        [Step::Copy { source: OUT, target: TMP }, Step::Reduce { source: TMP, target: OUT }];
    let rounds = vec![&double[..]; 200];
    let found = flaw(CollectiveKind::AllReduce, 2, &[&rounds]);
    let times = u64::MAX;
    let wanted = Flaw::Contribution { rank: 0, element: 0, source: 0, source_element: 0, times };
    assert_eq!(found, wanted);
}

#[test]
fn barrier_without_release() {
    let empty = Span::output(0, 0);
    let wait = [recv(1, 0, empty), recv(2, 0, empty)];
    let tell = [send(0, 0, empty)];
    let found = flaw(CollectiveKind::Barrier, 0, &[&[&wait], &[&tell], &[&tell]]);
    assert_eq!(found, Flaw::NotSynchronised { rank: 1, missing: 0 });
    // What is heard in a round is not told in it.
    let pass = |source, target| [recv(source, 0, empty), send(target, 0, empty)];
    let (a, b, c) = (pass(2, 1), pass(0, 2), pass(1, 0));
    let found = flaw(CollectiveKind::Barrier, 0, &[&[&a], &[&b], &[&c]]);
    assert_eq!(found, Flaw::NotSynchronised { rank: 0, missing: 1 });
}

/// One change to a plan.
type Change = fn(&mut Plan, round: usize, step: usize) -> bool;

fn span_of(step: &mut Step) -> Option<&mut Span> {
    match step {
        Step::Copy { target, .. } | Step::Reduce { target, .. } => Some(target),
        Step::ReduceMany { target, .. } => Some(target),
        Step::Recv { span, .. } | Step::Send { span, .. } => Some(span),
    }
}

/// Leaves local reductions alone: adding to a neighbour that is added in later is no mistake.
fn edit(plan: &mut Plan, round: usize, step: usize, what: impl Fn(&mut Span)) -> bool {
    let step = &mut plan.rounds[round].steps[step];
    if matches!(step, Step::Reduce { .. }) {
        return false;
    }
    let span = span_of(step);
    span.is_some_and(|span| {
        let before = *span;
        what(span);
        before.len > 0 && *span != before
    })
}

/// Every change, by name; whether it applies to a step is its result.
const CHANGES: [(&str, Change); 11] = [
    ("swapped fold", |plan, round, step| match &mut plan.rounds[round].steps[step] {
        Step::Recv { fold, span, .. } => {
            *fold = if *fold == Fold::Reduce { Fold::Replace } else { Fold::Reduce };
            span.len > 0
        }
        _ => false,
    }),
    ("reduce for copy and copy for reduce", |plan, round, step| {
        let step = &mut plan.rounds[round].steps[step];
        *step = match *step {
            Step::Copy { source, target } => Step::Reduce { source, target },
            Step::Reduce { source, target } => Step::Copy { source, target },
            _ => return false,
        };
        span_of(step).is_some_and(|span| span.len > 0)
    }),
    ("missing round", |plan, round, step| {
        plan.rounds.remove(round);
        step == 0
    }),
    ("missing step", |plan, round, step| {
        let step = plan.rounds[round].steps.remove(step);
        !matches!(step, Step::Copy { target, .. } | Step::ReduceMany { target, .. }
            if target.len == 0)
    }),
    ("wrong tag", |plan, round, step| match &mut plan.rounds[round].steps[step] {
        Step::Recv { tag, .. } | Step::Send { tag, .. } => {
            *tag += 1;
            true
        }
        _ => false,
    }),
    ("swapped peer", |plan, round, step| match &mut plan.rounds[round].steps[step] {
        Step::Recv { peer, .. } | Step::Send { peer, .. } => {
            *peer = if *peer == 0 { 1 } else { *peer - 1 };
            true
        }
        _ => false,
    }),
    ("span one on", |plan, round, step| edit(plan, round, step, |span| span.offset += 1)),
    ("span one back", |plan, round, step| {
        edit(plan, round, step, |span| span.offset = span.offset.saturating_sub(1))
    }),
    ("span one longer", |plan, round, step| edit(plan, round, step, |span| span.len += 1)),
    ("span one shorter", |plan, round, step| {
        edit(plan, round, step, |span| span.len = span.len.saturating_sub(1))
    }),
    ("receive onto what is sent", |plan, round, step| {
        let sent = plan.rounds[round].steps.iter().find_map(|step| match step {
            Step::Send { span, .. } if span.len > 0 => Some(*span),
            _ => None,
        });
        match (sent, &mut plan.rounds[round].steps[step]) {
            (Some(sent), Step::Recv { span, .. }) => {
                *span = sent;
                true
            }
            _ => false,
        }
    }),
];

#[test]
fn every_mutant_is_caught() {
    let mut caught = [0; CHANGES.len()];
    for (kind, algorithm) in pairs() {
        for world_size in 2..=6 {
            for hosts in [vec![0; world_size], (0..).map(|r| r % 2).take(world_size).collect()] {
                let topology = Topology::new(hosts);
                let shape = Shape::uniform(7).with_root(1);
                let shapes = vec![shape; world_size];
                let good = plans(kind, algorithm, &topology, &shapes);
                assert_eq!(check(kind, &good, &shapes), Ok(()));
                mutate(kind, algorithm, &good, &shapes, &mut caught);
            }
        }
    }
    assert!(caught.iter().all(|count| *count > 100), "{caught:?}");
}

fn mutate(
    kind: CollectiveKind,
    algorithm: Algorithm,
    good: &[Plan],
    shapes: &[Shape],
    caught: &mut [u32; CHANGES.len()],
) {
    for (rank, plan) in good.iter().enumerate() {
        for (round, steps) in plan.rounds.iter().enumerate() {
            for step in 0..steps.steps.len() {
                for ((name, change), caught) in CHANGES.iter().zip(&mut *caught) {
                    let mut plans = good.to_vec();
                    if !change(&mut plans[rank], round, step) {
                        continue;
                    }
                    *caught += 1;
                    let world_size = good.len();
                    assert!(
                        check(kind, &plans, shapes).is_err(),
                        "{kind}, {algorithm}, {world_size} ranks: {name} passes in rank {rank}, \
                         round {round}, step {step}: {:?}",
                        steps.steps[step]
                    );
                }
            }
        }
    }
}

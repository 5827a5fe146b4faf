//! Each promise, broken once.

use super::*;

fn text(outcome: Result<()>) -> String {
    outcome.unwrap_err().to_string()
}

/// Ranks 0 and 1 train, rank 2 only serves; two slices, of three elements together.
fn audit() -> Audit {
    Audit::new([true, true, false], 2, 3)
}

fn all_push(audit: &mut Audit, stage: Stage, step: u64, elements: u64) {
    for rank in 0..3 {
        let elements = if rank == 2 { 0 } else { elements };
        audit.pushed(rank, stage, step, elements).unwrap();
    }
}

/// Step 0 is over; of step 1, slice 0 was answered and slice 1 is under way.
fn deferring() -> Audit {
    let mut audit = audit();
    all_push(&mut audit, Stage::Rs, 0, 3);
    (0..2).for_each(|slice| audit.applied(slice, 0, 2).unwrap());
    audit.answered(Stage::Rs, 0).unwrap();
    all_push(&mut audit, Stage::Rs, 1, 2);
    audit.applied(0, 1, 2).unwrap();
    audit.answered(Stage::Rs, 1).unwrap();
    audit
}

#[test]
fn a_server_that_keeps_its_promises_is_left_alone() {
    let mut audit = deferring();
    // RS may come before the ICS of the step before, but not take effect.
    audit.pushed(0, Stage::Rs, 2, 3).unwrap();
    all_push(&mut audit, Stage::Ics, 1, 1);
    audit.applied(1, 1, 2).unwrap();
    audit.answered(Stage::Ics, 1).unwrap();
    audit.pushed(1, Stage::Rs, 2, 3).unwrap();
    audit.pushed(2, Stage::Rs, 2, 0).unwrap();
    (0..2).for_each(|slice| audit.applied(slice, 2, 2).unwrap());
    audit.answered(Stage::Rs, 2).unwrap();
    (0..3).for_each(|rank| audit.done(rank).unwrap());
    audit.collected().unwrap();
    audit.collected().unwrap();
    let report = audit.report();
    assert_eq!((report.pushes, report.updates), (12, 3));
    assert_eq!((report.widest_lead, report.widest_staleness), (1, 1));
    audit.pushed(1, Stage::Rs, 3, 3).unwrap();
}

#[test]
fn pushes_that_come_twice_or_out_of_their_turn_are_found() {
    let pushed =
        |rank, stage, step, elements| text(deferring().pushed(rank, stage, step, elements));
    assert!(pushed(0, Stage::Rs, 1, 3).contains("Rs of step 1 of rank 0 came where step 2 is"));
    assert!(pushed(0, Stage::Rs, 3, 3).contains("came where step 2 is next"));
    assert!(pushed(0, Stage::Ics, 2, 1).contains("came after RS of 2 steps, ICS of 0"));
    assert!(pushed(3, Stage::Rs, 2, 3).contains("a rank that there is not"));
    assert!(pushed(1, Stage::Ics, 1, 2).contains("makes 4 elements, of 3"));
    assert!(pushed(2, Stage::Ics, 1, 1).contains("of rank 2 makes 1 elements, of 0"));
    let mut audit = deferring();
    audit.pushed(0, Stage::Ics, 1, 1).unwrap();
    assert!(text(audit.pushed(0, Stage::Ics, 1, 0)).contains("ICS of 2"));
    audit.pushed(0, Stage::Rs, 2, 3).unwrap();
    assert!(text(audit.pushed(0, Stage::Rs, 3, 3)).contains("leads the slowest by 2 steps, of 1"));
}

#[test]
fn gradients_that_are_applied_twice_never_or_in_part_are_found() {
    assert!(text(deferring().applied(0, 1, 2)).contains("slice 0 took step 1 where 2 is next"));
    assert!(text(deferring().applied(1, 2, 2)).contains("slice 1 took step 2 where 1 is next"));
    assert!(text(deferring().applied(1, 1, 1)).contains("took 1 gradients of step 1, 2 ranks"));
    assert!(text(deferring().applied(1, 1, 3)).contains("took 3 gradients"));
    assert!(text(deferring().applied(2, 1, 2)).contains("none of this server's"));
    // A rank's elements that never came.
    let mut audit = deferring();
    audit.pushed(0, Stage::Ics, 1, 1).unwrap();
    audit.applied(1, 1, 2).unwrap();
    let reason = text(audit.answered(Stage::Ics, 1));
    assert!(reason.contains("step 1 has 2 elements of rank 1, not 3"), "{reason}");
}

#[test]
fn replies_before_their_time_are_found() {
    let mut audit = deferring();
    assert!(text(audit.clone().answered(Stage::Ics, 1)).contains("lacks 1 steps, of 0"));
    assert!(text(audit.clone().answered(Stage::Rs, 2)).contains("before the push of rank 0"));
    all_push(&mut audit, Stage::Rs, 2, 3);
    audit.applied(0, 2, 2).unwrap();
    assert!(text(audit.answered(Stage::Rs, 2)).contains("lacks 2 steps, of 1"));
}

#[test]
fn what_a_collection_leaves_behind_is_found() {
    assert!(text(deferring().done(0)).contains("step 1 is not all applied"));
    let mut ended = deferring();
    ended.ranks.iter_mut().for_each(|rank| rank.is_done = true);
    assert!(text(ended.collected()).contains("slice 1 took 1 steps of 2"));
    let mut audit = deferring();
    all_push(&mut audit, Stage::Ics, 1, 1);
    audit.applied(1, 1, 2).unwrap();
    audit.answered(Stage::Ics, 1).unwrap();
    audit.done(1).unwrap();
    assert!(text(audit.clone().collected()).contains("rank 0 is not done"));
    assert!(text(audit.clone().done(1)).contains("done twice"));
    assert!(text(audit.clone().pushed(1, Stage::Rs, 2, 3)).contains("after the rank was done"));
    audit.pushed(0, Stage::Rs, 2, 0).unwrap();
    audit.ranks[0].elements.clear();
    (0..3).filter(|rank| *rank != 1).for_each(|rank| audit.done(rank).unwrap());
    assert!(text(audit.collected()).contains("rank 1 made 2 steps, rank 0 3"));
}

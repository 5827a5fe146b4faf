use super::*;

fn text<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().to_string()
}

/// Worker 0 has pushed once and was applied and answered.
fn one(promise: Promise) -> Audit {
    let mut audit = Audit::new(promise, 3);
    audit.reopened().unwrap();
    audit.pushed(0, 0, 0).unwrap();
    audit.updated(&[(0, 0)], 1).unwrap();
    audit.replied(0, 0, 1).unwrap();
    audit
}

#[test]
fn each_gradient_is_applied_once_and_in_order() {
    let mut audit = one(Promise::Any);
    assert!(
        text(audit.clone().updated(&[(0, 0)], 2)).contains("push 0 of rank 0 was applied where 1")
    );
    assert!(
        text(audit.clone().updated(&[(0, 1)], 2))
            .contains("push 1 of rank 0 was applied and never")
    );
    assert!(text(audit.clone().updated(&[(7, 0)], 2)).contains("a rank that there is not"));
    assert!(text(audit.clone().updated(&[], 2)).contains("without a push"));
    audit.pushed(1, 0, 0).unwrap();
    assert!(text(audit.clone().replied(1, 0, 1)).contains("answered before it was applied"));
    assert!(text(audit.clone().updated(&[(1, 0)], 3)).contains("made version 3 out of 1"));
    assert!(text(audit.clone().updated(&[(1, 0)], 1)).contains("made version 1 out of 1"));
    audit.updated(&[(1, 0)], 2).unwrap();
    assert!(text(audit.clone().replied(1, 0, 1)).contains("answered with version 1, it is 2"));
    assert!(text(audit.clone().replied(1, 1, 2)).contains("push 1 of rank 1 was answered"));
    assert!(text(audit.clone().replied(0, 0, 2)).contains("was answered, 1 is next"));
    audit.replied(1, 0, 2).unwrap();
    assert!(text(audit.pushed(1, 1, 3)).contains("is of version 3, 2 was sent"));
}

#[test]
fn a_drain_leaves_nothing_behind() {
    let mut audit = one(Promise::Any);
    audit.done(0).unwrap();
    audit.done(1).unwrap();
    assert!(text(audit.collected(0, 1)).contains("push 0 of rank 2 may still come"));
    assert!(text(audit.clone().reopened()).contains("may still come"));
    audit.pushed(2, 0, 0).unwrap();
    assert!(text(audit.clone().done(2)).contains("was not answered when its worker was done"));
    audit.updated(&[(2, 0)], 2).unwrap();
    audit.replied(2, 0, 2).unwrap();
    audit.done(2).unwrap();
    assert!(text(audit.clone().done(2)).contains("done twice"));
    assert!(text(audit.clone().pushed(2, 1, 2)).contains("after the worker was done"));
    audit.collected(1, 2).unwrap();
    assert!(text(audit.collected(1, 1)).contains("rank 1 sees version 1 at the end, it is 2"));
    // All have the version of the drain.
    audit.reopened().unwrap();
    audit.pushed(1, 0, 2).unwrap();
    let report = audit.report();
    assert_eq!((report.pushes, report.updates, report.held), (3, 2, 0));
}

#[test]
fn groups_are_full_until_all_are_done() {
    let mut audit = Audit::new(Promise::Groups(2), 3);
    let push = |audit: &mut Audit, worker, clock| {
        audit.pushed(worker, clock, 0).unwrap();
        audit.replied(worker, clock, audit.version).unwrap();
    };
    push(&mut audit, 0, 0);
    push(&mut audit, 0, 1);
    push(&mut audit, 2, 0);
    assert!(text(audit.clone().updated(&[(0, 0)], 1)).contains("in an update of 1, not 2"));
    let all = [(0, 0), (0, 1), (2, 0)];
    assert!(text(audit.clone().updated(&all, 1)).contains("in an update of 3, not 2"));
    assert!(text(audit.clone().updated(&[(0, 1), (0, 0)], 1)).contains("where 0 is next"));
    assert!(text(audit.clone().updated(&[(0, 0), (0, 0)], 1)).contains("where 1 is next"));
    audit.updated(&all[..2], 1).unwrap();
    (0..3).for_each(|worker| audit.done(worker).unwrap());
    assert!(text(audit.collected(0, 1)).contains("push 0 of rank 2 was not applied"));
    audit.updated(&all[2..], 2).unwrap();
    audit.collected(0, 2).unwrap();
}

#[test]
fn leads_are_counted_against_the_slowest_who_is_not_done() {
    let mut audit = Audit::new(Promise::Lead(1), 3);
    let mut version = 0;
    let mut apply = |audit: &mut Audit, worker, clock| {
        audit.pushed(worker, clock, 0)?;
        version += 1;
        audit.updated(&[(worker, clock)], version)
    };
    apply(&mut audit, 0, 0).unwrap();
    audit.replied(0, 0, 1).unwrap();
    apply(&mut audit, 0, 1).unwrap();
    let error = text(audit.clone().replied(0, 1, 2));
    assert!(error.contains("push 1 of rank 0 was answered 2 ahead, not 1"), "{error}");
    // A rule that lets it go on all the same is met again at the next push.
    let mut blind = audit.clone();
    blind.workers[0].answered = 2;
    let error = text(blind.pushed(0, 2, 0));
    assert!(error.contains("push 2 of rank 0 leads by 3, the bound is 1 and"), "{error}");
    apply(&mut audit, 1, 0).unwrap();
    audit.replied(1, 0, 3).unwrap();
    assert!(audit.clone().replied(0, 1, 3).is_err());
    audit.done(2).unwrap();
    audit.replied(0, 1, 3).unwrap();
    assert_eq!((audit.report().widest_lead, audit.report().held), (2, 1));
    // All are level after a drain, whatever they did before.
    (0..2).for_each(|worker| audit.done(worker).unwrap());
    audit.reopened().unwrap();
    assert_eq!(audit.lead(0), 0);
}

#[test]
fn a_bound_without_an_end_is_kept() {
    let mut audit = Audit::new(Promise::Lead(u64::MAX), 2);
    for clock in 0..5 {
        audit.pushed(0, clock, 0).unwrap();
        audit.updated(&[(0, clock)], clock + 1).unwrap();
        audit.replied(0, clock, clock + 1).unwrap();
    }
    assert_eq!(audit.report().widest_lead, 5);
}

#[test]
fn turns_go_round_those_who_are_not_done() {
    let mut audit = Audit::new(Promise::Turns, 3);
    let turn = |audit: &mut Audit, worker, clock| {
        let version = audit.version + 1;
        audit.pushed(worker, clock, 0)?;
        audit.updated(&[(worker, clock)], version)?;
        audit.replied(worker, clock, version)
    };
    assert!(text(turn(&mut audit.clone(), 1, 0)).contains("in the turn of rank Some(0)"));
    turn(&mut audit, 0, 0).unwrap();
    assert!(text(turn(&mut audit.clone(), 0, 1)).contains("in the turn of rank Some(1)"));
    turn(&mut audit, 1, 0).unwrap();
    assert!(text(turn(&mut audit.clone(), 0, 1)).contains("in the turn of rank Some(2)"));
    turn(&mut audit, 2, 0).unwrap();
    turn(&mut audit, 0, 1).unwrap();
    audit.done(1).unwrap();
    turn(&mut audit, 2, 1).unwrap();
    turn(&mut audit, 0, 2).unwrap();
    audit.done(0).unwrap();
    turn(&mut audit, 2, 2).unwrap();
    turn(&mut audit, 2, 3).unwrap();
}

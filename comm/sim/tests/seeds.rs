//! A thousand seeds keep every promise, and the checker does see broken ones.

use syncline_sim::{Scenario, Violation, run, run_with};

#[test]
fn a_thousand_seeds_keep_every_promise() {
    let (mut succeeded, mut failed) = (0, 0);
    for seed in 0..1000 {
        let scenario = Scenario::from_seed(seed);
        let report = run(&scenario, |_| {});
        assert_eq!(report.violation, None, "seed {seed}: {scenario:#?}");
        succeeded += report.succeeded;
        failed += report.failed;
    }
    // Both kinds of end are really met.
    assert!(succeeded > 1000 && failed > 500, "{succeeded} {failed}");
}

#[test]
fn a_seed_plays_the_same_twice() {
    for seed in 0..200 {
        let scenario = Scenario::from_seed(seed);
        let (one, two) = (run(&scenario, |_| {}), run(&scenario, |_| {}));
        assert_eq!((one.trace, one.events), (two.trace, two.events), "seed {seed}");
    }
}

#[test]
fn a_flipped_element_is_seen() {
    let seen = (0..200).filter(|seed| {
        let scenario = Scenario::from_seed(*seed);
        let mut flipped = false;
        let report = run_with(&scenario, &mut |data| {
            if let (Some(element), false) = (data.first_mut(), flipped) {
                *element ^= 1 << 40;
                flipped = true;
            }
        });
        matches!(report.violation, Some(Violation::WrongResult { .. }))
    });
    assert!(seen.count() > 50, "corruption goes unseen");
}

#[test]
fn a_lost_message_is_seen_as_a_failure_where_none_may_be() {
    let seen = (0..200).filter(|seed| {
        let scenario = Scenario::from_seed(*seed);
        let mut lost = false;
        let report = run_with(&scenario, &mut |data| {
            if data.len() > 1 && !lost {
                data.clear();
                lost = true;
            }
        });
        matches!(report.violation, Some(Violation::WrongError { .. }))
    });
    assert!(seen.count() > 20, "loss goes unseen");
}

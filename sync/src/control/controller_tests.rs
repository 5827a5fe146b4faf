//! The controller against made-up windows.

use std::time::Duration;

use super::*;
use crate::config::AspConfig;
use crate::control::Sketch;
use crate::policy::guard::GuardConfig;
use crate::policy::phase::PhaseConfig;

const RANKS: u32 = 4;
/// Of all ranks.
const STEP_SAMPLES: u64 = 40;

fn asp() -> ModelKind {
    ModelKind::Asp(AspConfig::default())
}

/// BSP for half of 1000 samples, of which a step of all four ranks takes 40.
fn config() -> ControlConfig {
    ControlConfig {
        timing: Timing::Share(0.5),
        window_steps: 5,
        evicted_steps: 7,
        ..ControlConfig::new(asp(), RANKS, 10, 1000)
    }
}

fn guarded() -> ControlConfig {
    let guard = GuardConfig {
        patience: 1,
        snapshot_every: 10,
        least_fraction: 0.125,
        max_rollbacks: 2,
        stall: None,
        ..GuardConfig::default()
    };
    ControlConfig { timing: Timing::Share(0.0), guard: Some(guard), ..config() }
}

fn place(step: u64) -> Place {
    Place { step, samples: step * STEP_SAMPLES, rate: 0.1 }
}

/// A window in which each rank took so many milliseconds a step, with this loss.
fn words(ms: [u64; 4], loss: f64) -> Vec<u64> {
    let report = |ms| RankReport {
        steps: 5,
        computed_steps: 5,
        compute: Duration::from_millis(5 * ms),
        loss_sum: 5.0 * loss,
        first_loss: loss,
        is_finite: loss.is_finite(),
        sketch: Sketch::default(),
    };
    ms.into_iter().flat_map(|ms| report(ms).to_words()).collect()
}

fn even(loss: f64) -> Vec<u64> {
    words([10; 4], loss)
}

fn actions(decisions: &[Decision]) -> Vec<Action> {
    decisions.iter().map(|decision| decision.action.clone()).collect()
}

#[test]
fn the_switch_comes_at_the_end_of_the_share() {
    let mut controller = Controller::new(config()).unwrap();
    assert_eq!((controller.model(), controller.steps_to_meeting(0)), (ModelKind::Bsp, 5));
    assert!(controller.observe(&place(5), &even(1.0)).unwrap().is_empty());
    // 500 samples are 12.5 steps.
    assert_eq!(controller.steps_to_meeting(10 * STEP_SAMPLES), 3);
    let decisions = controller.observe(&place(13), &even(1.0)).unwrap();
    assert_eq!(actions(&decisions), [Action::Switch(asp())]);
    let record = decisions[0].to_record().unwrap();
    assert_eq!((record.from.as_str(), record.to.as_str()), ("bsp", "asp"));
    assert_eq!(record.evidence["samples_of_all_ranks"], 520.0);
    assert_eq!((controller.model(), controller.steps_to_meeting(520)), (asp(), 5));
}

#[test]
fn noise_relaxes_the_phase_without_a_search() {
    let phase = PhaseConfig { dwell_samples: 0, smoothing: 0.0, ..PhaseConfig::default() };
    let mut controller =
        Controller::new(ControlConfig { timing: Timing::Noise(phase), ..config() }).unwrap();
    let window = |signal: f32, noise: f32| -> Vec<u64> {
        let mut random = fastrand::Rng::with_seed(3);
        let mut report = |_| {
            let gradient: Vec<f32> =
                (0..2000).map(|_| signal + noise * (random.f32() - 0.5)).collect();
            RankReport {
                steps: 1,
                computed_steps: 1,
                compute: Duration::from_millis(1),
                loss_sum: 1.0,
                first_loss: 1.0,
                is_finite: true,
                sketch: Sketch::of(&[&gradient], 1),
            }
        };
        (0..4).flat_map(|rank| report(rank).to_words()).collect()
    };
    // All gradients alike: what is stale is missing.
    assert!(controller.observe(&place(1), &window(1.0, 0.01)).unwrap().is_empty());
    let decisions = controller.observe(&place(2), &window(0.0, 1.0)).unwrap();
    assert_eq!(actions(&decisions), [Action::Switch(asp())]);
    assert!(decisions[0].reason.contains("of what noise costs"), "{}", decisions[0].reason);
    assert!(decisions[0].evidence["staleness_to_noise"] < 0.1);
    // And back.
    let decisions = controller.observe(&place(3), &window(1.0, 0.01)).unwrap();
    assert_eq!(actions(&decisions), [Action::Switch(ModelKind::Bsp)]);
}

#[test]
fn the_elastic_policy_goes_on_without_slow_ranks_until_they_recover() {
    let mut controller =
        Controller::new(ControlConfig { stragglers: Stragglers::Elastic, ..config() }).unwrap();
    let slow = words([10, 10, 40, 11], 1.0);
    assert!(controller.observe(&place(1), &slow).unwrap().is_empty());
    let decisions = controller.observe(&place(2), &slow).unwrap();
    assert_eq!(actions(&decisions), [Action::Detect(2), Action::Evict(vec![2])]);
    assert_eq!(decisions[0].evidence["speed_samples_per_s"], 250.0);
    assert_eq!(decisions[1].to, "3 ranks, without [2]");
    assert_eq!((controller.evicted(), controller.members()), (&[2][..], vec![0, 1, 3]));
    // 420 samples of 30 a step are left of the share, which is more than 7 steps.
    assert_eq!(controller.steps_to_meeting(80), 7);
    assert_eq!(controller.steps_to_meeting(440), 2);
    assert!(controller.observe(&place(3), &even(1.0)).unwrap().is_empty());
    let decisions = controller.observe(&place(4), &even(1.0)).unwrap();
    assert_eq!(actions(&decisions), [Action::Clear(2), Action::Readmit(vec![2])]);
    assert!(controller.evicted().is_empty());
}

#[test]
fn the_end_of_the_share_takes_all_ranks_in_again() {
    let mut controller =
        Controller::new(ControlConfig { stragglers: Stragglers::Elastic, ..config() }).unwrap();
    let slow = words([10, 40, 10, 11], 1.0);
    controller.observe(&place(1), &slow).unwrap();
    controller.observe(&place(2), &slow).unwrap();
    assert_eq!(controller.evicted(), [1]);
    let decisions = controller.observe(&place(13), &slow).unwrap();
    assert_eq!(actions(&decisions), [Action::Readmit(vec![1]), Action::Switch(asp())]);
    assert!(decisions[0].reason.contains("share under BSP is done"));
    // Under ASP nobody waits for it.
    assert!(controller.observe(&place(14), &slow).unwrap().is_empty());
}

#[test]
fn the_greedy_policy_relaxes_while_ranks_are_slow() {
    let mut controller =
        Controller::new(ControlConfig { stragglers: Stragglers::Greedy, ..config() }).unwrap();
    let slow = words([40, 10, 10, 11], 1.0);
    controller.observe(&place(1), &slow).unwrap();
    let decisions = controller.observe(&place(2), &slow).unwrap();
    assert_eq!(actions(&decisions), [Action::Detect(0), Action::Switch(asp())]);
    assert!(controller.evicted().is_empty());
    controller.observe(&place(3), &even(1.0)).unwrap();
    let decisions = controller.observe(&place(4), &even(1.0)).unwrap();
    assert_eq!(actions(&decisions), [Action::Clear(0), Action::Switch(ModelKind::Bsp)]);
    assert!(decisions[1].reason.starts_with("no rank is slow"), "{}", decisions[1].reason);
}

#[test]
fn divergence_on_any_rank_rolls_all_back_until_it_is_hopeless() {
    let mut controller = Controller::new(guarded()).unwrap();
    assert_eq!(controller.model(), asp());
    let decisions = controller.observe(&place(5), &even(2.0)).unwrap();
    assert_eq!(actions(&decisions), [Action::TakeSnapshot]);
    assert!(decisions[0].to_record().is_none());
    assert!(controller.observe(&place(10), &even(2.0)).unwrap().is_empty());
    // One rank of four.
    let one_bad = || {
        let mut all = even(2.0);
        all[2 * super::super::WORDS + 4] = 0;
        all
    };
    let decisions = controller.observe(&place(15), &one_bad()).unwrap();
    assert_eq!(actions(&decisions), [Action::RollBack(ModelKind::Bsp)]);
    assert_eq!(decisions[0].evidence["share_under_bsp"], 0.125);
    assert_eq!(controller.model(), ModelKind::Bsp);
    // 125 samples from there are 4 steps.
    controller.resume_at(200);
    assert_eq!(controller.steps_to_meeting(200), 4);
    assert_eq!(controller.steps_to_meeting(320), 1);
    let decisions = controller.observe(&place(5), &one_bad()).unwrap();
    assert_eq!(decisions[0].evidence["share_under_bsp"], 0.25);
    let decisions = controller.observe(&place(5), &one_bad()).unwrap();
    assert_eq!(actions(&decisions), [Action::GiveUp]);
    let reason = &decisions[0].reason;
    assert!(reason.contains("step 5") && reason.contains("NaN"), "{reason}");
}

#[test]
fn after_the_share_of_a_rollback_the_relaxed_model_is_tried_again() {
    let mut controller = Controller::new(guarded()).unwrap();
    controller.observe(&place(5), &even(f64::NAN)).unwrap();
    controller.resume_at(0);
    let bsp = controller.observe(&place(3), &even(2.0)).unwrap();
    assert_eq!(actions(&bsp), [Action::TakeSnapshot]);
    let decisions = controller.observe(&place(4), &even(2.0)).unwrap();
    assert_eq!(actions(&decisions), [Action::Switch(asp())]);
}

#[test]
fn the_end_of_the_job_changes_nothing_but_divergence_still_counts() {
    let mut controller = Controller::new(config()).unwrap();
    assert!(controller.observe(&place(25), &even(1.0)).unwrap().is_empty());
    let mut controller = Controller::new(guarded()).unwrap();
    assert!(controller.observe(&place(25), &even(1.0)).unwrap().is_empty());
    let decisions = controller.observe(&place(25), &even(f64::NAN)).unwrap();
    assert_eq!(actions(&decisions), [Action::RollBack(ModelKind::Bsp)]);
}

/// Whatever the ranks say, the controller goes on, alike for alike words, and somebody trains.
#[test]
fn any_words_are_borne() {
    let settings =
        ControlConfig { timing: config().timing, ..ControlConfig::new(asp(), 4, 10, 1000) };
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let stragglers = [Stragglers::None, Stragglers::Greedy, Stragglers::Elastic];
        let timing = match seed % 2 {
            0 => Timing::Share(random.f64()),
            _ => Timing::Noise(PhaseConfig::default()),
        };
        let settings = ControlConfig {
            stragglers: stragglers[random.usize(0..3)],
            guard: guarded().guard,
            timing,
            ..settings
        };
        let mut one = Controller::new(settings).unwrap();
        let mut other = Controller::new(settings).unwrap();
        for step in 0..30 {
            let mut all = vec![0; 4 * super::super::WORDS];
            all.iter_mut().for_each(|word| {
                *word = if random.bool() { random.u64(..) } else { random.u64(0..4) };
            });
            let found = one.observe(&place(step), &all).unwrap();
            assert_eq!(actions(&found), actions(&other.observe(&place(step), &all).unwrap()));
            assert!(2 * one.members().len() > 4, "{:?}", one.evicted());
            assert!(one.steps_to_meeting(place(step).samples) > 0);
        }
    }
}

#[test]
fn settings_and_words_that_cannot_work_are_refused() {
    for (bad, text) in [
        (ControlConfig { strict: asp(), ..config() }, "wait for each other"),
        (ControlConfig { window_steps: 0, ..config() }, "window"),
        (ControlConfig { evicted_steps: 0, ..config() }, "sits out"),
        (ControlConfig { ranks: 0, ..config() }, "a rank"),
        (ControlConfig { total_samples: 0, ..config() }, "samples"),
        (ControlConfig { timing: Timing::Share(f64::NAN), ..config() }, "share"),
        (ControlConfig { timing: Timing::Share(1.5), ..config() }, "share"),
    ] {
        let error = Controller::new(bad).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let mut controller = Controller::new(config()).unwrap();
    assert!(controller.observe(&place(1), &even(1.0)[1..]).is_err());
    let three = &even(1.0)[super::super::WORDS..];
    let error = controller.observe(&place(1), three).unwrap_err().to_string();
    assert!(error.contains("3 reports of 4 ranks"), "{error}");
}

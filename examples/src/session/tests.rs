//! Whole runs over the real communicator, ranks as threads.

use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::record::{DecisionKind, Record, RunDir};

use super::*;
use crate::data::Dataset;
use crate::model::NetKind;
use crate::protocol::{Message, Summary};
use crate::spec::model;
use crate::spec::tests::spec;
use crate::worker::{WorkerError, train};

type Outcome = Result<(Vec<Tensor>, Vec<Message>), WorkerError>;

/// What every rank of a run ends with.
fn run(spec: &RunSpec) -> Vec<Outcome> {
    let data = Dataset::of(spec).unwrap();
    threads(
        spec.ranks,
        |config| config.timeout = Duration::from_secs(60),
        |communicator| {
            let rank = communicator.rank();
            let mut sync = SessionSynchroniser::over(communicator, spec, false).unwrap();
            let mut messages = Vec::new();
            let mut send = |message: &Message| {
                messages.push(message.clone());
                Ok(())
            };
            let parameters = train(spec, rank, &data, &mut sync, &mut send)?;
            Ok((parameters, messages))
        },
    )
}

fn small(model: &str) -> RunSpec {
    RunSpec { ranks: 3, batch: 16, epochs: 4, net: NetKind::Mlp, lr: 0.1, ..spec(model) }
}

fn summary(messages: &[Message]) -> &Summary {
    let Some(Message::Done(summary)) = messages.last() else { panic!("Done comes last") };
    summary
}

fn decisions(messages: &[Message]) -> Vec<&syncline::record::Decision> {
    messages
        .iter()
        .filter_map(|message| match message {
            Message::Decision(decision) => Some(decision),
            _ => None,
        })
        .collect()
}

#[test]
fn a_planned_run_goes_through_its_models_and_learns() {
    let folder = tempfile::TempDir::new().unwrap();
    let mut spec = small("bsp:30%+osp:20%+asp");
    spec.steering.momentum = "ramp:60".to_owned();
    spec.log = Some(folder.path().join("run"));
    let outcomes: Vec<_> = run(&spec).into_iter().map(Result::unwrap).collect();
    let first = &outcomes[0];
    assert!(outcomes.iter().all(|(parameters, _)| *parameters == first.0));
    // 4 epochs of 29 steps; the switches are at 34.8 and 58 of them, ramps each 20 steps later.
    let found: Vec<(u64, &str)> =
        decisions(&first.1).iter().map(|decision| (decision.step, decision.to.as_str())).collect();
    assert_eq!(found[..2], [(35, "osp"), (58, "asp with momentum 0.3")]);
    assert_eq!(found[2..].iter().map(|(step, _)| *step).collect::<Vec<_>>(), [78, 98]);
    assert_eq!(found[3].1, "asp");
    // Guessing gives 0.1; four epochs are enough to see that it learns.
    let accuracy = summary(&first.1).final_accuracy.unwrap();
    assert!(accuracy > 0.5, "{accuracy}");
    assert!(summary(&first.1).switch_s > 0.0);
    // The same in the logs of all ranks, each step under the model that it ran under.
    let dir = RunDir::read(&folder.path().join("run")).unwrap();
    assert_eq!((dir.ranks.len(), dir.run().model.as_str()), (3, "bsp:30%+osp:20%+asp"));
    let mut epochs = Vec::new();
    for log in &dir.ranks {
        let mut models = Vec::new();
        for record in &log.records {
            match record {
                Record::Step(step) => models.push(step.model.as_str()),
                Record::Accuracy(accuracy) => epochs.push(accuracy.epoch),
                Record::Decision(decision) => assert_eq!(decision.kind, DecisionKind::Switch),
                _ => {}
            }
        }
        let count = |model| models.iter().filter(|name| **name == model).count();
        assert_eq!((count("bsp"), count("osp"), count("asp")), (35, 23, 58));
        let Some(Record::End(end)) = log.records.last() else { panic!("no end") };
        assert_eq!((end.steps, end.outcome.as_str()), (116, "finished"));
    }
    epochs.sort_unstable();
    assert_eq!(epochs, [1, 2, 3, 4]);
}

/// Two ranks learn, with a server on the third that reports no samples.
#[test]
fn a_run_with_a_dedicated_server_trains_on_the_others() {
    let outcomes = run(&RunSpec { epochs: 2, ..small("osp-ps:placement=dedicated@0") });
    let all: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
    assert!(all.iter().all(|(parameters, _)| *parameters == all[0].0));
    // 1437 images in steps of two times 16.
    for (rank, (_, messages)) in all.iter().enumerate() {
        let Summary { steps, samples, compute_s, .. } = *summary(messages);
        let expected = if rank == 0 { 0 } else { 88 * 16 };
        assert_eq!((steps, samples), (88, expected));
        assert_eq!(compute_s > 0.0, rank > 0);
        let is_time = |message: &Message| matches!(message, Message::SyncTimes { .. });
        assert_eq!(messages.iter().any(is_time), rank > 0);
    }
    let accuracy = summary(&all[0].1).final_accuracy.unwrap();
    assert!(accuracy > 0.3, "{accuracy}");
}

/// Rank 2 sleeps in every step, and so takes fewer samples; the job takes as many as ever.
#[test]
fn under_r2sp_a_slow_rank_takes_smaller_batches() {
    let mut spec = small("r2sp");
    spec.stragglers = vec!["2:15ms".parse().unwrap()];
    let taken = |spec: &RunSpec| {
        let all: Vec<_> = run(spec).into_iter().map(Result::unwrap).collect();
        assert!(all.iter().all(|(parameters, _)| *parameters == all[0].0));
        // Guessing gives 0.1.
        let accuracy = summary(&all[0].1).final_accuracy.unwrap();
        assert!(accuracy > 0.5, "{accuracy}");
        assert!(all.iter().all(|(_, messages)| summary(messages).steps == 116));
        all.iter().map(|(_, messages)| summary(messages).samples).collect::<Vec<_>>()
    };
    let samples = taken(&spec);
    assert_eq!(samples.iter().sum::<u64>(), 3 * 116 * 16);
    // Equal parts for the first fifth, and then about one sample in its place.
    assert!(samples[2] < 116 * 12, "{samples:?}");
    spec.model = model("r2sp:batches=equal");
    assert_eq!(taken(&spec), [116 * 16; 3]);
}

#[test]
fn b_settings_that_a_dedicated_server_cannot_have_are_refused() {
    let refusal = |spec: &RunSpec| check(spec).unwrap_err().to_string();
    let dedicated = "osp-ps:placement=dedicated@0";
    assert!(check(&small(dedicated)).is_ok());
    let mut guarded = small(dedicated);
    guarded.steering.guards = true;
    let strangers = small("osp-ps:placement=dedicated@3");
    let mixed = small(&format!("bsp:30%+{dedicated}"));
    let alone = RunSpec { ranks: 1, ..small(dedicated) };
    let slow = RunSpec { stragglers: vec!["0:5ms".parse().unwrap()], ..small(dedicated) };
    for (spec, wanted) in [
        (guarded, "does not go with a dedicated server"),
        (strangers, "below 3, not 3"),
        (mixed, "same dedicated server"),
        (alone, "needs another rank"),
        (slow, "rank 0 does not train"),
    ] {
        assert!(refusal(&spec).contains(wanted), "{}", refusal(&spec));
    }
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let mut spec = RunSpec { epochs: 1, ..small("bsp") };
    spec.log = Some("/dev/null/run".into());
    assert!(run(&spec).into_iter().all(|outcome| outcome.is_ok()));
}

/// A rank whose parameters break once.
struct Breaking {
    sync: SessionSynchroniser,
    steps_before: u64,
}

impl Synchroniser for Breaking {
    fn transport(&self) -> String {
        self.sync.transport()
    }

    fn start(&mut self, parameters: &mut [Tensor]) -> Result<(), BoxError> {
        self.sync.start(parameters)
    }

    fn step(
        &mut self,
        loss: f32,
        parameters: &mut [Tensor],
        gradients: &mut [Tensor],
        lr: f32,
    ) -> Result<StepCost, BoxError> {
        self.steps_before = self.steps_before.wrapping_sub(1);
        if self.steps_before == 0 {
            gradients[0].data.fill(f32::NAN);
        }
        self.sync.step(loss, parameters, gradients, lr)
    }

    fn end_epoch(&mut self, mean_loss: f32) -> Result<EpochReport, BoxError> {
        self.sync.end_epoch(mean_loss)
    }

    fn finish(&mut self, parameters: &mut [Tensor]) -> Result<StepCost, BoxError> {
        self.sync.finish(parameters)
    }

    fn model(&self) -> String {
        self.sync.model()
    }

    fn stretch(&mut self, at: Position) -> Stretch {
        self.sync.stretch(at)
    }

    fn stand_by(&mut self, compute: Duration) {
        self.sync.stand_by(compute);
    }

    fn survives_divergence(&self) -> bool {
        self.sync.survives_divergence()
    }

    fn meet(&mut self, at: Position, parameters: &mut [Tensor]) -> Result<Meeting, BoxError> {
        self.sync.meet(at, parameters)
    }
}

/// What every rank of a run ends with in which the gradients of rank 1 break in one step.
fn run_broken(spec: &RunSpec, steps_before: u64) -> Vec<Outcome> {
    let data = Dataset::of(spec).unwrap();
    threads(
        spec.ranks,
        |config| config.timeout = Duration::from_secs(60),
        |communicator| {
            let rank = communicator.rank();
            let sync = SessionSynchroniser::over(communicator, spec, false).unwrap();
            let steps_before = if rank == 1 { steps_before } else { u64::MAX };
            let mut sync = Breaking { sync, steps_before };
            let mut messages = Vec::new();
            let mut send = |message: &Message| {
                messages.push(message.clone());
                Ok(())
            };
            let parameters = train(spec, rank, &data, &mut sync, &mut send)?;
            Ok((parameters, messages))
        },
    )
}

/// A number that is none spreads over the parameter server to all ranks. They go back to the last
/// sound state, under BSP for a share of the job, and then try ASP again.
#[test]
fn a_guarded_run_goes_back_and_learns_all_the_same() {
    let mut spec = small("asp");
    spec.steering.guards = true;
    spec.steering.window = 5;
    // 116 steps; step 5 is where training begins, the snapshot of step 10 the first, that of step
    // 35 the next.
    let outcomes: Vec<_> = run_broken(&spec, 38).into_iter().map(Result::unwrap).collect();
    let first = &outcomes[0];
    assert!(outcomes.iter().all(|(parameters, _)| *parameters == first.0));
    let found = decisions(&first.1);
    let kinds: Vec<DecisionKind> = found.iter().map(|decision| decision.kind).collect();
    assert_eq!(kinds[0], DecisionKind::Rollback, "{found:?}");
    assert_eq!((found[0].step, found[0].to.as_str()), (40, "bsp from step 35"));
    // BSP for a sixteenth of 116 steps, to the end of the window, and ASP again.
    assert_eq!((found[1].kind, found[1].step), (DecisionKind::Switch, 43));
    let last = summary(&first.1);
    assert!(last.steps > 116, "{}", last.steps);
    let base: Vec<_> = run(&small("bsp")).into_iter().map(Result::unwrap).collect();
    let accuracy = |messages| summary(messages).final_accuracy.unwrap();
    let (guarded, bsp) = (accuracy(&first.1), accuracy(&base[0].1));
    assert!(guarded > bsp - 0.1, "{guarded} {bsp}");
    assert!(first.0.iter().flat_map(|tensor| &tensor.data).all(|value| value.is_finite()));
}

#[test]
fn without_a_guard_the_first_bad_number_ends_the_run() {
    let outcomes = run_broken(&RunSpec { ranks: 2, ..small("bsp") }, 3);
    assert!(outcomes.iter().all(|outcome| {
        let error = outcome.as_ref().unwrap_err();
        matches!(error, WorkerError::Diverged { .. } | WorkerError::Synchronise { .. })
    }));
}

#[test]
fn a_hopeless_run_says_at_which_step_and_loss_it_gave_up() {
    // No state is sound enough for this rate.
    let mut spec = RunSpec { lr: 1e30, ranks: 2, ..small("bsp") };
    spec.steering.guards = true;
    spec.steering.window = 4;
    for outcome in run(&spec) {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("the loss of step") && error.contains("rollbacks"), "{error}");
    }
}

#[test]
fn a_run_that_chooses_for_itself_keeps_all_ranks_together() {
    let mut spec = RunSpec { epochs: 2, ..small("sync-switch") };
    spec.steering.window = 5;
    let outcomes: Vec<_> = run(&spec).into_iter().map(Result::unwrap).collect();
    assert!(outcomes.iter().all(|(parameters, _)| *parameters == outcomes[0].0));
    assert_eq!(summary(&outcomes[0].1).steps, 58);
}

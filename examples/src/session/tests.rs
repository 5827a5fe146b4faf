//! Whole runs over the real communicator, ranks as threads.

use std::time::Duration;

use syncline::comm::testing::threads;
use syncline::record::{DecisionKind, Record, RunDir};

use super::*;
use crate::data::Dataset;
use crate::model::NetKind;
use crate::protocol::{Message, Summary};
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

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let mut spec = RunSpec { epochs: 1, ..small("bsp") };
    spec.log = Some("/dev/null/run".into());
    assert!(run(&spec).into_iter().all(|outcome| outcome.is_ok()));
}

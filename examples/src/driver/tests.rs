//! Runs with ranks that are made up, and one with ranks that train.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;

use super::*;
use crate::options::tests::parse;
use crate::protocol::Summary;
use crate::worker::{self, LocalSgd};

/// Events prepared beforehand, then silence.
struct Script(VecDeque<Result<RankEvent, BoxError>>);

impl RunningRanks for Script {
    fn next_event(&mut self, timeout: Duration) -> Result<RankEvent, BoxError> {
        self.0.pop_front().unwrap_or_else(|| {
            thread::sleep(timeout);
            Ok(RankEvent::Quiet)
        })
    }
}

fn line(rank: u32, message: &Message) -> Result<RankEvent, BoxError> {
    Ok(RankEvent::Line { rank, text: message.to_line() })
}

fn done(rank: u32, wall_s: f64) -> Result<RankEvent, BoxError> {
    let message = Message::Done(Summary {
        steps: 10,
        samples: 160,
        wall_s,
        compute_s: 0.5,
        exposed_s: wall_s / 4.0,
        bytes_sent: 1000 * u64::from(rank + 1),
        switch_s: 0.0,
        final_accuracy: (rank == 0).then_some(0.75),
        final_test_loss: None,
    });
    line(rank, &message)
}

/// The outcome of a run of two ranks that do as `events` say.
fn outcome(events: Vec<Result<RankEvent, BoxError>>) -> Result<Report, TrainError> {
    let options = parse("--models osp --ranks 2 --epochs 2 --quiet").unwrap();
    let mut events = Some(events);
    let start = |_: &RunSpec| Ok(Script(events.take().expect("one run").into()));
    train_checked(&options, start, Duration::from_millis(50))
}

fn failure(events: Vec<Result<RankEvent, BoxError>>) -> String {
    outcome(events).unwrap_err().to_string()
}

#[test]
fn the_messages_of_all_ranks_make_one_result() {
    let started = Message::Started {
        parameter_bytes: 4000,
        tensors: 2,
        steps_per_epoch: 5,
        transport: "tcp".to_owned(),
    };
    let progress = Message::Progress { epoch: 0, step: 3, t_s: 0.5, loss: 2.0 };
    let accuracy = |epoch, t_s, accuracy| Message::Accuracy { epoch, t_s, accuracy };
    let epoch = |epoch, deferred_pct| Message::Epoch { epoch, t_s: 1.0, loss: 0.5, deferred_pct };
    let report = outcome(vec![
        line(0, &started),
        Ok(RankEvent::Quiet),
        Ok(RankEvent::Line { rank: 1, text: "a warning".to_owned() }),
        line(0, &progress),
        line(0, &epoch(0, 90.0)),
        line(1, &epoch(0, 0.0)),
        line(0, &epoch(1, 60.0)),
        // Again, after a rollback.
        line(0, &epoch(0, 0.0)),
        line(0, &accuracy(1, 2.0, 0.75)),
        line(1, &accuracy(0, 1.0, 0.5)),
        line(0, &Message::SyncTimes { us: vec![1000.0, 2000.0] }),
        line(1, &Message::SyncTimes { us: vec![3000.0] }),
        done(1, 2.0),
        done(0, 1.6),
        Ok(RankEvent::Ended),
    ])
    .unwrap();
    let run = &report.runs[0];
    assert_eq!((run.model.name(), run.ranks, run.epochs), ("osp", 2, 2));
    assert_eq!((run.samples_per_s, run.wall_s), (160.0, 2.0));
    assert_eq!((run.exposed_comm_pct, run.bytes_per_iteration), (25.0, 150.0));
    assert_eq!((run.bst_mean_ms, run.bst_p99_ms), (2.0, 3.0));
    assert_eq!(run.accuracy_over_time, [(1.0, 0.5), (2.0, 0.75)]);
    assert_eq!((run.final_accuracy, run.deferred_pct), (0.75, 30.0));
    assert_eq!(run.loss_per_epoch, [0.5, 0.5]);
    assert_eq!((run.transport.as_str(), run.parameter_bytes), ("tcp", 4000));
    assert_eq!(run.compute_mean_ms, 50.0);
}

#[test]
fn a_rank_that_only_serves_is_in_no_mean_of_those_that_train() {
    let serving = Message::Done(Summary {
        steps: 10,
        samples: 0,
        wall_s: 2.0,
        compute_s: 0.0,
        exposed_s: 2.0,
        bytes_sent: 3000,
        switch_s: 0.0,
        final_accuracy: None,
        final_test_loss: None,
    });
    let report = outcome(vec![done(0, 2.0), line(1, &serving), Ok(RankEvent::Ended)]).unwrap();
    let run = &report.runs[0];
    assert_eq!((run.samples_per_s, run.exposed_comm_pct, run.compute_mean_ms), (80.0, 25.0, 50.0));
    // What is sent is that of all ranks.
    assert_eq!(run.bytes_per_iteration, 200.0);
}

#[test]
fn a_run_that_goes_wrong_is_an_error_that_says_how() {
    let text = failure(vec![done(0, 1.0), Err("rank 1 was killed by signal 9".into())]);
    assert_eq!(text, "the run of OSP failed: rank 1 was killed by signal 9");
    let text = failure(vec![done(0, 1.0), Ok(RankEvent::Ended)]);
    assert_eq!(text, "in the run of OSP these ranks ended without a result: [1]");
    let broken = Ok(RankEvent::Line { rank: 1, text: "{\"syncline\":\"dnoe\"}".to_owned() });
    let text = failure(vec![broken]);
    assert!(text.starts_with("rank 1 sent not a message of this version: "), "{text}");
    let text = failure(vec![done(1, 1.0), done(1, 1.0)]);
    assert_eq!(text, "rank 1 sent its result a second time");
    let text = failure(vec![done(2, 1.0)]);
    assert_eq!(text, "rank 2 sent a message, but there are only 2 ranks");
}

#[test]
fn a_run_that_diverged_is_told_from_one_that_failed() {
    let diverged = |rank, step| line(rank, &Message::Diverged { epoch: 1, step, lr: 0.5 });
    let lost = || Err("rank 0 exited with code 1".into());
    let error = outcome(vec![diverged(1, 7), diverged(0, 8), lost()]).unwrap_err();
    assert!(matches!(error, TrainError::Diverged { epoch: 1, step: 7, .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "the run of OSP diverged in epoch 1, step 7: the loss is not a number; choose a learning \
         rate below 0.5"
    );
    assert_eq!(Error::source(&error).unwrap().to_string(), "rank 0 exited with code 1");
    // Ranks that end well in spite of it have no result either.
    let error = outcome(vec![diverged(1, 7), done(0, 1.0), Ok(RankEvent::Ended)]).unwrap_err();
    assert!(matches!(error, TrainError::Unfinished { .. }), "{error:?}");
}

#[test]
fn silence_ends_a_run() {
    let error = outcome(vec![done(0, 1.0)]).unwrap_err();
    assert!(matches!(error, TrainError::Silent { .. }), "{error}");
}

#[test]
fn data_that_cannot_be_used_is_found_before_any_rank_starts() {
    let never = |_: &RunSpec| -> Result<Script, BoxError> { panic!("started") };
    let options = parse("--quiet --batch 400").unwrap();
    let error = train(&options, never).unwrap_err();
    assert!(matches!(error, TrainError::TooFewImages(_)), "{error}");
    let options = parse("--quiet --data mnist --data-dir /nonexistent").unwrap();
    let error = train(&options, never).unwrap_err();
    assert!(error.to_string().starts_with("mnist not found"), "{error}");
}

/// One rank as a thread of this process, training alone.
struct OneThread(Receiver<String>);

impl RunningRanks for OneThread {
    fn next_event(&mut self, timeout: Duration) -> Result<RankEvent, BoxError> {
        match self.0.recv_timeout(timeout) {
            Ok(text) => Ok(RankEvent::Line { rank: 0, text }),
            Err(RecvTimeoutError::Disconnected) => Ok(RankEvent::Ended),
            Err(RecvTimeoutError::Timeout) => Ok(RankEvent::Quiet),
        }
    }
}

fn start_thread(spec: &RunSpec) -> Result<OneThread, BoxError> {
    let spec = RunSpec::from_arg(&spec.to_arg())?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let data = Dataset::load(spec.data, None, spec.seed).unwrap();
        let mut send = |message: &Message| {
            sender.send(message.to_line()).map_err(|_| io::ErrorKind::BrokenPipe.into())
        };
        let mut sync = LocalSgd::new(spec.momentum);
        worker::train(&spec, 0, &data, &mut sync, &mut send).unwrap();
    });
    Ok(OneThread(receiver))
}

#[test]
fn from_the_command_line_to_table_json_and_plot() {
    let folder = tempfile::TempDir::new().unwrap();
    let (json, plot) = (folder.path().join("r.json"), folder.path().join("p.svg"));
    let line = format!(
        "--models bsp --ranks 1 --seeds 1,2 --net mlp --epochs 2 --quiet --json {} --plot {}",
        json.display(),
        plot.display()
    );
    let options = parse(&line).unwrap();
    let report = train(&options, start_thread).unwrap();
    publish(&options, &report).unwrap();
    let written: Report = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(written.runs.len(), 2);
    for run in &written.runs {
        assert_eq!(run.accuracy_over_time.len(), 2);
        assert_eq!(run.accuracy_over_time[1], (run.wall_s, run.final_accuracy));
        assert!(run.final_accuracy > 0.8 && run.samples_per_s > 0.0, "{run:?}");
    }
    assert!(fs::read_to_string(&plot).unwrap().contains("digits, MLP, 1 rank x batch 32"));
    let missing = parse("--quiet --no-plot --json /nonexistent/folder/r.json").unwrap();
    let error = publish(&missing, &report).unwrap_err();
    assert!(error.to_string().starts_with("cannot write /nonexistent/folder/r.json"), "{error}");
}

//! Tests of the run log: what goes in comes out, and what happens to damaged files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::model::osp::budget::Limit;

fn run(rank: u32) -> Run {
    let setting = BTreeMap::from([("seed".to_owned(), "7".to_owned())]);
    let model = "osp".to_owned();
    Run { version: VERSION, model, rank, ranks: 2, setting, started_unix_s: 1_700_000_000 }
}

fn step(step: u64, loss: f64) -> Step {
    let ms = Duration::from_micros;
    let report = StepReport {
        step,
        compute: ms(10_500),
        total: ms(4_000),
        exposed: ms(3_750),
        rs: ms(3_000),
        ics_wait: ms(500),
        pull_wait: ms(0),
        check_wait: ms(250),
        bytes_important: 600,
        bytes_overlapped: 0,
        bytes_deferred: 200,
        deferred_share: 0.25,
        staleness: 1,
        limit: Limit::LossRose,
    };
    let t = Duration::from_millis(15 * step);
    let model = "osp".to_owned();
    Step::of(&report, StepContext { t, samples: 16 * step, loss, learning_rate: 0.05, model })
}

fn decision(kind: DecisionKind, cost_ms: Option<f64>) -> Decision {
    let evidence = [("loss", f64::INFINITY), ("low", f64::NEG_INFINITY), ("share", 0.1)];
    Decision {
        t_s: 1.25,
        step: 3,
        samples: 48,
        kind,
        from: "bsp \"x\"\n".to_owned(),
        to: "osp".to_owned(),
        reason: "slow — 12 ms".to_owned(),
        evidence: evidence.map(|(name, value)| (name.to_owned(), value)).into(),
        cost_ms,
    }
}

fn records() -> Vec<Record> {
    let reason = "hidden by 10 ms of computation".to_owned();
    let limit = "hide".to_owned();
    vec![
        Record::Step(step(1, 1.0 / 3.0)),
        Record::Step(step(2, 0.1 + 0.2)),
        Record::Decision(decision(DecisionKind::Switch, Some(12.5))),
        Record::Decision(decision(DecisionKind::Rollback, None)),
        Record::Epoch(Epoch {
            epoch: 1,
            t_s: 0.03,
            samples: 32,
            mean_loss: 1.3,
            deferred_bytes_limit: 4096,
            limit,
            reason,
        }),
        Record::Accuracy(Accuracy { epoch: 1, t_s: 0.03, samples: 32, accuracy: 0.91 }),
    ]
}

fn end() -> End {
    End { steps: 2, samples: 32, wall_s: 0.03, outcome: "finished".to_owned() }
}

fn write(dir: &Path, rank: u32) {
    let mut log = RunLog::create(dir, run(rank)).unwrap();
    records().iter().for_each(|record| log.write(record).unwrap());
    log.end(end()).unwrap();
}

/// A file of a `run` line and these.
fn read(lines: &str) -> Result<RankLog, LogError> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("rank-0.jsonl");
    let first = serde_json::to_string(&Record::Run(run(0))).unwrap();
    fs::write(&path, format!("{first}\n{lines}")).unwrap();
    RankLog::read(&path)
}

#[test]
fn a_step_by_hand() {
    let step = step(2, 0.5);
    assert_eq!((step.compute_ms, step.exposed_ms, step.rs_ms), (10.5, 3.75, 3.0));
    assert_eq!((step.ics_wait_ms, step.pull_wait_ms, step.check_wait_ms), (0.5, 0.0, 0.25));
    assert_eq!((step.t_s, step.samples, step.limit.as_str()), (0.03, 32, "loss rose"));
}

#[test]
fn all_records_of_all_ranks_come_back() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("runs/osp-7");
    write(&path, 1);
    write(&path, 0);
    fs::write(path.join("rank-00.jsonl"), "no log").unwrap();
    fs::write(path.join("notes.txt"), "no log").unwrap();
    let read = RunDir::read(&path).unwrap();
    assert_eq!(read.ranks.len(), 2);
    let expected: Vec<Record> = records().into_iter().chain([Record::End(end())]).collect();
    for (rank, log) in (0..).zip(&read.ranks) {
        assert_eq!((&log.run, &log.records), (&run(rank), &expected));
        assert_eq!((log.skipped, log.is_truncated), (Skipped::default(), false));
    }
    assert!(read.missing_ranks().is_empty());
    fs::remove_file(path.join("rank-0.jsonl")).unwrap();
    assert_eq!(RunDir::read(&path).unwrap().missing_ranks(), [0]);
}

#[test]
fn one_line_in_its_form() {
    let record = Record::Accuracy(Accuracy { epoch: 1, t_s: 2.0, samples: 3, accuracy: f64::NAN });
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(text, r#"{"record":"accuracy","epoch":1,"t_s":2.0,"samples":3,"accuracy":null}"#);
    for kind in ["switch", "evict", "readmit", "detect", "clear", "rollback", "refuse"] {
        let read: DecisionKind = serde_json::from_value(kind.into()).unwrap();
        assert_eq!((read.name(), serde_json::to_value(read).unwrap()), (kind, kind.into()));
    }
}

#[test]
fn numbers_that_are_none_survive() {
    let lines = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|loss| {
        let decision = Record::Decision(decision(DecisionKind::Detect, Some(loss)));
        let step = Record::Step(step(1, loss));
        [step, decision].map(|record| serde_json::to_string(&record).unwrap() + "\n").concat()
    });
    let records = read(&lines.concat()).unwrap().records;
    let losses: Vec<f64> = records
        .iter()
        .map(|record| match record {
            Record::Step(step) => step.loss,
            Record::Decision(decision) => {
                assert_eq!(decision.evidence["low"], f64::NEG_INFINITY);
                decision.cost_ms.unwrap()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(losses[0].is_nan() && losses[1].is_nan());
    assert_eq!(losses[2..], [f64::INFINITY, f64::INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY]);
}

#[test]
fn what_later_versions_write_is_skipped_and_counted() {
    let lines = concat!(
        r#"{"record":"weather","t_s":1}"#,
        "\n",
        r#"{"record":"accuracy","epoch":1,"t_s":2,"samples":3,"accuracy":0.5,"top5":1,"f1":2}"#,
        "\n",
        r#"{"record":"decision","kind":"merge","t_s":1}"#,
        "\n",
        r#"{"record":"end","steps":1,"samples":3,"wall_s":2,"outcome":"finished","joules":1}"#,
        "\n",
    );
    let log = read(lines).unwrap();
    assert_eq!(log.skipped, Skipped { records: 2, fields: 3 });
    assert_eq!(log.records.len(), 2);
}

#[test]
fn a_last_line_cut_anywhere_is_left_out_and_told() {
    let line = serde_json::to_string(&Record::End(end())).unwrap();
    for cut in 1..line.len() {
        let log = read(&line[..cut]).unwrap();
        assert!(log.is_truncated && log.records.is_empty(), "{cut}");
    }
    let log = read(&line).unwrap();
    assert!(!log.is_truncated && log.records.len() == 1);
}

#[test]
fn garbage_is_an_error_that_names_file_and_line() {
    let good = serde_json::to_string(&Record::End(end())).unwrap();
    for bad in ["{\"record\":\"en", "[]", "{}", "{\"record\":\"step\"}", "", "nonsense", "\u{0}"] {
        let error = read(&format!("{bad}\n{good}\n")).unwrap_err();
        assert!(matches!(error, LogError::Line { line: 2, .. }), "{bad}: {error}");
        assert!(error.to_string().contains("rank-0.jsonl, line 2"), "{error}");
    }
    let second = serde_json::to_string(&Record::Run(run(0))).unwrap();
    assert!(matches!(read(&second), Err(LogError::Inconsistent { .. })));
}

#[test]
fn directories_that_are_no_runs_are_errors() {
    let dir = TempDir::new().unwrap();
    let error = RunDir::read(dir.path()).unwrap_err();
    assert!(matches!(error, LogError::NoLogs { .. }), "{error}");
    let error = RunDir::read(&dir.path().join("absent")).unwrap_err();
    assert!(error.to_string().contains("absent"), "{error}");
    fs::write(dir.path().join("rank-0.jsonl"), "").unwrap();
    let error = RunDir::read(dir.path()).unwrap_err();
    assert!(error.to_string().contains("does not start with"), "{error}");
    fs::remove_file(dir.path().join("rank-0.jsonl")).unwrap();
    write(dir.path(), 1);
    fs::rename(dir.path().join("rank-1.jsonl"), dir.path().join("rank-0.jsonl")).unwrap();
    let error = RunDir::read(dir.path()).unwrap_err();
    assert!(error.to_string().contains("of rank 1"), "{error}");
}

#[test]
fn logs_of_two_runs_in_one_directory_are_an_error() {
    let dir = TempDir::new().unwrap();
    write(dir.path(), 0);
    let mut other = run(1);
    other.setting.insert("seed".to_owned(), "8".to_owned());
    drop(RunLog::create(dir.path(), other).unwrap());
    let error = RunDir::read(dir.path()).unwrap_err();
    assert!(error.to_string().contains("setting differs"), "{error}");
}

#[test]
fn a_log_is_never_overwritten() {
    let dir = TempDir::new().unwrap();
    write(dir.path(), 0);
    let before = fs::read(dir.path().join("rank-0.jsonl")).unwrap();
    let error = RunLog::create(dir.path(), run(0)).unwrap_err();
    assert!(error.to_string().contains("rank-0.jsonl"), "{error}");
    assert_eq!(fs::read(dir.path().join("rank-0.jsonl")).unwrap(), before);
}

#[test]
fn what_is_no_step_reaches_the_file_at_once() {
    let dir = TempDir::new().unwrap();
    let mut log = RunLog::create(dir.path(), run(0)).unwrap();
    let written = || RunDir::read(dir.path()).unwrap().ranks[0].records.len();
    assert_eq!(written(), 0);
    log.write(&Record::Step(step(1, 0.5))).unwrap();
    assert_eq!(written(), 0);
    log.write(&Record::Decision(decision(DecisionKind::Evict, None))).unwrap();
    assert_eq!(written(), 2);
    log.write(&Record::Step(step(2, 0.5))).unwrap();
    drop(log);
    assert_eq!(written(), 3);
}

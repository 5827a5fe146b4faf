//! `syncline report` as it is typed: what it prints, what it writes, and its exit codes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use syncline::record::{Accuracy, End, Record, Run, RunLog, VERSION};
use tempfile::TempDir;

fn report(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
    command.arg("report").args(args).current_dir(dir).output().expect("the binary starts")
}

fn write_run(dir: &Path) {
    let (model, setting) = ("bsp".to_owned(), BTreeMap::new());
    let run = Run { version: VERSION, model, rank: 0, ranks: 1, setting, started_unix_s: 0 };
    let mut log = RunLog::create(dir, run).expect("a log is written");
    let test = Accuracy { epoch: 1, t_s: 2.0, samples: 100, accuracy: 0.95 };
    log.write(&Record::Accuracy(test)).expect("a log is written");
    log.end(End { steps: 0, samples: 100, wall_s: 2.0, outcome: "finished".to_owned() })
        .expect("a log is written");
}

#[test]
fn table_json_and_page() {
    let dir = TempDir::new().unwrap();
    write_run(&dir.path().join("runs/bsp"));
    let output = report(dir.path(), &["runs", "-o", "out/report.html"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("95.00") && text.contains("BSP"), "{text}");
    let html = fs::read_to_string(dir.path().join("out/report.html")).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
    let output = report(dir.path(), &["runs/bsp", "--json", "--target", "0.99"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["models"][0]["samples_per_s"]["mean"], 50.0);
    assert_eq!(json["models"][0]["time_to_target"]["reached"], 0);
}

#[test]
fn failures_have_a_reason_and_the_documented_code() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    write_run(&dir.path().join("run"));
    for (args, code, word) in [
        (&["absent"][..], 1, "absent"),
        (&["empty"], 1, "empty"),
        (&["run", "-o", "run/rank-0.jsonl/x.html"], 1, "rank-0.jsonl"),
        (&[], 2, "RUN"),
        (&["run", "--target", "90"], 2, "up to 1"),
        (&["run", "--target", "NaN"], 2, "up to 1"),
    ] {
        let output = report(dir.path(), args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(word), "{args:?}: {said}");
    }
    let output = report(dir.path(), &["--help"]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("Examples:"));
}

/// Neither a full disk nor a reader that leaves is a crash.
#[test]
fn a_full_output_is_told_and_a_closed_one_is_not() {
    let dir = TempDir::new().unwrap();
    write_run(&dir.path().join("run"));
    let syncline = |args: &[&str], output: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        command.args(args).current_dir(dir.path()).stdout(output).stderr(Stdio::piped());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for args in [&["report", "run"][..], &["report", "run", "--json"], &["info", "-n", "2"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, said) = syncline(args, full.into());
        assert_eq!(code, Some(1), "{args:?}: {said}");
        assert!(said.contains("standard output") && !said.contains("panicked"), "{said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, said) = syncline(args, writer.into());
        assert_eq!((code, said.as_str()), (Some(0), ""), "{args:?}");
    }
    let (code, said) = syncline(&["train", "-n", "2", "--straggler", "2:1ms"], Stdio::null());
    assert_eq!(code, Some(2), "{said}");
}

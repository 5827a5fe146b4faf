//! `syncline tune` as it is typed, over real jobs on the digits: result, store, stop, exit codes.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A job of a second or so.
const JOB: &[&str] = &[
    "--ranks",
    "2",
    "--net",
    "mlp",
    "--epochs",
    "2",
    "--train-limit",
    "320",
    "--link-rate",
    "none",
    "--quiet",
];

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
    command.arg("tune").args(JOB).args(args).current_dir(dir).stdin(Stdio::null());
    command
}

fn tune(dir: &Path, args: &[&str]) -> Output {
    command(dir, args).output().expect("the binary starts")
}

fn jobs_stored(dir: &Path) -> usize {
    let Ok(text) = fs::read(dir.join("runs/tune.json")) else { return 0 };
    let json: Value = serde_json::from_slice(&text).expect("whole at every moment");
    json["searches"][0]["jobs"].as_array().expect("a list").len()
}

#[test]
fn a_search_finds_stores_and_knows() {
    let dir = TempDir::new().unwrap();
    // Whatever half of BSP reaches is good enough.
    let line = ["--settings", "1", "--runs", "1", "--tolerance", "0.99", "--json", "-"];
    for fresh in [2, 0] {
        let output = tune(dir.path(), &line);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{said}");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&json["chosen_share"], &json["fresh_jobs"]), (&0.5.into(), &fresh.into()));
        assert_eq!(json["chosen_model"], "bsp:50%+asp");
        assert!(json["settings"][1]["mean_accuracy"].as_f64().unwrap() > 0.0, "{json}");
        assert!(said.contains("Chosen: 50 %") && said.contains("store: runs/tune.json"), "{said}");
        assert_eq!(said.contains("nothing was run"), fresh == 0, "{said}");
    }
    assert_eq!(jobs_stored(dir.path()), 2);
}

#[test]
fn bsp_that_diverges_is_a_failure_with_a_reason() {
    let dir = TempDir::new().unwrap();
    let output = tune(dir.path(), &["--lr", "1e30", "--runs", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("nothing to compare with"), "{text}");
    assert_eq!(jobs_stored(dir.path()), 1, "it need not diverge again");
    let output = tune(dir.path(), &["--models", "asp"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("chooses the models itself"));
}

/// Waits for a process that is about to end.
fn wait(child: &mut Child, deadline: Instant) -> Option<i32> {
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("a child");
    panic!("it does not end");
}

#[test]
fn a_search_that_is_stopped_keeps_its_jobs_and_goes_on() {
    let dir = TempDir::new().unwrap();
    let line = ["--settings", "1", "--runs", "40", "--tolerance", "0.99"];
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut child = command(dir.path(), &line).stdout(Stdio::null()).spawn().expect("it starts");
    while jobs_stored(dir.path()) < 2 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("a child");
    assert_eq!(wait(&mut child, deadline), Some(143));
    let kept = jobs_stored(dir.path());
    assert!((2..40).contains(&kept), "{kept}");
    let output = tune(dir.path(), &["--settings", "1", "--runs", "2", "--tolerance", "0.99"]);
    assert_eq!(output.status.code(), Some(0));
    // Two runs of BSP were there and are not run again; those of the half are.
    assert_eq!(jobs_stored(dir.path()), kept + 2);
}

//! `syncline perf` and `syncline info --explain` as they are typed: tables, JSON, comparison, bad
//! input, exit codes. Ranks are real; no time is judged.

mod compare;
mod explain;
mod kernels;
mod p2p;

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Two small sizes, few calls.
const SMALL: &[&str] = &["-b", "64", "-e", "256", "--iters", "5"];

/// `syncline` with these arguments, in `dir`.
fn syncline(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
    command.args(args).current_dir(dir).stdin(Stdio::null());
    command.env_remove("SYNCLINE_ALGORITHM").output().expect("the binary starts")
}

/// `syncline perf all_reduce` of [`SMALL`] and these.
fn small(dir: &Path, args: &[&str]) -> Output {
    syncline(dir, &[&["perf", "all_reduce"], SMALL, args].concat())
}

/// Checks exit code and message together, so that a failure shows both.
#[track_caller]
fn assert_ends(output: &Output, code: i32, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "stderr: {said}");
    assert!(said.contains(words), "expected '{words}' in: {said}");
}

#[track_caller]
fn json(text: &[u8]) -> Value {
    serde_json::from_slice(text).expect("JSON")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn a_row_has_percentiles_cpu_time_and_checked_calls() {
    let dir = TempDir::new().unwrap();
    for transport in ["shm", "tcp"] {
        let output = small(dir.path(), &["--transport", transport, "--json", "-"]);
        assert_ends(&output, 0, "# mean busbw");
        let rows = json(&output.stdout)["rows"].clone();
        assert_eq!(rows.as_array().unwrap().len(), 2);
        for row in rows.as_array().unwrap() {
            let at = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
            assert!(0.0 < at("min_us") && at("min_us") <= at("p50_us"), "{row}");
            assert!(at("p50_us") <= at("p90_us") && at("p90_us") <= at("p99_us"), "{row}");
            assert!(at("cpu_s_per_gib") > 0.0, "{row}");
            assert_eq!((at("checked"), at("wrong"), at("iterations")), (2.0, 0.0, 5.0));
            assert_eq!(row["predicted_us"].is_null(), row["algorithm"] == "node", "{row}");
            assert!(row.get("candidates").is_none(), "{row}");
        }
    }
}

#[test]
fn as_many_calls_are_checked_as_asked_for() {
    let dir = TempDir::new().unwrap();
    for (flags, checked) in [(&["--check"][..], 2), (&["-c", "3"], 6), (&["--check", "0"], 0)] {
        let output = small(dir.path(), &[&["--json", "out.json"], flags].concat());
        assert_ends(&output, 0, "");
        let report = json(&fs::read(dir.path().join("out.json")).unwrap());
        assert_eq!(report["rows"][0]["checked"], checked);
        assert_eq!(stdout(&output).contains("N/A"), checked == 0);
    }
}

#[test]
fn a_barrier_has_no_bytes_to_divide_by() {
    let dir = TempDir::new().unwrap();
    let output = syncline(dir.path(), &["perf", "barrier", "--iters", "3", "--json", "-"]);
    assert_ends(&output, 0, "");
    assert!(json(&output.stdout)["rows"][0]["cpu_s_per_gib"].is_null());
}

#[test]
fn an_earlier_result_is_kept_when_nothing_is_measured() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("kept.json");
    fs::write(&file, "earlier").unwrap();
    // Every rank fails: there is no such algorithm.
    let output = small(dir.path(), &["--algorithm", "best", "--json", "kept.json"]);
    assert_ends(&output, 1, "SYNCLINE_ALGORITHM");
    assert_eq!(fs::read_to_string(&file).unwrap(), "earlier");
    let output = small(dir.path(), &["--algorithm", "best", "--json", "new.json"]);
    assert_ends(&output, 1, "");
    assert!(!dir.path().join("new.json").exists(), "nothing empty is left");
    let output = small(dir.path(), &["--json", "none/x.json"]);
    assert_ends(&output, 2, "cannot write none/x.json");
    // A longer text is replaced as a whole.
    fs::write(&file, "x".repeat(1 << 16)).unwrap();
    assert_ends(&small(dir.path(), &["--json", "kept.json"]), 0, "");
    json(&fs::read(&file).unwrap());
}

//! `syncline simulate` as it is typed: table, JSON, and exit codes.

use std::process::{Command, Output};

fn simulate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
    command.arg("simulate").args(args).output().expect("the binary starts")
}

const SMALL: [&str; 6] = ["--ranks", "4", "--bandwidth", "1G", "--steps", "4"];

#[test]
fn table_and_json() {
    let output = simulate(&SMALL);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for word in ["BSP", "OSP", "ASP", "4 ranks, 1 Gbit/s: "] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let output = simulate(&[&SMALL[..], &["--json", "-", "--quiet"]].concat());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["cells"][0]["runs"][0]["model"], "bsp");
    assert!(String::from_utf8(output.stderr).unwrap().contains("Ahead:"), "the table is elsewhere");
}

#[test]
fn failures_have_a_reason_and_the_documented_code() {
    let json = [&SMALL[..], &["-q", "--json", "/proc/no/such/folder"]].concat();
    for (args, code, word) in [
        (&["--models", "xsp"][..], 2, "xsp"),
        (&["--straggler", "9:1ms", "--ranks", "4"], 2, "rank 9"),
        (&["--gradients", "real", "--ranks", "60", "-q"], 2, "batch"),
        (&json, 1, "/proc/no/such/folder"),
    ] {
        let output = simulate(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(word), "{args:?}: {said}");
    }
    let output = simulate(&["--help"]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("Examples:"));
}

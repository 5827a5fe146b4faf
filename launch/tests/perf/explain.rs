//! `info --explain COLLECTIVE SIZE`, and without them.

use super::{assert_ends, json, stdout, syncline};
use tempfile::TempDir;

#[test]
fn one_call_is_predicted_and_measured_by_every_candidate() {
    let dir = TempDir::new().unwrap();
    let line = ["info", "--explain", "all_reduce", "4K", "-n", "3", "--transport", "tcp"];
    let output = syncline(dir.path(), &[&line[..], &["--json"]].concat());
    assert_ends(&output, 0, "");
    let report = json(&output.stdout);
    assert_eq!((&report["bytes"], &report["ranks"]), (&4096.into(), &3.into()));
    assert_eq!(
        (&report["transport"], &report["collective"]),
        (&"tcp".into(), &"all_reduce".into())
    );
    let candidates = report["candidates"].as_array().unwrap();
    let names: Vec<&str> =
        candidates.iter().map(|one| one["algorithm"].as_str().unwrap()).collect();
    assert_eq!(names, ["direct", "halving_doubling", "recursive_doubling", "ring", "tree"]);
    for one in candidates {
        assert!(one["predicted_us"].as_f64().unwrap() > 0.0, "{one}");
        assert!(one["measured_us"].as_f64().unwrap() > 0.0, "{one}");
        assert_eq!(one["wrong"], 0);
        assert_eq!(one["rejected"].is_null(), one["algorithm"] == report["algorithm"], "{one}");
    }
}

#[test]
fn the_shared_memory_is_a_candidate_that_nothing_predicts() {
    let dir = TempDir::new().unwrap();
    let output = syncline(dir.path(), &["info", "--explain", "broadcast", "4K", "-n", "2"]);
    assert_ends(&output, 0, "");
    let text = stdout(&output);
    assert!(text.contains("over shm: node, all ranks share this host's memory"), "{text}");
    assert!(text.contains("measured with ranks started here"), "{text}");
    for algorithm in ["direct", "node", "ring", "tree"] {
        let row = text.lines().find(|line| line.starts_with(algorithm)).expect(algorithm);
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[1] == "-", algorithm == "node", "{row}");
        assert!(cells[2].parse::<f64>().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn canonical_bits_narrow_the_choice_and_show_their_cost() {
    let dir = TempDir::new().unwrap();
    let tcp = ["-n", "3", "--transport", "tcp", "--determinism", "canonical"];
    let line = ["info", "--explain", "all_reduce", "1M", "--json"];
    let output = syncline(dir.path(), &[&line[..], &tcp].concat());
    assert_ends(&output, 0, "");
    let report = json(&output.stdout);
    assert_eq!(
        (&report["algorithm"], &report["determinism"]),
        (&"direct".into(), &"canonical".into())
    );
    for one in report["candidates"].as_array().unwrap() {
        assert!(one["measured_us"].as_f64().unwrap() > 0.0, "{one}");
        let is_other = one["algorithm"] != "direct";
        let why = one["rejected"].as_str().unwrap_or_default();
        assert_eq!(why.starts_with("not canonical"), is_other, "{one}");
    }
    let output = syncline(dir.path(), &[&["info", "--explain"][..], &tcp].concat());
    assert_ends(&output, 0, "");
    let text = stdout(&output);
    assert!(text.contains("  not ring                 not canonical (predicted"), "{text}");

    let line = ["perf", "all_reduce", "-b", "1K", "-e", "1K", "--iters", "2", "--json", "-"];
    let output = syncline(dir.path(), &[&line[..], &tcp].concat());
    assert_ends(&output, 0, "");
    let row = &json(&output.stdout)["rows"][0];
    assert_eq!((&row["determinism"], &row["wrong"]), (&"canonical".into(), &0.into()));
    let output = syncline(dir.path(), &[&line[..], &tcp, &["--algorithm", "ring"]].concat());
    assert_ends(&output, 1, "ring was asked for, determinism canonical too");
}

#[test]
fn without_a_call_it_explains_all_choices() {
    let dir = TempDir::new().unwrap();
    let output = syncline(dir.path(), &["info", "--explain", "-n", "2"]);
    assert_ends(&output, 0, "");
    assert!(stdout(&output).contains("\nall_gather of 64K: "), "{}", stdout(&output));
    let output = syncline(dir.path(), &["info", "--explain", "--json", "-n", "2"]);
    assert_ends(&output, 0, "");
    assert!(json(&output.stdout)["choices"].is_array());
}

#[test]
fn a_call_that_cannot_be_explained_is_refused() {
    let dir = TempDir::new().unwrap();
    let bad: &[(&[&str], &str)] = &[
        (&["all_reduce"], "--explain takes nothing, or a collective and a size"),
        (&["all_sum", "1M"], "\"all_sum\" is none of all_gather, all_reduce"),
        (&["send_recv", "1M"], "send_recv has one algorithm only"),
        (&["all_reduce", "1X"], "\"1X\" is not like 8, 4K, 64M or 1G"),
        (&["all_reduce", "1K", "2K"], "2K"),
    ];
    for (args, words) in bad {
        let output = syncline(dir.path(), &[&["info", "--explain"], *args].concat());
        assert_ends(&output, 2, words);
        assert!(output.stdout.is_empty());
    }
}

//! `--compare`: rows beside earlier ones, and files that do not fit.

use super::{assert_ends, json, small, stdout, syncline};
use serde_json::{Value, json as value};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Measures into `before.json`, whose median times become `p50_us`, whatever they were.
fn before(dir: &Path, p50_us: f64) -> Value {
    assert_ends(&small(dir, &["--json", "before.json"]), 0, "");
    let mut report = json(&fs::read(dir.join("before.json")).expect("a report"));
    for row in report["rows"].as_array_mut().expect("rows") {
        row["p50_us"] = value!(p50_us);
    }
    write(dir, &report);
    report
}

fn write(dir: &Path, report: &Value) {
    fs::write(dir.join("before.json"), report.to_string()).expect("written");
}

#[test]
fn a_slower_row_is_marked_and_ends_with_3() {
    let dir = TempDir::new().unwrap();
    before(dir.path(), 1e-6);
    let flags = ["--compare", "before.json", "--threshold", "50%", "--json", "after.json"];
    let output = small(dir.path(), &flags);
    assert_ends(&output, 3, "");
    let text = stdout(&output);
    assert!(text.contains("# compared with before.json"), "{text}");
    assert_eq!(text.matches("  SLOWER\n").count(), 2, "{text}");
    assert!(text.contains("# 2 of 2 rows slower by more than 50 %"), "{text}");
    // What was measured is there all the same, with the comparison.
    let report = json(&fs::read(dir.path().join("after.json")).unwrap());
    let (row, compared) = (&report["rows"][1], &report["comparison"][1]);
    assert_eq!((&compared["bytes"], &compared["slower"]), (&value!(256), &value!(true)));
    assert_eq!((&compared["new_us"], &compared["old_us"]), (&row["p50_us"], &value!(1e-6)));
    // A report that compares can be compared with.
    let flags = ["--compare", "after.json", "--threshold", "1000000%"];
    assert_ends(&small(dir.path(), &flags), 0, "");
}

#[test]
fn a_row_within_the_threshold_is_well() {
    let dir = TempDir::new().unwrap();
    before(dir.path(), 1e9);
    // Into the same file: it is read first.
    let flags = ["--compare", "before.json", "--json", "before.json"];
    let output = small(dir.path(), &flags);
    assert_ends(&output, 0, "");
    assert!(stdout(&output).contains("# 0 of 2 rows slower by more than 10 %"));
    let report = json(&fs::read(dir.path().join("before.json")).unwrap());
    assert!(report["rows"][0]["p50_us"].as_f64().unwrap() < 1e9);
}

#[test]
fn sizes_may_be_fewer_but_not_others() {
    let dir = TempDir::new().unwrap();
    before(dir.path(), 1e9);
    let run = |min: &str, more: &[&str]| {
        let flags = ["perf", "all_reduce", "--iters", "3", "-b", min, "--compare", "before.json"];
        syncline(dir.path(), &[&flags[..], more].concat())
    };
    let output = run("256", &["-e", "256"]);
    assert_ends(&output, 0, "");
    assert!(stdout(&output).contains("# 1 rows of the file were not measured"));
    let output = run("128", &["-e", "256", "--json", "new.json"]);
    assert_ends(&output, 2, "before.json has no row of 128 bytes on 2 ranks; it has 64, 256");
    assert!(output.stdout.is_empty() && !dir.path().join("new.json").exists());
    assert_ends(&run("64", &["-e", "64", "-n", "2,3"]), 2, "before.json has no rows of 3 ranks");
}

#[test]
fn blocks_are_rounded_as_they_are_measured() {
    let dir = TempDir::new().unwrap();
    let line = ["perf", "all_gather", "-n", "3", "-b", "100", "-e", "100", "--iters", "3"];
    assert_ends(&syncline(dir.path(), &[&line[..], &["--json", "a.json"]].concat()), 0, "");
    assert_eq!(json(&fs::read(dir.path().join("a.json")).unwrap())["rows"][0]["bytes"], 96);
    let flags = ["--compare", "a.json", "--threshold", "1000000%"];
    assert_ends(&syncline(dir.path(), &[&line[..], &flags].concat()), 0, "");
}

#[test]
fn files_that_do_not_fit_are_refused_before_anything_is_measured() {
    let dir = TempDir::new().unwrap();
    let refused = |flags: &[&str], words: &str| {
        let output = small(dir.path(), flags);
        assert_ends(&output, 2, words);
        assert!(output.stdout.is_empty(), "{words}");
    };
    refused(&["--compare", "before.json"], "cannot read before.json: No such file");
    let report = before(dir.path(), 1.0);
    refused(&["--compare", "before.json", "-d", "f64"], "has type f32, not f64");
    refused(&["--compare", "before.json", "-o", "max"], "has operation sum, not max");
    refused(&["--compare", "before.json", "--threshold", "0.1"], "\"0.1\" is not like 10%");
    let output = syncline(dir.path(), &["perf", "all_gather", "--compare", "before.json"]);
    assert_ends(&output, 2, "before.json has collective all_reduce, not all_gather");

    write(dir.path(), &value!({ "rows": [] }));
    refused(&["--compare", "before.json"], "before.json has no rows");
    let mut short = report.clone();
    short["rows"][0].as_object_mut().unwrap().remove("p50_us");
    write(dir.path(), &short);
    refused(&["--compare", "before.json"], "missing field `p50_us`");
    let mut never = report;
    never["rows"][0]["p50_us"] = value!(0.0);
    write(dir.path(), &never);
    refused(&["--compare", "before.json"], "has a row of 64 bytes without a time");
    fs::write(dir.path().join("before.json"), "{\"rows\":[{\"coll").unwrap();
    refused(&["--compare", "before.json"], "is not what `syncline perf COLLECTIVE --json` writes");
}

#[test]
fn a_report_from_before_there_were_percentiles_still_compares() {
    let dir = TempDir::new().unwrap();
    let mut report = before(dir.path(), 1e9);
    for row in report["rows"].as_array_mut().unwrap() {
        for name in ["p90_us", "cpu_s_per_gib", "predicted_us", "checked"] {
            row.as_object_mut().unwrap().remove(name);
        }
    }
    write(dir.path(), &report);
    assert_ends(&small(dir.path(), &["--compare", "before.json"]), 0, "");
}

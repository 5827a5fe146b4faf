//! `perf kernels`: rows, verdict, refusals. No time is judged.

use super::{assert_ends, json, stdout, syncline};
use std::fs;
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;

/// One size, hardly any traffic.
fn small(dir: &Path, args: &[&str]) -> Output {
    let line = ["perf", "kernels", "--rounds", "1", "--traffic", "1K"];
    syncline(dir, &[&line[..], args].concat())
}

#[test]
fn every_kernel_has_its_rows() {
    let dir = TempDir::new().unwrap();
    let line = ["-s", "16K", "-t", "1,2", "-d", "f32,bf16", "--json", "out.json"];
    let output = small(dir.path(), &line);
    assert_ends(&output, 0, "");
    let text = stdout(&output);
    assert!(text.contains("# kernel ") && text.contains("load of the rest"), "{text}");
    let report = json(&fs::read(dir.path().join("out.json")).unwrap());
    let rows = report["rows"].as_array().unwrap();
    // Of each number of threads: 2 copies; of both types 1 + 2 + 6 numbers of inputs x 2.
    assert_eq!(rows.len(), 2 * (2 + 2 * (1 + 2 + 12)));
    for row in rows {
        let at = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        for name in ["gbps", "plain_gbps", "plain_ratio", "stream_gbps", "stream_ratio"] {
            assert!(at(name) > 0.0, "{row}");
        }
        let arrays = at("inputs") + if row["kernel"] == "reduce" { 2.0 } else { 1.0 };
        assert_eq!(at("moved_bytes"), arrays * at("threads") * 16384.0, "{row}");
    }
    let heads = text.lines().find(|line| line.starts_with("# kernel ")).unwrap();
    let columns = heads.trim_start_matches('#').split_whitespace().count();
    let is_row = |line: &&str| line.starts_with("  ");
    assert!(text.lines().filter(is_row).all(|row| row.split_whitespace().count() == columns));
}

#[test]
fn only_what_was_asked_for_is_measured() {
    let dir = TempDir::new().unwrap();
    let line = ["--kernels", "reduce_many", "--inputs", "5", "--stores", "streaming"];
    let more = ["-s", "4096", "-t", "1", "-d", "i32", "--json", "-"];
    let output = small(dir.path(), &[&line[..], &more].concat());
    assert_ends(&output, 0, "reach 95 % of the plain way");
    let rows = json(&output.stdout)["rows"].clone();
    assert_eq!(rows.as_array().unwrap().len(), 1);
    assert_eq!((&rows[0]["stores"], &rows[0]["inputs"]), (&"streaming".into(), &5.into()));
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let dir = TempDir::new().unwrap();
    for (line, words) in [
        (&["--kernels", "reduce", "--stores", "streaming"][..], "no streaming form"),
        (&["-s", "4"], "at least 8 bytes"),
        (&["-s", "1000000G"], "are there"),
        (&["--inputs", "9"], "3..=8"),
        (&["-d", "f8"], "none of"),
    ] {
        assert_ends(&small(dir.path(), line), 2, words);
    }
}

//! `perf p2p`: perftest's columns and flags.

use super::{assert_ends, json, stdout, syncline};
use std::fs;
use tempfile::TempDir;

#[test]
fn latency_has_perftests_columns_on_every_transport() {
    let dir = TempDir::new().unwrap();
    for (asked, used) in [("auto", "shm"), ("shm", "shm"), ("tcp", "tcp")] {
        let line = ["perf", "p2p", "--lat", "-s", "1K", "-n", "30", "--transport", asked];
        let output = syncline(dir.path(), &[&line[..], &["--json", "lat.json"]].concat());
        assert_ends(&output, 0, "");
        let text = stdout(&output);
        let lines: Vec<&str> = text.lines().collect();
        let heads = lines[1].replace("% perc", "%perc");
        let heads: Vec<&str> = heads.split_whitespace().collect();
        assert_eq!(heads[..4], ["#bytes", "#iterations", "t_min[usec]", "t_max[usec]"]);
        let cells: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!((heads.len(), cells.len(), &cells[..2]), (9, 9, &["1024", "30"][..]));
        let report = json(&fs::read(dir.path().join("lat.json")).unwrap());
        let row = &report["rows"][0];
        assert_eq!((&row["test"], &row["transport"]), (&"lat".into(), &used.into()));
        let at = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        let rising = ["min_us", "typical_us", "p99_us", "p999_us", "max_us"].map(at);
        assert!(rising[0] > 0.0 && rising.is_sorted(), "{row}");
        assert!(at("min_us") <= at("avg_us") && at("avg_us") <= at("max_us"), "{row}");
        assert_eq!(at("wrong"), 0.0);
    }
}

#[test]
fn bandwidth_has_perftests_columns_one_way_and_both() {
    let dir = TempDir::new().unwrap();
    for transport in ["shm", "tcp"] {
        // Deep and shallow windows, more and fewer messages than the window has.
        for flags in [&["-t", "4"][..], &["-q", "1", "-b"], &["-t", "64", "-b"], &["-w", "0"]] {
            let line =
                ["perf", "p2p", "--bw", "-s", "300000", "-n", "20", "--transport", transport];
            let output = syncline(dir.path(), &[&line[..], flags, &["--json", "-"]].concat());
            assert_ends(&output, 0, "BW average[MB/sec]   MsgRate[Mpps]");
            let row = json(&output.stdout)["rows"][0].clone();
            let at = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
            assert_eq!(row["bidirectional"], flags.contains(&"-b"));
            assert!(at("peak_mib_s") >= at("average_mib_s") && at("cpu_s_per_gib") > 0.0, "{row}");
            let average = at("rate_mpps") * 1e6 * 300_000.0 / f64::from(1 << 20);
            assert!((average / at("average_mib_s") - 1.0).abs() < 1e-6, "{row}");
        }
    }
}

#[test]
fn all_are_the_sizes_from_2_to_8m() {
    let dir = TempDir::new().unwrap();
    let output = syncline(dir.path(), &["perf", "p2p", "--bw", "-a", "-n", "2", "--json", "-"]);
    assert_ends(&output, 0, "(less from 4194304 bytes on: 64)");
    let report = json(&output.stdout);
    let sizes = report["rows"].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap());
    assert_eq!(sizes.collect::<Vec<_>>(), (1..=23).map(|power| 1 << power).collect::<Vec<u64>>());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = TempDir::new().unwrap();
    let bad: &[(&[&str], &str)] = &[
        (&[], "<--lat|--bw>"),
        (&["--lat", "--bw"], "cannot be used with"),
        (&["--lat", "--ranks", "3"], "between 2 ranks, not 3; `syncline perf send_recv -n 3`"),
        (&["--lat", "--ranks", "1"], "between 2 ranks, not 1"),
        (&["--lat", "-b"], "cannot be used with"),
        (&["--lat", "-t", "4"], "cannot be used with"),
        (&["--bw", "-a", "-s", "4"], "cannot be used with"),
        (&["--bw", "-s", "0"], "--size 0 does not lie in"),
        (&["--bw", "-n", "0"], "0 is not in"),
        (&["--bw", "--transport", "ib"], "ib"),
        (&["--bw", "--json", "none/x.json"], "cannot write none/x.json"),
    ];
    for (args, words) in bad {
        let output = syncline(dir.path(), &[&["perf", "p2p"], *args].concat());
        assert_ends(&output, 2, words);
        assert!(output.stdout.is_empty());
    }
    // A result of p2p is none of a collective.
    let line = ["perf", "p2p", "--lat", "-n", "3", "--json", "lat.json"];
    assert_ends(&syncline(dir.path(), &line), 0, "");
    let output = syncline(dir.path(), &["perf", "all_reduce", "--compare", "lat.json"]);
    assert_ends(&output, 2, "lat.json is not what `syncline perf COLLECTIVE --json` writes");
}

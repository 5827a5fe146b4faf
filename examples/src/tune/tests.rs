//! Tests of the search over a store, with jobs that only say how they went. The figures of setup 2
//! are means that we computed from the raw logs released by the authors of Sync-Switch.

use std::fs;

use clap::Parser;
use syncline::policy::timing::Progress;
use tempfile::TempDir;

use super::summary::{Summary, Verdict};
use super::*;
use crate::BoxError;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    options: TuneOptions,
}

fn options(line: &str) -> TuneOptions {
    let words = std::iter::once("tune").chain(line.split_whitespace());
    Command::try_parse_from(words).unwrap().options
}

/// Share under BSP, accuracy (negative: diverged), seconds.
const SETUP_2: [(f64, f64, f64); 5] = [
    (1.0, 0.7462, 11_288.0),
    (0.5, 0.7425, 8512.0),
    (0.25, 0.7505, 7294.0),
    (0.125, 0.7460, 6790.0),
    (0.0625, 0.7325, 6427.0),
];

/// Jobs by a table, of which only so many may run.
struct Table<'a> {
    rows: &'a [(f64, f64, f64)],
    left: u32,
}

impl Jobs for Table<'_> {
    fn run(&mut self, trial: Trial) -> Result<Outcome, TrainError> {
        if self.left == 0 {
            return Err(TrainError::Start(BoxError::from("stopped")));
        }
        self.left -= 1;
        let row = self.rows.iter().find(|row| row.0 == trial.fraction).expect("a known share");
        Ok(Outcome { accuracy: (row.1 >= 0.0).then_some(row.1), seconds: row.2 })
    }
}

/// Counts the jobs that it hears of.
#[derive(Default)]
struct Count(usize);

impl Watch for Count {
    fn next(&mut self, search: &TimingSearch, trial: Trial) {
        assert!(search.records.iter().all(|record| record.trial != trial));
        self.0 += 1;
    }
}

struct Bench {
    _folder: TempDir,
    store: Store,
    key: Key,
}

fn bench() -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("new/tune.json"));
    let key = Key::of(&options("").train, "2 cores".to_owned()).unwrap();
    Bench { _folder: folder, store, key }
}

impl Bench {
    fn search(&self, line: &str, rows: &[(f64, f64, f64)], left: u32) -> Result<Tuned, TuneError> {
        let options = options(line);
        let (mut jobs, mut count) = (Table { rows, left }, Count::default());
        let result =
            search(options.config(), &self.key, &self.store, options.again, &mut jobs, &mut count);
        if let Ok(tuned) = &result {
            assert_eq!(count.0, tuned.fresh as usize);
        }
        result
    }
}

fn chosen(tuned: &Tuned) -> f64 {
    match tuned.search.progress() {
        Progress::Found { fraction, .. } => fraction,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_released_data_of_setup_2_give_one_eighth() {
    let tuned = bench().search("", &SETUP_2, 100).unwrap();
    assert_eq!((chosen(&tuned), tuned.fresh), (0.125, 25));
    let summary = Summary::new("ResNet-50".to_owned(), &tuned);
    assert_eq!(summary.chosen_model.as_deref(), Some("bsp:12.5%+asp"));
    let verdicts: Vec<Verdict> = summary.settings.iter().map(|s| s.verdict).collect();
    let good = Verdict::Good;
    assert_eq!(verdicts, [Verdict::Reference, good, good, good, Verdict::TooLow]);
    let text = summary.text();
    for part in [
        "Chosen: 12.5 % of the samples under BSP, then ASP: --models bsp:12.5%+asp.",
        "Good enough is a mean accuracy of 73.62 %, 1 points below BSP's.",
        "The search: 25 jobs, 201555.0 s, as long as 17.9 jobs under BSP. Each later job saves \
         4498.0 s: paid back after 45.",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let row = text.lines().find(|line| line.contains("6.25 %")).unwrap();
    assert!(row.contains("73.25 73.25 73.25 73.25 73.25") && row.contains("too low"), "{row}");
}

#[test]
fn a_stopped_search_goes_on_and_a_known_one_runs_nothing() {
    let bench = bench();
    for _ in 0..3 {
        let error = bench.search("", &SETUP_2, 8).unwrap_err();
        assert!(matches!(error, TuneError::Job(_)), "{error}");
    }
    let tuned = bench.search("", &SETUP_2, 8).unwrap();
    assert_eq!((chosen(&tuned), tuned.fresh, tuned.search.records.len()), (0.125, 1, 25));
    let known = bench.search("", &SETUP_2, 0).unwrap();
    assert_eq!((chosen(&known), known.fresh), (0.125, 0));
    assert_eq!(known.search, tuned.search);
    let text = Summary::new(String::new(), &known).text();
    assert!(text.contains("All of it was known: nothing was run"), "{text}");
    // Fewer runs and a narrower tolerance are answered from the same jobs.
    let narrow = bench.search("--runs 2 --tolerance 0.001", &SETUP_2, 0);
    assert!(matches!(narrow, Err(TuneError::Job(_))), "0.75 was not run");
    let fewer = bench.search("--runs 2", &SETUP_2, 0).unwrap();
    assert_eq!((chosen(&fewer), fewer.search.records.len()), (0.125, 10));
    // Which has cost the other runs nothing.
    assert_eq!(bench.search("", &SETUP_2, 0).unwrap().search.records.len(), 25);
    let again = bench.search("--again --settings 1 --runs 2", &SETUP_2, 9).unwrap();
    assert_eq!((chosen(&again), again.fresh, again.search.records.len()), (0.5, 4, 4));
}

#[test]
fn fewer_runs_keep_the_other_runs_when_they_add_some() {
    let bench = bench();
    bench.search("--settings 1", &SETUP_2, 10).unwrap();
    let tuned = bench.search("--settings 2 --runs 1", &SETUP_2, 10).unwrap();
    assert_eq!((tuned.fresh, tuned.search.records.len()), (1, 3));
    assert_eq!(bench.store.records(&bench.key).unwrap().len(), 11);
}

#[test]
fn a_diverged_run_is_a_failed_share_and_settles_it() {
    let rows = [(1.0, 0.9, 10.0), (0.5, -1.0, 3.0), (0.75, 0.9, 9.0)];
    let tuned = bench().search("--settings 2 --runs 2", &rows, 9).unwrap();
    assert_eq!((chosen(&tuned), tuned.fresh), (0.75, 5));
    let summary = Summary::new(String::new(), &tuned);
    let verdicts: Vec<Verdict> = summary.settings.iter().map(|s| s.verdict).collect();
    assert_eq!(verdicts, [Verdict::Reference, Verdict::Good, Verdict::Diverged]);
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(json["settings"][2]["accuracies"], serde_json::json!([null]));
    assert_eq!(json["settings"][2]["verdict"], "diverged");
    assert_eq!((&json["chosen_share"], &json["saving_s"]), (&0.75.into(), &1.0.into()));
}

#[test]
fn bsp_that_diverges_leaves_nothing_to_choose() {
    let tuned = bench().search("", &[(1.0, -1.0, 2.0)], 9).unwrap();
    let summary = Summary::new(String::new(), &tuned);
    assert_eq!((summary.chosen_share, tuned.fresh), (None, 1));
    assert!(summary.text().contains("A run under BSP itself diverged"), "{}", summary.text());
}

#[test]
fn keys_tell_jobs_apart_and_not_places() {
    let key = |line: &str| Key::of(&options(line).train, "2 cores".to_owned()).unwrap();
    assert_eq!(key(""), key("--quiet --json x --metrics-port 9000"));
    let others =
        ["--lr 0.1", "--ranks 2", "--net mlp", "--seed 2", "--epochs 3", "--link-rate none"];
    for line in others {
        assert_ne!(key(""), key(line), "{line}");
    }
    assert_ne!(key(""), Key::of(&options("").train, "4 cores".to_owned()).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a.txt", "b.txt", "c.txt"].map(|name| folder.path().join(name));
    for (path, text) in [(&a, "one text "), (&b, "one text "), (&c, "one tent ")] {
        fs::write(path, text.repeat(50)).unwrap();
    }
    let [a, b, c] = [a, b, c].map(|path| key(&format!("--data {}", path.display())));
    assert_eq!(a, b);
    assert_ne!(a, c);
    let text = serde_json::to_string(&a).unwrap();
    assert_eq!(serde_json::from_str::<Key>(&text).unwrap(), a);
}

#[test]
fn searches_of_other_keys_stay_and_a_foreign_file_is_left_alone() {
    let bench = bench();
    let other = Key::of(&options("--lr 0.5").train, "2 cores".to_owned()).unwrap();
    bench.search("--settings 1 --runs 1", &SETUP_2, 9).unwrap();
    let record = Record {
        trial: Trial { fraction: 1.0 / 1024.0, run: 3 },
        outcome: Outcome { accuracy: None, seconds: 0.1 },
    };
    bench.store.save(&other, &[record]).unwrap();
    assert_eq!(bench.store.records(&bench.key).unwrap().len(), 2);
    assert_eq!(bench.store.records(&other).unwrap(), [record]);
    let folder = bench.store.path().parent().unwrap();
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "no other file is left");
    for (text, reason) in [
        ("", "EOF"),
        ("[1]", "invalid"),
        ("{\"version\":2,\"searches\":[]}", "version 2, and 1 is known"),
    ] {
        fs::write(bench.store.path(), text).unwrap();
        for line in ["", "--again"] {
            let error = bench.search(line, &SETUP_2, 100).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("--store"), "{error}");
        }
        assert_eq!(fs::read_to_string(bench.store.path()).unwrap(), text);
    }
    let lost = Store::new(folder.join("tune.json/x.json"));
    assert!(matches!(lost.save(&other, &[record]), Err(StoreError::Io { .. })));
}

#[test]
fn a_store_with_impossible_jobs_is_refused() {
    let bench = bench();
    for (fraction, seconds) in [(1.5, 1.0), (0.5, -1.0)] {
        let trial = Trial { fraction, run: 0 };
        let record = Record { trial, outcome: Outcome { accuracy: Some(0.5), seconds } };
        bench.store.save(&bench.key, &[record]).unwrap();
        let error = bench.search("", &SETUP_2, 100).unwrap_err();
        assert!(matches!(error, TuneError::Search(_)), "{error}");
    }
}

#[test]
fn plans_are_names_of_models() {
    let names = [1.0, 0.5, 0.0625, 0.375, 1.0 / 1024.0].map(plan);
    let expected = ["bsp", "bsp:50%+asp", "bsp:6.25%+asp", "bsp:37.5%+asp", "bsp:0.09765625%+asp"];
    assert_eq!(names, expected);
}

#[test]
fn a_job_is_the_trainer_s_with_a_seed_of_its_own() {
    let options = options("--seed 7 --json x --epochs 2");
    let job = options.job(Trial { fraction: 1.0, run: 3 }).unwrap();
    let runs = job.runs();
    assert_eq!((runs.len(), runs[0].seed, runs[0].model.name(), runs[0].epochs), (1, 10, "bsp", 2));
    assert!(job.json.is_none() && job.no_plot && job.quiet);
}

#[test]
fn options_that_a_search_sets_itself_are_refused() {
    assert!(options("").check().is_ok());
    for (line, reason) in [
        ("--models bsp", "--models: "),
        ("--seeds 1,2", "--seeds: give the first as --seed"),
        ("--plot x.svg", "--plot: "),
        ("--log x", "--log: "),
        ("--straggler 9:1ms", "--straggler 9"),
    ] {
        let error = options(line).check().unwrap_err();
        assert!(error.starts_with(reason), "{error}");
    }
    for line in ["--settings 0", "--settings 41", "--runs 0", "--tolerance nan", "--tolerance=-1"] {
        let words = std::iter::once("tune").chain(line.split_whitespace());
        assert!(Command::try_parse_from(words).is_err(), "{line}");
    }
}

//! Reports on run directories that these tests write, with the record's own writer.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use syncline::record::{
    Accuracy, Decision, DecisionKind, End, Epoch, Record, Run, RunLog, Step, VERSION,
};
use tempfile::TempDir;

use super::figure::{accuracy_at, bin, colour, mean_points};
use super::plane::{Axis, escape};
use super::*;
use crate::report::Report;
use crate::report::tests::run as train_run;

const STEPS_PER_EPOCH: u64 = 10;
const EPOCHS: u64 = 4;
/// Text that would steer a page that does not escape it.
const EVIL: &str = "<script src=\"http://x.test/a.js\">&'\"</script>";

struct Sample {
    model: &'static str,
    seed: u64,
    step_s: f64,
    deferred: u64,
    gain: f64,
}

impl Sample {
    /// A run of two ranks; rank 0 tests. From step 20 on it runs under another model.
    fn write(&self, dir: &Path) {
        for rank in 0..2 {
            let setting = [("seed", self.seed.to_string()), ("net", "cnn".to_owned())];
            let setting = setting.map(|(key, value)| (key.to_owned(), value)).into();
            let model = self.model.to_owned();
            let started_unix_s = 1_700_000_000;
            let run = Run { version: VERSION, model, rank, ranks: 2, setting, started_unix_s };
            let mut log = RunLog::create(dir, run).unwrap();
            for step in 1..=STEPS_PER_EPOCH * EPOCHS {
                log.write(&Record::Step(self.step(step))).unwrap();
                if self.model == "switch" && step == 20 {
                    log.write(&Record::Decision(self.decision(rank))).unwrap();
                }
                if step % STEPS_PER_EPOCH == 0 {
                    self.end_epoch(&mut log, rank, step);
                }
            }
            let steps = STEPS_PER_EPOCH * EPOCHS;
            let wall_s = self.step_s * steps as f64;
            let outcome = "finished".to_owned();
            log.end(End { steps, samples: 16 * steps, wall_s, outcome }).unwrap();
        }
    }

    fn step(&self, step: u64) -> Step {
        // Nine in ten wait 2 ms, the tenth 12 ms: mean 3, median 2, 99th percentile 12.
        let exposed_ms = if step.is_multiple_of(10) { 12.0 } else { 2.0 };
        Step {
            step,
            t_s: self.step_s * step as f64,
            samples: 16 * step,
            loss: if step == 7 { f64::NAN } else { 1.0 / step as f64 },
            learning_rate: 0.05,
            model: self.model.to_owned(),
            compute_ms: 5.0,
            exposed_ms,
            rs_ms: exposed_ms,
            ics_wait_ms: 0.0,
            pull_wait_ms: 0.0,
            check_wait_ms: 0.0,
            bytes_important: 100 - self.deferred,
            bytes_deferred: self.deferred,
            deferred_share: self.deferred as f64 / 100.0,
            staleness: if self.deferred > 0 { 1 } else { 0 },
            limit: "cap".to_owned(),
        }
    }

    fn decision(&self, rank: u32) -> Decision {
        Decision {
            t_s: self.step_s * 20.0,
            step: 20,
            samples: 320,
            kind: DecisionKind::Switch,
            from: "bsp".to_owned(),
            to: "asp".to_owned(),
            reason: EVIL.to_owned(),
            evidence: BTreeMap::from([("slowdown".to_owned(), 2.5)]),
            cost_ms: Some(10.0 + f64::from(rank)),
        }
    }

    fn end_epoch(&self, log: &mut RunLog, rank: u32, step: u64) {
        let (epoch, t_s, samples) = (step / STEPS_PER_EPOCH, self.step_s * step as f64, 16 * step);
        let record = Epoch {
            epoch,
            t_s,
            samples,
            mean_loss: 0.5,
            deferred_bytes_limit: self.deferred,
            limit: "cap".to_owned(),
            reason: "as asked".to_owned(),
        };
        log.write(&Record::Epoch(record)).unwrap();
        if rank == 0 {
            let accuracy = 0.6 + self.gain * epoch as f64;
            log.write(&Record::Accuracy(Accuracy { epoch, t_s, samples, accuracy })).unwrap();
        }
    }
}

/// BSP and OSP with two seeds each, and a run that switches.
fn samples() -> TempDir {
    let dir = TempDir::new().unwrap();
    let sample = |model, seed, step_s, deferred, gain| {
        let name = format!("{model}-{seed}");
        Sample { model, seed, step_s, deferred, gain }.write(&dir.path().join(name));
    };
    sample("bsp", 1, 0.02, 0, 0.08);
    sample("bsp", 2, 0.02, 0, 0.07);
    sample("osp", 1, 0.01, 40, 0.08);
    sample("osp", 2, 0.01, 40, 0.08);
    sample("switch", 1, 0.016, 0, 0.05);
    dir
}

fn study(dir: &TempDir) -> Study {
    Study::new(load(&[dir.path().to_owned()]).unwrap(), 0.9)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn the_numbers_of_a_run_by_hand() {
    let dir = samples();
    let study = study(&dir);
    let names: Vec<&str> = study.models.iter().map(|model| model.model.as_str()).collect();
    assert_eq!(names, ["BSP", "OSP", "switch"]);
    let osp = study.of("OSP").next().unwrap();
    // 2 ranks with 16 samples in each 10 ms; 120 ms of 400 waited.
    assert!(near(osp.samples_per_s, 3200.0) && near(osp.wall_s, 0.4), "{osp:?}");
    assert!(near(osp.exposed_pct, 30.0) && near(osp.deferred_pct, 40.0), "{osp:?}");
    assert!(near(osp.sync.mean_ms, 3.0) && near(osp.sync.p99_ms, 12.0), "{osp:?}");
    assert_eq!(osp.sync.p50_ms, Some(2.0));
    assert_eq!(osp.deferred.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(osp.deferred.values().all(|percent| near(*percent, 40.0)));
    assert_eq!(osp.staleness, BTreeMap::from([(1, 80)]));
    assert_eq!((osp.seed.as_deref(), osp.accuracy.len()), (Some("1"), 4));
    // 0.6, 0.68, ... reaches 0.9 at the fourth epoch; with 0.07 it never does.
    let bsp = &study.models[0];
    assert_eq!((bsp.runs, bsp.time_to_target.reached), (2, 1));
    assert!(near(bsp.time_to_target.mean_s.unwrap(), 0.8), "{bsp:?}");
    let accuracy = bsp.final_accuracy.unwrap();
    assert!(near(accuracy.mean, 0.9) && near(accuracy.sd, 0.04 / 2_f64.sqrt()), "{accuracy:?}");
}

#[test]
fn a_decision_of_all_ranks_counts_once_at_its_highest_cost() {
    let dir = samples();
    let study = study(&dir);
    let made = &study.of("switch").next().unwrap().decisions;
    assert_eq!((made.len(), made[0].ranks.as_slice()), (1, [0, 1].as_slice()));
    let switch = &study.models[2];
    assert_eq!((switch.switches, switch.switch_cost_ms), (1.0, Some(11.0)));
    let table = study.table();
    let row = table.lines().find(|line| line.contains("BSP")).unwrap();
    assert!(row.contains("90.00 ± 2.83") && row.contains("0.80 (1 of 2)"), "{row}");
    let row = table.lines().find(|line| line.contains("switch ")).unwrap();
    assert!(row.contains("never") && row.contains("11.0"), "{row}");
    assert!(table.lines().all(|line| line.chars().count() <= 132), "{table}");
}

#[test]
fn the_page_needs_nothing_else_and_escapes_all_text() {
    let dir = samples();
    let html = page(&study(&dir));
    let lower = html.to_lowercase();
    for word in ["<script", "<link", "<img", "@import", "url(", " src=\"", "href", "<iframe"] {
        let found = lower.find(word).map(|at| &lower[at..]);
        assert!(found.is_none(), "{word}: {:.80}", found.unwrap_or_default());
    }
    assert!(html.contains("&lt;script src=&quot;http://x.test/a.js&quot;&gt;&amp;&#39;"));
    assert!(html.contains("slowdown 2.5") && html.contains("prefers-color-scheme: dark"));
    assert_eq!(html.matches("<figure>").count(), 4);
    assert!(!html.contains("NaN") && !html.contains("inf\""), "numbers that are none");
    for tag in ["svg", "g", "table", "tr", "td", "th", "figure", "ul", "li", "p"] {
        let open =
            html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
        assert_eq!(open, html.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    // Two thin lines for BSP, two for OSP, none for the single run.
    assert_eq!(html.matches("<polyline class=\"thin ").count(), 4);
    assert_eq!(html.matches("step 20: switch bsp → asp").count(), 1);
}

#[test]
fn what_is_drawn_lies_within_the_figure() {
    let dir = samples();
    let mut study = study(&dir);
    study.runs[0].accuracy[1].accuracy = f64::NAN;
    study.runs[0].accuracy[2].t_s = f64::INFINITY;
    let svg = figure::accuracy(&study).unwrap();
    let mut count = 0;
    for points in svg.split("points=\"").skip(1) {
        for point in points.split('"').next().unwrap().split(' ') {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((plane::LEFT..=plane::RIGHT).contains(&x), "{x}");
            assert!((plane::TOP..=plane::BOTTOM).contains(&y), "{y}");
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}

#[test]
fn files_of_train_are_compared_with_run_logs() {
    let dir = samples();
    let path = dir.path().join("results.json");
    let runs = vec![train_run("asp", 5, 3000.0, 0.98)];
    fs::write(&path, serde_json::to_string(&Report { runs }).unwrap()).unwrap();
    let paths = [path.clone(), dir.path().to_owned(), path, dir.path().join("osp-1")];
    let study = Study::new(load(&paths).unwrap(), 0.9);
    assert_eq!((study.runs.len(), study.models[0].model.as_str()), (6, "ASP"));
    assert_eq!(study.models[0].sync_p50_ms, None);
    let notes = study.notes().join(" ");
    assert!(notes.contains("ranks") && notes.contains("holds the update"), "{notes}");
    let html = page(&study);
    assert!(html.contains("mean 12.50 ms") && html.contains("p50 2.00 ms"));
    assert_eq!(colour(&study, "switch"), "c3");
    let json: serde_json::Value = serde_json::to_value(&study).unwrap();
    assert_eq!(json["runs"][5]["decisions"][0]["kind"], "switch");
}

#[test]
fn a_run_that_was_killed_is_told() {
    let dir = samples();
    let path = dir.path().join("osp-1/rank-1.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 20]).unwrap();
    fs::remove_file(dir.path().join("bsp-1/rank-1.jsonl")).unwrap();
    let study = study(&dir);
    let notes = study.notes().join("\n");
    assert!(notes.contains("rank 1: no end: killed, or still running"), "{notes}");
    assert!(notes.contains("cut short and left out: ranks 1"), "{notes}");
    assert!(notes.contains("no log of ranks 1 of 2"), "{notes}");
}

#[test]
fn a_run_without_a_step_makes_a_page_without_figures() {
    let dir = TempDir::new().unwrap();
    let setting = BTreeMap::new();
    let model = "\u{1b}[31m<b>".to_owned();
    let run = Run { version: 2, model, rank: 0, ranks: 1, setting, started_unix_s: 0 };
    drop(RunLog::create(dir.path(), run).unwrap());
    let study = study(&dir);
    let html = page(&study);
    assert_eq!(html.matches("hold no data").count(), 4);
    assert!(!html.contains("<b>") && !study.table().contains('\u{1b}'));
    assert!(study.notes().join(" ").contains("version 2, read as version 1"));
}

#[test]
fn what_holds_no_run_is_an_error_that_names_it() {
    let dir = TempDir::new().unwrap();
    let error = |path: PathBuf| load(&[path]).unwrap_err().to_string();
    assert!(error(dir.path().join("absent")).contains("absent"));
    assert!(error(dir.path().to_owned()).contains("no rank-<r>.jsonl"));
    let file = dir.path().join("file.json");
    for text in ["", "garbage", "{}", "{\"runs\":[]}", "{\"runs\":[{\"model\":\"bsp\"}]}"] {
        fs::write(&file, text).unwrap();
        let said = error(file.clone());
        assert!(said.contains("file.json") && said.contains("name the directory"), "{said}");
    }
    fs::write(dir.path().join("rank-0.jsonl"), "garbage\n").unwrap();
    assert!(error(dir.path().to_owned()).contains("rank-0.jsonl, line 1"));
}

#[test]
fn parts_by_hand() {
    assert_eq!(escape("a<b>&\"'\n\u{1b}"), "a&lt;b&gt;&amp;&quot;&#39; \u{fffd}");
    assert_eq!([0, 8, 9, 16, 17, 32, 33].map(bin), [0, 8, 9, 9, 17, 17, 33]);
    assert_eq!(bin(u64::MAX), (1 << 63) + 1);
    assert_eq!(Axis::up(0.0, 100.0).ticks(5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    assert_eq!(Axis::across(2.0, 2.0).at(2.0), plane::LEFT);
    let point = |epoch, t_s, accuracy| Point { epoch, t_s, accuracy };
    let points = [point(1, 1.0, 0.5), point(2, 3.0, 0.7)];
    let at = |t_s| accuracy_at(&points, t_s).unwrap();
    assert!(near(at(2.0), 0.6) && near(at(0.0), 0.5) && near(at(9.0), 0.7));
    assert_eq!(accuracy_at(&[], 1.0), None);
    assert_eq!(measured::list(&[0, 1, 2, 5]), "0-2, 5");
    let dir = samples();
    let means = mean_points(&study(&dir), "BSP");
    assert!(means.len() == 4 && near(means[3].accuracy, 0.9) && near(means[3].t_s, 0.8));
}

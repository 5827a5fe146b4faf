//! Results: one record a run, the JSON of all, the table, and the comparison in words.
//!
//! Owns their form and the statistics over seeds. Measures nothing. Made by `driver`.

use std::fmt::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::{Deserialize, Deserializer, Serialize};
use syncline::record::Decision;

use crate::spec::SyncModel;

/// All runs of one call of `train`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// In the order they ran.
    pub runs: Vec<Run>,
}

/// One run: one model, one seed. Times are on the training clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Synchronisation model.
    pub model: SyncModel,
    /// Images that all ranks together trained on in a second.
    pub samples_per_s: f64,
    /// Part of the training time spent waiting for communication, 0 to 100, mean over ranks.
    pub exposed_comm_pct: f64,
    /// Batch synchronisation time, from the end of a step's gradients to the start of the next
    /// step: mean over steps and ranks, in milliseconds.
    pub bst_mean_ms: f64,
    /// The same: 99th percentile.
    pub bst_p99_ms: f64,
    /// Bytes that a rank sends in a step, mean over steps and ranks.
    pub bytes_per_iteration: f64,
    /// Share of the test images in their class at the end, 0 to 1.
    pub final_accuracy: f64,
    /// Mean loss on the test items at the end, in nats, for a text per byte; none if not finite.
    #[serde(default)]
    pub final_test_loss: Option<f64>,
    /// Seed.
    pub seed: u64,
    /// World size.
    pub ranks: u32,
    /// What carried the bytes.
    pub transport: String,
    /// Pace of a rank's link in megabits per second; none if not held back.
    pub link_rate_mbps: Option<f64>,
    /// Time added to every message's way, in microseconds.
    pub link_latency_us: f64,
    /// Epochs.
    pub epochs: u32,
    /// Training time of the slowest rank, in seconds.
    pub wall_s: f64,
    /// Time spent on one step's gradients, mean over steps and ranks, in milliseconds.
    pub compute_mean_ms: f64,
    /// At the end of each epoch: seconds, and accuracy from 0 to 1.
    pub accuracy_over_time: Vec<(f64, f64)>,
    /// Mean training loss of each epoch; NaN, `null` in JSON, where it was not finite.
    #[serde(deserialize_with = "numbers")]
    pub loss_per_epoch: Vec<f32>,
    /// Part of the training time that went into changes of the sync model, of the ranks that take
    /// part, or back to an earlier state; of the slowest rank, in milliseconds.
    #[serde(default)]
    pub switch_ms: f64,
    /// What was decided while training, as rank 0 tells it.
    #[serde(default)]
    pub decisions: Vec<Decision>,
    /// Part of the gradients' bytes whose synchronisation was deferred, 0 to 100, mean over
    /// epochs.
    pub deferred_pct: f64,
    /// Data set.
    pub data: String,
    /// Network.
    pub net: String,
    /// Bytes of all parameters.
    pub parameter_bytes: u64,
    /// Images that go through a rank's network at once.
    pub batch: u32,
    /// Learning rate.
    pub lr: f32,
    /// Momentum.
    pub momentum: f32,
    /// All settings but model and seed, in words.
    #[serde(default)]
    pub setting: String,
}

fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
    let all = Vec::<Option<f32>>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|number| number.unwrap_or(f32::NAN)).collect())
}

/// Mean and sample standard deviation; the latter 0 for a single value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
}

impl Spread {
    /// Of `values`; of none, zeros.
    pub fn of(values: &[f64]) -> Self {
        if values.is_empty() {
            return Self { mean: 0.0, deviation: 0.0 };
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        Self { mean, deviation }
    }
}

/// The value below which `percent` of `values` lie (nearest rank); 0 of none.
pub fn percentile(values: &mut [f32], percent: f64) -> f32 {
    values.sort_by(f32::total_cmp);
    let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// A column of the table: its heading, digits after the point, and its value in a run.
type Column = (&'static str, usize, fn(&Run) -> f64);

const COLUMNS: [Column; 6] = [
    ("samples/s", 0, |run| run.samples_per_s),
    ("exposed\ncomm. %", 1, |run| run.exposed_comm_pct),
    ("sync time\nmean ms", 2, |run| run.bst_mean_ms),
    ("sync time\np99 ms", 2, |run| run.bst_p99_ms),
    ("sent per rank\nand step, kB", 1, |run| run.bytes_per_iteration / 1e3),
    ("test\naccuracy %", 2, |run| run.final_accuracy * 100.0),
];

impl Report {
    /// The models in the order they first ran.
    pub fn models(&self) -> Vec<SyncModel> {
        let mut models: Vec<SyncModel> = Vec::new();
        for run in &self.runs {
            if !models.contains(&run.model) {
                models.push(run.model.clone());
            }
        }
        models
    }

    /// The runs of one model.
    pub fn of<'a>(&'a self, model: &'a SyncModel) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| run.model == *model)
    }

    /// Mean and deviation over a model's runs.
    pub fn spread(&self, model: &SyncModel, value: impl Fn(&Run) -> f64) -> Spread {
        let values: Vec<f64> = self.of(model).map(value).collect();
        Spread::of(&values)
    }

    /// The table: a line a model; with several seeds, mean and standard deviation.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_content_arrangement(ContentArrangement::Disabled);
        let headings = COLUMNS.iter().map(|(heading, ..)| (*heading).to_owned());
        table.set_header(std::iter::once("model".to_owned()).chain(headings));
        for model in self.models() {
            let several = self.of(&model).count() > 1;
            let cells = COLUMNS.iter().map(|(_, digits, value)| {
                let Spread { mean, deviation } = self.spread(&model, value);
                if several {
                    format!("{mean:.digits$} ± {deviation:.digits$}")
                } else {
                    format!("{mean:.digits$}")
                }
            });
            table.add_row(std::iter::once(model.title()).chain(cells));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    /// What was decided in each run, a line each, and what carrying it out cost.
    pub fn decisions(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for run in self.runs.iter().filter(|run| !run.decisions.is_empty()) {
            let (title, seed, ms) = (run.model.title(), run.seed, run.switch_ms);
            lines.push(format!(
                "{title}, seed {seed}: changes took {ms:.2} ms, part of {:.3} s",
                run.wall_s
            ));
            lines.extend(run.decisions.iter().map(|decision| {
                let Decision { t_s, step, kind, from, to, reason, cost_ms, .. } = decision;
                let cost = cost_ms.map(|ms| format!(" in {ms:.2} ms")).unwrap_or_default();
                format!("  {t_s:.3} s, step {step}: {kind} {from} -> {to}{cost}: {reason}")
            }));
        }
        lines
    }

    /// One line for each model but BSP on how it compares with BSP; none if BSP did not run.
    pub fn comparison(&self) -> Vec<String> {
        let speed = |model: &SyncModel| self.spread(model, |run| run.samples_per_s).mean;
        let accuracy =
            |model: &SyncModel| self.spread(model, |run| run.final_accuracy).mean * 100.0;
        let models = self.models();
        let Some(bsp) = models.iter().find(|model| model.is_base()) else { return Vec::new() };
        let base = speed(bsp);
        if base <= 0.0 {
            return Vec::new();
        }
        let others = models.iter().filter(|model| !model.is_base());
        others
            .map(|model| {
                let mut line = String::new();
                let factor = speed(model) / base;
                let points = accuracy(model) - accuracy(bsp);
                let title = model.title();
                write!(line, "{title}: {factor:.2} x the samples/s of BSP").expect("to memory");
                write!(line, ", accuracy {points:+.2} points").expect("to memory");
                line
            })
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use syncline::record::DecisionKind;

    use super::*;
    use crate::spec::model;

    /// A made-up run.
    pub(crate) fn run(name: &str, seed: u64, samples_per_s: f64, accuracy: f64) -> Run {
        let epochs = 12;
        let epoch_s = 1437.0 / samples_per_s;
        let point = |epoch: u32| {
            let t = f64::from(epoch + 1);
            (t * epoch_s, accuracy - 0.5 * (-0.9 * t).exp() + 0.002 * f64::from(seed as u32 % 3))
        };
        let mut accuracy_over_time: Vec<(f64, f64)> = (0..epochs).map(point).collect();
        accuracy_over_time.last_mut().expect("epochs").1 = accuracy;
        Run {
            model: model(name),
            samples_per_s,
            exposed_comm_pct: 48.25,
            bst_mean_ms: 12.5,
            bst_p99_ms: 20.125,
            bytes_per_iteration: 311_676.0,
            final_accuracy: accuracy,
            final_test_loss: Some(0.25),
            seed,
            ranks: 4,
            transport: "shm, paced".to_owned(),
            link_rate_mbps: Some(200.0),
            link_latency_us: 0.0,
            epochs,
            wall_s: f64::from(epochs) * epoch_s,
            compute_mean_ms: 6.5,
            accuracy_over_time,
            loss_per_epoch: vec![1.0, 0.5],
            switch_ms: 0.0,
            decisions: Vec::new(),
            deferred_pct: 0.0,
            data: "digits".to_owned(),
            net: "cnn".to_owned(),
            parameter_bytes: 207_784,
            batch: 16,
            lr: 0.05,
            momentum: 0.9,
            setting: "digits, CNN".to_owned(),
        }
    }

    #[test]
    fn statistics_of_known_values() {
        assert_eq!(Spread::of(&[2.0, 4.0, 6.0]), Spread { mean: 4.0, deviation: 2.0 });
        assert_eq!(Spread::of(&[5.0]), Spread { mean: 5.0, deviation: 0.0 });
        assert_eq!(Spread::of(&[]), Spread { mean: 0.0, deviation: 0.0 });
        let mut values: Vec<f32> = (1..=200).rev().map(|x| x as f32).collect();
        assert_eq!(percentile(&mut values, 99.0), 198.0);
        assert_eq!(percentile(&mut values, 100.0), 200.0);
        assert_eq!(percentile(&mut [3.0], 99.0), 3.0);
        assert_eq!(percentile(&mut [], 99.0), 0.0);
    }

    #[test]
    fn one_seed_shows_values_and_several_show_their_spread() {
        let single = Report { runs: vec![run("bsp", 1, 3000.0, 0.98)] };
        let row = single.table().lines().find(|line| line.contains("BSP")).unwrap().to_owned();
        let cells: Vec<&str> = row.split_whitespace().collect();
        let expected = ["│", "BSP", "3000", "48.2", "12.50", "20.12", "311.7", "98.00", "│"];
        assert_eq!(cells, expected);
        let runs = vec![
            run("osp", 1, 3000.0, 0.98),
            run("bsp", 1, 2000.0, 0.97),
            run("osp", 2, 3200.0, 0.96),
            run("bsp", 2, 2000.0, 0.97),
        ];
        let report = Report { runs };
        let table = report.table();
        let row = table.lines().find(|line| line.contains("OSP")).unwrap();
        assert!(row.contains("3100 ± 141") && row.contains("97.00 ± 1.41"), "{row}");
        assert!(table.find("OSP") < table.find("BSP"));
        let line = "OSP: 1.55 x the samples/s of BSP, accuracy +0.00 points";
        assert_eq!(report.comparison(), [line]);
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    }

    #[test]
    fn decisions_are_told_under_the_run_that_made_them() {
        let mut changed = run("bsp:10%+asp", 3, 3000.0, 0.98);
        changed.wall_s = 2.0;
        changed.switch_ms = 1.5;
        changed.loss_per_epoch = vec![f32::NAN, 0.5];
        changed.decisions = vec![Decision {
            t_s: 0.25,
            step: 7,
            samples: 112,
            kind: DecisionKind::Switch,
            from: "bsp".to_owned(),
            to: "asp".to_owned(),
            reason: "the plan".to_owned(),
            evidence: BTreeMap::new(),
            cost_ms: Some(1.25),
        }];
        let report = Report { runs: vec![run("bsp", 3, 2000.0, 0.97), changed] };
        assert_eq!(
            report.decisions(),
            [
                "BSP:10%+ASP, seed 3: changes took 1.50 ms, part of 2.000 s",
                "  0.250 s, step 7: switch bsp -> asp in 1.25 ms: the plan",
            ]
        );
        let read: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(read.runs[1].decisions, report.runs[1].decisions);
        assert!(read.runs[1].loss_per_epoch[0].is_nan());
    }

    #[test]
    fn nothing_is_compared_without_its_base() {
        let report = Report { runs: vec![run("osp", 1, 3000.0, 0.98)] };
        assert!(report.comparison().is_empty());
    }

    #[test]
    fn json_has_the_promised_keys_and_reads_back() {
        let report = Report { runs: vec![run("asp", 5, 3000.0, 0.98)] };
        let json = serde_json::to_value(&report).unwrap();
        let first = &json["runs"][0];
        assert_eq!(first["model"], "asp");
        for key in [
            "samples_per_s",
            "exposed_comm_pct",
            "bst_mean_ms",
            "bst_p99_ms",
            "bytes_per_iteration",
            "final_accuracy",
            "seed",
            "ranks",
            "link_rate_mbps",
            "epochs",
            "wall_s",
            "deferred_pct",
        ] {
            assert!(first[key].is_number(), "{key}");
        }
        assert!(first["transport"].is_string());
        assert!(first["accuracy_over_time"][0][1].is_number());
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    }
}

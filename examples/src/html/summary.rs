//! Runs by model: statistics, the table and its JSON.
//!
//! Owns what is compared. Called by `syncline report` and by `page`.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use syncline::record::DecisionKind;

use super::measured::{Measured, mean};
use crate::report::Spread;

/// Mean and sample standard deviation of the values that are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Stat {
    /// Mean; NaN of none.
    pub mean: f64,
    /// Standard deviation; 0 for a single value.
    pub sd: f64,
}

impl Stat {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let Spread { mean, deviation } = Spread::of(&values);
        if values.is_empty() {
            Self { mean: f64::NAN, sd: 0.0 }
        } else {
            Self { mean, sd: deviation }
        }
    }
}

/// When a model's runs reached the target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeToTarget {
    /// Mean of the runs that reached it, in seconds of training.
    pub mean_s: Option<f64>,
    /// How many did.
    pub reached: usize,
}

/// What a model's runs showed; means are over runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelSummary {
    /// Model.
    pub model: String,
    /// How many runs.
    pub runs: usize,
    /// Samples of all ranks in a second.
    pub samples_per_s: Stat,
    /// Batch-synchronisation time, in milliseconds.
    pub sync_mean_ms: f64,
    /// Its median, where all runs have it.
    pub sync_p50_ms: Option<f64>,
    /// Its 99th percentile.
    pub sync_p99_ms: f64,
    /// Part of the time spent waiting for communication, 0 to 100.
    pub exposed_pct: f64,
    /// Part of the bytes that were deferred, 0 to 100.
    pub deferred_pct: f64,
    /// Last accuracy, 0 to 1; none if no run was tested.
    pub final_accuracy: Option<Stat>,
    /// When the target was reached.
    pub time_to_target: TimeToTarget,
    /// Switches in a run.
    pub switches: f64,
    /// Training time that they took together, in milliseconds; none if never measured.
    pub switch_cost_ms: Option<f64>,
}

/// Runs to be compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Study {
    /// Accuracy to be reached, 0 to 1.
    pub target: f64,
    /// By model, in the order in which they first appear.
    pub models: Vec<ModelSummary>,
    /// In the order given.
    pub runs: Vec<Measured>,
    /// Settings that runs have in common and that are not equal.
    pub differing_settings: Vec<String>,
}

impl Study {
    /// Of these runs, with the accuracy whose time is asked for.
    pub fn new(runs: Vec<Measured>, target: f64) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for run in &runs {
            if !names.contains(&run.model.as_str()) {
                names.push(&run.model);
            }
        }
        let models = names.iter().map(|name| summary(&runs, name, target)).collect();
        let differing_settings = differing(&runs);
        Self { target, models, runs, differing_settings }
    }

    /// The runs of a model.
    pub fn of<'a>(&'a self, model: &'a str) -> impl Iterator<Item = &'a Measured> {
        self.runs.iter().filter(move |run| run.model == model)
    }

    /// The headings of the table; a line break where a narrow table wants one.
    pub fn headings(&self) -> [String; 11] {
        [
            "model".to_owned(),
            "runs".to_owned(),
            "samples/s".to_owned(),
            "sync time\nmean ms".to_owned(),
            "sync time\np99 ms".to_owned(),
            "exposed\n%".to_owned(),
            "deferred\n%".to_owned(),
            "final\naccuracy %".to_owned(),
            format!("time to\n{} %, s", short(self.target * 100.0)),
            "switches\na run".to_owned(),
            "their cost\nms".to_owned(),
        ]
    }

    /// The rows of the table.
    pub fn rows(&self) -> Vec<[String; 11]> {
        self.models.iter().map(ModelSummary::row).collect()
    }

    /// The table as text.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(self.headings());
        for row in self.rows() {
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    /// Sentences on what the numbers do not show.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.differing_settings.is_empty() {
            let names = self.differing_settings.join(", ");
            notes.push(format!("The runs are not of one setting; they differ in: {names}."));
        }
        let has_median = |run: &Measured| run.sync.p50_ms.is_some();
        if self.runs.iter().any(has_median) && !self.runs.iter().all(has_median) {
            notes.push(
                "Sync time of 'syncline train --json' holds the update of the parameters, that of \
                 run logs does not."
                    .to_owned(),
            );
        }
        for run in &self.runs {
            if run.outcome != "finished" {
                notes.push(format!("{}: {}.", run.source, run.outcome));
            }
            notes.extend(run.notes.iter().map(|note| format!("{}: {note}.", run.source)));
        }
        notes
    }
}

impl ModelSummary {
    fn row(&self) -> [String; 11] {
        let spread = |stat: Stat, scale: f64, digits| {
            let mean = number(stat.mean * scale, digits);
            if self.runs < 2 {
                mean
            } else {
                format!("{mean} ± {}", number(stat.sd * scale, digits))
            }
        };
        let TimeToTarget { mean_s, reached } = self.time_to_target;
        let time = match mean_s {
            None => "never".to_owned(),
            Some(s) if reached == self.runs => number(s, 2),
            Some(s) => format!("{} ({reached} of {})", number(s, 2), self.runs),
        };
        [
            self.model.clone(),
            self.runs.to_string(),
            spread(self.samples_per_s, 1.0, 0),
            number(self.sync_mean_ms, 2),
            number(self.sync_p99_ms, 2),
            number(self.exposed_pct, 1),
            number(self.deferred_pct, 1),
            self.final_accuracy.map_or_else(dash, |stat| spread(stat, 100.0, 2)),
            if self.final_accuracy.is_some() { time } else { dash() },
            short(self.switches),
            self.switch_cost_ms.map_or_else(dash, |ms| number(ms, 1)),
        ]
    }
}

fn summary(runs: &[Measured], model: &str, target: f64) -> ModelSummary {
    let runs: Vec<&Measured> = runs.iter().filter(|run| run.model == model).collect();
    let over = |value: fn(&Measured) -> f64| mean(runs.iter().map(|run| value(run)));
    let medians: Option<Vec<f64>> = runs.iter().map(|run| run.sync.p50_ms).collect();
    let accuracies: Vec<f64> = runs.iter().filter_map(|run| run.final_accuracy).collect();
    let times: Vec<f64> = runs.iter().filter_map(|run| run.time_to(target)).collect();
    let costs: Vec<f64> = runs.iter().filter_map(|run| switch_cost_ms(run)).collect();
    let some_mean = |values: &[f64]| Some(mean(values.iter().copied())).filter(|m| m.is_finite());
    ModelSummary {
        model: model.to_owned(),
        runs: runs.len(),
        samples_per_s: Stat::of(runs.iter().map(|run| run.samples_per_s)),
        sync_mean_ms: over(|run| run.sync.mean_ms),
        sync_p50_ms: medians.and_then(|medians| some_mean(&medians)),
        sync_p99_ms: over(|run| run.sync.p99_ms),
        exposed_pct: over(|run| run.exposed_pct),
        deferred_pct: over(|run| run.deferred_pct),
        final_accuracy: (!accuracies.is_empty()).then(|| Stat::of(accuracies.into_iter())),
        time_to_target: TimeToTarget { mean_s: some_mean(&times), reached: times.len() },
        switches: over(|run| switches(run).count() as f64),
        switch_cost_ms: some_mean(&costs),
    }
}

fn switches(run: &Measured) -> impl Iterator<Item = Option<f64>> {
    let switches = run.decisions.iter().filter(|made| made.decision.kind == DecisionKind::Switch);
    switches.map(|made| made.decision.cost_ms)
}

fn switch_cost_ms(run: &Measured) -> Option<f64> {
    switches(run).flatten().filter(|ms| ms.is_finite()).reduce(|a, b| a + b)
}

fn differing(runs: &[Measured]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let Some(first) = runs.first() else { return names };
    if runs.iter().any(|run| run.ranks != first.ranks) {
        names.push("ranks".to_owned());
    }
    let mut known = std::collections::BTreeMap::new();
    for (key, value) in runs.iter().flat_map(|run| &run.setting) {
        if *known.entry(key).or_insert(value) != value && !names.contains(key) {
            names.push(key.clone());
        }
    }
    names
}

fn dash() -> String {
    "–".to_owned()
}

/// With so many digits after the point; a dash if it is no number.
pub(super) fn number(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { dash() }
}

/// Without needless zeros.
pub(super) fn short(value: f64) -> String {
    if !value.is_finite() {
        return dash();
    }
    let scale = if value.abs() < 0.1 { 1e6 } else { 1e3 };
    // Adding zero turns -0 into 0.
    format!("{}", (value * scale).round() / scale + 0.0)
}

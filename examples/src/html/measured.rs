//! What one run showed, wherever it was written down.
//!
//! Owns how the records of all ranks become the numbers of a run. Called by `load`; read by
//! `summary`, `figure` and `page`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use syncline::record::{Decision, Epoch, RankLog, Record, RunDir, VERSION};

use crate::report::Run;
use crate::units::LinkRate;

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Where it was read.
    pub source: String,
    /// Synchronisation model, as people write it.
    pub model: String,
    /// Seed, where it is known.
    pub seed: Option<String>,
    /// World size at the start.
    pub ranks: u32,
    /// Settings but the seed.
    pub setting: BTreeMap<String, String>,
    /// Samples of all ranks together in a second.
    pub samples_per_s: f64,
    /// Training time of the slowest rank, in seconds.
    pub wall_s: f64,
    /// Batch-synchronisation time over steps and ranks.
    pub sync: SyncTime,
    /// Part of the training time spent waiting for communication, 0 to 100, mean over ranks.
    pub exposed_pct: f64,
    /// Part of the gradients' bytes whose reduction was deferred, 0 to 100.
    pub deferred_pct: f64,
    /// The last accuracy, 0 to 1.
    pub final_accuracy: Option<f64>,
    /// Accuracy over time, in order.
    pub accuracy: Vec<Point>,
    /// Deferred part of the bytes by epoch, 0 to 100.
    pub deferred: BTreeMap<u64, f64>,
    /// Steps of all ranks by their staleness.
    pub staleness: BTreeMap<u64, u64>,
    /// Decisions by time.
    pub decisions: Vec<Decided>,
    /// `finished`, or which ranks ended otherwise.
    pub outcome: String,
    /// What a reader should know: files cut short, ranks without a log, records not understood.
    pub notes: Vec<String>,
}

/// Batch-synchronisation time, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SyncTime {
    /// Mean.
    pub mean_ms: f64,
    /// Median; unknown for a run of `syncline train --json`.
    pub p50_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: f64,
}

/// Accuracy at the end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Epochs so far.
    pub epoch: u64,
    /// Seconds of training.
    pub t_s: f64,
    /// 0 to 1.
    pub accuracy: f64,
}

/// A decision, and the ranks that wrote it down.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decided {
    /// In order.
    pub ranks: Vec<u32>,
    /// As the lowest of them has it, with the highest cost of all.
    #[serde(flatten)]
    pub decision: Decision,
}

impl Measured {
    /// From the logs of all ranks.
    pub fn of_logs(dir: &RunDir) -> Self {
        let run = dir.run();
        let mut setting = run.setting.clone();
        let seed = setting.remove("seed");
        let ranks: Vec<Totals> = dir.ranks.iter().map(Totals::of).collect();
        let wall_s = ranks.iter().map(|rank| rank.wall_s).fold(0.0, f64::max);
        let samples: u64 = ranks.iter().map(|rank| rank.samples).sum();
        // Each epoch is tested by one rank.
        let mut accuracy: Vec<Point> =
            ranks.iter().flat_map(|rank| &rank.accuracy).copied().collect();
        accuracy.sort_by_key(|point| point.epoch);
        accuracy.dedup_by_key(|point| point.epoch);
        let mut staleness: BTreeMap<u64, u64> = BTreeMap::new();
        let mut epochs: BTreeMap<u64, Bytes> = BTreeMap::new();
        for rank in &ranks {
            rank.staleness.iter().for_each(|(s, n)| *staleness.entry(*s).or_default() += n);
            rank.epochs.iter().for_each(|(epoch, bytes)| {
                epochs.entry(*epoch).or_default().add(*bytes);
            });
        }
        // Without a rank that only serves, which waits all the time.
        let workers = ranks.iter().filter(|rank| rank.samples > 0);
        let mut all = Bytes::default();
        epochs.values().for_each(|bytes| all.add(*bytes));
        Self {
            source: plain(&dir.path.display().to_string()),
            model: title(&run.model),
            seed: seed.map(|seed| plain(&seed)),
            ranks: run.ranks,
            setting: setting.iter().map(|(key, value)| (plain(key), plain(value))).collect(),
            samples_per_s: samples as f64 / wall_s,
            wall_s,
            sync: sync_time(ranks.iter().flat_map(|rank| &rank.exposed_ms).copied().collect()),
            exposed_pct: mean(workers.map(Totals::exposed_pct)),
            deferred_pct: all.deferred_pct().unwrap_or(0.0),
            final_accuracy: accuracy.last().map(|point| point.accuracy),
            accuracy,
            deferred: epochs
                .iter()
                .filter_map(|(epoch, bytes)| Some((*epoch, bytes.deferred_pct()?)))
                .collect(),
            staleness,
            decisions: decisions(dir),
            outcome: outcome(dir),
            notes: notes(dir),
        }
    }

    /// From a run in the file `path` of `syncline train --json`.
    pub fn of_train(run: &Run, path: &Path) -> Self {
        let link = run.link_rate_mbps.map(|mbps| LinkRate {
            bytes_per_s: Some((mbps * 1e6 / 8.0).round() as u64).filter(|rate| *rate > 0),
        });
        let setting = [
            ("data", run.data.clone()),
            ("net", run.net.clone()),
            ("transport", run.transport.clone()),
            ("link_rate", link.unwrap_or_default().to_string()),
            ("link_latency_us", run.link_latency_us.to_string()),
            ("epochs", run.epochs.to_string()),
            ("batch", run.batch.to_string()),
            ("learning_rate", run.lr.to_string()),
            ("momentum", run.momentum.to_string()),
        ];
        let point = |(epoch, (t_s, accuracy)): (u64, &(f64, f64))| Point {
            epoch,
            t_s: *t_s,
            accuracy: *accuracy,
        };
        Self {
            source: plain(&path.display().to_string()),
            model: run.model.title().to_owned(),
            seed: Some(run.seed.to_string()),
            ranks: run.ranks,
            setting: setting.map(|(key, value)| (key.to_owned(), plain(&value))).into(),
            samples_per_s: run.samples_per_s,
            wall_s: run.wall_s,
            sync: SyncTime { mean_ms: run.bst_mean_ms, p50_ms: None, p99_ms: run.bst_p99_ms },
            exposed_pct: run.exposed_comm_pct,
            deferred_pct: run.deferred_pct,
            final_accuracy: Some(run.final_accuracy),
            accuracy: (1..).zip(&run.accuracy_over_time).map(point).collect(),
            deferred: BTreeMap::new(),
            staleness: BTreeMap::new(),
            decisions: Vec::new(),
            outcome: "finished".to_owned(),
            notes: Vec::new(),
        }
    }

    /// When `target` was first measured, in seconds of training.
    pub fn time_to(&self, target: f64) -> Option<f64> {
        self.accuracy.iter().find(|point| point.accuracy >= target).map(|point| point.t_s)
    }
}

#[derive(Clone, Copy, Default)]
struct Bytes {
    important: u64,
    deferred: u64,
}

impl Bytes {
    fn add(&mut self, other: Self) {
        self.important = self.important.saturating_add(other.important);
        self.deferred = self.deferred.saturating_add(other.deferred);
    }

    fn deferred_pct(self) -> Option<f64> {
        let all = self.important as f64 + self.deferred as f64;
        (all > 0.0).then(|| 100.0 * self.deferred as f64 / all)
    }
}

/// The sums of one rank.
#[derive(Default)]
struct Totals {
    wall_s: f64,
    samples: u64,
    exposed_ms: Vec<f64>,
    staleness: BTreeMap<u64, u64>,
    epochs: BTreeMap<u64, Bytes>,
    accuracy: Vec<Point>,
}

impl Totals {
    fn of(log: &RankLog) -> Self {
        let mut totals = Self::default();
        // Steps since the last end of an epoch, and that epoch.
        let (mut bytes, mut last_epoch) = (Bytes::default(), 0);
        for record in &log.records {
            match record {
                Record::Step(step) => {
                    totals.reach(step.t_s, step.samples);
                    totals.exposed_ms.push(step.exposed_ms);
                    *totals.staleness.entry(step.staleness).or_default() += 1;
                    let (important, deferred) = (step.bytes_important, step.bytes_deferred);
                    bytes.add(Bytes { important, deferred });
                }
                Record::Epoch(Epoch { epoch, t_s, samples, .. }) => {
                    totals.reach(*t_s, *samples);
                    last_epoch = *epoch;
                    let whole = std::mem::take(&mut bytes);
                    totals.epochs.entry(*epoch).or_default().add(whole);
                }
                Record::Accuracy(test) => {
                    let (epoch, t_s, accuracy) = (test.epoch, test.t_s, test.accuracy);
                    totals.accuracy.push(Point { epoch, t_s, accuracy });
                }
                Record::End(end) => totals.reach(end.wall_s, end.samples),
                _ => {}
            }
        }
        totals.epochs.entry(last_epoch.saturating_add(1)).or_default().add(bytes);
        totals
    }

    /// `f64::max` passes over a time that is no number.
    fn reach(&mut self, t_s: f64, samples: u64) {
        self.wall_s = self.wall_s.max(t_s);
        self.samples = self.samples.max(samples);
    }

    fn exposed_pct(&self) -> f64 {
        let exposed_s = self.exposed_ms.iter().filter(|ms| ms.is_finite()).sum::<f64>() / 1e3;
        100.0 * exposed_s / self.wall_s
    }
}

/// The mean of those that are numbers; NaN of none.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values
        .filter(|value| value.is_finite())
        .fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    sum / count as f64
}

fn sync_time(mut exposed_ms: Vec<f64>) -> SyncTime {
    exposed_ms.retain(|ms| ms.is_finite());
    exposed_ms.sort_by(f64::total_cmp);
    // The nearest rank, as `syncline::Summary` has it.
    let at = |percent: usize| {
        let rank = (exposed_ms.len() * percent).div_ceil(100);
        exposed_ms.get(rank.saturating_sub(1)).copied()
    };
    let p99_ms = at(99).unwrap_or(f64::NAN);
    SyncTime { mean_ms: mean(exposed_ms.iter().copied()), p50_ms: at(50), p99_ms }
}

/// Each decision once, though many ranks wrote it down.
fn decisions(dir: &RunDir) -> Vec<Decided> {
    let mut all: Vec<Decided> = Vec::new();
    let mut places = BTreeMap::new();
    for log in &dir.ranks {
        for record in &log.records {
            let Record::Decision(decision) = record else { continue };
            let key = (decision.step, decision.kind, &decision.from, &decision.to);
            let place = *places.entry(key).or_insert_with(|| {
                all.push(Decided { ranks: Vec::new(), decision: decision.clone() });
                all.len() - 1
            });
            let known = &mut all[place];
            if known.ranks.last() != Some(&log.run.rank) {
                known.ranks.push(log.run.rank);
            }
            let costs = [known.decision.cost_ms, decision.cost_ms];
            known.decision.cost_ms = costs.into_iter().flatten().reduce(f64::max);
        }
    }
    all.sort_by(|a, b| {
        let by_step = a.decision.step.cmp(&b.decision.step);
        by_step.then(a.decision.t_s.total_cmp(&b.decision.t_s))
    });
    all
}

fn outcome(dir: &RunDir) -> String {
    let ended = |log: &RankLog| {
        let end = log.records.iter().rev().find_map(|record| match record {
            Record::End(end) => Some(plain(&end.outcome)),
            _ => None,
        });
        end.unwrap_or_else(|| "no end: killed, or still running".to_owned())
    };
    let mut ranks: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for log in &dir.ranks {
        ranks.entry(ended(log)).or_default().push(log.run.rank);
    }
    match ranks.first_key_value() {
        Some((outcome, _)) if ranks.len() == 1 => outcome.clone(),
        _ => {
            let parts = ranks.iter().map(|(outcome, ranks)| {
                let s = if ranks.len() > 1 { "s" } else { "" };
                format!("rank{s} {}: {outcome}", list(ranks))
            });
            parts.collect::<Vec<_>>().join("; ")
        }
    }
}

fn notes(dir: &RunDir) -> Vec<String> {
    let mut notes = Vec::new();
    let missing = dir.missing_ranks();
    if !missing.is_empty() {
        notes.push(format!("no log of ranks {} of {}", list(&missing), dir.run().ranks));
    }
    let cut: Vec<u32> =
        dir.ranks.iter().filter(|log| log.is_truncated).map(|log| log.run.rank).collect();
    if !cut.is_empty() {
        notes.push(format!("the last line is cut short and left out: ranks {}", list(&cut)));
    }
    let sum = |part: fn(&RankLog) -> u64| dir.ranks.iter().map(part).sum::<u64>();
    let (records, fields) = (sum(|log| log.skipped.records), sum(|log| log.skipped.fields));
    if records + fields > 0 {
        notes.push(format!("skipped as unknown: {records} records, {fields} fields"));
    }
    if let Some(log) = dir.ranks.iter().find(|log| log.run.version > VERSION) {
        notes.push(format!("written in version {}, read as version {VERSION}", log.run.version));
    }
    notes
}

/// `0-3, 7`
pub(super) fn list(ranks: &[u32]) -> String {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match spans.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            _ => spans.push((*rank, *rank)),
        }
    }
    let text = spans.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(", ")
}

/// The models' names are abbreviations; others stay as they are.
fn title(model: &str) -> String {
    match model {
        "asp" | "bsp" | "osp" | "ssp" => model.to_uppercase(),
        _ => plain(model),
    }
}

/// Without characters that steer a terminal.
fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

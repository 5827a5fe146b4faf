//! Results of a study: JSON, table, and in which cell which model is ahead. Measures nothing.

use std::fmt::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::{Deserialize, Serialize};
use syncline::simulation::Outcome;

use super::plan::Plan;
use crate::spec::SyncModel;
use crate::units::LinkRate;

/// A lead by less is none.
const LEAD: f64 = 1.01;

/// All cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimulateReport {
    /// What all cells share, in words.
    pub setting: String,
    /// What differs from the paper after which a testbed is named.
    pub note: Option<String>,
    /// Accuracy whose time was asked for, where a network learnt.
    pub target: Option<f64>,
    /// In the order in which they were asked for.
    pub cells: Vec<Cell>,
}

/// All models at one number of ranks and one rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// World size.
    pub ranks: u32,
    /// Rate of a rank's link in megabits per second; none if it costs nothing.
    pub link_rate_mbps: Option<f64>,
    /// By model.
    pub runs: Vec<ModelRun>,
}

/// One model in one cell. Times are virtual.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRun {
    /// Synchronisation model.
    pub model: SyncModel,
    /// Samples per second of all ranks: the sum of the ranks' own rates.
    pub samples_per_s: f64,
    /// The same as a multiple of BSP's in this cell, if that ran.
    pub ratio_to_bsp: Option<f64>,
    /// Share of the ranks' time in which they were blocked, 0 to 100.
    pub exposed_comm_pct: f64,
    /// Mean time from step to step, in milliseconds.
    pub step_ms: f64,
    /// Share of the gradients' bytes that were deferred, 0 to 100.
    pub deferred_pct: f64,
    /// Mean staleness of a step.
    pub staleness: f64,
    /// Virtual time of the whole run, in seconds.
    pub end_s: f64,
    /// At the end, 0 to 1, where a network learnt.
    pub final_accuracy: Option<f64>,
    /// When an epoch first ended at the target or above, in seconds.
    pub time_to_target_s: Option<f64>,
    /// By epoch, where a network learnt.
    pub curve: Vec<Point>,
}

/// The end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Counted from 0.
    pub epoch: u64,
    /// Virtual time in seconds.
    pub t_s: f64,
    /// Mean training loss of all ranks in the epoch; `null` in JSON if it is no number.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// On the test images, 0 to 1.
    pub accuracy: f64,
}

fn number_or_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Option::<f64>::deserialize(from).map(|number| number.unwrap_or(f64::NAN))
}

impl ModelRun {
    pub(super) fn new(model: &SyncModel, plan: &Plan, outcome: &Outcome) -> Self {
        Self {
            model: model.clone(),
            samples_per_s: outcome.steps_per_s() * f64::from(plan.batch),
            ratio_to_bsp: None,
            exposed_comm_pct: outcome.exposed_share() * 100.0,
            step_ms: outcome.step_s() * 1e3,
            deferred_pct: outcome.deferred_share() * 100.0,
            staleness: outcome.staleness(),
            end_s: outcome.end_s,
            final_accuracy: None,
            time_to_target_s: None,
            curve: Vec::new(),
        }
    }

    pub(super) fn with_accuracy(self, accuracy: f64, curve: Vec<Point>, target: f64) -> Self {
        let reached = curve.iter().find(|point| point.accuracy >= target);
        let time_to_target_s = reached.map(|point| point.t_s);
        Self { final_accuracy: Some(accuracy), time_to_target_s, curve, ..self }
    }
}

impl Cell {
    pub(super) fn new(ranks: u32, rate: LinkRate, mut runs: Vec<ModelRun>) -> Self {
        let base = runs.iter().find(|run| run.model.is_base()).map(|run| run.samples_per_s);
        for run in &mut runs {
            run.ratio_to_bsp = base.map(|base| run.samples_per_s / base);
        }
        Self { ranks, link_rate_mbps: rate.mbps(), runs }
    }

    /// Who is ahead, in words: by time to the target where a model reached it, else by throughput.
    /// BSP is ahead where nothing is to be gained over it.
    pub fn verdict(&self) -> String {
        let by_target = self.runs.iter().filter(|run| run.time_to_target_s.is_some());
        let time = |run: &ModelRun| run.time_to_target_s.unwrap_or(f64::INFINITY);
        let (best, lead, what) = match by_target.min_by(|a, b| time(a).total_cmp(&time(b))) {
            Some(best) => {
                let lead = self.base().map(|base| time(base) / time(best));
                (Some(best), lead, "sooner at the target than BSP")
            }
            None => {
                let by_rate = |a: &&ModelRun, b: &&ModelRun| {
                    a.samples_per_s.total_cmp(&b.samples_per_s).then(b.model.cmp(&a.model))
                };
                let best = self.runs.iter().max_by(by_rate);
                (best, best.and_then(|best| best.ratio_to_bsp), "the samples/s of BSP")
            }
        };
        let place = format!("{} ranks, {}", self.ranks, rate_text(self.link_rate_mbps));
        match (best, lead) {
            (None, _) => format!("{place}: no model ran"),
            (Some(_), Some(lead)) if lead < LEAD => {
                format!("{place}: BSP; no other model is ahead of it by 1 % or more")
            }
            (Some(best), Some(lead)) if lead.is_finite() => {
                format!("{place}: {}, {lead:.2} x {what}", best.model.title())
            }
            (Some(best), _) => format!("{place}: {}", best.model.title()),
        }
    }

    fn base(&self) -> Option<&ModelRun> {
        self.runs.iter().find(|run| run.model.is_base())
    }
}

fn rate_text(mbps: Option<f64>) -> String {
    match mbps {
        None => "free link".to_owned(),
        Some(mbps) if mbps >= 1e3 => format!("{} Gbit/s", mbps / 1e3),
        Some(mbps) => format!("{mbps} Mbit/s"),
    }
}

impl SimulateReport {
    pub(super) fn new(plan: &Plan, cells: Vec<Cell>) -> Self {
        let target = plan.is_real.then_some(plan.target);
        Self { setting: plan.setting(), note: plan.note.map(str::to_owned), target, cells }
    }

    /// All for people: setting, table, who is ahead where.
    pub fn text(&self) -> String {
        let mut text = format!("\n{}\n", self.setting);
        if let Some(note) = &self.note {
            writeln!(text, "{note}").expect("to memory");
        }
        writeln!(text, "{}\nAhead:", self.table()).expect("to memory");
        for cell in &self.cells {
            writeln!(text, "  {}", cell.verdict()).expect("to memory");
        }
        text
    }

    /// A line for each cell and model.
    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_content_arrangement(ContentArrangement::Disabled);
        let mut headings: Vec<String> =
            ["ranks", "link", "model", "samples/s", "x BSP", "exposed\ncomm. %", "step\nms"]
                .map(str::to_owned)
                .to_vec();
        headings.extend(["deferred\n%", "staleness"].map(str::to_owned));
        if let Some(target) = self.target {
            headings.push("test\naccuracy %".to_owned());
            headings.push(format!("seconds\nto {:.0} %", target * 100.0));
        }
        table.set_header(headings);
        for cell in &self.cells {
            for run in &cell.runs {
                table.add_row(self.row(cell, run));
            }
        }
        for column in table.column_iter_mut().skip(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    fn row(&self, cell: &Cell, run: &ModelRun) -> Vec<String> {
        let or_dash = |number: Option<f64>, digits: usize| {
            number.map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
        };
        let mut row = vec![
            cell.ranks.to_string(),
            rate_text(cell.link_rate_mbps),
            run.model.title(),
            format!("{:.0}", run.samples_per_s),
            or_dash(run.ratio_to_bsp, 2),
            format!("{:.1}", run.exposed_comm_pct),
            format!("{:.2}", run.step_ms),
            format!("{:.1}", run.deferred_pct),
            format!("{:.1}", run.staleness),
        ];
        if self.target.is_some() {
            row.push(or_dash(run.final_accuracy.map(|accuracy| accuracy * 100.0), 2));
            row.push(or_dash(run.time_to_target_s, 2));
        }
        row
    }
}

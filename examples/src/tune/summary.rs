//! What a search found: a row for each share, the choice, and what the search cost.
//!
//! Owns the table, the sentences and the JSON. Decides nothing: that is
//! [`syncline::policy::timing`]. Called by the binary.

use std::fmt::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use syncline::policy::timing::{Progress, Record, TimingSearch};

use super::{Tuned, plan};
use crate::report::Spread;

/// How a share did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// BSP from start to end: what the others are compared with.
    Reference,
    /// Within the tolerance of the reference.
    Good,
    /// Below it.
    TooLow,
    /// A run of it diverged.
    Diverged,
    /// Not all of its runs were needed, or there is no reference.
    Open,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Good => "good enough",
            Self::TooLow => "too low",
            Self::Diverged => "diverged",
            Self::Open => "open",
        }
    }
}

/// One share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Share of the samples under BSP, from 0 to 1.
    pub share: f64,
    /// The name of its model.
    pub model: String,
    /// Accuracy of each run, none where it diverged.
    pub accuracies: Vec<Option<f64>>,
    /// Mean accuracy of the runs that did not diverge.
    pub mean_accuracy: Option<f64>,
    /// How it did.
    pub verdict: Verdict,
    /// Mean seconds of a run.
    pub mean_seconds: f64,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The job in words.
    pub job: String,
    /// Shares, most BSP first.
    pub settings: Vec<Setting>,
    /// The least share that was good enough; none if BSP itself diverged.
    pub chosen_share: Option<f64>,
    /// Its model, as `--models` takes it.
    pub chosen_model: Option<String>,
    /// Mean accuracy that was asked for at least.
    pub least_accuracy: Option<f64>,
    /// How much mean accuracy could be lost.
    pub tolerance: f64,
    /// Jobs that the search rests on.
    pub jobs: usize,
    /// How many of them were run this time.
    pub fresh_jobs: u32,
    /// Seconds of all its jobs.
    pub seconds: f64,
    /// The same in jobs under BSP.
    pub bsp_jobs: Option<f64>,
    /// Seconds that each later job saves against BSP.
    pub saving_s: Option<f64>,
    /// After how many later jobs the search has paid back; none if nothing is saved.
    pub pay_back_jobs: Option<f64>,
}

impl Summary {
    /// Of a search about `job`.
    pub fn new(job: String, tuned: &Tuned) -> Self {
        let Tuned { search, fresh } = tuned;
        let cost = search.cost();
        let (chosen_share, least_accuracy) = match search.progress() {
            Progress::Found { fraction, least_accuracy } => (Some(fraction), Some(least_accuracy)),
            Progress::Running { .. } | Progress::NoReference => (None, None),
        };
        let mut shares: Vec<f64> =
            search.records.iter().map(|record| record.trial.fraction).collect();
        shares.sort_by(|a, b| b.total_cmp(a));
        shares.dedup();
        let setting = |share: &f64| setting(search, *share, least_accuracy);
        Self {
            job,
            settings: shares.iter().map(setting).collect(),
            chosen_share,
            chosen_model: chosen_share.map(plan),
            least_accuracy,
            tolerance: search.config.tolerance,
            jobs: search.records.len(),
            fresh_jobs: *fresh,
            seconds: cost.seconds,
            bsp_jobs: cost.bsp_jobs,
            saving_s: cost.saving,
            pay_back_jobs: cost.pay_back,
        }
    }

    /// The table: a row a share.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(["under BSP", "accuracies %", "mean %", "verdict", "seconds"]);
        for setting in &self.settings {
            let accuracies: Vec<String> = setting.accuracies.iter().map(per_cent).collect();
            table.add_row([
                format!("{} %", setting.share * 100.0),
                accuracies.join(" "),
                per_cent(&setting.mean_accuracy),
                setting.verdict.text().to_owned(),
                format!("{:.1}", setting.mean_seconds),
            ]);
        }
        for column in [0, 2, 4] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }

    /// Job, table, choice and cost, for people.
    pub fn text(&self) -> String {
        let mut text = format!("\n{}\n{}\n", self.job, self.table());
        for line in [self.choice(), self.cost()].into_iter().flatten() {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    fn choice(&self) -> Option<String> {
        let (Some(share), Some(least), Some(model)) =
            (self.chosen_share, self.least_accuracy, &self.chosen_model)
        else {
            return Some(
                "A run under BSP itself diverged: there is nothing to compare with. Choose a lower \
                 --lr."
                    .to_owned(),
            );
        };
        let mut line = if share < 1.0 {
            let share = share * 100.0;
            format!("Chosen: {share} % of the samples under BSP, then ASP: --models {model}.")
        } else {
            "Chosen: BSP for all samples; no other share was good enough.".to_owned()
        };
        write!(line, " Good enough is a mean accuracy of {:.2} %", least * 100.0).ok()?;
        write!(line, ", {} points below BSP's.", self.tolerance * 100.0).ok()?;
        Some(line)
    }

    fn cost(&self) -> Option<String> {
        let mut line = format!("The search: {} jobs, {:.1} s", self.jobs, self.seconds);
        if let Some(jobs) = self.bsp_jobs {
            write!(line, ", as long as {jobs:.1} jobs under BSP").ok()?;
        }
        line.push('.');
        match (self.saving_s, self.pay_back_jobs) {
            (Some(saving), Some(jobs)) => {
                write!(line, " Each later job saves {saving:.1} s: ").ok()?;
                write!(line, "paid back after {:.0}.", jobs.ceil()).ok()?;
            }
            (Some(_), None) => line.push_str(" Later jobs save no time."),
            (None, _) => {}
        }
        if self.fresh_jobs == 0 {
            line.push_str(" All of it was known: nothing was run (--again runs it again).");
        }
        Some(line)
    }
}

fn setting(search: &TimingSearch, share: f64, least_accuracy: Option<f64>) -> Setting {
    let mut records: Vec<&Record> =
        search.records.iter().filter(|record| record.trial.fraction == share).collect();
    records.sort_by_key(|record| record.trial.run);
    let accuracies: Vec<Option<f64>> =
        records.iter().map(|record| record.outcome.accuracy).collect();
    let finished: Vec<f64> = accuracies.iter().flatten().copied().collect();
    let seconds: Vec<f64> = records.iter().map(|record| record.outcome.seconds).collect();
    let mean_accuracy = (!finished.is_empty()).then(|| Spread::of(&finished).mean);
    let is_whole = finished.len() == search.config.runs as usize;
    let verdict = match (mean_accuracy, least_accuracy) {
        _ if finished.len() < accuracies.len() => Verdict::Diverged,
        _ if share >= 1.0 => Verdict::Reference,
        (Some(mean), Some(least)) if is_whole && mean >= least => Verdict::Good,
        (Some(_), Some(_)) if is_whole => Verdict::TooLow,
        _ => Verdict::Open,
    };
    Setting {
        share,
        model: plan(share),
        accuracies,
        mean_accuracy,
        verdict,
        mean_seconds: Spread::of(&seconds).mean,
    }
}

fn per_cent(accuracy: &Option<f64>) -> String {
    accuracy.map_or_else(|| "diverged".to_owned(), |accuracy| format!("{:.2}", accuracy * 100.0))
}

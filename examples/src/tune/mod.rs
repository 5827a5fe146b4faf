//! `syncline tune`: after which share of a job to switch from BSP to ASP, for jobs that come again.
//!
//! Owns the options, the loop of the search and what a trial means for the trainer. The search is
//! [`syncline::policy::timing`]. Runs no job itself: the caller hands it [`Jobs`]. After each job
//! the results are in the store, so that a search that was stopped goes on where it was.
//! Called by the binary.

pub mod store;
pub mod summary;
#[cfg(test)]
mod tests;
pub mod view;

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use clap::Args;
use syncline::policy::timing::{Outcome, Record, SearchConfig, TimingSearch, Trial};

pub use store::{Key, Store, StoreError};

use crate::driver::TrainError;
use crate::options::TrainOptions;

/// Most runs of one setting.
const RUNS_MAX: i64 = 100;
/// What `--models` and `--plot` say when nobody has typed them.
const UNTOUCHED: ([&str; 2], &str) = (["bsp", "osp"], "runs/train.svg");

/// Options of `syncline tune`.
#[derive(Args, Clone, Debug)]
pub struct TuneOptions {
    /// Shares to try, each halfway between the last that was good enough and the last that was not
    #[arg(long, default_value_t = SearchConfig::default().settings,
          value_parser = clap::value_parser!(u32).range(1..=40), value_name = "M")]
    pub settings: u32,

    /// Runs of each share, with seeds that follow one another
    #[arg(long, default_value_t = SearchConfig::default().runs,
          value_parser = clap::value_parser!(u32).range(1..=RUNS_MAX), value_name = "R")]
    pub runs: u32,

    /// Mean accuracy that may be lost against BSP; 0.01 is one point
    #[arg(long, default_value_t = SearchConfig::default().tolerance, value_parser = parse_tolerance,
          value_name = "B")]
    pub tolerance: f64,

    /// Where results are kept, by network, data and cluster
    #[arg(long, default_value = "runs/tune.json", value_name = "FILE")]
    pub store: PathBuf,

    /// Run everything again: what the store knows of this job goes when the first one has ended
    #[arg(long)]
    pub again: bool,

    /// The job
    #[command(flatten)]
    pub train: TrainOptions,
}

impl TuneOptions {
    /// Checks what no option can check alone.
    ///
    /// # Errors
    ///
    /// As [`TrainOptions::check`]; an option of the trainer that a search sets itself.
    pub fn check(&self) -> Result<(), String> {
        self.train.check()?;
        let (models, plot) = UNTOUCHED;
        if !self.train.models.iter().map(|model| model.name()).eq(models) {
            return Err("--models: a search chooses the models itself".to_owned());
        }
        if !self.train.seeds.is_empty() {
            return Err("--seeds: give the first as --seed, and their number as --runs".to_owned());
        }
        if self.train.plot.as_os_str() != plot {
            return Err("--plot: a search draws nothing".to_owned());
        }
        if self.train.log.is_some() {
            return Err("--log: the jobs of a search may run again and keep no logs".to_owned());
        }
        Ok(())
    }

    /// What to search.
    pub fn config(&self) -> SearchConfig {
        let Self { settings, runs, tolerance, .. } = *self;
        SearchConfig { settings, runs, tolerance, reference: None }
    }

    /// The options of one job of the search: its model, its seed, nothing drawn or written.
    ///
    /// # Errors
    ///
    /// The trainer does not know the plan of this share.
    pub fn job(&self, trial: Trial) -> Result<TrainOptions, String> {
        Ok(TrainOptions {
            models: vec![plan(trial.fraction).parse()?],
            seed: self.train.seed.wrapping_add(u64::from(trial.run)),
            seeds: Vec::new(),
            json: None,
            no_plot: true,
            quiet: true,
            ..self.train.clone()
        })
    }
}

fn parse_tolerance(text: &str) -> Result<f64, String> {
    let tolerance = text.parse::<f64>().ok().filter(|value| (0.0..1.0).contains(value));
    tolerance.ok_or_else(|| "a tolerance is a number from 0 to below 1".to_owned())
}

/// The model of a job with this share of its samples under BSP and the rest under ASP.
pub fn plan(fraction: f64) -> String {
    if fraction >= 1.0 {
        return "bsp".to_owned();
    }
    format!("bsp:{}%+asp", fraction * 100.0)
}

/// Runs the jobs of a search.
pub trait Jobs {
    /// Runs one job to its end. A diverged one is an outcome and no error.
    ///
    /// # Errors
    ///
    /// The job could not be run, or was cancelled. The search stops, and can be taken up again.
    fn run(&mut self, trial: Trial) -> Result<Outcome, TrainError>;
}

/// Hears of each job before it runs.
pub trait Watch {
    /// `search` holds what was run so far; `trial` is next.
    fn next(&mut self, search: &TimingSearch, trial: Trial);
}

/// Why a search came to no end.
#[derive(Debug)]
#[non_exhaustive]
pub enum TuneError {
    /// The options make no sense together.
    Options {
        /// Why.
        reason: String,
    },
    /// A job failed, or was cancelled.
    Job(TrainError),
    /// The search cannot go on from what is stored.
    Search(syncline::Error),
    /// Results cannot be read or kept.
    Store(StoreError),
}

impl fmt::Display for TuneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Options { reason } => f.write_str(reason),
            Self::Job(source) => source.fmt(f),
            Self::Search(source) => source.fmt(f),
            Self::Store(source) => source.fmt(f),
        }
    }
}

impl Error for TuneError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Options { .. } => None,
            Self::Job(source) => Some(source),
            Self::Search(source) => Some(source),
            Self::Store(source) => Some(source),
        }
    }
}

/// A search at its end.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The search with all jobs that it rests on.
    pub search: TimingSearch,
    /// How many of them were run this time; none if all was known.
    pub fresh: u32,
}

/// Searches, starting from what `store` knows of `key` unless `is_again`. Each job's outcome is
/// stored before the next job starts.
///
/// # Errors
///
/// The first thing that goes wrong; what was run until then is stored.
pub fn search(
    config: SearchConfig,
    key: &Key,
    store: &Store,
    is_again: bool,
    jobs: &mut dyn Jobs,
    watch: &mut dyn Watch,
) -> Result<Tuned, TuneError> {
    let stored = store.records(key).map_err(TuneError::Store)?;
    let known = if is_again { Vec::new() } else { stored };
    // Runs beyond those asked for are kept, but not looked at.
    let (used, spare): (Vec<Record>, Vec<Record>) =
        known.into_iter().partition(|record| record.trial.run < config.runs);
    let mut search = TimingSearch::resume(config, used).map_err(TuneError::Search)?;
    let mut fresh = 0;
    while let Some(trial) = search.next() {
        watch.next(&search, trial);
        let outcome = jobs.run(trial).map_err(TuneError::Job)?;
        search.record(trial, outcome).map_err(TuneError::Search)?;
        let all: Vec<Record> = search.records.iter().chain(&spare).copied().collect();
        store.save(key, &all).map_err(TuneError::Store)?;
        fresh += 1;
    }
    Ok(Tuned { search, fresh })
}

//! `syncline tune`: finds after which share of a job to switch from BSP to ASP.
//!
//! Owns running the jobs of the search, each as `syncline train` would. The search, its store and
//! its words are `syncline-examples`'. Called by [`crate::cli`].

use std::thread::available_parallelism;
use std::time::Instant;

use crate::SignalWatch;
use crate::cli::{EXIT_FAILED, EXIT_USAGE};
use crate::command::start::StartArgs;
use crate::command::train::{Ranks, interrupted};
use clap::Args;
use syncline::policy::timing::{Outcome, Trial};
use syncline_examples::driver::{self, TrainError};
use syncline_examples::spec::RunSpec;
use syncline_examples::tune::summary::Summary;
use syncline_examples::tune::view::View;
use syncline_examples::tune::{self, Jobs, Key, Store, TuneError, TuneOptions};

pub(crate) const EXAMPLES: &str = "\
Examples:
    syncline tune --lr 0.2 --epochs 10             4 shares, 5 runs each, on the digits
    syncline tune --settings 6 --runs 3 --tolerance 0.005
    syncline tune --data plays.txt --train-limit 100000 --json -

A search that was stopped goes on where it was when it is started again, and one that was ended is
not run again: results are kept in --store, by network, settings, data, ranks, links and cores.";

/// What can be typed after `syncline tune`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    #[command(flatten)]
    options: TuneOptions,
    #[command(flatten)]
    start: StartArgs,
}

/// Searches, prints and stores; returns the exit code.
pub fn run(args: &TuneArgs) -> i32 {
    let signals = match SignalWatch::install() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("syncline tune: cannot watch signals: {error}");
            return EXIT_FAILED;
        }
    };
    match search(args, &signals) {
        Ok(true) => 0,
        Ok(false) => EXIT_FAILED,
        Err(error) => {
            let code = interrupted(&error);
            if code.is_some() {
                eprintln!("syncline tune: stopped; the same command goes on from here");
            } else {
                eprintln!("syncline tune: {error}");
            }
            let is_usage = matches!(error, TuneError::Options { .. });
            code.unwrap_or(if is_usage { EXIT_USAGE } else { EXIT_FAILED })
        }
    }
}

/// Whether there is a result.
fn search(args: &TuneArgs, signals: &SignalWatch) -> Result<bool, TuneError> {
    let TuneArgs { options, start } = args;
    options.check().map_err(|reason| TuneError::Options { reason })?;
    let train = &options.train;
    let key =
        Key::of(train, cluster(start)).map_err(|error| TuneError::Job(TrainError::Data(error)))?;
    let store = Store::new(&options.store);
    let mut jobs = TrainJobs { options, start, signals };
    let mut view = View::new(train.quiet);
    let config = options.config();
    let tuned = tune::search(config, &key, &store, options.again, &mut jobs, &mut view)?;
    drop(view);
    let job = train.runs().first().map(RunSpec::setting).unwrap_or_default();
    let summary = Summary::new(job, &tuned);
    let mut text = summary.text();
    text.push_str(&format!("store: {}\n", store.path().display()));
    driver::say(train, &text).map_err(TuneError::Job)?;
    driver::publish_json(train, &summary).map_err(TuneError::Job)?;
    Ok(summary.chosen_share.is_some())
}

/// What ranks run on, beyond their number and their links, which are the job's.
fn cluster(start: &StartArgs) -> String {
    let cores = available_parallelism().map_or(1, usize::from);
    let wrap = start.wrap().map_or_else(String::new, |command| format!(", started by {command}"));
    format!("{cores} cores{wrap}")
}

/// Jobs as `syncline train` runs them, one after the other.
struct TrainJobs<'a> {
    options: &'a TuneOptions,
    start: &'a StartArgs,
    signals: &'a SignalWatch,
}

impl Jobs for TrainJobs<'_> {
    fn run(&mut self, trial: Trial) -> Result<Outcome, TrainError> {
        let options = self.options.job(trial).map_err(|reason| TrainError::Options { reason })?;
        let started = Instant::now();
        let result = driver::train(&options, |spec| Ranks::start(spec, self.start, self.signals));
        match result {
            Ok(report) => {
                let run = report.runs.first();
                let run = run.ok_or_else(|| TrainError::Options { reason: "no run".to_owned() })?;
                Ok(Outcome { accuracy: Some(run.final_accuracy), seconds: run.wall_s })
            }
            Err(error @ TrainError::Diverged { .. }) if interrupted(&error).is_none() => {
                Ok(Outcome { accuracy: None, seconds: started.elapsed().as_secs_f64() })
            }
            Err(error) => Err(error),
        }
    }
}

//! `syncline train`: trains a small model on ranks of this host, under several synchronisation
//! models, and compares them.
//!
//! Owns starting the ranks and passing on what they say. The trainer is `syncline-examples`'.
//! Called by [`crate::cli`]; each rank is this program again, with the hidden flag `--as-rank`.

use crate::cli::{EXIT_FAILED, EXIT_USAGE};
use crate::command::start::StartArgs;
use crate::{Job, JobEnd, Output, Report as JobReport, RunningJob, SignalWatch, Stream};
use clap::Args;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use syncline_examples::BoxError;
use syncline_examples::data::Dataset;
use syncline_examples::driver::{self, RankEvent, RunningRanks};
use syncline_examples::options::TrainOptions;
use syncline_examples::session::SessionSynchroniser;
use syncline_examples::spec::RunSpec;
use syncline_examples::worker;

/// What can be typed after `syncline train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    #[command(flatten)]
    options: TrainOptions,
    #[command(flatten)]
    start: StartArgs,
    /// Be a rank of this run.
    #[arg(long, hide = true, value_name = "SPEC")]
    as_rank: Option<String>,
}

/// Trains, prints and plots; returns the exit code.
pub fn run(args: &TrainArgs) -> i32 {
    if let Some(spec) = &args.as_rank {
        return match be_rank(spec) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("syncline train: {error}");
                EXIT_FAILED
            }
        };
    }
    let signals = match SignalWatch::install() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("syncline train: cannot watch signals: {error}");
            return EXIT_FAILED;
        }
    };
    let report = driver::train(&args.options, |spec| Ranks::start(spec, &args.start, &signals));
    match report.and_then(|report| driver::publish(&args.options, &report)) {
        Ok(()) => 0,
        Err(error) => interrupted(&error).unwrap_or_else(|| {
            eprintln!("syncline train: {error}");
            let is_usage = matches!(error, driver::TrainError::Options { .. });
            if is_usage { EXIT_USAGE } else { EXIT_FAILED }
        }),
    }
}

/// One rank's life.
fn be_rank(spec: &str) -> Result<(), BoxError> {
    let spec = RunSpec::from_arg(spec)?;
    let data = Dataset::of(&spec)?;
    let mut synchroniser = SessionSynchroniser::join(&spec)?;
    let rank = synchroniser.rank();
    worker::train(&spec, rank, &data, &mut synchroniser, &mut |message| message.print())?;
    Ok(())
}

/// A run's ranks. Dropping it ends them.
pub(super) struct Ranks {
    lines: Receiver<(u32, String)>,
    job: Option<RunningJob>,
}

/// The run was ended from outside; nothing more needs saying.
#[derive(Debug)]
struct Interrupted(i32);

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The exit code of an [`Interrupted`] behind an error.
pub(super) fn interrupted(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.filter_map(|error| error.downcast_ref()).map(|Interrupted(code)| *code).next()
}

impl Ranks {
    /// Starts this program again, once for each rank.
    ///
    /// # Errors
    /// As [`Job::start`].
    pub(super) fn start(
        spec: &RunSpec,
        start: &StartArgs,
        signals: &SignalWatch,
    ) -> Result<Self, BoxError> {
        let (sender, lines) = channel();
        let report = move |report| {
            if let JobReport::Line { rank, stream, bytes } = report {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                match stream {
                    Stream::Stderr => eprintln!("{text}"),
                    Stream::Stdout => drop(sender.send((rank, text))),
                }
            }
        };
        let job = Job::new(std::env::current_exe()?, spec.ranks)
            .args(["train", "--as-rank", &spec.to_arg()])
            .signals(signals)
            .output(Output::Report(Box::new(report)));
        let job = start.apply(job).start()?;
        Ok(Self { lines, job: Some(job) })
    }
}

impl RunningRanks for Ranks {
    fn next_event(&mut self, timeout: Duration) -> Result<RankEvent, BoxError> {
        match self.lines.recv_timeout(timeout) {
            Ok((rank, text)) => Ok(RankEvent::Line { rank, text }),
            Err(RecvTimeoutError::Timeout) => Ok(RankEvent::Quiet),
            // All output has been delivered: the job is over.
            Err(RecvTimeoutError::Disconnected) => {
                let Some(job) = self.job.take() else { return Ok(RankEvent::Ended) };
                let outcome = job.wait();
                match outcome.end {
                    _ if outcome.is_success() => Ok(RankEvent::Ended),
                    JobEnd::Interrupted { .. } => Err(Interrupted(outcome.exit_code()).into()),
                    _ => Err(outcome.to_string().into()),
                }
            }
        }
    }
}

//! The parent's side of `syncline train`: starts run after run, follows each by what its ranks
//! say, shows progress, and publishes the results.
//!
//! Owns the progress bars and the sums over ranks. Starts no process itself: the caller hands it a
//! way to (see [`RunningRanks`]). Called by the binary.

mod gather;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::BoxError;
use crate::data::shard::TooFewImages;
use crate::data::{DataError, Dataset, ShardPlan};
use crate::options::TrainOptions;
use crate::plot::{self, PlotError};
use crate::protocol::{BadMessage, Message};
use crate::report::{Report, Run};
use crate::spec::RunSpec;

use gather::Gather;

/// Ranks report at least every tenth of a second while they train, and after each epoch while they
/// measure. Silence of all for so long means that they hang.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);
/// Longest wait for an event in one go.
const WAIT: Duration = Duration::from_secs(1);

/// What a running job of ranks does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankEvent {
    /// All ranks have ended, and all well.
    Ended,
    /// A rank wrote a line to its standard output.
    Line {
        /// Who.
        rank: u32,
        /// The line without its end.
        text: String,
    },
    /// Nothing happened in the time given.
    Quiet,
}

/// The ranks of one run, started. Dropping it ends those that still run.
pub trait RunningRanks {
    /// Waits for the next event, but not longer than `timeout`. After [`RankEvent::Ended`] it is
    /// not called again.
    ///
    /// # Errors
    ///
    /// A rank failed, or the job was cancelled; the error says which and why.
    fn next_event(&mut self, timeout: Duration) -> Result<RankEvent, BoxError>;
}

/// Why there is no result, or only part of it.
#[derive(Debug)]
#[non_exhaustive]
pub enum TrainError {
    /// The data set cannot be used.
    Data(DataError),
    /// Training diverged: the loss is not a number any more.
    Diverged {
        /// Which, as `OSP, seed 1`.
        run: String,
        /// Epoch, from 0.
        epoch: u32,
        /// Step in it, from 0.
        step: u64,
        /// The learning rate of that step.
        lr: f32,
        /// How its ranks ended.
        source: BoxError,
    },
    /// A rank said something that makes no sense here.
    Message {
        /// Who.
        rank: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// The options do not go together.
    Options {
        /// Which, and why.
        reason: String,
    },
    /// Results could not be written.
    Output {
        /// Where to.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The plot could not be drawn or written.
    Plot(PlotError),
    /// A run failed.
    Ranks {
        /// Which, as `OSP, seed 1`.
        run: String,
        /// What its ranks died of.
        source: BoxError,
    },
    /// No rank has said anything for too long.
    Silent {
        /// Which, as `OSP, seed 1`.
        run: String,
        /// How long they have been silent.
        seconds: u64,
    },
    /// The ranks of a run could not be started.
    Start(BoxError),
    /// The data set is too small for this many ranks.
    TooFewImages(TooFewImages),
    /// Ranks ended well without having trained to the end.
    Unfinished {
        /// Which, as `OSP, seed 1`.
        run: String,
        /// The ranks that sent no result.
        ranks: Vec<u32>,
    },
}

impl fmt::Display for TrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(source) => source.fmt(f),
            Self::Diverged { run, epoch, step, lr, .. } => write!(
                f,
                "the run of {run} diverged in epoch {epoch}, step {step}: the loss is not a \
                 number; choose a learning rate below {lr}"
            ),
            Self::Message { rank, reason } => write!(f, "rank {rank} sent {reason}"),
            Self::Options { reason } => f.write_str(reason),
            Self::Output { path, source } => {
                write!(f, "cannot write {}: {source}", path.display())
            }
            Self::Plot(source) => source.fmt(f),
            Self::Ranks { run, source } => write!(f, "the run of {run} failed: {source}"),
            Self::Silent { run, seconds } => {
                write!(f, "no rank of the run of {run} has said anything for {seconds} s")
            }
            Self::Start(source) => write!(f, "cannot start the ranks: {source}"),
            Self::TooFewImages(source) => source.fmt(f),
            Self::Unfinished { run, ranks } => {
                write!(f, "in the run of {run} these ranks ended without a result: {ranks:?}")
            }
        }
    }
}

impl Error for TrainError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Data(source) => Some(source),
            Self::Output { source, .. } => Some(source),
            Self::Plot(source) => Some(source),
            Self::Diverged { source, .. } | Self::Ranks { source, .. } | Self::Start(source) => {
                Some(&**source)
            }
            Self::TooFewImages(source) => Some(source),
            Self::Message { .. }
            | Self::Options { .. }
            | Self::Silent { .. }
            | Self::Unfinished { .. } => None,
        }
    }
}

/// Trains once for every model and seed that `options` ask for. `start` starts the ranks of a run,
/// `spec.ranks` of them, each with `spec` as its argument.
///
/// # Errors
///
/// The first thing that goes wrong in any run.
pub fn train<R: RunningRanks>(
    options: &TrainOptions,
    start: impl FnMut(&RunSpec) -> Result<R, BoxError>,
) -> Result<Report, TrainError> {
    options.check().map_err(|reason| TrainError::Options { reason })?;
    check_data(options)?;
    train_checked(options, start, SILENCE_LIMIT)
}

/// Writes the results where `options` say, and prints the table and what lies where.
///
/// # Errors
///
/// A file cannot be written. The table is printed even so.
pub fn publish(options: &TrainOptions, report: &Report) -> Result<(), TrainError> {
    let setting = options.runs().first().map(RunSpec::setting).unwrap_or_default();
    let mut text = format!("\n{setting}\n{}\n", report.table());
    for line in report.comparison().into_iter().chain(report.decisions()) {
        text.push_str(&line);
        text.push('\n');
    }
    say(options, &text)?;
    publish_json(options, report)?;
    if !options.no_plot {
        plot::write(report, &setting, &options.plot).map_err(TrainError::Plot)?;
        say(options, &format!("plot: {}\n", options.plot.display()))?;
    }
    Ok(())
}

/// Writes results as JSON, if and where `options` say.
///
/// # Errors
///
/// They cannot be written.
pub fn publish_json(options: &TrainOptions, results: &impl Serialize) -> Result<(), TrainError> {
    let Some(path) = &options.json else { return Ok(()) };
    let mut json = serde_json::to_string_pretty(results)
        .map_err(|error| output_error(path, io::Error::other(error)))?;
    json.push('\n');
    if options.json_to_stdout() {
        return write_all(&mut io::stdout().lock(), &json, "standard output");
    }
    fs::write(path, json).map_err(|source| output_error(path, source))?;
    say(options, &format!("results: {}\n", path.display()))
}

/// Prints for people: to standard output, unless that is taken by JSON.
///
/// # Errors
///
/// Nobody reads.
pub fn say(options: &TrainOptions, text: &str) -> Result<(), TrainError> {
    if options.json_to_stdout() {
        return write_all(&mut io::stderr().lock(), text, "standard error");
    }
    write_all(&mut io::stdout().lock(), text, "standard output")
}

fn write_all(output: &mut dyn Write, text: &str, name: &str) -> Result<(), TrainError> {
    let result = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    result.map_err(|source| output_error(Path::new(name), source))
}

fn output_error(path: &Path, source: io::Error) -> TrainError {
    TrainError::Output { path: path.to_owned(), source }
}

/// Reads the data once here, so that a missing file is one message and not one from every rank.
fn check_data(options: &TrainOptions) -> Result<(), TrainError> {
    let runs = options.runs();
    let Some(spec) = runs.iter().max_by_key(|run| run.workers()) else { return Ok(()) };
    let data = Dataset::of(&RunSpec { seed: 0, ..spec.clone() }).map_err(TrainError::Data)?;
    ShardPlan::new(data.train.len(), spec.workers(), 0, spec.batch as usize, 0)
        .map_err(TrainError::TooFewImages)?;
    Ok(())
}

fn train_checked<R: RunningRanks>(
    options: &TrainOptions,
    mut start: impl FnMut(&RunSpec) -> Result<R, BoxError>,
    silence_limit: Duration,
) -> Result<Report, TrainError> {
    let runs = options.runs();
    let several_seeds = runs.iter().any(|run| run.seed != runs[0].seed);
    let mut report = Report::default();
    for spec in &runs {
        let title = if several_seeds {
            format!("{}, seed {}", spec.model.title(), spec.seed)
        } else {
            spec.model.title()
        };
        let view = View::new(&title, options.quiet);
        let mut ranks = start(spec).map_err(TrainError::Start)?;
        let run = follow(spec, &title, &mut ranks, &view, silence_limit)?;
        view.end(&run);
        report.runs.push(run);
    }
    Ok(report)
}

/// Follows one run to its end.
fn follow(
    spec: &RunSpec,
    title: &str,
    ranks: &mut dyn RunningRanks,
    view: &View,
    silence_limit: Duration,
) -> Result<Run, TrainError> {
    let mut gather = Gather::new(spec);
    let mut heard = Instant::now();
    loop {
        let event = ranks
            .next_event(WAIT.min(silence_limit))
            .map_err(|source| gather.failure(title, source))?;
        match event {
            RankEvent::Ended => break,
            RankEvent::Quiet => {
                let silence = heard.elapsed();
                if silence >= silence_limit {
                    let seconds = silence.as_secs();
                    return Err(TrainError::Silent { run: title.to_owned(), seconds });
                }
            }
            RankEvent::Line { rank, text } => {
                heard = Instant::now();
                match Message::from_line(&text) {
                    Ok(Some(message)) => {
                        view.show(spec, rank, &message);
                        gather.add(rank, message)?;
                    }
                    Ok(None) => view.pass_on(rank, &text),
                    Err(error) => return Err(bad_message(rank, &error)),
                }
            }
        }
    }
    gather.finish(title)
}

fn bad_message(rank: u32, error: &BadMessage) -> TrainError {
    TrainError::Message { rank, reason: error.to_string() }
}

/// The progress bar of one run; without a terminal, a line at its start and one at its end.
struct View {
    bar: ProgressBar,
    title: String,
    lines: bool,
}

impl View {
    fn new(title: &str, quiet: bool) -> Self {
        let target =
            if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(1), target);
        let template = "{prefix:<14} {bar:30.cyan/dim} {percent:>3} %  {msg}";
        let style = ProgressStyle::with_template(template).expect("a template that is tested");
        bar.set_style(style.progress_chars("━╸─"));
        bar.set_prefix(title.to_owned());
        bar.set_message("starting");
        let lines = !quiet && !io::stderr().is_terminal();
        if lines {
            eprintln!("{title}: starting");
        }
        Self { bar, title: title.to_owned(), lines }
    }

    fn show(&self, spec: &RunSpec, rank: u32, message: &Message) {
        match message {
            Message::Started { steps_per_epoch, .. } if rank == 0 => {
                self.bar.set_length(steps_per_epoch * u64::from(spec.epochs));
            }
            Message::Progress { epoch, step, t_s, loss } => {
                let samples = *step as f64 * f64::from(spec.batch) * f64::from(spec.workers());
                self.bar.set_position(*step);
                self.bar.set_message(format!(
                    "epoch {}/{}, loss {loss:.3}, {:.0} samples/s",
                    epoch + 1,
                    spec.epochs,
                    samples / t_s
                ));
            }
            Message::Epoch { epoch, .. } if rank == 0 && epoch + 1 == spec.epochs => {
                self.bar.set_position(self.bar.length().unwrap_or(0));
                self.bar.set_message("measuring accuracy");
            }
            _ => {}
        }
    }

    /// Shows a rank's own words above the bar.
    fn pass_on(&self, rank: u32, line: &str) {
        self.bar.suspend(|| eprintln!("[rank {rank}] {line}"));
    }

    fn end(&self, run: &Run) {
        let mut text = format!(
            "{:.1} s, {:.0} samples/s, accuracy {:.1} %",
            run.wall_s,
            run.samples_per_s,
            run.final_accuracy * 100.0
        );
        if let Some(loss) = run.final_test_loss {
            text.push_str(&format!(", test loss {loss:.3}"));
        }
        if self.lines {
            eprintln!("{}: {text}", self.title);
        }
        self.bar.finish_with_message(text);
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // After an error the bar stays as it was, under the message that follows.
        if !self.bar.is_finished() {
            self.bar.abandon();
        }
    }
}

//! Ranks that measure: this program again, with the hidden flag `--as-rank`.
//!
//! Owns their start and what becomes of their output: marked lines of standard output are rows,
//! all else goes to standard error. Called by `perf`, and by `info` for one collective.

use crate::cli::EXIT_FAILED;
use crate::command::start::StartArgs;
use crate::{Job, Output, Report, SignalWatch, Stream};
use std::sync::mpsc;
use syncline_bench::rank::ROW_MARK;

/// One job of ranks that measure.
pub(crate) struct Ranks<'a> {
    /// How messages begin: `syncline perf`.
    pub(crate) name: &'static str,
    /// How many.
    pub(crate) count: u32,
    /// What follows `syncline perf`.
    pub(crate) arguments: Vec<String>,
    /// Settings of the communicator.
    pub(crate) variables: Vec<(String, String)>,
    /// Where they meet, if that was asked.
    pub(crate) start: Option<&'a StartArgs>,
    pub(crate) signals: &'a SignalWatch,
}

impl Ranks<'_> {
    /// Starts them, gives each row to `take` as it comes, and returns the exit code: 0 if all
    /// ranks ended well and all rows could be read.
    pub(crate) fn measure(
        self,
        mut take: impl FnMut(&str) -> Result<(), serde_json::Error>,
    ) -> i32 {
        let Self { name, count, arguments, variables, start, signals } = self;
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(error) => {
                eprintln!("{name}: where is this program? {error}");
                return EXIT_FAILED;
            }
        };
        let (lines, received) = mpsc::channel();
        let mut job =
            Job::new(program, count).args(["perf"]).args(arguments).signals(signals).output(
                Output::Report(Box::new(move |report| {
                    if let Report::Line { stream, bytes, .. } = report {
                        let text = String::from_utf8_lossy(&bytes).into_owned();
                        match (stream, text.strip_prefix(ROW_MARK)) {
                            (Stream::Stdout, Some(row)) => {
                                let _ = lines.send(row.to_owned());
                            }
                            _ => eprintln!("{text}"),
                        }
                    }
                })),
            );
        if let Some(start) = start {
            job = start.apply(job);
        }
        for (variable, value) in variables {
            job = job.env(variable, value);
        }
        let running = match job.start() {
            Ok(running) => running,
            Err(error) => {
                eprintln!("{name}: {error}");
                return error.exit_code();
            }
        };
        let mut code = 0;
        // The channel ends when the job's output has.
        for line in received {
            if let Err(error) = take(&line) {
                eprintln!("{name}: a rank's row does not parse: {error}");
                code = EXIT_FAILED;
            }
        }
        let outcome = running.wait();
        if !outcome.is_success() {
            eprintln!("{name}: {outcome}");
            return outcome.exit_code();
        }
        code
    }
}

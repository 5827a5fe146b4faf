//! The command line: what can be typed, what help says, and which exit code comes out.
//!
//! Owns the frame. Never does a subcommand's work. Called by `main.rs`.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::command::{info, perf, report, run, simulate, train, tune};

/// Something failed that no other code names.
pub const EXIT_FAILED: i32 = 1;
/// The request makes no sense.
pub const EXIT_USAGE: i32 = 2;
/// `perf --compare` found a row slower than it was.
pub const EXIT_SLOWER: i32 = 3;

const EXIT_CODES: &str = "\
Exit codes:
    0          every rank exited with 0
    1          failed, for a reason no other code names
    2          usage: the request makes no sense
    3          perf --compare: a row is slower than it was, by more than --threshold
    124        out of time (--timeout)
    126, 127   the program cannot be run; it is not found
    129        the launcher was ended by SIGHUP,
    130, 143   by SIGINT (Ctrl-C), by SIGTERM
    else       the code of the rank that failed first; 128 + N if signal N killed it";

const EXAMPLES: &str = "\
Examples:
    syncline train                                 train a model on 4 ranks of this host
    syncline run -n 4 -- ./trainer --epochs 3      start 4 ranks of your own program
    syncline tune --data fashion-mnist             when to switch from BSP to ASP
    syncline perf all_reduce -n 2,4,8              measure a collective
    syncline perf p2p --lat                        latency between two ranks
    syncline simulate --ranks 8,64,1024            the models over networks that are not there
    syncline report runs -o report.html            compare runs that are over
    syncline info                                  what this host can do";

/// Prints a result to standard output. A reader that has seen enough is no error.
///
/// # Errors
/// Standard output cannot be written, with that in the text.
pub(crate) fn print(text: &str) -> Result<(), String> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

/// Communication for distributed deep learning: start ranks, train, measure, look around.
#[derive(Debug, Parser)]
#[command(name = "syncline", version, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start ranks of a program on this host, and end them together.
    #[command(after_help = format!("{}\n\n{EXIT_CODES}", run::EXAMPLES))]
    Run(run::RunArgs),
    /// Train a small model under several synchronisation models, and compare them.
    Train(train::TrainArgs),
    /// Simulate the synchronisation models in virtual time, over networks that are not there.
    Simulate(simulate::SimulateArgs),
    /// Find after which share of a job to switch from BSP to ASP, for jobs that come again.
    #[command(after_help = tune::EXAMPLES, mut_arg("models", |arg| arg.hide(true)),
              mut_arg("seeds", |arg| arg.hide(true)), mut_arg("plot", |arg| arg.hide(true)),
              mut_arg("log", |arg| arg.hide(true)), mut_arg("no_plot", |arg| arg.hide(true)))]
    Tune(tune::TuneArgs),
    /// Measure a collective, two ranks (p2p) or the arithmetic (kernels): time and bandwidth.
    Perf(perf::PerfArgs),
    /// Compare runs from what they wrote down: table, JSON, one HTML file.
    #[command(after_help = report::EXAMPLES)]
    Report(report::ReportArgs),
    /// Say what this host can do, and what would be chosen for which message size.
    #[command(after_help = info::EXAMPLES)]
    Info(info::InfoArgs),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse_from(with_long_np(std::env::args_os()));
    start_logging();
    let code = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Train(args) => train::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Info(args) => info::run(&args),
    };
    exit_code(code)
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// mpirun's `-np` is two letters behind one dash, which would read as `-n p`.
fn with_long_np(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut is_ours = true;
    args.map(move |arg| {
        is_ours &= arg != "--";
        if is_ours && arg == "-np" { "-n".into() } else { arg }
    })
}

/// `SYNCLINE_LOG=debug` shows on stderr what the launcher does; without it, nothing is logged.
fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::from_env("SYNCLINE_LOG");
    let stderr = io::stderr;
    let has_colours = stderr().is_terminal();
    let format = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    format.with_ansi(has_colours).init();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn np_is_read_only_before_the_program() {
        let args = ["syncline", "run", "-np", "2", "--", "x", "-np", "3"].map(OsString::from);
        let read: Vec<_> = with_long_np(args.into_iter()).collect();
        assert_eq!(read, ["syncline", "run", "-n", "2", "--", "x", "-np", "3"]);
    }
}

//! `syncline perf`: measures collectives, two ranks, or kernels, on this host.
//!
//! Owns the command and its printing. What is measured, and how, is `syncline-bench`'s. Called
//! by [`crate::cli`]; each rank is this program again, with the hidden flag `--as-rank`.

mod json;
mod kernels;
mod p2p;
pub(crate) mod ranks;

use crate::SignalWatch;
use crate::cli::{EXIT_FAILED, EXIT_SLOWER, EXIT_USAGE};
use crate::command::start::StartArgs;
use clap::{Args, Subcommand};
use json::JsonTarget;
use ranks::Ranks;
use std::fmt::Display;
use std::io::{self, Write};
use syncline_bench::compare::{self, Earlier};
use syncline_bench::report::{HEAD, Report};
use syncline_bench::{PerfOptions, Row, rank};

/// How messages begin.
const NAME: &str = "syncline perf";

/// What can be typed after `syncline perf`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct PerfArgs {
    #[command(subcommand)]
    mode: Option<Mode>,
    #[command(flatten)]
    options: PerfOptions,
    #[command(flatten)]
    start: StartArgs,
    /// Be a rank of a measurement.
    #[arg(long, hide = true)]
    as_rank: bool,
}

/// What is measured that is no collective.
#[derive(Debug, Subcommand)]
enum Mode {
    /// Point to point between two ranks: latency or bandwidth, in perftest's columns.
    P2p(p2p::P2pArgs),
    /// The arithmetic under the collectives, beside plain loops and memcpy; starts no rank.
    Kernels(kernels::KernelArgs),
}

/// Measures and prints; returns the exit code: 1 if anything failed or was wrong.
pub fn run(args: &PerfArgs) -> i32 {
    match &args.mode {
        Some(Mode::Kernels(args)) => return kernels::run(args),
        Some(Mode::P2p(args)) => return p2p::run(args),
        None => {}
    }
    if args.as_rank {
        return as_rank(rank::run(&args.options));
    }
    let (earlier, json) = match prepare(&args.options) {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            return EXIT_USAGE;
        }
    };
    let signals = match SignalWatch::install() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("{NAME}: cannot watch signals: {error}");
            return EXIT_FAILED;
        }
    };
    measure_all(args, earlier.as_ref(), json, &signals)
}

/// Checks what can be checked before anything is measured: the request, the report to compare
/// with, and whether JSON can be written. In this order: the last makes a file.
fn prepare(options: &PerfOptions) -> Result<(Option<Earlier>, JsonTarget), String> {
    if options.min_bytes > options.max_bytes {
        return Err("--minbytes is larger than --maxbytes".to_owned());
    }
    if let Some(ranks) = options.ranks.iter().find(|ranks| options.root >= **ranks) {
        return Err(format!("root {} does not lie among {ranks} ranks", options.root));
    }
    let earlier = options.compare.as_deref().map(Earlier::read).transpose()?;
    if let Some(earlier) = &earlier {
        earlier.check(options)?;
    }
    Ok((earlier, JsonTarget::open(options.json.as_deref())?))
}

fn measure_all(
    args: &PerfArgs,
    earlier: Option<&Earlier>,
    mut json: JsonTarget,
    signals: &SignalWatch,
) -> i32 {
    let options = &args.options;
    let mut table = json.table();
    let mut report = Report::default();
    for count in &options.ranks {
        let _ = writeln!(table, "# {} on {count} ranks\n{HEAD}", options.collective.name());
        let job = collective(NAME, options, *count, Some(&args.start), signals);
        let code = job.measure(|line| {
            let row: Row = serde_json::from_str(line)?;
            let _ = writeln!(table, "{row}").and_then(|()| table.flush());
            report.rows.push(row);
            Ok(())
        });
        if code != 0 {
            return code;
        }
    }
    let wrong = if options.check > 0 { report.wrong().to_string() } else { "N/A".to_owned() };
    let busbw = report.mean_busbw();
    let _ = writeln!(table, "# mean busbw {busbw:.3} GB/s, wrong elements {wrong}");
    if let Some(earlier) = earlier {
        report.comparison = earlier.compare(&report.rows, options.threshold);
        let unused = earlier.unused(&report.rows);
        let _ = say_comparison(&mut *table, options, &report, unused);
    }
    let code = publish(&mut json, &report);
    match code {
        0 if report.wrong() > 0 => EXIT_FAILED,
        0 if report.comparison.iter().any(|row| row.slower) => EXIT_SLOWER,
        _ => code,
    }
}

/// The ranks that measure one collective.
pub(crate) fn collective<'a>(
    name: &'static str,
    options: &PerfOptions,
    count: u32,
    start: Option<&'a StartArgs>,
    signals: &'a SignalWatch,
) -> Ranks<'a> {
    let mut arguments = vec!["--as-rank".to_owned()];
    arguments.extend(options.to_arguments());
    Ranks { name, count, arguments, variables: options.to_variables(), start, signals }
}

fn say_comparison(
    table: &mut dyn Write,
    options: &PerfOptions,
    report: &Report,
    unused: usize,
) -> io::Result<()> {
    let file = options.compare.as_deref().map(|path| path.display().to_string());
    writeln!(table, "\n# compared with {}\n{}", file.unwrap_or_default(), compare::HEAD)?;
    for row in &report.comparison {
        writeln!(table, "{row}")?;
    }
    let slower = report.comparison.iter().filter(|row| row.slower).count();
    let (all, percent) = (report.comparison.len(), (options.threshold * 1e8).round() / 1e6);
    writeln!(table, "# {slower} of {all} rows slower by more than {percent} %")?;
    if unused > 0 {
        writeln!(table, "# {unused} rows of the file were not measured this time")?;
    }
    Ok(())
}

/// Writes the report where `--json` says; returns the exit code.
fn publish(json: &mut JsonTarget, report: &impl serde::Serialize) -> i32 {
    let written = serde_json::to_string(report).map_err(io::Error::other);
    match written.and_then(|text| json.write(&text)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{NAME}: writing JSON: {error}");
            EXIT_FAILED
        }
    }
}

/// The exit code of a rank.
fn as_rank<E: Display>(ended: Result<(), E>) -> i32 {
    match ended {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            EXIT_FAILED
        }
    }
}

//! `syncline perf`: measures collectives on ranks of this host.
//!
//! Owns starting the ranks and printing. What is measured, and how, is `syncline-bench`'s. Called
//! by [`crate::cli`]; each rank is this program again, with the hidden flag `--as-rank`.

use crate::cli::{EXIT_FAILED, EXIT_USAGE};
use crate::command::start::StartArgs;
use crate::{Job, Output, Report as JobReport, SignalWatch, Stream};
use clap::Args;
use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc;
use syncline_bench::rank::{self, ROW_MARK};
use syncline_bench::report::{HEAD, Report};
use syncline_bench::{PerfOptions, Row};

/// What can be typed after `syncline perf`.
#[derive(Debug, Args)]
pub struct PerfArgs {
    #[command(flatten)]
    options: PerfOptions,
    #[command(flatten)]
    start: StartArgs,
    /// Be a rank of a measurement.
    #[arg(long, hide = true)]
    as_rank: bool,
}

/// Measures and prints; returns the exit code: 1 if anything failed or was wrong.
pub fn run(args: &PerfArgs) -> i32 {
    if args.as_rank {
        return match rank::run(&args.options) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("syncline perf: {error}");
                EXIT_FAILED
            }
        };
    }
    let options = &args.options;
    if options.min_bytes > options.max_bytes {
        eprintln!("syncline perf: --minbytes is larger than --maxbytes");
        return EXIT_USAGE;
    }
    if let Some(ranks) = options.ranks.iter().find(|ranks| options.root >= **ranks) {
        eprintln!("syncline perf: root {} does not lie among {ranks} ranks", options.root);
        return EXIT_USAGE;
    }
    // Fails before anything is measured, not after.
    let json = match options.json.as_deref() {
        None => None,
        Some("-") => Some(Box::new(io::stdout()) as Box<dyn Write>),
        Some(path) => match File::create(path) {
            Ok(file) => Some(Box::new(file) as Box<dyn Write>),
            Err(error) => {
                eprintln!("syncline perf: cannot write {path}: {error}");
                return EXIT_USAGE;
            }
        },
    };
    let signals = match SignalWatch::install() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("syncline perf: cannot watch signals: {error}");
            return EXIT_FAILED;
        }
    };
    // Rows go to standard output unless JSON does.
    let mut table: Box<dyn Write> = match options.json.as_deref() {
        Some("-") => Box::new(io::stderr()),
        _ => Box::new(io::stdout()),
    };
    let mut report = Report::default();
    for ranks in &options.ranks {
        let _ = writeln!(table, "# {} on {ranks} ranks\n{HEAD}", options.collective.name());
        let code = measure(args, *ranks, &signals, &mut *table, &mut report.rows);
        if code != 0 {
            return code;
        }
    }
    let _ = writeln!(
        table,
        "# mean busbw {:.3} GB/s, wrong elements {}",
        report.mean_busbw(),
        report.wrong()
    );
    if let Some(mut json) = json {
        let written = serde_json::to_writer(&mut json, &report)
            .map_err(io::Error::other)
            .and_then(|()| writeln!(json))
            .and_then(|()| json.flush());
        if let Err(error) = written {
            eprintln!("syncline perf: writing JSON: {error}");
            return EXIT_FAILED;
        }
    }
    i32::from(report.wrong() > 0)
}

/// Measures all sizes on so many ranks.
fn measure(
    args: &PerfArgs,
    ranks: u32,
    signals: &SignalWatch,
    table: &mut dyn Write,
    rows: &mut Vec<Row>,
) -> i32 {
    let options = &args.options;
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("syncline perf: where is this program? {error}");
            return EXIT_FAILED;
        }
    };
    let (lines, received) = mpsc::channel();
    let job = Job::new(program, ranks)
        .args(["perf", "--as-rank"])
        .args(options.to_arguments())
        .signals(signals)
        .output(Output::Report(Box::new(move |report| {
            if let JobReport::Line { stream, bytes, .. } = report {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                match (stream, text.strip_prefix(ROW_MARK)) {
                    (Stream::Stdout, Some(row)) => {
                        let _ = lines.send(row.to_owned());
                    }
                    _ => eprintln!("{text}"),
                }
            }
        })));
    let mut job = args.start.apply(job);
    for (name, value) in options.to_variables() {
        job = job.env(name, value);
    }
    let running = match job.start() {
        Ok(running) => running,
        Err(error) => {
            eprintln!("syncline perf: {error}");
            return EXIT_FAILED;
        }
    };
    // The channel ends when the job's output has.
    for line in received {
        match serde_json::from_str::<Row>(&line) {
            Ok(row) => {
                let _ = writeln!(table, "{row}").and_then(|()| table.flush());
                rows.push(row);
            }
            Err(error) => eprintln!("syncline perf: a rank's row does not parse: {error}"),
        }
    }
    let outcome = running.wait();
    if !outcome.is_success() {
        eprintln!("syncline perf: {outcome}");
    }
    outcome.exit_code()
}

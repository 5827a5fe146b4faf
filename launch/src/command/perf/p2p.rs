//! `syncline perf p2p`: two ranks, perftest's columns.
//!
//! Owns the run and its printing. What is measured, and how, is `syncline-bench`'s. Called by
//! [`super::run`].

use super::json::JsonTarget;
use super::ranks::Ranks;
use super::{NAME, as_rank, publish};
use crate::SignalWatch;
use crate::cli::{EXIT_FAILED, EXIT_USAGE};
use crate::command::start::StartArgs;
use clap::Args;
use syncline_bench::p2p::report::{BW_HEAD, LAT_HEAD};
use syncline_bench::p2p::{P2pOptions, P2pReport, P2pRow, rank};

/// What can be typed after `syncline perf p2p`.
#[derive(Debug, Args)]
pub(super) struct P2pArgs {
    #[command(flatten)]
    options: P2pOptions,
    #[command(flatten)]
    start: StartArgs,
    /// Be a rank of a measurement.
    #[arg(long, hide = true)]
    as_rank: bool,
}

/// Measures and prints; returns the exit code: 1 if anything failed or arrived wrong.
pub(super) fn run(args: &P2pArgs) -> i32 {
    let options = &args.options;
    if args.as_rank {
        return as_rank(rank::run(options));
    }
    let checked = options.check().and_then(|()| JsonTarget::open(options.json.as_deref()));
    let mut json = match checked {
        Ok(json) => json,
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
    let mut table = json.table();
    let mut report = P2pReport::default();
    let mut arguments = vec!["p2p".to_owned(), "--as-rank".to_owned()];
    arguments.extend(options.to_arguments());
    let ranks = Ranks {
        name: NAME,
        count: options.ranks,
        arguments,
        variables: options.to_variables(),
        start: Some(&args.start),
        signals: &signals,
    };
    let code = ranks.measure(|line| {
        let row: P2pRow = serde_json::from_str(line)?;
        if report.rows.is_empty() {
            let _ = writeln!(table, "{}", head(options, &row));
        }
        let _ = writeln!(table, "{row}").and_then(|()| table.flush());
        report.rows.push(row);
        Ok(())
    });
    if code != 0 {
        return code;
    }
    let wrong: u64 = report.rows.iter().map(P2pRow::wrong).sum();
    if wrong > 0 {
        eprintln!("{NAME}: {wrong} bytes arrived wrong");
    }
    match publish(&mut json, &report) {
        0 => i32::from(wrong > 0),
        failed => failed,
    }
}

/// What is measured, and perftest's column heads.
fn head(options: &P2pOptions, row: &P2pRow) -> String {
    let transport = row.transport();
    match row {
        P2pRow::Lat(_) => format!("# p2p latency over {transport}: half a round trip\n{LAT_HEAD}"),
        P2pRow::Bw(_) => {
            let way = if options.bidirectional { "bidirectional " } else { "" };
            let depth = options.tx_depth;
            let text = format!("# p2p {way}bandwidth over {transport}, tx depth {depth}");
            let smaller = options.sizes().into_iter().find(|bytes| options.depth(*bytes) < depth);
            let note = smaller.map_or_else(String::new, |bytes| {
                format!(" (less from {bytes} bytes on: {})", options.depth(bytes))
            });
            format!("{text}{note}\n{BW_HEAD}")
        }
    }
}

//! `syncline perf kernels`: the kernels beside plain code, in this process.
//!
//! Owns the run and its printing. Starts no rank. What is measured, and how, is
//! `syncline-bench`'s. Called by [`super::run`].

use super::json::JsonTarget;
use super::{NAME, publish};
use crate::cli::EXIT_USAGE;
use clap::Args;
use syncline_bench::kernels::report::HEAD;
use syncline_bench::kernels::{KernelOptions, KernelReport, measure};
use syncline_bench::machine::{Machine, OtherLoad};

/// What can be typed after `syncline perf kernels`.
#[derive(Debug, Args)]
pub(super) struct KernelArgs {
    #[command(flatten)]
    options: KernelOptions,
}

/// Measures and prints; returns the exit code.
pub(super) fn run(args: &KernelArgs) -> i32 {
    let options = &args.options;
    let machine = Machine::here();
    let checked = options.check(&machine);
    let mut json = match checked.and_then(|()| JsonTarget::open(options.json.as_deref())) {
        Ok(json) => json,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            return EXIT_USAGE;
        }
    };
    let mut table = json.table();
    let variant = syncline_bench::kernels::variant();
    let _ = writeln!(table, "# kernels, variant {variant}; {}\n{HEAD}", machine.text());
    let mut report = KernelReport { machine, variant, ..KernelReport::default() };
    let load = OtherLoad::watch();
    for bytes in &options.sizes {
        for threads in options.threads(&report.machine) {
            for dtype in &options.dtypes {
                let rows = measure::group(options, &report.machine, *dtype, *bytes, threads);
                for row in &rows {
                    let _ = writeln!(table, "{row}").and_then(|()| table.flush());
                }
                report.rows.extend(rows);
            }
        }
    }
    report.others_cores = load.cores();
    let _ = writeln!(table, "{}", report.verdict(options.goal));
    publish(&mut json, &report)
}

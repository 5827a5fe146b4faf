//! `syncline simulate`: the sync models over a simulated network, in virtual time.
//!
//! Owns the exit codes. Starts no rank and opens no connection; the study is `syncline-examples`',
//! the simulation the library's. Called by [`crate::cli`].

use crate::cli::{EXIT_FAILED, EXIT_USAGE};
use clap::Args;
use syncline_examples::simulate::{self, SimulateError, SimulateOptions};

/// What can be typed after `syncline simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    #[command(flatten)]
    options: SimulateOptions,
}

/// Simulates, prints and writes; returns the exit code.
pub fn run(args: &SimulateArgs) -> i32 {
    let report = simulate::simulate(&args.options);
    match report.and_then(|report| simulate::publish(&args.options, &report)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("syncline simulate: {error}");
            let is_usage =
                matches!(error, SimulateError::Options { .. } | SimulateError::TooFewImages(_));
            if is_usage { EXIT_USAGE } else { EXIT_FAILED }
        }
    }
}

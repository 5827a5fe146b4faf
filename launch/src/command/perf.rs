//! `syncline perf`. Measures collectives.
//!
//! Owns nothing yet: the work behind it is in another crate. Called by [`crate::cli`].

use std::ffi::OsString;

use crate::cli::EXIT_USAGE;

/// What can be typed after `syncline perf`.
#[derive(Debug, clap::Args)]
pub struct PerfArgs {
    /// Whatever follows; nothing of it is looked at yet.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    args: Vec<OsString>,
}

/// Says that this subcommand is not there yet. Returns the exit code.
pub fn run(_args: &PerfArgs) -> i32 {
    eprintln!("syncline perf: not built yet");
    EXIT_USAGE
}

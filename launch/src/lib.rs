//! The launcher: starts the ranks of a job on this host, watches them, and ends them together.
//!
//! Owns the `syncline` command line ([`cli`]) and the [`Job`] that every subcommand starts its
//! ranks with. Never opens a connection, never reads a rank's data, never sends a signal to a
//! process it did not start. Called by `main.rs` and by whoever wants ranks of its own.
//!
//! ```no_run
//! use syncline_launch::{Job, Output, Report};
//!
//! let program = std::env::current_exe()?;
//! let job = Job::new(program, 4)
//!     .args(["worker", "--epochs", "3"])
//!     .output(Output::Report(Box::new(|report| {
//!         if let Report::Line { rank, bytes, .. } = report {
//!             println!("rank {rank}: {}", String::from_utf8_lossy(&bytes));
//!         }
//!     })))
//!     .start()?;
//! let outcome = job.wait();
//! assert!(outcome.is_success(), "{outcome}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod cli;
pub mod command;
pub mod env;
pub mod hostfile;
mod input;
mod job;
mod mailbox;
mod outcome;
mod output;
pub mod placement;
mod process;
mod signal;
mod spawn;
mod supervise;

pub use job::{Job, LaunchError, RunningJob, Stdin};
pub use outcome::{JobEnd, Outcome, RankExit, RankStatus};
pub use output::{Output, Report, Stream};
pub use signal::SignalWatch;

/// The most ranks one job may start on this host. Each takes a process, three descriptors and a
/// place in every poll; beyond this a mistyped number is likelier than a real wish.
pub const RANKS_MAX: u32 = 1024;

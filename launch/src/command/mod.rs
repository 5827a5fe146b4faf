//! The subcommands, one file each. Called by [`crate::cli`].

pub mod info;
pub mod perf;
pub mod report;
pub mod run;
pub mod simulate;
pub(crate) mod start;
pub mod train;
pub mod tune;

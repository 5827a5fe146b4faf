//! The subcommands, one file each. Called by [`crate::cli`].

pub mod info;
pub mod perf;
pub mod run;
pub mod train;

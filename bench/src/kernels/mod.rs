//! The kernels beside the machine they run on: `syncline perf kernels`.
//!
//! [`options`] is the command line, [`pattern`] what can be measured, `plain` what it is measured
//! against, [`measure`] threads, rounds and clocks, [`report`] rows as a table and as JSON.

pub mod measure;
pub mod options;
pub mod pattern;
mod plain;
pub mod report;

pub use options::KernelOptions;
pub use report::{KernelReport, KernelRow};

/// The name of the instruction set that the kernels use here.
pub fn variant() -> String {
    syncline_kernels::variant().to_string()
}

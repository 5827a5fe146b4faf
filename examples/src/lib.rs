//! The trainer behind `syncline train`: data, a small network, the loop of one rank, and on the
//! parent's side the progress bars, the table and the plot.
//!
//! It never starts a process and never opens a socket. The binary hands [`driver::train`] a way to
//! start ranks, and each rank hands [`worker::train`] a [`worker::Synchroniser`].

#![forbid(unsafe_code)]

pub mod data;
pub mod driver;
pub mod html;
pub mod model;
pub mod options;
pub mod plot;
pub mod protocol;
pub mod report;
pub mod session;
pub mod simulate;
pub mod spec;
pub mod tune;
pub mod units;
pub mod worker;

/// An error of any kind from code that this crate calls through a trait.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

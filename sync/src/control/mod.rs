//! Which sync model a job runs under, when, and with which ranks.
//!
//! Owns the planned course of a job ([`Plan`]) and the course that policies choose while it runs
//! ([`Controller`]). Without I/O and without a clock: time and words of other ranks come as
//! arguments. Called by trainers.

mod controller;
mod decision;
pub mod momentum;
mod plan;
mod settings;
mod window;

pub use controller::{Controller, Place};
pub use decision::{Action, Decision};
pub use plan::{Phase, Plan, runs_apart};
pub use settings::{ControlConfig, Stragglers, Timing};
pub use window::{RankReport, SKETCH_LEN, Sketch, WORDS};

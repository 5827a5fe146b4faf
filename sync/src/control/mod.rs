//! Which sync model a job runs under, when, and with which ranks.
//!
//! Owns the planned course of a job. Without I/O and without a clock. Called by trainers.

pub mod momentum;
mod plan;

pub use plan::{Phase, Plan, runs_apart};

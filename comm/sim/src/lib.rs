//! The protocols of `syncline-proto` in virtual time, under faults, from a seed.
//!
//! One process plays all ranks of a job: each rank has the same `Operations` and `Member` machines
//! as in production, rank 0 the `Hub`; a [`network`] with delay, loss, reordering and partitions
//! lies between; ranks crash, freeze and are slow. A [`Scenario`] is drawn from a seed; running it
//! twice gives the same trace, bit for bit.
//!
//! What must hold ([`checker`]): a call that succeeds has the right result; calls that differ never
//! succeed; without a fault everything succeeds; with one, every living rank has an error in time.
#![forbid(unsafe_code)]

pub mod checker;
pub mod network;
mod rank;
pub mod scale;
pub mod scenario;
mod world;

pub use checker::Violation;
pub use scenario::Scenario;
pub use world::{Report, run, run_with};

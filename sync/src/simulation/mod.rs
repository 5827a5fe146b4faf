//! The sync models of all ranks over a simulated network, in virtual time.
//!
//! Owns the clock that is no clock: events in order of their virtual time. Never measures, sleeps
//! or starts a thread, and never changes what a model decides: the models, and the shards of the
//! parameter server, are those of the session. The same settings give the same bits. Called by
//! `syncline simulate`, and by tests.
//!
//! ```text
//! Trainer ──gradients──▶ model ──actions──▶ Simulation ──▶ lanes: reductions, two priorities
//!    ▲                     ▲                    │     └──▶ cards: messages to and from shards
//!    └──steps, epochs──────┴──events at their virtual time─┘
//! ```
//!
//! # The network
//! Every rank has one full-duplex link of B bytes per second into a switch that is never full; a
//! message arrives a latency α after it was sent.
//!
//! - **Collectives** start when their last rank arrives and take what [`Network`] computes, on all
//!   ranks alike. Two lanes, each first come, first served: a background reduction moves only while
//!   no urgent collective is under way, and keeps what it has moved.
//! - **Messages to and from shards** leave a rank one at a time in the order in which they were
//!   asked for, and enter a rank one at a time in the order in which their first byte gets there.
//!   A message to the own rank is there at once. A switch without loss holds what a rank cannot
//!   take in yet.
//!
//! # Left out
//! The arithmetic of updates and of the server, packet headers and loss, congestion inside the
//! switch, and that collectives and messages to shards share a link: no model here mixes them, but
//! at its end. A straggler computes longer; its messages are as fast as those of others.

mod cards;
mod compute;
mod driver;
mod error;
mod exchange;
mod lanes;
mod mail;
mod meeting;
mod network;
mod outcome;
mod queue;
mod rank;
mod stages;
#[cfg(test)]
mod tests;

pub use compute::{Compute, Straggler};
pub use driver::{Settings, Simulation, Trainer};
pub use error::SimulationError;
pub use network::Network;
pub use outcome::{Outcome, RankOutcome, StepDone};

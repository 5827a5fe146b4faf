//! Policies: what to do next, decided from numbers that all ranks have.
//!
//! Owns the rules that choose rates, batches, sync models, stragglers and when to go back. Pure:
//! nothing here communicates, waits, reads a clock or draws a number; time and measurements come
//! as arguments. Ranks that pass the same words decide alike, so only arithmetic that rounds alike
//! on every machine is used: sums, products, quotients and square roots. Called by trainers and by
//! whoever drives sessions.
//!
//! | module | decides | from |
//! |---|---|---|
//! | [`schedule`] | the learning rate | samples so far |
//! | [`configuration`] | batch, rate and momentum on either side of a switch | Sync-Switch |
//! | [`timing`] | after which share of a job to switch | Sync-Switch |
//! | [`phase`] | the same without a search, from gradient noise | ours |
//! | [`straggler`] | which rank is slow | Sync-Switch, and a robust rule of ours |
//! | [`batch`] | how many samples each rank takes | R2SP |
//! | [`guard`] | when to go back to a snapshot | ours |
//! | [`dssp`] | which worker waits at the parameter server | SSP, DSSP |
//! | [`gba`] | what a late gradient counts | GBA |

pub mod batch;
pub mod configuration;
pub mod dssp;
pub mod gba;
pub mod guard;
pub mod phase;
pub mod schedule;
pub(crate) mod statistics;
pub mod straggler;
pub mod timing;

use crate::error::{Error, Result};

/// Fails with the rule and the value that breaks it.
fn require(holds: bool, rule: &str, value: impl std::fmt::Display) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::Config { reason: format!("{rule}, not {value}") })
}

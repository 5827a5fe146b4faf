//! What can go wrong in a simulation. Owns the texts. Called by the driver.

use std::fmt;

use crate::error::Error;

/// Why a simulation came to no end.
#[derive(Debug)]
#[non_exhaustive]
pub enum SimulationError {
    /// Ranks wait, and nothing is under way that could let them go on.
    Deadlock {
        /// Virtual time, in seconds.
        at_s: f64,
        /// Each rank that waits, and what for.
        waiting: Vec<(u32, String)>,
    },
    /// A model asks for more and more without ending its step.
    Endless {
        /// Whose.
        rank: u32,
        /// Actions in this step so far.
        actions: u64,
    },
    /// Ranks ask for different things under one name.
    Mismatch {
        /// Who differs from the ranks before it.
        rank: u32,
        /// In what.
        reason: String,
    },
    /// A model or a shard gave up.
    Model {
        /// Whose model, or whose message.
        rank: u32,
        /// Why.
        source: Error,
    },
    /// A setting that cannot work.
    Setting {
        /// Which, and why.
        reason: String,
    },
}

/// Ranks that a text names; the rest is counted.
const NAMED: usize = 8;

impl fmt::Display for SimulationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadlock { at_s, waiting } => {
                write!(f, "deadlock at {at_s:.6} s of virtual time:")?;
                for (rank, what) in waiting.iter().take(NAMED) {
                    write!(f, " rank {rank} waits for {what};")?;
                }
                match waiting.len().saturating_sub(NAMED) {
                    0 => Ok(()),
                    more => write!(f, " and {more} ranks more"),
                }
            }
            Self::Endless { rank, actions } => {
                write!(f, "the model of rank {rank} asked for {actions} actions in one step")
            }
            Self::Mismatch { rank, reason } => {
                write!(f, "rank {rank} asks for another exchange than the ranks before: {reason}")
            }
            Self::Model { rank, source } => write!(f, "rank {rank}: {source}"),
            Self::Setting { reason } => write!(f, "simulation settings: {reason}"),
        }
    }
}

impl std::error::Error for SimulationError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Model { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// "ranks 1, 4 and 7 more": a list that stays short.
pub(super) fn name_ranks(ranks: &[u32]) -> String {
    let named: Vec<String> = ranks.iter().take(NAMED).map(u32::to_string).collect();
    let more = ranks.len() - named.len();
    let list = named.join(", ");
    match (ranks.len(), more) {
        (1, _) => format!("rank {list}"),
        (_, 0) => format!("ranks {list}"),
        (_, more) => format!("ranks {list} and {more} more"),
    }
}

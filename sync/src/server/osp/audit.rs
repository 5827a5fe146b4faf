//! Checks the promises of one of OSP's servers by its own count.
//!
//! Owns no decision and trusts none: it sees which push came, which slice took the gradients of
//! which step, and which reply left, and never asks the server. Called by the server at each of
//! these, always: a few integer operations a push and slice. What it refuses is a bug of the server
//! or a broken peer, and ends the session.
//!
//! | promise | what breaks it |
//! |---|---|
//! | each rank's pushes come once a stage, in order of steps | a push twice, or of another step |
//! | who trains pushes each element once a step, who only serves none | too many, or too few |
//! | each slice takes the gradients of all who train, of each step once, in order | one too many, one too few, of another step |
//! | no rank leads the slowest by more than a step | an RS that comes earlier |
//! | no slice lacks more than one step when RS is answered, none when ICS is | a reply too early |
//! | at a collection all are done, and all is applied | anything left |

use std::collections::BTreeMap;

use super::wire::Stage;
use crate::error::{Error, Result};
use crate::server::audit::AuditReport;

/// Most steps by which a rank may lead the slowest, and a slice the others.
const BOUND: u64 = 1;

/// The checker of one server.
#[derive(Clone, Debug)]
pub(super) struct Audit {
    ranks: Vec<Rank>,
    /// Per slice of this server: gradients applied.
    applied: Vec<u64>,
    /// Of this server.
    elements: u64,
    /// Whether anything was pushed since the last collection.
    is_open: bool,
    report: AuditReport,
}

/// What is known of one rank.
#[derive(Clone, Debug, Default)]
struct Rank {
    trains: bool,
    is_done: bool,
    /// Steps of which RS came.
    rs: u64,
    /// The step after the last of which ICS came.
    ics: u64,
    /// Elements of each step that is not all applied.
    elements: BTreeMap<u64, u64>,
}

impl Audit {
    /// For a server of so many slices and elements. `trains` says which ranks do.
    pub(super) fn new(
        trains: impl IntoIterator<Item = bool>,
        slices: usize,
        elements: usize,
    ) -> Self {
        Self {
            ranks: trains.into_iter().map(|trains| Rank { trains, ..Rank::default() }).collect(),
            applied: vec![0; slices],
            elements: elements as u64,
            is_open: false,
            report: AuditReport::default(),
        }
    }

    /// What was seen so far: pushes of either stage, and steps that were applied to all slices.
    pub(super) fn report(&self) -> AuditReport {
        self.report
    }

    /// A push of so many elements came.
    pub(super) fn pushed(
        &mut self,
        rank: usize,
        stage: Stage,
        step: u64,
        elements: u64,
    ) -> Result<()> {
        let broken =
            |what: String| broken(format!("{stage:?} of step {step} of rank {rank} {what}"));
        let slowest = self.ranks.iter().filter(|rank| !rank.is_done).map(|rank| rank.rs).min();
        let Some(known) = self.ranks.get_mut(rank) else {
            return broken("is of a rank that there is not".to_owned());
        };
        if known.is_done {
            return broken("came after the rank was done".to_owned());
        }
        match stage {
            Stage::Rs if step != known.rs => {
                return broken(format!("came where step {} is next", known.rs));
            }
            Stage::Rs => {
                let lead = step + 1 - slowest.unwrap_or(step + 1);
                self.report.widest_lead = self.report.widest_lead.max(lead);
                if lead > BOUND {
                    return broken(format!("leads the slowest by {lead} steps, of {BOUND}"));
                }
                known.rs += 1;
            }
            Stage::Ics if step < known.ics || step >= known.rs => {
                return broken(format!(
                    "came after RS of {} steps, ICS of {}",
                    known.rs, known.ics
                ));
            }
            Stage::Ics => known.ics = step + 1,
        }
        let sum = known.elements.entry(step).or_default();
        *sum += elements;
        let most = if known.trains { self.elements } else { 0 };
        if *sum > most {
            return broken(format!("makes {sum} elements, of {most}"));
        }
        self.report.pushes += 1;
        self.is_open = true;
        Ok(())
    }

    /// A slice took the gradients of so many ranks.
    pub(super) fn applied(&mut self, slice: usize, step: u64, gradients: usize) -> Result<()> {
        let trained = self.ranks.iter().filter(|rank| rank.trains).count();
        let Some(applied) = self.applied.get_mut(slice) else {
            return broken(format!("slice {slice} is none of this server's"));
        };
        if step != *applied {
            return broken(format!("slice {slice} took step {step} where {applied} is next"));
        }
        if gradients != trained {
            let what = format!("slice {slice} took {gradients} gradients of step {step}");
            return broken(format!("{what}, {trained} ranks train"));
        }
        *applied += 1;
        Ok(())
    }

    /// The pushes of a stage are answered.
    pub(super) fn answered(&mut self, stage: Stage, step: u64) -> Result<()> {
        if let Some(rank) = self.ranks.iter().position(|rank| rank.rs <= step) {
            return broken(format!("step {step} was answered before the push of rank {rank}"));
        }
        let least = self.applied.iter().copied().min().unwrap_or(step + 1);
        let lacks = (step + 1).saturating_sub(least);
        self.report.widest_staleness = self.report.widest_staleness.max(lacks);
        let most = if stage == Stage::Rs { BOUND } else { 0 };
        if lacks > most {
            let what = format!("{stage:?} of step {step} was answered");
            return broken(format!("{what} while a slice lacks {lacks} steps, of {most}"));
        }
        if lacks == 0 { self.close(step) } else { Ok(()) }
    }

    /// All slices are at the end of this step.
    fn close(&mut self, step: u64) -> Result<()> {
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            let found = rank.elements.remove(&step).unwrap_or(0);
            let wanted = if rank.trains { self.elements } else { 0 };
            if found != wanted {
                let what = format!("step {step} has {found} elements of rank {index}");
                return broken(format!("{what}, not {wanted}"));
            }
        }
        self.report.updates += 1;
        Ok(())
    }

    /// A rank pushes no more.
    pub(super) fn done(&mut self, rank: usize) -> Result<()> {
        let Some(known) = self.ranks.get_mut(rank).filter(|known| !known.is_done) else {
            return broken(format!("rank {rank} is done twice, or none"));
        };
        if let Some(step) = known.elements.keys().next() {
            return broken(format!("rank {rank} is done, step {step} is not all applied"));
        }
        known.is_done = true;
        Ok(())
    }

    /// The parameters are brought together; all may push again. Who was brought together before and
    /// has not pushed since need not be done.
    pub(super) fn collected(&mut self) -> Result<()> {
        let steps = self.ranks.first().map_or(0, |rank| rank.rs);
        if let Some(rank) = self.ranks.iter().position(|rank| !rank.is_done && self.is_open) {
            return broken(format!("rank {rank} is not done at a collection"));
        }
        if let Some(rank) = self.ranks.iter().position(|rank| rank.rs != steps) {
            let found = self.ranks[rank].rs;
            return broken(format!("rank {rank} made {found} steps, rank 0 {steps}"));
        }
        if let Some(slice) = self.applied.iter().position(|applied| *applied != steps) {
            let found = self.applied[slice];
            return broken(format!("slice {slice} took {found} steps of {steps} at a collection"));
        }
        self.ranks.iter_mut().for_each(|rank| rank.is_done = false);
        self.is_open = false;
        Ok(())
    }
}

fn broken<T>(what: String) -> Result<T> {
    Err(Error::Protocol { reason: format!("audit of OSP's server: {what}") })
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;

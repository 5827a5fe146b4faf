//! What a controller decided, and why. Owns the vocabulary; carried out by whoever drives sessions.

use std::collections::BTreeMap;

use crate::config::ModelKind;
use crate::record::{self, DecisionKind};

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing: a rank is as fast as the others again.
    Clear(u32),
    /// Nothing: a rank is slow.
    Detect(u32),
    /// Go on without these ranks.
    Evict(Vec<u32>),
    /// Stop: training cannot be saved.
    GiveUp,
    /// Take these ranks in again.
    Readmit(Vec<u32>),
    /// Restore the last sound state, on all ranks, and go on from there under this model.
    RollBack(ModelKind),
    /// Go on under this model.
    Switch(ModelKind),
    /// Keep the state as it is now.
    TakeSnapshot,
}

/// A decision and what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// What held before.
    pub from: String,
    /// What holds from here on.
    pub to: String,
    /// Why, in a sentence.
    pub reason: String,
    /// The numbers, with their units in the names.
    pub evidence: BTreeMap<String, f64>,
}

impl Decision {
    pub(super) fn new(action: Action, reason: impl Into<String>) -> Self {
        let (from, to) = (String::new(), String::new());
        Self { action, from, to, reason: reason.into(), evidence: BTreeMap::new() }
    }

    pub(super) fn between(self, from: impl Into<String>, to: impl Into<String>) -> Self {
        Self { from: from.into(), to: to.into(), ..self }
    }

    pub(super) fn with(mut self, name: &str, value: f64) -> Self {
        self.evidence.insert(name.to_owned(), value);
        self
    }

    /// The kind of the record; none for what is no more than housekeeping, or ends the job.
    pub fn kind(&self) -> Option<DecisionKind> {
        match &self.action {
            Action::Clear(_) => Some(DecisionKind::Clear),
            Action::Detect(_) => Some(DecisionKind::Detect),
            Action::Evict(_) => Some(DecisionKind::Evict),
            Action::Readmit(_) => Some(DecisionKind::Readmit),
            Action::RollBack(_) => Some(DecisionKind::Rollback),
            Action::Switch(_) => Some(DecisionKind::Switch),
            Action::GiveUp | Action::TakeSnapshot => None,
        }
    }

    /// The record for the run log, without when and what it cost.
    pub fn to_record(&self) -> Option<record::Decision> {
        Some(record::Decision {
            t_s: 0.0,
            step: 0,
            samples: 0,
            kind: self.kind()?,
            from: self.from.clone(),
            to: self.to.clone(),
            reason: self.reason.clone(),
            evidence: self.evidence.clone(),
            cost_ms: None,
        })
    }
}

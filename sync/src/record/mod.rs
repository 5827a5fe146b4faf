//! The run log: what a rank writes down while it trains, one JSON object a line.
//!
//! Owns the records, their form in a file, and how files are written and read. Never measures,
//! never reads a clock, never decides. Written by trainers ([`RunLog`]), read by reports
//! ([`RunDir`]).
//!
//! Each rank has a file of its own, `rank-<r>.jsonl`, in the run's directory. Its first record is
//! [`Run`]; the others follow in the order of what they tell of: the steps of an epoch, then its
//! [`Epoch`]. In all of them `samples` counts what this rank has trained on since the start, and
//! `t_s` the seconds of training since then.
//!
//! Numbers that JSON cannot say are kept: NaN is `null`, infinities are `"inf"` and `"-inf"`.
//! A reader skips and counts fields, records and kinds of decision that it does not know, so that
//! it reads what later versions write.

mod error;
mod number;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::report::StepReport;

pub use error::LogError;
pub use read::{RankLog, RunDir, Skipped};
pub use write::RunLog;

/// Version of the form of the records. It grows when the meaning of a field changes; additions
/// leave it as it is.
pub const VERSION: u32 = 1;

/// One line of a run log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Record {
    /// What runs.
    Run(Run),
    /// A step has ended.
    Step(Step),
    /// An epoch has ended.
    Epoch(Epoch),
    /// Something was decided.
    Decision(Decision),
    /// The model was tested.
    Accuracy(Accuracy),
    /// The run has ended.
    End(End),
}

/// What runs: the first record of each file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Version of the records, [`VERSION`] in what is written here.
    pub version: u32,
    /// Synchronisation model, or the policy that chooses it.
    pub model: String,
    /// This rank.
    pub rank: u32,
    /// World size at the start.
    pub ranks: u32,
    /// Settings in words: seed, data, network, link and what else tells runs apart.
    pub setting: BTreeMap<String, String>,
    /// Seconds from 1970 to the start, as the host's clock had it.
    pub started_unix_s: u64,
}

/// A step of this rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Steps so far, with this one.
    pub step: u64,
    /// Seconds of training at its end.
    #[serde(with = "number")]
    pub t_s: f64,
    /// Samples of this rank so far.
    pub samples: u64,
    /// Mean loss of the step's batch.
    #[serde(with = "number")]
    pub loss: f64,
    /// Learning rate.
    #[serde(with = "number")]
    pub learning_rate: f64,
    /// Synchronisation model in use.
    pub model: String,
    /// Forward and backward pass, in milliseconds.
    #[serde(with = "number")]
    pub compute_ms: f64,
    /// Batch-synchronisation time, the sum of the next four.
    #[serde(with = "number")]
    pub exposed_ms: f64,
    /// Time in RS, the blocking reduction.
    #[serde(with = "number")]
    pub rs_ms: f64,
    /// Wait for what was left of ICS, the overlapped reduction.
    #[serde(with = "number")]
    pub ics_wait_ms: f64,
    /// Wait for the parameter server.
    #[serde(with = "number")]
    pub pull_wait_ms: f64,
    /// Time in comparing replicas.
    #[serde(with = "number")]
    pub check_wait_ms: f64,
    /// Bytes of gradient that the step waited for.
    pub bytes_important: u64,
    /// Bytes of gradient left to the next step.
    pub bytes_deferred: u64,
    /// The latter's share of both, 0 to 1.
    #[serde(with = "number")]
    pub deferred_share: f64,
    /// How many updates the parameters of the next step lack at most.
    pub staleness: u64,
    /// What kept the deferred bytes from being more.
    pub limit: String,
}

/// What a step's report does not know.
#[derive(Clone, Debug, PartialEq)]
pub struct StepContext {
    /// Time of training at the step's end.
    pub t: Duration,
    /// Samples of this rank so far.
    pub samples: u64,
    /// Mean loss of the step's batch.
    pub loss: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Synchronisation model in use.
    pub model: String,
}

impl Step {
    /// The record of a session's report.
    pub fn of(report: &StepReport, context: StepContext) -> Self {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        Self {
            step: report.step,
            t_s: context.t.as_secs_f64(),
            samples: context.samples,
            loss: context.loss,
            learning_rate: context.learning_rate,
            model: context.model,
            compute_ms: ms(report.compute),
            exposed_ms: ms(report.exposed),
            rs_ms: ms(report.rs),
            ics_wait_ms: ms(report.ics_wait),
            pull_wait_ms: ms(report.pull_wait),
            check_wait_ms: ms(report.check_wait),
            bytes_important: report.bytes_important,
            bytes_deferred: report.bytes_deferred,
            deferred_share: report.deferred_share,
            staleness: report.staleness,
            limit: report.limit.to_string(),
        }
    }
}

/// The end of an epoch, after the records of its steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Epochs so far, with this one.
    pub epoch: u64,
    /// Seconds of training.
    #[serde(with = "number")]
    pub t_s: f64,
    /// Samples of this rank so far.
    pub samples: u64,
    /// Mean loss of the epoch's steps.
    #[serde(with = "number")]
    pub mean_loss: f64,
    /// Bytes of gradient that a step of the next epoch may defer.
    pub deferred_bytes_limit: u64,
    /// What kept that from being more.
    pub limit: String,
    /// The same in a sentence.
    pub reason: String,
}

/// A decision of the policy or of the group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Seconds of training.
    #[serde(with = "number")]
    pub t_s: f64,
    /// Steps so far.
    pub step: u64,
    /// Samples of this rank so far.
    pub samples: u64,
    /// What was decided.
    pub kind: DecisionKind,
    /// What held before: a model, a set of ranks, a step.
    pub from: String,
    /// What holds from here on.
    pub to: String,
    /// Why, in a sentence.
    pub reason: String,
    /// The numbers that it rests on, with their units in the names.
    #[serde(with = "number::map")]
    pub evidence: BTreeMap<String, f64>,
    /// Training time that carrying it out took, in milliseconds, where measured.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "number::option")]
    pub cost_ms: Option<f64>,
}

/// What can be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DecisionKind {
    /// To go on under another model.
    Switch,
    /// To go on without a rank.
    Evict,
    /// To take a rank in again.
    Readmit,
    /// That something is wrong: a slow rank, a slow link, a loss that rises.
    Detect,
    /// That it is over.
    Clear,
    /// To return to an earlier state.
    Rollback,
    /// Not to do what was asked for or seemed due.
    Refuse,
}

impl DecisionKind {
    /// The name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Evict => "evict",
            Self::Readmit => "readmit",
            Self::Detect => "detect",
            Self::Clear => "clear",
            Self::Rollback => "rollback",
            Self::Refuse => "refuse",
        }
    }
}

impl fmt::Display for DecisionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A test of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// Epochs so far.
    pub epoch: u64,
    /// Seconds of training, without what testing took.
    #[serde(with = "number")]
    pub t_s: f64,
    /// Samples of this rank so far.
    pub samples: u64,
    /// Share of the test samples in their class, 0 to 1.
    #[serde(with = "number")]
    pub accuracy: f64,
}

/// The end of the run on this rank. A file without it tells of a rank that was killed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Steps.
    pub steps: u64,
    /// Samples of this rank.
    pub samples: u64,
    /// Seconds of training.
    #[serde(with = "number")]
    pub wall_s: f64,
    /// `finished`, or what went wrong.
    pub outcome: String,
}

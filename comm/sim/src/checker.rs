//! What must hold, whatever the seed.

use crate::rank::{Ended, input};
use crate::scenario::{Scenario, Step};
use std::fmt;
use std::time::Duration;
use syncline_kernels::ReduceOp;
use syncline_proto::call::CollectiveKind as Kind;
use syncline_proto::fault::FaultKind;
use syncline_proto::id::Rank;

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A living rank neither finished nor failed in time.
    Stuck {
        /// Which.
        rank: Rank,
        /// In which call.
        call: usize,
    },
    /// A call failed though nothing was wrong, or with the wrong class.
    WrongError {
        /// On which rank.
        rank: Rank,
        /// In which call.
        call: usize,
        /// What it said.
        error: String,
    },
    /// A call succeeded with a wrong result, or though ranks called different things.
    WrongResult {
        /// On which rank.
        rank: Rank,
        /// In which call.
        call: usize,
    },
}

impl Violation {
    /// Exit code of the simulator's program: 128 liveness, 129 correctness.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::Stuck { .. }) { 128 } else { 129 }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stuck { rank, call } => write!(f, "rank {rank} is stuck in call {call}"),
            Self::WrongError { rank, call, error } => {
                write!(f, "rank {rank}, call {call}: unexpected error: {error}")
            }
            Self::WrongResult { rank, call } => {
                write!(f, "rank {rank}, call {call}: wrong result")
            }
        }
    }
}

/// When everything must be over: each call's deadline, a cut, a silence, and slack.
pub fn latest_end(scenario: &Scenario) -> Duration {
    let calls = u32::try_from(scenario.steps.len()).unwrap_or(u32::MAX);
    scenario.timeout * calls + scenario.timeout * 4 + Duration::from_secs(30)
}

/// Checks all ranks' calls.
pub(crate) fn check(
    scenario: &Scenario,
    ended: &[&[Ended]],
    working: &[bool],
) -> Option<Violation> {
    let world_size = scenario.topology.world_size();
    let harmless = scenario.faults.are_harmless(scenario.timeout);
    for (rank, calls) in (0..world_size).zip(ended) {
        for (call, end) in calls.iter().enumerate() {
            let step = &scenario.steps[call];
            match end {
                Ok(output) => {
                    let differs = scenario.faults.mismatch.is_some_and(|(_, at)| at == call);
                    // A rank that needs nothing from the one that differs may be done first.
                    let must_see = matches!(step.kind, Kind::AllReduce | Kind::Barrier);
                    let is_right = *output == expected(step, rank, world_size);
                    if (differs && must_see) || (!is_right && !differs) {
                        return Some(Violation::WrongResult { rank, call });
                    }
                }
                Err(fault) => {
                    let only_mismatch = scenario.faults.mismatch.is_some();
                    let fits = match fault.kind {
                        FaultKind::ContractMismatch => only_mismatch,
                        _ => !harmless && !only_mismatch,
                    };
                    if !fits {
                        let error = fault.to_string();
                        return Some(Violation::WrongError { rank, call, error });
                    }
                }
            }
        }
        let failed = calls.last().is_some_and(Result::is_err);
        if working[rank as usize] && !failed && calls.len() < scenario.steps.len() {
            return Some(Violation::Stuck { rank, call: calls.len() });
        }
    }
    None
}

/// What a rank's output must be.
fn expected(step: &Step, rank: Rank, world_size: u32) -> Vec<i64> {
    let count = step.count;
    let reduced = |index: u64| {
        let values = (0..world_size).map(|r| input(r, index));
        match step.op {
            ReduceOp::Max => values.max(),
            ReduceOp::Min => values.min(),
            _ => Some(values.sum()),
        }
        .expect("a world has ranks")
    };
    let block = |from: Rank, part: Rank| {
        (0..count).map(move |i| input(from, u64::from(part) * count + i)).collect::<Vec<_>>()
    };
    let blocks = || (0..world_size).flat_map(|from| block(from, 0)).collect();
    match step.kind {
        Kind::AllGather => blocks(),
        Kind::AllReduce => (0..count).map(reduced).collect(),
        Kind::AllToAll => (0..world_size).flat_map(|from| block(from, rank)).collect(),
        Kind::Broadcast => block(step.root, 0),
        Kind::Gather if rank == step.root => blocks(),
        Kind::Reduce if rank == step.root => (0..count).map(reduced).collect(),
        Kind::ReduceScatter => (0..count).map(|i| reduced(u64::from(rank) * count + i)).collect(),
        Kind::Scatter => block(step.root, rank),
        _ => Vec::new(),
    }
}

//! Settings of the models with a parameter server, beside ASP's.
//!
//! Owns their defaults and limits. Never decides at run time: the rules do (`rule`). Called by
//! [`crate::config`], which has ASP's settings, and by the shards.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::config::{AspConfig, AspRate, Pull, require};
use crate::error::{Error, Result};
use crate::policy::gba::{Decay, Divisor, GbaConfig};

/// The longest pause between two workers: far below any deadline of a communicator.
const LONGEST_GAP: Duration = Duration::from_secs(1);
/// The controller looks at each of these at a push.
const MOST_EXTRA: u64 = 10_000;

/// Settings of SSP, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SspConfig {
    /// s: who is more than this many pushes ahead of the slowest waits. 0 is the order of BSP.
    pub staleness: u64,
    /// What a worker does.
    pub worker: AspConfig,
}

impl Default for SspConfig {
    fn default() -> Self {
        Self { staleness: 3, worker: AspConfig::default() }
    }
}

/// Settings of DSSP (arXiv 1908.11848), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsspConfig {
    /// s_L: who is at most this many pushes ahead of the slowest never waits.
    pub lower: u64,
    /// The most iterations that the fastest worker is granted beyond that; 10,000 at most.
    pub r_max: u64,
    /// What a worker does.
    pub worker: AspConfig,
}

impl Default for DsspConfig {
    /// The setting of the paper.
    fn default() -> Self {
        Self { lower: 3, r_max: 12, worker: AspConfig::default() }
    }
}

impl DsspConfig {
    /// s_U: nobody goes on who is more than this many pushes ahead of the slowest.
    pub fn upper(&self) -> u64 {
        self.lower.saturating_add(self.r_max)
    }
}

/// Settings of R2SP (INFOCOM 2019), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct R2spConfig {
    /// Time from one worker's turn to the next worker's.
    pub gap: Gap,
    /// How many samples each worker takes in a step.
    pub batches: BatchRule,
    /// What a worker does.
    pub worker: AspConfig,
}

impl Default for R2spConfig {
    fn default() -> Self {
        let gap = Gap::Measured { most: LONGEST_GAP };
        Self { gap, batches: BatchRule::default(), worker: AspConfig::default() }
    }
}

/// Time from one worker's turn to the next worker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// Always this; 1 s at most. Zero: as soon as its push is there.
    Fixed(Duration),
    /// 1 / (1.2 N) of the mean time from a turn of worker 0 to its next push, as in the authors'
    /// code: without its first iterations, and no pause at all until ten were seen.
    Measured {
        /// But never more than this; 1 s at most.
        most: Duration,
    },
}

/// How many samples each worker takes in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BatchRule {
    /// In proportion to its speed, so that all need the same time, and in sum as many as if all
    /// took equally many. Only where the trainer says how many those are
    /// ([`SessionConfig::batch`](crate::SessionConfig::batch)) and then takes what
    /// [`Session::next_batch`](crate::Session::next_batch) says.
    BySpeed {
        /// Rounds from one look at the speeds to the next, at least 1.
        every: u32,
        /// The split stays unless the slowest gains more than this share of its time.
        least_gain: f64,
    },
    /// As many as each other.
    Equal,
}

impl Default for BatchRule {
    /// Both numbers are our choice: the authors' code leaves batches as they are.
    fn default() -> Self {
        Self::BySpeed { every: 20, least_gain: 0.05 }
    }
}

/// Settings of GBA (arXiv 2205.11048), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GbaModelConfig {
    /// M: how many gradients make an update; none for as many as there are ranks, which is the
    /// global batch of BSP.
    pub group: Option<NonZeroU64>,
    /// How a late gradient's weight falls.
    pub decay: Decay,
    /// By what the weighted sum is divided.
    pub divisor: Divisor,
    /// When a worker waits for the parameters that answer its push.
    pub pull: Pull,
}

impl Default for GbaModelConfig {
    /// The tolerance of 3 updates is our choice, that of [`SspConfig`].
    fn default() -> Self {
        Self {
            group: None,
            decay: Decay::Threshold { iota: 3 },
            divisor: Divisor::Group,
            pull: Pull::AfterPush,
        }
    }
}

impl GbaModelConfig {
    /// The settings of the pure rule, for this many workers.
    pub fn policy(&self, workers: usize) -> GbaConfig {
        let one_each = NonZeroU64::new(workers as u64).unwrap_or(NonZeroU64::MIN);
        let Self { decay, divisor, .. } = *self;
        GbaConfig { group: self.group.unwrap_or(one_each), decay, divisor }
    }
}

/// What all models with a parameter server have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerConfig {
    /// What a shard does with a push.
    pub rule: Rule,
    /// What a worker does.
    pub worker: AspConfig,
}

/// What a shard does with a push.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Apply it and reply, both at once.
    Asp,
    /// Apply it at once, and reply when the worker may go on.
    Ssp(SspConfig),
    /// As SSP, with a bound that a controller moves.
    Dssp(DsspConfig),
    /// Apply it and reply when it is the worker's turn.
    R2sp(R2spConfig),
    /// Gather it until a group is complete, and reply at once.
    Gba(GbaModelConfig),
}

impl From<AspConfig> for ServerConfig {
    fn from(worker: AspConfig) -> Self {
        Self { rule: Rule::Asp, worker }
    }
}

impl From<SspConfig> for ServerConfig {
    fn from(ssp: SspConfig) -> Self {
        Self { rule: Rule::Ssp(ssp), worker: ssp.worker }
    }
}

impl From<DsspConfig> for ServerConfig {
    fn from(dssp: DsspConfig) -> Self {
        Self { rule: Rule::Dssp(dssp), worker: dssp.worker }
    }
}

impl From<R2spConfig> for ServerConfig {
    fn from(r2sp: R2spConfig) -> Self {
        Self { rule: Rule::R2sp(r2sp), worker: r2sp.worker }
    }
}

impl From<GbaModelConfig> for ServerConfig {
    /// An update has the whole global batch, so the rate is not divided.
    fn from(gba: GbaModelConfig) -> Self {
        let worker = AspConfig { pull: gba.pull, rate: AspRate::PerPush };
        Self { rule: Rule::Gba(gba), worker }
    }
}

impl ServerConfig {
    /// Whether the settings can work.
    ///
    /// # Errors
    /// [`Error::Config`] that names the first setting that cannot.
    pub fn validate(&self) -> Result<()> {
        let invalid = |reason| Err(Error::Config { reason });
        match self.rule {
            Rule::Dssp(dssp) if dssp.r_max > MOST_EXTRA => {
                invalid(format!("r_max is at most {MOST_EXTRA}, not {}", dssp.r_max))
            }
            Rule::R2sp(R2spConfig {
                gap: Gap::Fixed(gap) | Gap::Measured { most: gap }, ..
            }) if gap > LONGEST_GAP => {
                invalid(format!("the gap is at most {LONGEST_GAP:?}, not {gap:?}"))
            }
            Rule::R2sp(R2spConfig {
                batches: BatchRule::BySpeed { every, least_gain }, ..
            }) => {
                require(every > 0, "batches change every 1 round or more", every)?;
                // As `BatchPolicy` wants it.
                let is_share = (0.0..1.0).contains(&least_gain);
                require(is_share, "the least gain of batches lies in 0..1", least_gain)
            }
            Rule::Gba(gba) => gba.policy(1).validate(),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_setting_is_named() {
        let long = Duration::from_millis(1001);
        let decay = Decay::Exponential { base: f64::NAN, last: 3 };
        let by_speed = |every, least_gain| R2spConfig {
            batches: BatchRule::BySpeed { every, least_gain },
            ..Default::default()
        };
        let bad: [(ServerConfig, &str); 7] = [
            (by_speed(0, 0.1).into(), "round"),
            (by_speed(1, 1.0).into(), "least gain"),
            (by_speed(1, f64::NAN).into(), "least gain"),
            (DsspConfig { r_max: 10_001, ..Default::default() }.into(), "r_max"),
            (R2spConfig { gap: Gap::Fixed(long), ..Default::default() }.into(), "gap"),
            (R2spConfig { gap: Gap::Measured { most: long }, ..Default::default() }.into(), "gap"),
            (GbaModelConfig { decay, ..Default::default() }.into(), "base"),
        ];
        for (bad, text) in bad {
            let error = bad.validate().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let widest = SspConfig { staleness: u64::MAX, ..Default::default() };
        ServerConfig::from(widest).validate().unwrap();
        assert_eq!(DsspConfig { lower: u64::MAX, ..Default::default() }.upper(), u64::MAX);
    }

    #[test]
    fn a_group_is_one_gradient_of_each_rank_unless_set() {
        let gba = GbaModelConfig::default();
        assert_eq!((gba.policy(4).group.get(), gba.policy(0).group.get()), (4, 1));
        let gba = GbaModelConfig { group: NonZeroU64::new(6), ..gba };
        assert_eq!(gba.policy(4).group.get(), 6);
    }
}

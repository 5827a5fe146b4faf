//! Settings of a controller, and whether they can work. Owns nothing else. Called by
//! [`Controller`](super::Controller).

use super::runs_apart;
use crate::config::ModelKind;
use crate::error::{Error, Result};
use crate::policy::guard::GuardConfig;
use crate::policy::phase::PhaseConfig;
use crate::policy::straggler::{Rule, StragglerConfig};

/// When the strict phase ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Timing {
    /// When the gradients' noise drowns what staleness costs, and only while it does.
    Noise(PhaseConfig),
    /// After this share of all samples, from 0 to 1.
    Share(f64),
}

impl Timing {
    /// Share of the job that the strict phase has at least.
    pub(super) fn share(&self) -> f64 {
        match self {
            Self::Noise(_) => 0.0,
            Self::Share(share) => *share,
        }
    }
}

/// What to do about ranks that are slow while others wait for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stragglers {
    /// Nothing.
    #[default]
    None,
    /// The relaxed model until they are as fast as the others.
    Greedy,
    /// Go on without them until they are as fast as the others.
    Elastic,
}

/// Settings of a [`Controller`](super::Controller), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlConfig {
    /// The model of the first phase, under which ranks wait for each other.
    pub strict: ModelKind,
    /// The model of the second.
    pub relaxed: ModelKind,
    /// When the first ends.
    pub timing: Timing,
    /// What to do about slow ranks in the first.
    pub stragglers: Stragglers,
    /// Which ranks are slow. An observation is a window, a mean over its steps.
    pub detector: StragglerConfig,
    /// Steps of a window, from one meeting to the next; at least 1.
    pub window_steps: u64,
    /// The same while ranks sit out. They wait at the meeting: so many steps of the others must
    /// take less than the communicator's timeout.
    pub evicted_steps: u64,
    /// When to go back; none for never. Its steps and spikes are observed once per window.
    pub guard: Option<GuardConfig>,
    /// World size.
    pub ranks: u32,
    /// Samples per rank and step.
    pub batch: u32,
    /// Samples of all ranks in the whole job.
    pub total_samples: u64,
}

impl ControlConfig {
    /// The settings of Sync-Switch's course with a choice by noise: BSP, then `relaxed`.
    ///
    /// A rank is slow if the window's mean is, in two windows in a row, below three median
    /// deviations and by more than a quarter below the median: our choice, not measured.
    pub fn new(relaxed: ModelKind, ranks: u32, batch: u32, total_samples: u64) -> Self {
        let rule = Rule::Mad { k: 3.0 };
        Self {
            strict: ModelKind::Bsp,
            relaxed,
            timing: Timing::Noise(PhaseConfig {
                staleness: ranks.saturating_sub(1),
                dwell_samples: total_samples / 50,
                ..PhaseConfig::default()
            }),
            stragglers: Stragglers::None,
            detector: StragglerConfig { rule, window: 1, confirm: 2, min_gap: 0.25 },
            window_steps: 20,
            evicted_steps: 60,
            guard: None,
            ranks,
            batch,
            total_samples,
        }
    }

    /// The model that the job starts with.
    pub fn first_model(&self) -> ModelKind {
        match self.timing {
            Timing::Share(share) if share <= 0.0 => self.relaxed,
            _ => self.strict,
        }
    }

    /// Whether the settings can work, but for those that the policies check themselves.
    pub(super) fn validate(&self) -> Result<()> {
        let refused = |reason: &str| Err(Error::Config { reason: reason.to_owned() });
        match () {
            () if runs_apart(&self.strict) => {
                refused("the first phase is one whose ranks wait for each other")
            }
            () if self.window_steps == 0 => refused("a window has a step"),
            () if self.evicted_steps == 0 => refused("a rank sits out at least one step"),
            () if self.ranks == 0 || self.batch == 0 => refused("there is a rank and a sample"),
            () if self.total_samples == 0 => refused("a job has samples"),
            () => Ok(()),
        }
    }
}

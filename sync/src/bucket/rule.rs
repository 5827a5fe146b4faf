//! How BSP cuts gradients into buckets: the settings, and the first plan.
//!
//! Owns the two rules and their checks. Never plans from times: that is the planners' part. Called
//! by the settings of a session and by BSP.

use super::{Buckets, Gradient, fill, merge_greedily, plan};
use crate::bucket::CostModel;
use crate::error::{Error, Result};

/// Rule by which gradients are reduced together during the backward pass; the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketRule {
    /// Buckets of so many bytes, in the reverse order of the tensors, as PyTorch's DDP has them.
    Bytes(ByteCaps),
    /// Buckets that follow from measured times.
    Planned(PlanConfig),
}

impl BucketRule {
    /// The name of BSP with this rule: `ddp`, `mg-wfbp`, or `bsp-buckets` for the best plan.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bytes(_) => "ddp",
            Self::Planned(PlanConfig { planner: Planner::Best, .. }) => "bsp-buckets",
            Self::Planned(PlanConfig { planner: Planner::Greedy, .. }) => "mg-wfbp",
        }
    }

    /// The rule of that name, with default settings.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let planned = |planner| Self::Planned(PlanConfig { planner, ..PlanConfig::default() });
        match name {
            "bsp-buckets" => Some(planned(Planner::Best)),
            "ddp" => Some(Self::Bytes(ByteCaps::default())),
            "mg-wfbp" => Some(planned(Planner::Greedy)),
            _ => None,
        }
    }

    /// The caps of the first plan, which needs no times.
    pub(crate) fn caps(&self) -> ByteCaps {
        match self {
            Self::Bytes(caps) => *caps,
            Self::Planned(planned) => planned.before,
        }
    }

    /// Whether the settings can work.
    ///
    /// # Errors
    /// [`Error::Config`] that names the first setting that cannot.
    pub(crate) fn validate(&self) -> Result<()> {
        let require = |holds: bool, rule: &str| match holds {
            true => Ok(()),
            false => Err(Error::Config { reason: rule.to_owned() }),
        };
        let ByteCaps { first_bytes, cap_bytes, least_buckets } = self.caps();
        require(cap_bytes > 0, "a bucket's cap is at least 1 byte")?;
        require(first_bytes > 0, "the first bucket's cap is at least 1 byte")?;
        require(least_buckets > 0, "there is at least 1 bucket")?;
        if let Self::Planned(PlanConfig { warmup_steps, measured_steps, .. }) = self {
            let steps = "a plan is made from 1 to 1000 measured steps";
            require((1..=1000).contains(measured_steps), steps)?;
            require(*warmup_steps <= 1_000_000, "at most 1000000 steps come before measuring")?;
        }
        Ok(())
    }
}

/// Caps on the bytes of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCaps {
    /// Cap of the first bucket, so that the link gets work early.
    pub first_bytes: u64,
    /// Cap of the others.
    pub cap_bytes: u64,
    /// Caps are lowered, if need be, to one part in so many of all bytes. 1 leaves them as they
    /// are, as DDP does: a model smaller than a cap does not overlap at all then.
    pub least_buckets: u32,
}

impl Default for ByteCaps {
    /// DDP's caps, 1 MiB and 25 MiB, and at least 4 buckets.
    fn default() -> Self {
        Self { first_bytes: 1 << 20, cap_bytes: 25 << 20, least_buckets: 4 }
    }
}

impl ByteCaps {
    /// The buckets of these gradients. A bucket may be larger than its cap by its last tensor.
    pub fn fill(&self, gradients: &[Gradient]) -> Buckets {
        let all: u64 = gradients.iter().map(|gradient| gradient.bytes).sum();
        let cap = self.cap_bytes.min(all.div_ceil(u64::from(self.least_buckets.max(1))));
        fill(gradients, self.first_bytes.min(cap), cap)
    }
}

/// When and how buckets are planned anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanConfig {
    /// The buckets until then.
    pub before: ByteCaps,
    /// Steps before measuring begins.
    pub warmup_steps: u64,
    /// Steps whose gradients are timed and whose reductions are made after the backward pass, one
    /// by one, to time those too. The plan follows at the end of the last.
    pub measured_steps: u64,
    /// What makes a plan of the times.
    pub planner: Planner,
}

impl Default for PlanConfig {
    fn default() -> Self {
        let before = ByteCaps::default();
        Self { before, warmup_steps: 3, measured_steps: 6, planner: Planner::Best }
    }
}

/// What makes a plan of measured times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planner {
    /// [`plan`]: the plan that ends first.
    Best,
    /// [`merge_greedily`]: the rule of MG-WFBP.
    Greedy,
}

impl Planner {
    pub(crate) fn plan(self, gradients: &[Gradient], cost: CostModel) -> Buckets {
        match self {
            Self::Best => plan(gradients, cost),
            Self::Greedy => merge_greedily(gradients, cost),
        }
    }
}

/// Buckets of very different sizes, the next twice as large as the last: what to time reductions
/// with. Takes O(n).
pub(crate) fn grow(gradients: &[Gradient]) -> Buckets {
    const SMALLEST_BYTES: u64 = 4096;
    let all: u64 = gradients.iter().map(|gradient| gradient.bytes).sum();
    let mut cap = SMALLEST_BYTES.min(all / 8);
    let (mut buckets, mut first, mut size) = (Buckets::new(), 0, 0);
    for (index, gradient) in gradients.iter().enumerate() {
        size += gradient.bytes;
        if size >= cap || index + 1 == gradients.len() {
            buckets.push(first..index + 1);
            cap = size.max(cap).saturating_mul(2);
            (first, size) = (index + 1, 0);
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn gradients(bytes: &[u64]) -> Vec<Gradient> {
        bytes.iter().map(|bytes| Gradient { bytes: *bytes, backward: Duration::ZERO }).collect()
    }

    #[test]
    fn caps_by_hand() {
        let caps = ByteCaps { first_bytes: 10, cap_bytes: 30, least_buckets: 1 };
        let some = gradients(&[6, 5, 20, 9, 1, 40]);
        assert_eq!(caps.fill(&some), [0..2, 2..5, 5..6]);
        // 81 bytes in at least 9 parts: caps of 9.
        assert_eq!(ByteCaps { least_buckets: 9, ..caps }.fill(&some), [0..2, 2..3, 3..4, 4..6]);
        assert!(caps.fill(&[]).is_empty());
        assert_eq!(ByteCaps::default().fill(&gradients(&[10; 8])).len(), 4);
    }

    #[test]
    fn growing_buckets_double() {
        let some = gradients(&[4000; 64]);
        let sizes: Vec<usize> = grow(&some).iter().map(ExactSizeIterator::len).collect();
        assert_eq!(sizes, [2, 4, 8, 16, 32, 2]);
        assert!(grow(&[]).is_empty());
        assert_eq!(grow(&gradients(&[u64::MAX / 2, 1])), [0..1, 1..2]);
        assert_eq!(grow(&gradients(&[2, 2, 4])), [0..1, 1..3]);
    }

    #[test]
    fn names_are_those_they_are_found_by() {
        for name in ["bsp-buckets", "ddp", "mg-wfbp"] {
            let rule = BucketRule::named(name).unwrap();
            assert_eq!(rule.name(), name);
            rule.validate().unwrap();
        }
        assert_eq!(BucketRule::named("bsp"), None);
    }

    #[test]
    fn each_bad_setting_is_named() {
        let caps = ByteCaps::default();
        let planned = PlanConfig::default();
        for (bad, text) in [
            (BucketRule::Bytes(ByteCaps { cap_bytes: 0, ..caps }), "bucket's cap"),
            (BucketRule::Bytes(ByteCaps { first_bytes: 0, ..caps }), "first"),
            (BucketRule::Bytes(ByteCaps { least_buckets: 0, ..caps }), "at least 1 bucket"),
            (BucketRule::Planned(PlanConfig { measured_steps: 0, ..planned }), "measured"),
            (BucketRule::Planned(PlanConfig { warmup_steps: 1 << 40, ..planned }), "before"),
        ] {
            let error = bad.validate().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}

//! Settings of OSP on a parameter server: where the servers are, and who knows the momentum.
//!
//! Owns which rank serves which slices. Never moves a byte. Called by the worker's model, by the
//! servers, and by the session, so that all cut the slices alike.

use std::ops::Range;

use crate::config::{GibLag, OspConfig, require};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::model::osp::budget::{BudgetRule, Ceiling, UmaxModel};
use crate::model::osp::correction::Lgp;
use crate::model::osp::importance::Importance;
use crate::optimiser::{Optimiser, Sgd};

/// Settings of OSP on a parameter server, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OspServerConfig {
    /// Those of both forms of OSP. Here `gib_lag` must be [`GibLag::Two`]: a bitmap comes with the
    /// reply of RS; `lgp` must not be [`Lgp::Ema`], whose mean only the servers know; `span` is 1,
    /// the budget has no windows, and [`Importance::RoundRobin`] is for the all-reduce form only.
    pub osp: OspConfig,
    /// Where the servers are.
    pub placement: Placement,
    /// How a worker knows the optimiser's moments, which the provisional step needs.
    pub moments: MomentSource,
}

/// Where the servers are, and so which ranks train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The whole server on one training rank, whose link carries the traffic of all others. One
    /// server sees all scores, so the budget is split over all slices.
    Colocated {
        /// Which.
        rank: u32,
    },
    /// The whole server on one rank, which does not train: the paper's testbed. The others are the
    /// workers: averages are over them, and the server's link carries the traffic of all.
    Dedicated {
        /// Which.
        rank: u32,
    },
    /// One shard on each rank, of whole slices and about equal bytes. Each shard splits its own
    /// share of the budget, in proportion to its bytes, without knowing the scores of the others.
    Sharded,
}

impl Placement {
    /// The rank that only serves, if there is one.
    pub fn server_only_rank(self) -> Option<u32> {
        match self {
            Self::Dedicated { rank } => Some(rank),
            Self::Colocated { .. } | Self::Sharded => None,
        }
    }

    /// How many ranks train.
    pub(crate) fn workers(self, world_size: u32) -> u32 {
        world_size - u32::from(self.server_only_rank().is_some())
    }
}

/// How a worker knows the optimiser's moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentSource {
    /// Without traffic where it can be: the velocity of SGD without Nesterov's momentum is
    /// `(w(t-1) - w(t)) / rate`, up to rounding. [`Self::Shipped`] for other optimisers.
    Cheapest,
    /// In each reply, beside the parameters: exact; a pull is two times as long (Adam: three).
    Shipped,
}

/// What [`MomentSource`] comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MomentTransfer {
    Reconstructed,
    Shipped,
    /// The provisional step does not read them.
    Unused,
}

impl Default for OspServerConfig {
    fn default() -> Self {
        Self::new(Placement::Sharded)
    }
}

impl OspServerConfig {
    /// The default settings for servers placed so; U_max by the formula that fits them.
    pub fn new(placement: Placement) -> Self {
        let osp = OspConfig::default();
        let umax = match placement {
            // A pull begins when all pushes are in: the two do not overlap.
            Placement::Colocated { .. } | Placement::Dedicated { .. } => {
                UmaxModel::ServerPushThenPull
            }
            Placement::Sharded => UmaxModel::Sharded,
        };
        let ceiling = Ceiling { umax, ..osp.ceiling };
        let osp = OspConfig { gib_lag: GibLag::Two, ceiling, ..osp };
        Self { osp, placement, moments: MomentSource::Cheapest }
    }

    /// Whether the settings can work.
    ///
    /// # Errors
    /// [`Error::Config`] that names the first setting that cannot.
    pub(crate) fn validate(&self) -> Result<()> {
        require(self.osp.span == 1, "the span is 1 on a parameter server", self.osp.span)?;
        let is_windowed = matches!(self.osp.budget, BudgetRule::Windowed(_));
        require(!is_windowed, "the budget on a parameter server has no windows", "Windowed")?;
        let is_in_turn = self.osp.importance == Importance::RoundRobin;
        require(!is_in_turn, "a parameter server does not choose in turn", "RoundRobin")?;
        // Of the optimiser, only a rule with windows asks.
        self.osp.validate(&Sgd::default().into())?;
        let is_late = self.osp.gib_lag == GibLag::Two;
        require(is_late, "gib_lag is Two where a server makes the bitmap", "One")?;
        let is_ema = matches!(self.osp.lgp, Lgp::Ema { .. });
        require(!is_ema, "lgp is one that needs no mean of averaged gradients", "Ema")
    }

    /// Whether they can work with so many ranks.
    ///
    /// # Errors
    /// [`Error::Config`] if the server's rank is none, or nobody would train.
    pub(crate) fn check_world(&self, world_size: u32) -> Result<()> {
        match self.placement {
            Placement::Colocated { rank } | Placement::Dedicated { rank } if rank >= world_size => {
                let reason = format!("the server's rank is below {world_size}, not {rank}");
                Err(Error::Config { reason })
            }
            Placement::Dedicated { .. } if world_size == 1 => {
                let reason = "a dedicated server needs another rank, which trains".to_owned();
                Err(Error::Config { reason })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn moment_transfer(&self, optimiser: &Optimiser) -> MomentTransfer {
        match optimiser {
            _ if self.osp.lgp != Lgp::Local => MomentTransfer::Unused,
            Optimiser::Sgd(Sgd { momentum: 0.0, .. }) => MomentTransfer::Unused,
            Optimiser::Sgd(Sgd { is_nesterov: false, .. })
                if self.moments == MomentSource::Cheapest =>
            {
                MomentTransfer::Reconstructed
            }
            _ => MomentTransfer::Shipped,
        }
    }

    /// Bytes that the busiest link carries in one direction, or one after the other, while all
    /// `workers` exchange `bytes` each: what U_max's formula takes for the same exchange.
    pub(crate) fn moved_bytes(&self, bytes: u64, workers: u32) -> f64 {
        let ranks = f64::from(workers);
        let factor = match self.osp.ceiling.umax {
            UmaxModel::ServerPipelined | UmaxModel::ServerRetransmitting => ranks,
            UmaxModel::ServerPushThenPull => 2.0 * ranks,
            UmaxModel::Sharded => 2.0 * (ranks - 1.0) / ranks,
        };
        factor * bytes as f64
    }
}

/// Which rank serves which slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    parts: Vec<Part>,
}

/// What one server owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its rank.
    pub server: u32,
    /// Its slices, by index.
    pub slices: Range<usize>,
    /// Its elements in the flat space.
    pub flat: Range<usize>,
}

impl Assignment {
    /// Gives each slice to the server in whose equal part of the flat space its middle lies.
    pub fn new(placement: Placement, world_size: u32, layout: &Layout) -> Self {
        let servers = match placement {
            Placement::Colocated { rank } | Placement::Dedicated { rank } => rank..rank + 1,
            Placement::Sharded => 0..world_size,
        };
        let (count, slices) = (servers.len(), layout.slices());
        let owner = |index: usize| {
            let middle = (slices[index].offset + slices[index].len / 2) as u128;
            (middle * count as u128 / layout.len().max(1) as u128) as usize
        };
        let mut parts = Vec::new();
        let mut first = 0;
        for (which, server) in servers.enumerate() {
            let mut end = first;
            while end < slices.len() && owner(end) <= which {
                end += 1;
            }
            let offset = |index: usize| slices.get(index).map_or(layout.len(), |s| s.offset);
            parts.push(Part { server, slices: first..end, flat: offset(first)..offset(end) });
            first = end;
        }
        Self { parts }
    }

    /// By server, in order of ranks; together all slices, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// What this rank serves, if anything.
    pub fn part_of(&self, rank: u32) -> Option<&Part> {
        self.parts.iter().find(|part| part.server == rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Granularity, TensorSpec};
    use crate::optimiser::Adam;

    #[test]
    fn each_slice_has_one_server_and_shards_are_about_equal() {
        let specs = [37, 0, 3, 64].map(|len| TensorSpec::new("t", len));
        let layout = Layout::new(&specs, Granularity::Slices { max_bytes: 16 });
        for world_size in 1..40 {
            let all = Assignment::new(Placement::Sharded, world_size, &layout);
            assert_eq!(all.parts().len(), world_size as usize);
            let (mut slice, mut element) = (0, 0);
            for part in all.parts() {
                assert_eq!((part.slices.start, part.flat.start), (slice, element));
                (slice, element) = (part.slices.end, part.flat.end);
                // A slice of four at either end.
                assert!(part.flat.len() <= 104 / world_size as usize + 1 + 4, "{part:?}");
            }
            assert_eq!((slice, element), (layout.slices().len(), 104));
        }
        let one = Assignment::new(Placement::Colocated { rank: 2 }, 4, &layout);
        assert_eq!(one.part_of(2).unwrap().flat, 0..104);
        assert_eq!((one.parts().len(), one.part_of(1)), (1, None));
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        let base = OspServerConfig::default();
        base.validate().unwrap();
        let one = OspConfig { gib_lag: GibLag::One, ..base.osp };
        let ema = OspConfig { lgp: Lgp::Ema { gamma: 0.5, lambda: 0.5 }, ..base.osp };
        let never = OspConfig { gib_every: 0, ..base.osp };
        let wide = OspConfig { span: 2, ..base.osp };
        let windowed = OspConfig { budget: BudgetRule::adaptive(1.0, 4), ..base.osp };
        let in_turn = OspConfig { importance: Importance::RoundRobin, ..base.osp };
        for (osp, text) in [
            (one, "gib_lag"),
            (ema, "lgp"),
            (never, "gib_every"),
            (wide, "span"),
            (windowed, "windows"),
            (in_turn, "in turn"),
        ] {
            let error = OspServerConfig { osp, ..base }.validate().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let far = OspServerConfig::new(Placement::Colocated { rank: 3 });
        far.check_world(4).unwrap();
        assert!(far.check_world(3).unwrap_err().to_string().contains("below 3, not 3"));
        let dedicated = |rank| OspServerConfig::new(Placement::Dedicated { rank });
        dedicated(1).check_world(2).unwrap();
        for (config, ranks, text) in
            [(dedicated(2), 2, "below 2, not 2"), (dedicated(0), 1, "trains")]
        {
            let error = config.check_world(ranks).unwrap_err();
            assert!(matches!(error, Error::Config { .. }) && error.to_string().contains(text));
        }
    }

    #[test]
    fn moments_are_shipped_only_where_they_must_be() {
        let base = OspServerConfig::default();
        let plain = Sgd { momentum: 0.0, ..Sgd::default() }.into();
        let nesterov = Sgd { is_nesterov: true, ..Sgd::default() }.into();
        assert_eq!(base.moment_transfer(&plain), MomentTransfer::Unused);
        assert_eq!(base.moment_transfer(&Sgd::default().into()), MomentTransfer::Reconstructed);
        assert_eq!(base.moment_transfer(&nesterov), MomentTransfer::Shipped);
        assert_eq!(base.moment_transfer(&Adam::default().into()), MomentTransfer::Shipped);
        let shipped = OspServerConfig { moments: MomentSource::Shipped, ..base };
        assert_eq!(shipped.moment_transfer(&Sgd::default().into()), MomentTransfer::Shipped);
    }

    /// What was moved in the time of one computation is what would just hide behind it.
    #[test]
    fn the_limit_that_follows_from_a_transfer_is_what_it_moved() {
        for placement in [Placement::Sharded, Placement::Dedicated { rank: 0 }] {
            for umax in [
                UmaxModel::Sharded,
                UmaxModel::ServerPipelined,
                UmaxModel::ServerPushThenPull,
                UmaxModel::ServerRetransmitting,
            ] {
                let mut config = OspServerConfig::new(placement);
                config.osp.ceiling.umax = umax;
                let second = std::time::Duration::from_secs(1);
                let bandwidth = config.moved_bytes(1000, 5);
                assert!((umax.bytes(bandwidth, second, 0.0, 5) - 1000.0).abs() < 1e-6);
            }
        }
    }
}

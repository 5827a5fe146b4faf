//! What a late gradient counts, when updates keep the global batch of synchronous training.
//!
//! Owns the tokens, the weights by staleness and the count of what is gathered. Never holds a
//! gradient: the server adds each, times its weight, and divides when the group is full. Called by
//! whoever hands out batches, and by the server.
//!
//! GBA is arXiv 2205.11048. That M gradients are gathered, that each carries a token and that late
//! ones are decayed is in its abstract; the formulas here are our recollection. Since M gradients
//! of one worker are as many samples as one synchronous update, rate and momentum need no change
//! when the mode does.

use std::num::NonZeroU64;

use super::require;
use crate::error::Result;

/// How a gradient's weight falls with its staleness, in updates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// 1 up to `iota` updates, 0 beyond: the rule of GBA as we recall it.
    Threshold {
        /// The last staleness that counts.
        iota: u64,
    },
    /// `base` to the power of the staleness, 0 beyond `last`. A variant of ours.
    Exponential {
        /// Above 0 and at most 1.
        base: f64,
        /// The last staleness that counts.
        last: u64,
    },
}

impl Decay {
    /// The weight of a gradient this many updates late, from 0 to 1.
    pub fn weight(self, staleness: u64) -> f64 {
        match self {
            Self::Threshold { iota } => f64::from(u8::from(staleness <= iota)),
            Self::Exponential { last, .. } if staleness > last => 0.0,
            Self::Exponential { base, .. } => power(base, staleness),
        }
    }
}

/// By squaring, in products only: the library's power may round differently on another machine.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent % 2 == 1 {
            result *= square;
        }
        square *= square;
        exponent /= 2;
    }
    result
}

/// By what the weighted sum of a group is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisor {
    /// By M, the size of the group: a gradient that counts less makes the update smaller. This is
    /// the rule of GBA as we recall it, and the cautious one: the update never exceeds what
    /// synchronous training would make of the gradients that count.
    Group,
    /// By the sum of the weights: the update keeps its size, with more noise. If nothing counts
    /// there is no update.
    Weights,
}

/// Settings of GBA, the same at all servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GbaConfig {
    /// M: gradients that make an update.
    pub group: NonZeroU64,
    /// How a gradient's weight falls.
    pub decay: Decay,
    /// By what the sum is divided.
    pub divisor: Divisor,
}

impl GbaConfig {
    /// Whether the settings can work.
    ///
    /// # Errors
    /// [`Config`](crate::Error::Config) if the base of an exponential decay is not above 0 and at
    /// most 1.
    pub fn validate(&self) -> Result<()> {
        match self.decay {
            Decay::Threshold { .. } => Ok(()),
            Decay::Exponential { base, .. } => {
                let is_base = base > 0.0 && base <= 1.0;
                require(is_base, "the base of a decay is above 0 and at most 1", base)
            }
        }
    }
}

/// M: how many batches of `batch` samples make one update of `workers` times `sync_batch`.
///
/// # Errors
/// [`Config`](crate::Error::Config) if that is not a whole number above 0.
pub fn group_size(workers: u32, sync_batch: u32, batch: u32) -> Result<NonZeroU64> {
    let samples = u64::from(workers) * u64::from(sync_batch);
    require(batch > 0, "a batch has at least one sample", batch)?;
    let is_whole = samples.is_multiple_of(u64::from(batch));
    require(is_whole, "the global batch is a multiple of the batch", samples)?;
    let group = NonZeroU64::new(samples / u64::from(batch));
    group.ok_or_else(|| crate::Error::Config { reason: "the global batch is empty".into() })
}

/// The token of the j-th batch handed out, from 0: the update that it is meant for.
pub fn token(batch: u64, group: NonZeroU64) -> u64 {
    batch / group
}

/// What to do with a gradient that arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// How many updates it is late; 0 if it is early.
    pub staleness: u64,
    /// Times which it is added to the sum; 0 to leave it out.
    pub weight: f64,
    /// What it ends.
    pub end: End,
}

/// Whether a gradient ends a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// More are to come.
    Open,
    /// The sum, divided by this, is the gradient of the next update.
    Update {
        /// Above 0.
        divisor: f64,
    },
    /// Nothing in the group counted: the parameters stay.
    Skip,
}

/// Counts the gradients of a group, and the updates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gatherer {
    config: GbaConfig,
    update: u64,
    gathered: u64,
    weights: f64,
}

impl Gatherer {
    /// One that has gathered nothing.
    ///
    /// # Errors
    /// As [`GbaConfig::validate`].
    pub fn new(config: GbaConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self { config, update: 0, gathered: 0, weights: 0.0 })
    }

    /// Groups that have ended: k, the token of batches that are in time. A skipped one counts.
    pub fn updates(&self) -> u64 {
        self.update
    }

    /// Takes in a gradient with this token. It counts towards the group whatever its weight, so
    /// that every M batches end one.
    pub fn arrive(&mut self, token: u64) -> Arrival {
        let staleness = self.update.saturating_sub(token);
        let weight = self.config.decay.weight(staleness);
        self.gathered += 1;
        self.weights += weight;
        let group = self.config.group.get();
        if self.gathered < group {
            return Arrival { staleness, weight, end: End::Open };
        }
        Arrival { staleness, weight, end: self.close() }
    }

    /// Ends the group with what is there, as if it were full: [`End::Open`] if that is nothing.
    /// For a drain, at which no gradient may be left behind.
    pub fn close(&mut self) -> End {
        let weights = std::mem::take(&mut self.weights);
        let gathered = std::mem::take(&mut self.gathered);
        if gathered == 0 {
            return End::Open;
        }
        self.update += 1;
        match self.config.divisor {
            _ if weights == 0.0 => End::Skip,
            Divisor::Group => End::Update { divisor: gathered as f64 },
            Divisor::Weights => End::Update { divisor: weights },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(group: u64, decay: Decay, divisor: Divisor) -> GbaConfig {
        GbaConfig { group: NonZeroU64::new(group).unwrap(), decay, divisor }
    }

    #[test]
    fn tokens_and_groups_by_hand() {
        let group = group_size(8, 128, 256).unwrap();
        assert_eq!(group.get(), 4);
        let tokens: Vec<u64> = (0..10).map(|batch| token(batch, group)).collect();
        assert_eq!(tokens, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
        for (workers, sync_batch, batch) in [(8, 100, 3), (0, 128, 4), (1, 1, 0), (1, 2, 4)] {
            assert!(group_size(workers, sync_batch, batch).is_err());
        }
    }

    #[test]
    fn weights_by_hand() {
        let weights = |decay: Decay| [0, 1, 2, 3, 4].map(|staleness| decay.weight(staleness));
        assert_eq!(weights(Decay::Threshold { iota: 2 }), [1.0, 1.0, 1.0, 0.0, 0.0]);
        let exponential = Decay::Exponential { base: 0.5, last: 3 };
        assert_eq!(weights(exponential), [1.0, 0.5, 0.25, 0.125, 0.0]);
        assert_eq!(Decay::Exponential { base: 0.9, last: u64::MAX }.weight(u64::MAX), 0.0);
        assert_eq!(Decay::Exponential { base: 1.0, last: u64::MAX }.weight(u64::MAX), 1.0);
    }

    #[test]
    fn in_time_all_count_and_the_update_is_the_mean() {
        for divisor in [Divisor::Group, Divisor::Weights] {
            let config = config(3, Decay::Threshold { iota: 0 }, divisor);
            let mut gatherer = Gatherer::new(config).unwrap();
            for batch in 0..12 {
                let arrival = gatherer.arrive(token(batch, config.group));
                assert_eq!((arrival.staleness, arrival.weight), (0, 1.0));
                let is_last = batch % 3 == 2;
                let end = if is_last { End::Update { divisor: 3.0 } } else { End::Open };
                assert_eq!(arrival.end, end);
            }
            assert_eq!(gatherer.updates(), 4);
        }
    }

    #[test]
    fn the_divisor_is_where_the_two_rules_differ() {
        let run = |divisor| {
            let decay = Decay::Exponential { base: 0.5, last: 2 };
            let mut gatherer = Gatherer::new(config(2, decay, divisor)).unwrap();
            // Updates 0 and 1, then one gradient two late and one early.
            let arrivals = [0, 0, 1, 1, 0, 9].map(|token| gatherer.arrive(token));
            let last: Vec<(u64, f64)> =
                arrivals[4..].iter().map(|arrival| (arrival.staleness, arrival.weight)).collect();
            assert_eq!(last, [(2, 0.25), (0, 1.0)]);
            arrivals[5].end
        };
        assert_eq!(run(Divisor::Group), End::Update { divisor: 2.0 });
        assert_eq!(run(Divisor::Weights), End::Update { divisor: 1.25 });
    }

    #[test]
    fn a_group_in_which_nothing_counts_is_skipped() {
        for divisor in [Divisor::Group, Divisor::Weights] {
            let mut gatherer =
                Gatherer::new(config(1, Decay::Threshold { iota: 1 }, divisor)).unwrap();
            let ends: Vec<End> = (0..4).map(|_| gatherer.arrive(0).end).collect();
            let update = End::Update { divisor: 1.0 };
            assert_eq!(ends, [update, update, End::Skip, End::Skip]);
            assert_eq!(gatherer.updates(), 4);
        }
    }

    #[test]
    fn out_of_order_batches_still_end_a_group_of_m() {
        let config = config(4, Decay::Threshold { iota: 1 }, Divisor::Weights);
        let mut gatherer = Gatherer::new(config).unwrap();
        let mut batches: Vec<u64> = (0..400).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut batches);
        let mut sum = 0.0;
        for (index, batch) in batches.into_iter().enumerate() {
            let arrival = gatherer.arrive(token(batch, config.group));
            sum += arrival.weight;
            assert_eq!(arrival.end == End::Open, index % 4 != 3);
            if let End::Update { divisor } = arrival.end {
                assert_eq!(divisor, sum);
            }
            sum = if arrival.end == End::Open { sum } else { 0.0 };
        }
        assert_eq!(gatherer.updates(), 100);
    }

    #[test]
    fn bad_bases_are_refused() {
        for base in [0.0, 1.5, f64::NAN] {
            let decay = Decay::Exponential { base, last: 3 };
            assert!(Gatherer::new(config(2, decay, Divisor::Group)).is_err());
        }
    }
}

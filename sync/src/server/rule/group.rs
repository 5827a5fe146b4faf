//! GBA at a shard: gradients are gathered, and every M of them are one update.
//!
//! Owns the tokens of the batches that workers compute; weights and divisors are
//! [`crate::policy::gba`]'s. Never holds a worker. Built by [`super::build`].
//!
//! A worker gets the token of its next batch when its push comes, in the order of pushes; the first
//! batches have theirs in the order of ranks. So a slow worker's token is of the time when it
//! began, not of how many batches it did before. What is gathered when all workers are done is
//! averaged over what is there: no gradient that counts is lost at a drain.
//!
//! Each shard gathers in the order in which pushes come there, so a group need not be of the same
//! gradients at all shards; each shard applies each gradient in one update. Where a worker awaits
//! replies a step later, its parameters are one reply older than its token says.

use std::num::NonZeroU64;
use std::time::Duration;

use super::{Keeper, Order};
use crate::error::Result;
use crate::policy::gba::{End, Gatherer, GbaConfig, token};

/// Gathers groups.
#[derive(Debug)]
pub(super) struct Group {
    size: NonZeroU64,
    gatherer: Gatherer,
    /// What to start again from.
    start: Gatherer,
    /// By worker: the token of the batch that it computes, none if it is done.
    tokens: Vec<Option<u64>>,
    /// Batches handed out.
    batches: u64,
}

impl Group {
    pub(super) fn new(workers: usize, config: GbaConfig) -> Result<Self> {
        let start = Gatherer::new(config)?;
        let tokens = vec![None; workers];
        let mut group = Self { size: config.group, gatherer: start, start, tokens, batches: 0 };
        group.reopen();
        Ok(group)
    }

    fn hand_out(&mut self) -> u64 {
        let token = token(self.batches, self.size);
        self.batches += 1;
        token
    }
}

fn close(end: End, orders: &mut Vec<Order>) {
    match end {
        End::Open => {}
        End::Skip => orders.push(Order::Close { divisor: None }),
        End::Update { divisor } => orders.push(Order::Close { divisor: Some(divisor) }),
    }
}

impl Keeper for Group {
    fn push(&mut self, worker: usize, _: Duration, orders: &mut Vec<Order>) -> Result<()> {
        let next = self.hand_out();
        let token = self.tokens[worker].replace(next).unwrap_or(next);
        let arrival = self.gatherer.arrive(token);
        orders.push(Order::Gather { worker, weight: arrival.weight });
        close(arrival.end, orders);
        orders.push(Order::Reply(worker));
        Ok(())
    }

    fn done(&mut self, worker: usize, _: Duration, orders: &mut Vec<Order>) -> Result<()> {
        self.tokens[worker] = None;
        if self.tokens.iter().all(Option::is_none) {
            close(self.gatherer.close(), orders);
        }
        Ok(())
    }

    fn reopen(&mut self) {
        self.gatherer = self.start;
        self.batches = 0;
        for worker in 0..self.tokens.len() {
            self.tokens[worker] = Some(self.hand_out());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::gba::{Decay, Divisor};
    use Order::{Close, Gather, Reply};

    fn group(size: u64, divisor: Divisor) -> Group {
        let decay = Decay::Threshold { iota: 0 };
        let group = NonZeroU64::new(size).unwrap();
        Group::new(2, GbaConfig { group, decay, divisor }).unwrap()
    }

    fn push(group: &mut Group, worker: usize) -> Vec<Order> {
        let mut orders = Vec::new();
        group.push(worker, Duration::ZERO, &mut orders).unwrap();
        orders
    }

    fn gather(worker: usize, weight: f64) -> Order {
        Gather { worker, weight }
    }

    #[test]
    fn a_slow_worker_s_batch_is_late_and_its_next_is_not() {
        let mut group = group(2, Divisor::Weights);
        // Tokens: 0 and 0 at the start, then 1, 1, 2, 2 in the order of pushes.
        assert_eq!(push(&mut group, 0), [gather(0, 1.0), Reply(0)]);
        let full = Close { divisor: Some(2.0) };
        assert_eq!(push(&mut group, 0), [gather(0, 1.0), full, Reply(0)]);
        // Worker 0's has token 1, worker 1's 0: late by one update.
        assert_eq!(push(&mut group, 0), [gather(0, 1.0), Reply(0)]);
        let half = Close { divisor: Some(1.0) };
        assert_eq!(push(&mut group, 1), [gather(1, 0.0), half, Reply(1)]);
        assert_eq!(push(&mut group, 1), [gather(1, 1.0), Reply(1)]);
    }

    #[test]
    fn what_is_left_at_a_drain_is_averaged_over_what_is_there() {
        for divisor in [Divisor::Group, Divisor::Weights] {
            let mut group = group(4, divisor);
            for worker in [0, 0, 1] {
                assert_eq!(push(&mut group, worker), [gather(worker, 1.0), Reply(worker)]);
            }
            let mut orders = Vec::new();
            group.done(1, Duration::ZERO, &mut orders).unwrap();
            assert_eq!(orders, []);
            group.done(0, Duration::ZERO, &mut orders).unwrap();
            assert_eq!(orders, [Close { divisor: Some(3.0) }]);
            group.reopen();
            assert_eq!(push(&mut group, 0), [gather(0, 1.0), Reply(0)]);
        }
    }

    #[test]
    fn a_drain_of_nothing_closes_nothing() {
        let mut group = group(1, Divisor::Group);
        push(&mut group, 0);
        let mut orders = Vec::new();
        (0..2).for_each(|worker| group.done(worker, Duration::ZERO, &mut orders).unwrap());
        assert_eq!(orders, []);
    }
}

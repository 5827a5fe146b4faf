//! R2SP at a shard: workers have their turns one after another, evenly spaced in time.
//!
//! Owns the order and the gap between turns. Never lets a worker have two turns while another that
//! is not done has none. Built by [`super::build`].
//!
//! A push waits for its worker's turn, is applied then, and answered with the result. So pushes are
//! applied in the order of ranks, round after round, whatever the order in which they come, and
//! after the first round each is exactly N - 1 updates late (with N workers that are not done, and
//! replies that are waited for at once). The shard of rank 0 alone keeps the gap: the others follow
//! it, since a worker waits for all replies before it pushes again. There, too, the global batch is
//! divided by speed ([`super::split`]).

use std::time::Duration;

use super::split::Split;
use super::{Keeper, Order};
use crate::error::Result;
use crate::policy::batch::Batch;
use crate::server::config::Gap;

/// Iterations of worker 0 that are no measure of the others.
const SKIPPED: u32 = 4;
/// Iterations of worker 0 until there is a gap.
const WARM_UP: u32 = 10;
/// The turns of a round take a little less time than an iteration of worker 0.
const SLACK: f64 = 1.2;

/// Holds pushes until their workers' turns.
#[derive(Debug)]
pub(super) struct Turns {
    workers: Vec<Seat>,
    /// Whose turn it is.
    next: usize,
    /// No turn is before this.
    not_before: Duration,
    pace: Option<Pace>,
    split: Option<Split>,
}

#[derive(Clone, Debug, Default)]
struct Seat {
    is_waiting: bool,
    is_done: bool,
}

impl Turns {
    /// Turns without a gap between them where there is no `gap`, and without a word on batches
    /// where there is no `split`.
    pub(super) fn new(workers: usize, gap: Option<Gap>, split: Option<Split>) -> Self {
        Self {
            workers: vec![Seat::default(); workers],
            next: 0,
            not_before: Duration::ZERO,
            pace: gap.map(Pace::new),
            split,
        }
    }

    fn serve(&mut self, now: Duration, orders: &mut Vec<Order>) {
        let count = self.workers.len();
        while self.pass_over_done() && self.workers[self.next].is_waiting && now >= self.not_before
        {
            let worker = self.next;
            if let Some(split) = &mut self.split
                && worker == 0
            {
                split.begin_round();
            }
            orders.extend([Order::Apply(worker), Order::Reply(worker)]);
            self.workers[worker].is_waiting = false;
            self.next = (worker + 1) % count;
            if let Some(pace) = &mut self.pace {
                pace.had_turn(worker, now);
                self.not_before = now.saturating_add(pace.gap(count));
            }
        }
    }

    /// Moves on to the next who is not done; false if there is none.
    fn pass_over_done(&mut self) -> bool {
        let count = self.workers.len();
        let next = (0..count).map(|step| (self.next + step) % count);
        match next.into_iter().find(|worker| !self.workers[*worker].is_done) {
            Some(next) => {
                self.next = next;
                true
            }
            None => false,
        }
    }
}

impl Keeper for Turns {
    fn push(&mut self, worker: usize, now: Duration, orders: &mut Vec<Order>) -> Result<()> {
        if let Some(pace) = &mut self.pace {
            pace.pushed(worker, now);
        }
        self.workers[worker].is_waiting = true;
        self.serve(now, orders);
        Ok(())
    }

    fn done(&mut self, worker: usize, now: Duration, orders: &mut Vec<Order>) -> Result<()> {
        self.workers[worker].is_done = true;
        self.serve(now, orders);
        Ok(())
    }

    fn note_speed(&mut self, worker: usize, sample_ns: u32) {
        if let Some(split) = &mut self.split {
            split.note_speed(worker, sample_ns);
        }
    }

    fn batch(&self, worker: usize) -> Option<Batch> {
        self.split.as_ref().map(|split| split.part(worker))
    }

    fn due(&self) -> Option<Duration> {
        self.workers[self.next].is_waiting.then_some(self.not_before)
    }

    fn tick(&mut self, now: Duration, orders: &mut Vec<Order>) {
        self.serve(now, orders);
    }

    /// What was measured stays.
    fn reopen(&mut self) {
        self.workers.fill(Seat::default());
        self.next = 0;
        self.not_before = Duration::ZERO;
        if let Some(pace) = &mut self.pace {
            pace.turn = None;
        }
    }
}

/// The gap between turns, from the time that worker 0 needs between its turn and its next push.
#[derive(Debug)]
struct Pace {
    rule: Gap,
    /// Last turn of worker 0.
    turn: Option<Duration>,
    iterations: u32,
    /// Of the iterations that were not skipped.
    sum: Duration,
}

impl Pace {
    fn new(rule: Gap) -> Self {
        Self { rule, turn: None, iterations: 0, sum: Duration::ZERO }
    }

    fn had_turn(&mut self, worker: usize, now: Duration) {
        if worker == 0 {
            self.turn = Some(now);
        }
    }

    fn pushed(&mut self, worker: usize, now: Duration) {
        let Some(turn) = self.turn.filter(|_| worker == 0) else { return };
        if self.iterations < SKIPPED {
            self.iterations += 1;
        } else if let Some(iterations) = self.iterations.checked_add(1) {
            self.iterations = iterations;
            self.sum = self.sum.saturating_add(now.saturating_sub(turn));
        }
    }

    fn gap(&self, workers: usize) -> Duration {
        match self.rule {
            Gap::Fixed(gap) => gap,
            Gap::Measured { .. } if self.iterations < WARM_UP => Duration::ZERO,
            Gap::Measured { most } => {
                let mean = self.sum.as_secs_f64() / f64::from(self.iterations - SKIPPED);
                let gap = Duration::try_from_secs_f64(mean / (SLACK * workers as f64));
                gap.unwrap_or(most).min(most)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Order::{Apply, Reply};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn push(turns: &mut Turns, worker: usize, now: u64) -> Vec<Order> {
        let mut orders = Vec::new();
        turns.push(worker, ms(now), &mut orders).unwrap();
        orders
    }

    fn served(workers: &[usize]) -> Vec<Order> {
        workers.iter().flat_map(|worker| [Apply(*worker), Reply(*worker)]).collect()
    }

    #[test]
    fn pushes_have_their_turns_in_the_order_of_ranks() {
        let mut turns = Turns::new(3, None, None);
        assert_eq!(push(&mut turns, 2, 0), []);
        assert_eq!(push(&mut turns, 0, 0), served(&[0]));
        assert_eq!(push(&mut turns, 0, 0), []);
        assert_eq!(push(&mut turns, 1, 0), served(&[1, 2, 0]));
        let mut orders = Vec::new();
        assert_eq!(push(&mut turns, 2, 0), []);
        turns.done(1, ms(0), &mut orders).unwrap();
        assert_eq!(orders, served(&[2]));
        assert_eq!(turns.due(), None);
    }

    #[test]
    fn a_fixed_gap_spaces_turns() {
        let mut turns = Turns::new(2, Some(Gap::Fixed(ms(10))), None);
        assert_eq!(push(&mut turns, 1, 1), []);
        assert_eq!(push(&mut turns, 0, 5), served(&[0]));
        assert_eq!(turns.due(), Some(ms(15)));
        let mut orders = Vec::new();
        turns.tick(ms(14), &mut orders);
        assert_eq!(orders, []);
        turns.tick(ms(16), &mut orders);
        assert_eq!(orders, served(&[1]));
        // It is worker 0's turn, which has not pushed: nothing to wake up for.
        assert_eq!(turns.due(), None);
        assert_eq!(push(&mut turns, 0, 20), []);
        assert_eq!(turns.due(), Some(ms(26)));
    }

    /// Worker 0 takes 24 ms from its turn to its push, so two workers are 10 ms apart.
    #[test]
    fn the_gap_follows_worker_0() {
        let mut turns = Turns::new(2, Some(Gap::Measured { most: ms(50) }), None);
        let mut now = 0;
        for round in 0..11 {
            // The first iterations are slow, and do not count.
            now += if round < 5 { 1000 } else { 24 };
            assert_eq!(push(&mut turns, 0, now), served(&[0]), "round {round}");
            if round < 10 {
                assert_eq!(push(&mut turns, 1, now), served(&[1]));
            }
        }
        assert_eq!(push(&mut turns, 1, now), []);
        assert_eq!(turns.due(), Some(ms(now + 10)));
        turns.reopen();
        assert_eq!(turns.due(), None);
        // The gap outlives a drain, the time over which it lasted is no iteration.
        assert_eq!(push(&mut turns, 0, 90_000), served(&[0]));
        assert_eq!(push(&mut turns, 1, 90_000), []);
        assert_eq!(turns.due(), Some(ms(90_010)));
    }

    #[test]
    fn times_that_go_back_or_are_absurd_do_no_harm() {
        let mut turns = Turns::new(1, Some(Gap::Measured { most: ms(7) }), None);
        let mut orders = Vec::new();
        for now in
            [Duration::MAX, ms(3), Duration::MAX, Duration::ZERO].into_iter().cycle().take(40)
        {
            if !turns.workers[0].is_waiting {
                turns.push(0, now, &mut orders).unwrap();
            }
            turns.tick(Duration::MAX, &mut orders);
        }
        assert_eq!(orders.len(), 80);
        assert!(turns.pace.unwrap().gap(1) <= ms(7));
    }
}

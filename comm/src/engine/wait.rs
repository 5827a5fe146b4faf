//! How long a thread that waits spins before it sleeps.
//!
//! Owns the limit and how it follows what waits turn out to take. Never waits itself. Called by the
//! driver.
//!
//! Spinning wins the time of a wake-up, if what is waited for comes soon; else it takes a core from
//! those who compute, on this host or on its neighbours in the same machine. So the limit grows
//! while sleeps turn out short and shrinks while they turn out long, as Linux' haltpoll governor
//! has it.

use crate::time::now;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use syncline_proto::time::Instant;

/// Fruitless steps between two looks at the clock.
const CLOCK_EVERY: u32 = 16;
/// Fruitless steps between yields: two ranks that the kernel has put on one core must not spin
/// against each other for long.
const YIELD_EVERY: u32 = 64;
/// The least limit but none.
const SPIN_MIN: Duration = Duration::from_micros(10);

/// What to do after a step that found nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pause {
    Spin,
    Yield,
    Sleep,
}

/// The limit, for all threads that drive one engine.
#[derive(Debug)]
pub(super) struct Spinning {
    max: Duration,
    limit_ns: AtomicU64,
}

impl Spinning {
    /// A limit of at most `max`, which it is at first.
    pub(super) fn new(max: Duration) -> Self {
        Self { max, limit_ns: AtomicU64::new(nanos(max)) }
    }

    pub(super) fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit_ns.load(Ordering::Relaxed))
    }

    /// Takes note of a wait that is over.
    pub(super) fn learn(&self, wait: Wait) {
        if let (Some(since), true) = (wait.since, wait.slept) {
            self.take(now().since(since));
        }
    }

    /// A wait that ended in a sleep took so long in all.
    fn take(&self, wait: Duration) {
        let limit = self.limit();
        let next = if wait <= self.max {
            (limit * 2).max(SPIN_MIN)
        } else if limit > SPIN_MIN {
            limit / 2
        } else {
            Duration::ZERO
        };
        self.limit_ns.store(nanos(next.min(self.max)), Ordering::Relaxed);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// One wait: steps that found nothing, one after the other.
#[derive(Debug, Default)]
pub(super) struct Wait {
    steps: u32,
    since: Option<Instant>,
    /// Yields after the spinning.
    yields: u32,
    slept: bool,
}

impl Wait {
    /// What to do after another such step: spin up to `limit`, then yield so often, then sleep.
    pub(super) fn next(&mut self, limit: Duration, yields: u32) -> Pause {
        let since = *self.since.get_or_insert_with(now);
        self.steps = self.steps.wrapping_add(1);
        let is_spinning = self.yields == 0 && !self.slept && !limit.is_zero();
        if is_spinning && !(self.steps.is_multiple_of(CLOCK_EVERY) && now().since(since) >= limit) {
            let is_turn = self.steps.is_multiple_of(YIELD_EVERY);
            return if is_turn { Pause::Yield } else { Pause::Spin };
        }
        if self.yields < yields {
            self.yields += 1;
            return Pause::Yield;
        }
        // What woke it may not have been what it waits for: a few more looks, then again.
        self.yields = yields.saturating_sub(2);
        self.slept = true;
        Pause::Sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_what_waits_take() {
        let max = Duration::from_micros(200);
        let spinning = Spinning::new(max);
        for _ in 0..8 {
            spinning.take(Duration::from_millis(3));
        }
        assert_eq!(spinning.limit(), Duration::ZERO, "nothing comes soon");
        spinning.take(Duration::from_micros(30));
        assert_eq!(spinning.limit(), SPIN_MIN);
        for _ in 0..8 {
            spinning.take(Duration::from_micros(30));
        }
        assert_eq!(spinning.limit(), max);
    }

    #[test]
    fn a_wait_spins_then_yields_then_sleeps() {
        let mut wait = Wait::default();
        let pauses: Vec<_> = (0..5).map(|_| wait.next(Duration::ZERO, 3)).collect();
        assert_eq!(pauses[..4], [Pause::Yield, Pause::Yield, Pause::Yield, Pause::Sleep]);
        assert_eq!(pauses[4], Pause::Yield, "then it looks again");
        let mut wait = Wait::default();
        let limit = Duration::from_micros(50);
        let begin = now();
        let mut spins = 0;
        while wait.next(limit, 1) == Pause::Spin || wait.yields == 0 {
            spins += 1;
        }
        assert!(now().since(begin) >= limit && spins >= 15, "{spins}");
        assert_eq!(wait.next(limit, 1), Pause::Sleep);
    }

    #[test]
    fn no_patience_stays_none() {
        let spinning = Spinning::new(Duration::ZERO);
        spinning.take(Duration::ZERO);
        assert_eq!(spinning.limit(), Duration::ZERO);
    }
}

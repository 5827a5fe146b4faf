//! Who waits at the parameter server: SSP and DSSP.
//!
//! Owns the counts of pushes, the extra iterations granted, and who is held. Never sends: the
//! server answers those whom this lets go on. Called by the server at each push.
//!
//! DSSP is arXiv 1908.11848; with no extra iterations (`r_max` = 0) it is SSP. A worker that leads
//! the slowest by more than the lower bound s_L has to wait, unless it is the fastest: then
//! the controller looks for the number of extra iterations after which its push comes closest to
//! one of the slowest worker.
//!
//! Two readings of ours. A grant of r lets the worker compute r more iterations, the one that
//! starts at once included, as the controller's timeline has it. And a grant never reaches past the
//! upper bound s_U = s_L + r_max: the published pseudo-code gives a worker that has used up its
//! grant another one, without end. So whoever goes on is at most s_U pushes ahead of the slowest.

use std::time::Duration;

use crate::error::{Error, Result};

/// What follows from a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Whether the worker goes on or waits.
    pub verdict: Verdict,
    /// Workers that had to wait and go on now, ascending.
    pub released: Vec<usize>,
}

/// Whether a worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It waits until it is released.
    Hold,
    /// It goes on with the newest parameters.
    Proceed,
}

/// The controller of SSP and DSSP.
#[derive(Clone, Debug)]
pub struct Dssp {
    lower: u64,
    r_max: u64,
    workers: Vec<Worker>,
}

#[derive(Clone, Debug, Default)]
struct Worker {
    pushes: u64,
    /// Extra iterations that it may still start.
    granted: u64,
    /// Times of its last two pushes, the last one first.
    stamps: [Option<Duration>; 2],
    is_held: bool,
    is_gone: bool,
}

impl Dssp {
    /// For this many workers, with the bounds s_L and s_U = s_L + r_max in pushes.
    pub fn new(workers: usize, lower: u64, r_max: u64) -> Self {
        Self { lower, r_max, workers: vec![Worker::default(); workers] }
    }

    /// SSP: nobody goes on who is more than `staleness` pushes ahead of the slowest.
    pub fn ssp(workers: usize, staleness: u64) -> Self {
        Self::new(workers, staleness, 0)
    }

    /// Takes in a push of this worker, `now` after any fixed moment.
    ///
    /// # Errors
    /// [`Error::Protocol`] if there is no such worker, it is held, or it was removed. Nothing
    /// changes then.
    pub fn push(&mut self, worker: usize, now: Duration) -> Result<Pushed> {
        let refuse =
            |what| Err(Error::Protocol { reason: format!("push of worker {worker}, {what}") });
        match self.workers.get(worker) {
            None => return refuse("which does not exist"),
            Some(state) if state.is_gone => return refuse("which was removed"),
            Some(state) if state.is_held => return refuse("which has to wait"),
            Some(_) => {}
        }
        let state = &mut self.workers[worker];
        state.pushes += 1;
        state.stamps = [Some(now), state.stamps[0]];
        let may_go = self.may_proceed(worker);
        self.workers[worker].is_held = !may_go;
        // The slowest may have moved: others may go on, but not this one, which was just judged.
        let released = self.release();
        Ok(Pushed { verdict: if may_go { Verdict::Proceed } else { Verdict::Hold }, released })
    }

    /// Forgets a worker that failed or was evicted, and says who goes on because of it.
    ///
    /// # Errors
    /// [`Error::Protocol`] if there is no such worker.
    pub fn remove(&mut self, worker: usize) -> Result<Vec<usize>> {
        let Some(state) = self.workers.get_mut(worker) else {
            return Err(Error::Protocol { reason: format!("no worker {worker} to remove") });
        };
        *state = Worker { is_gone: true, is_held: false, ..Worker::default() };
        Ok(self.release())
    }

    /// How many pushes this worker is ahead of the slowest; 0 for one that is gone.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn lead(&self, worker: usize) -> u64 {
        self.workers[worker]
            .pushes
            .saturating_sub(self.slowest().map_or(0, |slowest| slowest.pushes))
    }

    /// The least advanced worker that is there; the first of equals.
    fn slowest(&self) -> Option<&Worker> {
        self.workers.iter().filter(|worker| !worker.is_gone).min_by_key(|worker| worker.pushes)
    }

    fn may_proceed(&mut self, worker: usize) -> bool {
        let lead = self.lead(worker);
        let state = &self.workers[worker];
        let (pushes, granted) = (state.pushes, state.granted);
        let upper = self.lower.saturating_add(self.r_max);
        if granted > 0 && lead <= upper {
            self.workers[worker].granted -= 1;
            return true;
        }
        if lead <= self.lower {
            return true;
        }
        let is_fastest = self.workers.iter().all(|other| other.pushes <= pushes);
        if !is_fastest || lead > upper {
            return false;
        }
        // One iteration at this lead, and one at each up to the upper bound.
        let grant = self.grant(worker).min(upper - lead + 1);
        self.workers[worker].granted = grant.saturating_sub(1);
        grant > 0
    }

    /// The controller: how many more iterations until a push of this worker comes closest to one
    /// of the slowest. 0, to wait at once, while an interval is unknown. Takes O(r_max).
    fn grant(&self, worker: usize) -> u64 {
        let of = |worker: &Worker| -> Option<(i128, i128)> {
            let [last, before] = worker.stamps.map(|stamp| stamp.map(nanos));
            let (last, before) = (last?, before?);
            Some((last, (last - before).max(0)))
        };
        let fast = of(&self.workers[worker]);
        let slow = self.slowest().and_then(of);
        let (Some((fast, fast_interval)), Some((slow, slow_interval))) = (fast, slow) else {
            return 0;
        };
        let slow_push = |index: u64| slow + slow_interval * (i128::from(index) + 1);
        let (mut best, mut nearest, mut index) = (0, i128::MAX, 0);
        for extra in 0..=self.r_max {
            let push = fast + fast_interval * i128::from(extra);
            let distance = |index| (slow_push(index) - push).abs();
            // Both sequences ascend, so the nearest push of the slowest never goes back.
            while index < self.r_max && distance(index + 1) <= distance(index) {
                index += 1;
            }
            if distance(index) < nearest {
                (best, nearest) = (extra, distance(index));
            }
        }
        best
    }

    fn release(&mut self) -> Vec<usize> {
        let (lower, least) = (self.lower, self.slowest().map_or(0, |slowest| slowest.pushes));
        let mut released = Vec::new();
        for (index, worker) in self.workers.iter_mut().enumerate() {
            if worker.is_held && worker.pushes - least <= lower {
                worker.is_held = false;
                released.push(index);
            }
        }
        released
    }
}

/// Fits what a few products with numbers of iterations make of it.
fn nanos(stamp: Duration) -> i128 {
    i128::from(u64::try_from(stamp.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Hold, Proceed};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn pushed(verdict: Verdict, released: &[usize]) -> Pushed {
        Pushed { verdict, released: released.to_vec() }
    }

    #[test]
    fn ssp_by_hand() {
        let mut ssp = Dssp::ssp(2, 1);
        let mut push = |worker| ssp.push(worker, ms(0)).unwrap();
        assert_eq!(push(0), pushed(Proceed, &[]));
        assert_eq!(push(0), pushed(Hold, &[]));
        assert_eq!(push(1), pushed(Proceed, &[0]));
        assert_eq!(push(0), pushed(Hold, &[]));
        assert_eq!(push(1), pushed(Proceed, &[0]));
    }

    #[test]
    fn a_bound_of_zero_is_the_order_of_bsp() {
        let mut ssp = Dssp::ssp(3, 0);
        let mut push = |worker| ssp.push(worker, ms(0)).unwrap();
        for _ in 0..3 {
            assert_eq!(push(2), pushed(Hold, &[]));
            assert_eq!(push(0), pushed(Hold, &[]));
            assert_eq!(push(1), pushed(Proceed, &[0, 2]));
        }
    }

    /// The fast worker pushes every 10 ms, the slow one at 0, 35 and so at 70.
    #[test]
    fn the_controller_waits_where_the_slowest_pushes_next() {
        let mut dssp = Dssp::new(2, 2, 4);
        dssp.push(1, ms(0)).unwrap();
        dssp.push(0, ms(10)).unwrap();
        dssp.push(0, ms(20)).unwrap();
        dssp.push(1, ms(35)).unwrap();
        dssp.push(0, ms(36)).unwrap();
        assert_eq!(dssp.push(0, ms(46)).unwrap().verdict, Proceed);
        // Three ahead at 56. Of 56, 66, 76, 86, 96 and 70, 105, 140: 66 is nearest to 70, one
        // iteration from here.
        let mut probe = dssp.clone();
        assert_eq!(probe.lead(0), 2);
        assert_eq!(probe.push(0, ms(56)).unwrap().verdict, Proceed);
        assert_eq!(probe.workers[0].granted, 0);
        assert_eq!(probe.grant(0), 1);
        // An interval of 4 ms instead: 50 + 4 r is nearest at r = 4 (66), three after this one.
        assert_eq!(dssp.push(0, ms(50)).unwrap().verdict, Proceed);
        assert_eq!((dssp.grant(0), dssp.workers[0].granted), (4, 3));
    }

    #[test]
    fn who_is_not_the_fastest_waits() {
        let mut dssp = Dssp::new(3, 1, 5);
        let mut push = |worker, now| dssp.push(worker, ms(now)).unwrap();
        let order = [(1, 0), (0, 10), (2, 15), (0, 20), (2, 25), (1, 40), (0, 41), (2, 42)];
        assert!(order.iter().all(|(worker, now)| push(*worker, *now) == pushed(Proceed, &[])));
        // Two ahead of worker 1: of 51, 61, 71, 81, the last is nearest to its next push at 80.
        assert_eq!(push(0, 51).verdict, Proceed);
        assert_eq!(push(0, 61).verdict, Proceed);
        // So is worker 2, but worker 0 is faster.
        assert_eq!(push(2, 62), pushed(Hold, &[]));
        assert_eq!(push(0, 71).verdict, Proceed);
        assert_eq!(push(0, 81).verdict, Hold);
        assert_eq!(push(1, 82), pushed(Proceed, &[2]));
    }

    #[test]
    fn the_two_pointer_scan_finds_what_a_full_search_finds() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..3000 {
            let mut dssp = Dssp::new(2, 0, random.u64(0..15));
            for worker in &mut dssp.workers {
                let before = random.u64(0..100);
                worker.stamps = [Some(ms(before + random.u64(0..40))), Some(ms(before))];
            }
            dssp.workers[0].pushes = 1;
            let of = |worker: usize| {
                let [last, before] = dssp.workers[worker].stamps.map(|stamp| nanos(stamp.unwrap()));
                (last, last - before)
            };
            let ((fast, fast_by), (slow, slow_by)) = (of(0), of(1));
            let steps = 0..=i128::from(dssp.r_max);
            let distance = |r: i128| {
                let slow_pushes = steps.clone().map(|k| slow + slow_by * (k + 1));
                slow_pushes.map(|push| (push - fast - fast_by * r).abs()).min().unwrap()
            };
            let best = steps.clone().min_by_key(|r| distance(*r)).unwrap();
            assert_eq!(i128::from(dssp.grant(0)), best);
        }
    }

    /// Pushes at random, of workers with speeds of their own; returns the largest lead with which
    /// any went on.
    fn run(seed: u64, lower: u64, r_max: u64) -> u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        let world_size = random.usize(1..7);
        let mut dssp = Dssp::new(world_size, lower, r_max);
        let intervals: Vec<u64> = (0..world_size).map(|_| random.u64(1..60)).collect();
        let mut due: Vec<Option<u64>> = intervals.iter().copied().map(Some).collect();
        let mut widest = 0;
        for _ in 0..400 {
            // The next that computes: there is one, or all would wait for each other.
            let next = due.iter().enumerate().filter_map(|(rank, due)| Some(((*due)?, rank))).min();
            let (now, worker) = next.expect("somebody may go on");
            let pushed = dssp.push(worker, ms(now)).unwrap();
            let mut go = pushed.released.clone();
            due[worker] = None;
            if pushed.verdict == Proceed {
                go.push(worker);
            } else {
                assert!(dssp.lead(worker) > lower && !go.contains(&worker));
                assert!(dssp.push(worker, ms(now)).is_err());
            }
            for worker in go {
                widest = widest.max(dssp.lead(worker));
                let jitter = random.u64(0..20);
                due[worker] = Some(now + intervals[worker] + jitter);
            }
            let held = (0..world_size).filter(|rank| due[*rank].is_none());
            held.for_each(|rank| assert!(dssp.lead(rank) > lower));
        }
        widest
    }

    #[test]
    fn nobody_goes_on_beyond_the_upper_bound_and_somebody_always_does() {
        let mut reached = 0;
        for seed in 0..300 {
            let (lower, r_max) = (seed % 4, seed / 4 % 6);
            let widest = run(seed, lower, r_max);
            assert!(widest <= lower + r_max, "seed {seed}: {widest} of {lower} + {r_max}");
            reached += u64::from(r_max > 0 && widest > lower);
        }
        // Grants are given at all.
        assert!(reached > 100, "{reached}");
    }

    #[test]
    fn a_worker_that_fails_holds_nobody_up() {
        let mut ssp = Dssp::ssp(3, 0);
        ssp.push(0, ms(1)).unwrap();
        ssp.push(1, ms(1)).unwrap();
        assert_eq!(ssp.remove(2).unwrap(), [0, 1]);
        assert!(ssp.remove(1).unwrap().is_empty());
        assert_eq!(ssp.push(0, ms(2)).unwrap(), pushed(Proceed, &[]));
        assert!(ssp.remove(0).unwrap().is_empty());
    }

    #[test]
    fn pushes_that_break_the_rules_are_refused() {
        let mut ssp = Dssp::ssp(2, 0);
        ssp.push(0, ms(1)).unwrap();
        let text = |result: Result<Pushed>| result.unwrap_err().to_string();
        assert!(text(ssp.push(0, ms(2))).contains("has to wait"));
        assert!(text(ssp.push(7, ms(2))).contains("worker 7"));
        assert_eq!(ssp.lead(0), 1);
        ssp.remove(1).unwrap();
        assert!(text(ssp.push(1, ms(2))).contains("removed"));
        assert!(ssp.remove(9).is_err());
    }

    #[test]
    fn clocks_that_go_back_or_are_absurd_do_no_harm() {
        let mut dssp = Dssp::new(2, 0, 3);
        let times = [Duration::MAX, ms(5), Duration::ZERO, Duration::MAX];
        for now in times {
            if !dssp.workers[0].is_held {
                dssp.push(0, now).unwrap();
            }
            if !dssp.workers[1].is_held {
                dssp.push(1, now).unwrap();
            }
        }
    }
}

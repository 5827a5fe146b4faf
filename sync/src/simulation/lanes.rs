//! Collectives under way, in two lanes.
//!
//! Owns how far each is. A lane serves first come, first served; the background lane moves only
//! while the urgent one is empty, and keeps what it has moved. Called by the driver, which asks
//! when the next one ends before it goes on to any later event.

use std::collections::VecDeque;

/// Which lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Background,
    Urgent,
}

/// Both lanes; `K` names a collective.
#[derive(Debug)]
pub(super) struct Lanes<K> {
    urgent: VecDeque<Job<K>>,
    background: VecDeque<Job<K>>,
    /// When the head that moves began to do so, or went on.
    since: f64,
}

#[derive(Debug)]
struct Job<K> {
    key: K,
    remaining_s: f64,
}

impl<K> Lanes<K> {
    pub(super) fn new() -> Self {
        Self { urgent: VecDeque::new(), background: VecDeque::new(), since: 0.0 }
    }

    /// A collective that takes so long when nothing is in its way. None may be overdue.
    pub(super) fn start(&mut self, lane: Lane, key: K, seconds: f64, now: f64) {
        let job = Job { key, remaining_s: seconds };
        let was_idle = self.urgent.is_empty() && self.background.is_empty();
        match lane {
            Lane::Background => self.background.push_back(job),
            Lane::Urgent => {
                if self.urgent.is_empty() {
                    if let Some(head) = self.background.front_mut() {
                        head.remaining_s = (head.remaining_s - (now - self.since)).max(0.0);
                    }
                    self.since = now;
                }
                self.urgent.push_back(job);
            }
        }
        if was_idle {
            self.since = now;
        }
    }

    /// When the next collective ends, if none comes before it.
    pub(super) fn next_end(&self) -> Option<f64> {
        let head = self.urgent.front().or_else(|| self.background.front());
        head.map(|head| self.since + head.remaining_s)
    }

    /// Takes out the one that ends `now`, which [`Self::next_end`] said.
    pub(super) fn finish(&mut self, now: f64) -> Option<K> {
        let job = self.urgent.pop_front().or_else(|| self.background.pop_front());
        self.since = now;
        job.map(|job| job.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(lanes: &mut Lanes<char>) -> Vec<(char, f64)> {
        let end = || {
            let time = lanes.next_end()?;
            lanes.finish(time).map(|key| (key, time))
        };
        std::iter::from_fn(end).collect()
    }

    #[test]
    fn an_urgent_one_stops_the_background_which_then_goes_on() {
        let mut lanes = Lanes::new();
        lanes.start(Lane::Background, 'a', 5.0, 1.0);
        lanes.start(Lane::Background, 'b', 1.0, 2.0);
        lanes.start(Lane::Urgent, 'c', 3.0, 3.0);
        lanes.start(Lane::Urgent, 'd', 2.0, 4.0);
        assert_eq!(ends(&mut lanes), [('c', 6.0), ('d', 8.0), ('a', 11.0), ('b', 12.0)]);
        lanes.start(Lane::Background, 'e', 1.0, 20.0);
        assert_eq!(ends(&mut lanes), [('e', 21.0)]);
    }

    #[test]
    fn a_background_one_that_comes_later_starts_when_the_urgent_one_is_over() {
        let mut lanes = Lanes::new();
        lanes.start(Lane::Urgent, 'a', 2.0, 0.0);
        lanes.start(Lane::Background, 'b', 1.5, 1.0);
        assert_eq!(ends(&mut lanes), [('a', 2.0), ('b', 3.5)]);
    }
}

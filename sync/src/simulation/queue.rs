//! What happens when: a queue in order of virtual time.
//!
//! Owns the order: of equal times, what was put in first comes out first. Called by the driver.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Things with their times.
#[derive(Debug)]
pub(super) struct Queue<T> {
    heap: BinaryHeap<Reverse<Entry<T>>>,
    /// Things put in so far.
    count: u64,
}

#[derive(Debug)]
struct Entry<T> {
    time: f64,
    number: u64,
    value: T,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), count: 0 }
    }

    pub(super) fn push(&mut self, time: f64, value: T) {
        self.heap.push(Reverse(Entry { time, number: self.count, value }));
        self.count += 1;
    }

    /// The earliest time.
    pub(super) fn next_time(&self) -> Option<f64> {
        self.heap.peek().map(|Reverse(entry)| entry.time)
    }

    pub(super) fn pop(&mut self) -> Option<(f64, T)> {
        self.heap.pop().map(|Reverse(entry)| (entry.time, entry.value))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.time.total_cmp(&other.time).then(self.number.cmp(&other.number))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Entry<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_first_and_of_equals_the_first_put_in() {
        let mut queue = Queue::new();
        for (time, name) in [(2.0, 'a'), (1.0, 'b'), (2.0, 'c'), (0.5, 'd'), (1.0, 'e')] {
            queue.push(time, name);
        }
        assert_eq!(queue.next_time(), Some(0.5));
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, name)| name).collect();
        assert_eq!(order, "dbeac");
        assert_eq!(queue.next_time(), None);
    }
}

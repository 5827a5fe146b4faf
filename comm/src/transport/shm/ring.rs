//! The counts of a ring between one producer and one consumer.
//!
//! Owns who may touch which bytes, and touches none: [`super::stream`] copies. Producer and
//! consumer live in different processes and believe nothing: a count that makes no sense is an
//! error and never becomes an address.
//!
//! Positions count bytes since the start and never wrap. The bytes `head..tail` (modulo the
//! capacity) are the consumer's, the rest is the producer's. Each side owns its own count, keeps
//! it at home too, and publishes it with release; the other observes with acquire.

use super::bell::Word;
use std::ops::Range;

/// A ring's shared words.
pub(super) struct Words<'a, W> {
    /// Bytes ever written. Of the producer.
    pub(super) tail: &'a W,
    /// Not 0 while the producer has no room for what it has. Of the producer.
    pub(super) is_blocked: &'a W,
    /// Bytes ever read. Of the consumer.
    pub(super) head: &'a W,
}

/// The other side's count cannot be true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Corrupt;

/// The writing end's state.
#[derive(Debug)]
pub(super) struct Producer {
    capacity: u64,
    tail: u64,
    /// The consumer's, when last seen.
    head: u64,
    is_blocked: bool,
}

impl Producer {
    /// Of an empty ring; `capacity` is a power of two.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity: capacity as u64, tail: 0, head: 0, is_blocked: false }
    }

    /// Bytes from the start of the ring that may be written now, as one piece of at most `max`;
    /// empty if there is no room, which is then noted for the consumer.
    pub(super) fn room<W: Word>(
        &mut self,
        words: &Words<'_, W>,
        max: usize,
    ) -> Result<Range<usize>, Corrupt> {
        if self.free() < max as u64 {
            self.look(words)?;
        }
        let is_blocked = self.free() == 0 && max > 0;
        if is_blocked != self.is_blocked {
            self.is_blocked = is_blocked;
            words.is_blocked.publish(u64::from(is_blocked));
        }
        Ok(piece(self.tail, self.free().min(max as u64), self.capacity))
    }

    /// Hands `count` bytes, written where [`Producer::room`] said, to the consumer.
    pub(super) fn commit<W: Word>(&mut self, words: &Words<'_, W>, count: usize) {
        debug_assert!(count as u64 <= self.free(), "more than there was room for");
        self.tail += count as u64;
        words.tail.publish(self.tail);
    }

    /// Whether there may be room again, for one that waits for some.
    pub(super) fn has_news<W: Word>(&mut self, words: &Words<'_, W>) -> bool {
        let before = self.head;
        self.is_blocked && (self.look(words).is_err() || self.head != before)
    }

    fn free(&self) -> u64 {
        self.capacity - (self.tail - self.head)
    }

    fn look<W: Word>(&mut self, words: &Words<'_, W>) -> Result<(), Corrupt> {
        let head = words.head.observe();
        if !(self.head..=self.tail).contains(&head) {
            return Err(Corrupt);
        }
        self.head = head;
        Ok(())
    }
}

/// The reading end's state.
#[derive(Debug)]
pub(super) struct Consumer {
    capacity: u64,
    head: u64,
    /// The producer's, when last seen.
    tail: u64,
}

impl Consumer {
    /// Of an empty ring; `capacity` is a power of two.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity: capacity as u64, head: 0, tail: 0 }
    }

    /// Bytes from the start of the ring that may be read now, as one piece of at most `max`.
    pub(super) fn filled<W: Word>(
        &mut self,
        words: &Words<'_, W>,
        max: usize,
    ) -> Result<Range<usize>, Corrupt> {
        if self.tail - self.head < max as u64 {
            self.look(words)?;
        }
        Ok(piece(self.head, (self.tail - self.head).min(max as u64), self.capacity))
    }

    /// Gives `count` bytes, read where [`Consumer::filled`] said, back to the producer. Whether it
    /// may wait for them; ask after the fence.
    pub(super) fn release<W: Word>(&mut self, words: &Words<'_, W>, count: usize) {
        debug_assert!(count as u64 <= self.tail - self.head, "more than there was");
        self.head += count as u64;
        words.head.publish(self.head);
    }

    /// Whether something is there to read.
    pub(super) fn is_filled<W: Word>(&self, words: &Words<'_, W>) -> bool {
        self.tail != self.head || words.tail.observe() != self.head
    }

    /// Whether something came since this end last looked.
    pub(super) fn has_news<W: Word>(&mut self, words: &Words<'_, W>) -> bool {
        let before = self.tail;
        self.look(words).is_err() || self.tail != before
    }

    fn look<W: Word>(&mut self, words: &Words<'_, W>) -> Result<(), Corrupt> {
        let tail = words.tail.observe();
        let is_possible = tail >= self.tail && tail - self.head <= self.capacity;
        if !is_possible {
            return Err(Corrupt);
        }
        self.tail = tail;
        Ok(())
    }
}

/// The first `len` bytes from `position` that lie in one piece.
fn piece(position: u64, len: u64, capacity: u64) -> Range<usize> {
    let start = position & (capacity - 1);
    let end = (start + len).min(capacity);
    // Both are at most a capacity, which was a `usize`.
    start as usize..end as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Shared {
        tail: AtomicU64,
        is_blocked: AtomicU64,
        head: AtomicU64,
    }

    impl Shared {
        fn words(&self) -> Words<'_, AtomicU64> {
            Words { tail: &self.tail, is_blocked: &self.is_blocked, head: &self.head }
        }
    }

    #[test]
    fn bytes_pass_from_one_to_the_other_in_order() {
        let shared = Shared::default();
        let words = shared.words();
        let (mut producer, mut consumer) = (Producer::new(8), Consumer::new(8));
        let mut ring = [0_u8; 8];
        let (mut written, mut read) = (0_u8, 0_u8);
        for step in 0..1000_usize {
            let room = producer.room(&words, step % 5 + 1).unwrap();
            for at in room.clone() {
                ring[at] = written;
                written = written.wrapping_add(1);
            }
            producer.commit(&words, room.len());
            let filled = consumer.filled(&words, step % 4 + 1).unwrap();
            for at in filled.clone() {
                assert_eq!(ring[at], read);
                read = read.wrapping_add(1);
            }
            consumer.release(&words, filled.len());
        }
        assert!(shared.head.load(Ordering::Relaxed) > 1000);
    }

    #[test]
    fn a_full_ring_is_noted_until_there_is_room() {
        let shared = Shared::default();
        let words = shared.words();
        let (mut producer, mut consumer) = (Producer::new(4), Consumer::new(4));
        assert_eq!(producer.room(&words, 9), Ok(0..4));
        producer.commit(&words, 4);
        assert_eq!(shared.is_blocked.load(Ordering::Relaxed), 0);
        assert_eq!(producer.room(&words, 1), Ok(0..0));
        assert_eq!(shared.is_blocked.load(Ordering::Relaxed), 1);
        assert!(!producer.has_news(&words));
        assert!(consumer.is_filled(&words) && consumer.has_news(&words));
        assert!(consumer.is_filled(&words) && !consumer.has_news(&words));
        assert_eq!(consumer.filled(&words, 3), Ok(0..3));
        consumer.release(&words, 3);
        assert!(producer.has_news(&words));
        assert_eq!(producer.room(&words, 9), Ok(0..3));
        assert_eq!(shared.is_blocked.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn impossible_counts_are_errors() {
        for tail in [5, 9, u64::MAX] {
            let shared = Shared::default();
            shared.tail.store(tail, Ordering::Relaxed);
            assert_eq!(Consumer::new(4).filled(&shared.words(), 1), Err(Corrupt), "{tail}");
        }
        let shared = Shared::default();
        let mut producer = Producer::new(4);
        producer.commit(&shared.words(), 2);
        for head in [3, u64::MAX] {
            shared.head.store(head, Ordering::Relaxed);
            assert_eq!(producer.room(&shared.words(), 4), Err(Corrupt), "{head}");
        }
        shared.head.store(1, Ordering::Relaxed);
        assert_eq!(producer.room(&shared.words(), 4), Ok(2..4));
        shared.head.store(0, Ordering::Relaxed);
        assert_eq!(producer.room(&shared.words(), 4), Err(Corrupt), "went back");
    }
}

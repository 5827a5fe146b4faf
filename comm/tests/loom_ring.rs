//! Every interleaving of a small ring and its bells, by the model checker: `ci/loom.sh`.
//!
//! The sources under test are those of the library, compiled into this test because they are
//! private; the words they work on are the model checker's.
#![cfg(loom)]

#[expect(dead_code, reason = "the model has bells of its own")]
#[path = "../src/transport/shm/bell.rs"]
mod bell;
#[path = "../src/transport/shm/ring.rs"]
mod ring;

use bell::{Word, lower, must_ring, raise};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use ring::{Consumer, Producer, Words};

impl Word for AtomicU64 {
    fn observe(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn publish(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    fn take(&self) -> u64 {
        self.swap(0, Ordering::Relaxed)
    }

    fn set_bits(&self, bits: u64) {
        self.fetch_or(bits, Ordering::Release);
    }

    fn clear_bits(&self, bits: u64) -> u64 {
        self.fetch_and(!bits, Ordering::Relaxed)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

const CAPACITY: usize = 2;

/// An eventfd.
struct Bell {
    rings: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self { rings: Mutex::new(false), rung: Condvar::new() }
    }

    fn ring(&self) {
        *self.rings.lock().unwrap() = true;
        self.rung.notify_one();
    }

    /// The kernel's sleep. A bell that nobody rings is a deadlock, which the checker reports.
    fn sleep(&self) {
        let mut rings = self.rings.lock().unwrap();
        while !*rings {
            rings = self.rung.wait(rings).unwrap();
        }
        *rings = false;
    }
}

struct Shared {
    tail: AtomicU64,
    is_blocked: AtomicU64,
    head: AtomicU64,
    /// Read and written without order: a byte that is seen too early or too late is a wrong one.
    bytes: [AtomicU64; CAPACITY],
    /// Flag and bell of the producer, then of the consumer.
    sleeping: [AtomicU64; 2],
    bells: [Bell; 2],
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            tail: AtomicU64::new(0),
            is_blocked: AtomicU64::new(0),
            head: AtomicU64::new(0),
            bytes: std::array::from_fn(|_| AtomicU64::new(0)),
            sleeping: std::array::from_fn(|_| AtomicU64::new(0)),
            bells: [Bell::new(), Bell::new()],
        })
    }

    fn words(&self) -> Words<'_, AtomicU64> {
        Words { tail: &self.tail, is_blocked: &self.is_blocked, head: &self.head }
    }

    /// What an engine does when its poll moved nothing.
    fn sleep(&self, side: usize, has_news: impl FnOnce() -> bool) {
        raise(&self.sleeping[side]);
        if !has_news() {
            self.bells[side].sleep();
        }
        lower(&self.sleeping[side]);
    }
}

/// As `RingStream` does, with the bytes accessed as the checker wants to see them.
fn produce(shared: &Shared, count: u64) {
    let words = shared.words();
    let mut producer = Producer::new(CAPACITY);
    let mut next = 0;
    while next < count {
        let room = producer.room(&words, usize::try_from(count - next).unwrap()).unwrap();
        if room.is_empty() {
            shared.sleep(0, || producer.has_news(&words));
            continue;
        }
        for at in room.clone() {
            next += 1;
            shared.bytes[at].store(next, Ordering::Relaxed);
        }
        producer.commit(&words, room.len());
        if must_ring(&shared.sleeping[1]) {
            shared.bells[1].ring();
        }
    }
}

fn consume(shared: &Shared, count: u64) {
    let words = shared.words();
    let mut consumer = Consumer::new(CAPACITY);
    let mut next = 0;
    while next < count {
        let filled = consumer.filled(&words, CAPACITY).unwrap();
        if filled.is_empty() {
            shared.sleep(1, || consumer.has_news(&words));
            continue;
        }
        for at in filled.clone() {
            next += 1;
            assert_eq!(shared.bytes[at].load(Ordering::Relaxed), next);
        }
        consumer.release(&words, filled.len());
        if must_ring_blocked(shared) {
            shared.bells[0].ring();
        }
    }
}

fn must_ring_blocked(shared: &Shared) -> bool {
    <AtomicU64 as Word>::fence();
    shared.is_blocked.observe() != 0 && must_ring(&shared.sleeping[0])
}

fn check(count: u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Shared::new();
        let other = Arc::clone(&shared);
        let producer = thread::spawn(move || produce(&other, count));
        consume(&shared, count);
        producer.join().unwrap();
    });
}

#[test]
fn a_byte_arrives_and_the_consumer_wakes() {
    check(1);
}

#[test]
fn a_full_ring_wakes_the_producer() {
    check(3);
}

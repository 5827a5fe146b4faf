//! Every interleaving of members of a lane that sleep and wake each other, by the model checker:
//! `ci/loom.sh`. The source under test is the library's, compiled into this test because it is
//! private.
#![cfg(loom)]

#[expect(dead_code, reason = "the model has bells of its own")]
#[path = "../src/transport/shm/bell.rs"]
mod bell;
#[path = "../src/offload/node/wake.rs"]
mod wake;

use bell::Word;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use wake::{Counts, STAGES};

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

/// An eventfd.
struct Bell {
    rings: Mutex<bool>,
    rung: Condvar,
}

struct Lane {
    counts: Vec<AtomicU64>,
    untils: Vec<AtomicU64>,
    sleepers: AtomicU64,
    /// What a member hands to the others with its count.
    data: Vec<AtomicU64>,
    bells: Vec<Bell>,
    /// Words that no count of this model uses.
    unused: [AtomicU64; 2],
}

impl Counts for Lane {
    type Word = AtomicU64;

    fn size(&self) -> u32 {
        u32::try_from(self.counts.len()).unwrap()
    }

    fn sleepers(&self) -> &AtomicU64 {
        &self.sleepers
    }

    fn count(&self, member: u32, _stage: usize) -> &AtomicU64 {
        &self.counts[member as usize]
    }

    fn until(&self, member: u32, stage: usize) -> &AtomicU64 {
        if stage == 0 { &self.untils[member as usize] } else { &self.unused[stage - 1] }
    }
}

impl Lane {
    fn new(size: usize) -> Arc<Self> {
        let words = |value| (0..size).map(|_| AtomicU64::new(value)).collect();
        let bell = |_| Bell { rings: Mutex::new(false), rung: Condvar::new() };
        Arc::new(Self {
            counts: words(0),
            untils: words(u64::MAX),
            sleepers: AtomicU64::new(0),
            data: words(0),
            bells: (0..size).map(bell).collect(),
            unused: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
        })
    }

    fn ring(&self, member: u32) {
        let bell = &self.bells[member as usize];
        *bell.rings.lock().unwrap() = true;
        bell.rung.notify_one();
    }

    /// The kernel's sleep. A bell that nobody rings is a deadlock, which the checker reports.
    fn sleep(&self, member: u32) {
        let bell = &self.bells[member as usize];
        let mut rings = bell.rings.lock().unwrap();
        while !*rings {
            rings = bell.rung.wait(rings).unwrap();
        }
        *rings = false;
    }

    fn all_reached(&self, count: u64) -> bool {
        self.counts.iter().all(|word| word.observe() >= count)
    }

    /// A member's life: so many rounds in which all hand something to all.
    fn live(&self, me: u32, rounds: u64) {
        for round in 1..=rounds {
            self.data[me as usize].store(round, Ordering::Relaxed);
            wake::publish(self, me, 0, round, |member| self.ring(member));
            while !self.all_reached(round) {
                wake::prepare_sleep(self, me, [round, u64::MAX, u64::MAX]);
                if !self.all_reached(round) {
                    self.sleep(me);
                }
                wake::finish_sleep(self, me);
            }
            for data in &self.data {
                assert!(data.load(Ordering::Relaxed) >= round, "seen too early");
            }
        }
    }
}

fn check(size: u32, rounds: u64, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let lane = Lane::new(size as usize);
        let others: Vec<_> = (1..size)
            .map(|member| {
                let lane = Arc::clone(&lane);
                thread::spawn(move || lane.live(member, rounds))
            })
            .collect();
        lane.live(0, rounds);
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn two_members_wake_each_other() {
    check(2, 2, 3);
}

#[test]
fn the_last_of_three_wakes_the_others() {
    check(3, 1, 2);
}

const _: () = assert!(STAGES == 3);

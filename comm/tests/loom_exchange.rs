//! Every interleaving of two members that swap their exchange buffers, by the model checker:
//! `ci/loom.sh`. The rule under test is written out again here: that of `offload/node/lane.rs`,
//! with what `offload/node/wake.rs` does to publish a count.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const CHUNKS: u64 = 3;

struct Pair {
    copied: [AtomicU64; 2],
    /// What lies in each buffer. Relaxed, so that whatever nothing orders is seen in any order.
    buffers: [AtomicU64; 2],
}

/// What member `from` sends in a chunk.
fn data(from: u64, chunk: u64) -> u64 {
    100 * from + chunk + 1
}

fn buffer(from: u64, chunk: u64) -> usize {
    usize::from((from + chunk) % 2 == 1)
}

fn member(pair: &Pair, me: u64, other: u64) {
    let put = |chunk: u64| {
        pair.buffers[buffer(me, chunk)].store(data(me, chunk), Ordering::Relaxed);
        pair.copied[me as usize].store(chunk + 1, Ordering::Release);
    };
    put(0);
    for chunk in 0..CHUNKS {
        while pair.copied[other as usize].load(Ordering::Acquire) <= chunk {
            thread::yield_now();
        }
        let taken = pair.buffers[buffer(other, chunk)].load(Ordering::Relaxed);
        assert_eq!(taken, data(other, chunk));
        if chunk + 1 < CHUNKS {
            assert_eq!(buffer(me, chunk + 1), buffer(other, chunk));
            put(chunk + 1);
        }
    }
}

#[test]
fn two_members_swap_buffers_and_never_meet_in_one() {
    loom::model(|| {
        let zeros = || [AtomicU64::new(0), AtomicU64::new(0)];
        let pair = Arc::new(Pair { copied: zeros(), buffers: zeros() });
        let theirs = Arc::clone(&pair);
        let other = thread::spawn(move || member(&theirs, 1, 0));
        member(&pair, 0, 1);
        other.join().unwrap();
    });
}

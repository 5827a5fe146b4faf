//! How a sleeping rank is woken: an eventfd that its engine polls, and a flag that says whether
//! anybody need bother.
//!
//! The protocol, for any condition that peers make true by a store to shared memory:
//!
//! - the sleeper sets its flag, fences, looks whether the condition holds already, and only then
//!   sleeps;
//! - whoever makes the condition true stores, fences, and rings if the flag is set.
//!
//! Both fences are sequentially consistent, so at least one of the two sees the other's store.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A new bell, not ringing.
pub(super) fn create() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Rings; a bell that rings already goes on.
pub(crate) fn ring(bell: impl AsFd) {
    // The only failure is a counter at its limit, which rings all the same.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Stops the ringing.
pub(crate) fn silence(bell: impl AsFd) {
    let _ = rustix::io::read(bell, &mut [0_u8; 8]);
}

/// A word in shared memory, as far as the protocols between ranks use one: the model checker has
/// its own.
pub(crate) trait Word {
    /// Everything written before the [`Word::publish`] whose value this returns is visible.
    fn observe(&self) -> u64;
    /// Makes everything written so far visible to whoever observes `value`.
    fn publish(&self, value: u64);
    /// Sets the word to 0 and returns what it was, without ordering anything.
    fn take(&self) -> u64;
    /// Sets bits; what was written before is visible to whoever observes them.
    fn set_bits(&self, bits: u64);
    /// Clears bits and returns what the word was.
    fn clear_bits(&self, bits: u64) -> u64;
    /// Orders everything before against everything after, among all threads that do so.
    fn fence();
}

impl Word for AtomicU64 {
    #[inline]
    fn observe(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn publish(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn take(&self) -> u64 {
        self.swap(0, Ordering::Relaxed)
    }

    fn set_bits(&self, bits: u64) {
        self.fetch_or(bits, Ordering::Release);
    }

    fn clear_bits(&self, bits: u64) -> u64 {
        self.fetch_and(!bits, Ordering::Relaxed)
    }

    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// First half of falling asleep: raises the flag. Look at the conditions after it.
pub(super) fn raise<W: Word>(flag: &W) {
    flag.publish(1);
    W::fence();
}

/// After making true what a sleeper may wait for: whether to ring. One caller gets a yes.
#[inline]
pub(super) fn must_ring<W: Word>(flag: &W) -> bool {
    W::fence();
    flag.observe() != 0 && flag.take() != 0
}

/// Awake again.
pub(super) fn lower<W: Word>(flag: &W) {
    flag.take();
}

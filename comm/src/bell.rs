//! A bell: wakes an engine that sleeps in the kernel.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A new bell, not ringing.
pub(crate) fn new() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Rings; a bell that rings already goes on.
pub(crate) fn ring(bell: &impl AsFd) {
    // The only failure is a counter at its limit, which rings all the same.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Stops the ringing.
pub(crate) fn silence(bell: &impl AsFd) {
    let _ = rustix::io::read(bell, &mut [0_u8; 8]);
}

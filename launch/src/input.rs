//! Feeds the launcher's terminal to rank 0.
//!
//! Owns the copy between the two. Ranks lead process groups of their own, and a terminal stops
//! (SIGTTIN) whoever reads it from outside the foreground group; so rank 0 gets a pipe, and the
//! launcher, which is in the foreground, reads for it. Never blocks. Called by the supervisor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ChildStdin;

use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

/// Copies from a terminal to a pipe, a piece at a time.
#[derive(Debug)]
pub(crate) struct InputPump {
    terminal: OwnedFd,
    /// None at the end: the terminal sent end-of-file, or rank 0 closed its side.
    target: Option<ChildStdin>,
    /// Read and not yet written.
    pending: Vec<u8>,
}

impl InputPump {
    /// Copies from this process's standard input to `target`.
    ///
    /// # Errors
    /// The descriptors cannot be set up.
    pub(crate) fn new(target: ChildStdin) -> io::Result<Self> {
        let terminal = io::stdin().as_fd().try_clone_to_owned()?;
        fcntl_setfl(&target, fcntl_getfl(&target)? | OFlags::NONBLOCK)?;
        Ok(Self { terminal, target: Some(target), pending: Vec::new() })
    }

    /// What to poll for, if anything. None does not mean the end: a launcher in the background
    /// has to ask again, since nothing tells it when it comes to the foreground.
    pub(crate) fn poll_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let target = self.target.as_ref()?;
        if !self.pending.is_empty() {
            return Some((target.as_fd(), PollFlags::OUT));
        }
        // A terminal that is not ours to control answers ENOTTY, and stops nobody either.
        let in_foreground = tcgetpgrp(&self.terminal).map_or(true, |group| group == getpgrp());
        in_foreground.then(|| (self.terminal.as_fd(), PollFlags::IN))
    }

    /// Moves one piece. Call when the poll said that what [`Self::poll_for`] named is ready.
    pub(crate) fn pump(&mut self) {
        let Some(target) = &self.target else { return };
        if self.pending.is_empty() {
            let mut buffer = [0u8; 4096];
            match rustix::io::read(&self.terminal, &mut buffer) {
                Ok(0) => self.target = None,
                Ok(count) => self.pending.extend_from_slice(&buffer[..count]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => self.target = None,
            }
            return;
        }
        match rustix::io::write(target, &self.pending) {
            Ok(count) => drop(self.pending.drain(..count)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.target = None,
        }
    }

    /// Whether there is nothing left to copy.
    pub(crate) fn is_finished(&self) -> bool {
        self.target.is_none()
    }
}

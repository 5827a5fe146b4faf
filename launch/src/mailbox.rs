//! A channel whose receiver can be polled together with file descriptors.
//!
//! Owns a queue and an eventfd that rings when something is in it. Never blocks. Called by the
//! supervisor, the output thread and [`crate::RunningJob`], which talk to each other with it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};

use rustix::event::{EventfdFlags, eventfd};

/// Makes a connected pair.
///
/// # Errors
/// What `eventfd` returns, usually that the process has no descriptor left.
pub(crate) fn mailbox<T>() -> io::Result<(Mail<T>, Inbox<T>)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (queue, inbox) = mpsc::channel();
    Ok((Mail { queue, bell: Arc::clone(&bell) }, Inbox { queue: inbox, bell }))
}

/// The sending end. Dropping it rings too, so that the receiver sees that nobody is left.
#[derive(Debug)]
pub(crate) struct Mail<T> {
    queue: mpsc::Sender<T>,
    bell: Arc<OwnedFd>,
}

impl<T> Mail<T> {
    /// Puts `letter` in and rings. A receiver that is gone is no error: it needs no letters.
    pub(crate) fn send(&self, letter: T) {
        let _ = self.queue.send(letter);
        self.ring();
    }

    fn ring(&self) {
        // A full counter (EAGAIN) means that the bell rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

impl<T> Clone for Mail<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<T> Drop for Mail<T> {
    fn drop(&mut self) {
        self.ring();
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    queue: mpsc::Receiver<T>,
    bell: Arc<OwnedFd>,
}

impl<T> Inbox<T> {
    /// The next letter, `Err` when every sender is gone, `Ok(None)` when there is none now.
    pub(crate) fn take(&self) -> Result<Option<T>, mpsc::TryRecvError> {
        match self.queue.try_recv() {
            Ok(letter) => Ok(Some(letter)),
            Err(mpsc::TryRecvError::Empty) => Ok(None),
            Err(gone) => Err(gone),
        }
    }

    /// Silences the bell. Call before taking letters, never after, or a ring is lost.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }
}

impl<T> AsFd for Inbox<T> {
    /// Readable when the bell rings.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

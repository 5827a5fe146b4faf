//! The one place of this crate that reads the clock.
//!
//! Called by the session and the server's thread only: models and shards get durations with their
//! events.

use std::time::{Duration, Instant};

/// A moment of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(Instant);

impl Moment {
    /// This one.
    #[expect(clippy::disallowed_methods, reason = "this is the one clock of the crate")]
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// Time since then.
    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Lets other threads run for about this long.
pub(crate) fn pause(duration: Duration) {
    std::thread::park_timeout(duration);
}

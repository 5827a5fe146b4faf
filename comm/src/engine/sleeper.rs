//! Where the engine sleeps: readiness of sockets, the bell, a timer finer than a millisecond.

use crate::bell;
use crate::time::now;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use syncline_proto::time::Instant;

const BELL: Token = Token(0);
const TIMER: Token = Token(1);
/// The kernel sleeps whole milliseconds; shorter ones use the timer.
const TIMER_BELOW: Duration = Duration::from_millis(20);

/// The engine's place to sleep.
#[derive(Debug)]
pub(super) struct Sleeper {
    poll: Poll,
    events: Events,
    bell: Arc<OwnedFd>,
    timer: OwnedFd,
}

impl Sleeper {
    pub(super) fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let bell = Arc::new(bell::new()?);
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let registry = poll.registry();
        registry.register(&mut SourceFd(&bell.as_raw_fd()), BELL, Interest::READABLE)?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        Ok(Self { poll, events: Events::with_capacity(256), bell, timer })
    }

    pub(super) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    pub(super) fn bell(&self) -> &Arc<OwnedFd> {
        &self.bell
    }

    /// Sleeps until something is ready or `until`; tells `ready` what. `until` in the past only
    /// looks.
    pub(super) fn sleep(&mut self, until: Instant, mut ready: impl FnMut(Token, bool, bool)) {
        let wait = until.since(now());
        let is_short = !wait.is_zero() && wait < TIMER_BELOW;
        if is_short {
            self.set_timer(wait);
        }
        let limit = if is_short { TIMER_BELOW } else { wait };
        // An interrupted sleep is a short one; any other failure leaves nothing ready, and the
        // engine's deadlines still hold.
        if self.poll.poll(&mut self.events, Some(limit)).is_err() {
            return;
        }
        for event in &self.events {
            match event.token() {
                BELL => bell::silence(&*self.bell),
                TIMER => bell::silence(&self.timer),
                token => {
                    let end = event.is_read_closed() || event.is_error();
                    ready(token, event.is_readable() || end, event.is_writable() || end);
                }
            }
        }
    }

    fn set_timer(&self, wait: Duration) {
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            },
        };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

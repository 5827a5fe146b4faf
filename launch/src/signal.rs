//! Turns the signals sent to the launcher into something a poll loop can see.
//!
//! Owns the process's handlers for SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP and
//! SIGCONT. Never decides what they mean. Made once by `cli`; the supervisor polls it while a
//! job runs, and a program with several jobs asks [`SignalWatch::interruption`] between them.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use signal_hook::consts;

/// Signals that end a job, most urgent last.
const ENDING: [Signal; 3] = [Signal::HUP, Signal::INT, Signal::TERM];

/// Watches the launcher's signals from [`SignalWatch::install`] on. Cheap to clone; all clones
/// see the same signals, and a signal taken through one is gone for the others, so only one
/// job at a time should run with it.
#[derive(Debug, Clone)]
pub struct SignalWatch {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    arrived: Vec<(Signal, Arc<AtomicBool>)>,
    /// One byte in it for each signal; says *that*, `arrived` says *which*.
    bell: UnixStream,
}

impl SignalWatch {
    /// Takes over the signals for the rest of the process's life: there is no way back to the
    /// default behaviour, so a program that installs this has to act on
    /// [`Self::interruption`]. A SIGHUP or SIGINT that was ignored (`nohup`, a shell's
    /// background job) stays ignored, for the ranks too.
    ///
    /// # Errors
    /// A handler or the socket pair between handler and poll loop cannot be made.
    pub fn install() -> io::Result<Self> {
        let (bell, ring) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let ignored = ignored_signals();
        let mut arrived = Vec::new();
        let passed_on = [Signal::USR1, Signal::USR2, Signal::TSTP, Signal::CONT];
        for signal in ENDING.into_iter().chain(passed_on) {
            let number = signal.as_raw();
            if matches!(number, consts::SIGHUP | consts::SIGINT) && ignored & bit(number) != 0 {
                continue;
            }
            let flag = Arc::new(AtomicBool::new(false));
            // In this order: the flag is set when the bell rings.
            signal_hook::flag::register(number, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(number, ring.try_clone()?)?;
            arrived.push((signal, flag));
        }
        // A parent that ignores SIGCHLD hands that down, and then the kernel forgets how the
        // ranks ended. Any handler undoes it; what this one sets is never read.
        signal_hook::flag::register(consts::SIGCHLD, Arc::new(AtomicBool::new(false)))?;
        Ok(Self { shared: Arc::new(Shared { arrived, bell }) })
    }

    /// A signal to end (SIGHUP, SIGINT or SIGTERM) that arrived and was not taken, by number.
    /// Leaves it in place: a job started now sees it and ends at once.
    pub fn interruption(&self) -> Option<i32> {
        let arrived = |signal: &Signal| {
            self.shared.arrived.iter().any(|(s, flag)| s == signal && flag.load(Ordering::SeqCst))
        };
        ENDING.iter().rev().find(|signal| arrived(signal)).map(|signal| signal.as_raw())
    }

    /// Takes all signals that arrived since the last call.
    pub(crate) fn take(&self) -> Vec<Signal> {
        // Empty the bell first: a signal in between rings again, none is lost.
        let mut bytes = [0u8; 64];
        while matches!((&self.shared.bell).read(&mut bytes), Ok(1..)) {}
        let taken =
            self.shared.arrived.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        taken.map(|(signal, _)| *signal).collect()
    }
}

impl AsFd for SignalWatch {
    /// Readable when a signal arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

/// Whether a signal ends a job, as opposed to being passed on.
pub(crate) fn ends_job(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// The mask of signals this process ignores. Without /proc: none, which costs only the
/// courtesy to `nohup`.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

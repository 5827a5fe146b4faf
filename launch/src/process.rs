//! One rank's process and the process group it leads.
//!
//! Owns the child until it is reaped and its group until it is empty. Never signals anything
//! but those two. Called by the supervisor only.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, test_kill_process_group,
};

use crate::outcome::{RankExit, RankStatus};

/// How long a group that was sent SIGKILL may take to vanish before it is given up.
const VANISH: Duration = Duration::from_secs(1);

/// A started rank.
#[derive(Debug)]
pub(crate) struct RankProcess {
    pub(crate) rank: u32,
    pid: Pid,
    child: Child,
    /// None where the kernel has no pidfd (before 5.3): then the supervisor looks regularly.
    pidfd: Option<OwnedFd>,
    exit: Option<RankExit>,
    group: Group,
}

/// What is left of a rank's process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Gone,
    /// The rank itself lives.
    Led,
    /// The rank has ended and left processes behind, to be killed at `kill_at`. The kernel does
    /// not give the group's number away as long as one of them lives, so it is looked whether
    /// one does right before every signal.
    Strays {
        kill_at: Instant,
    },
}

impl RankProcess {
    pub(crate) fn new(rank: u32, child: Child) -> Self {
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        Self { rank, pid, child, pidfd, exit: None, group: Group::Led }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal` to every process of the rank that is left.
    pub(crate) fn signal(&self, signal: Signal) {
        match self.group {
            Group::Gone => {}
            // The child is not reaped, so its number is still its own. Should it have left the
            // group that it was started in, it is reached alone.
            Group::Led if kill_process_group(self.pid, signal).is_err() => {
                let _ = kill_process(self.pid, signal);
            }
            Group::Led => {}
            Group::Strays { .. } => {
                if group_lives(self.pid) {
                    let _ = kill_process_group(self.pid, signal);
                }
            }
        }
    }

    /// Sends `signal` to the rank's own process only, if it lives.
    pub(crate) fn signal_leader(&self, signal: Signal) {
        if self.group == Group::Led {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Looks whether the rank has ended, and returns its exit the one time it is found. Whatever
    /// it leaves in its group is told to end now, and killed at `now + grace`.
    pub(crate) fn reap(
        &mut self,
        now: Instant,
        started: Instant,
        grace: Duration,
    ) -> Option<RankExit> {
        if self.group != Group::Led {
            return None;
        }
        let status = match self.child.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => rank_status(status),
            Err(_) => RankStatus::Lost,
        };
        self.pidfd = None;
        self.group = Group::Strays { kill_at: now + grace };
        if group_lives(self.pid) {
            self.signal(Signal::TERM);
            self.signal(Signal::CONT);
        } else {
            self.group = Group::Gone;
        }
        Some(self.record_exit(status, now, started))
    }

    /// Looks after what the rank left behind. `kill_by` is the job's own deadline, if it ends.
    pub(crate) fn tend_strays(&mut self, now: Instant, kill_by: Option<Instant>) {
        let Group::Strays { kill_at } = self.group else { return };
        let kill_at = kill_by.map_or(kill_at, |by| kill_at.min(by));
        self.group = Group::Strays { kill_at };
        if !group_lives(self.pid) || now >= kill_at + VANISH {
            self.group = Group::Gone;
        } else if now >= kill_at {
            self.signal(Signal::KILL);
        }
    }

    /// Stops waiting for a rank that even SIGKILL did not end. Its exit is returned if it had
    /// none.
    pub(crate) fn give_up(&mut self, now: Instant, started: Instant) -> Option<RankExit> {
        let was_led = self.group == Group::Led;
        self.group = Group::Gone;
        was_led.then(|| self.record_exit(RankStatus::Lost, now, started))
    }

    fn record_exit(&mut self, status: RankStatus, now: Instant, started: Instant) -> RankExit {
        let after = now.saturating_duration_since(started);
        let exit = RankExit { rank: self.rank, pid: self.child.id(), status, after };
        self.exit = Some(exit);
        exit
    }

    /// Whether the rank's own process has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.group == Group::Led
    }

    /// Whether nothing of the rank is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.group == Group::Gone
    }

    /// Whether the rank has to be looked at regularly, because nothing will wake a poll.
    pub(crate) fn needs_looking(&self) -> bool {
        match self.group {
            Group::Gone => false,
            Group::Led => self.pidfd.is_none(),
            Group::Strays { .. } => true,
        }
    }

    /// Becomes readable when the rank's process ends.
    pub(crate) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn exit(&self) -> Option<RankExit> {
        self.exit
    }
}

fn rank_status(status: ExitStatus) -> RankStatus {
    match (status.code(), status.signal()) {
        (Some(code), _) => RankStatus::Code(code),
        (None, Some(signal)) => RankStatus::Signal { signal, core_dumped: status.core_dumped() },
        (None, None) => RankStatus::Lost,
    }
}

/// Whether a process that runs is in the group. Dead ones that nobody reaped (orphans in a
/// container without an init that reaps) do not count, or every job would wait for them.
fn group_lives(group: Pid) -> bool {
    if test_kill_process_group(group).is_err() {
        return false; // none left, or none that we may signal
    }
    let Ok(entries) = fs::read_dir("/proc") else { return true };
    let is_pid = |name: &str| name.bytes().all(|b| b.is_ascii_digit());
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(is_pid))
        .filter_map(|entry| fs::read(entry.path().join("stat")).ok())
        .any(|stat| runs_in_group(&stat, group.as_raw_nonzero().get()))
}

/// Reads one `/proc/PID/stat`: `pid (name) state ppid group …`, where the name may hold anything.
fn runs_in_group(stat: &[u8], group: i32) -> bool {
    let Some(name_end) = stat.iter().rposition(|b| *b == b')') else { return false };
    let rest = String::from_utf8_lossy(&stat[name_end + 1..]);
    let mut fields = rest.split_ascii_whitespace();
    let is_dead = matches!(fields.next(), None | Some("Z" | "X"));
    !is_dead && fields.nth(1).and_then(|field| field.parse().ok()) == Some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_with_awkward_names_are_read() {
        assert!(runs_in_group(b"12 (a) b) (c) S 1 77 77 0 -1", 77));
        assert!(!runs_in_group(b"12 (sh) Z 1 77 77 0 -1", 77));
        assert!(!runs_in_group(b"12 (sh) S 77 1 77 0 -1", 77));
        assert!(!runs_in_group(b"", 77));
        assert!(!runs_in_group(b"12 (sh)", 77));
    }

    #[test]
    fn the_own_group_lives() {
        assert!(group_lives(rustix::process::getpgrp()));
    }
}

//! How ranks and jobs end: statuses, exit codes and the line that tells a person.
//!
//! Owns data only; it never waits for or signals anything. Made by the supervisor, read by every
//! caller of [`crate::RunningJob::wait`].

use std::fmt;
use std::time::Duration;

use signal_hook::consts::SIGKILL;

/// How one rank's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankStatus {
    /// It exited with this code.
    Code(i32),
    /// Nobody knows: it outlived SIGKILL (stuck in the kernel), or something else in this
    /// process waited for it.
    Lost,
    /// It died by a signal.
    Signal {
        /// The signal's number.
        signal: i32,
        /// Whether the kernel wrote a core file.
        core_dumped: bool,
    },
}

impl RankStatus {
    /// Whether the rank did what it was started for: exit code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// The code a shell would show: its own, or 128 + signal; 1 when it is not known.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Lost => 1,
            Self::Signal { signal, .. } => 128 + signal,
        }
    }
}

impl fmt::Display for RankStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Lost => write!(f, "unknown status"),
            Self::Signal { signal, core_dumped } => {
                write!(f, "{} (signal {signal}", signal_name(signal))?;
                f.write_str(if core_dumped { ", core dumped)" } else { ")" })
            }
        }
    }
}

/// The end of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankExit {
    /// Which rank.
    pub rank: u32,
    /// Its process id, which may belong to another process by now.
    pub pid: u32,
    /// How it ended.
    pub status: RankStatus,
    /// How long after the start of the job.
    pub after: Duration,
}

/// Why a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEnd {
    /// A rank failed; this is the first in time. Of several found ended at the same moment a
    /// death by signal counts as the earlier, then the lower rank: crashes cause exits.
    Failed(RankExit),
    /// Every rank exited with code 0.
    Finished,
    /// The launcher was told to end by this signal.
    Interrupted {
        /// SIGHUP, SIGINT or SIGTERM.
        signal: i32,
    },
    /// The program that started the job ended it.
    Stopped,
    /// The job's time limit passed.
    TimedOut,
}

/// Everything there is to say about a job that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Why it ended.
    pub end: JobEnd,
    /// Every rank that was started, by rank.
    pub ranks: Vec<RankExit>,
    /// From the start of the first rank to the end of the last.
    pub elapsed: Duration,
    /// Ranks that had to be killed because they did not end in their grace period.
    pub killed_count: u32,
    /// Whether all output of the ranks was delivered. False when a reader was stuck at the end.
    pub output_complete: bool,
}

impl Outcome {
    /// Whether every rank exited with code 0 and nobody interfered.
    pub fn is_success(&self) -> bool {
        self.end == JobEnd::Finished
    }

    /// The code the launcher exits with; `cli` documents the table.
    pub fn exit_code(&self) -> i32 {
        match self.end {
            JobEnd::Failed(first) => first.status.exit_code(),
            JobEnd::Finished => 0,
            JobEnd::Interrupted { signal } => 128 + signal,
            JobEnd::Stopped => 1,
            JobEnd::TimedOut => 124,
        }
    }
}

impl fmt::Display for Outcome {
    /// One line, without a line end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        let rank_count = self.ranks.len();
        match self.end {
            JobEnd::Failed(first) => {
                let after = first.after.as_secs_f64();
                let (rank, status) = (first.rank, first.status);
                write!(
                    f,
                    "rank {rank} of {rank_count} failed first, after {after:.2} s: {status}"
                )?;
                if matches!(status, RankStatus::Signal { signal: SIGKILL, .. }) {
                    // The launcher kills only after a first failure, so this one was not ours.
                    f.write_str(", not sent by the launcher; perhaps memory ran out")?;
                }
            }
            JobEnd::Finished => write!(f, "all {rank_count} ranks ended well in {seconds:.2} s")?,
            JobEnd::Interrupted { signal } => {
                let name = signal_name(signal);
                write!(f, "{name} after {seconds:.2} s ended all {rank_count} ranks")?;
            }
            JobEnd::Stopped => write!(f, "stopped after {seconds:.2} s")?,
            JobEnd::TimedOut => write!(f, "out of time after {seconds:.2} s")?,
        }
        match self.killed_count {
            0 => {}
            1 => write!(f, "; 1 rank did not end when told to and was killed")?,
            count => write!(f, "; {count} ranks did not end when told to and were killed")?,
        }
        for lost in self.ranks.iter().filter(|exit| exit.status == RankStatus::Lost) {
            write!(f, "; the end of rank {} (pid {}) was not seen", lost.rank, lost.pid)?;
        }
        Ok(())
    }
}

/// The usual name of a signal, `SIG?` when it has none.
pub(crate) fn signal_name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("SIG?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(rank: u32, status: RankStatus) -> RankExit {
        RankExit { rank, pid: 7, status, after: Duration::from_millis(1500) }
    }

    fn outcome(end: JobEnd, killed_count: u32) -> Outcome {
        let ranks = vec![exit(0, RankStatus::Code(0)), exit(1, RankStatus::Code(3))];
        let elapsed = Duration::from_millis(2000);
        Outcome { end, ranks, elapsed, killed_count, output_complete: true }
    }

    #[test]
    fn exit_codes_follow_the_table() {
        let segv = RankStatus::Signal { signal: 11, core_dumped: false };
        assert_eq!(outcome(JobEnd::Finished, 0).exit_code(), 0);
        assert_eq!(outcome(JobEnd::Failed(exit(1, RankStatus::Code(3))), 0).exit_code(), 3);
        assert_eq!(outcome(JobEnd::Failed(exit(1, segv)), 0).exit_code(), 139);
        assert_eq!(outcome(JobEnd::Interrupted { signal: 2 }, 0).exit_code(), 130);
        assert_eq!(outcome(JobEnd::Interrupted { signal: 15 }, 0).exit_code(), 143);
        assert_eq!(outcome(JobEnd::TimedOut, 0).exit_code(), 124);
        assert_eq!(outcome(JobEnd::Stopped, 0).exit_code(), 1);
    }

    #[test]
    fn the_line_names_rank_cause_and_time() {
        let line = outcome(JobEnd::Failed(exit(1, RankStatus::Code(3))), 1).to_string();
        assert_eq!(
            line,
            "rank 1 of 2 failed first, after 1.50 s: exit code 3; \
             1 rank did not end when told to and was killed"
        );
        let segv = RankStatus::Signal { signal: 11, core_dumped: true };
        let line = outcome(JobEnd::Failed(exit(0, segv)), 0).to_string();
        assert!(line.ends_with("SIGSEGV (signal 11, core dumped)"), "{line}");
    }
}

//! `syncline run`: starts ranks of any program on this host, with mpirun's and torchrun's habits.
//!
//! Owns the arguments and the last line on stderr. Never starts or watches a process itself: that
//! is [`crate::Job`]. Called by [`crate::cli`].

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cli::{EXIT_FAILED, EXIT_USAGE};
use crate::command::start::StartArgs;
use crate::hostfile::{parse_host_list, read_hostfile};
use crate::job::log_path;
use crate::placement::{Request, place, require_local};
use crate::{Job, JobEnd, Outcome, Output, RANKS_MAX, SignalWatch, Stdin, Stream};

pub(crate) const EXAMPLES: &str = "\
Every rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
SYNCLINE_JOB_SECRET in its environment. Rank 0 reads the standard input, the others nothing.

When a rank fails, the others get SIGTERM and, after --grace-ms, SIGKILL. Ctrl-C and SIGTERM are
passed on and end everything within 2 s; a second one kills at once. What a rank leaves behind in
its process group ends with it. Ranks die with the launcher, even when it is killed.

Examples:
    syncline run -n 4 -- ./trainer --epochs 3
    syncline run -n 2 --tag-output -- python3 train.py
    syncline run -n 8 --log-dir logs --timeout 600 -x OMP_NUM_THREADS=1 -- ./trainer
    syncline run -H localhost:4 -- hostname        one rank for each slot";

/// What can be typed after `syncline run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Number of ranks [default: one for each slot of the hosts]
    #[arg(short = 'n', long = "np", alias = "ranks", value_name = "N", value_parser = rank_count())]
    rank_count: Option<u32>,
    /// Ranks on each host, in place of its slots
    #[arg(long, alias = "nproc_per_node", value_name = "N", value_parser = rank_count())]
    nproc_per_node: Option<u32>,
    /// File of hosts, one a line: `host slots=N` or `host:N`, `#` starts a comment
    #[arg(long, alias = "machinefile", value_name = "FILE", conflicts_with = "hosts")]
    hostfile: Option<PathBuf>,
    /// Hosts with their slots, 1 unless given; only this host for now
    #[arg(short = 'H', long = "host", alias = "hosts", value_name = "HOST[:SLOTS],...")]
    hosts: Option<String>,
    /// Let hosts take more ranks than they have slots
    #[arg(long)]
    oversubscribe: bool,
    /// Set a variable for the ranks, or pass on this one's value; repeatable
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]")]
    variables: Vec<OsString>,
    /// Start each line of output with `[rank]`
    #[arg(long)]
    tag_output: bool,
    /// Give the ranks the launcher's own output: a terminal stays one, lines may mix
    #[arg(long, conflicts_with_all = ["tag_output", "log_dir"])]
    raw_output: bool,
    /// Also write each rank's output to DIR/rank-K.out and DIR/rank-K.err
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// End the job after this many seconds, with exit code 124
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Milliseconds between SIGTERM and SIGKILL
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    grace_ms: u64,
    /// Milliseconds between Ctrl-C (or SIGTERM) and SIGKILL [default: 1200, at most the grace]
    #[arg(long, value_name = "MS")]
    interrupt_grace_ms: Option<u64>,
    #[command(flatten)]
    start: StartArgs,
    /// Program and its arguments; `--` before it is optional
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs a job and returns the exit code. Errors are said on stderr, in one line.
pub fn run(args: RunArgs) -> i32 {
    let log_dir = args.log_dir.clone();
    let job = match job(args) {
        Ok(job) => job,
        Err(problem) => return fail(&problem, EXIT_USAGE),
    };
    let signals = match SignalWatch::install() {
        Ok(signals) => signals,
        Err(error) => return fail(&format!("cannot watch signals: {error}"), EXIT_FAILED),
    };
    let running = match job.signals(&signals).start() {
        Ok(running) => running,
        Err(error) => return fail(&error.to_string(), error.exit_code()),
    };
    let outcome = running.wait();
    if !outcome.is_success() {
        say(&format!("{outcome}{}", log_hint(&outcome, log_dir.as_deref())));
    }
    outcome.exit_code()
}

/// Turns arguments into a job, or says what is wrong with them.
fn job(args: RunArgs) -> Result<Job, String> {
    let hosts = match (&args.hostfile, &args.hosts) {
        (Some(path), _) => read_hostfile(path).map_err(|error| error.to_string())?,
        (None, Some(list)) => parse_host_list(list).map_err(|error| error.to_string())?,
        (None, None) => Vec::new(),
    };
    let request = Request {
        rank_count: args.rank_count,
        ranks_per_host: args.nproc_per_node,
        oversubscribe: args.oversubscribe,
    };
    let places = place(request, &hosts).map_err(|error| error.to_string())?;
    require_local(&places, &hosts).map_err(|error| error.to_string())?;
    // More ranks than a u32 holds are refused by the job, as any number that is too large.
    let world_size = u32::try_from(places.len()).unwrap_or(u32::MAX);
    let mut program = args.program.into_iter();
    let mut job = Job::new(program.next().unwrap_or_default(), world_size)
        .args(program)
        .stdin(Stdin::FirstRank)
        .output(match args.raw_output {
            true => Output::Inherit,
            false => Output::Forward { tag: args.tag_output },
        })
        .grace(Duration::from_millis(args.grace_ms));
    job = args.start.apply(job);
    if let Some(grace_ms) = args.interrupt_grace_ms {
        job = job.interrupt_grace(Duration::from_millis(grace_ms));
    }
    if let Some(timeout) = args.timeout {
        job = job.timeout(timeout);
    }
    if let Some(dir) = args.log_dir {
        job = job.log_dir(dir);
    }
    for variable in &args.variables {
        let (name, value) = name_and_value(variable)?;
        job = job.env(name, value);
    }
    Ok(job)
}

/// Splits `NAME=VALUE`; `NAME` alone stands for the value it has here.
fn name_and_value(variable: &OsStr) -> Result<(OsString, OsString), String> {
    let bytes = variable.as_bytes();
    if let Some(end) = bytes.iter().position(|b| *b == b'=') {
        let (name, value) = (&bytes[..end], &bytes[end + 1..]);
        return Ok((OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(value).to_owned()));
    }
    let unset = || format!("--env {}: it is not set here; give NAME=VALUE", variable.display());
    Ok((variable.to_owned(), env::var_os(variable).ok_or_else(unset)?))
}

/// Where to read on: the log of the rank that failed first, and how it ends.
fn log_hint(outcome: &Outcome, log_dir: Option<&Path>) -> String {
    let (JobEnd::Failed(first), Some(dir)) = (outcome.end, log_dir) else { return String::new() };
    let path = log_path(dir, first.rank, Stream::Stderr);
    match last_line(&path) {
        Some(line) => format!("; {} ends with: {line}", path.display()),
        None => format!("; {} is empty", path.display()),
    }
}

/// The last line of a file that is not blank, cut to a length that fits a message.
fn last_line(path: &Path) -> Option<String> {
    const TAIL_BYTES: u64 = 4096;
    const CHARS_MAX: usize = 200;
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let line = tail.lines().rev().find(|line| !line.trim().is_empty())?.trim();
    // A rank's log may hold anything; a message must not steer the terminal.
    Some(line.chars().filter(|c| !c.is_control()).take(CHARS_MAX).collect())
}

fn fail(problem: &str, code: i32) -> i32 {
    say(problem);
    code
}

/// One line on stderr, unless its reader is stuck: the job is over, nothing may keep us.
fn say(text: &str) {
    let stderr = io::stderr();
    let stderr = stderr.as_fd();
    let soon = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    if poll(&mut [PollFd::from_borrowed_fd(stderr, PollFlags::OUT)], Some(&soon)) != Ok(0) {
        let _ = rustix::io::write(stderr, format!("syncline run: {text}\n").as_bytes());
    }
}

fn rank_count() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(RANKS_MAX))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a number of seconds above 0".to_owned();
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if duration.is_zero() { Err(wrong()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_split_at_the_first_equals_sign() {
        let split = |text: &str| name_and_value(OsStr::new(text));
        assert_eq!(split("A=b=c").unwrap(), ("A".into(), "b=c".into()));
        assert_eq!(split("A=").unwrap(), ("A".into(), "".into()));
        assert_eq!(split("PATH").unwrap().1, env::var_os("PATH").unwrap());
        assert!(split("SYNCLINE_SURELY_UNSET").unwrap_err().contains("it is not set here"));
    }

    #[test]
    fn seconds_are_positive_numbers() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1e99", "x", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_last_line_is_found_and_made_harmless() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "first\n\x1b[31mlast \u{fffd}\n\n  \n").unwrap();
        assert_eq!(last_line(&path).unwrap(), "[31mlast \u{fffd}");
        std::fs::write(&path, "").unwrap();
        assert_eq!(last_line(&path), None);
        std::fs::write(&path, "x".repeat(10_000)).unwrap();
        assert_eq!(last_line(&path).unwrap().len(), 200);
    }
}

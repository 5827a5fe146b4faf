//! Describes a job, starts it, and stands for it while it runs.
//!
//! Owns the settings and their checks, the ranks' environment, log files, and the start. Never
//! watches a rank: that is the supervisor's. Called by `command::*` and by library users.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::RANKS_MAX;
use crate::env::{self, JobVariables};
use crate::input::InputPump;
use crate::mailbox::{Inbox, Mail, mailbox};
use crate::outcome::Outcome;
use crate::output::{self, Output, Source, Stream};
use crate::process::RankProcess;
use crate::signal::SignalWatch;
use crate::spawn::spawn_rank;
use crate::supervise::{Limits, Order, OutputEnd, OutputThread, Supervisor};

/// From the request to end until SIGKILL, when a rank failed or the time was up.
const GRACE: Duration = Duration::from_millis(2000);
/// The same when the launcher was signalled: with it, everything is over within two seconds.
const INTERRUPT_GRACE: Duration = Duration::from_millis(1200);

/// What the ranks read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// Rank 0 reads this process's standard input, the others nothing. A terminal is read by the
    /// launcher and passed on through a pipe.
    FirstRank,
    /// Nothing.
    Null,
}

/// A job to be: one program, started several times on this host, watched as one.
///
/// Every rank gets `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`,
/// `MASTER_PORT`, `SYNCLINE_JOB_SECRET` and `SYNCLINE_LAUNCHER` besides this process's own
/// environment. As soon as one fails, the others are told to end (SIGTERM) and after a grace
/// period killed. Ranks never outlive this process.
#[derive(Debug)]
#[must_use = "nothing is started before `start`"]
pub struct Job {
    program: OsString,
    args: Vec<OsString>,
    /// What starts the program, word by word.
    wrap: Vec<OsString>,
    world_size: u32,
    variables: Vec<(OsString, OsString)>,
    output: Output,
    log_dir: Option<PathBuf>,
    stdin: Stdin,
    signals: Option<SignalWatch>,
    timeout: Option<Duration>,
    grace: Duration,
    interrupt_grace: Option<Duration>,
    master_addr: String,
    master_port: Option<u16>,
}

impl Job {
    /// `world_size` ranks of `program`, which is looked up like a shell does. Without further
    /// settings they read nothing, their output is forwarded untagged, nothing limits their
    /// time, and signals to this process are not handled.
    pub fn new(program: impl Into<OsString>, world_size: u32) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            wrap: Vec::new(),
            world_size,
            variables: Vec::new(),
            output: Output::Forward { tag: false },
            log_dir: None,
            stdin: Stdin::Null,
            signals: None,
            timeout: None,
            grace: GRACE,
            interrupt_grace: None,
            master_addr: "127.0.0.1".to_owned(),
            master_port: None,
        }
    }

    /// Adds arguments, the same for every rank.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Puts a command before the program, in whose words `{rank}` becomes the rank's number:
    /// `ip netns exec host{rank}`, say. It must replace itself by the program; what it starts
    /// beside itself, signals reach by the process group.
    pub fn wrap(mut self, words: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.wrap = words.into_iter().map(Into::into).collect();
        self
    }

    /// Sets a variable for every rank, above what this process has.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Says where output goes.
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Also writes `rank-K.out` and `rank-K.err` into this folder, which is made if needed.
    pub fn log_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.log_dir = Some(dir.into());
        self
    }

    /// Says what the ranks read.
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Lets SIGINT, SIGTERM and SIGHUP to this process end the job, the same signal again kill
    /// it, and passes SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT on.
    pub fn signals(mut self, signals: &SignalWatch) -> Self {
        self.signals = Some(signals.clone());
        self
    }

    /// Ends the job after this time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Time between SIGTERM and SIGKILL after a failure, [`RunningJob::stop`] or the time limit;
    /// 2 s unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Time between a signal to this process and SIGKILL to the ranks; 1.2 s unless set, or the
    /// grace time where that is shorter.
    pub fn interrupt_grace(mut self, grace: Duration) -> Self {
        self.interrupt_grace = Some(grace);
        self
    }

    /// Sets `MASTER_ADDR`; 127.0.0.1 unless set.
    pub fn master_addr(mut self, addr: impl Into<String>) -> Self {
        self.master_addr = addr.into();
        self
    }

    /// Sets `MASTER_PORT`; a port that is free when the job starts unless set.
    pub fn master_port(mut self, port: u16) -> Self {
        self.master_port = Some(port);
        self
    }

    /// Starts all ranks. Should one not start, those before it are killed. An untaken signal to
    /// end in [`Job::signals`] stops the start; then the job ends at once, with the ranks it has.
    ///
    /// # Errors
    /// A setting makes no sense, the program cannot be run, or the system lacks something.
    pub fn start(self) -> Result<RunningJob, LaunchError> {
        self.check()?;
        let start = Start::prepare(self)?;
        let (orders, inbox) = mailbox().map_err(LaunchError::system("make an eventfd"))?;
        let (started, when_started) = mpsc::channel();
        let to_self = orders.clone();
        // A thread of its own, because ranks die with the thread that started them.
        let supervise = move || match start.start_ranks(inbox, to_self) {
            Ok(supervisor) => {
                let _ = started.send(Ok(supervisor.ranks.iter().map(RankProcess::pid).collect()));
                Some(supervisor.run())
            }
            Err(error) => {
                let _ = started.send(Err(error));
                None
            }
        };
        let thread = Builder::new()
            .name("syncline-job".to_owned())
            .spawn(supervise)
            .map_err(LaunchError::system("start a thread"))?;
        // Nothing comes from a supervisor that panicked; joining it says so.
        let pids = when_started.recv().unwrap_or(Ok(Vec::new()))?;
        Ok(RunningJob { pids, orders, thread: Some(thread) })
    }

    fn check(&self) -> Result<(), LaunchError> {
        let invalid = |problem: String| Err(LaunchError::InvalidJob { problem });
        let count = self.world_size;
        if count == 0 || count > RANKS_MAX {
            return invalid(format!("{count} ranks asked for; a host runs 1 to {RANKS_MAX}"));
        }
        if self.log_dir.is_some() && matches!(self.output, Output::Inherit) {
            return invalid("log files need output that passes through the launcher".to_owned());
        }
        for (name, value) in &self.variables {
            let text = name.to_string_lossy();
            if env::RESERVED.iter().any(|reserved| name == reserved) {
                return invalid(format!("{text} is set by the launcher, not by --env"));
            }
            let has_nul = |text: &OsStr| text.as_encoded_bytes().contains(&0);
            if text.is_empty() || text.contains('=') || has_nul(name) || has_nul(value) {
                return invalid(format!("'{text}' cannot be set as an environment variable"));
            }
        }
        Ok(())
    }
}

/// A job that runs. Dropping it kills all ranks; [`RunningJob::wait`] is the good end.
#[derive(Debug)]
pub struct RunningJob {
    pids: Vec<u32>,
    orders: Mail<Order>,
    thread: Option<JoinHandle<Option<Ended>>>,
}

type Ended = (Outcome, std::thread::Result<()>);

impl RunningJob {
    /// Process ids by rank, as started; a rank that has ended no longer owns its own.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Tells all ranks to end (SIGTERM, then SIGKILL after the grace time). Does not wait.
    pub fn stop(&self) {
        self.orders.send(Order::Stop);
    }

    /// Kills all ranks. Does not wait.
    pub fn kill(&self) {
        self.orders.send(Order::Kill);
    }

    /// Waits until all ranks have ended and their output is delivered.
    ///
    /// # Panics
    /// If the function given with [`Output::Report`] panicked, with its panic.
    pub fn wait(mut self) -> Outcome {
        let thread = self.thread.take().map(JoinHandle::join);
        let (outcome, output) = match thread {
            Some(Ok(Some(ended))) => ended,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None | Some(Ok(None)) => unreachable!("a job that did not start is never returned"),
        };
        if let Err(panic) = output {
            std::panic::resume_unwind(panic);
        }
        outcome
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.orders.send(Order::Kill);
            let _ = thread.join();
        }
    }
}

/// A checked job with everything that is made before the first rank.
struct Start {
    job: Job,
    variables: JobVariables,
    /// Standard output and error by rank, if logs are kept.
    logs: Vec<(File, File)>,
}

impl Start {
    fn prepare(job: Job) -> Result<Self, LaunchError> {
        let secret = env::new_secret().map_err(|error| LaunchError::System {
            action: "make a job secret",
            source: io::Error::other(error),
        })?;
        let master_port = match job.master_port {
            Some(port) => port,
            None => env::free_port(&job.master_addr).map_err(|source| LaunchError::MasterPort {
                addr: job.master_addr.clone(),
                source,
            })?,
        };
        let world_size = job.world_size;
        let logs = job.log_dir.as_deref().map(|dir| open_logs(dir, world_size)).transpose()?;
        let master_addr = job.master_addr.clone();
        let variables = JobVariables { world_size, master_addr, master_port, secret };
        Ok(Self { job, variables, logs: logs.unwrap_or_default() })
    }

    /// Starts the ranks and the output thread.
    fn start_ranks(
        self,
        orders: Inbox<Order>,
        to_supervisor: Mail<Order>,
    ) -> Result<Supervisor, LaunchError> {
        let Self { job, variables, logs } = self;
        let Job { timeout, grace, .. } = job;
        let interrupt_grace = job.interrupt_grace.unwrap_or_else(|| INTERRUPT_GRACE.min(grace));
        let limits = Limits { timeout, grace, interrupt_grace };
        let mut supervisor = Supervisor::new(orders, job.signals.clone(), limits);
        let mut sources = Vec::new();
        let mut logs = logs.into_iter();
        for rank in 0..job.world_size {
            if job.signals.as_ref().is_some_and(|signals| signals.interruption().is_some()) {
                break;
            }
            match start_rank(&job, &variables, rank) {
                Ok(mut child) => {
                    if let Some(stdin) = child.stdin.take() {
                        supervisor.input = InputPump::new(stdin).ok();
                    }
                    sources.extend(take_sources(rank, &mut child, logs.next()));
                    supervisor.ranks.push(RankProcess::new(rank, child));
                }
                Err(error) => {
                    supervisor.abandon();
                    return Err(error);
                }
            }
        }
        if !matches!(job.output, Output::Inherit) {
            let on_end = OutputEnd(to_supervisor);
            match start_output(sources, job.output, on_end) {
                Ok(output) => supervisor.output = Some(output),
                Err(error) => {
                    supervisor.abandon();
                    return Err(error);
                }
            }
        }
        Ok(supervisor)
    }
}

fn start_output(
    sources: Vec<Source>,
    output: Output,
    on_end: OutputEnd,
) -> Result<OutputThread, LaunchError> {
    let (notices, inbox) = mailbox().map_err(LaunchError::system("make an eventfd"))?;
    let thread = output::start(sources, output, inbox, on_end)
        .map_err(LaunchError::system("start the output thread"))?;
    Ok(OutputThread { notices, thread })
}

fn start_rank(job: &Job, variables: &JobVariables, rank: u32) -> Result<Child, LaunchError> {
    let is_piped = !matches!(job.output, Output::Inherit);
    let outlet = || if is_piped { Stdio::piped() } else { Stdio::inherit() };
    let inlet = match job.stdin {
        Stdin::FirstRank if rank == 0 && io::stdin().is_terminal() => Stdio::piped(),
        Stdin::FirstRank if rank == 0 => Stdio::inherit(),
        Stdin::FirstRank | Stdin::Null => Stdio::null(),
    };
    let mut words = job.wrap.iter().map(|word| numbered(word, rank)).collect::<Vec<_>>();
    words.push(job.program.clone());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(&job.args);
    command.stdin(inlet).stdout(outlet()).stderr(outlet());
    command.envs(job.variables.iter().map(|(name, value)| (name, value)));
    command.envs(variables.for_rank(rank));
    spawn_rank(&mut command).map_err(|source| LaunchError::spawn(&words[0], rank, source))
}

/// `word` with the rank's number in place of `{rank}`.
fn numbered(word: &OsStr, rank: u32) -> OsString {
    match word.to_str() {
        Some(text) => text.replace("{rank}", &rank.to_string()).into(),
        None => word.to_owned(),
    }
}

fn take_sources(rank: u32, child: &mut Child, logs: Option<(File, File)>) -> Vec<Source> {
    let (out_log, err_log) = logs.unzip();
    let out = child.stdout.take().map(|p| Source::new(rank, Stream::Stdout, p.into(), out_log));
    let err = child.stderr.take().map(|p| Source::new(rank, Stream::Stderr, p.into(), err_log));
    out.into_iter().chain(err).collect()
}

fn open_logs(dir: &Path, world_size: u32) -> Result<Vec<(File, File)>, LaunchError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| LaunchError::Log { path, source }
    };
    fs::create_dir_all(dir).map_err(failed(dir))?;
    let open = |stream: Stream, rank: u32| {
        let path = log_path(dir, rank, stream);
        File::create(&path).map_err(failed(&path))
    };
    (0..world_size).map(|r| Ok((open(Stream::Stdout, r)?, open(Stream::Stderr, r)?))).collect()
}

/// Where [`Job::log_dir`] puts the output of a rank.
pub(crate) fn log_path(dir: &Path, rank: u32, stream: Stream) -> PathBuf {
    let extension = match stream {
        Stream::Stderr => "err",
        Stream::Stdout => "out",
    };
    dir.join(format!("rank-{rank}.{extension}"))
}

/// Why a job did not start. No process of it is left.
#[derive(Debug)]
#[non_exhaustive]
pub enum LaunchError {
    /// The settings make no sense.
    InvalidJob {
        /// Which, and why.
        problem: String,
    },
    /// A log file or its folder cannot be made.
    Log {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// No port could be found for the rendezvous.
    MasterPort {
        /// The master address.
        addr: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The program is there, but cannot be run.
    NotExecutable {
        /// The program.
        program: OsString,
        /// The system's reason.
        source: io::Error,
    },
    /// There is no such program.
    NotFound {
        /// The program.
        program: OsString,
    },
    /// A rank's process could not be made.
    Spawn {
        /// The rank.
        rank: u32,
        /// The program.
        program: OsString,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refused something else.
    System {
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl LaunchError {
    /// The code the launcher exits with: 2 for a mistake in the request, 126 and 127 as shells
    /// have them, else 1.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::InvalidJob { .. } => 2,
            Self::NotExecutable { .. } => 126,
            Self::NotFound { .. } => 127,
            _ => 1,
        }
    }

    fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }

    fn spawn(program: &OsStr, rank: u32, source: io::Error) -> Self {
        let program = program.to_owned();
        match source.kind() {
            // A script whose interpreter is missing is "not found" too, though it is there.
            io::ErrorKind::NotFound if is_path(&program) && Path::new(&program).exists() => {
                Self::NotExecutable { program, source }
            }
            io::ErrorKind::NotFound => Self::NotFound { program },
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ExecutableFileBusy
            | io::ErrorKind::IsADirectory => Self::NotExecutable { program, source },
            _ if source.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
                Self::NotExecutable { program, source }
            }
            _ => Self::Spawn { rank, program, source },
        }
    }
}

/// Whether a program is named by its path, and not to be looked up in PATH.
fn is_path(program: &OsStr) -> bool {
    program.as_encoded_bytes().contains(&b'/')
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidJob { problem } => f.write_str(problem),
            Self::Log { path, source } => {
                write!(f, "cannot write the log {}: {source}", path.display())
            }
            Self::MasterPort { addr, source } => write!(
                f,
                "no free port on MASTER_ADDR {addr}: {source}; if it is another host's address, \
                 give --master-port as well"
            ),
            Self::NotExecutable { program, source } => {
                write!(f, "cannot run '{}': {source}", program.display())?;
                if source.kind() == io::ErrorKind::NotFound {
                    f.write_str(" (the file is there; is the interpreter in its first line?)")?;
                }
                Ok(())
            }
            Self::NotFound { program } => {
                let place = if is_path(program) { "" } else { " in PATH" };
                write!(f, "program '{}' not found{place}", program.display())
            }
            Self::Spawn { rank, program, source } => {
                write!(f, "cannot start rank {rank} of '{}': {source}", program.display())?;
                match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                    Some(rustix::io::Errno::MFILE) => f.write_str("; see `ulimit -n`"),
                    Some(rustix::io::Errno::AGAIN) => f.write_str("; see `ulimit -u`"),
                    _ => Ok(()),
                }
            }
            Self::System { action, source } => write!(f, "cannot {action}: {source}"),
        }
    }
}

impl std::error::Error for LaunchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::InvalidJob { .. } | Self::NotFound { .. } => None,
            Self::Log { source, .. }
            | Self::MasterPort { source, .. }
            | Self::NotExecutable { source, .. }
            | Self::Spawn { source, .. }
            | Self::System { source, .. } => Some(source),
        }
    }
}

//! Runs the `syncline` binary with a bound on its time, and looks after what ranks leave.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// No run of these tests should take this long, however busy the machine is.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// `syncline run` with these arguments.
pub(crate) fn syncline_run(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
    command.arg("run").args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Ranks of a shell script.
pub(crate) fn script(args: &[&str], script: &str) -> Command {
    let mut command = syncline_run(args);
    command.args(["--", "sh", "-c", script]);
    command
}

/// A launcher under way; killed, with its ranks, if the test ends without waiting for it.
pub(crate) struct Launcher {
    child: Option<Child>,
    pub(crate) pid: Pid,
}

impl Launcher {
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.spawn().unwrap();
        let pid = Pid::from_child(&child);
        Self { child: Some(child), pid }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    /// Waits for its end and everything it printed.
    pub(crate) fn output(mut self) -> Output {
        let child = self.child.take().unwrap();
        let (done, when_done) = mpsc::channel();
        thread::spawn(move || done.send(child.wait_with_output().unwrap()));
        match when_done.recv_timeout(BOUND) {
            Ok(output) => output,
            Err(_) => {
                let _ = kill_process(self.pid, Signal::KILL);
                panic!("the launcher did not end in {BOUND:?}");
            }
        }
    }

    /// Waits for its end, leaving what it printed unread.
    pub(crate) fn status(mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let until = Instant::now() + BOUND;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > until {
                child.kill().unwrap();
                panic!("the launcher did not end in {BOUND:?}");
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs to the end.
pub(crate) fn run(command: &mut Command) -> Output {
    Launcher::start(command).output()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Checks exit code and last line together, so that a failure shows both.
#[track_caller]
pub(crate) fn assert_ends(output: &Output, code: i32, words: &str) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(code), "stderr: {said}");
    assert!(said.contains(words), "expected '{words}' in: {said}");
}

/// Waits until `condition` gives a value.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + BOUND;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < until, "no {what} in {BOUND:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A folder for what ranks of one test write.
pub(crate) struct Notes(tempfile::TempDir);

impl Notes {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Shell text that defines `note NAME TEXT`, which writes a file in one go.
    pub(crate) fn prelude(&self) -> String {
        let dir = self.0.path().display();
        format!(r#"note() {{ echo "$2" > "{dir}/.$1.$$" && mv "{dir}/.$1.$$" "{dir}/$1"; }}; "#)
    }

    /// The text of a note, when it has been written.
    #[track_caller]
    pub(crate) fn wait(&self, name: &str) -> String {
        let path = self.file(name);
        wait_for(name, || fs::read_to_string(&path).ok()).trim().to_owned()
    }

    /// A note that holds a process id.
    #[track_caller]
    pub(crate) fn wait_pid(&self, name: &str) -> Pid {
        Pid::from_raw(self.wait(name).parse().unwrap()).unwrap()
    }
}

/// Whether a process runs; one that is dead but not reaped does not.
pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let state = stat.ok().and_then(|s| s.rsplit_once(')').map(|(_, rest)| rest.trim().to_owned()));
    state.is_some_and(|rest| !rest.starts_with(['Z', 'X']))
}

/// Ends a process that a test made escape from its job.
pub(crate) struct Escaped(pub(crate) Pid);

impl Drop for Escaped {
    fn drop(&mut self) {
        if is_alive(self.0) {
            let _ = kill_process(self.0, Signal::KILL);
        }
    }
}

//! Ranks as processes, started without the launcher so that nobody cleans up after them.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A job of processes on this host. Dropping it ends those that still run, by their ids.
#[derive(Debug)]
pub struct Cluster {
    ranks: Vec<Option<Child>>,
}

/// How a rank ended.
#[derive(Clone, Debug)]
pub struct RankEnd {
    /// Its exit status.
    pub status: ExitStatus,
    /// All it wrote to standard output.
    pub stdout: String,
    /// When it was seen to be over.
    pub at: Instant,
}

impl Cluster {
    /// Starts `world_size` ranks of `program`.
    ///
    /// # Panics
    /// If a process cannot be started.
    pub fn start(program: &str, world_size: u32, variables: &[(&str, String)]) -> Self {
        let port = syncline_comm::testing::free_port();
        let ranks = (0..world_size)
            .map(|rank| {
                let mut command = Command::new(program);
                command
                    .env("RANK", rank.to_string())
                    .env("WORLD_SIZE", world_size.to_string())
                    .env("MASTER_ADDR", "127.0.0.1")
                    .env("MASTER_PORT", port.to_string())
                    .env("SYNCLINE_JOB_SECRET", "c0".repeat(32))
                    // Writing a backtrace may take a loaded machine seconds.
                    .env("RUST_BACKTRACE", "0")
                    .envs(variables.iter().map(|(k, v)| (*k, v.as_str())))
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null());
                Some(command.spawn().expect("a rank starts"))
            })
            .collect();
        Self { ranks }
    }

    /// Process number of a rank that runs.
    ///
    /// # Panics
    /// If it has been waited for.
    pub fn pid(&self, rank: u32) -> u32 {
        self.ranks[rank as usize].as_ref().expect("a running rank").id()
    }

    /// Sends a signal to a rank.
    ///
    /// # Panics
    /// If it has been waited for.
    pub fn signal(&self, rank: u32, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.pid(rank)).expect("process numbers are small");
        let pid = rustix::process::Pid::from_raw(pid).expect("not zero");
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// Waits for ranks to end; `None` for those that have not by `limit`.
    ///
    /// # Panics
    /// If a process cannot be waited for.
    pub fn wait(&mut self, limit: Duration) -> Vec<Option<RankEnd>> {
        let deadline = Instant::now() + limit;
        let mut ends: Vec<Option<RankEnd>> = self.ranks.iter().map(|_| None).collect();
        loop {
            for (child, end) in self.ranks.iter_mut().zip(&mut ends) {
                let Some(running) = child else { continue };
                if let Some(status) = running.try_wait().expect("wait") {
                    let at = Instant::now();
                    let mut stdout = String::new();
                    if let Some(mut pipe) = running.stdout.take() {
                        let _ = pipe.read_to_string(&mut stdout);
                    }
                    *child = None;
                    *end = Some(RankEnd { status, stdout, at });
                }
            }
            if self.ranks.iter().all(Option::is_none) || Instant::now() >= deadline {
                return ends;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.ranks.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

//! Starts one rank's process so that it cannot outlive the launcher.
//!
//! Owns the only `unsafe` of this package: the hook between fork and exec. Never decides what
//! to start. Called by the supervisor's thread, and by no other: the kernel's parent-death
//! signal follows the *thread* that forked, so that thread has to live as long as the rank.
//!
//! Invariant of the `unsafe` here: what runs between fork and exec makes system calls and nothing
//! else. No allocation, no lock, no panic: in the copy of a process with threads, all of these may
//! find a lock held by a thread that was not copied.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::io::Errno;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Starts `command` in a process group of its own, to be killed by the kernel when the calling
/// thread ends for whatever reason, SIGKILL of the launcher included.
///
/// # Errors
/// What fork, the hook or exec returned. After an error no process is left.
pub(crate) fn spawn_rank(command: &mut Command) -> io::Result<Child> {
    command.process_group(0);
    let launcher = getpid();
    let tie_to_launcher = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have died between fork and the line above; then the signal never
        // comes, and the process has been handed to another parent already.
        if getppid() == Some(launcher) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: the closure runs in the forked child of a process with threads, where only
    // async-signal-safe work is allowed. It makes two plain system calls (prctl, getppid),
    // builds its errors from error numbers, which does not allocate, takes no lock, touches no
    // memory but its own captured copy of one pid, and cannot panic.
    unsafe { command.pre_exec(tie_to_launcher) };
    command.spawn()
}

//! Reading a peer's memory straight (cross-memory attach, `process_vm_readv`), where the kernel
//! allows it: one copy instead of two.
//!
//! Owns the system call and the question whether it works between two ranks; decides nothing about
//! when to use it. Containers, Yama and other users' processes forbid it, which is no fault: the
//! rings do without.
//!
//! Invariant of the `unsafe` here: the kernel writes only the local buffer that is handed to it;
//! what lies at the remote address is the kernel's to check, and its bytes are only bytes.

use super::segment::NodeSegment;
use rustix::io::Errno;
use std::io;
use std::sync::Once;

/// Another rank's memory, which this process may read.
#[derive(Debug)]
pub struct Puller {
    pid: libc::pid_t,
}

impl Puller {
    /// Tries to read a word that a local rank keeps in its own memory. `None` if the kernel does
    /// not allow it, or the process seen under that number is another one; why is logged once.
    ///
    /// # Panics
    /// If the host has no such rank.
    pub fn probe(segment: &NodeSegment, local: u32) -> Option<Self> {
        let (address, expected) = segment.probe(local);
        let pid = segment.pids()[local as usize];
        match Self::try_probe(pid, address, expected) {
            Ok(puller) => Some(puller),
            Err(error) => {
                static LOGGED: Once = Once::new();
                LOGGED.call_once(|| {
                    tracing::debug!("process_vm_readv of local rank {local} (pid {pid}): {error}");
                });
                None
            }
        }
    }

    /// Reads the peer's memory at `address` (its own) until `into` is full.
    ///
    /// # Errors
    /// The kernel's: `ESRCH` once the peer is gone, `EFAULT` where it has no memory.
    pub fn pull(&self, mut address: u64, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            let count = self.read(address, into)?;
            address += count as u64;
            into = &mut into[count..];
        }
        Ok(())
    }

    fn try_probe(pid: u32, address: u64, expected: u64) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0);
        let puller = Self { pid: pid.ok_or_else(|| other("the process is not visible here"))? };
        if address == 0 {
            return Err(other("the peer has left"));
        }
        let mut word = [0; 8];
        puller.pull(address, &mut word)?;
        if u64::from_ne_bytes(word) != expected {
            return Err(other("another process has that number"));
        }
        Ok(puller)
    }

    /// Some leading bytes, at least one.
    fn read(&self, address: u64, into: &mut [u8]) -> io::Result<usize> {
        let base = usize::try_from(address).map_err(|_| Errno::FAULT)?;
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: base as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: one local vector, which is all of `into`; the remote one is checked by the
        // kernel against the other process's memory and never dereferenced here.
        let count = unsafe {
            libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0)
        };
        match usize::try_from(count) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => Ok(count),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

fn other(what: &str) -> io::Error {
    io::Error::other(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_memory_is_read_after_a_probe() {
        // Threads of one process: every kernel lets a process read itself.
        let segments = NodeSegment::for_threads(2).unwrap();
        let puller = Puller::probe(&segments[0], 1).expect("own memory is readable");
        let theirs: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        let mut mine = vec![0; theirs.len()];
        puller.pull(theirs.as_ptr().addr() as u64, &mut mine).unwrap();
        assert_eq!(mine, theirs);
        let error = puller.pull(8, &mut mine).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn what_does_not_answer_the_probe_is_refused() {
        let segments = NodeSegment::for_threads(2).unwrap();
        let (address, value) = segments[0].probe(1);
        let reason = |pid, address, value| Puller::try_probe(pid, address, value).unwrap_err();
        let me = std::process::id();
        assert!(reason(me, address, value + 1).to_string().contains("another process"));
        assert!(reason(0, address, value).to_string().contains("not visible"));
        assert_eq!(reason(me, 16, value).raw_os_error(), Some(libc::EFAULT));
        assert_eq!(reason(u32::MAX >> 1, address, value).raw_os_error(), Some(libc::ESRCH));
        let mut segments = segments;
        segments.pop();
        assert!(Puller::probe(&segments[0], 1).is_none());
    }
}

//! A short time slice for a thread that communicates, so that it gets the processor when a message
//! comes although trainers compute on all cores.
//!
//! Linux from 6.12 on lets a thread of the ordinary policy ask for its slice; one with a shorter
//! slice preempts one with a longer when it wakes. Nobody's share changes, and no privilege is
//! needed. Older kernels refuse or ignore it, which costs latency and nothing else.
//!
//! Invariant of the `unsafe` here: the structure handed to the system call is as long as the
//! length it declares, and outlives the call.

/// What is asked for; the kernel's least is 100 us.
const SLICE_NS: u64 = 100_000;

/// The kernel's `struct sched_attr`, first version (48 bytes).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// The calling thread has a short slice while this lives.
#[derive(Debug)]
pub(super) struct Short {
    /// What it had before, if it was changed.
    before: Option<SchedAttr>,
}

impl Short {
    /// Asks for it. Nothing else of how the thread is scheduled changes.
    pub(super) fn new() -> Self {
        let before = read().filter(|attr| attr.policy == SCHED_OTHER);
        let is_set = before.is_some_and(|attr| write(SchedAttr { runtime: SLICE_NS, ..attr }));
        Self { before: before.filter(|_| is_set) }
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            write(before);
        }
    }
}

/// The policy whose threads have a slice that they may choose.
const SCHED_OTHER: u32 = 0;

/// How the calling thread is scheduled, if the kernel tells.
fn read() -> Option<SchedAttr> {
    let mut attr = SchedAttr::default();
    let size = u32::try_from(size_of::<SchedAttr>()).expect("48 bytes");
    // SAFETY: `attr` lives until the call returns and has the `size` bytes that the call may write;
    // every pattern of bits is a value of it. pid 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0_u32) };
    if result != 0 {
        tracing::debug!("no time slice is known: {}", std::io::Error::last_os_error());
    }
    (result == 0).then_some(attr)
}

/// Whether the calling thread is scheduled so from now on.
fn write(attr: SchedAttr) -> bool {
    let size = u32::try_from(size_of::<SchedAttr>()).expect("48 bytes");
    let attr = SchedAttr { size, ..attr };
    // SAFETY: `attr` lives until the call returns and is `size` bytes long; pid 0 is the calling
    // thread; the call writes no memory of ours but, on an error, the structure's size.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0_u32) };
    if result != 0 {
        tracing::debug!("no short time slice: {}", std::io::Error::last_os_error());
    }
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also nice values and slices that the user has set.
    #[test]
    fn a_thread_is_as_it_was_afterwards() {
        std::thread::spawn(|| {
            let Some(plain) = read() else { return };
            write(SchedAttr { nice: plain.nice + 3, ..plain });
            let before = read().unwrap();
            assert_eq!(before.nice, plain.nice + 3);
            let short = Short::new();
            assert_eq!(read().unwrap().nice, before.nice);
            drop(short);
            assert_eq!(read(), Some(before));
        })
        .join()
        .unwrap();
    }
}

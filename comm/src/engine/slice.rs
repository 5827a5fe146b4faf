//! A short time slice for the background thread, so that it gets the processor when a message
//! comes although the trainer computes on all cores.
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
#[derive(Debug, Default)]
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

/// Asks for a short slice for the calling thread.
pub(super) fn shorten() {
    let size = u32::try_from(size_of::<SchedAttr>()).expect("48 bytes");
    let attr = SchedAttr { size, runtime: SLICE_NS, ..SchedAttr::default() };
    // SAFETY: `attr` lives until the call returns and is `size` bytes long; pid 0 is the calling
    // thread; the call writes no memory of ours but, on an error, the structure's size.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0_u32) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!("no short time slice for background progress: {error}");
    }
}

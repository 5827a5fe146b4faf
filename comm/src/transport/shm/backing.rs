//! The memory behind a segment: an anonymous file that vanishes with its last descriptor.
//!
//! Owns the choice of the file, its size and its seals, and how much a host can spare. Maps
//! nothing. Called by the handshake and by the segment of threads.
//!
//! A page that cannot be had when it is first touched is a `SIGBUS`, so each way makes sure of its
//! pages: `memfd` is bound by no mount, its pages are missing only where the kernel commits
//! strictly (`overcommit_memory = 2`), and there they are all allocated at once; a file in
//! `/dev/shm`, a mount with a limit, always has them allocated at once. A cgroup's limit ends in
//! its OOM killer, never in a `SIGBUS`; [`budget`] keeps far from it.

use super::ShmUnavailable;
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals,
    fcntl_get_seals, fstat, ftruncate, memfd_create, open,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::read_to_string;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

const SHM_DIR: &str = "/dev/shm";
/// A segment takes at most this part of the memory the process may use.
const BUDGET_DIVISOR: u64 = 4;

/// Bytes a segment may take on this host: a quarter of the memory or of the cgroup's limit.
pub(super) fn budget() -> u64 {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = |path: String| read_to_string(path).ok()?.trim().parse().ok();
    let limits = limit_paths(&groups).into_iter().filter_map(limit);
    let total = read_to_string("/proc/meminfo").ok().and_then(|text| total_bytes(&text));
    limits.chain(total).min().unwrap_or(u64::MAX) / BUDGET_DIVISOR
}

/// A file of `bytes` zeros without a name.
pub(super) fn create(bytes: usize) -> Result<OwnedFd, ShmUnavailable> {
    let bytes = bytes as u64;
    if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|limit| *limit < bytes) {
        let reason = format!("a segment of {bytes} bytes is over the file size limit {limit}");
        return Err(ShmUnavailable { reason });
    }
    let strict = read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|t| t.trim() == "2");
    match create_memfd(bytes, strict) {
        Ok(file) => Ok(file),
        Err(error) => create_in(Path::new(SHM_DIR), bytes).map_err(|unavailable| {
            let reason = format!("memfd: {error}; {}", unavailable.reason);
            ShmUnavailable { reason }
        }),
    }
}

/// Whether a file that a peer handed over can be mapped for `bytes` without a later `SIGBUS`.
pub(super) fn check(file: &OwnedFd, bytes: usize) -> Result<(), ShmUnavailable> {
    let refuse = |reason: String| Err(ShmUnavailable { reason });
    let size = match fstat(file) {
        Ok(stat) => u64::try_from(stat.st_size).unwrap_or(0),
        Err(error) => return refuse(format!("size of the segment: {error}")),
    };
    if size != bytes as u64 {
        return refuse(format!("the segment has {size} bytes instead of {bytes}"));
    }
    // A file of a mount cannot be sealed: that it stays is the authenticated leader's word.
    match fcntl_get_seals(file) {
        Ok(seals) if !seals.intersects(SealFlags::SHRINK | SealFlags::SEAL) => {
            refuse("the segment is not sealed against shrinking".to_owned())
        }
        _ => Ok(()),
    }
}

fn create_memfd(bytes: u64, allocate: bool) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match memfd_create("syncline", flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => memfd_create("syncline", flags)?,
        other => other?,
    };
    ftruncate(&file, bytes)?;
    if allocate {
        allocate_all(&file, bytes)?;
    }
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

fn create_in(dir: &Path, bytes: u64) -> Result<OwnedFd, ShmUnavailable> {
    let unavailable = |what: &str, error: Errno| {
        let dir = dir.display();
        let mut reason = format!("{what} a segment of {bytes} bytes in {dir}: {error}");
        if error == Errno::NOSPC {
            reason.push_str(" (too small a mount; containers take a larger one by --shm-size)");
        }
        ShmUnavailable { reason }
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = open(dir, flags, Mode::RUSR | Mode::WUSR).map_err(|e| unavailable("open", e))?;
    ftruncate(&file, bytes).map_err(|e| unavailable("size", e))?;
    allocate_all(&file, bytes).map_err(|e| unavailable("allocate", e))?;
    Ok(file)
}

fn allocate_all(file: impl AsFd, bytes: u64) -> Result<(), Errno> {
    loop {
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Where the limits of the process's cgroups and of those above may stand.
fn limit_paths(groups: &str) -> Vec<String> {
    let mut paths = vec![
        "/sys/fs/cgroup/memory.max".to_owned(),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
    ];
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let mut path = path.trim_end_matches('/');
        while !path.is_empty() {
            paths.push(format!("{root}{path}/{file}"));
            path = path.rsplit_once('/').map_or("", |(above, _)| above);
        }
    }
    paths
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_make_a_file_that_passes_the_check() {
        let bytes = 1 << 20;
        for file in [
            create(bytes).unwrap(),
            create_memfd(bytes as u64, true).unwrap(),
            create_in(Path::new(SHM_DIR), bytes as u64).unwrap(),
        ] {
            check(&file, bytes).unwrap();
            assert!(check(&file, bytes + 1).is_err());
        }
    }

    #[test]
    fn a_segment_that_may_shrink_is_refused() {
        let file = memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        assert!(check(&file, 4096).unwrap_err().reason.contains("not sealed"));
        let sealed = create_memfd(4096, false).unwrap();
        assert_eq!(ftruncate(&sealed, 0), Err(Errno::PERM));
    }

    #[test]
    fn a_mount_without_room_is_a_reason_not_a_signal() {
        let error = create_in(Path::new(SHM_DIR), 1 << 50).unwrap_err();
        assert!(error.reason.contains("1125899906842624 bytes in /dev/shm"), "{error}");
        assert!(create_in(Path::new("/nonexistent"), 4096).unwrap_err().reason.contains("open"));
    }

    #[test]
    fn limits_are_looked_for_up_to_the_root() {
        let paths = limit_paths("4:cpu,memory:/a/b\n9:name=systemd:/\n0::/c/d\n");
        for path in [
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "/sys/fs/cgroup/c/d/memory.max",
        ] {
            assert!(paths.iter().any(|p| p == path), "{path} in {paths:?}");
        }
        assert_eq!(total_bytes("MemFree: 1 kB\nMemTotal:       24 kB\n"), Some(24 << 10));
        assert!(budget() > 0);
    }
}

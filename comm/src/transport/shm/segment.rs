//! One host's shared memory as one of its ranks sees it.
//!
//! Owns the mapping, everybody's bells and process ids. Never interprets what lies in the memory:
//! the rings and the lanes do. Made by the handshake, or for threads of one process by
//! [`NodeSegment::for_threads`].
//!
//! Invariant of the `unsafe` here: a [`Mapping`] is one mapping of a file that cannot shrink, is
//! unmapped only when its [`NodeSegment`] is dropped, which every user holds by an `Arc`, and is
//! reached only through [`Mapping::word`], which makes atomics, and [`Mapping::bytes`], which
//! makes raw pointers, both inside its bounds. No reference to plain bytes is made here.

use super::layout::{Layout, MAX_LOCAL_SIZE};
use super::{ShmUnavailable, backing, bell};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that several processes have mapped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is an address and a length; what lies behind is shared between processes
// anyway, and reached through atomics or through raw pointers whose users argue for themselves.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method gives a reference to anything but atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of a file that [`backing::check`] has passed or [`backing::create`] made.
    fn new(file: &OwnedFd, bytes: usize) -> Result<Self, ShmUnavailable> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice changes no existing memory.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) };
        let start = start.map_err(|error| ShmUnavailable {
            reason: format!("map a segment of {bytes} bytes: {error}"),
        })?;
        let start = NonNull::new(start.cast()).ok_or_else(|| ShmUnavailable {
            reason: "the segment was mapped at address zero".to_owned(),
        })?;
        Ok(Self { start, bytes })
    }

    /// The word at `offset`.
    ///
    /// # Panics
    /// If it does not lie inside, or the offset is no multiple of 8.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        let start = self.bytes(offset, size_of::<AtomicU64>());
        assert!(offset.is_multiple_of(align_of::<AtomicU64>()), "word at {offset}");
        // SAFETY: inside the mapping by `bytes`, which lives as long as `self`; aligned because
        // mappings start at a page and by the assertion; words of the layout's control regions
        // are only ever accessed as atomics.
        unsafe { AtomicU64::from_ptr(start.as_ptr().cast()) }
    }

    /// The address of `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they do not lie inside.
    #[inline]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> NonNull<u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        assert!(inside, "bytes {offset}+{len} of a mapping of {}", self.bytes);
        // SAFETY: inside the mapping or one past its end, by the assertion.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone, and whoever uses its pointers holds the
        // `Arc` of the segment around it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// What all ranks of a host need to make a segment of a file.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) file: OwnedFd,
    pub(super) layout: Layout,
    pub(super) bells: Vec<OwnedFd>,
    pub(super) pids: Vec<u32>,
}

/// The shared memory of a host's ranks.
#[derive(Debug)]
pub struct NodeSegment {
    mapping: Mapping,
    layout: Layout,
    local_index: u32,
    bells: Vec<OwnedFd>,
    pids: Vec<u32>,
    /// A word of this process alone, with a value nobody guesses: whoever reads it here, by the
    /// address published in the segment, may read this process's memory.
    probe: Box<AtomicU64>,
}

impl NodeSegment {
    /// Maps the segment and publishes what peers must know of this rank.
    pub(super) fn open(parts: Parts, local_index: u32) -> Result<Self, ShmUnavailable> {
        let Parts { file, layout, bells, pids } = parts;
        assert!(local_index < layout.local_size, "a local rank inside the host");
        assert_eq!((bells.len(), pids.len()), (layout.local_size as usize, bells.len()));
        let mapping = Mapping::new(&file, layout.total_bytes())?;
        let secret = getrandom::u64().unwrap_or(0) | 1;
        let probe = Box::new(AtomicU64::new(secret));
        let published = layout.probe(local_index);
        mapping.word(published).store(probe.as_ptr().addr() as u64, Ordering::Release);
        mapping.word(published + 8).store(secret, Ordering::Release);
        Ok(Self { mapping, layout, local_index, bells, pids, probe })
    }

    /// One segment per thread of this process, over the same memory, for tests and benches.
    ///
    /// # Errors
    /// If the system has no shared memory to give.
    ///
    /// # Panics
    /// If `local_size` is 0 or above 64.
    pub fn for_threads(local_size: u32) -> Result<Vec<Self>, ShmUnavailable> {
        let layout = Layout::fit(local_size, backing::budget()).ok_or_else(too_little_memory)?;
        Self::for_threads_of(layout)
    }

    /// [`NodeSegment::for_threads`] with sizes that a test chooses.
    pub(crate) fn for_threads_of(layout: Layout) -> Result<Vec<Self>, ShmUnavailable> {
        let local_size = layout.local_size;
        let file = backing::create(layout.total_bytes())?;
        let failed = |error: std::io::Error| ShmUnavailable { reason: error.to_string() };
        let bells = (0..local_size).map(|_| Ok(bell::create()?));
        let bells: Vec<_> = bells.collect::<Result<_, std::io::Error>>().map_err(failed)?;
        let segments = (0..local_size).map(|local_index| {
            let clone = |fd: &OwnedFd| fd.try_clone().map_err(failed);
            let parts = Parts {
                file: clone(&file)?,
                layout,
                bells: bells.iter().map(clone).collect::<Result<_, _>>()?,
                pids: vec![std::process::id(); local_size as usize],
            };
            Self::open(parts, local_index)
        });
        segments.collect()
    }

    /// This rank's place among the host's ranks.
    pub fn local_index(&self) -> u32 {
        self.local_index
    }

    /// Ranks of the host.
    pub fn local_size(&self) -> u32 {
        self.layout.local_size
    }

    /// The host's processes by local rank, as the leader sees them; 0 for one it cannot see.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// The bell of a local rank.
    pub(crate) fn bell(&self, local: u32) -> &OwnedFd {
        &self.bells[local as usize]
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The sleeping flag of a local rank.
    #[inline]
    pub(crate) fn sleeping(&self, local: u32) -> &AtomicU64 {
        self.mapping.word(self.layout.sleeping(local))
    }

    /// The address and value of a local rank's probe word, as it published them.
    pub(super) fn probe(&self, local: u32) -> (u64, u64) {
        let at = self.layout.probe(local);
        let word = |offset| self.mapping.word(offset).load(Ordering::Acquire);
        (word(at), word(at + 8))
    }
}

impl Drop for NodeSegment {
    fn drop(&mut self) {
        // Nobody should read the probe's address any more: the memory behind it is given back.
        let published = self.layout.probe(self.local_index);
        self.mapping.word(published).store(0, Ordering::Release);
        self.probe.store(0, Ordering::Relaxed);
    }
}

pub(super) fn too_little_memory() -> ShmUnavailable {
    let reason = format!(
        "even the smallest segment is over a quarter of this process's memory ({} bytes)",
        backing::budget()
    );
    ShmUnavailable { reason }
}

/// Whether so many ranks can share a segment.
pub(super) fn check_size(local_size: u32) -> Result<(), ShmUnavailable> {
    if (1..=MAX_LOCAL_SIZE).contains(&local_size) {
        return Ok(());
    }
    let reason = format!("{local_size} ranks on one host; a segment takes 1 to {MAX_LOCAL_SIZE}");
    Err(ShmUnavailable { reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_see_the_same_memory() {
        let segments = NodeSegment::for_threads(3).unwrap();
        segments[0].sleeping(2).store(77, Ordering::Relaxed);
        assert_eq!(segments[1].sleeping(2).load(Ordering::Relaxed), 77);
        assert_ne!(
            segments[0].mapping().bytes(0, 1).as_ptr(),
            segments[1].mapping().bytes(0, 1).as_ptr()
        );
        let (address, value) = segments[2].probe(1);
        assert_eq!(segments[1].probe.as_ptr().addr() as u64, address);
        assert_eq!(segments[1].probe.load(Ordering::Relaxed), value);
        drop(segments);
    }

    #[test]
    fn a_segment_outlives_its_peers() {
        let mut segments = NodeSegment::for_threads(2).unwrap();
        let last = segments.pop().unwrap();
        drop(segments);
        assert_eq!(last.probe(0).0, 0);
        last.sleeping(0).store(1, Ordering::Relaxed);
    }

    #[test]
    #[should_panic(expected = "of a mapping of")]
    fn words_outside_are_refused() {
        let segments = NodeSegment::for_threads(1).unwrap();
        let end = segments[0].layout().total_bytes();
        let _ = segments[0].mapping().word(end);
    }
}

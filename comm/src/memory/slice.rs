//! Part of an operation's memory, by address.

/// `len` bytes that an operation may read or write while it runs.
///
/// Not `Clone`: each transfer holds its own, made by [`LocalSlice::part`].
#[derive(Debug)]
pub struct LocalSlice {
    start: *mut u8,
    len: usize,
}

// SAFETY: a slice is an address and a length; the maker of it vouched (see `new`) that the memory
// may be used by whichever thread drives the engine.
unsafe impl Send for LocalSlice {}

impl LocalSlice {
    /// No memory.
    pub fn empty() -> Self {
        Self { start: std::ptr::NonNull::dangling().as_ptr(), len: 0 }
    }

    /// Lends `len` bytes at `start` to the engine.
    ///
    /// # Safety
    /// Until this slice and all its parts are dropped, the bytes must be valid for reads, and for
    /// writes too if any of them becomes the target of a receive, on any thread; nobody else may
    /// write them, nor read those that are written.
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset`, for one transfer.
    ///
    /// # Panics
    /// If they do not lie inside.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Self {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "part {offset}+{len} of a slice of {} bytes", self.len);
        // SAFETY: `offset` is inside the memory or one past its end, by the assertion.
        Self { start: unsafe { self.start.add(offset) }, len }
    }

    /// The bytes, to read.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `new`'s caller vouched for the memory; nobody writes it while it is being
        // read, because no receive of the same round overlaps it.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; additionally this is the only transfer in flight on them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Where it lies, for a peer that reads it with `process_vm_readv`.
    pub fn address(&self) -> u64 {
        self.start.addr() as u64
    }
}

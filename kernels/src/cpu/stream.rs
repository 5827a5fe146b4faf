//! What the x86-64 variants share about stores past the cache.
//!
//! Owns where such stores may begin and how they are ordered. Never writes to a buffer itself.
//! Called by `avx2` and `avx512`.
//!
//! Invariant of the `unsafe` here: a fence has no operands and touches no memory of its own; it is
//! part of the baseline of x86-64.

use core::arch::x86_64::_mm_sfence;

/// Bytes of a cache line: what one write past the cache should fill completely.
pub(super) const LINE_BYTES: usize = 64;

/// Bytes of `target` before its first cache line, if whole elements of `size` bytes fill them.
#[inline(always)]
pub(super) fn offset_to_line(target: &[u8], size: usize) -> Option<usize> {
    let offset = target.as_ptr().addr().wrapping_neg() % LINE_BYTES;
    offset.is_multiple_of(size).then_some(offset)
}

/// Orders this thread's stores past the cache before its later stores, which they would otherwise
/// not be: a flag that tells a peer "written" could overtake the data.
#[inline(always)]
pub(super) fn fence_stores() {
    // SAFETY: SSE, which has this instruction, is part of every x86-64.
    unsafe { _mm_sfence() }
}

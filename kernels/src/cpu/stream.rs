//! Where stores past the cache may begin.
//!
//! Owns the alignment arithmetic the x86-64 variants share. Never stores anything itself.

/// Bytes of a cache line: what one write past the cache should fill completely.
pub(super) const LINE_BYTES: usize = 64;

/// Bytes of `target` before its first cache line, if whole elements of `size` bytes fill them.
#[inline(always)]
pub(super) fn offset_to_line(target: &[u8], size: usize) -> Option<usize> {
    let offset = target.as_ptr().addr().wrapping_neg() % LINE_BYTES;
    offset.is_multiple_of(size).then_some(offset)
}

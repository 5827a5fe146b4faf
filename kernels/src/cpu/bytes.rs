//! Elements seen as bytes.
//!
//! Owns the one place where typed memory is reinterpreted. Never converts or swaps: the bytes are
//! the elements in the host's order. Called by the typed functions and by callers of the byte
//! ones.
//!
//! Invariant of the `unsafe` here: an `Element` is a number without padding of which every bit
//! pattern is valid, and a result borrows what it was made from.

use crate::dtype::Element;

/// The memory of `elements` as bytes, in the host's order.
#[must_use]
pub fn as_bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: the pointer and the length in bytes are those of a live slice, borrowed for as long
    // as the result; `u8` needs no alignment; an `Element` (sealed: the primitive numbers, f16 and
    // bf16) has no padding, so that every byte is initialised.
    unsafe { core::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The memory of `elements` as writable bytes, in the host's order.
#[must_use]
pub fn as_bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `as_bytes`; the borrow is exclusive, and every bit pattern is a value of an
    // `Element`, so that nothing written through the bytes can make an invalid one.
    unsafe { core::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_through_bytes() {
        let mut values = [1_u32, 2];
        as_bytes_mut(&mut values)[4..].copy_from_slice(&7_u32.to_ne_bytes());
        assert_eq!(values, [1, 7]);
        assert_eq!(as_bytes(&values)[..4], 1_u32.to_ne_bytes());
        assert!(as_bytes::<f64>(&[]).is_empty());
    }
}

//! x86-64 with AVX2 and F16C: the shared bodies, compiled for 32-byte vectors.
//!
//! Owns the stores past the cache and the conversions of `f16` by F16C. Called by `table`, on
//! machines that have both features only.

use core::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

use super::stream::{LINE_BYTES, offset_to_line};
use super::{for_dtype_and_op, for_op, kernels_for};
use crate::dtype::f16;

/// AVX2 with F16C. Used as a type argument only by functions that enable both.
pub(super) enum Avx2 {}

impl Isa for Avx2 {
    type F16 = f16;

    #[inline(always)]
    fn stream_offset(target: &[u8], size: usize) -> Option<usize> {
        offset_to_line(target, size)
    }

    #[inline(always)]
    fn stream(target: &mut [u8], source: &[u8]) {
        let (lines, rest) = target.as_chunks_mut::<LINE_BYTES>();
        let (source_lines, source_rest) = source.as_chunks::<LINE_BYTES>();
        for (line, source) in lines.iter_mut().zip(source_lines) {
            let from: *const __m256i = source.as_ptr().cast();
            let to: *mut __m256i = line.as_mut_ptr().cast();
            unsafe {
                let (low, high) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
                _mm256_stream_si256(to, low);
                _mm256_stream_si256(to.add(1), high);
            }
        }
        rest.copy_from_slice(source_rest);
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: SSE is part of every x86-64.
        unsafe { _mm_sfence() }
    }
}

kernels_for!(Avx2, target_feature(enable = "avx2,f16c"));

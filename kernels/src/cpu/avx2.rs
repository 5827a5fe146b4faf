//! x86-64 with AVX2 and F16C: the shared bodies, compiled for 32-byte vectors.
//!
//! Owns the stores past the cache and the conversions of `f16` by F16C. Called by `table`, on
//! machines that have both features only.

use core::arch::x86_64::*;
use core::array::from_fn;

use super::lane::raw_bytes;
use super::stream::{LINE_BYTES, offset_to_line};
use super::{for_dtype_and_op, for_op, kernels_for};
use crate::dtype::f16;

/// AVX2 with F16C. Used as a type argument only by functions that enable both.
pub(super) enum Avx2 {}

impl Isa for Avx2 {
    type F16 = F16Pack;

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

/// 8 `f32` in one vector register.
#[derive(Clone, Copy)]
pub(super) struct F32x8(__m256);

impl Number for F32x8 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see `Avx2`: every caller enables the features of this file.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        // SAFETY: as in `add`.
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn divide(self, world_size: u32) -> Self {
        // SAFETY: as in `add`.
        Self(unsafe { _mm256_div_ps(self.0, _mm256_set1_ps(world_size as f32)) })
    }
}

/// 16 neighbouring `f16`, which become two vectors of `f32`.
pub(super) enum F16Pack {}

impl Lane for F16Pack {
    raw_bytes!(32);
    type Wide = [F32x8; 2];
    type Held = Self;
    type Single = f16;
    const PACKED: bool = true;
    #[inline(always)]
    fn widen(raw: Self::Raw) -> Self::Wide {
        let (halves, _) = raw.as_chunks::<16>();
        from_fn(|i| {
            // SAFETY: the half has 16 bytes, the load needs no alignment; for the features, as in
            // `F32x8::add`.
            F32x8(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(halves[i].as_ptr().cast())) })
        })
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self::Raw {
        let mut raw = [0; 32];
        let (halves, _) = raw.as_chunks_mut::<16>();
        for (half, wide) in halves.iter_mut().zip(wide) {
            // SAFETY: `half` has room for 16 bytes, the store needs no alignment; for the
            // features, as in `F32x8::add`.
            unsafe {
                let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide.0);
                _mm_storeu_si128(half.as_mut_ptr().cast(), rounded);
            }
        }
        raw
    }
}

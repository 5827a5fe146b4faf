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
pub(super) enum Avx512 {}

impl Isa for Avx512 {
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
            let from: *const __m512i = source.as_ptr().cast();
            let to: *mut __m512i = line.as_mut_ptr().cast();
            unsafe { _mm512_stream_si512(to, _mm512_loadu_si512(from)) }
        }
        rest.copy_from_slice(source_rest);
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: SSE is part of every x86-64.
        unsafe { _mm_sfence() }
    }
}

kernels_for!(Avx512, target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl"));

/// 16 `f32` in one vector register.
#[derive(Clone, Copy)]
pub(super) struct F32x16(__m512);

impl Number for F32x16 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see `Avx512`: every caller enables the features of this file.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        // SAFETY: as in `add`.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn divide(self, world_size: u32) -> Self {
        // SAFETY: as in `add`.
        Self(unsafe { _mm512_div_ps(self.0, _mm512_set1_ps(world_size as f32)) })
    }
}

/// 32 neighbouring `f16`, which become two vectors of `f32`.
pub(super) enum F16Pack {}

impl Lane for F16Pack {
    raw_bytes!(64);
    type Wide = [F32x16; 2];
    type Held = Self;
    type Single = f16;
    const PACKED: bool = true;
    #[inline(always)]
    fn widen(raw: Self::Raw) -> Self::Wide {
        let (halves, _) = raw.as_chunks::<32>();
        from_fn(|i| {
            // SAFETY: the half has 32 bytes, the load needs no alignment; for the features, as in
            // `F32x16::add`.
            F32x16(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(halves[i].as_ptr().cast())) })
        })
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self::Raw {
        let mut raw = [0; 64];
        let (halves, _) = raw.as_chunks_mut::<32>();
        for (half, wide) in halves.iter_mut().zip(wide) {
            // SAFETY: `half` has room for 32 bytes, the store needs no alignment; for the
            // features, as in `F32x16::add`.
            unsafe {
                let rounded = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide.0);
                _mm256_storeu_si256(half.as_mut_ptr().cast(), rounded);
            }
        }
        raw
    }
}

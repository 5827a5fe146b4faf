//! x86-64 with AVX-512 F, BW, DQ and VL beside AVX2 and F16C: the shared bodies, compiled for
//! 64-byte vectors.
//!
//! Owns this variant's stores past the cache and its conversions of `f16`; everything else is
//! `fold` and `lane`. Called by `table`, on machines that have every feature listed below only.
//!
//! Invariant of the `unsafe` here: instructions beyond the baseline are reached only through the
//! table
//! that was chosen after the processor was asked for their features, and every load and store stays
//! inside the slice it was derived from.

use core::arch::x86_64::{
    __m512, __m512i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm256_loadu_si256,
    _mm256_storeu_si256, _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_cvtph_ps, _mm512_cvtps_ph,
    _mm512_div_ps, _mm512_loadu_si512, _mm512_mask_mov_ps, _mm512_mul_ps, _mm512_set1_ps,
    _mm512_storeu_si512, _mm512_stream_si512,
};

use super::lane::raw_bytes;
use super::stream::{LINE_BYTES, fence_stores, offset_to_line};
use super::{for_dtype_and_op, for_op, kernels_for};
use crate::dtype::f16;

/// AVX-512 F, BW, DQ and VL beside AVX2 and F16C.
///
/// This type, [`F32x16`] and [`F16Pack`] use its instructions in safe functions. That is sound
/// because they are named by `kernels_for!` below only, whose functions all enable the features
/// and are `unsafe` to call without them.
pub(super) enum Avx512 {}

impl Isa for Avx512 {
    type F16 = F16Pack;

    #[inline(always)]
    fn stream_offset(target: &[u8], size: usize) -> Option<usize> {
        offset_to_line(target, size)
    }

    #[inline(always)]
    fn store(target: &mut [u8], source: &[u8]) {
        let (pairs, rest) = target.as_chunks_mut::<{ 2 * LINE_BYTES }>();
        let (source_pairs, source_rest) = source.as_chunks::<{ 2 * LINE_BYTES }>();
        for (pair, source) in pairs.iter_mut().zip(source_pairs) {
            let from = source.as_ptr().cast::<__m512i>();
            let to = pair.as_mut_ptr().cast::<__m512i>();
            // SAFETY: two lines are two vectors long, so that `add(1)` stays inside both; loads
            // and stores need no alignment; the features are there, see `Avx512`.
            unsafe {
                let (low, high) = (_mm512_loadu_si512(from), _mm512_loadu_si512(from.add(1)));
                _mm512_storeu_si512(to, low);
                _mm512_storeu_si512(to.add(1), high);
            }
        }
        rest.copy_from_slice(source_rest);
    }

    #[inline(always)]
    fn stream(target: &mut [u8], source: &[u8]) {
        let (lines, rest) = target.as_chunks_mut::<LINE_BYTES>();
        let (source_lines, source_rest) = source.as_chunks::<LINE_BYTES>();
        assert!(lines.is_empty() || lines.as_ptr().addr().is_multiple_of(LINE_BYTES));
        for (line, source) in lines.iter_mut().zip(source_lines) {
            let from = source.as_ptr().cast::<__m512i>();
            let to = line.as_mut_ptr().cast::<__m512i>();
            // SAFETY: a line is one vector long; the load needs no alignment; the lines are
            // aligned, as asserted; the features are there, see `Avx512`.
            unsafe { _mm512_stream_si512(to, _mm512_loadu_si512(from)) }
        }
        rest.copy_from_slice(source_rest);
    }

    #[inline(always)]
    fn fence() {
        fence_stores();
    }
}

kernels_for!(Avx512, target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl"));

/// 16 `f32` in one vector register.
#[derive(Clone, Copy)]
pub(super) struct F32x16(__m512);

impl Number for F32x16 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the features are there, see `Avx512`.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        // SAFETY: the features are there, see `Avx512`.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn canonical(self) -> Self {
        // SAFETY: the features are there, see `Avx512`.
        unsafe {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            Self(_mm512_mask_mov_ps(self.0, nan, _mm512_set1_ps(f32::NAN)))
        }
    }
    #[inline(always)]
    fn divide(self, world_size: u32) -> Self {
        // SAFETY: the features are there, see `Avx512`.
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
        let [low, high] = [halves[0].as_ptr().cast(), halves[1].as_ptr().cast()];
        // SAFETY: a half has the 32 bytes that are loaded, at any alignment; the features are
        // there, see `Avx512`.
        unsafe {
            [
                F32x16(_mm512_cvtph_ps(_mm256_loadu_si256(low))),
                F32x16(_mm512_cvtph_ps(_mm256_loadu_si256(high))),
            ]
        }
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self::Raw {
        let mut raw = [0; 64];
        for (half, wide) in raw.as_chunks_mut::<32>().0.iter_mut().zip(wide) {
            let half = half.as_mut_ptr().cast();
            // SAFETY: a half has the 32 bytes that are stored, at any alignment; the features
            // are there, see `Avx512`.
            unsafe {
                _mm256_storeu_si256(
                    half,
                    _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide.canonical().0),
                );
            }
        }
        raw
    }
}

//! x86-64 with AVX2 and F16C: the shared bodies, compiled for 32-byte vectors.
//!
//! Owns this variant's stores past the cache and its conversions of `f16`; everything else is
//! `fold` and `lane`. Called by `table`, on machines that have every feature listed below only.
//!
//! Invariant of the `unsafe` here: instructions beyond the baseline are reached only through the
//! table
//! that was chosen after the processor was asked for their features, and every load and store stays
//! inside the slice it was derived from.

use core::arch::x86_64::{
    __m256, __m256i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128,
    _mm256_add_ps, _mm256_blendv_ps, _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_div_ps, _mm256_loadu_si256, _mm256_mul_ps, _mm256_set1_ps, _mm256_storeu_si256,
    _mm256_stream_si256,
};

use super::lane::raw_bytes;
use super::stream::{LINE_BYTES, fence_stores, offset_to_line};
use super::{for_dtype_and_op, for_op, kernels_for};
use crate::dtype::f16;

/// AVX2 and F16C.
///
/// This type, [`F32x8`] and [`F16Pack`] use its instructions in safe functions. That is sound
/// because they are named by `kernels_for!` below only, whose functions all enable the features
/// and are `unsafe` to call without them.
pub(super) enum Avx2 {}

impl Isa for Avx2 {
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
            let from = source.as_ptr().cast::<__m256i>();
            let to = pair.as_mut_ptr().cast::<__m256i>();
            // SAFETY: two lines are four vectors long, so that `add(3)` stays inside both; loads
            // and stores need no alignment; the features are there, see `Avx2`.
            unsafe {
                let (a, b) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
                let (c, d) = (_mm256_loadu_si256(from.add(2)), _mm256_loadu_si256(from.add(3)));
                _mm256_storeu_si256(to, a);
                _mm256_storeu_si256(to.add(1), b);
                _mm256_storeu_si256(to.add(2), c);
                _mm256_storeu_si256(to.add(3), d);
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
            let from = source.as_ptr().cast::<__m256i>();
            let to = line.as_mut_ptr().cast::<__m256i>();
            // SAFETY: a line is two vectors long, so that `add(1)` stays inside both; the loads
            // need no alignment; the lines are aligned, as asserted; the features are
            // there, see `Avx2`.
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
        fence_stores();
    }
}

kernels_for!(Avx2, target_feature(enable = "avx2,f16c"));

/// 8 `f32` in one vector register.
#[derive(Clone, Copy)]
pub(super) struct F32x8(__m256);

impl Number for F32x8 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: the features are there, see `Avx2`.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        // SAFETY: the features are there, see `Avx2`.
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn canonical(self) -> Self {
        // SAFETY: the features are there, see `Avx2`.
        unsafe {
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
            Self(_mm256_blendv_ps(self.0, _mm256_set1_ps(f32::NAN), nan))
        }
    }
    #[inline(always)]
    fn divide(self, world_size: u32) -> Self {
        // SAFETY: the features are there, see `Avx2`.
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
        let [low, high] = [halves[0].as_ptr().cast(), halves[1].as_ptr().cast()];
        // SAFETY: a half has the 16 bytes that are loaded, at any alignment; the features are
        // there, see `Avx2`.
        unsafe {
            [
                F32x8(_mm256_cvtph_ps(_mm_loadu_si128(low))),
                F32x8(_mm256_cvtph_ps(_mm_loadu_si128(high))),
            ]
        }
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self::Raw {
        let mut raw = [0; 32];
        for (half, wide) in raw.as_chunks_mut::<16>().0.iter_mut().zip(wide) {
            let half = half.as_mut_ptr().cast();
            // SAFETY: a half has the 16 bytes that are stored, at any alignment; the features
            // are there, see `Avx2`.
            unsafe {
                _mm_storeu_si128(
                    half,
                    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide.canonical().0),
                );
            }
        }
        raw
    }
}

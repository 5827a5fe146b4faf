//! How one element is read, computed on and written.
//!
//! Owns the arithmetic of CONTRACT.md, one element at a time, without unsafe: plain expressions
//! without branches, which the compiler turns into vector instructions inside each variant. Never
//! loops over a buffer (`fold` does). Called by `fold`, and by `avx2` and `avx512` for the rest
//! of a buffer that their own conversions of `f16` leave.

use crate::dtype::{bf16, f16};

/// A type arithmetic is done in.
pub(super) trait Number: Copy {
    const ZERO: Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn lesser(self, other: Self) -> Self;
    fn greater(self, other: Self) -> Self;
    /// `self / world_size`; the caller has excluded zero.
    fn divide(self, world_size: u32) -> Self;
}

macro_rules! integer_numbers {
    ($($ty:ty, $wide:ty);* $(;)?) => {$(
        impl Number for $ty {
            const ZERO: Self = 0;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                if other > self { other } else { self }
            }
            #[inline(always)]
            fn divide(self, world_size: u32) -> Self {
                // 64 bits hold every `u32`, which this type may not.
                (<$wide>::from(self) / <$wide>::from(world_size)) as Self
            }
        }
    )*};
}

integer_numbers! {
    i8, i64; i16, i64; i32, i64; i64, i64;
    u8, u64; u16, u64; u32, u64; u64, u64;
}

macro_rules! float_numbers {
    ($($ty:ty),*) => {$(
        impl Number for $ty {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            /// `x < y ? x : y` is one vector instruction. Both orders of it differ only for the
            /// two zeros, where `|` of the bits yields -0, and for NaN, which is replaced.
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                let one = if self < other { self } else { other };
                let two = if other < self { other } else { self };
                let both = Self::from_bits(one.to_bits() | two.to_bits());
                if self.is_nan() | other.is_nan() { Self::NAN } else { both }
            }
            /// As `lesser`, with `&` of the bits for +0.
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                let one = if self > other { self } else { other };
                let two = if other > self { other } else { self };
                let both = Self::from_bits(one.to_bits() & two.to_bits());
                if self.is_nan() | other.is_nan() { Self::NAN } else { both }
            }
            #[inline(always)]
            fn divide(self, world_size: u32) -> Self {
                self / world_size as Self
            }
        }
    )*};
}

float_numbers!(f32, f64);

/// How an element lies in memory, and the [`Number`] it is computed as.
pub(super) trait Lane {
    /// The element's bytes, an array of `u8`.
    type Raw: Copy;
    type Wide: Number;
    /// Whether `Wide` keeps more digits than the element: then a fold over many sources must be
    /// held in `Wide` until it is complete.
    const WIDENS: bool;
    /// The whole elements in `bytes`; a remainder is left out.
    fn raw(bytes: &[u8]) -> &[Self::Raw];
    /// As `raw`, writable.
    fn raw_mut(bytes: &mut [u8]) -> &mut [Self::Raw];
    fn widen(raw: Self::Raw) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self::Raw;
}

macro_rules! lanes {
    ($($ty:ty, $size:literal, $wide:ty, $widens:literal, $widen:expr, $narrow:expr);* $(;)?) => {$(
        impl Lane for $ty {
            type Raw = [u8; $size];
            type Wide = $wide;
            const WIDENS: bool = $widens;
            #[inline(always)]
            fn raw(bytes: &[u8]) -> &[Self::Raw] {
                bytes.as_chunks().0
            }
            #[inline(always)]
            fn raw_mut(bytes: &mut [u8]) -> &mut [Self::Raw] {
                bytes.as_chunks_mut().0
            }
            #[inline(always)]
            fn widen(raw: Self::Raw) -> $wide {
                $widen(raw)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> Self::Raw {
                $narrow(wide)
            }
        }
    )*};
}

lanes! {
    f32, 4, Self, false, Self::from_ne_bytes, Self::to_ne_bytes;
    f64, 8, Self, false, Self::from_ne_bytes, Self::to_ne_bytes;
    i8, 1, Self, false, Self::from_ne_bytes, Self::to_ne_bytes;
    i16, 2, Self, false, Self::from_ne_bytes, Self::to_ne_bytes;
    i32, 4, Self, false, Self::from_ne_bytes, Self::to_ne_bytes;
    i64, 8, Self, false, Self::from_ne_bytes, Self::to_ne_bytes;
    u8, 1, Self, false, Self::from_ne_bytes, Self::to_ne_bytes;
    u16, 2, Self, false, Self::from_ne_bytes, Self::to_ne_bytes;
    u32, 4, Self, false, Self::from_ne_bytes, Self::to_ne_bytes;
    u64, 8, Self, false, Self::from_ne_bytes, Self::to_ne_bytes;
    bf16, 2, f32, true, widen_bf16, narrow_bf16;
    f16, 2, f32, true, widen_f16, narrow_f16;
}

#[inline(always)]
fn widen_bf16(raw: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_ne_bytes(raw)) << 16)
}

/// Rounds to nearest, ties to even. NaN is quietened instead: adding to its bits could carry it
/// into infinity, and cutting them could leave no fraction bit.
#[inline(always)]
fn narrow_bf16(wide: f32) -> [u8; 2] {
    let bits = wide.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let chosen = if wide.is_nan() { bits | 0x0040_0000 } else { rounded };
    ((chosen >> 16) as u16).to_ne_bytes()
}

/// Shifts the bits into place and lets one exact multiplication by 2^112 correct the exponent,
/// which makes subnormals right too; infinity and NaN get the greatest exponent by hand.
#[inline(always)]
pub(super) fn widen_f16(raw: [u8; 2]) -> f32 {
    const TWO_TO_112: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(u16::from_ne_bytes(raw));
    let sign = (bits & 0x8000) << 16;
    let magnitude = (bits & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * TWO_TO_112).to_bits();
    let special = magnitude | 0x7f80_0000;
    // A signalling NaN becomes quiet, as the hardware's conversion makes it.
    let quiet = if bits & 0x03ff != 0 { 0x0040_0000 } else { 0 };
    let chosen = if bits & 0x7c00 == 0x7c00 { special | quiet } else { finite };
    f32::from_bits(chosen | sign)
}

/// Rounds to nearest, ties to even; from 65520 on the result is infinity.
#[inline(always)]
pub(super) fn narrow_f16(wide: f32) -> [u8; 2] {
    let bits = wide.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Normal results: move the exponent's bias from 127 to 15, round at bit 13.
    let rounded = magnitude.wrapping_sub(112 << 23).wrapping_add(0x0fff + ((magnitude >> 13) & 1));
    let normal = (rounded >> 13).min(0x7c00);
    // Below 2^-14 the result is subnormal: adding 1/2 aligns its last bit, 2^-24, with the last
    // fraction bit of the sum, so that the addition itself rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let number = if magnitude < 113 << 23 { subnormal } else { normal };
    let nan = 0x7e00 | ((magnitude >> 13) & 0x01ff);
    let chosen = if wide.is_nan() { nan } else { number };
    ((sign | chosen) as u16).to_ne_bytes()
}

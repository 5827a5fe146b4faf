//! The 16-bit floats: conversion to `f32` and back, and comparison by their bits.
//!
//! Owns their rounding and their NaN. Without unsafe and without branches, for any machine;
//! variants with conversions of their own use those instead. Called by `lane`.

use super::number::Ordered;

/// The bits of an infinite `f16`.
pub(super) const F16_INFINITY: u16 = 0x7c00;

/// The bits of an infinite `bf16`.
pub(super) const BF16_INFINITY: u16 = 0x7f80;

/// The bits of a 16-bit float whose infinity has the bits `INFINITY`, to be compared. A minimum
/// needs no more digits than its operands, and twice as many 16-bit integers as `f32` fit into a
/// vector.
#[derive(Clone, Copy)]
pub(super) struct HalfBits<const INFINITY: u16>(pub(super) u16);

impl<const INFINITY: u16> HalfBits<INFINITY> {
    /// The positive quiet NaN without payload: infinity with the first fraction bit set.
    const NAN: u16 = INFINITY | ((INFINITY & INFINITY.wrapping_neg()) >> 1);

    /// An integer ordered as the number is, -0 below +0: a negative number's other bits turned.
    #[inline(always)]
    fn key(self) -> i16 {
        let bits = self.0 as i16;
        bits ^ ((bits >> 15) & 0x7fff)
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        self.0 & 0x7fff > INFINITY
    }

    #[inline(always)]
    fn or_nan(self, a: Self, b: Self) -> Self {
        if a.is_nan() | b.is_nan() { Self(Self::NAN) } else { self }
    }
}

impl<const INFINITY: u16> Ordered for HalfBits<INFINITY> {
    #[inline(always)]
    fn lesser(self, other: Self) -> Self {
        let lesser = if other.key() < self.key() { other } else { self };
        lesser.or_nan(self, other)
    }
    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        let greater = if other.key() > self.key() { other } else { self };
        greater.or_nan(self, other)
    }
}

pub(super) const UPPER_HALF: u32 = 0xffff_0000;

#[inline(always)]
pub(super) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[inline(always)]
pub(super) fn narrow_bf16(wide: f32) -> u16 {
    (round_bf16(wide) >> 16) as u16
}

/// A word whose upper half is `wide` rounded to nearest, ties to even. NaN becomes the canonical
/// one instead: adding to its bits could carry it into infinity.
#[inline(always)]
pub(super) fn round_bf16(wide: f32) -> u32 {
    let bits = wide.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    if wide.is_nan() { f32::NAN.to_bits() } else { rounded }
}

/// Shifts the bits into place and lets one exact multiplication by 2^112 correct the exponent,
/// which makes subnormals right too; infinity and NaN get the greatest exponent by hand.
#[inline(always)]
pub(super) fn widen_f16(bits: u16) -> f32 {
    const TWO_TO_112: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(bits);
    let sign = (bits & 0x8000) << 16;
    let magnitude = (bits & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * TWO_TO_112).to_bits();
    let special = magnitude | 0x7f80_0000;
    // A signalling NaN becomes quiet, as the hardware's conversion makes it.
    let quiet = if bits & 0x03ff != 0 { 0x0040_0000 } else { 0 };
    let chosen = if bits & 0x7c00 == 0x7c00 { special | quiet } else { finite };
    f32::from_bits(chosen | sign)
}

/// Rounds to nearest, ties to even; from 65520 on the result is infinity. NaN becomes the
/// canonical one.
#[inline(always)]
pub(super) fn narrow_f16(wide: f32) -> u16 {
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
    if wide.is_nan() { HalfBits::<F16_INFINITY>::NAN } else { (sign | number) as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{bf16, f16};

    fn check(number: f32) {
        if number.is_nan() {
            assert_eq!(narrow_f16(number), f16::NAN.to_bits());
            assert_eq!(narrow_bf16(number), bf16::NAN.to_bits());
            return;
        }
        let (ours, theirs) = (narrow_f16(number), f16::from_f32(number).to_bits());
        assert_eq!(ours, theirs, "f16 of {number:e} = {:#x}", number.to_bits());
        let (ours, theirs) = (narrow_bf16(number), bf16::from_f32(number).to_bits());
        assert_eq!(ours, theirs, "bf16 of {number:e} = {:#x}", number.to_bits());
    }

    #[test]
    fn widens_every_value() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widen_f16(bits), f16::from_bits(bits).to_f32());
            assert_eq!(ours.to_bits(), theirs.to_bits(), "f16 {bits:#x}");
            // Here a signalling NaN stays one: the arithmetic that follows makes it quiet.
            assert_eq!(widen_bf16(bits).to_bits(), u32::from(bits) << 16);
        }
    }

    #[test]
    fn rounds_a_sample_of_all_numbers() {
        for bits in (0..=u32::MAX).step_by(4099) {
            check(f32::from_bits(bits));
        }
    }

    /// Halfway between any two neighbours, and the numbers beside that.
    #[test]
    fn rounds_ties_to_even() {
        for bits in 0..0x7c00_u16 {
            let next = f16::from_bits(bits + 1).to_f32();
            let next = if next.is_infinite() { 65536.0 } else { next };
            let tie = ((f16::from_bits(bits).to_f32() + next) / 2.0).to_bits();
            for near in [tie - 1, tie, tie + 1] {
                check(f32::from_bits(near));
                check(-f32::from_bits(near));
            }
        }
        for bits in 0..0x7f80_u32 {
            let tie = (bits << 16) | 0x8000;
            for near in [tie - 1, tie, tie + 1] {
                check(f32::from_bits(near));
                check(-f32::from_bits(near));
            }
        }
    }
}

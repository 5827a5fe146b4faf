//! How elements lie in memory and what they are computed as.
//!
//! Owns the list of lanes: one per element type, two for the 16-bit floats, which are summed as
//! `f32` and compared as bits. Never loops over a buffer (`fold` does). Called by `fold`.

use super::half::{
    BF16_INFINITY, F16_INFINITY, HalfBits, UPPER_HALF, narrow_bf16, narrow_f16, round_bf16,
    widen_bf16, widen_f16,
};
use super::number::Number;
use crate::dtype::{bf16, f16};

/// How one element, or a pack of neighbours, lies in memory, and what it is computed as.
pub(super) trait Lane {
    /// The bytes, an array of `u8`.
    type Raw: Copy;
    type Wide: Copy;
    /// The lane for folds over more than two sources, whose elements are held as `Wide` until all
    /// are folded: `Self`, unless another's `Wide` lies better in registers.
    type Held: Lane;
    /// The lane of a single element: `Self`, unless this is a pack.
    type Single: Lane;
    /// Whether this is a pack, after which a buffer may have single elements left.
    const PACKED: bool;
    /// The whole lanes in `bytes`; a remainder is left out.
    fn raw(bytes: &[u8]) -> &[Self::Raw];
    /// As `raw`, writable.
    fn raw_mut(bytes: &mut [u8]) -> &mut [Self::Raw];
    fn widen(raw: Self::Raw) -> Self::Wide;
    /// Rounds to the element; NaN becomes the canonical one.
    fn narrow(wide: Self::Wide) -> Self::Raw;
}

/// The items of [`Lane`] that say which bytes a lane has.
macro_rules! raw_bytes {
    ($size:expr) => {
        type Raw = [u8; $size];
        #[inline(always)]
        fn raw(bytes: &[u8]) -> &[Self::Raw] {
            bytes.as_chunks().0
        }
        #[inline(always)]
        fn raw_mut(bytes: &mut [u8]) -> &mut [Self::Raw] {
            bytes.as_chunks_mut().0
        }
    };
}
pub(super) use raw_bytes;

macro_rules! native_lanes {
    ($($ty:ty),*) => {$(
        impl Lane for $ty {
            raw_bytes!(size_of::<$ty>());
            type Wide = Self;
            type Single = Self;
            type Held = Self;
            const PACKED: bool = false;
            #[inline(always)]
            fn widen(raw: Self::Raw) -> Self {
                Self::from_ne_bytes(raw)
            }
            #[inline(always)]
            fn narrow(wide: Self) -> Self::Raw {
                wide.canonical().to_ne_bytes()
            }
        }
    )*};
}

native_lanes!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! half_lanes {
    ($($ty:ty, $widen:ident, $narrow:ident);*) => {$(
        impl Lane for $ty {
            raw_bytes!(2);
            type Wide = f32;
            type Single = Self;
            type Held = Self;
            const PACKED: bool = false;
            #[inline(always)]
            fn widen(raw: Self::Raw) -> f32 {
                $widen(u16::from_ne_bytes(raw))
            }
            #[inline(always)]
            fn narrow(wide: f32) -> Self::Raw {
                $narrow(wide).to_ne_bytes()
            }
        }
    )*};
}

half_lanes! { bf16, widen_bf16, narrow_bf16; f16, widen_f16, narrow_f16 }

/// Two neighbouring `bf16`, for sum and product: in one 32-bit word, they need no shuffling to
/// become two `f32`. Which of the two comes first in memory does not matter.
pub(super) enum Bf16Pair {}

impl Lane for Bf16Pair {
    raw_bytes!(4);
    type Wide = [f32; 2];
    type Single = bf16;
    type Held = bf16;
    const PACKED: bool = true;
    #[inline(always)]
    fn widen(raw: Self::Raw) -> [f32; 2] {
        let word = u32::from_ne_bytes(raw);
        [f32::from_bits(word << 16), f32::from_bits(word & UPPER_HALF)]
    }
    #[inline(always)]
    fn narrow(wide: [f32; 2]) -> Self::Raw {
        let [low, high] = [round_bf16(wide[0]), round_bf16(wide[1])];
        ((low >> 16) | (high & UPPER_HALF)).to_ne_bytes()
    }
}

/// A 16-bit float for minimum and maximum.
impl<const INFINITY: u16> Lane for HalfBits<INFINITY> {
    raw_bytes!(2);
    type Wide = Self;
    type Single = Self;
    type Held = Self;
    const PACKED: bool = false;
    #[inline(always)]
    fn widen(raw: Self::Raw) -> Self {
        Self(u16::from_ne_bytes(raw))
    }
    #[inline(always)]
    fn narrow(wide: Self) -> Self::Raw {
        wide.0.to_ne_bytes()
    }
}

/// `f16` for minimum and maximum.
pub(super) type F16Bits = HalfBits<F16_INFINITY>;
/// `bf16` for minimum and maximum.
pub(super) type Bf16Bits = HalfBits<BF16_INFINITY>;

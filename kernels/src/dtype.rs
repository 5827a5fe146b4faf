//! The twelve element types a buffer may hold, at run time ([`DType`]) and at compile time
//! ([`Element`]).
//!
//! Owns names, sizes and wire codes. Never does arithmetic on buffers (`cpu` does) and never
//! touches raw memory. Called by every crate above this one.

use core::fmt;
use core::str::FromStr;

pub use half::{bf16, f16};

/// The type of the elements of a buffer, known at run time.
///
/// The discriminant is the wire code: it is sent in headers and must not change.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DType {
    /// IEEE 754 binary16: 1 sign, 5 exponent and 10 fraction bits.
    F16 = 0,
    /// bfloat16, the upper half of an `f32`: 1 sign, 8 exponent and 7 fraction bits.
    BF16 = 1,
    /// IEEE 754 binary32.
    F32 = 2,
    /// IEEE 754 binary64.
    F64 = 3,
    /// Signed, 8 bits.
    I8 = 4,
    /// Signed, 16 bits.
    I16 = 5,
    /// Signed, 32 bits.
    I32 = 6,
    /// Signed, 64 bits.
    I64 = 7,
    /// Unsigned, 8 bits.
    U8 = 8,
    /// Unsigned, 16 bits.
    U16 = 9,
    /// Unsigned, 32 bits.
    U32 = 10,
    /// Unsigned, 64 bits.
    U64 = 11,
}

impl DType {
    /// Every type, ordered by code: `ALL[i].code() == i`.
    pub const ALL: [Self; 12] = [
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
    ];

    /// Bytes one element takes: 1, 2, 4 or 8.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Whether it is one of the four floating-point types.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }

    /// The wire code, `0..12`.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type with this wire code, or `None` if there is none.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if (code as usize) < Self::ALL.len() { Some(Self::ALL[code as usize]) } else { None }
    }

    /// The short lower-case name: `"f16"`, `"bf16"`, `"f32"`, … `"u64"`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = UnknownName;

    /// Reads what [`DType::name`] writes; no other spelling, no other case.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or_else(|| {
            UnknownName::new("element type", text, Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// A name that is no [`DType`] or no [`ReduceOp`](crate::ReduceOp); its text lists those that are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownName {
    what: &'static str,
    name: String,
    known: String,
}

impl UnknownName {
    pub(crate) fn new(what: &'static str, name: &str, known: String) -> Self {
        Self { what, name: name.to_owned(), known }
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no {}; known: {}", self.name, self.what, self.known)
    }
}

impl core::error::Error for UnknownName {}

/// A Rust type that is one of the twelve element types. Sealed: nobody else can add one.
///
/// An implementor has no padding and every bit pattern is a value of it, so that its memory may be
/// read and written as bytes ([`as_bytes_mut`](crate::as_bytes_mut)).
pub trait Element:
    sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static
{
    /// The same type at run time.
    const DTYPE: DType;

    /// The value as `f64`: exact, but for 64-bit integers beyond ±2^53, which are rounded.
    fn to_f64(self) -> f64;

    /// The nearest value of this type. Floats round to nearest even; integers truncate towards
    /// zero and saturate at their limits, NaN becoming 0.
    fn from_f64(value: f64) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! primitive_elements {
    ($($ty:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn from_f64(value: f64) -> Self {
                value as Self
            }
        }
    )*};
}

primitive_elements! {
    f32 => F32, f64 => F64, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}

macro_rules! half_elements {
    ($($ty:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn to_f64(self) -> f64 {
                Self::to_f64(self)
            }
            fn from_f64(value: f64) -> Self {
                Self::from_f64(value)
            }
        }
    )*};
}

half_elements! { f16 => F16, bf16 => BF16 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_round_trip() {
        for (index, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(dtype.code()), index);
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
        }
        assert_eq!(DType::from_code(12), None);
        assert_eq!(DType::from_code(255), None);
    }

    #[test]
    fn unknown_name_lists_the_known() {
        let error = "float".parse::<DType>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"float\" is no element type; known: \
             f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64"
        );
    }

    fn check<T: Element>(values: &[f64]) {
        assert_eq!(size_of::<T>(), T::DTYPE.size());
        assert_eq!(T::default().to_f64(), 0.0);
        for &value in values {
            assert_eq!(T::from_f64(value).to_f64(), value, "{:?}", T::DTYPE);
        }
    }

    #[test]
    fn elements_convert() {
        check::<f16>(&[1.0, -0.5, 65504.0]);
        check::<bf16>(&[1.0, -0.5, 3.0]);
        check::<f32>(&[1.0, -0.5, 16_777_216.0]);
        check::<f64>(&[1.0, -0.5, 1e300]);
        check::<i8>(&[1.0, -128.0, 127.0]);
        check::<i16>(&[1.0, -32768.0]);
        check::<i32>(&[1.0, -2_147_483_648.0]);
        check::<i64>(&[1.0, -9_007_199_254_740_992.0]);
        check::<u8>(&[1.0, 255.0]);
        check::<u16>(&[1.0, 65535.0]);
        check::<u32>(&[1.0, 4_294_967_295.0]);
        check::<u64>(&[1.0, 9_007_199_254_740_992.0]);
        assert_eq!(i8::from_f64(-1000.0), -128);
        assert_eq!(u8::from_f64(f64::NAN), 0);
    }
}

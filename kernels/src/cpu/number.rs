//! Arithmetic on one number: the expressions CONTRACT.md describes.
//!
//! Owns what sum, product, minimum, maximum and division mean for each type arithmetic is done
//! in. Never branches, so that the loops of `fold` become vector instructions; never sees
//! memory. Called by `fold` only.

/// A type sums and products are done in.
pub(super) trait Number: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// The number, or the positive quiet NaN without payload for any NaN. Which of two NaNs an
    /// addition passes on depends on how the compiler ordered its operands; this makes it one.
    fn canonical(self) -> Self;
    /// `self / world_size`; the caller has excluded zero.
    fn divide(self, world_size: u32) -> Self;
}

/// A type minima and maxima are done in.
pub(super) trait Ordered: Copy {
    fn lesser(self, other: Self) -> Self;
    fn greater(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($ty:ty, $widest:ty);*) => {$(
        impl Number for $ty {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn canonical(self) -> Self {
                self
            }
            #[inline(always)]
            fn divide(self, world_size: u32) -> Self {
                // 64 bits hold every `u32`, which this type may not.
                (<$widest>::from(self) / <$widest>::from(world_size)) as Self
            }
        }

        impl Ordered for $ty {
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                if other > self { other } else { self }
            }
        }
    )*};
}

integers! {
    i8, i64; i16, i64; i32, i64; i64, i64;
    u8, u64; u16, u64; u32, u64; u64, u64
}

macro_rules! floats {
    ($($ty:ty),*) => {$(
        impl Number for $ty {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn canonical(self) -> Self {
                if self.is_nan() { Self::NAN } else { self }
            }
            #[inline(always)]
            fn divide(self, world_size: u32) -> Self {
                self / world_size as Self
            }
        }

        /// `x < y ? x : y` is one vector instruction. Its two orders differ only for the two
        /// zeros, where `|` of the bits yields -0 and `&` yields +0, and for NaN, which is
        /// replaced.
        impl Ordered for $ty {
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                let one = if self < other { self } else { other };
                let two = if other < self { other } else { self };
                let both = Self::from_bits(one.to_bits() | two.to_bits());
                if self.is_nan() | other.is_nan() { Self::NAN } else { both }
            }
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                let one = if self > other { self } else { other };
                let two = if other > self { other } else { self };
                let both = Self::from_bits(one.to_bits() & two.to_bits());
                if self.is_nan() | other.is_nan() { Self::NAN } else { both }
            }
        }
    )*};
}

floats!(f32, f64);

/// Several numbers side by side, each on its own.
impl<N: Number, const COUNT: usize> Number for [N; COUNT] {
    #[inline(always)]
    fn add(mut self, other: Self) -> Self {
        for i in 0..COUNT {
            self[i] = self[i].add(other[i]);
        }
        self
    }
    #[inline(always)]
    fn multiply(mut self, other: Self) -> Self {
        for i in 0..COUNT {
            self[i] = self[i].multiply(other[i]);
        }
        self
    }
    #[inline(always)]
    fn canonical(mut self) -> Self {
        for element in &mut self {
            *element = element.canonical();
        }
        self
    }
    #[inline(always)]
    fn divide(mut self, world_size: u32) -> Self {
        for element in &mut self {
            *element = element.divide(world_size);
        }
        self
    }
}

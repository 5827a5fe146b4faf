//! The right bits of canonical reductions, computed element by element.
//!
//! Owns data on which the order of a fold shows, and the fold in the order of ranks as
//! kernels/CONTRACT.md says it. Uses no kernel.

use syncline_comm::{Element, ReduceOp, bf16, f16};

/// A type whose folds are known.
pub trait Folded: Element {
    /// Element `index` of rank `rank`'s input.
    fn value(rank: u32, index: usize) -> Self;

    /// The values, of ranks 0, 1, 2 ..., folded in this order and rounded once; one division for
    /// an average.
    fn folded(values: &[Self], op: ReduceOp) -> Self;

    /// All bits.
    fn bits(self) -> u64;
}

/// Mixes a rank and an index.
fn mixed(rank: u32, index: usize) -> u64 {
    let seed = (u64::from(rank) << 40 | index as u64) + 1;
    let once = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let twice = (once ^ once >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    twice ^ twice >> 31
}

/// A number with a full mantissa, of either sign, between 1/16 and 16; now and then a zero.
fn number(rank: u32, index: usize) -> f64 {
    let bits = mixed(rank, index);
    let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::try_from(bits >> 1 & 7).expect("three bits") - 4;
    let mantissa = 1.0 + (bits >> 11) as f64 / (1_u64 << 53) as f64;
    if bits >> 4 & 63 == 0 { sign * 0.0 } else { sign * mantissa * 2_f64.powi(exponent) }
}

macro_rules! floats {
    ($($type:ty, $wide:ty, $round:expr, $widen:expr;)*) => {$(
        impl Folded for $type {
            fn value(rank: u32, index: usize) -> Self {
                Self::from_f64(number(rank, index))
            }

            fn folded(values: &[Self], op: ReduceOp) -> Self {
                let (round, widen): (fn($wide) -> Self, fn(Self) -> $wide) = ($round, $widen);
                let wide = values.iter().map(|value| widen(*value));
                let total = wide.reduce(|left, right| match op {
                    ReduceOp::Avg | ReduceOp::Sum => left + right,
                    ReduceOp::Prod => left * right,
                    // -0 is less than +0.
                    ReduceOp::Min if left.total_cmp(&right).is_le() => left,
                    ReduceOp::Max if left.total_cmp(&right).is_ge() => left,
                    ReduceOp::Min | ReduceOp::Max => right,
                });
                let total = round(total.expect("a world has a rank"));
                let divisor = values.len() as $wide;
                if op == ReduceOp::Avg { round(widen(total) / divisor) } else { total }
            }

            fn bits(self) -> u64 {
                self.to_bits().into()
            }
        }
    )*};
}

floats! {
    bf16, f32, Self::from_f32, Self::to_f32;
    f16, f32, Self::from_f32, Self::to_f32;
    f32, f32, |wide| wide, |value| value;
    f64, f64, |wide| wide, |value| value;
}

impl Folded for i32 {
    fn value(rank: u32, index: usize) -> Self {
        (mixed(rank, index) as u32).cast_signed()
    }

    fn folded(values: &[Self], op: ReduceOp) -> Self {
        let total = values.iter().copied().reduce(|left, right| match op {
            ReduceOp::Avg | ReduceOp::Sum => left.wrapping_add(right),
            ReduceOp::Prod => left.wrapping_mul(right),
            ReduceOp::Min => left.min(right),
            ReduceOp::Max => left.max(right),
        });
        let total = total.expect("a world has a rank");
        let ranks = Self::try_from(values.len()).expect("few ranks");
        if op == ReduceOp::Avg { total / ranks } else { total }
    }

    fn bits(self) -> u64 {
        u64::from(self.cast_unsigned())
    }
}

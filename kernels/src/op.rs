//! What a reduction does with two elements.
//!
//! Owns the names and wire codes of the operations. Never does the arithmetic itself: `cpu` does,
//! as CONTRACT.md says. Called by every crate above this one.

use core::fmt;
use core::str::FromStr;

use crate::dtype::{DType, UnknownName};

/// The operation that folds the ranks' elements into one.
///
/// The discriminant is the wire code: it is sent in headers and must not change.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ReduceOp {
    /// Sum divided by the number of ranks. The `reduce*` functions treat it as [`ReduceOp::Sum`];
    /// the collective divides once, at the end, with
    /// [`finish_average_bytes`](crate::finish_average_bytes).
    Avg = 0,
    /// The greater; NaN wins over every number.
    Max = 1,
    /// The lesser; NaN wins over every number.
    Min = 2,
    /// Product; integers wrap.
    Prod = 3,
    /// Sum; integers wrap.
    Sum = 4,
}

impl ReduceOp {
    /// Every operation, ordered by code: `ALL[i].code() == i`.
    pub const ALL: [Self; 5] = [Self::Avg, Self::Max, Self::Min, Self::Prod, Self::Sum];

    /// The wire code, `0..5`.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The operation with this wire code, or `None` if there is none.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if (code as usize) < Self::ALL.len() { Some(Self::ALL[code as usize]) } else { None }
    }

    /// Whether a fold of two or more elements of a type has the same bits in whatever order and
    /// grouping it is made: all of integers (sums and products wrap), and the lesser and the
    /// greater of floats.
    #[must_use]
    pub const fn is_order_free(self, dtype: DType) -> bool {
        match dtype {
            DType::BF16 | DType::F16 | DType::F32 | DType::F64 => {
                matches!(self, Self::Max | Self::Min)
            }
            _ => true,
        }
    }

    /// The lower-case name: `"avg"`, `"max"`, `"min"`, `"prod"` or `"sum"`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avg => "avg",
            Self::Max => "max",
            Self::Min => "min",
            Self::Prod => "prod",
            Self::Sum => "sum",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    /// Reads what [`ReduceOp::name`] writes; no other spelling, no other case.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|op| op.name() == text).ok_or_else(|| {
            UnknownName::new("reduce operation", text, Self::ALL.map(Self::name).join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_round_trip() {
        for (index, op) in ReduceOp::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(op.code()), index);
            assert_eq!(ReduceOp::from_code(op.code()), Some(op));
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        assert_eq!(ReduceOp::from_code(5), None);
        assert!("mean".parse::<ReduceOp>().unwrap_err().to_string().ends_with("prod, sum"));
    }
}

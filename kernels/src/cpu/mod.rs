//! The arithmetic on the processor, once per instruction set.
//!
//! Owns what every variant must provide and the one list that turns a run-time `(DType, ReduceOp)`
//! into compiled code. Never chooses a variant and never checks arguments: `table` does both.
//!
//! Each variant file calls `kernels_for!` with its target features and gets the same functions,
//! compiled from the same bodies in `fold` and `lane`:
//!
//! - `reduce(dtype, op, acc, source)`
//! - `reduce_into(dtype, op, target, a, b)`
//! - `reduce_many(dtype, op, target, sources, stores)`
//! - `finish_average(dtype, data, world_size)`
//! - `copy(target, source, stores)`
//!
//! All buffers are bytes at any alignment, of equal length, a multiple of the element's size.
//! Results are those of CONTRACT.md, bit for bit, whatever the variant.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod bytes;
mod fold;
mod half;
mod lane;
mod number;
pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
mod stream;

/// Calls `$function::<lane, operation> $arguments` for a run-time `$dtype` and `$op`.
///
/// Sums and products that wrap have the same bits signed and unsigned, and so the same code.
macro_rules! for_dtype_and_op {
    ($isa:ty, $dtype:expr, $op:expr, $function:ident $arguments:tt) => {
        match $dtype {
            DType::F16 => for_op!($op, $function, <$isa as Isa>::F16, F16Bits, $arguments),
            DType::BF16 => for_op!($op, $function, Bf16Pair, Bf16Bits, $arguments),
            DType::F32 => for_op!($op, $function, f32, f32, $arguments),
            DType::F64 => for_op!($op, $function, f64, f64, $arguments),
            DType::I8 => for_op!($op, $function, u8, i8, $arguments),
            DType::I16 => for_op!($op, $function, u16, i16, $arguments),
            DType::I32 => for_op!($op, $function, u32, i32, $arguments),
            DType::I64 => for_op!($op, $function, u64, i64, $arguments),
            DType::U8 => for_op!($op, $function, u8, u8, $arguments),
            DType::U16 => for_op!($op, $function, u16, u16, $arguments),
            DType::U32 => for_op!($op, $function, u32, u32, $arguments),
            DType::U64 => for_op!($op, $function, u64, u64, $arguments),
        }
    };
}

/// `$number` is the lane for sums and products, `$ordered` the one for minima and maxima.
macro_rules! for_op {
    ($op:expr, $function:ident, $number:ty, $ordered:ty, $arguments:tt) => {
        match $op {
            ReduceOp::Sum | ReduceOp::Avg => $function::<$number, fold::Sum> $arguments,
            ReduceOp::Prod => $function::<$number, fold::Prod> $arguments,
            ReduceOp::Min => $function::<$ordered, fold::Min> $arguments,
            ReduceOp::Max => $function::<$ordered, fold::Max> $arguments,
        }
    };
}

/// Compiles the functions listed above for `$isa`, each with `$attribute`.
macro_rules! kernels_for {
    ($isa:ty $(, $attribute:meta)?) => {
        use super::fold::{self, FoldLane, Isa};
        use super::lane::{Bf16Bits, Bf16Pair, F16Bits, Lane};
        use super::number::Number;
        use crate::dtype::DType;
        use crate::op::ReduceOp;
        use crate::table::Stores;

        $(#[$attribute])?
        fn in_place<L: Lane, O: FoldLane<L>>(acc: &mut [u8], source: &[u8]) {
            fold::in_place::<L, O>(acc, source);
        }

        $(#[$attribute])?
        fn into<L: Lane, O: FoldLane<L>>(target: &mut [u8], a: &[u8], b: &[u8]) {
            fold::into::<L, O>(target, a, b);
        }

        $(#[$attribute])?
        fn many<L: Lane, O: FoldLane<L>>(target: &mut [u8], sources: &[&[u8]], stores: Stores) {
            fold::many::<$isa, L, O>(target, sources, stores);
        }

        $(#[$attribute])?
        fn divide<L: Lane>(data: &mut [u8], world_size: u32)
        where
            L::Wide: Number,
            <L::Single as Lane>::Wide: Number,
        {
            fold::divide::<L>(data, world_size);
        }

        $(#[$attribute])?
        pub(crate) fn reduce(dtype: DType, op: ReduceOp, acc: &mut [u8], source: &[u8]) {
            for_dtype_and_op!($isa, dtype, op, in_place(acc, source));
        }

        $(#[$attribute])?
        pub(crate) fn reduce_into(
            dtype: DType,
            op: ReduceOp,
            target: &mut [u8],
            a: &[u8],
            b: &[u8],
        ) {
            for_dtype_and_op!($isa, dtype, op, into(target, a, b));
        }

        $(#[$attribute])?
        pub(crate) fn reduce_many(
            dtype: DType,
            op: ReduceOp,
            target: &mut [u8],
            sources: &[&[u8]],
            stores: Stores,
        ) {
            for_dtype_and_op!($isa, dtype, op, many(target, sources, stores));
        }

        $(#[$attribute])?
        pub(crate) fn finish_average(dtype: DType, data: &mut [u8], world_size: u32) {
            match dtype {
                DType::F16 => divide::<<$isa as Isa>::F16>(data, world_size),
                DType::BF16 => divide::<Bf16Pair>(data, world_size),
                DType::F32 => divide::<f32>(data, world_size),
                DType::F64 => divide::<f64>(data, world_size),
                DType::I8 => divide::<i8>(data, world_size),
                DType::I16 => divide::<i16>(data, world_size),
                DType::I32 => divide::<i32>(data, world_size),
                DType::I64 => divide::<i64>(data, world_size),
                DType::U8 => divide::<u8>(data, world_size),
                DType::U16 => divide::<u16>(data, world_size),
                DType::U32 => divide::<u32>(data, world_size),
                DType::U64 => divide::<u64>(data, world_size),
            }
        }

        $(#[$attribute])?
        pub(crate) fn copy(target: &mut [u8], source: &[u8], stores: Stores) {
            fold::copy::<$isa>(target, source, stores);
        }
    };
}

use {for_dtype_and_op, for_op, kernels_for};

//! Element-wise arithmetic on buffers: the leaf of the workspace.
//!
//! Owns the element types, the reduce operations and the loops that fold one buffer into another,
//! compiled for several instruction sets and chosen once at run time. Never allocates, blocks,
//! starts a thread or knows what a rank is. Called by the collectives, for what arrives from a
//! peer, and by trainers that want the same arithmetic.
//!
//! What each operation does with NaN, ±0, infinities, overflow and rounding is in `CONTRACT.md`.
//!
//! ```
//! use syncline_kernels::{ReduceOp, reduce};
//! let mut acc = [1.0_f32, 2.0, 3.0];
//! reduce(ReduceOp::Sum, &mut acc, &[10.0, 20.0, 30.0]);
//! assert_eq!(acc, [11.0, 22.0, 33.0]);
//! ```

mod cpu;
mod dtype;
mod op;
mod table;

pub use cpu::bytes::{as_bytes, as_bytes_mut};
pub use dtype::{DType, Element, UnknownName, bf16, f16};
pub use op::ReduceOp;
pub use table::{Kernels, MAX_SOURCES, Stores, Variant, variant, variant_available};

/// `acc[i] = acc[i] op source[i]`, with the variant chosen for this machine.
///
/// # Panics
/// If the slices' lengths differ.
pub fn reduce<T: Element>(op: ReduceOp, acc: &mut [T], source: &[T]) {
    Kernels::active().reduce(op, acc, source);
}

/// [`reduce`] on bytes that hold elements of `dtype`, at any alignment.
///
/// # Panics
/// If the lengths (bytes) differ or are no multiple of the element's size.
pub fn reduce_bytes(dtype: DType, op: ReduceOp, acc: &mut [u8], source: &[u8]) {
    Kernels::active().reduce_bytes(dtype, op, acc, source);
}

/// `target[i] = a[i] op b[i]`, on bytes that hold elements of `dtype`, at any alignment.
///
/// # Panics
/// If the lengths (bytes) differ or are no multiple of the element's size.
pub fn reduce_into_bytes(
    dtype: DType,
    op: ReduceOp,
    target: &mut [u8],
    a: &[u8],
    b: &[u8],
    stores: Stores,
) {
    Kernels::active().reduce_into_bytes(dtype, op, target, a, b, stores);
}

/// `target[i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) …`, always in that order.
///
/// `f16` and `bf16` are accumulated in `f32` over all sources and rounded once. One source is
/// copied, bit for bit. [`ReduceOp::Avg`] is the sum; [`finish_average_bytes`] divides it.
///
/// # Panics
/// If there are no sources, or the lengths (bytes) differ or are no multiple of the element's
/// size.
pub fn reduce_many_bytes(
    dtype: DType,
    op: ReduceOp,
    target: &mut [u8],
    sources: &[&[u8]],
    stores: Stores,
) {
    Kernels::active().reduce_many_bytes(dtype, op, target, sources, stores);
}

/// Divides every element by `world_size`: the last step of an average, done once on the sum.
///
/// Floats divide in their own type (`f16` and `bf16` in `f32`, rounded once). Integers truncate
/// towards zero; the sum before it has wrapped, so an average whose sum overflows is wrong.
///
/// # Panics
/// If `world_size` is 0, or `data`'s length (bytes) is no multiple of the element's size.
pub fn finish_average_bytes(dtype: DType, data: &mut [u8], world_size: u32) {
    Kernels::active().finish_average_bytes(dtype, data, world_size);
}

/// Copies `source` to `target`, through the cache or past it as `stores` says.
///
/// # Panics
/// If the lengths (bytes) differ.
pub fn copy(target: &mut [u8], source: &[u8], stores: Stores) {
    Kernels::active().copy(target, source, stores);
}

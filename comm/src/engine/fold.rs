//! The plan step that folds many parts at once.
//!
//! Owns the cut into blocks; the arithmetic is the kernels'. Called by the engine, for
//! [`Step::ReduceMany`](syncline_proto::collective::Step::ReduceMany).

use crate::memory::LocalSlice;
use std::ops::Range;
use syncline_kernels::{DType, MAX_SOURCES, ReduceOp, Stores, reduce_many_bytes};

/// Bytes folded at a time, before they are copied to the target, which may be one of the sources:
/// they stay in the first cache.
const BLOCK_BYTES: usize = 8 << 10;

/// Folds the parts of `sources`, each as long as `target`, in their order.
pub(super) fn reduce_many(
    dtype: DType,
    op: ReduceOp,
    sources: &[LocalSlice; 3],
    target: &mut LocalSlice,
) {
    let len = target.len();
    let mut folded = [0; BLOCK_BYTES];
    for start in (0..len).step_by(BLOCK_BYTES) {
        let block = start..len.min(start + BLOCK_BYTES);
        let folded = &mut folded[..block.len()];
        fold_block(dtype, op, sources, len, &block, folded);
        target.bytes_mut()[block].copy_from_slice(folded);
    }
}

fn fold_block(
    dtype: DType,
    op: ReduceOp,
    sources: &[LocalSlice; 3],
    len: usize,
    block: &Range<usize>,
    folded: &mut [u8],
) {
    let parts = || sources.iter().flat_map(|source| source.bytes().chunks_exact(len));
    let count = parts().count();
    let mut few = [&[][..]; MAX_SOURCES];
    let mut many = Vec::new();
    let blocks = if count <= MAX_SOURCES {
        &mut few[..count]
    } else {
        many.resize(count, &[][..]);
        &mut many[..]
    };
    for (to, part) in blocks.iter_mut().zip(parts()) {
        *to = &part[block.clone()];
    }
    reduce_many_bytes(dtype, op, folded, blocks, Stores::Cached);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{lend, lend_mut};
    use syncline_kernels::{as_bytes, as_bytes_mut, f16};

    #[test]
    fn parts_are_folded_in_order_and_rounded_once() {
        // Several blocks, and more parts than lie in an array.
        for (count, len) in [(1, 3), (3, 5000), (70, 4097)] {
            for place in [0, count / 2, count - 1] {
                let mut data: Vec<f16> = (0..count * len)
                    .map(|i| f16::from_f32(1.0 + (i * 7919 % 1021) as f32 / 64.0))
                    .collect();
                let parts: Vec<&[u8]> = data.chunks(len).map(as_bytes).collect();
                let mut wanted = vec![f16::ZERO; len];
                let target = as_bytes_mut(&mut wanted);
                reduce_many_bytes(DType::F16, ReduceOp::Sum, target, &parts, Stores::Cached);

                let (before, rest) = data.split_at_mut(place * len);
                let (own, after) = rest.split_at_mut(len);
                let mut target = lend_mut(own);
                let in_place = target.part(0, target.len());
                let sources = [lend(before), in_place, lend(after)];
                reduce_many(DType::F16, ReduceOp::Sum, &sources, &mut target);
                assert_eq!(own, wanted);
            }
        }
    }
}

//! The loops that fold buffers: one body each, compiled again for every variant.
//!
//! Owns the order of operations and the blocking; contains no unsafe and no instruction of a
//! particular machine. Everything is `#[inline(always)]`, so that it takes on the target features
//! of the function it is written into. Never checks lengths: `table` has. Called by the variants
//! through `kernels_for!`.

use core::ops::Range;

use super::lane::{Lane, Number};
use crate::table::Stores;

/// Bytes of a result that stay in the first-level cache while source after source is folded in.
const BLOCK_BYTES: usize = 4096;

/// A block of results on the stack, aligned to a cache line.
#[repr(align(64))]
struct Block<T, const N: usize>([T; N]);

/// What a variant does in its own way.
pub(super) trait Isa {
    /// How this variant converts `f16`.
    type F16: Lane;
    /// Bytes at the start of `target` that must be written through the cache before `stream` may
    /// write the rest, a multiple of `size`; `None` if `target` cannot be streamed to at all.
    fn stream_offset(target: &[u8], size: usize) -> Option<usize>;
    /// Copies past the cache. `target` is aligned to a cache line, the lengths are equal.
    fn stream(target: &mut [u8], source: &[u8]);
    /// Orders the stores of `stream` before every later store of this thread.
    fn fence();
}

/// An operation, known at compile time.
pub(super) trait Fold {
    fn fold<N: Number>(a: N, b: N) -> N;
}

macro_rules! folds {
    ($($name:ident => $method:ident),*) => {$(
        pub(super) enum $name {}
        impl Fold for $name {
            #[inline(always)]
            fn fold<N: Number>(a: N, b: N) -> N {
                a.$method(b)
            }
        }
    )*};
}

folds! { Sum => add, Prod => multiply, Min => lesser, Max => greater }

/// `acc[i] = acc[i] op source[i]`.
#[inline(always)]
pub(super) fn in_place<L: Lane, O: Fold>(acc: &mut [u8], source: &[u8]) {
    for (a, s) in L::raw_mut(acc).iter_mut().zip(L::raw(source)) {
        *a = L::narrow(O::fold(L::widen(*a), L::widen(*s)));
    }
}

/// `target[i] = a[i] op b[i]`.
#[inline(always)]
pub(super) fn into<L: Lane, O: Fold>(target: &mut [u8], a: &[u8], b: &[u8]) {
    for ((t, a), b) in L::raw_mut(target).iter_mut().zip(L::raw(a)).zip(L::raw(b)) {
        *t = L::narrow(O::fold(L::widen(*a), L::widen(*b)));
    }
}

/// `target[i] = sources[0][i] op sources[1][i] op …`, folded from the left.
#[inline(always)]
pub(super) fn many<I: Isa, L: Lane, O: Fold>(target: &mut [u8], sources: &[&[u8]], stores: Stores) {
    if let [source] = sources {
        return copy::<I>(target, source, stores);
    }
    let offset = match stores {
        Stores::Streaming => I::stream_offset(target, size_of::<L::Raw>()),
        Stores::Cached => None,
    };
    let Some(offset) = offset else {
        return fold_blocks::<L, O>(target, sources, 0);
    };
    let (head, body) = target.split_at_mut(offset.min(target.len()));
    fold_blocks::<L, O>(head, sources, 0);
    let mut result = Block([0; BLOCK_BYTES]);
    let mut start = head.len();
    for block in body.chunks_mut(BLOCK_BYTES) {
        let result = &mut result.0[..block.len()];
        fold_blocks::<L, O>(result, sources, start);
        I::stream(block, result);
        start += block.len();
    }
    I::fence();
}

/// Folds what the sources hold from byte `start` on into all of `target`, block by block.
#[inline(always)]
fn fold_blocks<L: Lane, O: Fold>(target: &mut [u8], sources: &[&[u8]], mut start: usize) {
    if L::WIDENS && sources.len() > 2 {
        let mut wide = Block([L::Wide::ZERO; BLOCK_BYTES / size_of::<u16>()]);
        for block in target.chunks_mut(BLOCK_BYTES) {
            fold_wide::<L, O>(block, sources, start..start + block.len(), &mut wide.0);
            start += block.len();
        }
        return;
    }
    for block in target.chunks_mut(BLOCK_BYTES) {
        let range = start..start + block.len();
        into::<L, O>(block, &sources[0][range.clone()], &sources[1][range.clone()]);
        for source in &sources[2..] {
            in_place::<L, O>(block, &source[range.clone()]);
        }
        start = range.end;
    }
}

/// One block of a fold held in the wider type and rounded once. `wide` has room for the block.
#[inline(always)]
fn fold_wide<L: Lane, O: Fold>(
    target: &mut [u8],
    sources: &[&[u8]],
    range: Range<usize>,
    wide: &mut [L::Wide],
) {
    let target = L::raw_mut(target);
    let wide = &mut wide[..target.len()];
    let (first, second) = (L::raw(&sources[0][range.clone()]), L::raw(&sources[1][range.clone()]));
    for ((w, a), b) in wide.iter_mut().zip(first).zip(second) {
        *w = O::fold(L::widen(*a), L::widen(*b));
    }
    for source in &sources[2..] {
        for (w, s) in wide.iter_mut().zip(L::raw(&source[range.clone()])) {
            *w = O::fold(*w, L::widen(*s));
        }
    }
    for (t, w) in target.iter_mut().zip(wide) {
        *t = L::narrow(*w);
    }
}

/// `data[i] = data[i] / world_size`; `world_size` is not zero.
#[inline(always)]
pub(super) fn divide<L: Lane>(data: &mut [u8], world_size: u32) {
    for element in L::raw_mut(data) {
        *element = L::narrow(L::widen(*element).divide(world_size));
    }
}

/// Copies equal lengths as `stores` says.
#[inline(always)]
pub(super) fn copy<I: Isa>(target: &mut [u8], source: &[u8], stores: Stores) {
    let offset = match stores {
        Stores::Streaming => I::stream_offset(target, 1),
        Stores::Cached => None,
    };
    let Some(offset) = offset else {
        return target.copy_from_slice(source);
    };
    let offset = offset.min(target.len());
    target[..offset].copy_from_slice(&source[..offset]);
    I::stream(&mut target[offset..], &source[offset..]);
    I::fence();
}

//! The loops that fold buffers: one body each, compiled again for every variant.
//!
//! Owns the order of operations and the blocking; contains no unsafe and no instruction of a
//! particular machine. Everything is `#[inline(always)]`, so that it takes on the target features
//! of the function it is written into; `array::map` and the like are not and would not. Never
//! checks
//! lengths: `table` has. Called by the variants through `kernels_for!`.

use super::lane::Lane;
use super::number::{Number, Ordered};
use crate::table::Stores;

/// Bytes of a result that stay in the first-level cache until all sources are folded in.
const BLOCK_BYTES: usize = 4096;

/// Bytes of a result that are computed in the first-level cache and then streamed to the target:
/// so few that reading the sources hardly pauses, so many that a loop's start and end weigh little.
const STREAM_BYTES: usize = 1024;

/// Lanes of single elements that are folded together: four vectors of `f32` at AVX-512's width.
const TILE_LANES: usize = 64;

/// A block of results on the stack, aligned to a cache line.
#[repr(align(64))]
struct Block([u8; STREAM_BYTES]);

/// What a variant does in its own way.
pub(super) trait Isa {
    /// `f16` for sum, product and division, as this variant converts it.
    type F16: Lane<Wide: Number, Single: Lane<Wide: Number>>;
    /// Bytes at the start of `target` that must be written through the cache before `stream` may
    /// write the rest, a multiple of `size`; `None` if `target` cannot be streamed to at all.
    fn stream_offset(target: &[u8], size: usize) -> Option<usize>;
    /// Copies through the cache, in vectors: `rep movsb`, which the C library takes for anything
    /// but short copies, is slow on some processors.
    fn store(target: &mut [u8], source: &[u8]);
    /// Copies past the cache. `target` is aligned to a cache line, the lengths are equal.
    fn stream(target: &mut [u8], source: &[u8]);
    /// Orders the stores of `stream` before every later store of this thread.
    fn fence();
}

/// An operation on numbers of type `N`, known at compile time.
pub(super) trait Fold<N> {
    fn fold(a: N, b: N) -> N;
}

macro_rules! folds {
    ($($name:ident: $number:ident => $method:ident),*) => {$(
        pub(super) enum $name {}
        impl<N: $number> Fold<N> for $name {
            #[inline(always)]
            fn fold(a: N, b: N) -> N {
                a.$method(b)
            }
        }
    )*};
}

folds! {
    Sum: Number => add, Prod: Number => multiply, Min: Ordered => lesser, Max: Ordered => greater
}

/// An operation on everything a lane of type `L` computes.
pub(super) trait FoldLane<L: Lane>:
    Fold<L::Wide> + Fold<<L::Single as Lane>::Wide> + Fold<<L::Held as Lane>::Wide>
{
}

impl<L: Lane, O> FoldLane<L> for O where
    O: Fold<L::Wide> + Fold<<L::Single as Lane>::Wide> + Fold<<L::Held as Lane>::Wide>
{
}

/// `acc[i] = acc[i] op source[i]`.
#[inline(always)]
pub(super) fn in_place<L: Lane, O: FoldLane<L>>(acc: &mut [u8], source: &[u8]) {
    let packed = packed_bytes::<L>(acc.len());
    in_place_lanes::<L, O>(acc, source);
    if L::PACKED {
        in_place_lanes::<L::Single, O>(&mut acc[packed..], &source[packed..]);
    }
}

#[inline(always)]
fn in_place_lanes<L: Lane, O: Fold<L::Wide>>(acc: &mut [u8], source: &[u8]) {
    for (a, s) in L::raw_mut(acc).iter_mut().zip(L::raw(source)) {
        *a = L::narrow(O::fold(L::widen(*a), L::widen(*s)));
    }
}

/// `target[i] = a[i] op b[i]`.
#[inline(always)]
pub(super) fn into<L: Lane, O: FoldLane<L>>(target: &mut [u8], a: &[u8], b: &[u8]) {
    let packed = packed_bytes::<L>(target.len());
    into_lanes::<L, O>(target, a, b);
    if L::PACKED {
        into_lanes::<L::Single, O>(&mut target[packed..], &a[packed..], &b[packed..]);
    }
}

#[inline(always)]
fn into_lanes<L: Lane, O: Fold<L::Wide>>(target: &mut [u8], a: &[u8], b: &[u8]) {
    for ((t, a), b) in L::raw_mut(target).iter_mut().zip(L::raw(a)).zip(L::raw(b)) {
        *t = L::narrow(O::fold(L::widen(*a), L::widen(*b)));
    }
}

/// How many of `len` bytes the whole lanes take.
#[inline(always)]
fn packed_bytes<L: Lane>(len: usize) -> usize {
    len - len % size_of::<L::Raw>()
}

/// `target[i] = sources[0][i] op sources[1][i] op …`, folded from the left.
#[inline(always)]
pub(super) fn many<I: Isa, L: Lane, O: FoldLane<L>>(
    target: &mut [u8],
    sources: &[&[u8]],
    stores: Stores,
) {
    if let [source] = sources {
        return copy::<I>(target, source, stores);
    }
    let offset = match stores {
        Stores::Streaming => I::stream_offset(target, size_of::<<L::Single as Lane>::Raw>()),
        Stores::Cached => None,
    };
    let Some(offset) = offset else {
        return fold_sources::<L, O>(target, sources, 0);
    };
    let (head, body) = target.split_at_mut(offset.min(target.len()));
    fold_sources::<L, O>(head, sources, 0);
    let mut block = Block([0; STREAM_BYTES]);
    let mut start = head.len();
    for target in body.chunks_mut(STREAM_BYTES) {
        let block = &mut block.0[..target.len()];
        fold_sources::<L, O>(block, sources, start);
        I::stream(target, block);
        start += target.len();
    }
    I::fence();
}

/// Folds what the sources hold from byte `start` on into all of `target`.
#[inline(always)]
fn fold_sources<L: Lane, O: FoldLane<L>>(target: &mut [u8], sources: &[&[u8]], start: usize) {
    if let [a, b] = sources {
        let range = start..start + target.len();
        return into::<L, O>(target, &a[range.clone()], &b[range]);
    }
    // Elements that are not widened need no registers of their own: loops as plain as any.
    if size_of::<L::Raw>() == size_of::<L::Wide>() {
        return fold_side_by_side::<L, O>(target, sources, start);
    }
    // A pack is as wide as two to four vectors already.
    if L::Held::PACKED {
        fold_tiles::<L::Held, O, 2>(target, sources, start);
        let packed = packed_bytes::<L::Held>(target.len());
        fold_rest::<L::Single, O, TILE_LANES>(&mut target[packed..], sources, start + packed);
    } else {
        fold_tiles::<L::Held, O, TILE_LANES>(target, sources, start);
    }
}

/// Reads up to eight sources side by side, which keeps as many loads in flight and lets the
/// processor fetch each source ahead as one long stream. Of more, blocks of the target stay in the
/// nearest cache while the others are folded in, four at a time.
#[inline(always)]
fn fold_side_by_side<L: Lane, O: FoldLane<L>>(target: &mut [u8], sources: &[&[u8]], start: usize) {
    match sources.len() {
        3 => return fold_all::<L, O, 3>(target, sources, start),
        4 => return fold_all::<L, O, 4>(target, sources, start),
        5 => return fold_all::<L, O, 5>(target, sources, start),
        6 => return fold_all::<L, O, 6>(target, sources, start),
        7 => return fold_all::<L, O, 7>(target, sources, start),
        8 => return fold_all::<L, O, 8>(target, sources, start),
        _ => {}
    }
    let (first, rest) = sources.split_at(8);
    let (fours, rest) = rest.as_chunks::<4>();
    for (index, block) in target.chunks_mut(BLOCK_BYTES).enumerate() {
        let start = start + index * BLOCK_BYTES;
        fold_all::<L, O, 8>(block, first, start);
        for sources in fours {
            fold_onto::<L, O, 4>(block, sources, start);
        }
        for source in rest {
            in_place::<L, O>(block, &source[start..start + block.len()]);
        }
    }
}

/// `target[i] = sources[0][i] op … op sources[N - 1][i]`.
#[inline(always)]
fn fold_all<L: Lane, O: Fold<L::Wide>, const N: usize>(
    target: &mut [u8],
    sources: &[&[u8]],
    start: usize,
) {
    let lanes = side_by_side::<L, N>(sources, start, target.len());
    for (index, target) in L::raw_mut(target).iter_mut().enumerate() {
        let mut wide = L::widen(lanes[0][index]);
        for lanes in &lanes[1..] {
            wide = O::fold(wide, L::widen(lanes[index]));
        }
        *target = L::narrow(wide);
    }
}

/// `target[i] = target[i] op sources[0][i] op … op sources[N - 1][i]`.
#[inline(always)]
fn fold_onto<L: Lane, O: Fold<L::Wide>, const N: usize>(
    target: &mut [u8],
    sources: &[&[u8]; N],
    start: usize,
) {
    let lanes = side_by_side::<L, N>(sources, start, target.len());
    for (index, target) in L::raw_mut(target).iter_mut().enumerate() {
        let mut wide = L::widen(*target);
        for lanes in &lanes {
            wide = O::fold(wide, L::widen(lanes[index]));
        }
        *target = L::narrow(wide);
    }
}

/// The whole lanes in `len` bytes of each source from byte `start` on: all of one length, so that
/// no index needs a check.
#[inline(always)]
fn side_by_side<'a, L: Lane, const N: usize>(
    sources: &[&'a [u8]],
    start: usize,
    len: usize,
) -> [&'a [L::Raw]; N] {
    let count = len / size_of::<L::Raw>();
    let mut lanes: [&'a [L::Raw]; N] = [&[]; N];
    for (lanes, source) in lanes.iter_mut().zip(sources) {
        *lanes = &lanes_of::<L>(source, start, len)[..count];
    }
    lanes
}

/// Folds tile by tile. A tile of `LANES` lanes stays in registers while the sources' are folded
/// into it, in the wider type if there is one, and all sources are read side by side, which keeps
/// as many loads in flight as there are sources.
#[inline(always)]
fn fold_tiles<L: Lane, O: Fold<L::Wide>, const LANES: usize>(
    target: &mut [u8],
    sources: &[&[u8]],
    start: usize,
) {
    let tile_bytes = LANES * size_of::<L::Raw>();
    let tiled = target.len() - target.len() % tile_bytes;
    let (tiles, _) = L::raw_mut(&mut target[..tiled]).as_chunks_mut::<LANES>();
    let first = lanes_of::<L>(sources[0], start, tiled).as_chunks::<LANES>().0;
    for (index, (tile, first)) in tiles.iter_mut().zip(first).enumerate() {
        let mut wide = [L::widen(first[0]); LANES];
        for (wide, lane) in wide.iter_mut().zip(first) {
            *wide = L::widen(*lane);
        }
        for source in &sources[1..] {
            let source = lanes_of::<L>(source, start + index * tile_bytes, tile_bytes);
            let source = source.first_chunk::<LANES>().expect("as many lanes as asked for");
            for (wide, lane) in wide.iter_mut().zip(source) {
                *wide = O::fold(*wide, L::widen(*lane));
            }
        }
        for (lane, wide) in tile.iter_mut().zip(wide) {
            *lane = L::narrow(wide);
        }
    }
    fold_rest::<L, O, LANES>(&mut target[tiled..], sources, start + tiled);
}

/// As `fold_tiles`, for at most `LANES` lanes.
#[inline(always)]
fn fold_rest<L: Lane, O: Fold<L::Wide>, const LANES: usize>(
    target: &mut [u8],
    sources: &[&[u8]],
    start: usize,
) {
    let len = target.len();
    let target = L::raw_mut(target);
    let Some(&first) = target.first() else { return };
    let mut wide = [L::widen(first); LANES];
    for (wide, lane) in wide.iter_mut().zip(lanes_of::<L>(sources[0], start, len)) {
        *wide = L::widen(*lane);
    }
    for source in &sources[1..] {
        for (wide, lane) in wide.iter_mut().zip(lanes_of::<L>(source, start, len)) {
            *wide = O::fold(*wide, L::widen(*lane));
        }
    }
    for (lane, wide) in target.iter_mut().zip(wide) {
        *lane = L::narrow(wide);
    }
}

/// The whole lanes in `len` bytes of `source` from byte `start` on.
#[inline(always)]
fn lanes_of<L: Lane>(source: &[u8], start: usize, len: usize) -> &[L::Raw] {
    L::raw(&source[start..start + len])
}

/// `data[i] = data[i] / world_size`; `world_size` is not zero.
#[inline(always)]
pub(super) fn divide<L: Lane>(data: &mut [u8], world_size: u32)
where
    L::Wide: Number,
    <L::Single as Lane>::Wide: Number,
{
    let packed = packed_bytes::<L>(data.len());
    divide_lanes::<L>(data, world_size);
    if L::PACKED {
        divide_lanes::<L::Single>(&mut data[packed..], world_size);
    }
}

#[inline(always)]
fn divide_lanes<L: Lane>(data: &mut [u8], world_size: u32)
where
    L::Wide: Number,
{
    for lane in L::raw_mut(data) {
        *lane = L::narrow(L::widen(*lane).divide(world_size));
    }
}

/// Shorter ones are the C library's to copy, through the cache.
const SHORT_COPY_BYTES: usize = 512;

/// Copies equal lengths as `stores` says.
#[inline(always)]
pub(super) fn copy<I: Isa>(target: &mut [u8], source: &[u8], stores: Stores) {
    let offset = I::stream_offset(target, 1).filter(|_| target.len() >= SHORT_COPY_BYTES);
    let Some(offset) = offset else {
        return target.copy_from_slice(source);
    };
    let (first, target) = target.split_at_mut(offset);
    let (source_first, source) = source.split_at(offset);
    first.copy_from_slice(source_first);
    match stores {
        Stores::Cached => I::store(target, source),
        Stores::Streaming => {
            I::stream(target, source);
            I::fence();
        }
    }
}

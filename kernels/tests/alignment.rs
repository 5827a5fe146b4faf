//! Every variant at every alignment: all element types and operations, targets and sources at
//! byte offsets 0 to 63, 0 to 63 elements after the last whole vector, nothing written outside.

mod oracle;

use oracle::{assert_same, fold_buffers, random, variants};
use syncline_kernels::{DType, Kernels, ReduceOp, Stores};

/// Elements before the tail: more than one tile and more than one iteration of any vector loop.
const BODY: usize = 192;
const OFFSETS: usize = 64;
const TAILS: usize = 64;
const CANARY: u8 = 0xa5;

/// A buffer whose bytes outside a window must stay as they are.
struct Guarded {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Guarded {
    /// Room for `capacity` bytes at any offset below 64 from an address divisible by 64.
    fn new(capacity: usize) -> Self {
        Self { bytes: vec![CANARY; capacity + 4 * OFFSETS], start: 0, len: 0 }
    }

    /// The window of `len` bytes at an address that is `offset` modulo 64.
    fn window(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let to_line = self.bytes.as_ptr().addr().wrapping_neg() % OFFSETS;
        (self.start, self.len) = (OFFSETS + to_line + offset, len);
        &mut self.bytes[self.start..][..len]
    }

    /// Panics if anything around the window was written; then blanks the window.
    #[track_caller]
    fn check(&mut self, context: &str) {
        let end = self.start + self.len;
        let around = [&self.bytes[self.start - 64..self.start], &self.bytes[end..end + 64]];
        assert!(
            around.into_iter().flatten().all(|&byte| byte == CANARY),
            "written outside the target; {context}"
        );
        self.bytes[self.start..end].fill(CANARY);
    }
}

/// Sources at their own offsets, and what the folds of the first two and of all must give.
struct Case {
    dtype: DType,
    op: ReduceOp,
    sources: [Vec<u8>; 3],
    of_two: Vec<u8>,
    of_three: Vec<u8>,
}

impl Case {
    fn new(dtype: DType, op: ReduceOp) -> Self {
        let sources = [1, 2, 3].map(|seed| random(dtype, BODY + TAILS, seed));
        let slices = sources.each_ref().map(Vec::as_slice);
        let of_two = fold_buffers(dtype, op, &slices[..2]);
        let of_three = fold_buffers(dtype, op, &slices);
        Self { dtype, op, sources, of_two, of_three }
    }

    /// All forms of the fold, on `count` elements with the target at `offset`.
    fn check(&self, kernels: &Kernels, buffers: &mut [Guarded; 4], offset: usize, count: usize) {
        let Self { dtype, op, .. } = *self;
        let len = count * dtype.size();
        let [target, a, b, c] = buffers;
        let context = format!("{:?} offset {offset} count {count}", kernels.variant());
        let others = [offset * 7 + 5, offset * 11 + 2, offset].map(|offset| offset % OFFSETS);
        for ((buffer, source), other) in [&mut *a, b, c].into_iter().zip(&self.sources).zip(others)
        {
            buffer.window(other, len).copy_from_slice(&source[..len]);
        }
        let (a, b, c) =
            (&a.bytes[a.start..][..len], &b.bytes[b.start..][..len], &c.bytes[c.start..][..len]);

        let window = target.window(offset, len);
        window.copy_from_slice(a);
        kernels.reduce_bytes(dtype, op, window, b);
        assert_same(dtype, op, window, &self.of_two[..len], &context);
        target.check(&context);
        for stores in [Stores::Cached, Stores::Streaming] {
            let window = target.window(offset, len);
            kernels.reduce_into_bytes(dtype, op, window, a, b, stores);
            assert_same(dtype, op, window, &self.of_two[..len], &context);
            target.check(&context);
            let window = target.window(offset, len);
            kernels.reduce_many_bytes(dtype, op, window, &[a, b, c], stores);
            assert_same(dtype, op, window, &self.of_three[..len], &context);
            target.check(&context);
        }
    }
}

fn sweep(dtypes: &[DType]) {
    for &dtype in dtypes {
        let capacity = (BODY + TAILS) * dtype.size();
        let mut buffers = [(); 4].map(|()| Guarded::new(capacity));
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
            let case = Case::new(dtype, op);
            for kernels in variants() {
                for offset in 0..OFFSETS {
                    for tail in 0..TAILS {
                        // Short buffers, which are all tail, at every other offset.
                        let body = if (offset + tail) % 2 == 0 { BODY } else { 0 };
                        case.check(kernels, &mut buffers, offset, body + tail);
                    }
                }
            }
        }
    }
}

#[test]
fn sixteen_bit_floats_at_every_offset() {
    sweep(&[DType::F16, DType::BF16]);
}

#[test]
fn wide_floats_at_every_offset() {
    sweep(&[DType::F32, DType::F64]);
}

#[test]
fn signed_integers_at_every_offset() {
    sweep(&[DType::I8, DType::I16, DType::I32, DType::I64]);
}

#[test]
fn unsigned_integers_at_every_offset() {
    sweep(&[DType::U8, DType::U16, DType::U32, DType::U64]);
}

#[test]
fn copies_at_every_offset() {
    let data = random(DType::U8, 20_000, 7);
    let mut target = Guarded::new(data.len());
    for kernels in variants() {
        for offset in 0..OFFSETS {
            for tail in 0..TAILS {
                let len = [0, 256, 12_288][(offset + tail) % 3] + tail;
                let source = &data[offset * 3 % 61..][..len];
                for stores in [Stores::Cached, Stores::Streaming] {
                    let context = format!("{:?} {offset} {len} {stores:?}", kernels.variant());
                    let window = target.window(offset, len);
                    kernels.copy(window, source, stores);
                    assert!(window == source, "{context}");
                    target.check(&context);
                }
            }
        }
    }
}

/// Long enough for several blocks of a streamed result, whatever the alignment.
#[test]
fn streamed_folds_of_many_blocks() {
    for dtype in DType::ALL {
        let count = 9001;
        let sources = [1, 2, 3, 4, 5].map(|seed| random(dtype, count, seed));
        let slices = sources.each_ref().map(Vec::as_slice);
        let mut target = Guarded::new(count * dtype.size());
        for sources in [&slices[..2], &slices] {
            let wanted = fold_buffers(dtype, ReduceOp::Sum, sources);
            for kernels in variants() {
                for offset in [0, 1, 2, 4, 8, 56, 60, 63] {
                    let context = format!("{:?} offset {offset}", kernels.variant());
                    let window = target.window(offset, wanted.len());
                    let stores = Stores::Streaming;
                    kernels.reduce_many_bytes(dtype, ReduceOp::Sum, window, sources, stores);
                    assert_same(dtype, ReduceOp::Sum, window, &wanted, &context);
                    target.check(&context);
                }
            }
        }
    }
}

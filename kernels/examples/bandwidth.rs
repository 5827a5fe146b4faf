//! Prints how fast the kernels of the chosen variant are beside the machine itself: a plain loop
//! over the same buffers for reductions, `memcpy` for copies.
//!
//! `cargo run --release -p syncline-kernels --example bandwidth [ROUNDS]`
//!
//! The contenders of a row take turns on the same buffers, so that a disturbance hits all of
//! them, and only processor time counts, so that other programs' turns do not. Each figure is the
//! median over the rounds (default 25) of the bytes that the pattern reads and writes (GB/s, 1 GB =
//! 1e9 bytes); each `ratio`, kernel / reference, is the median of the rounds' ratios.

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};
use syncline_kernels::{Element, Kernels, ReduceOp, Stores, as_bytes, as_bytes_mut, bf16, f16};

/// First-level cache, second, third, memory.
const SIZES_KIB: [usize; 4] = [16, 256, 4 << 10, 64 << 10];

/// Each timing covers at least this many bytes of target.
const BYTES_PER_TIMING: usize = 32 << 20;

/// The buffers of a row: the target and four sources.
struct Buffers<T> {
    target: Vec<T>,
    sources: [Vec<T>; 4],
}

/// One contender: what it does to the buffers.
type Contender<T> = fn(&'static Kernels, &mut Buffers<T>);

/// The reference sum, as anybody would write it.
trait PlainSum: Element {
    fn sum(acc: &mut [Self], source: &[Self]);
    fn sum_into(target: &mut [Self], a: &[Self], b: &[Self]);
    fn sum_four(target: &mut [Self], sources: &[Vec<Self>; 4]);
}

macro_rules! plain_sums {
    ($($ty:ty: |$a:ident, $b:ident| $sum:expr);*) => {$(
        impl PlainSum for $ty {
            #[inline(never)]
            fn sum(acc: &mut [Self], source: &[Self]) {
                for (acc, &$b) in acc.iter_mut().zip(source) {
                    let $a = *acc;
                    *acc = $sum;
                }
            }
            #[inline(never)]
            fn sum_into(target: &mut [Self], a: &[Self], b: &[Self]) {
                for ((target, &$a), &$b) in target.iter_mut().zip(a).zip(b) {
                    *target = $sum;
                }
            }
            #[inline(never)]
            fn sum_four(target: &mut [Self], sources: &[Vec<Self>; 4]) {
                let [first, second, third, fourth] = sources;
                let sources = first.iter().zip(second).zip(third.iter().zip(fourth));
                for (target, ((&$a, &$b), (&third, &fourth))) in target.iter_mut().zip(sources) {
                    let $a = $sum;
                    let $b = third;
                    let $a = $sum;
                    let $b = fourth;
                    *target = $sum;
                }
            }
        }
    )*};
}

plain_sums! {
    f32: |a, b| a + b;
    f64: |a, b| a + b;
    i32: |a, b| a.wrapping_add(b);
    u8: |a, b| a.wrapping_add(b);
    f16: |a, b| f16::from_f32(a.to_f32() + b.to_f32());
    bf16: |a, b| bf16::from_f32(a.to_f32() + b.to_f32())
}

impl<T: Element> Buffers<T> {
    fn new(bytes: usize) -> Self {
        let buffer = || vec![T::from_f64(1.0); bytes / size_of::<T>()];
        Self { target: buffer(), sources: [buffer(), buffer(), buffer(), buffer()] }
    }
}

/// The processor time this thread has used.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Times all contenders in turn and prints a row. `streams`: buffers read plus buffers written.
fn row<T: Element>(
    rounds: usize,
    pattern: &str,
    streams: usize,
    bytes: usize,
    contenders: [Contender<T>; 3],
) {
    let mut buffers = Buffers::new(bytes);
    let repeats = (BYTES_PER_TIMING / bytes).max(1);
    let mut seconds = Vec::new();
    for round in 0..=rounds {
        let timed = contenders.map(|contender| {
            let start = cpu_seconds();
            for _ in 0..repeats {
                contender(Kernels::active(), black_box(&mut buffers));
            }
            cpu_seconds() - start
        });
        // Round 0 only warms up.
        if round > 0 {
            seconds.push(timed);
        }
    }
    let moved = (repeats * bytes * streams) as f64 / 1e9;
    let rate = |index: usize| moved / median(seconds.iter().map(|round| round[index]));
    let ratio = |index: usize| median(seconds.iter().map(|round| round[0] / round[index]));
    println!(
        "{pattern:<10} {:<5} {:>6} {:>10.1} {:>8.1} {:>6.2} {:>10.1} {:>6.2}",
        T::DTYPE.name(),
        bytes >> 10,
        rate(0),
        rate(1),
        ratio(1),
        rate(2),
        ratio(2),
    );
}

fn copies(rounds: usize, bytes: usize) {
    row::<u8>(
        rounds,
        "copy",
        2,
        bytes,
        [
            |_, b| b.target.copy_from_slice(&b.sources[0]),
            |kernels, b| kernels.copy(&mut b.target, &b.sources[0], Stores::Cached),
            |kernels, b| kernels.copy(&mut b.target, &b.sources[0], Stores::Streaming),
        ],
    );
}

fn into<T: Element>(kernels: &Kernels, buffers: &mut Buffers<T>, stores: Stores) {
    let [a, b, ..] = &buffers.sources;
    let target = as_bytes_mut(&mut buffers.target);
    kernels.reduce_into_bytes(T::DTYPE, ReduceOp::Sum, target, as_bytes(a), as_bytes(b), stores);
}

fn many<T: Element>(kernels: &Kernels, buffers: &mut Buffers<T>, stores: Stores) {
    let sources = buffers.sources.each_ref().map(|source| as_bytes(source));
    let target = as_bytes_mut(&mut buffers.target);
    kernels.reduce_many_bytes(T::DTYPE, ReduceOp::Sum, target, &sources, stores);
}

fn sums<T: PlainSum>(rounds: usize, bytes: usize) {
    let reduce: Contender<T> =
        |kernels, b| kernels.reduce(ReduceOp::Sum, &mut b.target, &b.sources[0]);
    row::<T>(
        rounds,
        "reduce",
        3,
        bytes,
        [|_, b| T::sum(&mut b.target, &b.sources[0]), reduce, reduce],
    );
    row::<T>(
        rounds,
        "into",
        3,
        bytes,
        [
            |_, b| T::sum_into(&mut b.target, &b.sources[0], &b.sources[1]),
            |kernels, b| into(kernels, b, Stores::Cached),
            |kernels, b| into(kernels, b, Stores::Streaming),
        ],
    );
    row::<T>(
        rounds,
        "many of 4",
        5,
        bytes,
        [
            |_, b| T::sum_four(&mut b.target, &b.sources),
            |kernels, b| many(kernels, b, Stores::Cached),
            |kernels, b| many(kernels, b, Stores::Streaming),
        ],
    );
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(25, |text| text.parse().expect("ROUNDS: a number"));
    println!("variant {}; GB/s; reduce has no streaming form", syncline_kernels::variant());
    println!("pattern    dtype    KiB  reference   cached  ratio  streaming  ratio");
    for bytes in SIZES_KIB.map(|kib| kib << 10) {
        copies(rounds, bytes);
        sums::<f32>(rounds, bytes);
        sums::<f64>(rounds, bytes);
        sums::<i32>(rounds, bytes);
        sums::<u8>(rounds, bytes);
        sums::<bf16>(rounds, bytes);
        sums::<f16>(rounds, bytes);
    }
}

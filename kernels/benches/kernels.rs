//! Copy and reduce at sizes that fit the first-level cache, the second or third, and none, each
//! beside what anybody would write: `memcpy` and a plain loop.
//!
//! `cargo bench -p syncline-kernels`. The example `bandwidth` prints ratios for more types.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use syncline_kernels::{
    DType, ReduceOp, Stores, as_bytes, as_bytes_mut, copy, reduce, reduce_into_bytes,
    reduce_many_bytes,
};

/// Bytes of one buffer.
const SIZES: [(&str, usize); 3] = [("32KiB", 32 << 10), ("1MiB", 1 << 20), ("64MiB", 64 << 20)];

const STORES: [(&str, Stores); 2] = [("cached", Stores::Cached), ("streaming", Stores::Streaming)];

fn copies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy");
    for (size, bytes) in SIZES {
        let source = vec![1_u8; bytes];
        let mut target = vec![0_u8; bytes];
        group.throughput(Throughput::Bytes(2 * bytes as u64));
        group.bench_function(BenchmarkId::new("memcpy", size), |b| {
            b.iter(|| black_box(&mut target[..]).copy_from_slice(black_box(&source)));
        });
        for (name, stores) in STORES {
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter(|| copy(black_box(&mut target), black_box(&source), stores));
            });
        }
    }
    group.finish();
}

fn sums_in_place(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reduce_f32_sum");
    for (size, bytes) in SIZES {
        let source = vec![1.0_f32; bytes / 4];
        let mut acc = vec![0.0_f32; bytes / 4];
        group.throughput(Throughput::Bytes(3 * bytes as u64));
        group.bench_function(BenchmarkId::new("plain_loop", size), |b| {
            b.iter(|| {
                for (acc, source) in black_box(&mut acc[..]).iter_mut().zip(black_box(&source)) {
                    *acc += source;
                }
            });
        });
        group.bench_function(BenchmarkId::new("kernel", size), |b| {
            b.iter(|| reduce(ReduceOp::Sum, black_box(&mut acc[..]), black_box(&source)));
        });
    }
    group.finish();
}

fn sums_into_target(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reduce_into_f32_sum");
    for (size, bytes) in SIZES {
        let sources = [(); 2].map(|()| vec![1.0_f32; bytes / 4]);
        let mut target = vec![0.0_f32; bytes / 4];
        group.throughput(Throughput::Bytes(3 * bytes as u64));
        group.bench_function(BenchmarkId::new("plain_loop", size), |b| {
            b.iter(|| {
                let [first, second] = black_box(&sources);
                let sources = first.iter().zip(second);
                for (target, (a, b)) in black_box(&mut target[..]).iter_mut().zip(sources) {
                    *target = a + b;
                }
            });
        });
        for (name, stores) in STORES {
            group.bench_function(BenchmarkId::new(name, size), |bencher| {
                let (dtype, op) = (DType::F32, ReduceOp::Sum);
                bencher.iter(|| {
                    let [a, b] = black_box(&sources).each_ref().map(|x| as_bytes(x));
                    reduce_into_bytes(dtype, op, as_bytes_mut(&mut target), a, b, stores);
                });
            });
        }
    }
    group.finish();
}

fn sums_of_four(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reduce_many_f32_sum_of_4");
    for (size, bytes) in SIZES {
        let sources = [(); 4].map(|()| vec![1.0_f32; bytes / 4]);
        let mut target = vec![0.0_f32; bytes / 4];
        group.throughput(Throughput::Bytes(5 * bytes as u64));
        group.bench_function(BenchmarkId::new("plain_loop", size), |b| {
            b.iter(|| {
                let [first, second, third, fourth] = black_box(&sources);
                let sources = first.iter().zip(second).zip(third.iter().zip(fourth));
                for (target, ((a, b), (c, d))) in black_box(&mut target[..]).iter_mut().zip(sources)
                {
                    *target = a + b + c + d;
                }
            });
        });
        for (name, stores) in STORES {
            group.bench_function(BenchmarkId::new(name, size), |b| {
                let (dtype, op) = (DType::F32, ReduceOp::Sum);
                b.iter(|| {
                    let sources = black_box(&sources).each_ref().map(|x| as_bytes(x));
                    reduce_many_bytes(dtype, op, as_bytes_mut(&mut target), &sources, stores);
                });
            });
        }
    }
    group.finish();
}

fn config() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! {
    name = kernels;
    config = config();
    targets = copies, sums_in_place, sums_into_target, sums_of_four
}
criterion_main!(kernels);

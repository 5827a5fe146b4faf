//! Times the kernels beside a plain loop and `memcpy`; to be finished.
use std::hint::black_box;
use std::time::Instant;
use syncline_kernels::{DType, Element, Kernels, ReduceOp, Stores, Variant, as_bytes, as_bytes_mut, bf16, f16};

#[inline(never)]
fn plain(a: &mut [f32], b: &[f32]) { for (x, y) in a.iter_mut().zip(b) { *x += y; } }
#[inline(never)]
fn plain_into(t: &mut [f32], a: &[f32], b: &[f32]) { for ((t, x), y) in t.iter_mut().zip(a).zip(b) { *t = x + y; } }

fn time(reps: usize, mut f: impl FnMut()) -> f64 { let s = Instant::now(); for _ in 0..reps { f(); } s.elapsed().as_secs_f64() / reps as f64 }

fn row(name: &str, bytes: usize, moved: f64, fs: &mut [(&str, Box<dyn FnMut() + '_>)]) {
    let reps = ((1 << 25) / bytes).max(1);
    let mut t = vec![vec![]; fs.len()];
    for _ in 0..15 { for (i, (_, f)) in fs.iter_mut().enumerate() { t[i].push(time(reps, &mut *f)); } }
    print!("{name:22} {:>6} KiB", bytes >> 10);
    for (i, (n, _)) in fs.iter().enumerate() { t[i].sort_by(f64::total_cmp); print!("  {n} {:6.1}", moved * bytes as f64 / t[i][7] / 1e9); }
    println!();
}

fn dtype<T: Element>(bytes: usize) {
    let n = bytes / size_of::<T>();
    let a = vec![T::from_f64(1.0); n]; let b = vec![T::from_f64(1.0); n];
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max] {
        let mut accs: Vec<_> = Variant::ALL.iter().map(|_| a.clone()).collect();
        let b = &b;
        let mut fs: Vec<(&str, Box<dyn FnMut()>)> = vec![];
        for (v, acc) in Variant::ALL.iter().zip(&mut accs) {
            let k = Kernels::of(*v).unwrap();
            fs.push((v.name(), Box::new(move || k.reduce(op, black_box(&mut acc[..]), black_box(b)))));
        }
        row(&format!("{} {op}", T::DTYPE), bytes, 3.0, &mut fs);
    }
}

fn main() {
    for bytes in [32 << 10, 1 << 20, 64 << 20] {
        let n = bytes / 4;
        let (mut p, mut q, mut r, b, c) = (vec![1f32; n], vec![1f32; n], vec![1f32; n], vec![1f32; n], vec![1f32; n]);
        let (k2, k5) = (Kernels::of(Variant::Avx2).unwrap(), Kernels::of(Variant::Avx512).unwrap());
        row("sum f32", bytes, 3.0, &mut [("plain", Box::new(|| plain(black_box(&mut p), black_box(&b)))),
            ("avx2", Box::new(|| k2.reduce(ReduceOp::Sum, black_box(&mut q[..]), black_box(&b)))),
            ("avx512", Box::new(|| k5.reduce(ReduceOp::Sum, black_box(&mut r[..]), black_box(&b))))]);
        let t = &mut p; let u = &mut q; let v = &mut r; let mut w = vec![0f32; n]; let mut x = vec![0f32; n];
        row("into f32", bytes, 3.0, &mut [("plain", Box::new(|| plain_into(black_box(t), black_box(&b), black_box(&c)))),
            ("avx2", Box::new(|| k2.reduce_into_bytes(DType::F32, ReduceOp::Sum, black_box(as_bytes_mut(u)), black_box(as_bytes(&b)), as_bytes(&c), Stores::Cached))),
            ("avx512", Box::new(|| k5.reduce_into_bytes(DType::F32, ReduceOp::Sum, black_box(as_bytes_mut(v)), black_box(as_bytes(&b)), as_bytes(&c), Stores::Cached))),
            ("avx2s", Box::new(|| k2.reduce_into_bytes(DType::F32, ReduceOp::Sum, black_box(as_bytes_mut(&mut w)), black_box(as_bytes(&b)), as_bytes(&c), Stores::Streaming))),
            ("avx512s", Box::new(|| k5.reduce_into_bytes(DType::F32, ReduceOp::Sum, black_box(as_bytes_mut(&mut x)), black_box(as_bytes(&b)), as_bytes(&c), Stores::Streaming)))]);
        row("copy", bytes, 2.0, &mut [("memcpy", Box::new(|| black_box(&mut p[..]).copy_from_slice(black_box(&b)))),
            ("avx2", Box::new(|| k2.copy(black_box(as_bytes_mut(&mut q)), black_box(as_bytes(&b)), Stores::Cached))),
            ("avx2s", Box::new(|| k2.copy(black_box(as_bytes_mut(&mut r)), black_box(as_bytes(&b)), Stores::Streaming))),
            ("avx512s", Box::new(|| k5.copy(black_box(as_bytes_mut(&mut w)), black_box(as_bytes(&b)), Stores::Streaming)))]);
    }
    for bytes in [32 << 10, 1 << 20] {
        dtype::<f16>(bytes); dtype::<bf16>(bytes); dtype::<f32>(bytes); dtype::<f64>(bytes); dtype::<i8>(bytes); dtype::<u8>(bytes); dtype::<i16>(bytes); dtype::<i32>(bytes); dtype::<i64>(bytes); dtype::<u64>(bytes);
    }
}

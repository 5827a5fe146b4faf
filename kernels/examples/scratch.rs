//! x
use std::hint::black_box;
use std::time::Instant;
use syncline_kernels::*;
fn main() {
    let (n, bytes) = (4usize, std::env::var("KIB").map_or(256, |v| v.parse().unwrap()) << 10usize);
    let mut t = vec![0u8; bytes];
    let s: Vec<Vec<u8>> = (0..8).map(|_| vec![0u8; bytes]).collect();
    let refs: Vec<&[u8]> = s.iter().map(|v| &v[..]).collect();
    let reps = ((16 << 20) / bytes).max(1);
    for d in DType::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max] {
            print!("{d:5} {op:5}");
            for v in Variant::ALL {
                let k = Kernels::of(v).unwrap();
                for (n, st) in [(2, Stores::Cached), (n, Stores::Cached), (n, Stores::Streaming)] {
                    let mut best = f64::MAX;
                    for _ in 0..9 {
                        let s = Instant::now();
                        for _ in 0..reps {
                            k.reduce_many_bytes(
                                d,
                                op,
                                black_box(&mut t),
                                black_box(&refs[..n]),
                                st,
                            );
                        }
                        best = best.min(s.elapsed().as_secs_f64());
                    }
                    print!(" {:7.1}", ((n + 1) * bytes * reps) as f64 / best / 1e9);
                }
                print!(" |");
            }
            println!();
        }
    }
}

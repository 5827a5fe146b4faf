//! CONTRACT.md, statement by statement, for every variant this machine can run.

mod oracle;

use oracle::{
    assert_same, bits_at, canonical_nan, divide, fold_buffers, from_bits, random, special_bits,
    variants,
};
use syncline_kernels::{DType, Kernels, ReduceOp, Stores, bf16, f16};

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];

/// Folds with every variant and in every form, and compares with the oracle.
fn check(dtype: DType, op: ReduceOp, sources: &[&[u8]]) {
    let wanted = fold_buffers(dtype, op, sources);
    for kernels in variants() {
        let context = format!("{:?}, {} sources", kernels.variant(), sources.len());
        let mut target = vec![0; wanted.len()];
        for stores in [Stores::Cached, Stores::Streaming] {
            kernels.reduce_many_bytes(dtype, op, &mut target, sources, stores);
            assert_same(dtype, op, &target, &wanted, &context);
            if let [a, b] = sources {
                kernels.reduce_into_bytes(dtype, op, &mut target, a, b, stores);
                assert_same(dtype, op, &target, &wanted, &context);
            }
        }
        if let [a, b] = sources {
            target.copy_from_slice(a);
            kernels.reduce_bytes(dtype, op, &mut target, b);
            assert_same(dtype, op, &target, &wanted, &context);
        }
    }
}

/// The special values against each other: each pair once in the middle of vectors.
#[test]
fn special_values() {
    for dtype in DType::ALL {
        let special = special_bits(dtype);
        let pairs = || special.iter().flat_map(|&a| special.iter().map(move |&b| (a, b)));
        let a = from_bits(dtype, pairs().map(|(a, _)| a));
        let b = from_bits(dtype, pairs().map(|(_, b)| b));
        let third = random(dtype, a.len() / dtype.size(), 1);
        for op in OPS {
            check(dtype, op, &[&a, &b]);
            check(dtype, op, &[&a, &b, &third]);
            check(dtype, op, &[&third, &b, &a, &b]);
        }
    }
}

/// The oracle is not the only word on what matters most.
#[test]
fn nan_and_zero_by_hand() {
    for kernels in variants() {
        let fold = |op, a: f32, b: f32| {
            let mut acc = [a; 37];
            kernels.reduce(op, &mut acc, &[b; 37]);
            let bits = acc.map(f32::to_bits);
            assert_eq!(bits, [bits[0]; 37]);
            bits[0]
        };
        let signalling = f32::from_bits(0xff80_0001);
        for nan in [f32::NAN, -f32::NAN, signalling] {
            for other in [1.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                for op in OPS {
                    assert_eq!(fold(op, nan, other), 0x7fc0_0000);
                    assert_eq!(fold(op, other, nan), 0x7fc0_0000);
                }
            }
        }
        for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
            assert_eq!(fold(ReduceOp::Min, a, b), (-0.0_f32).to_bits());
            assert_eq!(fold(ReduceOp::Max, a, b), 0.0_f32.to_bits());
            assert_eq!(fold(ReduceOp::Sum, a, b), 0.0_f32.to_bits());
            assert_eq!(fold(ReduceOp::Prod, a, b), (-0.0_f32).to_bits());
        }
        let (inf, minus_inf) = (f32::INFINITY, f32::NEG_INFINITY);
        assert_eq!(fold(ReduceOp::Sum, inf, minus_inf), 0x7fc0_0000);
        assert_eq!(fold(ReduceOp::Prod, inf, 0.0), 0x7fc0_0000);
        assert_eq!(fold(ReduceOp::Sum, f32::MAX, f32::MAX), f32::INFINITY.to_bits());
        let subnormal = f32::from_bits(3);
        assert_eq!(fold(ReduceOp::Sum, subnormal, subnormal), 6);
        assert_eq!(fold(ReduceOp::Prod, subnormal, 2.0), 6);
    }
}

/// Every 16-bit float against partners that make the result round, vanish, overflow or cancel.
#[test]
fn every_sixteen_bit_float() {
    for dtype in [DType::F16, DType::BF16] {
        let all = from_bits(dtype, 0..1 << 16);
        let mut partners = special_bits(dtype);
        partners.extend([0x3555, 0x3eab, 0x0733, 0xb801, 0x4248, 0x5640]);
        for partner in partners {
            let other = from_bits(dtype, std::iter::repeat_n(partner, 1 << 16));
            for op in OPS {
                check(dtype, op, &[&all, &other]);
            }
        }
    }
}

/// Sums held in `f32`: 2048 + 1 + 1 loses both ones if each sum is rounded to `f16`.
#[test]
fn sixteen_bit_floats_round_once() {
    for kernels in variants() {
        let sum = |dtype, values: [u16; 3]| {
            let sources = values.map(|bits| from_bits(dtype, [u64::from(bits); 100]));
            let slices = sources.each_ref().map(Vec::as_slice);
            let mut target = vec![0; 200];
            let stores = Stores::Cached;
            kernels.reduce_many_bytes(dtype, ReduceOp::Sum, &mut target, &slices, stores);
            bits_at(dtype, &target, 63) as u16
        };
        let [big, one] = [2048.0, 1.0].map(|x| f16::from_f32(x).to_bits());
        assert_eq!(f16::from_bits(sum(DType::F16, [big, one, one])).to_f32(), 2050.0);
        let [big, one] = [256.0, 1.0].map(|x| bf16::from_f32(x).to_bits());
        assert_eq!(bf16::from_bits(sum(DType::BF16, [big, one, one])).to_f32(), 258.0);
    }
}

#[test]
fn any_number_of_sources() {
    for dtype in DType::ALL {
        for count in [1, 2, 3, 4, 5, 8, 17, 64, 65, 200] {
            for len in [0, 1, 63, 333] {
                let sources: Vec<_> = (0..count).map(|source| random(dtype, len, source)).collect();
                let slices: Vec<_> = sources.iter().map(Vec::as_slice).collect();
                for op in OPS {
                    check(dtype, op, &slices);
                }
            }
        }
    }
}

#[test]
fn what_is_order_free_has_the_same_bits_in_any_order() {
    for dtype in DType::ALL {
        for op in ReduceOp::ALL {
            let sources: Vec<_> = (0..7).map(|source| random(dtype, 999, source)).collect();
            let mut slices: Vec<_> = sources.iter().map(Vec::as_slice).collect();
            let forward = fold_buffers(dtype, op, &slices);
            slices.reverse();
            let backward = fold_buffers(dtype, op, &slices);
            let (head, tail) = slices.split_at(3);
            let halves = [head, tail].map(|half| fold_buffers(dtype, op, half));
            let grouped = fold_buffers(dtype, op, &[&halves[0], &halves[1]]);
            let is_same = forward == backward && forward == grouped;
            assert_eq!(is_same, op.is_order_free(dtype), "{dtype}, {op}");
        }
    }
}

/// One source is copied: even a signalling NaN keeps its bits.
#[test]
fn one_source_is_copied() {
    for dtype in FLOATS {
        let source = from_bits(dtype, special_bits(dtype));
        for kernels in variants() {
            for op in ReduceOp::ALL {
                let mut target = vec![0; source.len()];
                kernels.reduce_many_bytes(dtype, op, &mut target, &[&source], Stores::Streaming);
                assert_eq!(target, source);
            }
        }
    }
}

#[test]
fn average_reduces_as_sum() {
    for dtype in DType::ALL {
        let [a, b, c] = [1, 2, 3].map(|seed| random(dtype, 333, seed));
        for kernels in variants() {
            let all = |op| {
                let mut in_place = a.clone();
                kernels.reduce_bytes(dtype, op, &mut in_place, &b);
                let mut many = vec![0; a.len()];
                kernels.reduce_many_bytes(dtype, op, &mut many, &[&a, &b, &c], Stores::Cached);
                (in_place, many)
            };
            assert_eq!(all(ReduceOp::Avg), all(ReduceOp::Sum));
        }
    }
}

#[test]
fn average_divides() {
    for dtype in DType::ALL {
        let mut data = from_bits(dtype, special_bits(dtype));
        data.extend(random(dtype, 300, 1));
        let count = data.len() / dtype.size();
        for world_size in [1, 2, 3, 7, 200, 1000, 70_000, u32::MAX] {
            let bits = (0..count).map(|index| bits_at(dtype, &data, index));
            let wanted = match world_size {
                1 => data.clone(),
                _ => from_bits(dtype, bits.map(|bits| divide(dtype, bits, world_size))),
            };
            for kernels in variants() {
                let mut got = data.clone();
                kernels.finish_average_bytes(dtype, &mut got, world_size);
                let context = format!("{:?} / {world_size}", kernels.variant());
                assert_same(dtype, ReduceOp::Avg, &got, &wanted, &context);
            }
        }
    }
}

#[test]
fn integer_average_truncates_towards_zero() {
    for kernels in variants() {
        let mut data = [-7_i8, 7, -1, 1, i8::MIN].map(|x| x as u8);
        kernels.finish_average_bytes(DType::I8, &mut data, 2);
        assert_eq!(data.map(|x| x as i8), [-3, 3, 0, 0, -64]);
        kernels.finish_average_bytes(DType::I8, &mut data, 1000);
        assert_eq!(data, [0; 5]);
    }
}

#[test]
fn canonical_nan_is_the_languages() {
    assert_eq!(canonical_nan(DType::F32), u64::from(f32::NAN.to_bits()));
    assert_eq!(canonical_nan(DType::F64), f64::NAN.to_bits());
    assert_eq!(canonical_nan(DType::F16), u64::from(f16::NAN.to_bits()));
    assert_eq!(canonical_nan(DType::BF16), u64::from(bf16::NAN.to_bits()));
}

/// The message of the panic that `call` must cause.
fn panic_of(call: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let payload = std::panic::catch_unwind(call).expect_err("no panic");
    payload.downcast_ref::<String>().cloned().unwrap_or_else(|| "an average over no ranks".into())
}

#[test]
fn wrong_arguments_panic_and_say_why() {
    let kernels = Kernels::active();
    let (dtype, op, stores) = (DType::F32, ReduceOp::Sum, Stores::Streaming);
    let differ = |message: String| assert!(message.contains("differ"), "{message}");
    differ(panic_of(|| kernels.reduce_bytes(dtype, op, &mut [0; 8], &[0; 4])));
    differ(panic_of(|| kernels.reduce::<f32>(op, &mut [0.0; 2], &[0.0; 3])));
    differ(panic_of(|| {
        kernels.reduce_into_bytes(dtype, op, &mut [0; 8], &[0; 8], &[0; 4], stores);
    }));
    differ(panic_of(|| {
        kernels.reduce_many_bytes(dtype, op, &mut [0; 8], &[&[0; 8], &[0; 12]], stores);
    }));
    differ(panic_of(|| kernels.copy(&mut [0; 8], &[0; 9], stores)));

    let message = panic_of(|| kernels.reduce_bytes(dtype, op, &mut [0; 6], &[0; 6]));
    assert!(message.contains("6 bytes are no whole number of f32 elements"), "{message}");
    let message = panic_of(|| kernels.reduce_many_bytes(dtype, op, &mut [], &[], stores));
    assert!(message.contains("0 sources"), "{message}");
    panic_of(|| kernels.finish_average_bytes(dtype, &mut [0; 8], 0));
}

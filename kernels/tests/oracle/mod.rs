//! The contract once more, one element at a time and in the plainest way: what the kernels must
//! compute. Shares no code with them; 16-bit floats go through the `half` crate, integers through
//! 128 bits.

#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::cmp::Ordering;

use syncline_kernels::{DType, Kernels, ReduceOp, Variant, bf16, f16};

/// Every variant this machine can run.
pub(crate) fn variants() -> Vec<&'static Kernels> {
    Variant::ALL.into_iter().filter_map(Kernels::of).collect()
}

/// The element at `index` of `bytes`, its bits in the low end.
pub(crate) fn bits_at(dtype: DType, bytes: &[u8], index: usize) -> u64 {
    match dtype.size() {
        1 => u64::from(bytes[index]),
        2 => u64::from(u16::from_ne_bytes(bytes.as_chunks().0[index])),
        4 => u64::from(u32::from_ne_bytes(bytes.as_chunks().0[index])),
        _ => u64::from_ne_bytes(bytes.as_chunks().0[index]),
    }
}

/// Appends the low bits that an element of `dtype` has.
pub(crate) fn push_bits(dtype: DType, bytes: &mut Vec<u8>, bits: u64) {
    match dtype.size() {
        1 => bytes.push(bits as u8),
        2 => bytes.extend((bits as u16).to_ne_bytes()),
        4 => bytes.extend((bits as u32).to_ne_bytes()),
        _ => bytes.extend(bits.to_ne_bytes()),
    }
}

/// The elements with these bits.
pub(crate) fn from_bits(dtype: DType, bits: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for bits in bits {
        push_bits(dtype, &mut bytes, bits);
    }
    bytes
}

/// `(greatest exponent, first fraction bit)`: the parts of a quiet NaN of a float type.
fn nan_parts(dtype: DType) -> (u64, u64) {
    match dtype {
        DType::F16 => (0x7c00, 0x0200),
        DType::BF16 => (0x7f80, 0x0040),
        DType::F32 => (0x7f80_0000, 0x0040_0000),
        DType::F64 => (0x7ff0_0000_0000_0000, 0x0008_0000_0000_0000),
        _ => panic!("{dtype} has no NaN"),
    }
}

fn sign_bit(dtype: DType) -> u64 {
    1 << (dtype.size() * 8 - 1)
}

/// The positive quiet NaN without payload.
pub(crate) fn canonical_nan(dtype: DType) -> u64 {
    let (exponent, quiet) = nan_parts(dtype);
    exponent | quiet
}

fn is_nan(dtype: DType, bits: u64) -> bool {
    dtype.is_float() && bits & !sign_bit(dtype) > nan_parts(dtype).0
}

fn canonical(dtype: DType, bits: u64) -> u64 {
    if is_nan(dtype, bits) { canonical_nan(dtype) } else { bits }
}

/// Bits that make every path of a float kernel work, or the limits of an integer.
pub(crate) fn special_bits(dtype: DType) -> Vec<u64> {
    let sign = sign_bit(dtype);
    if !dtype.is_float() {
        return vec![
            0,
            1,
            2,
            3,
            7,
            sign - 1,
            sign,
            sign + 1,
            (sign - 1) | sign,
            sign / 2,
            sign / 3,
        ];
    }
    let (infinity, quiet) = nan_parts(dtype);
    let one = match dtype {
        DType::F16 => 0x3c00,
        DType::BF16 => 0x3f80,
        DType::F32 => 0x3f80_0000,
        _ => 0x3ff0_0000_0000_0000,
    };
    let smallest_normal = quiet * 2;
    let magnitudes = [
        0,
        1,
        2,
        smallest_normal - 1,
        smallest_normal,
        smallest_normal + 1,
        one - 1,
        one,
        one + 1,
        one + quiet,
        one + smallest_normal,
        infinity - smallest_normal,
        infinity - 1,
        infinity,
        infinity + 1,
        infinity + quiet,
        infinity + quiet + 1,
        sign - 1,
    ];
    magnitudes.into_iter().flat_map(|bits| [bits, bits | sign]).collect()
}

/// Random elements: any integer; floats that are finite, with zeros and subnormals among them.
pub(crate) fn random(dtype: DType, count: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let special = special_bits(dtype);
    from_bits(
        dtype,
        (0..count).map(|_| {
            if !dtype.is_float() {
                return rng.u64(..);
            }
            let (infinity, quiet) = nan_parts(dtype);
            let bits = match rng.u8(0..8) {
                0 => special[rng.usize(..special.len())],
                // A number near one, so that sums have digits to round.
                _ => ((infinity / 2) & !(quiet * 2 - 1)) + rng.u64(..quiet * 8),
            };
            let bits = bits | (sign_bit(dtype) * rng.u64(..2));
            if bits & infinity == infinity { bits & sign_bit(dtype) } else { bits }
        }),
    )
}

/// What a fold of these elements, at least one, from left to right must be.
pub(crate) fn fold(dtype: DType, op: ReduceOp, elements: &[u64]) -> u64 {
    let (first, rest) = elements.split_first().expect("a fold of at least one element");
    if rest.is_empty() {
        return *first;
    }
    let result = match (dtype, op) {
        (_, ReduceOp::Min) if dtype.is_float() => extreme(dtype, elements, Ordering::Less),
        (_, ReduceOp::Max) if dtype.is_float() => extreme(dtype, elements, Ordering::Greater),
        (DType::F64, _) => {
            let fold = |acc: f64, bits: &u64| match op {
                ReduceOp::Prod => acc * f64::from_bits(*bits),
                _ => acc + f64::from_bits(*bits),
            };
            rest.iter().fold(f64::from_bits(*first), fold).to_bits()
        }
        _ if dtype.is_float() => {
            let fold = |acc: f32, bits: &u64| match op {
                ReduceOp::Prod => acc * widen(dtype, *bits),
                _ => acc + widen(dtype, *bits),
            };
            narrow(dtype, rest.iter().fold(widen(dtype, *first), fold))
        }
        _ => {
            let fold = |acc: i128, bits: &u64| match op {
                ReduceOp::Min => acc.min(integer(dtype, *bits)),
                ReduceOp::Max => acc.max(integer(dtype, *bits)),
                ReduceOp::Prod => acc.wrapping_mul(integer(dtype, *bits)),
                ReduceOp::Sum | ReduceOp::Avg => acc.wrapping_add(integer(dtype, *bits)),
            };
            rest.iter().fold(integer(dtype, *first), fold) as u64 & mask(dtype)
        }
    };
    canonical(dtype, result)
}

/// What one element of an average must be.
pub(crate) fn divide(dtype: DType, bits: u64, world_size: u32) -> u64 {
    let quotient = match dtype {
        DType::F64 => (f64::from_bits(bits) / f64::from(world_size)).to_bits(),
        _ if dtype.is_float() => narrow(dtype, widen(dtype, bits) / world_size as f32),
        _ => (integer(dtype, bits) / i128::from(world_size)) as u64 & mask(dtype),
    };
    canonical(dtype, quotient)
}

/// Panics unless every bit of `got` is as wanted.
#[track_caller]
pub(crate) fn assert_same(dtype: DType, op: ReduceOp, got: &[u8], wanted: &[u8], context: &str) {
    if got == wanted {
        return;
    }
    assert_eq!(got.len(), wanted.len());
    let bits = |index| (bits_at(dtype, got, index), bits_at(dtype, wanted, index));
    let count = got.len() / dtype.size();
    let Some(index) = (0..count).find(|&index| bits(index).0 != bits(index).1) else { return };
    let (got, wanted) = bits(index);
    panic!("{dtype} {op}, element {index}: {got:#x}, not {wanted:#x}; {context}");
}

/// `fold` of whole buffers.
pub(crate) fn fold_buffers(dtype: DType, op: ReduceOp, buffers: &[&[u8]]) -> Vec<u8> {
    let count = buffers[0].len() / dtype.size();
    let mut elements = vec![0; buffers.len()];
    from_bits(
        dtype,
        (0..count).map(|index| {
            for (element, buffer) in elements.iter_mut().zip(buffers) {
                *element = bits_at(dtype, buffer, index);
            }
            fold(dtype, op, &elements)
        }),
    )
}

fn extreme(dtype: DType, elements: &[u64], wanted: Ordering) -> u64 {
    if elements.iter().any(|&bits| is_nan(dtype, bits)) {
        return canonical_nan(dtype);
    }
    let number = |bits| match dtype {
        DType::F64 => f64::from_bits(bits),
        _ => f64::from(widen(dtype, bits)),
    };
    // Without NaN, the total order is that of the numbers, with -0 before +0.
    let better = |a, &b| if number(b).total_cmp(&number(a)) == wanted { b } else { a };
    elements.iter().fold(elements[0], better)
}

fn widen(dtype: DType, bits: u64) -> f32 {
    match dtype {
        DType::F16 => f16::from_bits(bits as u16).to_f32(),
        DType::BF16 => bf16::from_bits(bits as u16).to_f32(),
        _ => f32::from_bits(bits as u32),
    }
}

fn narrow(dtype: DType, number: f32) -> u64 {
    match dtype {
        DType::F16 => u64::from(f16::from_f32(number).to_bits()),
        DType::BF16 => u64::from(bf16::from_f32(number).to_bits()),
        _ => u64::from(number.to_bits()),
    }
}

fn integer(dtype: DType, bits: u64) -> i128 {
    match dtype {
        DType::I8 => i128::from(bits as i8),
        DType::I16 => i128::from(bits as i16),
        DType::I32 => i128::from(bits as i32),
        DType::I64 => i128::from(bits as i64),
        _ => i128::from(bits),
    }
}

fn mask(dtype: DType) -> u64 {
    u64::MAX >> (64 - 8 * dtype.size())
}

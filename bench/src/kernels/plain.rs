//! What the kernels are measured against: the loops anybody would write.
//!
//! Owns them; nothing here is clever, and nothing of the library's is used. Each is compiled for
//! the target's baseline, as plain code is. Called by `pattern`.

use super::pattern::SOURCES;
use syncline_comm::{Element, bf16, f16};

/// Elements that can be added the plain way.
pub(super) trait Plain: Element {
    fn plus(self, other: Self) -> Self;
}

macro_rules! plain {
    ($($ty:ty: |$a:ident, $b:ident| $sum:expr);* $(;)?) => {$(
        impl Plain for $ty {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $sum
            }
        }
    )*};
}

// Of 16-bit floats only the bytes are moved as a sum would move them.
plain! {
    bf16: |a, b| Self::from_bits(a.to_bits().wrapping_add(b.to_bits()));
    f16: |a, b| Self::from_bits(a.to_bits().wrapping_add(b.to_bits()));
    f32: |a, b| a + b;
    f64: |a, b| a + b;
    i8: |a, b| a.wrapping_add(b);
    i16: |a, b| a.wrapping_add(b);
    i32: |a, b| a.wrapping_add(b);
    i64: |a, b| a.wrapping_add(b);
    u8: |a, b| a.wrapping_add(b);
    u16: |a, b| a.wrapping_add(b);
    u32: |a, b| a.wrapping_add(b);
    u64: |a, b| a.wrapping_add(b);
}

/// `acc[i] += source[i]`.
#[inline(never)]
pub(super) fn in_place<T: Plain>(acc: &mut [T], source: &[T]) {
    for (acc, source) in acc.iter_mut().zip(source) {
        *acc = acc.plus(*source);
    }
}

/// `target[i] = a[i] + b[i]`; of `f64`, STREAM's add.
#[inline(never)]
pub(super) fn into<T: Plain>(target: &mut [T], a: &[T], b: &[T]) {
    for ((target, a), b) in target.iter_mut().zip(a).zip(b) {
        *target = a.plus(*b);
    }
}

/// `target[i] = sources[0][i] + sources[1][i] + …`, of 3 to 8 of them.
pub(super) fn many<T: Plain>(target: &mut [T], sources: &[Vec<T>; SOURCES], inputs: u32) {
    match inputs {
        3 => sum_of::<T, 3>(target, sources),
        4 => sum_of::<T, 4>(target, sources),
        5 => sum_of::<T, 5>(target, sources),
        6 => sum_of::<T, 6>(target, sources),
        7 => sum_of::<T, 7>(target, sources),
        8 => sum_of::<T, 8>(target, sources),
        _ => unreachable!("options allow 3 to 8 inputs"),
    }
}

#[inline(never)]
fn sum_of<T: Plain, const N: usize>(target: &mut [T], sources: &[Vec<T>; SOURCES]) {
    let len = target.len();
    let sources: [&[T]; N] = std::array::from_fn(|source| &sources[source][..len]);
    for (index, target) in target.iter_mut().enumerate() {
        let mut sum = sources[0][index];
        for source in &sources[1..] {
            sum = sum.plus(source[index]);
        }
        *target = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_way_is_right() {
        let sources: [Vec<i32>; SOURCES] = std::array::from_fn(|source| {
            (0..100).map(|index| index * 10_i32.pow(source as u32)).collect()
        });
        let mut target = vec![0; 100];
        for inputs in 3..=8 {
            many(&mut target, &sources, inputs);
            let factor: i32 = (0..inputs).map(|source| 10_i32.pow(source)).sum();
            assert!(target.iter().zip(0..).all(|(sum, index)| *sum == index * factor));
        }
        into(&mut target, &sources[0], &sources[1]);
        in_place(&mut target, &sources[2]);
        assert_eq!(target[3], 333);
    }
}

//! Which variant runs: one table of function pointers each, resolved once per process.
//!
//! Owns the choice and every check of arguments, so that the variants need none. Never computes.
//! Called through the functions at the crate's root; tests and benches ask for a table by name.
//!
//! Invariant of the `unsafe` here: a variant's functions are called only after the processor was
//! asked
//! for every feature they are compiled with.

use core::fmt;
use std::sync::OnceLock;

use crate::cpu;
use crate::cpu::bytes::{as_bytes, as_bytes_mut};
use crate::dtype::{DType, Element};
use crate::op::ReduceOp;

/// Sources of [`reduce_many_bytes`](crate::reduce_many_bytes) that a caller may keep in an array.
/// It takes more, which then lie in a vector.
pub const MAX_SOURCES: usize = 64;

/// Set to `1`, the process uses [`Variant::Scalar`] whatever the processor can do.
const FORCE_SCALAR: &str = "SYNCLINE_FORCE_SCALAR";

/// Whether results go through the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stores {
    /// Ordinary stores: right whenever this processor reads the result again soon.
    Cached,
    /// Stores past the cache, where the variant has them and the target's alignment allows: right
    /// for results larger than the cache that somebody else reads. They are ordered before every
    /// later store of the calling thread. Never changes a result.
    Streaming,
}

/// The instruction set the loops are compiled for, from the least to the most capable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Variant {
    /// The baseline of the compilation target; runs everywhere.
    Scalar,
    /// x86-64 with AVX2 and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL beside AVX2 and F16C.
    Avx512,
}

impl Variant {
    /// Every variant, the least capable first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// The lower-case name: `"scalar"`, `"avx2"` or `"avx512"`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The variant this process uses: the most capable the processor has, or [`Variant::Scalar`] if
/// the environment variable `SYNCLINE_FORCE_SCALAR` is `1`. Decided at the first call.
#[must_use]
pub fn variant() -> Variant {
    Kernels::active().variant
}

/// Whether this machine can run `variant`.
#[must_use]
pub fn variant_available(variant: Variant) -> bool {
    Kernels::of(variant).is_some()
}

/// `(dtype, op, target, sources, stores)`.
type ReduceMany = unsafe fn(DType, ReduceOp, &mut [u8], &[&[u8]], Stores);

/// The functions of one variant.
///
/// The methods are the functions at the crate's root, with the same arguments and panics.
pub struct Kernels {
    variant: Variant,
    reduce: unsafe fn(DType, ReduceOp, &mut [u8], &[u8]),
    reduce_into: unsafe fn(DType, ReduceOp, &mut [u8], &[u8], &[u8]),
    reduce_many: ReduceMany,
    finish_average: unsafe fn(DType, &mut [u8], u32),
    copy: unsafe fn(&mut [u8], &[u8], Stores),
}

/// The table of the functions in `$module`.
macro_rules! table {
    ($variant:ident, $module:ident) => {
        Kernels {
            variant: Variant::$variant,
            reduce: cpu::$module::reduce,
            reduce_into: cpu::$module::reduce_into,
            reduce_many: cpu::$module::reduce_many,
            finish_average: cpu::$module::finish_average,
            copy: cpu::$module::copy,
        }
    };
}

static SCALAR: Kernels = table!(Scalar, scalar);
#[cfg(target_arch = "x86_64")]
static AVX2: Kernels = table!(Avx2, avx2);
#[cfg(target_arch = "x86_64")]
static AVX512: Kernels = table!(Avx512, avx512);

/// Whether the machine has all features of `cpu::avx2`.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("f16c")
}

/// Whether the machine has all features of `cpu::avx512`.
#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && std::is_x86_feature_detected!("avx512f")
        && std::is_x86_feature_detected!("avx512bw")
        && std::is_x86_feature_detected!("avx512dq")
        && std::is_x86_feature_detected!("avx512vl")
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernels").field("variant", &self.variant).finish_non_exhaustive()
    }
}

impl Kernels {
    /// The functions of `variant`, or `None` if this machine cannot run them.
    #[must_use]
    pub fn of(variant: Variant) -> Option<&'static Self> {
        match variant {
            Variant::Scalar => Some(&SCALAR),
            #[cfg(target_arch = "x86_64")]
            Variant::Avx2 => has_avx2().then_some(&AVX2),
            #[cfg(target_arch = "x86_64")]
            Variant::Avx512 => has_avx512().then_some(&AVX512),
            #[cfg(not(target_arch = "x86_64"))]
            Variant::Avx2 | Variant::Avx512 => None,
        }
    }

    /// The functions this process uses; see [`variant`].
    #[must_use]
    pub fn active() -> &'static Self {
        static ACTIVE: OnceLock<&'static Kernels> = OnceLock::new();
        ACTIVE.get_or_init(|| {
            if std::env::var_os(FORCE_SCALAR).is_some_and(|value| value == "1") {
                return &SCALAR;
            }
            Variant::ALL.into_iter().rev().find_map(Self::of).unwrap_or(&SCALAR)
        })
    }

    /// Which variant this is.
    #[must_use]
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// [`reduce`](crate::reduce) with this variant.
    ///
    /// # Panics
    /// If the slices' lengths differ.
    pub fn reduce<T: Element>(&self, op: ReduceOp, acc: &mut [T], source: &[T]) {
        self.reduce_bytes(T::DTYPE, op, as_bytes_mut(acc), as_bytes(source));
    }

    /// [`reduce_bytes`](crate::reduce_bytes) with this variant.
    ///
    /// # Panics
    /// If the lengths (bytes) differ or are no multiple of the element's size.
    pub fn reduce_bytes(&self, dtype: DType, op: ReduceOp, acc: &mut [u8], source: &[u8]) {
        check(dtype, acc.len(), source.len());
        // SAFETY: a table is handed out only if the machine has the features it needs (`of`).
        unsafe { (self.reduce)(dtype, op, acc, source) }
    }

    /// [`reduce_into_bytes`](crate::reduce_into_bytes) with this variant.
    ///
    /// # Panics
    /// If the lengths (bytes) differ or are no multiple of the element's size.
    pub fn reduce_into_bytes(
        &self,
        dtype: DType,
        op: ReduceOp,
        target: &mut [u8],
        a: &[u8],
        b: &[u8],
        stores: Stores,
    ) {
        check(dtype, target.len(), a.len());
        check(dtype, target.len(), b.len());
        match stores {
            // SAFETY: a table is handed out only if the machine has the features it needs (`of`).
            Stores::Cached => unsafe { (self.reduce_into)(dtype, op, target, a, b) },
            // SAFETY: as above.
            Stores::Streaming => unsafe {
                (self.reduce_many)(dtype, op, target, &[a, b], stores);
            },
        }
    }

    /// [`reduce_many_bytes`](crate::reduce_many_bytes) with this variant.
    ///
    /// # Panics
    /// If there are no sources, or the lengths (bytes) differ or are no multiple of the element's
    /// size.
    pub fn reduce_many_bytes(
        &self,
        dtype: DType,
        op: ReduceOp,
        target: &mut [u8],
        sources: &[&[u8]],
        stores: Stores,
    ) {
        let count = sources.len();
        assert!(count > 0, "{count} sources; at least 1 wanted");
        for source in sources {
            check(dtype, target.len(), source.len());
        }
        // SAFETY: a table is handed out only if the machine has the features it needs (`of`).
        unsafe { (self.reduce_many)(dtype, op, target, sources, stores) }
    }

    /// [`finish_average_bytes`](crate::finish_average_bytes) with this variant.
    ///
    /// # Panics
    /// If `world_size` is 0, or `data`'s length (bytes) is no multiple of the element's size.
    pub fn finish_average_bytes(&self, dtype: DType, data: &mut [u8], world_size: u32) {
        assert!(world_size > 0, "an average over no ranks");
        check(dtype, data.len(), data.len());
        if world_size > 1 {
            // SAFETY: a table is handed out only if the machine has the features it needs (`of`).
            unsafe { (self.finish_average)(dtype, data, world_size) }
        }
    }

    /// [`copy`](crate::copy) with this variant.
    ///
    /// # Panics
    /// If the lengths (bytes) differ.
    pub fn copy(&self, target: &mut [u8], source: &[u8], stores: Stores) {
        check(DType::U8, target.len(), source.len());
        // SAFETY: a table is handed out only if the machine has the features it needs (`of`).
        unsafe { (self.copy)(target, source, stores) }
    }
}

/// Panics unless two buffers of these lengths (bytes) hold the same number of whole elements.
#[track_caller]
fn check(dtype: DType, target: usize, source: usize) {
    assert_eq!(target, source, "target and source lengths in bytes differ");
    assert_eq!(target % dtype.size(), 0, "{target} bytes are no whole number of {dtype} elements");
}

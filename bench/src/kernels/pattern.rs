//! What can be measured: which arrays a kernel reads and writes, and the call itself.

use super::plain::{self, Plain};
use clap::ValueEnum;
use syncline_kernels::{Kernels, ReduceOp, Stores, as_bytes, as_bytes_mut};

/// The fewest inputs of `reduce_many` that are measured.
pub const INPUTS_MIN: i64 = 3;
/// The most.
pub const INPUTS_MAX: i64 = 8;
/// Sources that are made: as many as the most inputs.
pub(super) const SOURCES: usize = INPUTS_MAX as usize;

/// A kernel of the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Kernel {
    /// target = source
    Copy,
    /// acc += source
    Reduce,
    /// target = a + b
    ReduceInto,
    /// target = the sum of several inputs
    ReduceMany,
}

/// Which way results take to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Through {
    /// Through the cache
    Cached,
    /// Past the cache
    Streaming,
}

impl Through {
    fn stores(self) -> Stores {
        match self {
            Self::Cached => Stores::Cached,
            Self::Streaming => Stores::Streaming,
        }
    }

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Streaming => "streaming",
        }
    }
}

/// A kernel and what it is called with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Of bytes.
    Copy(Through),
    /// In place.
    Reduce,
    /// Of two inputs.
    ReduceInto(Through),
    /// Of so many inputs.
    ReduceMany(Through, u32),
}

/// The arrays of one thread.
#[derive(Debug)]
pub(super) struct Arrays<T> {
    pub(super) target: Vec<T>,
    pub(super) sources: [Vec<T>; SOURCES],
    /// STREAM's own.
    pub(super) stream: [Vec<f64>; 3],
}

/// Who takes a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Contender {
    Kernel,
    Plain,
    StreamAdd,
}

impl Contender {
    pub(super) const ALL: [Self; 3] = [Self::Kernel, Self::Plain, Self::StreamAdd];
}

impl<T: Plain> Arrays<T> {
    /// Arrays of so many bytes, written to here: the first touch of memory is nobody's turn.
    pub(super) fn new(bytes: usize) -> Self {
        let array = || vec![T::from_f64(1.0); (bytes / size_of::<T>()).max(1)];
        let stream = || vec![1.0; (bytes / size_of::<f64>()).max(1)];
        Self {
            target: array(),
            sources: std::array::from_fn(|_| array()),
            stream: std::array::from_fn(|_| stream()),
        }
    }
}

impl Pattern {
    /// The kernel's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy(_) => "copy",
            Self::Reduce => "reduce",
            Self::ReduceInto(_) => "reduce_into",
            Self::ReduceMany(..) => "reduce_many",
        }
    }

    /// Which way results take.
    pub fn through(self) -> Through {
        match self {
            Self::Reduce => Through::Cached,
            Self::Copy(through) | Self::ReduceInto(through) | Self::ReduceMany(through, _) => {
                through
            }
        }
    }

    /// Arrays that are read without being the target.
    pub fn inputs(self) -> u32 {
        match self {
            Self::Copy(_) | Self::Reduce => 1,
            Self::ReduceInto(_) => 2,
            Self::ReduceMany(_, inputs) => inputs,
        }
    }

    /// Arrays that must fit into a cache to stay there.
    pub fn arrays(self) -> u64 {
        u64::from(self.inputs()) + 1
    }

    /// Arrays read plus arrays written.
    pub fn moved(self) -> u64 {
        self.arrays() + u64::from(self == Self::Reduce)
    }

    /// Whether it knows no element types.
    pub fn is_untyped(self) -> bool {
        matches!(self, Self::Copy(_))
    }

    /// What `contender` reads and writes.
    pub(super) fn moved_by(self, contender: Contender) -> u64 {
        if contender == Contender::StreamAdd { 3 } else { self.moved() }
    }

    /// A turn's one call.
    pub(super) fn call<T: Plain>(self, contender: Contender, arrays: &mut Arrays<T>) {
        let Arrays { target, sources, stream: [c, a, b] } = arrays;
        match contender {
            Contender::Kernel => self.kernel(target, sources),
            Contender::Plain => self.plain(target, sources),
            Contender::StreamAdd => plain::into(c, a, b),
        }
    }

    fn kernel<T: Plain>(self, target: &mut [T], sources: &[Vec<T>; SOURCES]) {
        let (kernels, op) = (Kernels::active(), ReduceOp::Sum);
        let (dtype, stores) = (T::DTYPE, self.through().stores());
        let sources = sources.each_ref().map(|source| as_bytes(source));
        let target = as_bytes_mut(target);
        match self {
            Self::Copy(_) => kernels.copy(target, sources[0], stores),
            Self::Reduce => kernels.reduce_bytes(dtype, op, target, sources[0]),
            Self::ReduceInto(_) => {
                kernels.reduce_into_bytes(dtype, op, target, sources[0], sources[1], stores);
            }
            Self::ReduceMany(_, inputs) => {
                let sources = &sources[..inputs as usize];
                kernels.reduce_many_bytes(dtype, op, target, sources, stores);
            }
        }
    }

    fn plain<T: Plain>(self, target: &mut [T], sources: &[Vec<T>; SOURCES]) {
        match self {
            Self::Copy(_) => target.copy_from_slice(&sources[0]),
            Self::Reduce => plain::in_place(target, &sources[0]),
            Self::ReduceInto(_) => plain::into(target, &sources[0], &sources[1]),
            Self::ReduceMany(_, inputs) => plain::many(target, sources, inputs),
        }
    }
}

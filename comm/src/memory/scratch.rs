//! Memory of an operation's own.

use super::LocalSlice;

/// Aligned, zeroed memory that moves without changing its address.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u128>);

impl Scratch {
    /// At least `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(size_of::<u128>())])
    }

    /// Lends all of it. The owner keeps `self` until the operation has ended and does not touch
    /// it meanwhile.
    pub(crate) fn lend(&mut self) -> LocalSlice {
        // SAFETY: the vector's memory stays where it is until `self` is dropped, which the
        // engine does after the slices (field order of `engine::Running`).
        unsafe { LocalSlice::new(self.0.as_mut_ptr().cast(), self.0.len() * size_of::<u128>()) }
    }
}

//! Lending the caller's memory to the engine.
//!
//! Each function here hides one `unsafe`, under this module's invariant: whoever calls it hands
//! the slice to `engine::Driver`, which does not let the caller continue (or, for started
//! operations, drops the owned buffer) before the engine has dropped all parts of the slice.

use super::LocalSlice;
use syncline_kernels::Element;

/// Memory that a blocking call only reads.
pub(crate) fn lend<T: Element>(data: &[T]) -> LocalSlice {
    // SAFETY: the borrow outlives the operation, because the blocking driver returns only after
    // the engine has dropped the slice (module invariant); shared borrows exclude writers, and
    // plans never write their input.
    unsafe { LocalSlice::new(data.as_ptr().cast_mut().cast(), size_of_val(data)) }
}

/// Memory that a blocking call writes.
pub(crate) fn lend_mut<T: Element>(data: &mut [T]) -> LocalSlice {
    // SAFETY: as for `lend`; the exclusive borrow keeps everybody else away meanwhile. Any bit
    // pattern is a valid `Element`, so whatever a peer sends leaves a valid `T` behind.
    unsafe { LocalSlice::new(data.as_mut_ptr().cast(), size_of_val(data)) }
}

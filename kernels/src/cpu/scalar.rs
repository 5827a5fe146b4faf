//! The variant every machine can run: the shared bodies at the target's baseline.
//!
//! Owns nothing of its own: no intrinsic, no unsafe, no store past the cache. Called by `table`,
//! and by the tests as the one the others are compared with.

use super::{for_dtype_and_op, for_op, kernels_for};
use crate::dtype::f16;

/// The baseline of the compilation target.
pub(super) enum Scalar {}

impl Isa for Scalar {
    type F16 = f16;

    fn stream_offset(_target: &[u8], _size: usize) -> Option<usize> {
        None
    }

    fn store(target: &mut [u8], source: &[u8]) {
        target.copy_from_slice(source);
    }

    fn stream(target: &mut [u8], source: &[u8]) {
        target.copy_from_slice(source);
    }

    fn fence() {}
}

kernels_for!(Scalar);

//! Which bits a call may give: the grade of a handle, and what it asks of the choice.
//!
//! Owns the rule by which a grade narrows the choice of an algorithm. Never chooses one.

use super::Communicator;
use crate::determinism::Determinism;
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use syncline_kernels::{DType, ReduceOp};
use syncline_proto::call::{CollectiveKind, Fingerprint};
use syncline_proto::collective::Algorithm;
use syncline_proto::collective::tuning::{is_canonical, is_supported};

impl Communicator {
    /// A handle to the same communicator whose calls have this grade: the same ranks and the same
    /// sequence of calls, nothing is sent or copied. All ranks must make a call in the same grade.
    #[must_use]
    pub fn with_determinism(&self, determinism: Determinism) -> Self {
        Self { inner: Arc::clone(&self.inner), determinism }
    }

    /// [`with_determinism`](Self::with_determinism) of [`Determinism::Canonical`], as in
    /// `world.canonical().all_reduce(&mut data, ReduceOp::Sum)`.
    #[must_use]
    pub fn canonical(&self) -> Self {
        self.with_determinism(Determinism::Canonical)
    }

    /// The grade of calls by this handle; [`Config::determinism`](crate::Config::determinism)
    /// unless it was set.
    pub fn determinism(&self) -> Determinism {
        self.determinism
    }
}

/// Whether only some algorithms will do: sums and products of floats depend on the order.
pub(super) fn narrows(determinism: Determinism, reduction: Option<(DType, ReduceOp)>) -> bool {
    let depends = reduction.is_some_and(|(dtype, op)| !op.is_order_free(dtype));
    determinism == Determinism::Canonical && depends
}

/// The byte of the fingerprint that says what is asked for.
pub(super) fn op_code(op: Option<ReduceOp>, determinism: Determinism) -> u8 {
    match (op, determinism) {
        (None, _) => Fingerprint::NO_OP,
        (Some(op), Determinism::Canonical) => op.code() | Fingerprint::CANONICAL,
        (Some(op), Determinism::Fast) => op.code(),
    }
}

/// Refuses an algorithm that was asked for and has other bits.
pub(super) fn check(kind: CollectiveKind, forced: Option<Algorithm>, ranks: u32) -> Result<()> {
    let other = forced.filter(|a| is_supported(kind, *a) && !is_canonical(kind, *a, ranks));
    let Some(algorithm) = other else { return Ok(()) };
    let text = format!(
        "{kind}: algorithm {algorithm} was asked for, determinism canonical too: on {ranks} ranks \
         {algorithm} does not fold in the order of ranks"
    );
    Err(Error::new(ErrorKind::InvalidArgument, text)
        .hint("force no algorithm, or direct or node, or ask for determinism fast"))
}

//! A model that is only as large as its bookkeeping needs: for times, without learning.
//!
//! Owns its layout and its loss, which is 1 in the first epoch and 0 afterwards: OSP then defers
//! all that hides, as it does late in training. Called by `cell`.

use indicatif::ProgressBar;
use syncline::ModelKind;
use syncline::lockstep::TensorList;
use syncline::simulation::{StepDone, Trainer};

/// Steps of an epoch, after which OSP measures its budget anew.
pub(super) const EPOCH_STEPS: u64 = 4;
/// Elements of a slice.
pub(super) const SLICE_LEN: usize = 4;
/// Tensors.
const TENSORS: usize = 4;
/// Least elements of a tensor: 256 slices in all, each 0.4 % of the bytes.
const TENSOR_LEN_MIN: usize = 64 * SLICE_LEN;

/// Slices of each of OSP's servers, where they are many: they differ by one at most.
const SERVER_SLICES: usize = 16;

/// Parameters of which every rank's shard has at least one, and each of OSP's servers enough.
pub(super) fn parameters(ranks: u32, model: &ModelKind) -> TensorList {
    let each = match model {
        ModelKind::OspServer(_) => SERVER_SLICES * SLICE_LEN,
        _ => 1,
    };
    let len = (ranks as usize * each).div_ceil(TENSORS).max(TENSOR_LEN_MIN);
    vec![vec![0.0; len.next_multiple_of(SLICE_LEN)]; TENSORS]
}

/// Gradients that stay zero.
#[derive(Debug)]
pub(super) struct StandIn<'a> {
    pub(super) bar: &'a ProgressBar,
}

impl Trainer for StandIn<'_> {
    fn gradients(&mut self, _: u32, step: u64, _: &TensorList, _: &mut TensorList) -> f32 {
        if step < EPOCH_STEPS { 1.0 } else { 0.0 }
    }

    fn learning_rate(&self, _step: u64) -> f32 {
        0.0
    }

    fn step_ended(&mut self, _step: &StepDone) {
        self.bar.inc(1);
    }
}

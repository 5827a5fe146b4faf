//! What all ranks must have alike before they may go on: tensors and settings.
//!
//! Owns the comparison, by hashes. Called by sessions and by `GradientSync`, at their start and at
//! each switch.

use std::fmt::Debug;

use syncline_comm::Communicator;

use crate::error::{Error, Result};
use crate::layout::TensorSpec;
use crate::model::check::{self, Fingerprint};

pub(crate) fn check_lengths(
    what: &str,
    tensors: &[TensorSpec],
    lens: impl ExactSizeIterator<Item = usize>,
) -> Result<()> {
    if lens.len() != tensors.len() {
        let (has, wanted) = (lens.len(), tensors.len());
        let reason = format!("{what} of {has} tensors, where the session has {wanted}");
        return Err(Error::InvalidArgument { reason });
    }
    tensors.iter().zip(lens).try_for_each(|(spec, len)| check_length(what, spec, len))
}

pub(super) fn check_length(what: &str, spec: &TensorSpec, len: usize) -> Result<()> {
    let TensorSpec { name, len: wanted } = spec;
    if len == *wanted {
        return Ok(());
    }
    let reason = format!("{what} of '{name}' have {len} elements, not {wanted}");
    Err(Error::InvalidArgument { reason })
}

/// Makes sure that all ranks start alike.
pub(crate) fn agree(
    communicator: &Communicator,
    tensors: &[TensorSpec],
    config: &impl Debug,
) -> Result<()> {
    let counts = gather(communicator, &[tensors.len() as u64])?;
    differ(&counts, format!("the number of tensors ({} here)", tensors.len()))?;
    let own: Vec<u64> = tensors.iter().map(|tensor| hash(&format!("{tensor:?}"))).collect();
    let all = gather(communicator, &own)?;
    for (index, tensor) in tensors.iter().enumerate() {
        let words: Vec<u64> = all.iter().copied().skip(index).step_by(own.len()).collect();
        let TensorSpec { name, len } = tensor;
        differ(&words, format!("tensor {index} ('{name}', {len} elements here)"))?;
    }
    // The settings as text: equal settings print alike, whatever they will be.
    agree_on(communicator, &format!("{config:?}"), "the settings")
}

/// Makes sure that all ranks have the same `text` for `what`.
pub(super) fn agree_on(communicator: &Communicator, text: &str, what: &str) -> Result<()> {
    differ(&gather(communicator, &[hash(text)])?, format!("{what} ({text} here)"))
}

fn hash(text: &str) -> u64 {
    let mut print = Fingerprint::new(0);
    print.text(text);
    print.value()
}

/// What all ranks give, in order of ranks.
pub(crate) fn gather(communicator: &Communicator, words: &[u64]) -> Result<Vec<u64>> {
    let mut all = vec![0; words.len() * communicator.world_size() as usize];
    communicator.all_gather(words, &mut all)?;
    Ok(all)
}

fn differ(words: &[u64], what: String) -> Result<()> {
    let ranks = check::disagreeing(words);
    if ranks.is_empty() { Ok(()) } else { Err(Error::JobMismatch { what, ranks }) }
}

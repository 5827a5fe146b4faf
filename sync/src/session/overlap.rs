//! Gradients that are ready before their step ends.
//!
//! Owns which tensors of a step were announced, and what was sent of them. Never decides what is
//! reduced when: that is the model's. Called by the session.

use super::agree::check_length;
use super::{Session, Tensors};
use crate::error::{Error, Result};
use crate::model::Event;

/// What a trainer announced of the step to come.
#[derive(Debug)]
pub(super) struct Announced {
    tensors: Vec<bool>,
    /// Bytes of the reductions that were started by it.
    bytes: u64,
}

impl Announced {
    pub(super) fn new(tensors: usize) -> Self {
        Self { tensors: vec![false; tensors], bytes: 0 }
    }

    /// Starts the next step; the bytes that were on their way before the last one ended.
    pub(super) fn take(&mut self) -> u64 {
        self.tensors.fill(false);
        std::mem::take(&mut self.bytes)
    }

    /// Refuses what may not come between an announcement and the end of its step.
    pub(super) fn check_none(&self) -> Result<()> {
        match self.tensors.iter().filter(|is_ready| **is_ready).count() {
            0 => Ok(()),
            count => Err(Error::InvalidArgument {
                reason: format!("{count} gradients are ready for a step that was not ended"),
            }),
        }
    }
}

impl Session {
    /// Tells that the backward pass has finished the gradient of tensor `tensor`, so that its
    /// reduction may start while the pass goes on. Does not block. [`Self::step`] ends the step as
    /// ever, with all gradients; this one counts as it is now, whatever `step` is given for it.
    ///
    /// Tensors come in any order, each at most once a step, or not at all. Ranks may differ in
    /// both: what is reduced together, and in which order, follows from the settings alone. Models
    /// that do not overlap with the backward pass take no notice.
    ///
    /// Between the first call and the end of the step, only these two may be called. Of several
    /// micro-batches ([`Self::accumulate`]), this tells gradients of the last one; what is reduced
    /// is the mean of all.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a tensor that the session does not have, another length, a
    /// second call in one step, or on a rank that only serves; nothing was sent then. After any
    /// other error the session is finished.
    pub fn gradient_ready(&mut self, tensor: usize, gradient: &[f32]) -> Result<()> {
        let compute = self.released.elapsed();
        self.check_running()?;
        self.check_trains()?;
        let invalid = |reason| Err(Error::InvalidArgument { reason });
        let Some(spec) = self.tensors.get(tensor) else {
            let count = self.tensors.len();
            return invalid(format!("tensor {tensor}, where the session has {count}"));
        };
        check_length("gradients", spec, gradient.len())?;
        if std::mem::replace(&mut self.announced.tensors[tensor], true) {
            let name = &self.tensors[tensor].name;
            return invalid(format!("the gradient of '{name}' is ready twice in one step"));
        }
        let mut accumulated = std::mem::take(&mut self.accumulated);
        let gradient = accumulated.fold(tensor, gradient);
        if self.model.overlaps() {
            let before = self.exchange.started_bytes();
            let event = Event::GradientReady { tensor, compute };
            self.drive(event, &mut Tensors { parameters: &mut [], gradients: &[gradient] })?;
            self.announced.bytes += self.exchange.started_bytes() - before;
        }
        self.accumulated = accumulated;
        Ok(())
    }
}

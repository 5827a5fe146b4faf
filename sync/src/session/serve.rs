//! A rank that only serves: it keeps step with the workers, and trains on nothing.
//!
//! Owns who may end a step how. Never serves: that is the server's thread. Called by trainers.

use super::{Session, Tensors};
#[cfg(doc)]
use crate::Placement;
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::model::{Event, StepEnded};
use crate::report::StepReport;

impl Session {
    /// Whether this rank holds a server and does not train ([`Placement::Dedicated`]). It makes
    /// the same calls as the others, but for [`Self::serve_step`] in place of [`Self::step`] and
    /// of all that belongs to a step. A switch does not change it.
    ///
    /// ```no_run
    /// # fn train(
    /// #     session: &mut syncline::Session, weights: &mut [f32], gradient: &[f32],
    /// # ) -> syncline::Result<()> {
    /// for batch in 0..100 {
    ///     if session.is_server_only() {
    ///         session.serve_step()?;
    ///     } else {
    ///         session.step(&mut [weights], &[gradient], 0.1, 2.3)?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_server_only(&self) -> bool {
        let server_only = self.config.model.server_only_rank();
        server_only == Some(self.exchange.urgent().rank())
    }

    /// Waits for the step that the workers end with [`Self::step`]. The trainer's parameters on
    /// this rank stay as they are until the next [`Self::drain`]. All of the time counts as
    /// exposed; the bytes in the report are those of the step's gradients on each worker.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on a rank that trains; nothing was sent then. After any other
    /// error the session is finished.
    pub fn serve_step(&mut self) -> Result<StepReport> {
        let compute = self.released.elapsed();
        let start = Moment::now();
        self.check_running()?;
        if !self.is_server_only() {
            let reason = "this rank trains, and ends a step with its gradients".to_owned();
            return Err(Error::InvalidArgument { reason });
        }
        let ended = StepEnded { learning_rate: 0.0, loss: 0.0, compute };
        let tensors = &mut Tensors { parameters: &mut [], gradients: &[] };
        let waits = self.drive(Event::StepEnded(ended), tensors)?;
        Ok(self.report(compute, start, waits, 0))
    }

    /// Refuses gradients of a rank that only serves.
    pub(super) fn check_trains(&self) -> Result<()> {
        if self.is_server_only() {
            let reason = "this rank only serves, and has no gradients".to_owned();
            return Err(Error::InvalidArgument { reason });
        }
        Ok(())
    }
}

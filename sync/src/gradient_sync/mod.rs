//! Averaged gradients for a trainer that owns its optimiser.
//!
//! Owns the communicators, and the reduction under way between two calls. Never changes a
//! parameter, but where it is asked to average them. Called by trainers.

mod config;
mod deferral;
#[cfg(test)]
mod tests;

use std::time::Duration;

use syncline_comm::{Class, Communicator, ReduceOp, Request};

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::layout::{Layout, TensorSpec};
use crate::model::check;
use crate::session::agree::{agree, check_lengths, gather};
pub use config::{DeferConfig, GradientModel, GradientSyncConfig};
use deferral::Deferral;

/// Averages the gradients of all ranks in place; the trainer applies them.
///
/// ```no_run
/// use syncline::{Communicator, GradientModel, GradientSync, GradientSyncConfig, TensorSpec};
///
/// # fn main() -> syncline::Result<()> {
/// let world = Communicator::init()?;
/// let mut weights = vec![0.5_f32; 1000];
/// world.broadcast(&mut weights, 0)?; // all ranks start from the same parameters
/// let specs = [TensorSpec::new("weights", weights.len())];
/// let config =
///     GradientSyncConfig { model: GradientModel::osp(0.5), ..GradientSyncConfig::default() };
/// let mut sync = GradientSync::new(&world, &specs, config)?;
/// let descend = |weights: &mut [f32], gradient: &[f32]| {
///     weights.iter_mut().zip(gradient).for_each(|(w, g)| *w -= 0.1 * g);
/// };
/// let mut gradient = vec![0.0_f32; 1000];
/// for batch in 0..100 {
///     gradient.fill(0.1); // of this rank's part of the batch
///     sync.synchronise(&mut [&mut gradient])?;
///     descend(&mut weights, &gradient);
/// }
/// sync.drain(&mut [&mut gradient])?;
/// descend(&mut weights, &gradient);
/// sync.resynchronise(&mut [&mut weights])?; // all ranks end with the same bits
/// # Ok(())
/// # }
/// ```
///
/// # What a rank is given
///
/// Under [`GradientModel::Bsp`], the average over all ranks, the same bits on each.
///
/// Under [`GradientModel::Osp`], the same on important slices. On deferred ones, its own gradient,
/// whose average is made while the next step computes; the next call adds what it lacked:
///
/// ```text
/// important at t                        average(t)
/// deferred at t                         g(t)
/// either, where deferred at t-1         the same + (average(t-1) - g(t-1))
/// ```
///
/// So all that a rank was given, up to and with [`Self::drain`], adds up to the sum of the averages
/// of all steps, but for rounding; before the drain, it is off by what the last step's own gradient
/// differs from its average.
///
/// # Which optimisers that suits
///
/// - Plain descent at a constant rate is linear: replicas differ by one step's deviation while they
///   train, and after a drain that is applied, by rounding. A rate that changes weighs a correction
///   by the rate of the step after.
/// - With momentum, what a correction that comes a step late leaves behind fades as the momentum
///   does, not at once: replicas differ a little after a drain as well. So with weight decay.
/// - Adam, clipping of what was given, or skipped steps are not linear: replicas drift apart. Call
///   [`Self::resynchronise`] after a drain, for the parameters and for the optimiser's moments,
///   before checkpoints and every so many steps. Ranks that decide by a gradient (to skip a step,
///   say) must agree on it first: under OSP they see different ones.
///
/// Every method is collective: all ranks call it, in the same order, as often. After an error, but
/// for wrong arguments, this is finished, as the communicator is.
#[derive(Debug)]
pub struct GradientSync {
    tensors: Vec<TensorSpec>,
    urgent: Communicator,
    /// Of OSP only.
    background: Option<Communicator>,
    deferral: Deferral,
    check_every: u64,
    /// The average of what the last step deferred.
    started: Option<Request<f32>>,
    step: u64,
    /// Room for important gradients, and for deferred ones while none are under way.
    buffers: [Vec<f32>; 2],
    /// Why this is over.
    finished: Option<String>,
}

/// What a call of [`GradientSync::synchronise`] cost on this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncReport {
    /// Calls so far, with this one.
    pub step: u64,
    /// The whole call: exposed communication, packing and arithmetic.
    pub total: Duration,
    /// The time in which this rank waited for communication: the sum of the next three.
    pub exposed: Duration,
    /// In averaging important gradients.
    pub rs: Duration,
    /// For what was left of averaging the deferred ones of the step before.
    pub ics_wait: Duration,
    /// In comparing ranks.
    pub check_wait: Duration,
    /// Bytes of gradient that the call waited for.
    pub bytes_important: u64,
    /// Bytes of gradient that are averaged during the next step.
    pub bytes_deferred: u64,
}

impl GradientSync {
    /// Binds tensors of these names and lengths, in the same order on every rank.
    ///
    /// Sends no parameter: it is the trainer's part to start all ranks from the same ones.
    ///
    /// # Errors
    /// [`Error::Config`] before anything is sent; [`Error::JobMismatch`] on every rank if tensors
    /// or settings differ between ranks.
    pub fn new(
        communicator: &Communicator,
        tensors: &[TensorSpec],
        config: GradientSyncConfig,
    ) -> Result<Self> {
        config.validate()?;
        let urgent = communicator.duplicate(Class::Urgent)?;
        agree(&urgent, tensors, &config)?;
        let background = match config.model {
            GradientModel::Bsp => None,
            GradientModel::Osp(_) => Some(urgent.duplicate(Class::Background)?),
        };
        let defer = config.deferred();
        let layout = Layout::new(tensors, defer.granularity);
        Ok(Self {
            tensors: tensors.to_vec(),
            urgent,
            background,
            deferral: Deferral::new(layout, &defer),
            check_every: config.check_every,
            started: None,
            step: 0,
            buffers: Default::default(),
            finished: None,
        })
    }

    /// Ends a backward pass: makes of this rank's gradients, in place, those to apply.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a length differs from the tensors bound; nothing was sent
    /// then. [`Error::ReplicasDiffer`] if a comparison fails. After any error but the first,
    /// `gradients` are unspecified and this is finished.
    pub fn synchronise(&mut self, gradients: &mut [&mut [f32]]) -> Result<SyncReport> {
        self.check("gradients", gradients)?;
        let outcome = self.exchange(gradients);
        self.note(outcome)
    }

    /// Makes of `gradients`, whatever they hold, what this rank still lacks of the averages of all
    /// steps: zero but where the last step deferred. For the trainer to apply, before an
    /// evaluation, say; nothing is under way then. Steps may follow.
    ///
    /// It belongs to the last step: an optimiser with momentum that takes it for a step of its own
    /// moves on by the momentum, too.
    ///
    /// # Errors
    /// As [`Self::synchronise`].
    pub fn drain(&mut self, gradients: &mut [&mut [f32]]) -> Result<()> {
        self.check("gradients", gradients)?;
        let outcome = self.merge();
        self.note(outcome)?;
        self.deferral.settle(gradients);
        Ok(())
    }

    /// Makes `parameters` their average over all ranks, the same bits on each. Of use after a
    /// drain that was applied, where replicas have drifted apart: with optimisers that are not
    /// linear in what they are given, and against rounding with those that are. Serves an
    /// optimiser's moments as well, in a call of their own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a length differs from the tensors bound, or something is under
    /// way: without a drain, it would be lost. Else as [`Self::synchronise`].
    pub fn resynchronise(&mut self, parameters: &mut [&mut [f32]]) -> Result<()> {
        self.check("parameters", parameters)?;
        if self.started.is_some() {
            let reason = "gradients are under way: drain, and apply what it gives, before";
            return Err(Error::InvalidArgument { reason: reason.to_owned() });
        }
        let outcome = self.average(parameters);
        self.note(outcome)
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    fn check(&self, what: &str, tensors: &[&mut [f32]]) -> Result<()> {
        if let Some(why) = &self.finished {
            return Err(Error::Finished { why: why.clone() });
        }
        check_lengths(what, &self.tensors, tensors.iter().map(|tensor| tensor.len()))
    }

    /// After an error this is finished.
    fn note<T>(&mut self, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome {
            self.finished = Some(error.to_string());
        }
        outcome
    }

    fn exchange(&mut self, gradients: &mut [&mut [f32]]) -> Result<SyncReport> {
        let start = Moment::now();
        let ics_wait = self.merge()?;
        let [important, deferred] = &mut self.buffers;
        self.deferral.split(gradients, important, deferred);
        let mut rs = Duration::ZERO;
        if !important.is_empty() {
            let start = Moment::now();
            self.urgent.all_reduce(important, ReduceOp::Avg)?;
            rs = start.elapsed();
        }
        if !deferred.is_empty() {
            let background = self.background.as_ref().expect("only OSP defers");
            let data = std::mem::take(deferred);
            self.started = Some(background.start_all_reduce(data, ReduceOp::Avg)?);
        }
        self.deferral.finish(important, gradients);
        self.step += 1;
        let check_wait = self.compare()?;
        let (bytes_important, bytes_deferred) = self.deferral.bytes();
        Ok(SyncReport {
            step: self.step,
            total: start.elapsed(),
            exposed: rs + ics_wait + check_wait,
            rs,
            ics_wait,
            check_wait,
            bytes_important,
            bytes_deferred,
        })
    }

    /// Waits for what is under way, and takes it in; how long that took.
    fn merge(&mut self) -> Result<Duration> {
        let Some(request) = self.started.take() else { return Ok(Duration::ZERO) };
        let start = Moment::now();
        let average = request.wait()?;
        let waited = start.elapsed();
        self.deferral.merge(&average);
        self.buffers[1] = average;
        Ok(waited)
    }

    /// Compares what all ranks must have alike, if that is due; how long that took.
    fn compare(&self) -> Result<Duration> {
        if self.check_every == 0 || !self.step.is_multiple_of(self.check_every) {
            return Ok(Duration::ZERO);
        }
        let print = self.deferral.fingerprint(self.step, &self.buffers[0]);
        let start = Moment::now();
        let prints = gather(&self.urgent, &[print])?;
        check::compare(self.step, &prints).map_or_else(|| Ok(start.elapsed()), Err)
    }

    fn average(&mut self, parameters: &mut [&mut [f32]]) -> Result<()> {
        let flat = &mut self.buffers[0];
        flat.clear();
        parameters.iter().for_each(|tensor| flat.extend_from_slice(tensor));
        self.urgent.all_reduce(flat, ReduceOp::Avg)?;
        let mut rest = flat.as_slice();
        for tensor in parameters.iter_mut() {
            let (values, later) = rest.split_at(tensor.len());
            tensor.copy_from_slice(values);
            rest = later;
        }
        Ok(())
    }
}

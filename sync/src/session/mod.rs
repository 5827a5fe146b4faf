//! A training session: one sync model over one communicator.
//!
//! Owns the trainer's side of a model: it lends the tensors, does what the model asks for on the
//! right communicator, and measures what that cost. Never decides what is exchanged. Called by
//! trainers.

mod accumulate;
pub(crate) mod agree;
mod exchange;
mod overlap;
mod serve;
mod shards;
mod stages;
mod switch;

use std::time::Duration;

use syncline_comm::{Class, Communicator};

use crate::clock::Moment;
#[cfg(doc)]
use crate::config::ModelKind;
use crate::config::SessionConfig;
use crate::error::{Error, Result};
use crate::layout::{Layout, TensorSpec};
use crate::model::check::{self, Fingerprint};
use crate::model::osp::budget::Decision;
use crate::model::{self, Event, Job, Memory, StepEnded, SyncModel, Tensors};
use crate::policy::batch::Batch;
use crate::report::{RunStats, StepReport};
use crate::server::audit::AuditReport;
use accumulate::Accumulated;
use agree::{agree, check_lengths};
use exchange::{Exchange, Waits};
use overlap::Announced;
pub use switch::{Snapshot, Switch, SwitchReport};

/// Keeps the parameters of all ranks together while they train.
///
/// ```no_run
/// use syncline::{Communicator, Session, SessionConfig, TensorSpec};
///
/// # fn main() -> syncline::Result<()> {
/// let world = Communicator::init()?;
/// let mut weights = vec![0.5_f32; 1000];
/// let specs = [TensorSpec::new("weights", weights.len())];
/// let config = SessionConfig { model: "osp".parse()?, ..SessionConfig::default() };
/// let mut session = Session::new(&world, &specs, &mut [&mut weights], &config)?;
/// for epoch in 0..10 {
///     for batch in 0..100 {
///         let gradient = vec![0.1_f32; 1000]; // of this rank's part of the batch
///         session.step(&mut [&mut weights], &[&gradient], 0.1, 2.3)?;
///     }
///     session.end_epoch(2.3)?;
/// }
/// session.finish(&mut [&mut weights])?;
/// # Ok(())
/// # }
/// ```
///
/// Every method but the getters is collective: all ranks call it, in the same order, as often.
/// Only steps and epochs of models with a server ([`ModelKind::server`]) are not: their ranks may
/// make different numbers of steps between two drains. A rank that only serves calls
/// [`Self::serve_step`] for each [`Self::step`] of the others. After an error, but for wrong
/// arguments, the session is finished.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    model: Box<dyn SyncModel>,
    exchange: Exchange,
    tensors: Vec<TensorSpec>,
    /// Gradients of the step to come that are ready.
    announced: Announced,
    /// Micro-batches of the step to come.
    accumulated: Accumulated,
    step: u64,
    /// When the trainer was last let go on.
    released: Moment,
    stats: RunStats,
    /// Why the session is over.
    finished: Option<String>,
}

impl Session {
    /// Binds the trainer's tensors: the parameters of rank 0 become those of all ranks.
    ///
    /// `tensors` names each of `parameters`, in the same order on every rank.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::InvalidArgument`] before anything is sent;
    /// [`Error::JobMismatch`] on every rank if tensors or settings differ between ranks.
    pub fn new(
        communicator: &Communicator,
        tensors: &[TensorSpec],
        parameters: &mut [&mut [f32]],
        config: &SessionConfig,
    ) -> Result<Self> {
        config.validate()?;
        config.model.check_world(communicator.world_size())?;
        check_lengths("parameters", tensors, parameters.iter().map(|tensor| tensor.len()))?;
        let urgent = communicator.duplicate(Class::Urgent)?;
        agree(&urgent, tensors, config)?;
        let mut flat: Vec<f32> =
            parameters.iter().flat_map(|tensor| tensor.iter().copied()).collect();
        urgent.broadcast(&mut flat, 0)?;
        let mut rest = flat.as_slice();
        for tensor in parameters.iter_mut() {
            let (values, later) = rest.split_at(tensor.len());
            tensor.copy_from_slice(values);
            rest = later;
        }
        let layout = Layout::new(tensors, config.model.granularity());
        let job = Job::new(urgent.rank(), urgent.world_size(), config);
        let memory = Memory::new(&config.optimiser, layout.len());
        let exchange = Exchange::new(urgent, config, &layout, &flat, &memory)?;
        Ok(Self {
            model: model::build(config, job, layout, parameters, memory),
            config: *config,
            exchange,
            tensors: tensors.to_vec(),
            announced: Announced::new(tensors.len()),
            accumulated: Accumulated::default(),
            step: 0,
            released: Moment::now(),
            stats: RunStats::default(),
            finished: None,
        })
    }

    /// Ends a step: exchanges `gradients`, and leaves in `parameters` what the next step shall
    /// compute with. `learning_rate` must be the same on every rank; `loss` is this rank's own.
    /// Gradients that [`Self::gradient_ready`] was told of count as they were then. After
    /// [`Self::accumulate`], the means of all micro-batches count, with this one as the last.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a length differs from the session's tensors, or on a rank
    /// that only serves ([`Self::is_server_only`]); nothing was sent then. After any other error
    /// `parameters` are unspecified and the session is finished.
    pub fn step(
        &mut self,
        parameters: &mut [&mut [f32]],
        gradients: &[&[f32]],
        learning_rate: f32,
        loss: f32,
    ) -> Result<StepReport> {
        let compute = self.released.elapsed();
        let start = Moment::now();
        self.check_tensors(parameters)?;
        self.check_trains()?;
        check_lengths("gradients", &self.tensors, gradients.iter().map(|tensor| tensor.len()))?;
        let mut accumulated = std::mem::take(&mut self.accumulated);
        self.exchange.count_micro_batches(accumulated.micro_batches() + 1);
        let loss = accumulated.mean_loss(loss);
        let event = Event::StepEnded(StepEnded { learning_rate, loss, compute });
        let gradients = accumulated.fold_all(gradients);
        let waits = self.drive(event, &mut Tensors { parameters, gradients: &gradients })?;
        accumulated.clear();
        self.accumulated = accumulated;
        let bytes_overlapped = self.announced.take();
        Ok(self.report(compute, start, waits, bytes_overlapped))
    }

    /// Counts a step that is over.
    fn report(
        &mut self,
        compute: Duration,
        start: Moment,
        waits: Waits,
        bytes_overlapped: u64,
    ) -> StepReport {
        self.step += 1;
        let traffic = self.model.traffic();
        let all = traffic.important_bytes + traffic.deferred_bytes;
        let report = StepReport {
            step: self.step,
            compute,
            total: start.elapsed(),
            exposed: waits.rs + waits.ics + waits.pull + waits.gather,
            rs: waits.rs,
            ics_wait: waits.ics,
            pull_wait: waits.pull,
            check_wait: waits.gather,
            bytes_important: traffic.important_bytes,
            bytes_overlapped,
            bytes_deferred: traffic.deferred_bytes,
            deferred_share: traffic.deferred_bytes as f64 / all.max(1) as f64,
            staleness: self.model.staleness(),
            limit: self.model.decision().limit,
        };
        self.stats.add(&report);
        self.released = Moment::now();
        report
    }

    /// Ends an epoch, in which this rank's mean training loss was `mean_loss`, and says how many
    /// bytes the next one may defer, and why. The loss of a rank that only serves counts nowhere.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn end_epoch(&mut self, mean_loss: f32) -> Result<&Decision> {
        self.check_running()?;
        self.check_between_steps()?;
        let event = Event::EpochEnded { mean_loss: f64::from(mean_loss) };
        self.drive(event, &mut Tensors { parameters: &mut [], gradients: &[] })?;
        self.released = Moment::now();
        Ok(self.model.decision())
    }

    /// Waits for everything under way and leaves the global parameters in `parameters`, the same
    /// bits on every rank: for an evaluation, say, or a checkpoint. Steps may follow.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn drain(&mut self, parameters: &mut [&mut [f32]]) -> Result<()> {
        self.check_tensors(parameters)?;
        self.check_between_steps()?;
        self.drive(Event::Drain, &mut Tensors { parameters, gradients: &[] })?;
        self.released = Moment::now();
        Ok(())
    }

    /// As [`Self::drain`], with no steps to follow; compares the replicas of all ranks.
    ///
    /// # Errors
    /// As [`Self::step`]; [`Error::ReplicasDiffer`] if the comparison fails.
    pub fn finish(&mut self, parameters: &mut [&mut [f32]]) -> Result<()> {
        self.drain(parameters)?;
        // Not of the step: with a server, ranks may have made different numbers of them.
        let mut print = Fingerprint::new(0);
        parameters.iter().for_each(|tensor| print.floats(tensor));
        let prints = self.exchange.gather_alike(&[print.value()]);
        let outcome = prints
            .and_then(|prints| check::compare(self.step, &prints).map_or_else(|| Ok(()), Err));
        self.finished = Some("finish was called".to_owned());
        outcome
    }

    /// What this rank takes of the global batch in its next step, where that is not an equal part:
    /// under [`ModelKind::R2sp`], if [`SessionConfig::batch`] says how much that would be. The
    /// parts of all ranks lie one after another and add up to the same sum in each step, of ranks
    /// that make equally many. A mean over so many samples counts in proportion. It changes with
    /// steps and drains.
    pub fn next_batch(&self) -> Option<Batch> {
        self.model.next_batch()
    }

    /// Statistics of the steps since the last call, which start anew.
    pub fn take_stats(&mut self) -> RunStats {
        std::mem::take(&mut self.stats)
    }

    /// Statistics of the steps so far.
    pub fn stats(&self) -> &RunStats {
        &self.stats
    }

    /// How many bytes may be deferred now, and why not more.
    pub fn decision(&self) -> &Decision {
        self.model.decision()
    }

    /// What the audit of this rank's shard has seen under the model that runs now; none while
    /// ranks push, or if the rank serves nothing. Of OSP's servers: pushes of both stages, steps
    /// that were applied to all slices, the widest lead of a rank, and the most steps that a slice
    /// lacked in a reply.
    pub fn audit(&self) -> Option<AuditReport> {
        self.exchange.audit()
    }

    /// The settings, with the model that runs now.
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    fn check_running(&self) -> Result<()> {
        match &self.finished {
            Some(why) => Err(Error::Finished { why: why.clone() }),
            None => Ok(()),
        }
    }

    fn check_tensors(&self, parameters: &[&mut [f32]]) -> Result<()> {
        self.check_running()?;
        check_lengths("parameters", &self.tensors, parameters.iter().map(|tensor| tensor.len()))
    }

    fn drive(&mut self, event: Event, tensors: &mut Tensors<'_, '_>) -> Result<Waits> {
        let outcome = self.exchange.drive(&mut *self.model, event, tensors);
        if let Err(error) = &outcome {
            self.finished = Some(error.to_string());
        }
        outcome
    }
}

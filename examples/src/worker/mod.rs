//! One rank's training: batches, gradients, one synchronisation a step, and its bookkeeping.
//!
//! Owns the loop and the clock. Never knows who else trains nor how: that is the
//! [`Synchroniser`]'s. Called by the process of each rank.

pub mod local;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

pub use local::LocalSgd;

use syncline::policy::schedule::Schedule;

use crate::BoxError;
use crate::data::shard::TooFewImages;
use crate::data::{Dataset, ShardPlan};
use crate::model::network::zeros_like;
use crate::model::{Network, Tensor, tensor};
use crate::protocol::{Message, Summary};
use crate::spec::RunSpec;

/// Least time between two messages of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Test images that go through the network at once.
const TEST_BATCH: usize = 64;
/// Synchronisation times in one message: a line of a few kilobytes.
const TIMES_PER_MESSAGE: usize = 512;

/// What one call of a [`Synchroniser`] cost this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Time spent waiting for communication while nothing else went on, in nanoseconds.
    pub exposed_ns: u64,
    /// Bytes sent since the last call, those in the background included.
    pub bytes_sent: u64,
}

/// What the ranks agreed on at the end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochReport {
    /// Mean training loss over all ranks.
    pub mean_loss: f32,
    /// Part of the gradients' bytes whose synchronisation was deferred in this epoch, 0 to 1.
    pub deferred_fraction: f64,
    /// What agreeing cost.
    pub cost: StepCost,
}

/// Brings ranks together: turns each rank's gradients into new parameters on all of them.
///
/// It owns learning's state beyond the parameters, such as momentum. All ranks make the same calls
/// in the same order. Each call either comes back in bounded time or fails; after an error the
/// synchroniser is finished.
pub trait Synchroniser {
    /// What carries the bytes, for people: `shm`, `tcp, paced`.
    fn transport(&self) -> String;

    /// Gives all ranks the parameters of rank 0 and returns on all of them at about the same time,
    /// so that their clocks start together. Called once, first; its cost is not counted.
    ///
    /// # Errors
    ///
    /// Communication failed.
    fn start(&mut self, parameters: &mut [Tensor]) -> Result<(), BoxError>;

    /// Takes in a gradient that [`Self::step`] will get too, while the backward pass goes on. Does
    /// not wait for anybody. Those who do not overlap take no notice.
    ///
    /// # Errors
    ///
    /// Communication failed.
    fn gradient_ready(&mut self, tensor: usize, gradient: &[f32]) -> Result<(), BoxError> {
        let _ = (tensor, gradient);
        Ok(())
    }

    /// Ends a step: `parameters` become those of the next step, by the `gradients` of all ranks,
    /// each the mean over its batch, and by learning rate `lr`. `loss` is this rank's. May use
    /// `gradients` as scratch.
    ///
    /// # Errors
    ///
    /// Communication failed.
    fn step(
        &mut self,
        loss: f32,
        parameters: &mut [Tensor],
        gradients: &mut [Tensor],
        lr: f32,
    ) -> Result<StepCost, BoxError>;

    /// Ends an epoch in which this rank's mean loss was `mean_loss`.
    ///
    /// # Errors
    ///
    /// Communication failed.
    fn end_epoch(&mut self, mean_loss: f32) -> Result<EpochReport, BoxError>;

    /// Ends training: waits for what is under way, and makes `parameters` the same on all ranks.
    ///
    /// # Errors
    ///
    /// Communication failed.
    fn finish(&mut self, parameters: &mut [Tensor]) -> Result<StepCost, BoxError>;
}

/// Why a rank could not train to the end.
#[derive(Debug)]
#[non_exhaustive]
pub enum WorkerError {
    /// The loss is not a number any more: the learning rate is too high.
    Diverged {
        /// Epoch, from 0.
        epoch: u32,
        /// Step in it, from 0.
        step: usize,
        /// The learning rate.
        lr: f32,
    },
    /// The parent does not read any more.
    Report(io::Error),
    /// The learning rate's schedule cannot be read.
    Schedule(syncline::Error),
    /// The synchroniser failed.
    Synchronise {
        /// Epoch, from 0.
        epoch: u32,
        /// What it was doing.
        action: &'static str,
        /// Its reason.
        source: BoxError,
    },
    /// The data set is too small for this many ranks.
    TooFewImages(TooFewImages),
}

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Diverged { epoch, step, lr } => write!(
                f,
                "training diverged in epoch {epoch}, step {step}: the loss is not a number; choose \
                 a learning rate below {lr}"
            ),
            Self::Schedule(source) => source.fmt(f),
            Self::Report(source) => write!(f, "cannot report to the parent: {source}"),
            Self::Synchronise { epoch, action, source } => {
                write!(f, "cannot {action} in epoch {epoch}: {source}")
            }
            Self::TooFewImages(source) => source.fmt(f),
        }
    }
}

impl Error for WorkerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Diverged { .. } => None,
            Self::Report(source) => Some(source),
            Self::Schedule(source) => Some(source),
            Self::Synchronise { source, .. } => Some(&**source),
            Self::TooFewImages(source) => Some(source),
        }
    }
}

/// Trains as `rank` of `spec.ranks` and tells `send` how it goes; [`Message::Done`] comes last.
/// Returns the final parameters.
///
/// Accuracy is measured after training, on copies of the parameters taken at the end of each
/// epoch, so that measuring neither costs training time nor gives communication in the background
/// time to finish unseen. The epochs are shared out among the ranks.
///
/// # Errors
///
/// The synchroniser or `send` failed, the data set is too small, or training diverged.
///
/// # Panics
///
/// `rank` is not below `spec.ranks`.
pub fn train(
    spec: &RunSpec,
    rank: u32,
    data: &Dataset,
    synchroniser: &mut dyn Synchroniser,
    send: &mut dyn FnMut(&Message) -> io::Result<()>,
) -> Result<Vec<Tensor>, WorkerError> {
    let batch = spec.batch as usize;
    let plan = ShardPlan::new(data.train.len(), spec.ranks, rank, batch, spec.seed)
        .map_err(WorkerError::TooFewImages)?;
    let (network, parameters) = Network::new(spec.net, data.shape, data.classes, spec.seed);
    let gradients = zeros_like(&parameters);
    let text = spec.schedule.as_deref().unwrap_or("constant");
    let schedule = text.parse::<Schedule>().map_err(WorkerError::Schedule)?.with_base(spec.lr);
    let mut trainer = Trainer {
        spec,
        rank,
        data,
        schedule,
        plan,
        network,
        parameters,
        gradients,
        images: Vec::new(),
        labels: Vec::new(),
        compute: Duration::ZERO,
        cost: StepCost::default(),
        sync_times_us: Vec::new(),
        snapshots: Vec::new(),
        reported: Instant::now(),
        send,
    };
    let (steps, wall) = trainer.learn(synchroniser)?;
    trainer.measure(steps, wall)?;
    Ok(trainer.parameters)
}

/// The parameters at the end of an epoch.
struct Snapshot {
    epoch: u32,
    t_s: f64,
    parameters: Vec<Tensor>,
}

/// The state of [`train`].
struct Trainer<'a> {
    spec: &'a RunSpec,
    rank: u32,
    data: &'a Dataset,
    schedule: Schedule,
    plan: ShardPlan,
    network: Network,
    parameters: Vec<Tensor>,
    gradients: Vec<Tensor>,
    images: Vec<f32>,
    labels: Vec<u8>,
    compute: Duration,
    cost: StepCost,
    sync_times_us: Vec<f32>,
    snapshots: Vec<Snapshot>,
    /// When progress was last reported.
    reported: Instant,
    send: &'a mut dyn FnMut(&Message) -> io::Result<()>,
}

impl Trainer<'_> {
    /// Trains; returns the number of steps and the time they took.
    fn learn(&mut self, sync: &mut dyn Synchroniser) -> Result<(u64, Duration), WorkerError> {
        let steps_per_epoch = self.plan.steps();
        self.warm_up();
        sync.start(&mut self.parameters).map_err(failed(0, "start"))?;
        let clock = Instant::now();
        self.reported = clock;
        self.tell(&Message::Started {
            parameter_bytes: tensor::total_bytes(&self.parameters),
            tensors: self.parameters.len(),
            steps_per_epoch: steps_per_epoch as u64,
            transport: sync.transport(),
        })?;
        let mut steps = 0;
        for epoch in 0..self.spec.epochs {
            let order = self.plan.epoch(epoch);
            let mut losses = 0.0;
            for (step, indices) in order.chunks_exact(self.spec.batch as usize).enumerate() {
                let loss = self.step(epoch, step, steps, indices, sync)?;
                losses += f64::from(loss);
                steps += 1;
                self.report_progress(epoch, steps, loss, clock)?;
            }
            let mean_loss = (losses / steps_per_epoch as f64) as f32;
            let report = sync.end_epoch(mean_loss).map_err(failed(epoch, "end an epoch"))?;
            self.charge(report.cost);
            let t_s = clock.elapsed().as_secs_f64();
            self.tell(&Message::Epoch {
                epoch,
                t_s,
                loss: report.mean_loss,
                deferred_pct: report.deferred_fraction * 100.0,
            })?;
            // The last epoch is measured on what `finish` leaves.
            if epoch + 1 < self.spec.epochs && epoch % self.spec.ranks == self.rank {
                let parameters = self.parameters.clone();
                self.snapshots.push(Snapshot { epoch, t_s, parameters });
            }
        }
        let last = self.spec.epochs - 1;
        let cost = sync.finish(&mut self.parameters).map_err(failed(last, "finish"))?;
        self.charge(cost);
        Ok((steps, clock.elapsed()))
    }

    /// What this rank sleeps in a step, counted from 0 over the whole run.
    fn delay_at(&self, step: u64) -> Duration {
        self.spec.stragglers.iter().map(|slow| slow.delay_at(self.rank, step)).sum()
    }

    /// The learning rate of a step, counted likewise.
    fn rate_at(&self, step: u64) -> f32 {
        let RunSpec { ranks, batch, .. } = *self.spec;
        self.schedule.rate(step * u64::from(ranks) * u64::from(batch))
    }

    /// One step on the images at `indices`, after `before` others of the whole run; returns this
    /// rank's loss. A straggler sleeps first, which counts as computing.
    fn step(
        &mut self,
        epoch: u32,
        step: usize,
        before: u64,
        indices: &[usize],
        sync: &mut dyn Synchroniser,
    ) -> Result<f32, WorkerError> {
        let delay = self.delay_at(before);
        let lr = self.rate_at(before);
        let started = Instant::now();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let mut told = Ok(());
        let loss = self.gradients_of(indices, &mut |tensor, gradient| {
            if told.is_ok() {
                told = sync.gradient_ready(tensor, gradient);
            }
        });
        let computed = Instant::now();
        if !loss.is_finite() {
            return Err(WorkerError::Diverged { epoch, step, lr });
        }
        let (parameters, gradients) = (&mut self.parameters, &mut self.gradients);
        let cost = told
            .and_then(|()| sync.step(loss, parameters, gradients, lr))
            .map_err(failed(epoch, "synchronise a step"))?;
        self.sync_times_us.push(computed.elapsed().as_secs_f32() * 1e6);
        self.compute += computed - started;
        self.charge(cost);
        Ok(loss)
    }

    fn gradients_of(&mut self, indices: &[usize], on_ready: &mut dyn FnMut(usize, &[f32])) -> f32 {
        let Self { data, network, parameters, gradients, images, labels, .. } = self;
        data.gather(&data.train, indices.iter().copied(), images, labels);
        network.loss_and_gradients_with(parameters, images, labels, gradients, on_ready)
    }

    /// Computes gradients once for nothing, so that all memory is there when the clock starts.
    fn warm_up(&mut self) {
        let indices: Vec<usize> = (0..self.spec.batch as usize).collect();
        self.gradients_of(&indices, &mut |_, _| {});
    }

    fn charge(&mut self, cost: StepCost) {
        self.cost.exposed_ns += cost.exposed_ns;
        self.cost.bytes_sent += cost.bytes_sent;
    }

    fn report_progress(
        &mut self,
        epoch: u32,
        step: u64,
        loss: f32,
        clock: Instant,
    ) -> Result<(), WorkerError> {
        let now = Instant::now();
        if self.rank != 0 || now - self.reported < PROGRESS_EVERY {
            return Ok(());
        }
        self.reported = now;
        let t_s = (now - clock).as_secs_f64();
        self.tell(&Message::Progress { epoch, step, t_s, loss })
    }

    /// Measures accuracy and reports all that is left to report.
    fn measure(&mut self, steps: u64, wall: Duration) -> Result<(), WorkerError> {
        for snapshot in std::mem::take(&mut self.snapshots) {
            let Snapshot { epoch, t_s, parameters } = snapshot;
            let accuracy = accuracy(&mut self.network, &parameters, self.data);
            self.tell(&Message::Accuracy { epoch, t_s, accuracy })?;
        }
        let wall_s = wall.as_secs_f64();
        let final_accuracy =
            (self.rank == 0).then(|| accuracy(&mut self.network, &self.parameters, self.data));
        if let Some(accuracy) = final_accuracy {
            let epoch = self.spec.epochs - 1;
            self.tell(&Message::Accuracy { epoch, t_s: wall_s, accuracy })?;
        }
        for us in std::mem::take(&mut self.sync_times_us).chunks(TIMES_PER_MESSAGE) {
            self.tell(&Message::SyncTimes { us: us.to_vec() })?;
        }
        self.tell(&Message::Done(Summary {
            steps,
            samples: steps * u64::from(self.spec.batch),
            wall_s,
            compute_s: self.compute.as_secs_f64(),
            exposed_s: self.cost.exposed_ns as f64 / 1e9,
            bytes_sent: self.cost.bytes_sent,
            final_accuracy,
        }))
    }

    fn tell(&mut self, message: &Message) -> Result<(), WorkerError> {
        (self.send)(message).map_err(WorkerError::Report)
    }
}

/// Share of the test images that the network puts into their class.
pub fn accuracy(network: &mut Network, parameters: &[Tensor], data: &Dataset) -> f64 {
    let len = data.test.len();
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    let mut correct = 0;
    for start in (0..len).step_by(TEST_BATCH) {
        let end = len.min(start + TEST_BATCH);
        data.gather(&data.test, start..end, &mut images, &mut labels);
        correct += network.count_correct(parameters, &images, &labels);
    }
    correct as f64 / len as f64
}

fn failed(epoch: u32, action: &'static str) -> impl FnOnce(BoxError) -> WorkerError {
    move |source| WorkerError::Synchronise { epoch, action, source }
}

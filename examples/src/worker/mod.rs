//! One rank's training: batches, gradients, one synchronisation a step, and its bookkeeping.
//!
//! Owns the loop and the clock. Never knows who else trains nor how: that is the
//! [`Synchroniser`]'s. Called by the process of each rank.

pub(crate) mod crew;
mod journal;
pub mod local;
mod stretch;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

pub use local::LocalSgd;
pub use stretch::{Meeting, Position, Stretch};

use syncline::policy::schedule::Schedule;
use syncline::{Batch, StepReport};

use crate::BoxError;
use crate::data::shard::TooFewImages;
use crate::data::{Dataset, ShardPlan};
use crate::model::network::Score;
use crate::model::network::zeros_like;
use crate::model::{Network, Tensor, tensor};
use crate::protocol::{Message, Summary};
use crate::spec::RunSpec;
use crew::Crew;
use journal::Journal;
use stretch::EpochSoFar;

/// Least time between two messages of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Test images that go through the network at once.
const TEST_BATCH: usize = 64;
/// Synchronisation times in one message: a line of a few kilobytes.
const TIMES_PER_MESSAGE: usize = 512;

/// What one call of a [`Synchroniser`] cost this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// Time spent waiting for communication while nothing else went on, in nanoseconds.
    pub exposed_ns: u64,
    /// Bytes sent since the last call, those in the background included.
    pub bytes_sent: u64,
    /// What a step cost in detail, where the synchroniser knows.
    pub report: Option<StepReport>,
}

/// What the ranks agreed on at the end of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochReport {
    /// Mean training loss over all ranks.
    pub mean_loss: f32,
    /// Part of the gradients' bytes whose synchronisation was deferred in this epoch, 0 to 1.
    pub deferred_fraction: f64,
    /// How many bytes a step of the next epoch may defer, and why not more.
    pub deferral: Option<syncline::Decision>,
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

    /// What this rank takes of the next step's images, where that is not an equal part: the parts
    /// of all ranks lie one after another, and add up to as many as equal parts do.
    fn next_batch(&mut self) -> Option<Batch> {
        None
    }

    /// Ends a step: `parameters` become those of the next step, by the `gradients` of all ranks,
    /// each the mean over its batch, and by learning rate `lr`. `loss` is this rank's. May use
    /// `gradients` as scratch. The batch is that of [`Self::next_batch`].
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

    /// The rank that only serves, if there is one: it trains on nothing, and calls
    /// [`Self::serve_step`] where the others call [`Self::step`].
    fn server_only_rank(&self) -> Option<u32> {
        None
    }

    /// Waits for a step of the ranks that train.
    ///
    /// # Errors
    ///
    /// Communication failed, or this rank trains.
    fn serve_step(&mut self) -> Result<StepCost, BoxError> {
        Err("this rank trains".into())
    }

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

    /// The sync model of the next step.
    fn model(&self) -> String {
        "local".to_owned()
    }

    /// How far all ranks go from here before they meet, and whether this one takes part. Without
    /// a word on it, no rank ever has to.
    fn stretch(&mut self, at: Position) -> Stretch {
        let _ = at;
        Stretch::endless()
    }

    /// Takes note of what a step would have taken a rank that sits out a stretch.
    fn stand_by(&mut self, compute: Duration) {
        let _ = compute;
    }

    /// Ends a stretch, on all ranks at the same position, those that sat it out included. Says what
    /// was decided, and where to go on if not here.
    ///
    /// # Errors
    ///
    /// Communication failed, or training cannot be saved.
    fn meet(&mut self, at: Position, parameters: &mut [Tensor]) -> Result<Meeting, BoxError> {
        let _ = (at, parameters);
        Ok(Meeting::default())
    }

    /// Whether a loss that is no number is dealt with at the next meeting.
    fn survives_divergence(&self) -> bool {
        false
    }
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
    let crew = Crew::new(spec.ranks, rank, synchroniser.server_only_rank());
    let (workers, place) = (crew.workers(), crew.place());
    let plan = ShardPlan::new(data.train.len(), workers, place, batch, spec.seed)
        .map_err(WorkerError::TooFewImages)?;
    let (network, parameters) = Network::new(spec.net, data.shape, data.classes, spec.seed);
    let gradients = zeros_like(&parameters);
    let text = spec.schedule.as_deref().unwrap_or("constant");
    let schedule = text.parse::<Schedule>().map_err(WorkerError::Schedule)?.with_base(spec.lr);
    let mut trainer = Trainer {
        spec,
        rank,
        crew,
        data,
        schedule,
        plan,
        order: (None, Vec::new()),
        network,
        parameters,
        gradients,
        images: Vec::new(),
        labels: Vec::new(),
        steps: 0,
        samples: 0,
        compute: Duration::ZERO,
        switching: Duration::ZERO,
        cost: StepCost::default(),
        sync_times_us: Vec::new(),
        snapshots: Vec::new(),
        clock: Instant::now(),
        wall: Duration::ZERO,
        reported: Instant::now(),
        journal: Journal::start(spec, rank),
        send,
    };
    let outcome = trainer.learn(synchroniser).and_then(|wall| trainer.measure(wall));
    trainer.close_journal(outcome.as_ref().err());
    outcome.map(|()| trainer.parameters)
}

/// The parameters at the end of an epoch.
struct Snapshot {
    epoch: u32,
    t_s: f64,
    /// Of this rank so far.
    samples: u64,
    parameters: Vec<Tensor>,
}

/// The state of [`train`].
struct Trainer<'a> {
    spec: &'a RunSpec,
    rank: u32,
    crew: Crew,
    data: &'a Dataset,
    schedule: Schedule,
    plan: ShardPlan,
    /// The epoch that the images at hand are of, and the order of all ranks' images.
    order: (Option<u64>, Vec<usize>),
    network: Network,
    parameters: Vec<Tensor>,
    gradients: Vec<Tensor>,
    images: Vec<f32>,
    labels: Vec<u8>,
    /// Steps that this rank took.
    steps: u64,
    /// Samples that it took in them.
    samples: u64,
    compute: Duration,
    /// Spent on going from one sync model or group of ranks to another.
    switching: Duration,
    cost: StepCost,
    sync_times_us: Vec<f32>,
    snapshots: Vec<Snapshot>,
    /// When training started.
    clock: Instant,
    /// How long it took, once it is over.
    wall: Duration,
    /// When progress was last reported.
    reported: Instant,
    journal: Journal,
    send: &'a mut dyn FnMut(&Message) -> io::Result<()>,
}

/// Told of each gradient, with the index of its tensor, as soon as it is there.
type Tell<'a> = dyn FnMut(usize, &[f32]) -> Result<(), BoxError> + 'a;

impl Trainer<'_> {
    /// Trains; returns the time it took.
    fn learn(&mut self, sync: &mut dyn Synchroniser) -> Result<Duration, WorkerError> {
        if self.crew.trains() {
            self.warm_up();
        }
        sync.start(&mut self.parameters).map_err(failed(0, "start"))?;
        self.clock = Instant::now();
        self.reported = self.clock;
        self.tell(&Message::Started {
            parameter_bytes: tensor::total_bytes(&self.parameters),
            tensors: self.parameters.len(),
            steps_per_epoch: self.plan.steps() as u64,
            transport: sync.transport(),
        })?;
        let mut at = Position { step: 0, samples: 0, total: self.all_samples() };
        let mut epoch = EpochSoFar::default();
        while at.samples < at.total {
            at = self.run_stretch(at, &mut epoch, sync)?;
        }
        let last = self.spec.epochs - 1;
        let cost = sync.finish(&mut self.parameters).map_err(failed(last, "finish"))?;
        self.charge(cost);
        self.wall = self.clock.elapsed();
        Ok(self.wall)
    }

    /// What this rank sleeps in a step, counted from 0 over the whole run.
    fn delay_at(&self, step: u64) -> Duration {
        self.spec.stragglers.iter().map(|slow| slow.delay_at(self.rank, step)).sum()
    }

    /// Loss and gradients of this rank's part of a step's images, the time they took, and whether
    /// they could be told. A straggler sleeps first, which counts as computing.
    fn compute(
        &mut self,
        step: u64,
        part: Batch,
        tell: &mut Tell<'_>,
    ) -> (f32, Duration, Result<(), BoxError>) {
        let delay = self.delay_at(step);
        let indices = self.images_of(step, part);
        let started = Instant::now();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let mut told = Ok(());
        let loss = self.gradients_of(&indices, &mut |tensor, gradient| {
            if told.is_ok() {
                told = tell(tensor, gradient);
            }
        });
        (loss, started.elapsed(), told)
    }

    /// One step; returns this rank's loss and its samples.
    fn step(
        &mut self,
        at: Position,
        stretch: &Stretch,
        sync: &mut dyn Synchroniser,
    ) -> Result<(f32, u32), WorkerError> {
        let epoch = self.epoch_of(at);
        let lr = self.rate_at(at, stretch);
        let part = sync.next_batch().unwrap_or_else(|| self.plan.equal_part());
        let tell = &mut |tensor, gradient: &[f32]| sync.gradient_ready(tensor, gradient);
        let (loss, compute, told) = self.compute(at.step, part, tell);
        let computed = Instant::now();
        if !loss.is_finite() && !sync.survives_divergence() {
            let step = (at.step % self.plan.steps() as u64) as usize;
            self.tell(&Message::Diverged { epoch, step: step as u64, lr })?;
            return Err(WorkerError::Diverged { epoch, step, lr });
        }
        let (parameters, gradients) = (&mut self.parameters, &mut self.gradients);
        let cost = told
            .and_then(|()| sync.step(loss, parameters, gradients, lr))
            .map_err(failed(epoch, "synchronise a step"))?;
        self.sync_times_us.push(computed.elapsed().as_secs_f32() * 1e6);
        self.compute += compute;
        self.steps += 1;
        self.samples += u64::from(part.samples);
        self.charge(cost);
        if let Some(report) = cost.report {
            let (steps, t) = (self.steps, self.clock.elapsed());
            self.journal.step(&report, steps, t, self.samples, loss, lr, || sync.model());
        }
        Ok((loss, part.samples))
    }

    /// A step of the others, on a rank that only serves.
    fn serve(&mut self, at: Position, sync: &mut dyn Synchroniser) -> Result<(), WorkerError> {
        let cost = sync.serve_step().map_err(failed(self.epoch_of(at), "serve a step"))?;
        self.steps += 1;
        self.charge(cost);
        Ok(())
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

    fn report_progress(&mut self, at: Position, loss: f32) -> Result<(), WorkerError> {
        let now = Instant::now();
        if !self.crew.reports() || now - self.reported < PROGRESS_EVERY {
            return Ok(());
        }
        self.reported = now;
        let t_s = (now - self.clock).as_secs_f64();
        // The epoch that the step just taken was of.
        let epoch = self.epoch_of(Position { samples: at.samples.saturating_sub(1), ..at });
        self.tell(&Message::Progress { epoch, step: at.step, t_s, loss })
    }

    /// Measures accuracy and reports all that is left to report.
    fn measure(&mut self, wall: Duration) -> Result<(), WorkerError> {
        for snapshot in std::mem::take(&mut self.snapshots) {
            let Snapshot { epoch, t_s, samples, parameters } = snapshot;
            let accuracy = accuracy(&mut self.network, &parameters, self.data);
            self.journal.accuracy(epoch, t_s, samples, accuracy);
            self.tell(&Message::Accuracy { epoch, t_s, accuracy })?;
        }
        let wall_s = wall.as_secs_f64();
        let result =
            (self.rank == 0).then(|| evaluate(&mut self.network, &self.parameters, self.data));
        let final_accuracy = result.map(|result| result.accuracy);
        if let Some(accuracy) = final_accuracy {
            let epoch = self.spec.epochs - 1;
            self.journal.accuracy(epoch, wall_s, self.samples, accuracy);
            self.tell(&Message::Accuracy { epoch, t_s: wall_s, accuracy })?;
        }
        for us in std::mem::take(&mut self.sync_times_us).chunks(TIMES_PER_MESSAGE) {
            self.tell(&Message::SyncTimes { us: us.to_vec() })?;
        }
        self.tell(&Message::Done(Summary {
            steps: self.steps,
            samples: self.samples,
            wall_s,
            compute_s: self.compute.as_secs_f64(),
            exposed_s: self.cost.exposed_ns as f64 / 1e9,
            bytes_sent: self.cost.bytes_sent,
            switch_s: self.switching.as_secs_f64(),
            final_accuracy,
            final_test_loss: result.map(|result| result.loss).filter(|loss| loss.is_finite()),
        }))
    }

    fn close_journal(&mut self, error: Option<&WorkerError>) {
        let outcome = error.map_or_else(|| "finished".to_owned(), ToString::to_string);
        // Without the time that measuring took, if training came that far.
        let wall = if self.wall.is_zero() { self.clock.elapsed() } else { self.wall };
        self.journal.end(self.steps, self.samples, wall, outcome);
    }

    fn tell(&mut self, message: &Message) -> Result<(), WorkerError> {
        (self.send)(message).map_err(WorkerError::Report)
    }
}

/// How a network does on the test part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Share of the items that it puts into their class.
    pub accuracy: f64,
    /// Mean loss in nats; for a text, per byte. Not finite if training has diverged.
    pub loss: f64,
}

/// Share of the test images that the network puts into their class.
pub fn accuracy(network: &mut Network, parameters: &[Tensor], data: &Dataset) -> f64 {
    evaluate(network, parameters, data).accuracy
}

/// How a network does on the test part.
pub fn evaluate(network: &mut Network, parameters: &[Tensor], data: &Dataset) -> Evaluation {
    let len = data.test.len();
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    let mut sum = Score::default();
    for start in (0..len).step_by(TEST_BATCH) {
        let end = len.min(start + TEST_BATCH);
        data.gather(&data.test, start..end, &mut images, &mut labels);
        let score = network.score(parameters, &images, &labels);
        sum.correct += score.correct;
        sum.loss += score.loss;
    }
    let share = |value: f64| value / len as f64;
    Evaluation { accuracy: share(sum.correct as f64), loss: share(sum.loss) }
}

fn failed(epoch: u32, action: &'static str) -> impl FnOnce(BoxError) -> WorkerError {
    move |source| WorkerError::Synchronise { epoch, action, source }
}

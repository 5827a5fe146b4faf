//! A training session: one sync model over one communicator.
//!
//! Owns the trainer's side of a model: it lends the tensors, does what the model asks for on the
//! right communicator, and measures what that cost. Never decides what is exchanged. Called by
//! trainers.

use std::collections::BTreeMap;
use std::time::Duration;

use syncline_comm::{Class, Communicator, ReduceOp, Request};

use crate::clock::Moment;
use crate::config::{ModelKind, SessionConfig};
use crate::error::{Error, Result};
use crate::layout::{Layout, TensorSpec};
use crate::model::check::{self, Fingerprint};
use crate::model::osp::budget::Decision;
use crate::model::{self, Action, Event, Job, ReduceId, StepEnded, SyncModel, Tensors, Timing};
use crate::report::{RunStats, StepReport};
use crate::server::shard::Shard;
use crate::server::wire::HEADER_WORDS;
use crate::server::{PUSH_TAG, REPLY_TAG, Server};

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
/// Only ASP's steps and epochs are not: its ranks may make different numbers of steps between two
/// drains. After an error, but for wrong arguments, the session is finished.
#[derive(Debug)]
pub struct Session {
    model: Box<dyn SyncModel>,
    exchange: Exchange,
    tensors: Vec<TensorSpec>,
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
        let exchange = Exchange::new(urgent, config, &layout, &flat)?;
        Ok(Self {
            model: model::build(config, job, layout, parameters),
            exchange,
            tensors: tensors.to_vec(),
            step: 0,
            released: Moment::now(),
            stats: RunStats::default(),
            finished: None,
        })
    }

    /// Ends a step: exchanges `gradients`, and leaves in `parameters` what the next step shall
    /// compute with. `learning_rate` must be the same on every rank; `loss` is this rank's own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a length differs from the session's tensors; nothing was sent
    /// then. After any other error `parameters` are unspecified and the session is finished.
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
        check_lengths("gradients", &self.tensors, gradients.iter().map(|tensor| tensor.len()))?;
        let event = Event::StepEnded(StepEnded { learning_rate, loss, compute });
        let waits = self.drive(event, &mut Tensors { parameters, gradients })?;
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
            bytes_deferred: traffic.deferred_bytes,
            deferred_share: traffic.deferred_bytes as f64 / all.max(1) as f64,
            staleness: self.model.staleness(),
            limit: self.model.decision().limit,
        };
        self.stats.add(&report);
        self.released = Moment::now();
        Ok(report)
    }

    /// Ends an epoch, in which this rank's mean training loss was `mean_loss`, and says how many
    /// bytes the next one may defer, and why.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn end_epoch(&mut self, mean_loss: f32) -> Result<&Decision> {
        self.check_running()?;
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
        // Not of the step: under ASP, ranks may have made different numbers of them.
        let mut print = Fingerprint::new(0);
        parameters.iter().for_each(|tensor| print.floats(tensor));
        let prints = self.exchange.gather(&[print.value()]);
        let outcome = prints
            .and_then(|prints| check::compare(self.step, &prints).map_or_else(|| Ok(()), Err));
        self.finished = Some("finish was called".to_owned());
        outcome
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

/// Time blocked in one call, by what for.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    rs: Duration,
    ics: Duration,
    pull: Duration,
    gather: Duration,
}

/// Does what models ask for.
#[derive(Debug)]
struct Exchange {
    urgent: Communicator,
    /// Of OSP only.
    background: Option<Communicator>,
    /// Of ASP only.
    shards: Option<Shards>,
    started: BTreeMap<ReduceId, (Moment, Request<f32>)>,
}

/// This rank's end of the parameter server.
#[derive(Debug)]
struct Shards {
    communicator: Communicator,
    /// Served while workers push; at rest between a collection and the next push.
    state: ShardState,
    lens: Vec<usize>,
    /// By server: what was sent last, and the reply to it.
    sent: Vec<Option<Request<u32>>>,
    replies: Vec<Option<Request<u32>>>,
}

#[derive(Debug)]
enum ShardState {
    Lost,
    Resting(Shard),
    Served(Server),
}

impl Exchange {
    fn new(
        urgent: Communicator,
        config: &SessionConfig,
        layout: &Layout,
        parameters: &[f32],
    ) -> Result<Self> {
        let background = match config.model {
            ModelKind::Osp(_) => Some(urgent.duplicate(Class::Background)?),
            _ => None,
        };
        let shards = match config.model {
            ModelKind::Asp(_) => {
                let communicator = urgent.duplicate(Class::Urgent)?;
                Some(Shards::new(communicator, config, layout, parameters))
            }
            _ => None,
        };
        Ok(Self { urgent, background, shards, started: BTreeMap::new() })
    }

    fn drive(
        &mut self,
        model: &mut dyn SyncModel,
        event: Event,
        tensors: &mut Tensors<'_, '_>,
    ) -> Result<Waits> {
        let mut waits = Waits::default();
        model.handle_event(event, tensors);
        while let Some(action) = model.poll_action() {
            if let Some(event) = self.act(action, &mut waits)? {
                model.handle_event(event, tensors);
            }
        }
        Ok(waits)
    }

    fn act(&mut self, action: Action, waits: &mut Waits) -> Result<Option<Event>> {
        let start = Moment::now();
        match action {
            Action::AwaitReply { server } => {
                let message = self.shards().await_reply(server)?;
                waits.pull += start.elapsed();
                Ok(Some(Event::Replied { server, message }))
            }
            Action::Collect => self.collect().map(Some),
            Action::Fail(error) => Err(error),
            Action::Gather { words } => {
                let words = self.gather(&words)?;
                waits.gather += start.elapsed();
                Ok(Some(Event::Gathered { words }))
            }
            Action::Push { server, message, replies } => {
                self.shards().push(server, message, replies)?;
                Ok(None)
            }
            Action::Reduce { id, mut data } => {
                self.urgent.all_reduce(&mut data, ReduceOp::Avg)?;
                let elapsed = start.elapsed();
                waits.rs += elapsed;
                let timing = Timing { elapsed, blocked: elapsed };
                Ok(Some(Event::Reduced { id, data, timing }))
            }
            Action::StartReduce { id, data } => {
                let background = self.background.as_ref().expect("only OSP reduces behind");
                let request = background.start_all_reduce(data, ReduceOp::Avg)?;
                self.started.insert(id, (start, request));
                Ok(None)
            }
            Action::Wait { id } => {
                let (began, request) = self.started.remove(&id).expect("it was started");
                let was_done = request.is_done();
                let data = request.wait()?;
                let waited = start.elapsed();
                waits.ics += waited;
                let blocked = if was_done { Duration::ZERO } else { waited };
                let timing = Timing { elapsed: began.elapsed(), blocked };
                Ok(Some(Event::Reduced { id, data, timing }))
            }
        }
    }

    fn gather(&self, words: &[u64]) -> Result<Vec<u64>> {
        let mut all = vec![0; words.len() * self.urgent.world_size() as usize];
        self.urgent.all_gather(words, &mut all)?;
        Ok(all)
    }

    /// Stops this rank's server when all workers are done, and brings all shards together.
    fn collect(&mut self) -> Result<Event> {
        let shards = self.shards();
        let shard = shards.stop()?;
        let version = shard.version();
        let mut parameters = vec![0.0; shards.lens.iter().sum()];
        let counts: Vec<usize> = shards.lens.clone();
        self.urgent.all_gather_v(shard.parameters(), &mut parameters, &counts)?;
        let versions = self.gather(&[version])?;
        self.shards().state = ShardState::Resting(shard);
        Ok(Event::Collected { parameters, versions })
    }

    fn shards(&mut self) -> &mut Shards {
        self.shards.as_mut().expect("only ASP has a parameter server")
    }
}

impl Shards {
    fn new(
        communicator: Communicator,
        config: &SessionConfig,
        layout: &Layout,
        parameters: &[f32],
    ) -> Self {
        let (rank, world_size) = (communicator.rank(), communicator.world_size());
        let range = |rank: u32| layout.shard(rank as usize, world_size as usize);
        let own = parameters[range(rank)].to_vec();
        let none = || (0..world_size).map(|_| None).collect();
        Self {
            communicator,
            state: ShardState::Resting(Shard::new(rank, world_size, config.optimiser, own)),
            lens: (0..world_size).map(|rank| range(rank).len()).collect(),
            sent: none(),
            replies: none(),
        }
    }

    fn push(&mut self, server: u32, message: Vec<u32>, replies: bool) -> Result<()> {
        if !matches!(self.state, ShardState::Served(_)) {
            let ShardState::Resting(shard) = std::mem::replace(&mut self.state, ShardState::Lost)
            else {
                return Err(Error::Protocol { reason: "this rank's shard is lost".to_owned() });
            };
            self.state = ShardState::Served(Server::start(&self.communicator, shard)?);
        }
        let index = server as usize;
        // The reply goes where the last message came from; that was sent before it was answered.
        let last = self.sent[index].take().map(Request::wait).transpose()?;
        if replies {
            let words = HEADER_WORDS + self.lens[index];
            let buffer = last.unwrap_or_else(|| vec![0; words]);
            let reply = self.communicator.start_recv(buffer, server, REPLY_TAG)?;
            self.replies[index] = Some(reply);
        }
        self.sent[index] = Some(self.communicator.start_send(message, server, PUSH_TAG)?);
        Ok(())
    }

    fn await_reply(&mut self, server: u32) -> Result<Vec<u32>> {
        let reply = self.replies[server as usize].take().expect("a push before its reply");
        Ok(reply.wait()?)
    }

    fn stop(&mut self) -> Result<Shard> {
        for request in self.sent.iter_mut().filter_map(Option::take) {
            request.wait()?;
        }
        match std::mem::replace(&mut self.state, ShardState::Lost) {
            ShardState::Lost => {
                Err(Error::Protocol { reason: "this rank's shard is lost".to_owned() })
            }
            ShardState::Resting(shard) => Ok(shard),
            ShardState::Served(server) => server.collect(),
        }
    }
}

fn check_lengths(
    what: &str,
    tensors: &[TensorSpec],
    lens: impl ExactSizeIterator<Item = usize>,
) -> Result<()> {
    let invalid = |reason| Err(Error::InvalidArgument { reason });
    if lens.len() != tensors.len() {
        let (has, wanted) = (lens.len(), tensors.len());
        return invalid(format!("{what} of {has} tensors, where the session has {wanted}"));
    }
    for (spec, len) in tensors.iter().zip(lens) {
        if spec.len != len {
            let TensorSpec { name, len: wanted } = spec;
            return invalid(format!("{what} of '{name}' have {len} elements, not {wanted}"));
        }
    }
    Ok(())
}

/// Makes sure that all ranks start alike.
fn agree(
    communicator: &Communicator,
    tensors: &[TensorSpec],
    config: &SessionConfig,
) -> Result<()> {
    let hash = |text: &str| {
        let mut print = Fingerprint::new(0);
        print.text(text);
        print.value()
    };
    let gather = |words: &[u64]| -> Result<Vec<u64>> {
        let mut all = vec![0; words.len() * communicator.world_size() as usize];
        communicator.all_gather(words, &mut all)?;
        Ok(all)
    };
    let differ = |words: &[u64], what: String| {
        let ranks = check::disagreeing(words);
        if ranks.is_empty() { Ok(()) } else { Err(Error::JobMismatch { what, ranks }) }
    };
    let counts = gather(&[tensors.len() as u64])?;
    differ(&counts, format!("the number of tensors ({} here)", tensors.len()))?;
    let own: Vec<u64> = tensors.iter().map(|tensor| hash(&format!("{tensor:?}"))).collect();
    let all = gather(&own)?;
    for (index, tensor) in tensors.iter().enumerate() {
        let words: Vec<u64> = all.iter().copied().skip(index).step_by(own.len()).collect();
        let TensorSpec { name, len } = tensor;
        differ(&words, format!("tensor {index} ('{name}', {len} elements here)"))?;
    }
    // The settings as text: equal settings print alike, whatever they will be.
    let settings = format!("{config:?}");
    differ(&gather(&[hash(&settings)])?, format!("the settings ({settings} here)"))
}

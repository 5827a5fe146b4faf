//! The trainer's synchroniser: a `syncline::Session` over a real communicator.
//!
//! Owns the translation between the trainer's tensors and the session's slices, and the count of
//! bytes and waits. Called by a rank of `syncline train`.

mod controlled;
mod group;
mod planned;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use syncline::control::runs_apart;
use syncline::metrics::{Metrics, MetricsServer};
use syncline::{
    Adam, Batch, Communicator, Config, LinkRate, ModelKind, Optimiser, Pacing, ReduceOp, Session,
    SessionConfig, Sgd, TensorSpec, TransportChoice,
};

use crate::BoxError;
use crate::model::Tensor;
use crate::spec::{OptimiserKind, RunSpec, TransportKind};
use crate::worker::{EpochReport, Meeting, Position, StepCost, Stretch, Synchroniser};
use controlled::{Controlled, Outcome};
use planned::Planned;

/// What a run's sync model depends on.
#[derive(Debug)]
enum Course {
    Controlled(Box<Controlled>),
    Planned(Planned),
}

/// Whether a run's settings go together.
///
/// # Errors
///
/// Why they do not.
pub fn check(spec: &RunSpec) -> Result<(), BoxError> {
    let course = Course::new(spec)?;
    let server_only = spec.server_only_rank();
    if server_only.is_some() && matches!(course, Course::Controlled(_)) {
        return Err(
            "a guard or a policy about stragglers does not go with a dedicated server".into()
        );
    }
    if let Some(rank) = server_only
        && spec.stragglers.iter().any(|slow| slow.rank == rank)
    {
        return Err(format!("--straggler: rank {rank} does not train, it serves").into());
    }
    for phase in spec.model.plan()?.iter().flat_map(|plan| plan.phases()) {
        phase.model.check_world(spec.ranks)?;
        if phase.model.server_only_rank() != server_only {
            let name = spec.model.name();
            return Err(
                format!("{name}: all phases have the same dedicated server, or none").into()
            );
        }
        let (model, optimiser) = (phase.model, optimiser(spec));
        let config =
            SessionConfig { model, optimiser, clip_norm: spec.clip_norm, ..Default::default() };
        config.validate().map_err(|error| format!("{}: {error}", spec.model.name()))?;
    }
    Ok(())
}

impl Course {
    fn new(spec: &RunSpec) -> Result<Self, BoxError> {
        Ok(if controlled::is_controlled(spec) {
            Self::Controlled(Box::new(Controlled::new(spec, optimiser(spec))?))
        } else {
            Self::Planned(Planned::new(spec, optimiser(spec))?)
        })
    }

    /// Model and optimiser at the start.
    fn first(&self) -> (ModelKind, Optimiser) {
        match self {
            Self::Controlled(controlled) => controlled.first(),
            Self::Planned(planned) => (planned.model(), planned.optimiser()),
        }
    }
}

/// The trainer's view of a [`Session`].
#[derive(Debug)]
pub struct SessionSynchroniser {
    communicator: Communicator,
    config: SessionConfig,
    /// Of all ranks.
    session: Option<Session>,
    metrics: Option<(Arc<Metrics>, MetricsServer)>,
    tensors: Vec<TensorSpec>,
    course: Course,
    /// Steps of this rank since the last end of an epoch, and its mean loss then.
    epoch_steps: u64,
    last_mean: f32,
    is_paced: bool,
    bytes_seen: u64,
    /// Of this epoch's steps.
    deferred_bytes: u64,
    all_bytes: u64,
}

impl SessionSynchroniser {
    /// Joins the job of the launcher's variables with the run's settings.
    ///
    /// # Errors
    ///
    /// The communicator's, or a setting that cannot work.
    pub fn join(spec: &RunSpec) -> Result<Self, BoxError> {
        let mut config = Config::from_env()?;
        config.transport = match spec.transport {
            TransportKind::Auto => TransportChoice::Auto,
            TransportKind::Shm => TransportChoice::Shm,
            TransportKind::Tcp => TransportChoice::Tcp,
        };
        config.pacing = spec.link_rate.bytes_per_s.map(|bytes_per_s| Pacing {
            rate: LinkRate { bytes_per_s: bytes_per_s as f64 },
            latency: spec.link_latency,
        });
        let is_paced = config.pacing.is_some();
        Self::over(Communicator::connect(config)?, spec, is_paced)
    }

    /// The ranks of `communicator` with the run's settings but those of its links.
    ///
    /// # Errors
    ///
    /// A setting that cannot work.
    pub fn over(
        communicator: Communicator,
        spec: &RunSpec,
        is_paced: bool,
    ) -> Result<Self, BoxError> {
        let rank = communicator.rank();
        let metrics = spec.metrics_port.map(|port| serve_metrics(port, rank)).transpose()?;
        let course = Course::new(spec)?;
        let (model, optimiser) = course.first();
        Ok(Self {
            is_paced,
            communicator,
            metrics,
            config: SessionConfig {
                model,
                optimiser,
                clip_norm: spec.clip_norm,
                batch: Some(spec.batch),
                seed: spec.seed,
                ..SessionConfig::default()
            },
            session: None,
            tensors: Vec::new(),
            course,
            epoch_steps: 0,
            last_mean: 0.0,
            bytes_seen: 0,
            deferred_bytes: 0,
            all_bytes: 0,
        })
    }

    /// This process's rank.
    pub fn rank(&self) -> u32 {
        self.communicator.rank()
    }

    fn session(&mut self) -> Result<&mut Session, BoxError> {
        self.session.as_mut().ok_or_else(|| "start comes first".into())
    }

    /// The session of the ranks that train now, and their communicator; none if this rank sits
    /// out.
    fn active(&mut self) -> Result<Option<(&Communicator, &mut Session)>, BoxError> {
        if let Course::Controlled(controlled) = &mut self.course
            && let Some(group) = &mut controlled.group
        {
            return Ok(group.own());
        }
        let session = self.session.as_mut().ok_or("start comes first")?;
        Ok(Some((&self.communicator, session)))
    }

    /// All of the time since then was waiting.
    fn cost_since(&mut self, start: Instant) -> StepCost {
        let exposed_ns = nanos(start.elapsed());
        StepCost { exposed_ns, bytes_sent: self.bytes_since(), report: None }
    }

    fn bytes_since(&mut self) -> u64 {
        let all = self.communicator.counters().bytes_sent;
        all - std::mem::replace(&mut self.bytes_seen, all)
    }
}

impl Synchroniser for SessionSynchroniser {
    fn transport(&self) -> String {
        let world_size = self.communicator.world_size();
        let peer = (self.communicator.rank() + 1) % world_size;
        let name = self.communicator.transport_to(peer);
        if self.is_paced { format!("{name}, paced") } else { name.to_owned() }
    }

    fn start(&mut self, parameters: &mut [Tensor]) -> Result<(), BoxError> {
        let spec = |tensor: &Tensor| TensorSpec::new(tensor.name.clone(), tensor.data.len());
        let specs: Vec<TensorSpec> = parameters.iter().map(spec).collect();
        let mut slices = slices_mut(parameters);
        let mut session = Session::new(&self.communicator, &specs, &mut slices, &self.config)?;
        if let Course::Controlled(controlled) = &mut self.course
            && controlled.has_guard()
        {
            controlled.keep_start(session.snapshot(&mut slices)?);
        }
        self.session = Some(session);
        self.tensors = specs;
        self.communicator.barrier()?;
        self.bytes_since();
        Ok(())
    }

    fn gradient_ready(&mut self, tensor: usize, gradient: &[f32]) -> Result<(), BoxError> {
        match self.active()? {
            Some((_, session)) => Ok(session.gradient_ready(tensor, gradient)?),
            None => Ok(()),
        }
    }

    fn next_batch(&mut self) -> Option<Batch> {
        self.active().ok().flatten()?.1.next_batch()
    }

    fn step(
        &mut self,
        loss: f32,
        parameters: &mut [Tensor],
        gradients: &mut [Tensor],
        lr: f32,
    ) -> Result<StepCost, BoxError> {
        let gradients: Vec<&[f32]> = gradients.iter().map(|tensor| &tensor.data[..]).collect();
        let mut parameters = slices_mut(parameters);
        let (_, session) = self.active()?.ok_or("a rank that sits out takes no step")?;
        let report = session.step(&mut parameters, &gradients, lr, loss)?;
        let name = session.config().model.name();
        if let Course::Controlled(controlled) = &mut self.course {
            controlled.note_step(&gradients, report.compute, loss, lr);
        }
        self.epoch_steps += 1;
        if let Some((metrics, _)) = &self.metrics {
            metrics.observe(name, &report, loss.into());
        }
        self.deferred_bytes += report.bytes_deferred;
        self.all_bytes += report.bytes_deferred + report.bytes_important;
        let bytes_sent = self.bytes_since();
        Ok(StepCost { exposed_ns: nanos(report.exposed), bytes_sent, report: Some(report) })
    }

    fn server_only_rank(&self) -> Option<u32> {
        self.config.model.server_only_rank()
    }

    fn serve_step(&mut self) -> Result<StepCost, BoxError> {
        let report = self.session()?.serve_step()?;
        self.deferred_bytes += report.bytes_deferred;
        self.all_bytes += report.bytes_deferred + report.bytes_important;
        let bytes_sent = self.bytes_since();
        Ok(StepCost { exposed_ns: nanos(report.exposed), bytes_sent, report: None })
    }

    fn end_epoch(&mut self, mean_loss: f32) -> Result<EpochReport, BoxError> {
        let start = Instant::now();
        let steps = std::mem::take(&mut self.epoch_steps);
        if steps > 0 {
            self.last_mean = mean_loss;
        }
        let last_mean = self.last_mean;
        let mut mean = mean_loss;
        let mut deferral = None;
        if let Some((communicator, session)) = self.active()? {
            deferral = Some(session.end_epoch(last_mean)?.clone());
            // Under ASP nobody waits for anybody, not even to hear of the loss.
            if !runs_apart(&session.config().model) {
                // A rank that sat out the epoch has no loss of its own.
                let own = if steps > 0 { mean_loss * steps as f32 } else { 0.0 };
                let mut sums = [own, steps as f32];
                communicator.all_reduce(&mut sums, ReduceOp::Sum)?;
                mean = sums[0] / sums[1];
            }
        }
        let deferred = std::mem::take(&mut self.deferred_bytes) as f64;
        let all = std::mem::take(&mut self.all_bytes).max(1) as f64;
        let cost = self.cost_since(start);
        let deferred_fraction = deferred / all;
        Ok(EpochReport { mean_loss: mean, deferred_fraction, deferral, cost })
    }

    fn finish(&mut self, parameters: &mut [Tensor]) -> Result<StepCost, BoxError> {
        let start = Instant::now();
        self.session()?.finish(&mut slices_mut(parameters))?;
        Ok(self.cost_since(start))
    }

    fn model(&self) -> String {
        let session = self.session.as_ref();
        session.map_or(self.config.model, |session| session.config().model).name().to_owned()
    }

    fn stretch(&mut self, at: Position) -> Stretch {
        let rank = self.rank();
        match &mut self.course {
            Course::Controlled(controlled) => controlled.stretch(at, rank),
            Course::Planned(planned) => Stretch::of_all(planned.steps_to_change(at)),
        }
    }

    fn stand_by(&mut self, compute: Duration) {
        self.epoch_steps = 0;
        if let Course::Controlled(controlled) = &mut self.course {
            controlled.note_trial(compute);
        }
    }

    fn survives_divergence(&self) -> bool {
        matches!(&self.course, Course::Controlled(controlled) if controlled.has_guard())
    }

    fn meet(&mut self, at: Position, parameters: &mut [Tensor]) -> Result<Meeting, BoxError> {
        let start = Instant::now();
        let mut slices = slices_mut(parameters);
        let session = self.session.as_mut().ok_or("start comes first")?;
        match &mut self.course {
            Course::Controlled(controlled) => {
                let (communicator, tensors) = (&self.communicator, &self.tensors);
                let outcome = controlled.meet(at, session, communicator, tensors, &mut slices)?;
                let Outcome { decisions, switching, resume_at } = outcome;
                if resume_at.is_some() {
                    self.epoch_steps = 0;
                }
                Ok(Meeting { cost: self.cost_since(start), switching, decisions, resume_at })
            }
            Course::Planned(planned) => {
                let Some(change) = planned.change_at(at) else { return Ok(Meeting::default()) };
                let report = session.switch_to(change.switch, &mut slices)?;
                let decisions = vec![change.decision(report.total)];
                let (cost, switching) = (self.cost_since(start), start.elapsed());
                Ok(Meeting { cost, switching, decisions, resume_at: None })
            }
        }
    }
}

/// The optimiser with a part of its momentum.
fn momentum_under(optimiser: Optimiser, share: f32) -> Optimiser {
    match optimiser {
        Optimiser::Sgd(sgd) => Sgd { momentum: sgd.momentum * share, ..sgd }.into(),
        adam @ Optimiser::Adam(_) => adam,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn serve_metrics(first: u16, rank: u32) -> Result<(Arc<Metrics>, MetricsServer), BoxError> {
    let metrics = Arc::new(Metrics::new(rank));
    let port = u16::try_from(u32::from(first) + rank)?;
    let server = MetricsServer::start(port, Arc::clone(&metrics))
        .map_err(|error| format!("cannot serve metrics on port {port}: {error}"))?;
    Ok((metrics, server))
}

fn optimiser(spec: &RunSpec) -> Optimiser {
    let weight_decay = spec.weight_decay;
    let sgd = |is_nesterov| Sgd { momentum: spec.momentum, weight_decay, is_nesterov }.into();
    let adam = |is_decoupled| Adam { weight_decay, is_decoupled, ..Adam::default() }.into();
    match spec.optimiser {
        OptimiserKind::Adam => adam(false),
        OptimiserKind::AdamW => adam(true),
        OptimiserKind::Nesterov => sgd(true),
        OptimiserKind::Sgd => sgd(false),
    }
}

fn slices_mut(tensors: &mut [Tensor]) -> Vec<&mut [f32]> {
    tensors.iter_mut().map(|tensor| &mut tensor.data[..]).collect()
}

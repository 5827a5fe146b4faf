//! Does what a model asks for, over communicators.
//!
//! Owns the communicators, the reductions under way, and the time that waiting takes. Never looks
//! into what it carries. Called by the session.

use std::collections::BTreeMap;
use std::time::Duration;

use syncline_comm::{Class, Communicator, ReduceOp, Request};

use super::agree;
use super::shards::{ShardState, Shards};
use super::stages::Stages;
use crate::clock::Moment;
use crate::config::{ModelKind, SessionConfig};
use crate::error::{Error, Result};
use crate::layout::{ELEMENT_BYTES, Layout};
use crate::model::check::{self, Fingerprint};
use crate::model::{Action, Event, Job, Lane, Memory, ReduceId, SyncModel, Tensors, Timing};
use crate::optimiser::{Moments, Optimiser};
use crate::server::audit::AuditReport;
use crate::server::osp::OspShard;
use crate::server::osp::service::Lanes;
use crate::server::osp::wire::Stage;
use crate::server::shard::Shard;

/// Time blocked in one call, by what for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    pub(super) rs: Duration,
    pub(super) ics: Duration,
    pub(super) pull: Duration,
    pub(super) gather: Duration,
}

/// Does what models ask for.
#[derive(Debug)]
pub(super) struct Exchange {
    urgent: Communicator,
    /// Of models that exchange behind steps only: OSP and DiLoCo.
    background: Option<Communicator>,
    /// Of server models only.
    shards: Option<Shards>,
    /// Of OSP on servers only.
    stages: Option<Stages>,
    /// The shards' communicator, while no model has a server.
    spare: Option<Communicator>,
    started: BTreeMap<ReduceId, Started>,
    /// Of the reductions started so far.
    started_bytes: u64,
    /// Of the micro-batches in each step of this rank under the model that runs now; none where
    /// ranks may differ.
    micro_batches: Option<Fingerprint>,
    /// A rank that only serves, and has no micro-batches.
    server_only: Option<u32>,
}

/// A reduction under way.
#[derive(Debug)]
struct Started {
    began: Moment,
    request: Request<f32>,
    lane: Lane,
}

impl Exchange {
    pub(super) fn new(
        urgent: Communicator,
        config: &SessionConfig,
        layout: &Layout,
        parameters: &[f32],
        memory: &Memory,
    ) -> Result<Self> {
        let mut exchange = Self {
            urgent,
            background: None,
            spare: None,
            shards: None,
            started: BTreeMap::new(),
            started_bytes: 0,
            micro_batches: None,
            server_only: None,
            stages: None,
        };
        exchange.configure(config, layout, parameters, memory)?;
        Ok(exchange)
    }

    /// Gets ready for the model of `config`, which starts from these parameters. Nothing may be
    /// under way. Collective.
    pub(super) fn configure(
        &mut self,
        config: &SessionConfig,
        layout: &Layout,
        parameters: &[f32],
        memory: &Memory,
    ) -> Result<()> {
        debug_assert!(self.started.is_empty(), "a drain before");
        self.micro_batches = config.model.server().is_none().then(|| Fingerprint::new(0));
        self.server_only = config.model.server_only_rank();
        if let Some(Shards { communicator, .. }) = self.shards.take() {
            self.spare = Some(communicator);
        }
        if let Some(Stages { lanes, .. }) = self.stages.take() {
            self.spare = Some(lanes.urgent);
        }
        match config.model {
            ModelKind::OspServer(server) => {
                let background = self.background()?;
                let lanes = Lanes { urgent: self.take_spare()?, background };
                let job = Job::new(self.urgent.rank(), self.urgent.world_size(), config);
                self.stages = Some(Stages::new(lanes, job, server, layout, parameters, memory));
            }
            ModelKind::Diloco(_) | ModelKind::Osp(_) => drop(self.background()?),
            model if model.server().is_some() => {
                let communicator = self.take_spare()?;
                self.shards = Some(Shards::new(communicator, config, layout, parameters, memory)?);
            }
            _ => {}
        }
        Ok(())
    }

    fn take_spare(&mut self) -> Result<Communicator> {
        match self.spare.take() {
            Some(communicator) => Ok(communicator),
            None => Ok(self.urgent.duplicate(Class::Urgent)?),
        }
    }

    fn background(&mut self) -> Result<Communicator> {
        let background = match self.background.take() {
            Some(communicator) => communicator,
            None => self.urgent.duplicate(Class::Background)?,
        };
        self.background = Some(background.clone());
        Ok(background)
    }

    /// The communicator of what everybody waits for.
    pub(super) fn urgent(&self) -> &Communicator {
        &self.urgent
    }

    /// Bytes of all reductions started so far.
    pub(super) fn started_bytes(&self) -> u64 {
        self.started_bytes
    }

    /// What the optimisers of all shards remember, which must be at rest.
    pub(super) fn collect_memory(&mut self, optimiser: &Optimiser) -> Result<Memory> {
        let (own, lens) = if let Some(stages) = &self.stages {
            let shard = stages.resting()?;
            let none = || Memory { moments: Moments::default(), updates: 0 };
            (shard.map_or_else(none, OspShard::memory), stages.lens.clone())
        } else {
            let shards = self.shards();
            let (lens, shard) = (shards.lens.clone(), shards.resting()?);
            (Memory { moments: shard.moments().clone(), updates: shard.updates() }, lens)
        };
        // Ranks without a shard have made no update.
        let updates = self.gather(&[own.updates])?.into_iter().max().unwrap_or_default();
        let own = own.moments;
        let all = |own: &[f32], urgent: &Communicator| -> Result<Vec<f32>> {
            let mut all = vec![0.0; lens.iter().sum()];
            urgent.all_gather_v(own, &mut all, &lens)?;
            Ok(all)
        };
        let first = all(&own.first, &self.urgent)?;
        let second = if optimiser.has_second_moment() {
            all(&own.second, &self.urgent)?
        } else {
            Vec::new()
        };
        Ok(Memory { moments: Moments { first, second }, updates })
    }

    pub(super) fn drive(
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
            Action::AwaitStage { server, stage } => {
                let wait = match stage {
                    Stage::Rs => &mut waits.rs,
                    Stage::Ics => &mut waits.ics,
                };
                self.await_stage(server, stage, wait).map(Some)
            }
            Action::Collect if self.stages.is_some() => self.collect_stages().map(Some),
            Action::Collect => self.collect().map(Some),
            Action::EndStages { server, head } => {
                self.stages().end(server, head)?;
                Ok(None)
            }
            Action::Fail(error) => Err(error),
            Action::Gather { words } => {
                let words = self.gather_alike(&words)?;
                waits.gather += start.elapsed();
                Ok(Some(Event::Gathered { words }))
            }
            Action::Push { server, message, replies } => {
                self.shards().push(server, message, replies)?;
                Ok(None)
            }
            Action::PushStage { server, stage, head, body, reply_words } => {
                self.stages().push((server, stage), head, body, reply_words)?;
                Ok(None)
            }
            Action::Reduce { id, mut data } => {
                self.urgent.all_reduce(&mut data, ReduceOp::Avg)?;
                let elapsed = start.elapsed();
                waits.rs += elapsed;
                let timing = Timing { elapsed, blocked: elapsed };
                Ok(Some(Event::Reduced { id, data, timing }))
            }
            Action::StartReduce { id, data, lane } => {
                let communicator = match lane {
                    Lane::Background => {
                        self.background.as_ref().expect("the model has a background lane")
                    }
                    Lane::Urgent => &self.urgent,
                };
                self.started_bytes += (data.len() * ELEMENT_BYTES) as u64;
                let request = communicator.start_all_reduce(data, ReduceOp::Avg)?;
                self.started.insert(id, Started { began: start, request, lane });
                Ok(None)
            }
            Action::Wait { id } => {
                let Started { began, request, lane } =
                    self.started.remove(&id).expect("it was started");
                let was_done = request.is_done();
                let data = request.wait()?;
                let waited = start.elapsed();
                match lane {
                    Lane::Background => waits.ics += waited,
                    Lane::Urgent => waits.rs += waited,
                }
                let blocked = if was_done { Duration::ZERO } else { waited };
                let timing = Timing { elapsed: began.elapsed(), blocked };
                Ok(Some(Event::Reduced { id, data, timing }))
            }
        }
    }

    fn await_stage(&mut self, server: u32, stage: Stage, wait: &mut Duration) -> Result<Event> {
        let start = Moment::now();
        let (message, timing) = self.stages().await_reply(server, stage)?;
        *wait += start.elapsed();
        Ok(Event::StageReplied { server, message, timing })
    }

    pub(super) fn gather(&self, words: &[u64]) -> Result<Vec<u64>> {
        agree::gather(&self.urgent, words)
    }

    /// A step is made of so many micro-batches.
    pub(super) fn count_micro_batches(&mut self, count: u64) {
        if let Some(print) = &mut self.micro_batches {
            print.word(count);
        }
    }

    /// As [`Self::gather`], of ranks that must have counted equally many micro-batches in each
    /// step.
    pub(super) fn gather_alike(&self, words: &[u64]) -> Result<Vec<u64>> {
        let Some(print) = self.micro_batches else { return self.gather(words) };
        let all = self.gather(&[words, &[print.value()]].concat())?;
        let each = || all.chunks_exact(words.len() + 1);
        let prints: Vec<u64> = each().map(|rank| rank[words.len()]).collect();
        let ranks = check::disagreeing_but(&prints, self.server_only);
        if !ranks.is_empty() {
            let what = "the number of micro-batches in some step".to_owned();
            return Err(Error::JobMismatch { what, ranks });
        }
        Ok(each().flat_map(|rank| &rank[..words.len()]).copied().collect())
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
        let own = self.urgent.rank();
        shard.check_collected(own, versions[own as usize])?;
        self.shards().state = ShardState::Resting(Box::new(shard));
        Ok(Event::Collected { parameters, versions })
    }

    /// What the audit of this rank's shard has seen; none without a shard at rest.
    pub(super) fn audit(&self) -> Option<AuditReport> {
        if let Some(stages) = &self.stages {
            return stages.resting().ok()?.map(OspShard::audit);
        }
        self.shards.as_ref()?.resting().ok().map(Shard::audit)
    }

    /// The same of OSP's servers, which some ranks may not have.
    fn collect_stages(&mut self) -> Result<Event> {
        self.stages().stop()?;
        let stages = self.stages.as_ref().expect("as above");
        let shard = stages.resting()?;
        shard.map_or(Ok(()), OspShard::check_collected)?;
        let own = shard.map_or(&[][..], OspShard::parameters);
        let mut parameters = vec![0.0; stages.lens.iter().sum()];
        self.urgent.all_gather_v(own, &mut parameters, &stages.lens)?;
        let all = self.gather(&[u64::from(shard.is_some()), shard.map_or(0, OspShard::version)])?;
        let servers = all.chunks_exact(2).filter(|words| words[0] == 1);
        let versions = servers.map(|words| words[1]).collect();
        Ok(Event::Collected { parameters, versions })
    }

    fn stages(&mut self) -> &mut Stages {
        self.stages.as_mut().expect("only OSP on servers pushes in stages")
    }

    fn shards(&mut self) -> &mut Shards {
        self.shards.as_mut().expect("only models with a server push")
    }
}

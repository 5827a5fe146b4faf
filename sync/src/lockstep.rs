//! Runs the models of all ranks in one thread, with exact sums in memory and costs that are
//! computed, not measured.
//!
//! Owns the exchange that a communicator would do, and the trainer's tensors of every rank. Never
//! changes what a model decides: the models are those of the session, under audit in debug builds.
//! Called by tests, which check invariants here without a process or a socket, and by studies of
//! accuracy.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::audit::{Audited, Rules};
use crate::config::SessionConfig;
use crate::error::{Error, Result};
use crate::layout::{ELEMENT_BYTES, Layout, TensorSpec};
use crate::model::{
    self, Action, Event, Job, Memory, ReduceId, StepEnded, SyncModel, Tensors, Timing,
};
use crate::server::audit::AuditReport;
use crate::server::shard::{Reply, Shard};
use staged::Staged;

mod staged;

/// What computing and moving cost, for models that tune themselves by it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Of each forward and backward pass.
    pub compute: Duration,
    /// Bytes per second and direction of each rank's link; 0 for a link that costs nothing.
    pub bandwidth: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { compute: Duration::from_millis(10), bandwidth: 0.0 }
    }
}

/// One tensor list: a trainer's parameters or gradients.
pub type TensorList = Vec<Vec<f32>>;

/// All ranks of one job.
#[derive(Debug)]
pub struct Lockstep<M = Box<dyn SyncModel>> {
    ranks: Vec<Replica<M>>,
    costs: Costs,
    /// Started reductions: what each rank gave, in order of ranks.
    started: BTreeMap<ReduceId, Vec<Option<Vec<f32>>>>,
    shards: Vec<Shard>,
    staged: Staged,
    layout: Layout,
    /// The latest time of anything that a shard took in.
    now: Duration,
}

#[derive(Debug)]
struct Replica<M> {
    model: Audited<M>,
    parameters: TensorList,
    gradients: TensorList,
    /// The action that waits for other ranks.
    blocked: Option<Action>,
    /// Replies of each shard that were not asked for yet.
    replies: Vec<VecDeque<Vec<u32>>>,
    /// Time spent blocked in the last call.
    exposed: Duration,
    /// Reductions started since the last call, in this order.
    starts: Vec<ReduceId>,
    /// What it has computed so far, and waited for shards.
    time: Duration,
}

impl Lockstep {
    /// `world_size` ranks that start from `parameters`, with the model of `config`.
    ///
    /// # Errors
    /// [`Error::Config`] if the settings cannot work.
    pub fn new(config: &SessionConfig, world_size: u32, parameters: &TensorList) -> Result<Self> {
        config.validate()?;
        config.model.check_world(world_size)?;
        let granularity = config.model.granularity();
        Ok(Self::with_models(config, world_size, parameters, |job, tensors| {
            let layout = Layout::new(&specs(parameters), granularity);
            let memory = Memory::new(&config.optimiser, layout.len());
            model::build(config, job, layout, tensors, memory)
        }))
    }
}

impl<M: SyncModel> Lockstep<M> {
    /// As [`Lockstep::new`], with models that `build` makes from the job and the parameters.
    ///
    /// # Panics
    /// If the settings cannot work.
    pub fn with_models(
        config: &SessionConfig,
        world_size: u32,
        parameters: &TensorList,
        build: impl Fn(Job, &[&mut [f32]]) -> M,
    ) -> Self {
        let layout = Layout::new(&specs(parameters), config.model.granularity());
        let flat = parameters.concat();
        let shard = |rank: u32| {
            let range = layout.shard(rank as usize, world_size as usize);
            let memory = Memory::new(&config.optimiser, range.len());
            let shard = Shard::new(rank, world_size, config, flat[range].to_vec(), memory);
            shard.expect("valid settings")
        };
        let is_audited = cfg!(debug_assertions) || config.audits;
        let rules = |rank| is_audited.then(|| Rules::of(config, rank, layout.len())).flatten();
        let replica = |rank| {
            let mut parameters = parameters.clone();
            let tensors: Vec<&mut [f32]> = parameters.iter_mut().map(Vec::as_mut_slice).collect();
            let model = build(Job::new(rank, world_size, config), &tensors);
            Replica {
                model: Audited::new(model, rules(rank)),
                parameters,
                gradients: Vec::new(),
                blocked: None,
                replies: vec![VecDeque::new(); world_size as usize],
                exposed: Duration::ZERO,
                starts: Vec::new(),
                time: Duration::ZERO,
            }
        };
        Self {
            ranks: (0..world_size).map(replica).collect(),
            costs: Costs::default(),
            started: BTreeMap::new(),
            shards: (0..world_size).map(shard).collect(),
            staged: Staged::new(config, world_size, &layout, &flat),
            layout,
            now: Duration::ZERO,
        }
    }

    /// Sets what computing and moving cost from now on.
    pub fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
    }

    /// All ranks end a step with these gradients, one list per rank; that of a rank that only
    /// serves counts for nothing and may be empty.
    ///
    /// # Errors
    /// What a model fails with.
    ///
    /// # Panics
    /// If the models ask for different exchanges or start reductions in different orders, or there
    /// is not one list per rank.
    pub fn step(&mut self, gradients: &[TensorList], learning_rate: f32) -> Result<()> {
        let losses = vec![0.0; self.ranks.len()];
        self.step_with_losses(gradients, learning_rate, &losses)
    }

    /// As [`Self::step`], with each rank's training loss in this step.
    ///
    /// # Errors
    /// What a model fails with.
    ///
    /// # Panics
    /// As [`Self::step`].
    pub fn step_with_losses(
        &mut self,
        gradients: &[TensorList],
        learning_rate: f32,
        losses: &[f32],
    ) -> Result<()> {
        assert_eq!(gradients.len(), self.ranks.len(), "one list of gradients per rank");
        for (replica, gradients) in self.ranks.iter_mut().zip(gradients) {
            replica.gradients.clone_from(gradients);
        }
        let compute = self.costs.compute;
        self.run(|rank| Event::StepEnded(StepEnded { learning_rate, loss: losses[rank], compute }))
    }

    /// As [`Self::step`], after each rank announced the gradients of `orders[rank]` in that order.
    ///
    /// # Errors
    /// What a model fails with.
    ///
    /// # Panics
    /// As [`Self::step`].
    pub fn step_with_ready(
        &mut self,
        gradients: &[TensorList],
        orders: &[Vec<usize>],
        learning_rate: f32,
    ) -> Result<()> {
        for (rank, (gradients, order)) in gradients.iter().zip(orders).enumerate() {
            for (place, tensor) in order.iter().enumerate() {
                let compute = self.costs.compute * (place as u32 + 1) / (order.len() as u32 + 1);
                let event = Event::GradientReady { tensor: *tensor, compute };
                self.ranks[rank].gradients = vec![gradients[*tensor].clone()];
                if self.ranks[rank].model.overlaps() {
                    self.ranks[rank].handle(event);
                    self.advance(rank)?;
                }
            }
        }
        self.step(gradients, learning_rate)
    }

    /// One rank ends a step under a model with a server, while the others do nothing.
    ///
    /// # Errors
    /// What the model fails with.
    ///
    /// # Panics
    /// If the model waits for another rank.
    pub fn step_alone(
        &mut self,
        rank: usize,
        gradients: &TensorList,
        learning_rate: f32,
    ) -> Result<()> {
        let may_go_on = self.start_step(rank, gradients, learning_rate, self.costs.compute)?;
        assert!(may_go_on, "the model waits for another rank");
        Ok(())
    }

    /// One rank ends a step that took it `compute`, and whoever has its replies then goes on;
    /// whether this rank does. If not, it goes on in a later call: see [`Self::is_waiting`].
    ///
    /// # Errors
    /// What a model or a shard fails with.
    ///
    /// # Panics
    /// If the rank is still waiting.
    pub fn start_step(
        &mut self,
        rank: usize,
        gradients: &TensorList,
        learning_rate: f32,
        compute: Duration,
    ) -> Result<bool> {
        assert!(!self.is_waiting(rank), "rank {rank} ends a step and waits");
        let replica = &mut self.ranks[rank];
        replica.gradients.clone_from(gradients);
        replica.exposed = Duration::ZERO;
        replica.time += compute;
        replica.handle(Event::StepEnded(StepEnded { learning_rate, loss: 0.0, compute }));
        self.advance(rank)?;
        self.settle()?;
        Ok(!self.is_waiting(rank))
    }

    /// Whether this rank waits for others.
    pub fn is_waiting(&self, rank: usize) -> bool {
        self.ranks[rank].blocked.is_some()
    }

    /// One rank makes no more steps until the next [`Self::drain`], which it starts.
    ///
    /// # Errors
    /// What a model or a shard fails with.
    ///
    /// # Panics
    /// If the rank is still waiting.
    pub fn start_drain(&mut self, rank: usize) -> Result<()> {
        assert!(!self.is_waiting(rank), "rank {rank} ends and waits");
        self.ranks[rank].handle(Event::Drain);
        self.advance(rank)?;
        self.settle()
    }

    /// Lets time pass to the next moment that a shard waits for; false if none does.
    ///
    /// # Errors
    /// What a model or a shard fails with.
    pub fn pass_time(&mut self) -> Result<bool> {
        let Some(due) = self.shards.iter().filter_map(Shard::due).min() else {
            return Ok(false);
        };
        self.now = self.now.max(due);
        for server in 0..self.shards.len() {
            let replies = self.shards[server].tick(self.now)?;
            self.keep(server, replies);
        }
        self.settle()?;
        Ok(true)
    }

    /// What the audit of this rank's shard has seen.
    pub fn audit(&self, rank: usize) -> AuditReport {
        self.shards[rank].audit()
    }

    /// An epoch is over, with each rank's mean loss.
    ///
    /// # Errors
    /// What a model fails with.
    pub fn end_epoch(&mut self, losses: &[f64]) -> Result<()> {
        self.run(|rank| Event::EpochEnded { mean_loss: losses[rank] })
    }

    /// Brings every rank to the global parameters.
    ///
    /// # Errors
    /// What a model fails with.
    pub fn drain(&mut self) -> Result<()> {
        self.run(|_| Event::Drain)
    }

    /// What `rank` computes with.
    pub fn parameters(&self, rank: usize) -> &TensorList {
        &self.ranks[rank].parameters
    }

    /// The same, to change it behind the model's back.
    pub fn parameters_mut(&mut self, rank: usize) -> &mut TensorList {
        &mut self.ranks[rank].parameters
    }

    /// The model of `rank`.
    pub fn model(&self, rank: usize) -> &M {
        self.ranks[rank].model.model()
    }

    /// The model of `rank`, to break it.
    #[cfg(test)]
    pub(crate) fn model_mut(&mut self, rank: usize) -> &mut M {
        self.ranks[rank].model.model_mut()
    }

    /// The model of `rank`, out of the harness.
    #[cfg(test)]
    pub(crate) fn into_model(mut self, rank: usize) -> M {
        self.ranks.swap_remove(rank).model.into_model()
    }

    /// Time that `rank` spent blocked in the last step.
    pub fn exposed(&self, rank: usize) -> Duration {
        self.ranks[rank].exposed
    }

    /// OSP's servers, in order of ranks.
    #[cfg(test)]
    pub(crate) fn servers(&self) -> &[crate::server::osp::OspShard] {
        &self.staged.shards
    }

    /// Gives the event to every rank that has not drained already, those that wait for shards as
    /// soon as they can go on, and does what follows.
    fn run(&mut self, event: impl Fn(usize) -> Event) -> Result<()> {
        let has_drained = |replica: &Replica<M>| matches!(replica.blocked, Some(Action::Collect));
        let mut due: Vec<usize> =
            (0..self.ranks.len()).filter(|rank| !has_drained(&self.ranks[*rank])).collect();
        loop {
            let (ready, waiting): (Vec<usize>, Vec<usize>) =
                due.into_iter().partition(|rank| !self.is_waiting(*rank));
            for rank in &ready {
                let event = event(*rank);
                if let Event::StepEnded(ended) = event {
                    self.ranks[*rank].time += ended.compute;
                }
                self.ranks[*rank].exposed = Duration::ZERO;
                self.ranks[*rank].handle(event);
                self.advance(*rank)?;
            }
            self.settle()?;
            due = waiting;
            if due.is_empty() && self.ranks.iter().all(|replica| replica.blocked.is_none()) {
                break;
            }
            if !ready.is_empty() || self.pass_time()? {
                continue;
            }
            let is_stuck = |replica: &Replica<M>| {
                use Action::{AwaitReply, AwaitStage};
                matches!(replica.blocked, None | Some(AwaitReply { .. } | AwaitStage { .. }))
            };
            if let Some(rank) = self.ranks.iter().position(is_stuck) {
                let reason = format!("rank {rank} and others wait for each other");
                return Err(Error::Protocol { reason });
            }
            self.exchange()?;
            (0..self.ranks.len()).try_for_each(|rank| self.advance(rank))?;
        }
        let starts = self.ranks[0].starts.clone();
        for replica in &mut self.ranks {
            assert_eq!(std::mem::take(&mut replica.starts), starts, "one order on all ranks");
            replica.gradients.clear();
        }
        Ok(())
    }

    /// Lets all go on who can, until none can without an exchange or a later time.
    fn settle(&mut self) -> Result<()> {
        let mut has_moved = true;
        while has_moved {
            has_moved = self.deliver_replies();
            if has_moved {
                (0..self.ranks.len()).try_for_each(|rank| self.advance(rank))?;
            }
            for rank in 0..self.ranks.len() {
                let Some(Action::AwaitReply { server }) = self.ranks[rank].blocked else {
                    continue;
                };
                if !self.ranks[rank].replies[server as usize].is_empty() {
                    self.ranks[rank].blocked = None;
                    self.take_reply(rank, server);
                    self.advance(rank)?;
                    has_moved = true;
                }
            }
        }
        Ok(())
    }

    /// Gives ranks the servers' replies that they wait for, if there are any.
    fn deliver_replies(&mut self) -> bool {
        let mut is_any = false;
        for (rank, replica) in (0..).zip(&mut self.ranks) {
            if let Some(event) = self.staged.reply(rank, replica.blocked.as_ref()) {
                replica.blocked = None;
                replica.handle(event);
                is_any = true;
            }
        }
        is_any
    }

    /// Does what `rank` asks for, up to what needs the others.
    fn advance(&mut self, rank: usize) -> Result<()> {
        while self.ranks[rank].blocked.is_none() {
            let Some(action) = self.ranks[rank].model.poll_action() else { break };
            match action {
                Action::AwaitReply { server }
                    if !self.ranks[rank].replies[server as usize].is_empty() =>
                {
                    self.take_reply(rank, server);
                }
                Action::Fail(error) => return Err(error),
                Action::Push { server, message, .. } => {
                    self.now = self.now.max(self.ranks[rank].time);
                    let server = server as usize;
                    let handled =
                        self.shards[server].handle_message(rank as u32, message, self.now)?;
                    self.keep(server, handled.replies);
                }
                Action::PushStage { server, head, body, .. } => {
                    self.staged.push(rank as u32, server, &head, body)?;
                }
                Action::EndStages { server, head } => {
                    self.staged.push(rank as u32, server, &head, Vec::new())?;
                }
                Action::StartReduce { id, data, .. } => {
                    let count = self.ranks.len();
                    self.ranks[rank].starts.push(id);
                    let parts = self.started.entry(id).or_insert_with(|| vec![None; count]);
                    assert!(parts[rank].replace(data).is_none(), "reduction {id} started twice");
                }
                action => self.ranks[rank].blocked = Some(action),
            }
        }
        Ok(())
    }

    fn keep(&mut self, server: usize, replies: Vec<Reply>) {
        for (worker, message) in replies {
            self.ranks[worker as usize].replies[server].push_back(message);
        }
    }

    fn take_reply(&mut self, rank: usize, server: u32) {
        let replica = &mut self.ranks[rank];
        if let Some(message) = replica.replies[server as usize].pop_front() {
            replica.exposed += self.now.saturating_sub(replica.time);
            replica.time = replica.time.max(self.now);
            replica.handle(Event::Replied { server, message });
        }
    }

    /// Does what all ranks wait for.
    fn exchange(&mut self) -> Result<()> {
        let blocked = |replica: &mut Replica<M>| replica.blocked.take().expect("all wait alike");
        let actions: Vec<Action> = self.ranks.iter_mut().map(blocked).collect();
        match &actions[0] {
            Action::Collect if !self.staged.shards.is_empty() => {
                let event = self.staged.collect()?;
                self.deliver(|_| event.clone());
            }
            Action::Collect => {
                if !self.shards.iter().all(Shard::all_done) {
                    let reason = "shards are collected while workers push".to_owned();
                    return Err(Error::Protocol { reason });
                }
                let parameters: Vec<f32> =
                    self.shards.iter().flat_map(Shard::parameters).copied().collect();
                assert_eq!(parameters.len(), self.layout.len());
                let versions: Vec<u64> = self.shards.iter().map(Shard::version).collect();
                for (shard, version) in self.shards.iter_mut().zip(&versions) {
                    (0..self.ranks.len() as u32)
                        .try_for_each(|rank| shard.check_collected(rank, *version))?;
                    shard.reopen()?;
                }
                self.deliver(|_| Event::Collected {
                    parameters: parameters.clone(),
                    versions: versions.clone(),
                });
            }
            Action::Gather { .. } => {
                let words = |action| match action {
                    Action::Gather { words } => words,
                    action => panic!("ranks ask for different exchanges: {action:?}"),
                };
                let words: Vec<u64> = actions.into_iter().flat_map(words).collect();
                self.deliver(|_| Event::Gathered { words: words.clone() });
            }
            Action::Reduce { id: first, .. } => {
                let first = *first;
                let part = |action| match action {
                    Action::Reduce { id, data } if id == first => data,
                    action => panic!("ranks ask for different exchanges: {action:?}"),
                };
                let parts: Vec<Vec<f32>> = actions.into_iter().map(part).collect();
                let elapsed = self.cost(parts[0].len());
                self.reduced(first, parts, Timing { elapsed, blocked: elapsed });
            }
            Action::Wait { id } => {
                let parts = self.started.remove(id).expect("a started reduction");
                let parts: Option<Vec<Vec<f32>>> = parts.into_iter().collect();
                let parts = parts.expect("every rank started it");
                let cost = self.cost(parts[0].len());
                let blocked = cost.saturating_sub(self.costs.compute);
                let elapsed = cost.max(self.costs.compute);
                self.reduced(*id, parts, Timing { elapsed, blocked });
            }
            action => panic!("not an exchange: {action:?}"),
        }
        Ok(())
    }

    /// Time that a ring takes to reduce `len` elements.
    fn cost(&self, len: usize) -> Duration {
        let ranks = self.ranks.len() as f64;
        let bytes = (len * ELEMENT_BYTES) as f64 * 2.0 * (ranks - 1.0) / ranks;
        if self.costs.bandwidth > 0.0 {
            Duration::from_secs_f64(bytes / self.costs.bandwidth)
        } else {
            Duration::ZERO
        }
    }

    fn reduced(&mut self, id: ReduceId, parts: Vec<Vec<f32>>, timing: Timing) {
        let count = parts.len() as f32;
        let mut parts = parts.into_iter();
        let mut data = parts.next().expect("at least one rank");
        for part in parts {
            assert_eq!(data.len(), part.len(), "ranks reduce equally many elements");
            data.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        }
        data.iter_mut().for_each(|sum| *sum /= count);
        self.ranks.iter_mut().for_each(|replica| replica.exposed += timing.blocked);
        self.deliver(|_| Event::Reduced { id, data: data.clone(), timing });
    }

    fn deliver(&mut self, event: impl Fn(usize) -> Event) {
        for (rank, replica) in self.ranks.iter_mut().enumerate() {
            replica.handle(event(rank));
        }
    }
}

impl<M: SyncModel> Replica<M> {
    fn handle(&mut self, event: Event) {
        let mut parameters: Vec<&mut [f32]> =
            self.parameters.iter_mut().map(Vec::as_mut_slice).collect();
        let gradients: Vec<&[f32]> = self.gradients.iter().map(Vec::as_slice).collect();
        let mut tensors = Tensors { parameters: &mut parameters, gradients: &gradients };
        self.model.handle_event(event, &mut tensors);
    }
}

fn specs(parameters: &TensorList) -> Vec<TensorSpec> {
    let spec = |(index, tensor): (usize, &Vec<f32>)| {
        TensorSpec::new(format!("tensor {index}"), tensor.len())
    };
    parameters.iter().enumerate().map(spec).collect()
}

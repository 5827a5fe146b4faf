//! The simulation: who does what when.
//!
//! Owns virtual time and each rank's way through its steps. What the models ask for is done in
//! `exchange.rs`. Called by `syncline simulate` and by tests.

use std::collections::BTreeMap;

use super::cards::Cards;
use super::compute::Compute;
use super::error::SimulationError;
use super::exchange::Finished;
use super::lanes::Lanes;
use super::mail::Message;
use super::meeting::{Key, Meetings};
use super::network::Network;
use super::outcome::{Outcome, StepDone};
use super::queue::Queue;
use super::rank::{Phase, Rank, duration};
use crate::config::{ModelKind, SessionConfig};
use crate::error::{Error, Result as ModelResult};
use crate::layout::{Layout, TensorSpec};
use crate::lockstep::TensorList;
use crate::model::{self, Event, Job, Memory, ReduceId, StepEnded, SyncModel};
use crate::server::osp::OspShard;
use crate::server::shard::Shard;

/// What is simulated, apart from the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What moving costs.
    pub network: Network,
    /// What computing costs.
    pub compute: Compute,
    /// Epochs of each rank, at least 1.
    pub epochs: u64,
    /// Steps of each, at least 1.
    pub steps_per_epoch: u64,
    /// First epochs that are not measured; fewer than all.
    pub warmup_epochs: u64,
    /// Whether all ranks come together at the end, and have the global parameters then.
    pub is_drained: bool,
}

/// Computes what the ranks would, and hears what they did.
pub trait Trainer {
    /// Writes the gradients of a step of `rank`, at these parameters, and returns its loss. Their
    /// lengths are those of the parameters. Steps are counted from 0; each rank makes them in
    /// order. A rank that only serves makes none, here and below.
    fn gradients(
        &mut self,
        rank: u32,
        step: u64,
        parameters: &TensorList,
        gradients: &mut TensorList,
    ) -> f32;

    /// The rate of a step, the same on every rank.
    fn learning_rate(&self, step: u64) -> f32;

    /// A rank may go on after a step.
    fn step_ended(&mut self, _step: &StepDone) {}

    /// An epoch of `rank`, counted from 0, is over at this virtual time in seconds, with these
    /// parameters.
    fn epoch_ended(&mut self, _rank: u32, _epoch: u64, _now_s: f64, _parameters: &TensorList) {}
}

/// All ranks of one job, in virtual time.
#[derive(Debug)]
pub struct Simulation<M = Box<dyn SyncModel>> {
    pub(super) settings: Settings,
    pub(super) ranks: Vec<Rank<M>>,
    pub(super) layout: Layout,
    pub(super) shards: Vec<Shard>,
    /// Of OSP on servers only, in order of ranks.
    pub(super) servers: Vec<OspShard>,
    /// The rank that only serves, if there is one.
    server_only: Option<u32>,
    pub(super) now: f64,
    pub(super) queue: Queue<Happening>,
    pub(super) cards: Cards,
    pub(super) lanes: Lanes<Key>,
    pub(super) meetings: Meetings,
    /// Started reductions that are over, until every rank has asked for them.
    pub(super) finished: BTreeMap<ReduceId, Finished>,
    /// The collection that all ranks wait for.
    pub(super) collection: Option<Key>,
}

/// What may happen at a time of its own.
#[derive(Debug)]
pub(super) enum Happening {
    /// A rank's computation ends.
    Computed(usize),
    /// The first byte of a message gets to its receiver.
    Reached(Message),
    /// The last byte was taken in.
    Received(Message),
    /// The backward pass of a rank has finished this tensor.
    Ready(usize, usize),
    /// A shard wanted to be called.
    ShardDue(usize),
}

/// No model asks for as much in one step.
const ACTIONS_MAX: u64 = 1 << 20;

impl Simulation {
    /// `world_size` ranks that start from `parameters`, with the model of `config`.
    ///
    /// # Errors
    /// [`SimulationError::Setting`] if the settings cannot work.
    pub fn new(
        config: &SessionConfig,
        world_size: u32,
        parameters: &TensorList,
        settings: Settings,
    ) -> Result<Self, SimulationError> {
        let check = config.validate().and_then(|()| config.model.check_world(world_size));
        check.map_err(|error| SimulationError::Setting { reason: error.to_string() })?;
        let granularity = config.model.granularity();
        let layout = Layout::new(&specs(parameters), granularity);
        Self::with_models(config, world_size, parameters, settings, |job, tensors| {
            let memory = Memory::new(&config.optimiser, layout.len());
            model::build(config, job, layout.clone(), tensors, memory)
        })
    }
}

impl<M: SyncModel> Simulation<M> {
    /// As [`Simulation::new`], with models that `build` makes from the job and the parameters.
    ///
    /// # Errors
    /// [`SimulationError::Setting`] if the settings cannot work.
    pub fn with_models(
        config: &SessionConfig,
        world_size: u32,
        parameters: &TensorList,
        settings: Settings,
        build: impl Fn(Job, &[&mut [f32]]) -> M,
    ) -> Result<Self, SimulationError> {
        settings.validate(world_size)?;
        let layout = Layout::new(&specs(parameters), config.model.granularity());
        let flat = parameters.concat();
        let count = world_size as usize;
        let shard = |rank: u32| {
            let range = layout.shard(rank as usize, count);
            let memory = Memory::new(&config.optimiser, range.len());
            Shard::new(rank, world_size, config, flat[range].to_vec(), memory)
        };
        let mut servers = Vec::new();
        if let ModelKind::OspServer(server) = config.model {
            let memory = Memory::new(&config.optimiser, layout.len());
            let job = |rank| Job::new(rank, world_size, config);
            let server = |rank| OspShard::new(job(rank), server, &layout, &flat, &memory);
            servers.extend((0..world_size).filter_map(server));
        }
        let rank = |rank| {
            let mut parameters = parameters.clone();
            let tensors: Vec<&mut [f32]> = parameters.iter_mut().map(Vec::as_mut_slice).collect();
            let model = build(Job::new(rank, world_size, config), &tensors);
            Rank::new(model, parameters)
        };
        let shards = (0..world_size).map(shard).collect::<ModelResult<_>>();
        let setting = |error: Error| SimulationError::Setting { reason: error.to_string() };
        Ok(Self {
            settings,
            ranks: (0..world_size).map(rank).collect(),
            shards: shards.map_err(setting)?,
            servers,
            server_only: config.model.server_only_rank(),
            layout,
            now: 0.0,
            queue: Queue::new(),
            cards: Cards::new(count),
            lanes: Lanes::new(),
            meetings: Meetings::new(count),
            finished: BTreeMap::new(),
            collection: None,
        })
    }

    /// Plays all epochs to their end.
    ///
    /// # Errors
    /// What a model fails with; [`SimulationError::Deadlock`] if ranks wait for ever.
    pub fn run(mut self, trainer: &mut dyn Trainer) -> Result<(Outcome, Self), SimulationError> {
        (0..self.ranks.len()).for_each(|rank| self.begin_step(rank, trainer));
        let mut events = 0;
        loop {
            let end = self.lanes.next_end();
            let time = self.queue.next_time();
            // Of equal times, collectives come first: what is over is not waited for.
            if let Some(end) = end.filter(|end| time.is_none_or(|time| *end <= time)) {
                self.now = end;
                self.finish_collective(trainer)?;
            } else if let Some((time, happening)) = self.queue.pop() {
                self.now = time;
                self.happen(happening, trainer)?;
            } else {
                break;
            }
            events += 1;
        }
        if self.ranks.iter().any(|rank| rank.phase != Phase::Over) {
            let waiting = self.waiting();
            return Err(SimulationError::Deadlock { at_s: self.now, waiting });
        }
        let trained = (0..).zip(&self.ranks).filter(|(index, _)| self.trains(*index));
        let ranks = trained.map(|(_, rank)| rank.outcome).collect();
        Ok((Outcome { ranks, end_s: self.now, events }, self))
    }

    /// What `rank` computes with.
    pub fn parameters(&self, rank: usize) -> &TensorList {
        &self.ranks[rank].parameters
    }

    /// Whether this rank trains.
    fn trains(&self, index: usize) -> bool {
        self.server_only.is_none_or(|server| server as usize != index)
    }

    /// The model of `rank`.
    pub fn model(&self, rank: usize) -> &M {
        &self.ranks[rank].model
    }

    fn begin_step(&mut self, index: usize, trainer: &mut dyn Trainer) {
        let trains = self.trains(index);
        let rank = &mut self.ranks[index];
        let warmup_steps = self.settings.warmup_epochs * self.settings.steps_per_epoch;
        if rank.step >= warmup_steps && rank.measured_since.is_none() {
            rank.measured_since = Some(self.now);
        }
        rank.phase = Phase::Computing;
        rank.exposed_s = 0.0;
        rank.compute_s = 0.0;
        if trains {
            rank.compute_s = self.settings.compute.seconds(index as u32, rank.step);
        }
        rank.began_s = self.now;
        if rank.model.overlaps() {
            self.announce(index, trainer);
        }
        let rank = &self.ranks[index];
        self.queue.push(self.now + rank.compute_s, Happening::Computed(index));
    }

    /// Computes the gradients of the step that begins, whose parameters do not change before its
    /// end, and says when each will be there: the last tensor's first, in the last two thirds of
    /// the computation, each after a share of them that is its share of all elements.
    fn announce(&mut self, index: usize, trainer: &mut dyn Trainer) {
        let rank = &mut self.ranks[index];
        rank.loss = rank.compute_gradients(index as u32, trainer);
        let (begin, elements) = (self.now + rank.compute_s / 3.0, self.layout.len().max(1) as f64);
        let mut done = 0;
        for (tensor, gradient) in rank.gradients.iter().enumerate().rev() {
            done += gradient.len();
            let time = begin + rank.compute_s * 2.0 / 3.0 * done as f64 / elements;
            // Not after the end of the step, which rounding would allow.
            self.queue.push(time.min(self.now + rank.compute_s), Happening::Ready(index, tensor));
        }
    }

    fn happen(
        &mut self,
        happening: Happening,
        trainer: &mut dyn Trainer,
    ) -> Result<(), SimulationError> {
        match happening {
            Happening::Computed(index) => {
                self.end_step(index, trainer);
                self.advance(index, trainer)
            }
            Happening::Reached(message) => {
                let end = self.cards.receive(message.to, message.seconds, self.now);
                self.queue.push(end, Happening::Received(message));
                Ok(())
            }
            Happening::Received(message) => self.receive(message, trainer),
            Happening::Ready(index, tensor) => {
                let rank = &mut self.ranks[index];
                let compute = duration(self.now - rank.began_s);
                rank.handle_ready(tensor, compute);
                self.advance(index, trainer)
            }
            Happening::ShardDue(server) => self.tick(server),
        }
    }

    /// Tells the model of `index` that the computation of a step is over.
    fn end_step(&mut self, index: usize, trainer: &mut dyn Trainer) {
        let trains = self.trains(index);
        let rank = &mut self.ranks[index];
        if !rank.model.overlaps() && trains {
            rank.loss = rank.compute_gradients(index as u32, trainer);
        }
        let (loss, learning_rate) = (rank.loss, trainer.learning_rate(rank.step));
        rank.losses += f64::from(loss);
        rank.phase = Phase::EndingStep;
        rank.actions = 0;
        let compute = duration(rank.compute_s);
        rank.handle(Event::StepEnded(StepEnded { learning_rate, loss, compute }));
    }

    /// Does what `index` asks for, until it is blocked, computes, or is over.
    pub(super) fn advance(
        &mut self,
        index: usize,
        trainer: &mut dyn Trainer,
    ) -> Result<(), SimulationError> {
        loop {
            let rank = &mut self.ranks[index];
            if rank.blocked.is_some() {
                return Ok(());
            }
            if let Some(action) = rank.model.poll_action() {
                rank.actions += 1;
                if rank.actions > ACTIONS_MAX {
                    let (rank, actions) = (index as u32, rank.actions);
                    return Err(SimulationError::Endless { rank, actions });
                }
                self.act(index, action)?;
            } else if !self.go_on(index, trainer) {
                return Ok(());
            }
        }
    }

    /// The model has nothing left to ask for. Whether it got an event that may change that.
    fn go_on(&mut self, index: usize, trainer: &mut dyn Trainer) -> bool {
        let Settings { epochs, steps_per_epoch, is_drained, .. } = self.settings;
        let now_s = self.now;
        let trains = self.trains(index);
        let rank = &mut self.ranks[index];
        let id = index as u32;
        match rank.phase {
            Phase::Computing | Phase::Over => false,
            Phase::Draining => {
                rank.phase = Phase::Over;
                false
            }
            Phase::EndingEpoch => {
                let epoch = rank.step / steps_per_epoch - 1;
                if trains {
                    trainer.epoch_ended(id, epoch, now_s, &rank.parameters);
                }
                if rank.step < epochs * steps_per_epoch {
                    self.begin_step(index, trainer);
                    return false;
                }
                rank.outcome.span_s = now_s - rank.measured_since.unwrap_or(now_s);
                rank.phase = if is_drained { Phase::Draining } else { Phase::Over };
                if is_drained {
                    rank.handle(Event::Drain);
                }
                is_drained
            }
            Phase::EndingStep => {
                let (step, loss) = (rank.step, rank.loss);
                let (compute_s, exposed_s) = (rank.compute_s, rank.exposed_s);
                rank.count_step();
                let done = StepDone { rank: id, step, now_s, compute_s, exposed_s, loss };
                if trains {
                    trainer.step_ended(&done);
                }
                if !rank.step.is_multiple_of(steps_per_epoch) {
                    self.begin_step(index, trainer);
                    return false;
                }
                let mean_loss = std::mem::take(&mut rank.losses) / steps_per_epoch as f64;
                rank.phase = Phase::EndingEpoch;
                rank.handle(Event::EpochEnded { mean_loss });
                true
            }
        }
    }
}

impl Settings {
    fn validate(&self, world_size: u32) -> Result<(), SimulationError> {
        self.network.validate()?;
        self.compute.validate(world_size)?;
        let Self { epochs, steps_per_epoch, warmup_epochs, .. } = *self;
        let reason = if world_size == 0 {
            "there is at least one rank".to_owned()
        } else if warmup_epochs >= epochs {
            format!("of {epochs} epochs, fewer than {warmup_epochs} are not measured")
        } else if steps_per_epoch == 0 || epochs.checked_mul(steps_per_epoch).is_none() {
            format!("{epochs} epochs of {steps_per_epoch} steps are none, or too many")
        } else {
            return Ok(());
        };
        Err(SimulationError::Setting { reason })
    }
}

fn specs(parameters: &TensorList) -> Vec<TensorSpec> {
    let spec = |(index, tensor): (usize, &Vec<f32>)| {
        TensorSpec::new(format!("tensor {index}"), tensor.len())
    };
    parameters.iter().enumerate().map(spec).collect()
}

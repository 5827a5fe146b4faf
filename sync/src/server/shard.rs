//! One shard of the parameter server: parameters and optimiser's memory of a part of the flat
//! space.
//!
//! Owns the arithmetic: what a push changes, and what is in a reply. When either happens is up to
//! its rule (`rule`), and an audit checks the rule at each turn (`audit`). Never communicates,
//! waits or reads a clock: a message goes in, replies come out. Called by the server's thread, and
//! by the lockstep harness.

use std::time::Duration;

use crate::config::SessionConfig;
use crate::error::{Error, Result};
use crate::model::Memory;
use crate::optimiser::{Moments, Optimiser, StepSize};

use super::audit::{Audit, AuditReport, Promise};
use super::config::Rule;
use super::rule::{self, Keeper, Order};
use super::wire::{self, Header};

/// A shard, and what its workers are about.
#[derive(Debug)]
pub struct Shard {
    rank: u32,
    optimiser: Optimiser,
    parameters: Vec<f32>,
    /// Of this part of the parameters, and the updates before this shard's first.
    memory: Memory,
    /// Updates made.
    version: u64,
    keeper: Box<dyn Keeper>,
    audit: Audit,
    /// What the keeper wants done.
    orders: Vec<Order>,
    /// Per worker, the push that was not answered yet.
    held: Vec<Option<Push>>,
    /// Per worker, whether it pushes no more.
    done: Vec<bool>,
    /// Room for one gradient.
    gradient: Vec<f32>,
    group: Group,
}

/// A push, from its arrival until it is answered.
#[derive(Debug)]
struct Push {
    message: Vec<u32>,
    clock: u64,
    version: u64,
    learning_rate: f32,
    staleness: u64,
}

/// Gradients that make one update together.
#[derive(Debug, Default)]
struct Group {
    /// Of the gradients times their weights; empty before the first that counts.
    sum: Vec<f32>,
    /// Of the learning rates times the weights of their gradients.
    rates: f64,
    weights: f64,
    /// Workers and clocks.
    members: Vec<(usize, u64)>,
}

/// A reply, and to whom.
pub type Reply = (u32, Vec<u32>);

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled {
    /// What the message was.
    pub outcome: Outcome,
    /// What to send now, in this order.
    pub replies: Vec<Reply>,
}

/// What a message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its worker is done.
    Done,
    /// A gradient; the reply to it may come later.
    Pushed,
    /// The shard's rank gives up: serve no more.
    Stop,
}

impl Shard {
    /// A shard on `rank`, for as many workers as there are ranks, with the rule of the model of
    /// `config`; that of ASP if it has no server.
    ///
    /// # Errors
    /// [`Error::Config`] if the settings cannot work.
    ///
    /// # Panics
    /// If the memory is not that of as many parameters.
    pub fn new(
        rank: u32,
        world_size: u32,
        config: &SessionConfig,
        parameters: Vec<f32>,
        memory: Memory,
    ) -> Result<Self> {
        let rule = config.model.server().map_or(Rule::Asp, |server| server.rule);
        let workers = world_size as usize;
        let keeper = rule::build(rule, rank, workers, config.batch)?;
        let audit = Audit::new(Promise::of(rule, workers), workers);
        Ok(Self::with_keeper(rank, config.optimiser, parameters, memory, (keeper, audit), workers))
    }

    /// With a keeper and an audit that need not belong together.
    fn with_keeper(
        rank: u32,
        optimiser: Optimiser,
        parameters: Vec<f32>,
        memory: Memory,
        (keeper, audit): (Box<dyn Keeper>, Audit),
        workers: usize,
    ) -> Self {
        assert_eq!(parameters.len(), memory.moments.first.len(), "the moments of this shard");
        Self {
            rank,
            optimiser,
            memory,
            version: 0,
            keeper,
            audit,
            orders: Vec::new(),
            held: (0..workers).map(|_| None).collect(),
            done: vec![false; workers],
            gradient: Vec::with_capacity(parameters.len()),
            group: Group::default(),
            parameters,
        }
    }

    /// Takes in `message`, which came from `worker`, `now` after any fixed moment.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it is no push or done, of another rank, of another clock or version
    /// than can be, or comes after a done or before the last push was answered; the parameters are
    /// unchanged then. The same if the shard's rule breaks its promise: the shard is of no use
    /// then.
    pub fn handle_message(
        &mut self,
        worker: u32,
        message: Vec<u32>,
        now: Duration,
    ) -> Result<Handled> {
        let broken = |what: &str| Err(Error::Protocol { reason: format!("rank {worker} {what}") });
        let (header, _) = wire::decode(&message, self.parameters.len())?;
        let index = worker as usize;
        let is_done = self.done.get(index).copied().unwrap_or(true);
        let outcome = match header {
            Header::Stop if worker == self.rank => Outcome::Stop,
            Header::Stop => return broken("told another rank's server to stop"),
            Header::Reply { .. } => return broken("sent a reply to a server"),
            Header::Done { worker: sender } | Header::Push { worker: sender, .. }
                if sender != worker =>
            {
                return broken(&format!("sent a message in the name of rank {sender}"));
            }
            _ if is_done => return broken("sent a message after it was done"),
            Header::Done { .. } => {
                self.audit.done(index)?;
                self.done[index] = true;
                self.keeper.done(index, now, &mut self.orders)?;
                Outcome::Done
            }
            Header::Push { clock, version, learning_rate, sample_ns, .. } => {
                self.audit.pushed(index, clock, version)?;
                let staleness = self.version - version;
                self.held[index] = Some(Push { message, clock, version, learning_rate, staleness });
                self.keeper.note_speed(index, sample_ns);
                self.keeper.push(index, now, &mut self.orders)?;
                Outcome::Pushed
            }
        };
        Ok(Handled { outcome, replies: self.obey()? })
    }

    /// When to call [`Self::tick`], if no message comes before.
    pub fn due(&self) -> Option<Duration> {
        self.keeper.due()
    }

    /// It is `now`: what is to be sent.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the shard's rule breaks its promise.
    pub fn tick(&mut self, now: Duration) -> Result<Vec<Reply>> {
        self.keeper.tick(now, &mut self.orders);
        self.obey()
    }

    /// Does what the keeper wants.
    fn obey(&mut self) -> Result<Vec<Reply>> {
        let mut orders = std::mem::take(&mut self.orders);
        let mut replies = Vec::new();
        for order in orders.drain(..) {
            match order {
                Order::Apply(worker) => self.apply(worker)?,
                Order::Close { divisor } => self.close(divisor)?,
                Order::Gather { worker, weight } => self.gather(worker, weight)?,
                Order::Reply(worker) => replies.push((worker as u32, self.reply(worker)?)),
            }
        }
        self.orders = orders;
        Ok(replies)
    }

    fn apply(&mut self, worker: usize) -> Result<()> {
        let push = held(&mut self.held, worker)?;
        // An update since the push came, as under R2SP, makes it staler.
        push.staleness = self.version - push.version;
        let (clock, learning_rate) = (push.clock, push.learning_rate);
        let (_, values) = wire::decode(&push.message, self.parameters.len())?;
        self.gradient.clear();
        self.gradient.extend(values);
        self.audit.updated(&[(worker, clock)], self.version + 1)?;
        self.step(learning_rate);
        Ok(())
    }

    fn gather(&mut self, worker: usize, weight: f64) -> Result<()> {
        let push = held(&mut self.held, worker)?;
        let group = &mut self.group;
        group.members.push((worker, push.clock));
        if weight == 0.0 {
            // Left out, not multiplied: it may hold what is no number.
            return Ok(());
        }
        let (_, values) = wire::decode(&push.message, self.parameters.len())?;
        group.sum.resize(self.parameters.len(), 0.0);
        group.sum.iter_mut().zip(values).for_each(|(sum, g)| *sum += weight as f32 * g);
        group.rates += weight * f64::from(push.learning_rate);
        group.weights += weight;
        Ok(())
    }

    /// An update with the mean of the group's learning rates, by weight.
    fn close(&mut self, divisor: Option<f64>) -> Result<()> {
        self.audit.updated(&self.group.members, self.version + 1)?;
        if let Some(divisor) = divisor {
            let group = &self.group;
            let learning_rate = (group.rates / group.weights) as f32;
            self.gradient.clear();
            self.gradient.extend(group.sum.iter().map(|sum| sum / divisor as f32));
            self.step(learning_rate);
        } else {
            // It counts, so that all shards count alike.
            self.version += 1;
        }
        let Group { sum, rates, weights, members } = &mut self.group;
        sum.fill(0.0);
        (*rates, *weights) = (0.0, 0.0);
        members.clear();
        Ok(())
    }

    /// An update with what is in `gradient`.
    fn step(&mut self, learning_rate: f32) {
        let size = StepSize::new(learning_rate, self.updates());
        let Self { parameters, memory, gradient, .. } = self;
        self.optimiser.step(parameters, memory.moments.all_mut(), gradient, size);
        self.version += 1;
    }

    fn reply(&mut self, worker: usize) -> Result<Vec<u32>> {
        held(&mut self.held, worker)?;
        let Some(Push { mut message, clock, staleness, .. }) = self.held[worker].take() else {
            unreachable!("it is held");
        };
        self.audit.replied(worker, clock, self.version)?;
        let staleness = u32::try_from(staleness).unwrap_or(u32::MAX);
        let (server, version, batch) = (self.rank, self.version, self.keeper.batch(worker));
        let header = Header::Reply { server, clock, version, staleness, batch };
        wire::encode(header, self.parameters.iter().copied(), &mut message);
        Ok(message)
    }

    /// Lets all workers push again.
    ///
    /// # Errors
    /// [`Error::Protocol`] if some may still push, or anything was left behind.
    pub fn reopen(&mut self) -> Result<()> {
        self.audit.reopened()?;
        self.done.fill(false);
        self.keeper.reopen();
        Ok(())
    }

    /// Makes sure that all is applied and that `worker` ends with the last version.
    ///
    /// # Errors
    /// [`Error::Protocol`] if not.
    pub fn check_collected(&self, worker: u32, version: u64) -> Result<()> {
        self.audit.collected(worker as usize, version)
    }

    /// Whether all workers are done.
    pub fn all_done(&self) -> bool {
        self.done.iter().all(|done| *done)
    }

    /// Whether this worker is done.
    pub fn is_done(&self, worker: u32) -> bool {
        self.done[worker as usize]
    }

    /// The parameters.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// What the optimiser remembers of them.
    pub fn moments(&self) -> &Moments {
        &self.memory.moments
    }

    /// Updates of these parameters so far, those before this shard's first included. Groups of GBA
    /// in which nothing counted are included too.
    pub fn updates(&self) -> u64 {
        self.memory.updates + self.version
    }

    /// How many updates were made since the start.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What the audit has seen.
    pub fn audit(&self) -> AuditReport {
        self.audit.report()
    }
}

fn held(held: &mut [Option<Push>], worker: usize) -> Result<&mut Push> {
    let none = || Error::Protocol { reason: format!("no push of rank {worker} is held") };
    held.get_mut(worker).and_then(Option::as_mut).ok_or_else(none)
}

#[cfg(test)]
mod tests;

//! Switching between sync models while a job runs: drain, agree, commit, check.
//!
//! Owns the order of it. Never decides when: that is a policy's (`crate::policy`) or the trainer's.
//! Called by the session.
//!
//! ```text
//! drain    what is under way ends, is applied once, all replicas are equal
//! agree    all ranks name the same target, or none switches        one exchange of 8 bytes a rank
//! commit   the optimiser's memory goes from the old model (or its servers) to the next
//! check    parameters and memory have the same bits on every rank  one exchange of 16 bytes a rank
//! ```
//!
//! The drain comes first: a server may hold a rank until another, which is to switch already, has
//! said that it pushes no more.
//!
//! Source: Sync-Switch (arXiv 2104.08364) switches by ending and restarting the job; this one does
//! it in the running processes, so that it costs what is in flight and the exchanges above.

use std::time::Duration;

use super::agree::agree_on;
use super::{Session, Tensors};
use syncline_comm::Communicator;

use crate::clock::Moment;
use crate::config::{ModelKind, SessionConfig};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::model::check::{self, Fingerprint};
use crate::model::{self, Event, Job, Memory};
use crate::optimiser::Optimiser;

/// What to switch to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switch {
    /// The model of the steps that follow.
    pub model: ModelKind,
    /// The optimiser's settings from now on, if they change: its kind must stay.
    pub optimiser: Option<Optimiser>,
}

impl From<ModelKind> for Switch {
    fn from(model: ModelKind) -> Self {
        Self { model, optimiser: None }
    }
}

fn flat(parameters: &[&mut [f32]]) -> Vec<f32> {
    parameters.iter().flat_map(|tensor| tensor.iter().copied()).collect()
}

/// What a switch cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchReport {
    /// The model before.
    pub from: &'static str,
    /// The model now.
    pub to: &'static str,
    /// The whole call.
    pub total: Duration,
    /// Until what was under way was over and applied, which waits for the slowest rank.
    pub drain: Duration,
    /// From then until all had agreed.
    pub agree: Duration,
    /// Updates of the parameters so far; equal on all ranks.
    pub updates: u64,
}

/// The state of a job at rest: parameters, and what the optimiser remembers.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    parameters: Vec<f32>,
    memory: Memory,
}

impl Snapshot {
    /// Whether every number in it is finite.
    pub fn is_finite(&self) -> bool {
        let Memory { moments, .. } = &self.memory;
        let mut all = [&self.parameters, &moments.first, &moments.second].into_iter().flatten();
        all.all(|number| number.is_finite())
    }

    /// Updates of the parameters before it.
    pub fn updates(&self) -> u64 {
        self.memory.updates
    }

    /// Makes it that of rank `root` of `communicator`, on all of its ranks. Collective; all of them
    /// have a snapshot of sessions with the same tensors and optimiser.
    ///
    /// # Errors
    /// Communication failed.
    pub fn broadcast(&mut self, communicator: &Communicator, root: u32) -> Result<()> {
        let Memory { moments, updates } = &mut self.memory;
        communicator.broadcast(&mut self.parameters, root)?;
        communicator.broadcast(&mut moments.first, root)?;
        if !moments.second.is_empty() {
            communicator.broadcast(&mut moments.second, root)?;
        }
        communicator.broadcast(std::slice::from_mut(updates), root)?;
        Ok(())
    }
}

impl Session {
    /// Goes on with another model, from the same parameters and with the optimiser's memory kept:
    /// no gradient is lost or applied twice. `parameters` are the global ones afterwards, the same
    /// bits on every rank. Collective; steps may follow at once.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::InvalidArgument`] before anything is sent; the former also
    /// if a rank trains under one model and only serves under the other.
    /// [`Error::JobMismatch`] on every rank if they name different targets,
    /// [`Error::ReplicasDiffer`] if the result differs; the session is finished then, as after any
    /// error of communication.
    pub fn switch_to(
        &mut self,
        target: impl Into<Switch>,
        parameters: &mut [&mut [f32]],
    ) -> Result<SwitchReport> {
        self.check_tensors(parameters)?;
        self.check_between_steps()?;
        let config = self.config_for(target.into())?;
        let outcome = self.commit(&config, None, parameters);
        self.note(outcome)
    }

    /// Keeps the state as it is, with everything under way applied. Costs a drain, and starts the
    /// model in force anew, as a switch to it does. Collective; steps may follow at once.
    ///
    /// # Errors
    /// As [`Self::switch_to`].
    pub fn snapshot(&mut self, parameters: &mut [&mut [f32]]) -> Result<Snapshot> {
        self.check_tensors(parameters)?;
        self.check_between_steps()?;
        let outcome = self.rest(parameters).and_then(|memory| {
            let flat = flat(parameters);
            let snapshot = Snapshot { parameters: flat, memory: memory.clone() };
            let config = self.config;
            self.start(&config, parameters, memory)?;
            Ok(snapshot)
        });
        self.note(outcome)
    }

    /// Goes back to a snapshot, of this session or of another with the same tensors and kind of
    /// optimiser, and on from it with `target`. What is under way ends and counts for nothing.
    /// Collective: all ranks name the same target and have the same snapshot.
    ///
    /// # Errors
    /// As [`Self::switch_to`]; [`Error::InvalidArgument`] for a snapshot of other tensors.
    pub fn restore(
        &mut self,
        snapshot: &Snapshot,
        target: impl Into<Switch>,
        parameters: &mut [&mut [f32]],
    ) -> Result<SwitchReport> {
        self.check_tensors(parameters)?;
        self.check_between_steps()?;
        let config = self.config_for(target.into())?;
        let len: usize = parameters.iter().map(|tensor| tensor.len()).sum();
        let has_second = !snapshot.memory.moments.second.is_empty();
        let is_alike = snapshot.parameters.len() == len
            && (len == 0 || has_second == config.optimiser.has_second_moment());
        if !is_alike {
            let reason = format!(
                "a snapshot of {} parameters, or of another kind of optimiser, where the session \
                 has {len} parameters",
                snapshot.parameters.len()
            );
            return Err(Error::InvalidArgument { reason });
        }
        let outcome = self.commit(&config, Some(snapshot), parameters);
        self.note(outcome)
    }

    /// What all ranks give, in order of ranks; equally many words on each. Collective, beside the
    /// steps of any model: whoever calls it first waits for the last.
    ///
    /// # Errors
    /// Communication failed; the session is finished then.
    pub fn gather(&mut self, words: &[u64]) -> Result<Vec<u64>> {
        self.check_running()?;
        self.check_between_steps()?;
        let outcome = self.exchange.gather(words);
        self.released = Moment::now();
        self.note(outcome)
    }

    fn config_for(&self, target: Switch) -> Result<SessionConfig> {
        let config = SessionConfig {
            model: target.model,
            optimiser: target.optimiser.unwrap_or(self.config.optimiser),
            ..self.config
        };
        config.validate()?;
        config.model.check_world(self.exchange.urgent().world_size())?;
        if config.model.server_only_rank() != self.config.model.server_only_rank() {
            let words = |model: &ModelKind| match model.server_only_rank() {
                Some(rank) => format!("rank {rank} only serves under {}", model.name()),
                None => format!("all ranks train under {}", model.name()),
            };
            let (from, to) = (words(&self.config.model), words(&config.model));
            let reason = format!("a switch keeps which ranks train: {from}, {to}");
            return Err(Error::Config { reason });
        }
        if config.optimiser.has_second_moment() != self.config.optimiser.has_second_moment() {
            let reason = "a switch keeps the kind of optimiser, whose memory goes on".to_owned();
            return Err(Error::Config { reason });
        }
        Ok(config)
    }

    /// After an error the session is finished.
    fn note<T>(&mut self, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome {
            self.finished = Some(error.to_string());
        }
        outcome
    }

    fn commit(
        &mut self,
        config: &SessionConfig,
        snapshot: Option<&Snapshot>,
        parameters: &mut [&mut [f32]],
    ) -> Result<SwitchReport> {
        let start = Moment::now();
        self.drive(Event::Drain, &mut Tensors { parameters, gradients: &[] })?;
        let drain = start.elapsed();
        agree_on(self.exchange.urgent(), &format!("{config:?}"), "the model to switch to")?;
        let agree = start.elapsed() - drain;
        let memory = match snapshot {
            None => self.take_memory(parameters)?,
            Some(snapshot) => {
                let mut rest = snapshot.parameters.as_slice();
                for tensor in parameters.iter_mut() {
                    let (values, later) = rest.split_at(tensor.len());
                    tensor.copy_from_slice(values);
                    rest = later;
                }
                self.compare(parameters, &snapshot.memory)?;
                snapshot.memory.clone()
            }
        };
        let (from, updates) = (self.config.model.name(), memory.updates);
        self.start(config, parameters, memory)?;
        let (to, total) = (config.model.name(), start.elapsed());
        Ok(SwitchReport { from, to, total, drain, agree, updates })
    }

    /// Ends what is under way; what the optimiser remembers is out of the model then.
    fn rest(&mut self, parameters: &mut [&mut [f32]]) -> Result<Memory> {
        self.drive(Event::Drain, &mut Tensors { parameters, gradients: &[] })?;
        self.take_memory(parameters)
    }

    /// What the optimiser remembers, out of a model with nothing under way.
    fn take_memory(&mut self, parameters: &[&mut [f32]]) -> Result<Memory> {
        let memory = match self.model.take_memory() {
            Some(memory) => memory,
            None => self.exchange.collect_memory(&self.config.optimiser)?,
        };
        self.compare(parameters, &memory)?;
        Ok(memory)
    }

    /// Starts the model of `config` from here, with nothing under way.
    fn start(
        &mut self,
        config: &SessionConfig,
        parameters: &[&mut [f32]],
        memory: Memory,
    ) -> Result<()> {
        self.config = *config;
        let layout = Layout::new(&self.tensors, config.model.granularity());
        self.exchange.configure(config, &layout, &flat(parameters), &memory)?;
        let communicator = self.exchange.urgent();
        let job = Job::new(communicator.rank(), communicator.world_size(), config);
        self.model = model::build(config, job, layout, parameters, memory);
        self.released = Moment::now();
        Ok(())
    }

    /// Compares parameters and memory of all ranks.
    fn compare(&self, parameters: &[&mut [f32]], memory: &Memory) -> Result<()> {
        let mut print = Fingerprint::new(memory.updates);
        parameters.iter().for_each(|tensor| print.floats(tensor));
        print.floats(&memory.moments.first);
        print.floats(&memory.moments.second);
        let prints = self.exchange.gather_alike(&[print.value()])?;
        check::compare(self.step, &prints).map_or_else(|| Ok(()), Err)
    }
}

//! Switching between sync models while a job runs: drain, agree, commit, check.
//!
//! Owns the order of it. Never decides when: that is a policy's (`crate::policy`) or the trainer's.
//! Called by the session.
//!
//! ```text
//! drain    what is under way ends, is applied once, all replicas are equal
//! agree    all ranks name the same target, or none switches        one exchange of 8 bytes a rank
//! commit   the optimiser's memory goes from the old model (or its servers) to the next
//! check    parameters and memory have the same bits on every rank   one exchange of 8 bytes a rank
//! ```
//!
//! The drain comes first: a server may hold a rank until another, which is to switch already, has
//! said that it pushes no more.
//!
//! Source: Sync-Switch (arXiv 2104.08364) switches by ending and restarting the job; this one does
//! it in the running processes, so that it costs what is in flight and the exchanges above.

use std::time::Duration;

use super::agree::{agree_on, check_lengths};
use super::{Session, Tensors};
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

impl Session {
    /// Goes on with another model, from the same parameters and with the optimiser's memory kept:
    /// no gradient is lost or applied twice. `parameters` are the global ones afterwards, the same
    /// bits on every rank. Collective; steps may follow at once.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::InvalidArgument`] before anything is sent.
    /// [`Error::JobMismatch`] on every rank if they name different targets,
    /// [`Error::ReplicasDiffer`] if the result differs; the session is finished then, as after any
    /// error of communication.
    pub fn switch_to(
        &mut self,
        target: impl Into<Switch>,
        parameters: &mut [&mut [f32]],
    ) -> Result<SwitchReport> {
        self.check_running()?;
        self.announced.check_none()?;
        check_lengths("parameters", &self.tensors, parameters.iter().map(|tensor| tensor.len()))?;
        let target = target.into();
        let config = SessionConfig {
            model: target.model,
            optimiser: target.optimiser.unwrap_or(self.config.optimiser),
            ..self.config
        };
        config.validate()?;
        if config.optimiser.has_second_moment() != self.config.optimiser.has_second_moment() {
            let reason = "a switch keeps the kind of optimiser, whose memory goes on".to_owned();
            return Err(Error::Config { reason });
        }
        let outcome = self.commit(&config, parameters);
        if let Err(error) = &outcome {
            self.finished = Some(error.to_string());
        }
        outcome
    }

    fn commit(
        &mut self,
        config: &SessionConfig,
        parameters: &mut [&mut [f32]],
    ) -> Result<SwitchReport> {
        let start = Moment::now();
        self.drive(Event::Drain, &mut Tensors { parameters, gradients: &[] })?;
        let drain = start.elapsed();
        agree_on(self.exchange.urgent(), &format!("{config:?}"), "the model to switch to")?;
        let agree = start.elapsed() - drain;
        let memory = match self.model.take_memory() {
            Some(memory) => memory,
            None => self.exchange.collect_memory(&self.config.optimiser)?,
        };
        self.compare(parameters, &memory)?;
        let from = std::mem::replace(&mut self.config, *config).model.name();
        let updates = memory.updates;
        let layout = Layout::new(&self.tensors, config.model.granularity());
        let flat: Vec<f32> = parameters.iter().flat_map(|tensor| tensor.iter().copied()).collect();
        self.exchange.configure(config, &layout, &flat, &memory)?;
        let communicator = self.exchange.urgent();
        let job = Job::new(communicator.rank(), communicator.world_size(), config);
        self.model = model::build(config, job, layout, parameters, memory);
        self.released = Moment::now();
        let (to, total) = (config.model.name(), start.elapsed());
        Ok(SwitchReport { from, to, total, drain, agree, updates })
    }

    /// Compares parameters and memory of all ranks.
    fn compare(&self, parameters: &[&mut [f32]], memory: &Memory) -> Result<()> {
        let mut print = Fingerprint::new(memory.updates);
        parameters.iter().for_each(|tensor| print.floats(tensor));
        print.floats(&memory.moments.first);
        print.floats(&memory.moments.second);
        let prints = self.exchange.gather(&[print.value()])?;
        check::compare(self.step, &prints).map_or_else(|| Ok(()), Err)
    }
}

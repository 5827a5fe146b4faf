//! A worker of the models with a parameter server: it pushes its gradients to all shards and goes
//! on with the parameters that they reply.
//!
//! Owns a worker's view: which push comes next, which version of each shard it computes with. The
//! parameters live in the shards (`server`), one on each rank. Never decides who waits, and for
//! whom: the shards' rule does, which is all in which ASP, SSP, DSSP, R2SP and GBA differ. Built by
//! [`super::build`].
//!
//! ```text
//! worker    step t ──push──▶ all shards ──reply: fresh parameters──▶ step t+1     AfterPush
//!           step t ──push──▶ ... step t+1 on older parameters ...                 NextStep
//! ```
//!
//! Per step and worker: S(G) bytes out and S(G) bytes in, but for the shard on the same rank.
//! Staleness of a push is counted per shard, and comes with the reply: updates that the shard had
//! made between the version that the gradient is of and the push itself.

use std::collections::VecDeque;
use std::time::Duration;

use super::osp::budget::Decision;
use super::{Action, Event, Job, StepEnded, SyncModel, Tensors, Traffic};
use crate::config::{AspRate, Pull};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::optimiser::{clip_scale, sum_of_squares};
use crate::policy::batch::Batch;
use crate::server::config::{BatchRule, R2spConfig, Rule, ServerConfig};
use crate::server::wire::{self, Header};

/// One worker of a parameter server.
#[derive(Debug)]
pub struct Worker {
    job: Job,
    config: ServerConfig,
    layout: Layout,
    shards: Vec<View>,
    /// Steps whose gradients were pushed.
    clock: u64,
    /// Whether replies to the last push are still to come.
    is_pulling: bool,
    /// Gradients of the step at hand wait until the replies to the last push are here.
    ended: Option<StepEnded>,
    /// What the next step takes of the global batch, where that is divided by speed.
    batch: Option<Batch>,
    /// What the step at hand took: what its mean gradient counts, and how fast it was.
    taken: Taken,
    /// Highest staleness of the last push over all shards.
    staleness: u64,
    actions: VecDeque<Action>,
    decision: Decision,
}

/// What a step took of the global batch.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// Its samples, over those of an equal part: the mean over more samples counts more.
    weight: f32,
    /// Nanoseconds of computing for each; 0 if nobody asks.
    sample_ns: u32,
}

/// What this worker knows of one shard.
#[derive(Clone, Debug, Default)]
struct View {
    /// Version of the trainer's parameters.
    version: u64,
    /// Version that the gradients at hand are of.
    gradient_version: u64,
    /// Version that the last pushed gradients are of.
    pushed_version: u64,
    is_answered: bool,
    /// Room for a message, between messages.
    buffer: Vec<u32>,
}

impl Worker {
    /// A worker at rest.
    pub fn new(job: Job, config: ServerConfig, layout: Layout) -> Self {
        Self {
            job,
            config,
            layout,
            shards: vec![View::default(); job.world_size as usize],
            clock: 0,
            is_pulling: false,
            ended: None,
            batch: first_batch(&job, &config),
            taken: Taken { weight: 1.0, sample_ns: 0 },
            staleness: 0,
            actions: VecDeque::new(),
            decision: Decision::never(),
        }
    }

    fn push(&mut self, ended: StepEnded, tensors: &Tensors<'_, '_>) {
        let learning_rate = match self.config.worker.rate {
            AspRate::PerPush => ended.learning_rate,
            AspRate::PerRound => ended.learning_rate / self.job.world_size as f32,
        };
        let Taken { weight, sample_ns } = self.taken;
        let scale = weight * clip(tensors.gradients, self.job.clip_norm);
        for (server, view) in (0..).zip(&mut self.shards) {
            let range = self.layout.shard(server as usize, self.job.world_size as usize);
            let parts = self.layout.parts(range);
            let gradients = parts.flat_map(|part| &tensors.gradients[part.tensor][part.within()]);
            let values = gradients.map(|value| value * scale);
            let header = Header::Push {
                worker: self.job.rank,
                clock: self.clock,
                version: view.gradient_version,
                learning_rate,
                sample_ns,
            };
            let mut message = std::mem::take(&mut view.buffer);
            wire::encode(header, values, &mut message);
            view.pushed_version = view.gradient_version;
            view.is_answered = false;
            self.actions.push_back(Action::Push { server, message, replies: true });
        }
        self.clock += 1;
        self.is_pulling = true;
    }

    fn await_replies(&mut self) {
        self.staleness = 0;
        self.actions.extend((0..self.job.world_size).map(|server| Action::AwaitReply { server }));
    }

    /// Takes in a shard's parameters; with the last of them, goes on.
    fn handle_reply(
        &mut self,
        server: u32,
        message: Vec<u32>,
        tensors: &mut Tensors<'_, '_>,
    ) -> Result<()> {
        let range = self.layout.shard(server as usize, self.job.world_size as usize);
        let (header, mut values) = wire::decode(&message, range.len())?;
        // A group may still be open.
        let is_gathered = matches!(self.config.rule, Rule::Gba(_));
        let view = &mut self.shards[server as usize];
        let least = view.pushed_version + u64::from(!is_gathered);
        let (version, staleness, batch) = match header {
            Header::Reply { server: sender, clock, version, staleness, batch }
                if sender == server && clock + 1 == self.clock && version >= least =>
            {
                (version, staleness, batch)
            }
            _ => {
                let (push, pushed) = (self.clock.saturating_sub(1), view.pushed_version);
                let reason =
                    format!("rank {server} answered push {push} of version {pushed} by {header:?}");
                return Err(Error::Protocol { reason });
            }
        };
        for part in self.layout.parts(range) {
            let target = &mut tensors.parameters[part.tensor][part.within()];
            target.iter_mut().zip(&mut values).for_each(|(target, value)| *target = value);
        }
        drop(values);
        self.staleness = self.staleness.max(u64::from(staleness));
        view.version = version;
        view.is_answered = true;
        view.buffer = message;
        if let Some(batch) = batch {
            self.batch = Some(self.check_batch(batch)?);
        }
        if self.shards.iter().all(|view| view.is_answered) {
            self.is_pulling = false;
            if let Some(ended) = self.ended.take() {
                self.push(ended, tensors);
            }
        }
        Ok(())
    }

    /// Refuses a part that is none of the global batch.
    fn check_batch(&self, batch: Batch) -> Result<Batch> {
        let all = self.job.batch.map(|each| u64::from(each) * u64::from(self.job.world_size));
        let end = u64::from(batch.start) + u64::from(batch.samples);
        if self.batch.is_some() && all.is_some_and(|all| end <= all) {
            return Ok(batch);
        }
        let reason = format!("a shard gave {batch:?} of a global batch of {all:?}");
        Err(Error::Protocol { reason })
    }

    /// What the step that ended took.
    fn taken(&self, compute: Duration) -> Taken {
        match (self.batch, self.job.batch) {
            (Some(Batch { samples, .. }), Some(equal)) => Taken {
                weight: samples as f32 / equal as f32,
                sample_ns: u32::try_from(compute.as_nanos() / u128::from(samples))
                    .unwrap_or(u32::MAX),
            },
            _ => Taken { weight: 1.0, sample_ns: 0 },
        }
    }

    /// Takes in the parameters that all ranks end with: no older than what was seen before.
    fn handle_end(
        &mut self,
        parameters: &[f32],
        versions: &[u64],
        tensors: &mut Tensors<'_, '_>,
    ) -> Result<()> {
        for (server, (view, version)) in self.shards.iter_mut().zip(versions).enumerate() {
            if *version < view.version {
                let seen = view.version;
                let reason = format!("rank {server} ended at version {version}, {seen} was sent");
                return Err(Error::Protocol { reason });
            }
            view.version = *version;
        }
        for part in self.layout.parts(0..self.layout.len()) {
            let target = &mut tensors.parameters[part.tensor][part.within()];
            target.copy_from_slice(&parameters[part.flat()]);
        }
        Ok(())
    }

    fn finish(&mut self) {
        for (server, view) in (0..).zip(&mut self.shards) {
            let len = self.layout.shard(server as usize, self.job.world_size as usize).len();
            let mut message = std::mem::take(&mut view.buffer);
            let header = Header::Done { worker: self.job.rank };
            wire::encode(header, std::iter::repeat_n(0.0, len), &mut message);
            self.actions.push_back(Action::Push { server, message, replies: false });
        }
        self.actions.push_back(Action::Collect);
    }
}

impl SyncModel for Worker {
    fn handle_event(&mut self, event: Event, tensors: &mut Tensors<'_, '_>) {
        match event {
            Event::Collected { parameters, versions } => {
                if let Err(error) = self.handle_end(&parameters, &versions, tensors) {
                    self.actions.push_back(Action::Fail(error));
                }
            }
            Event::Drain => {
                if self.is_pulling {
                    self.await_replies();
                }
                self.finish();
            }
            Event::EpochEnded { .. } => {}
            Event::Replied { server, message } => {
                if let Err(error) = self.handle_reply(server, message, tensors) {
                    self.actions.clear();
                    self.actions.push_back(Action::Fail(error));
                }
            }
            Event::StepEnded(ended) => {
                // Before a reply that this waits for says what comes after.
                self.taken = self.taken(ended.compute);
                for view in &mut self.shards {
                    view.gradient_version = view.version;
                }
                match self.config.worker.pull {
                    Pull::AfterPush => {
                        self.push(ended, tensors);
                        self.await_replies();
                    }
                    Pull::NextStep if self.is_pulling => {
                        self.ended = Some(ended);
                        self.await_replies();
                    }
                    Pull::NextStep => self.push(ended, tensors),
                }
            }
            event => panic!("a worker does not wait for '{}'", event.name()),
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn next_batch(&self) -> Option<Batch> {
        self.batch
    }

    fn staleness(&self) -> u64 {
        self.staleness
    }

    fn traffic(&self) -> Traffic {
        Traffic { important_bytes: self.layout.bytes(), deferred_bytes: 0 }
    }

    fn decision(&self) -> &Decision {
        &self.decision
    }
}

/// An equal part, if parts are to follow speeds.
fn first_batch(job: &Job, config: &ServerConfig) -> Option<Batch> {
    let Rule::R2sp(R2spConfig { batches: BatchRule::BySpeed { .. }, .. }) = config.rule else {
        return None;
    };
    let samples = job.batch?;
    // All together were counted where the shards were made.
    Some(Batch { start: samples.saturating_mul(job.rank), samples })
}

/// What a worker multiplies its own gradient with, so that its norm keeps the limit.
pub(super) fn clip(gradients: &[&[f32]], limit: Option<f32>) -> f32 {
    if limit.is_none() {
        return 1.0;
    }
    let squares: f64 = gradients.iter().map(|gradient| sum_of_squares(gradient)).sum();
    clip_scale(squares.sqrt(), limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AspConfig, ModelKind, SessionConfig};
    use crate::layout::{Granularity, TensorSpec};
    use crate::lockstep::{Lockstep, TensorList};
    use crate::optimiser::{MomentsMut, Optimiser, Sgd, StepSize};

    const LENS: [usize; 3] = [10, 3, 8];

    fn optimiser() -> Optimiser {
        Sgd { momentum: 0.5, ..Sgd::default() }.into()
    }

    fn lockstep(pull: Pull, ranks: u32, start: &TensorList) -> Lockstep<Worker> {
        let asp = AspConfig { pull, rate: AspRate::PerPush };
        let optimiser = optimiser();
        let model = ModelKind::Asp(asp);
        let config = SessionConfig { model, optimiser, ..SessionConfig::default() };
        Lockstep::with_models(&config, ranks, start, |job, _| {
            let specs = LENS.map(|len| TensorSpec::new("t", len));
            Worker::new(job, asp.into(), Layout::new(&specs, Granularity::Tensors))
        })
    }

    fn random_list(random: &mut fastrand::Rng) -> TensorList {
        LENS.map(|len| (0..len).map(|_| random.f32() - 0.5).collect()).to_vec()
    }

    /// Whatever the order of the pushes, each is one step of the optimiser on all parameters, and
    /// its worker sees the result.
    #[test]
    fn pushes_are_steps_in_the_order_in_which_they_come() {
        let mut random = fastrand::Rng::with_seed(1);
        let start = random_list(&mut random);
        let mut asp = lockstep(Pull::AfterPush, 3, &start);
        let (mut w, mut v) = (start.concat(), [0.0_f32; 21]);
        let mut behind = [0_u64; 3];
        for _ in 0..40 {
            let rank = random.usize(0..3);
            let gradients = random_list(&mut random);
            asp.step_alone(rank, &gradients, 0.25).unwrap();
            let moments = MomentsMut { first: &mut v, second: &mut [] };
            optimiser().step(&mut w, moments, &gradients.concat(), StepSize::new(0.25, 0));
            assert_eq!(asp.parameters(rank).concat(), w);
            assert_eq!(asp.model(rank).staleness(), behind[rank]);
            behind.iter_mut().for_each(|count| *count += 1);
            behind[rank] = 0;
        }
        asp.drain().unwrap();
        for rank in 0..3 {
            assert_eq!(asp.parameters(rank).concat(), w);
        }
        // What others pushed before the drain is no staleness after it.
        asp.step_alone(0, &start, 0.25).unwrap();
        assert_eq!(asp.model(0).staleness(), 0);
    }

    /// With the reply awaited a step later, a worker computes without its last push.
    #[test]
    fn pulling_at_the_next_step_lags_by_a_push() {
        let mut random = fastrand::Rng::with_seed(2);
        let start = random_list(&mut random);
        let mut asp = lockstep(Pull::NextStep, 1, &start);
        let (mut w, mut v) = (start.concat(), [0.0_f32; 21]);
        for step in 0..6 {
            let before = w.clone();
            let gradients = random_list(&mut random);
            asp.step_alone(0, &gradients, 0.25).unwrap();
            let moments = MomentsMut { first: &mut v, second: &mut [] };
            optimiser().step(&mut w, moments, &gradients.concat(), StepSize::new(0.25, 0));
            assert_eq!(asp.parameters(0).concat(), before);
            assert_eq!(asp.model(0).staleness(), u64::from(step > 1));
        }
        asp.drain().unwrap();
        assert_eq!(asp.parameters(0).concat(), w);
    }

    /// A reply that was under way at a drain must not come after it.
    #[test]
    fn a_drain_leaves_no_reply_behind() {
        let mut random = fastrand::Rng::with_seed(3);
        let start = random_list(&mut random);
        let mut asp = lockstep(Pull::NextStep, 2, &start);
        for rank in 0..2 {
            asp.step_alone(rank, &random_list(&mut random), 0.25).unwrap();
        }
        asp.drain().unwrap();
        let drained = asp.parameters(0).clone();
        assert_ne!(drained, start);
        asp.step_alone(0, &start, 0.25).unwrap();
        assert_eq!(*asp.parameters(0), drained);
    }

    #[test]
    fn an_end_before_what_was_sent_is_refused() {
        let start: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
        let mut asp = lockstep(Pull::AfterPush, 1, &start);
        asp.step_alone(0, &start, 1.0).unwrap();
        let mut model = asp.into_model(0);
        let mut parameters = start.clone();
        let mut parameters: Vec<_> = parameters.iter_mut().map(Vec::as_mut_slice).collect();
        let tensors = &mut Tensors { parameters: &mut parameters, gradients: &[] };
        let end = |version| Event::Collected { parameters: vec![9.0; 21], versions: vec![version] };
        model.handle_event(end(0), tensors);
        assert!(matches!(model.poll_action(), Some(Action::Fail(Error::Protocol { .. }))));
        assert_eq!(tensors.parameters[0], [0.0; 10]);
        model.handle_event(end(1), tensors);
        assert!(model.poll_action().is_none());
        assert_eq!(tensors.parameters[0], [9.0; 10]);
    }

    #[test]
    fn a_reply_that_answers_another_push_is_refused() {
        let start: TensorList = LENS.map(|len| vec![0.0; len]).to_vec();
        let header = |server, clock, version| Header::Reply {
            server,
            clock,
            version,
            staleness: 0,
            batch: None,
        };
        for bad in [
            header(1, 0, 1),
            header(0, 1, 1),
            header(0, 0, 0),
            Header::Done { worker: 0 },
            Header::Stop,
        ] {
            let mut model = lockstep(Pull::AfterPush, 1, &start).into_model(0);
            let mut parameters = start.clone();
            let mut parameters: Vec<_> = parameters.iter_mut().map(Vec::as_mut_slice).collect();
            let gradients: Vec<_> = start.iter().map(Vec::as_slice).collect();
            let tensors = &mut Tensors { parameters: &mut parameters, gradients: &gradients };
            let ended = StepEnded { learning_rate: 1.0, loss: 0.0, compute: Default::default() };
            model.handle_event(Event::StepEnded(ended), tensors);
            while model.poll_action().is_some() {}
            let mut message = Vec::new();
            wire::encode(bad, std::iter::repeat_n(9.0, 21), &mut message);
            model.handle_event(Event::Replied { server: 0, message }, tensors);
            let failed = matches!(model.poll_action(), Some(Action::Fail(Error::Protocol { .. })));
            assert!(failed, "{bad:?}");
            assert_eq!(tensors.parameters[0], [0.0; 10]);
        }
    }
}

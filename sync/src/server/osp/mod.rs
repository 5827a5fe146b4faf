//! OSP's parameter server: the owner of a range of slices.
//!
//! Owns their parameters, moments and versions, their importance, and the bitmap of the next step.
//! Never communicates, and never depends on the order in which pushes arrive: contributions wait
//! for one another and are added up in order of ranks. Called by the server's thread
//! (`service`), and by the lockstep harness.
//!
//! ```text
//! push RS(t)   from each worker ──▶ all here, all slices at version t?
//!                                    make the bitmap of t+1 (when `gib_every` says so)
//!                                    average, step: important slices are at t+1
//!                                    reply to all: bitmap of t+1, parameters
//! push ICS(t)  from each worker ──▶ all here? average, step: all slices are at t+1
//!                                    reply to all: parameters; RS(t+1) may have waited for it
//! ```
//!
//! A slice takes its gradients in order of steps: RS(t+1) waits as a whole until ICS(t) was
//! applied. That loses nothing against waiting slice by slice, because one reply answers all
//! slices. Source: arXiv 2306.16926, whose server this follows as far as we know it; momentum,
//! slices smaller than a tensor, and shards are ours.

mod audit;
pub(crate) mod service;
pub mod wire;

use std::ops::Range;

use crate::error::{Error, Result};
use crate::layout::{Layout, Slice};
use crate::model::osp::importance::{Gib, Importance, random_score};
use crate::model::osp_server::settings::{Assignment, MomentTransfer, OspServerConfig, Part};
use crate::model::{Job, Memory};
use crate::optimiser::StepSize;
use crate::server::audit::AuditReport;
use audit::Audit;
use wire::{Head, Push, Stage};

/// The server of some slices.
#[derive(Debug)]
pub struct OspShard {
    job: Job,
    config: OspServerConfig,
    layout: Layout,
    part: Part,
    parameters: Vec<f32>,
    /// Of these parameters, and the updates before this server's first.
    memory: Memory,
    /// Per slice of this server: gradients applied.
    versions: Vec<u64>,
    /// Per slice of the layout: importance; infinite while unknown, and for slices of others.
    scores: Vec<f32>,
    /// Per slice of this server: the bitmap of the step whose ICS is under way, or was last.
    current: Vec<bool>,
    /// The bitmap of the next RS.
    next: Vec<bool>,
    rs: Gathering,
    ics: Gathering,
    /// Per rank: pushes no more.
    done: Vec<bool>,
    audit: Audit,
    /// Room for the average of one slice.
    gradient: Vec<f32>,
}

/// Contributions to one stage of one step.
#[derive(Debug)]
struct Gathering {
    step: u64,
    is_open: bool,
    /// What all workers must say alike.
    terms: Option<(u32, u64)>,
    /// Per rank: the body. That of a rank that only serves is empty, and no contribution.
    bodies: Vec<Option<Vec<u32>>>,
}

impl Gathering {
    fn new(ranks: u32, is_open: bool) -> Self {
        Self { step: 0, is_open, terms: None, bodies: vec![None; ranks as usize] }
    }

    fn is_full(&self) -> bool {
        self.is_open && self.bodies.iter().all(Option::is_some)
    }

    fn is_empty(&self) -> bool {
        self.bodies.iter().all(Option::is_none)
    }

    /// What all ranks sent, in their order, and what came with them; the gathering is closed.
    fn take(&mut self) -> (Vec<Vec<u32>>, f32, u64) {
        self.is_open = false;
        let (rate, budget) = self.terms.take().unwrap_or_default();
        let bodies = self.bodies.iter_mut().filter_map(Option::take).collect();
        (bodies, f32::from_bits(rate), budget)
    }
}

/// An answer to every rank that pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Which pushes it answers.
    pub stage: Stage,
    /// As [`wire`] has it.
    pub message: Vec<u32>,
    /// Words before the parameters.
    header_words: usize,
    /// The rank that only serves, if there is one: it gets no parameters, which it has.
    server_only: Option<u32>,
}

impl Reply {
    /// The message to `rank`.
    pub fn message_for(&self, rank: u32) -> Vec<u32> {
        if self.server_only == Some(rank) {
            return self.message[..self.header_words].to_vec();
        }
        self.message.clone()
    }

    /// Words of the message before the parameters.
    pub fn header_words(&self) -> usize {
        self.header_words
    }
}

/// What has to follow a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expected {
    /// Its body.
    Body(Push),
    /// Nothing more from this worker.
    Done,
    /// Nothing: the server's rank gives up.
    Stop,
}

impl OspShard {
    /// What `job.rank` serves, if anything, starting from these parameters and moments of all
    /// slices.
    ///
    /// # Panics
    /// If parameters or moments are not those of the layout.
    pub fn new(
        job: Job,
        config: OspServerConfig,
        layout: &Layout,
        parameters: &[f32],
        memory: &Memory,
    ) -> Option<Self> {
        assert_eq!(parameters.len(), layout.len(), "the layout's parameters");
        let assignment = Assignment::new(config.placement, job.world_size, layout);
        let part = assignment.part_of(job.rank)?.clone();
        let (flat, count) = (part.flat.clone(), part.slices.len());
        let server_only = config.placement.server_only_rank();
        let trains = (0..job.world_size).map(|rank| server_only != Some(rank));
        let audit = Audit::new(trains, count, flat.len());
        Some(Self {
            parameters: parameters[flat.clone()].to_vec(),
            memory: Memory { moments: memory.moments.part(flat), updates: memory.updates },
            versions: vec![0; count],
            scores: vec![f32::INFINITY; layout.slices().len()],
            current: vec![true; count],
            next: vec![true; count],
            rs: Gathering::new(job.world_size, true),
            ics: Gathering::new(job.world_size, false),
            done: vec![false; job.world_size as usize],
            audit,
            gradient: Vec::new(),
            layout: layout.clone(),
            job,
            config,
            part,
        })
    }

    /// Whether the head that `worker` sent may come now, and what must follow it. Changes nothing
    /// but a worker's end.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it comes from nobody, in another's name, twice, out of its turn, or
    /// announces a body of the wrong length.
    pub fn handle_head(&mut self, worker: u32, head: &[u32]) -> Result<Expected> {
        let head = Head::decode(head)?;
        let broken = |what: &str| Err(Error::Protocol { reason: format!("rank {worker} {what}") });
        let index = worker as usize;
        match head {
            _ if index >= self.done.len() => broken("is no worker of this server"),
            Head::Stop if worker == self.job.rank => Ok(Expected::Stop),
            Head::Stop => broken("told another rank's server to stop"),
            _ if self.done[index] => broken("sent a message after it was done"),
            Head::Done { worker: name } | Head::Push(Push { worker: name, .. })
                if name != worker =>
            {
                broken(&format!("sent a message in the name of rank {name}"))
            }
            Head::Done { .. } if self.rs.bodies[index].is_some() || self.ics.is_open => {
                broken("is done while its gradients are under way")
            }
            Head::Done { .. } => {
                self.audit.done(index)?;
                self.done[index] = true;
                Ok(Expected::Done)
            }
            Head::Push(push) => self.check_push(&push).map(|()| Expected::Body(push)),
        }
    }

    fn check_push(&self, push: &Push) -> Result<()> {
        let (Push { stage, worker, step, .. }, gathering) = (*push, self.gathering(push.stage));
        let broken = |what: String| {
            Err(Error::Protocol { reason: format!("rank {worker} pushed {stage:?} {what}") })
        };
        if !gathering.is_open || step != gathering.step {
            let turn = if gathering.is_open { "the turn" } else { "no turn, after that" };
            return broken(format!("of step {step}: it is {turn} of step {}", gathering.step));
        }
        if gathering.bodies[worker as usize].is_some() {
            return broken(format!("of step {step} twice"));
        }
        let is_worker = self.is_worker(worker);
        let len = if is_worker { self.stage_len(stage) } else { 0 };
        if push.words as usize != len {
            return broken(format!("of {} elements, not {len}", push.words));
        }
        let terms = (push.learning_rate.to_bits(), push.budget);
        match gathering.terms {
            Some(others) if is_worker && others != terms => broken(format!(
                "of step {step} with rate {} and budget {}, others with {} and {}",
                push.learning_rate,
                push.budget,
                f32::from_bits(others.0),
                others.1
            )),
            _ => Ok(()),
        }
    }

    /// Takes in a push whose head was [`Expected::Body`]; where it was the last of its stage,
    /// applies what can be and says what to answer to all workers, in this order.
    ///
    /// # Errors
    /// [`Error::Protocol`] as [`Self::handle_head`], and if the body has another length than the
    /// head said; the server is unchanged then. The same if the server breaks a promise: it is of
    /// no use then.
    pub fn handle_body(&mut self, push: &Push, body: Vec<u32>) -> Result<Vec<Reply>> {
        self.check_push(push)?;
        if body.len() != push.words as usize {
            let (worker, words, len) = (push.worker, push.words, body.len());
            let reason = format!("rank {worker} announced {words} elements and sent {len}");
            return Err(Error::Protocol { reason });
        }
        let is_worker = self.is_worker(push.worker);
        self.audit.pushed(push.worker as usize, push.stage, push.step, body.len() as u64)?;
        let gathering = match push.stage {
            Stage::Rs => &mut self.rs,
            Stage::Ics => &mut self.ics,
        };
        if is_worker {
            gathering.terms = Some((push.learning_rate.to_bits(), push.budget));
        }
        gathering.bodies[push.worker as usize] = Some(body);
        let mut replies = Vec::new();
        if self.ics.is_full() {
            replies.push(self.finish_ics()?);
        }
        // Open means that the step before is not all applied.
        if self.rs.is_full() && !self.ics.is_open {
            replies.push(self.finish_rs()?);
        }
        Ok(replies)
    }

    /// Whether workers have to push an ICS now.
    pub fn expects_ics(&self) -> bool {
        self.ics.is_open
    }

    /// Instead of the reply to a stage that workers wait for or will wait for, and as long.
    pub(crate) fn refusal(&self, stage: Stage) -> Option<Reply> {
        if !self.gathering(stage).is_open {
            return None;
        }
        let mut message = wire::encode_refusal(self.job.rank).to_vec();
        if stage == Stage::Rs {
            message.extend(wire::encode_flags(&self.next));
        }
        Some(self.reply(stage, message))
    }

    /// Whether that rank trains.
    fn is_worker(&self, rank: u32) -> bool {
        self.config.placement.server_only_rank() != Some(rank)
    }

    /// A reply that starts with `message`, and goes on with the state of the stage's slices.
    fn reply(&self, stage: Stage, mut message: Vec<u32>) -> Reply {
        let server_only = self.config.placement.server_only_rank();
        let header_words = message.len();
        self.write_state(stage, &mut message);
        Reply { stage, message, header_words, server_only }
    }

    /// Lets all workers push again, now that the servers were brought together.
    ///
    /// # Errors
    /// [`Error::Protocol`] if some may still push, or anything was left behind.
    pub fn reopen(&mut self) -> Result<()> {
        self.audit.collected()?;
        self.done.fill(false);
        Ok(())
    }

    /// Makes sure that all is applied, as it must be when the servers are brought together.
    ///
    /// # Errors
    /// [`Error::Protocol`] if not.
    pub fn check_collected(&self) -> Result<()> {
        self.audit.clone().collected()
    }

    /// What the audit has seen.
    pub fn audit(&self) -> AuditReport {
        self.audit.report()
    }

    /// Whether all workers are done.
    pub fn all_done(&self) -> bool {
        self.done.iter().all(|done| *done)
    }

    /// What it serves.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// The parameters of its slices.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// What the optimiser remembers of them, and updates so far, earlier ones included.
    pub fn memory(&self) -> Memory {
        let updates = self.memory.updates + self.version();
        Memory { moments: self.memory.moments.clone(), updates }
    }

    /// Gradients applied to every slice. At rest, the number of steps.
    pub fn version(&self) -> u64 {
        // A server without slices has applied whatever there was.
        self.versions.iter().copied().min().unwrap_or(self.rs.step)
    }

    fn gathering(&self, stage: Stage) -> &Gathering {
        match stage {
            Stage::Rs => &self.rs,
            Stage::Ics => &self.ics,
        }
    }

    /// The slices of a stage, in order, by index among this server's.
    fn slices_of(&self, stage: Stage) -> impl Iterator<Item = (usize, &Slice)> {
        let flags = if stage == Stage::Rs { &self.next } else { &self.current };
        let all = self.layout.slices()[self.part.slices.clone()].iter().enumerate();
        all.zip(flags).filter(move |(_, flag)| **flag == (stage == Stage::Rs)).map(|(at, _)| at)
    }

    fn stage_len(&self, stage: Stage) -> usize {
        self.slices_of(stage).map(|(_, slice)| slice.len).sum()
    }

    fn finish_rs(&mut self) -> Result<Reply> {
        let step = self.rs.step;
        let (bodies, rate, budget) = self.rs.take();
        if budget == 0 {
            // They will be old when they are next asked for.
            self.scores.fill(f32::INFINITY);
        }
        // From the scores of the steps before this one.
        let following = self.select(step, budget);
        self.apply(Stage::Rs, step, &bodies, rate, budget)?;
        self.audit.answered(Stage::Rs, step)?;
        let mut message = wire::encode_reply(Stage::Rs, self.job.rank, step).to_vec();
        message.extend(wire::encode_flags(&following));
        let reply = self.reply(Stage::Rs, message);
        self.current = std::mem::replace(&mut self.next, following);
        self.rs = Gathering { step: step + 1, is_open: true, ..self.rs.take_empty() };
        let is_open = self.current.contains(&false);
        self.ics = Gathering { step, is_open, ..self.ics.take_empty() };
        Ok(reply)
    }

    fn finish_ics(&mut self) -> Result<Reply> {
        let step = self.ics.step;
        let (bodies, rate, budget) = self.ics.take();
        self.apply(Stage::Ics, step, &bodies, rate, budget)?;
        self.audit.answered(Stage::Ics, step)?;
        Ok(self.reply(Stage::Ics, wire::encode_reply(Stage::Ics, self.job.rank, step).to_vec()))
    }

    /// The bitmap of the step after `step`.
    fn select(&self, step: u64, budget: u64) -> Vec<bool> {
        if budget == 0 {
            return vec![true; self.next.len()];
        }
        if !step.is_multiple_of(self.config.osp.gib_every) {
            return self.next.clone();
        }
        let drawn;
        let scores = if self.config.osp.importance == Importance::Random && step > 0 {
            let own = &self.part.slices;
            let draw = |slice| match own.contains(&slice) {
                true => random_score(self.job.seed, step, slice),
                false => f32::INFINITY,
            };
            drawn = (0..self.scores.len()).map(draw).collect::<Vec<_>>();
            &drawn
        } else {
            &self.scores
        };
        let own = self.part.flat.len() as u128;
        let share = u128::from(budget) * own / self.layout.len().max(1) as u128;
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let gib = Gib::select(&self.layout, scores, self.config.osp.min_deferred_len, share);
        gib.flags()[self.part.slices.clone()].to_vec()
    }

    /// Averages in order of ranks, and makes the optimiser's step on each slice of the stage.
    fn apply(
        &mut self,
        stage: Stage,
        step: u64,
        bodies: &[Vec<u32>],
        rate: f32,
        budget: u64,
    ) -> Result<()> {
        let of_workers = || (0..).zip(bodies).filter(|(rank, _)| self.is_worker(*rank));
        let bodies: Vec<&[u32]> = of_workers().map(|(_, body)| body.as_slice()).collect();
        let is_scored = budget > 0 && (step + 1).is_multiple_of(self.config.osp.gib_every);
        let size = StepSize::new(rate, self.memory.updates + step);
        let slices: Vec<(usize, Slice)> =
            self.slices_of(stage).map(|(index, slice)| (index, *slice)).collect();
        let mut start = 0;
        for (index, slice) in slices {
            self.audit.applied(index, step, bodies.len())?;
            average(&bodies, start..start + slice.len, &mut self.gradient);
            let own = slice.offset - self.part.flat.start..slice.flat().end - self.part.flat.start;
            let parameters = &mut self.parameters[own.clone()];
            if is_scored {
                self.scores[self.part.slices.start + index] =
                    self.config.osp.importance.score(parameters, &self.gradient);
            }
            let moments = self.memory.moments.range_mut(own);
            self.job.optimiser.step(parameters, moments, &self.gradient, size);
            self.versions[index] += 1;
            start += slice.len;
        }
        Ok(())
    }

    /// Appends parameters, and moments if they are shipped, of the slices of a stage.
    fn write_state(&self, stage: Stage, message: &mut Vec<u32>) {
        let own = |slice: &Slice| {
            slice.offset - self.part.flat.start..slice.flat().end - self.part.flat.start
        };
        let mut write = |values: &[f32]| {
            for (_, slice) in self.slices_of(stage) {
                message.extend(values[own(slice)].iter().map(|value| value.to_bits()));
            }
        };
        write(&self.parameters);
        if self.config.moment_transfer(&self.job.optimiser) == MomentTransfer::Shipped {
            let moments = &self.memory.moments;
            [&moments.first, &moments.second]
                .into_iter()
                .filter(|values| !values.is_empty())
                .for_each(|values| write(values));
        }
    }
}

impl Gathering {
    /// Itself, emptied, to be opened again.
    fn take_empty(&mut self) -> Self {
        debug_assert!(self.is_empty(), "all contributions were applied");
        let bodies = std::mem::take(&mut self.bodies);
        Self { step: 0, is_open: false, terms: None, bodies }
    }
}

/// The average of one range of all contributions, added up in order of ranks.
fn average(bodies: &[&[u32]], range: Range<usize>, average: &mut Vec<f32>) {
    average.clear();
    let mut bodies_left = bodies.iter();
    let Some(first) = bodies_left.next() else { return };
    average.extend(first[range.clone()].iter().map(|bits| f32::from_bits(*bits)));
    for body in bodies_left {
        for (sum, bits) in average.iter_mut().zip(&body[range.clone()]) {
            *sum += f32::from_bits(*bits);
        }
    }
    let count = bodies.len() as f32;
    average.iter_mut().for_each(|sum| *sum /= count);
}

#[cfg(test)]
mod tests;

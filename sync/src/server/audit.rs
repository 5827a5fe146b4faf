//! Checks a shard's promises by its own count of what happens there.
//!
//! Owns no decision and trusts none: it sees which push came, which update was made of which
//! pushes, and which reply left with which version, and never asks the rule. Called by the shard at
//! each of these, always: a few integer operations a push and rank. What it refuses is a bug of a
//! rule or a broken peer, and ends the session.
//!
//! | promise | of |
//! |---|---|
//! | each worker's pushes come with clocks 0, 1, 2...; no push comes before the last was answered | all |
//! | each push is applied exactly once, and each worker's in their order | all |
//! | versions grow by one an update; a reply has the version of when it leaves | all |
//! | gradients are of parameters that their worker had | all |
//! | when all workers are done, all is applied and answered; all see the version of then | all |
//! | an update is one push, and is in the reply to it | all but GBA |
//! | an update is M pushes, fewer only when all workers are done | GBA |
//! | at a reply the worker leads the slowest by s (s_U) at most, at a push by one more | SSP, DSSP |
//! | updates go round the workers that are not done, in the order of ranks | R2SP |
//!
//! Leads count pushes since all workers were done the last time, and only workers that are not done
//! are slowest. DSSP's bound is s_U at each shard.

use super::config::Rule;
use crate::error::{Error, Result};

/// What a rule promises, beyond what all do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Nothing.
    Any,
    /// Updates of this many pushes.
    Groups(u64),
    /// At a reply, this lead at most.
    Lead(u64),
    /// Workers are applied in turn.
    Turns,
}

impl Promise {
    /// That of `rule`, with this many workers.
    pub fn of(rule: Rule, workers: usize) -> Self {
        match rule {
            Rule::Asp => Self::Any,
            Rule::Ssp(ssp) => Self::Lead(ssp.staleness),
            Rule::Dssp(dssp) => Self::Lead(dssp.upper()),
            Rule::R2sp(_) => Self::Turns,
            Rule::Gba(gba) => Self::Groups(gba.policy(workers).group.get()),
        }
    }
}

/// What an audit has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Pushes that came.
    pub pushes: u64,
    /// Updates made, those in which nothing counted included.
    pub updates: u64,
    /// Replies that left after another push or a worker's end came.
    pub held: u64,
    /// The most pushes by which any worker led the slowest, its push at hand included.
    pub widest_lead: u64,
    /// The most updates that came between a gradient's parameters and its push.
    pub widest_staleness: u64,
}

/// The checker of one shard.
#[derive(Clone, Debug)]
pub struct Audit {
    promise: Promise,
    workers: Vec<Worker>,
    /// Updates before these workers' first push.
    version: u64,
    /// Counts pushes and ends, to tell which replies were held.
    events: u64,
    /// Who was applied last since all were done.
    last_turn: Option<usize>,
    report: AuditReport,
}

#[derive(Clone, Debug, Default)]
struct Worker {
    /// Pushes that came.
    pushed: u64,
    /// Of them, those that were applied.
    applied: u64,
    /// Of them, those that were answered.
    answered: u64,
    /// Of them, those before all were done the last time.
    before: u64,
    /// The event with which the last push came.
    came: u64,
    /// The version that was sent last.
    version: u64,
    is_done: bool,
}

impl Worker {
    /// Pushes of the phase at hand.
    fn pushes(&self) -> u64 {
        self.pushed - self.before
    }
}

impl Audit {
    /// For this many workers, at version 0.
    pub fn new(promise: Promise, workers: usize) -> Self {
        Self {
            promise,
            workers: vec![Worker::default(); workers],
            version: 0,
            events: 0,
            last_turn: None,
            report: AuditReport::default(),
        }
    }

    /// What was seen so far.
    pub fn report(&self) -> AuditReport {
        self.report
    }

    /// A push came: number `clock` of this worker, with a gradient of `version`.
    ///
    /// # Errors
    /// [`Error::Protocol`] with worker, clock and what it breaks, as of all methods here.
    pub fn pushed(&mut self, worker: usize, clock: u64, version: u64) -> Result<()> {
        let state = self.worker(worker, clock)?;
        let (due, seen, is_held) = (state.pushed, state.version, state.pushed > state.answered);
        if state.is_done {
            return broken(worker, clock, "came after the worker was done");
        }
        if is_held {
            return broken(worker, clock, "came before the last was answered");
        }
        if clock != due {
            return broken(worker, clock, format!("came where push {due} is next"));
        }
        if version > seen {
            return broken(worker, clock, format!("is of version {version}, {seen} was sent"));
        }
        self.events += 1;
        let came = self.events;
        let state = &mut self.workers[worker];
        (state.pushed, state.came) = (clock + 1, came);
        let lead = self.lead(worker);
        self.report.pushes += 1;
        self.report.widest_lead = self.report.widest_lead.max(lead);
        let staleness = self.version.saturating_sub(version);
        self.report.widest_staleness = self.report.widest_staleness.max(staleness);
        match self.promise {
            Promise::Lead(bound) if lead > bound.saturating_add(1) => {
                let text = format!("leads by {lead}, the bound is {bound} and the push at hand");
                broken(worker, clock, text)
            }
            _ => Ok(()),
        }
    }

    /// An update was made of these pushes, as (worker, clock), and made this version.
    ///
    /// # Errors
    /// As [`Self::pushed`].
    pub fn updated(&mut self, pushes: &[(usize, u64)], version: u64) -> Result<()> {
        let Some(&(first, first_clock)) = pushes.first() else {
            return Err(protocol("an update without a push".to_owned()));
        };
        if version != self.version + 1 {
            let text = format!("made version {version} out of {}", self.version);
            return broken(first, first_clock, text);
        }
        for &(worker, clock) in pushes {
            let state = self.worker(worker, clock)?;
            if clock >= state.pushed {
                return broken(worker, clock, "was applied and never came");
            }
            if clock != state.applied {
                return broken(
                    worker,
                    clock,
                    format!("was applied where {} is next", state.applied),
                );
            }
            self.workers[worker].applied += 1;
        }
        let count = pushes.len() as u64;
        let size = if let Promise::Groups(size) = self.promise { size } else { 1 };
        // What is left when all are done may be less.
        let may_be_less = matches!(self.promise, Promise::Groups(_)) && self.all_done();
        if count > size || count < size && !may_be_less {
            return broken(first, first_clock, format!("was in an update of {count}, not {size}"));
        }
        if self.promise == Promise::Turns {
            self.check_turn(first, first_clock)?;
        }
        self.version = version;
        self.report.updates += 1;
        Ok(())
    }

    /// A reply to push `clock` of this worker leaves, with this version.
    ///
    /// # Errors
    /// As [`Self::pushed`].
    pub fn replied(&mut self, worker: usize, clock: u64, version: u64) -> Result<()> {
        let state = self.worker(worker, clock)?.clone();
        if clock != state.answered || clock >= state.pushed {
            return broken(worker, clock, format!("was answered, {} is next", state.answered));
        }
        if version != self.version {
            let text = format!("was answered with version {version}, it is {}", self.version);
            return broken(worker, clock, text);
        }
        let is_gathered = matches!(self.promise, Promise::Groups(_));
        if clock >= state.applied && !is_gathered {
            return broken(worker, clock, "was answered before it was applied");
        }
        let lead = self.lead(worker);
        if let Promise::Lead(bound) = self.promise
            && lead > bound
        {
            return broken(worker, clock, format!("was answered {lead} ahead, not {bound}"));
        }
        self.report.held += u64::from(state.came < self.events);
        let state = &mut self.workers[worker];
        (state.answered, state.version) = (clock + 1, version);
        Ok(())
    }

    /// A worker pushes no more in this phase.
    ///
    /// # Errors
    /// As [`Self::pushed`].
    pub fn done(&mut self, worker: usize) -> Result<()> {
        self.events += 1;
        let state = self.worker(worker, 0)?;
        let last = state.pushed;
        if state.answered < last {
            return broken(worker, last - 1, "was not answered when its worker was done");
        }
        if state.is_done {
            return broken(worker, last, "never comes: its worker was done twice");
        }
        self.workers[worker].is_done = true;
        Ok(())
    }

    /// All are done, and this worker takes this version for the last one.
    ///
    /// # Errors
    /// As [`Self::pushed`].
    pub fn collected(&self, worker: usize, version: u64) -> Result<()> {
        for (other, state) in self.workers.iter().enumerate() {
            if !state.is_done {
                return broken(other, state.pushed, "may still come after a collection");
            }
            if state.applied != state.pushed {
                return broken(other, state.applied, "was not applied when all were done");
            }
        }
        if version != self.version {
            let text = format!("sees version {version} at the end, it is {}", self.version);
            return Err(protocol(format!("rank {worker} {text}")));
        }
        Ok(())
    }

    /// All may push again, from this version.
    ///
    /// # Errors
    /// As [`Self::pushed`].
    pub fn reopened(&mut self) -> Result<()> {
        let is_fresh = self.workers.iter().all(|worker| worker.pushed == 0);
        if !is_fresh {
            self.collected(0, self.version)?;
        }
        self.last_turn = None;
        for worker in &mut self.workers {
            worker.is_done = false;
            worker.before = worker.pushed;
            worker.version = self.version;
        }
        Ok(())
    }

    /// The next after the last who is not done.
    fn check_turn(&mut self, worker: usize, clock: u64) -> Result<()> {
        let count = self.workers.len();
        let start = self.last_turn.map_or(0, |last| last + 1);
        let mut order = (0..count).map(|step| (start + step) % count);
        let turn = order.find(|other| *other == worker || !self.workers[*other].is_done);
        if turn != Some(worker) {
            return broken(worker, clock, format!("was applied in the turn of rank {turn:?}"));
        }
        self.last_turn = Some(worker);
        Ok(())
    }

    fn lead(&self, worker: usize) -> u64 {
        let active = self.workers.iter().filter(|other| !other.is_done);
        let slowest = active.map(Worker::pushes).min().unwrap_or(0);
        self.workers[worker].pushes().saturating_sub(slowest)
    }

    fn all_done(&self) -> bool {
        self.workers.iter().all(|worker| worker.is_done)
    }

    fn worker(&self, worker: usize, clock: u64) -> Result<&Worker> {
        match self.workers.get(worker) {
            Some(state) => Ok(state),
            None => broken(worker, clock, "is of a rank that there is not"),
        }
    }
}

fn broken<T>(worker: usize, clock: u64, what: impl AsRef<str>) -> Result<T> {
    Err(protocol(format!("push {clock} of rank {worker} {}", what.as_ref())))
}

fn protocol(reason: String) -> Error {
    Error::Protocol { reason }
}

#[cfg(test)]
mod tests;

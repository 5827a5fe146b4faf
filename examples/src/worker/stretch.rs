//! Stretches: the steps between two meetings of all ranks, and how a job is counted in them.
//!
//! Owns where a job is, in steps and in samples of all ranks, and what happens at the ends of
//! stretches and epochs. Called by the loop of a rank.
//!
//! A job is a fixed number of samples. In a stretch that some ranks sit out, a step takes in fewer
//! of them, so the job takes more steps; an epoch ends with the step in which its samples are
//! complete. Steps are numbered alike on all ranks, and the number says which images a rank takes.

use std::time::Duration;

use syncline::Batch;
use syncline::record::{Decision, Epoch};

use super::{Snapshot, StepCost, Synchroniser, Trainer, WorkerError, failed};
use crate::protocol::Message;

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Steps so far: the number of the next one.
    pub step: u64,
    /// Samples of all ranks so far.
    pub samples: u64,
    /// Samples of all ranks in the whole job.
    pub total: u64,
}

impl Position {
    /// After more steps, each with so many samples of all ranks.
    pub fn after(self, steps: u64, samples_per_step: u64) -> Self {
        let samples = self.samples + steps * samples_per_step;
        Self { step: self.step + steps, samples, ..self }
    }
}

/// What lies between two meetings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Steps until the next meeting, at least 1; the end of the job comes earlier.
    pub steps: u64,
    /// Ranks that train in it, ascending; none for all.
    pub members: Option<Vec<u32>>,
    /// Whether this rank is one of them. The others wait at the meeting.
    pub takes_part: bool,
}

impl Stretch {
    /// All ranks, to the end of the job.
    pub fn endless() -> Self {
        Self::of_all(u64::MAX)
    }

    /// All ranks, for so many steps.
    pub fn of_all(steps: u64) -> Self {
        Self { steps, members: None, takes_part: true }
    }
}

/// What a meeting brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meeting {
    /// What it cost.
    pub cost: StepCost,
    /// The part of the time that went into another model, other ranks or an earlier state.
    pub switching: Duration,
    /// What was decided, without when.
    pub decisions: Vec<Decision>,
    /// Where to go on, if the parameters are those of an earlier position.
    pub resume_at: Option<Position>,
}

/// Losses of an epoch on this rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EpochSoFar {
    /// Of all samples.
    losses: f64,
    samples: u64,
}

impl EpochSoFar {
    /// `loss` is the mean over so many samples.
    fn add(&mut self, loss: f32, samples: u32) {
        self.losses += f64::from(loss) * f64::from(samples);
        self.samples += u64::from(samples);
    }

    /// NaN without steps.
    fn mean(&self) -> f32 {
        (self.losses / self.samples as f64) as f32
    }
}

impl Trainer<'_> {
    /// Samples of all ranks in an epoch that all take part in.
    fn epoch_samples(&self) -> u64 {
        self.plan.steps() as u64 * u64::from(self.crew.workers()) * u64::from(self.spec.batch)
    }

    /// Samples of all ranks in the whole job.
    pub(super) fn all_samples(&self) -> u64 {
        self.epoch_samples() * u64::from(self.spec.epochs)
    }

    /// The epoch of the next step.
    pub(super) fn epoch_of(&self, at: Position) -> u32 {
        let epoch = u32::try_from(at.samples / self.epoch_samples()).unwrap_or(u32::MAX);
        epoch.min(self.spec.epochs - 1)
    }

    /// The learning rate of a step: with fewer ranks in it, its share of them.
    pub(super) fn rate_at(&self, at: Position, stretch: &Stretch) -> f32 {
        let rate = self.schedule.rate(at.samples);
        match &stretch.members {
            Some(members) => rate * members.len() as f32 / self.spec.ranks as f32,
            None => rate,
        }
    }

    /// A part of the images of a step.
    pub(super) fn images_of(&mut self, step: u64, part: Batch) -> Vec<usize> {
        let steps = self.plan.steps() as u64;
        let pass = step / steps;
        if self.order.0 != Some(pass) {
            let epoch = u32::try_from(pass).unwrap_or(u32::MAX - 1);
            self.order = (Some(pass), self.plan.order(epoch));
        }
        self.plan.part_of(&self.order.1, (step % steps) as usize, part).to_vec()
    }

    /// Trains to the next meeting, and meets; returns where to go on.
    pub(super) fn run_stretch(
        &mut self,
        start: Position,
        epoch: &mut EpochSoFar,
        sync: &mut dyn Synchroniser,
    ) -> Result<Position, WorkerError> {
        let stretch = sync.stretch(start);
        let all = self.crew.workers() as usize;
        let members = stretch.members.as_ref().map_or(all, Vec::len);
        let per_step = members as u64 * u64::from(self.spec.batch);
        let left = (start.total - start.samples).div_ceil(per_step);
        let steps = stretch.steps.clamp(1, left);
        let end = start.after(steps, per_step);
        if stretch.takes_part {
            let mut at = start;
            for index in 1..=steps {
                let next = at.after(1, per_step);
                if self.crew.trains() {
                    let (loss, samples) = self.step(at, &stretch, sync)?;
                    epoch.add(loss, samples);
                    self.report_progress(next, loss)?;
                } else {
                    self.serve(at, sync)?;
                }
                if index < steps && self.ends_epoch(at, next) {
                    self.end_epoch(at, epoch, stretch.members.as_deref(), sync)?;
                }
                at = next;
            }
        } else {
            let part = self.plan.equal_part();
            let (_, compute, _) = self.compute(end.step - 1, part, &mut |_, _| Ok(()));
            self.compute += compute;
            sync.stand_by(compute);
        }
        let last = Position { step: end.step - 1, samples: end.samples - per_step, ..end };
        if !stretch.takes_part && self.ends_epoch(start, last) {
            *epoch = EpochSoFar::default();
        }
        let meeting = sync
            .meet(end, &mut self.parameters)
            .map_err(failed(self.epoch_of(last), "go on after a meeting"))?;
        self.charge(meeting.cost);
        self.switching += meeting.switching;
        self.note(end, meeting.decisions)?;
        if let Some(resume) = meeting.resume_at {
            let first_lost = self.epoch_of(resume);
            self.snapshots.retain(|snapshot| snapshot.epoch < first_lost);
            *epoch = EpochSoFar::default();
            return Ok(resume);
        }
        if self.ends_epoch(last, end) {
            self.end_epoch(last, epoch, None, sync)?;
        }
        Ok(end)
    }

    fn ends_epoch(&self, before: Position, after: Position) -> bool {
        before.samples / self.epoch_samples() < after.samples / self.epoch_samples()
    }

    /// Ends the epoch that the step at `last` was of, on the ranks that hold the state at its end.
    fn end_epoch(
        &mut self,
        last: Position,
        so_far: &mut EpochSoFar,
        members: Option<&[u32]>,
        sync: &mut dyn Synchroniser,
    ) -> Result<(), WorkerError> {
        let epoch = self.epoch_of(last);
        let mean_loss = std::mem::take(so_far).mean();
        let report = sync.end_epoch(mean_loss).map_err(failed(epoch, "end an epoch"))?;
        self.charge(report.cost);
        let t_s = self.clock.elapsed().as_secs_f64();
        let samples = self.samples;
        self.journal.epoch(|| {
            let deferral = report.deferral.as_ref();
            Epoch {
                epoch: u64::from(epoch) + 1,
                t_s,
                samples,
                mean_loss: f64::from(report.mean_loss),
                deferred_bytes_limit: deferral.map_or(0, |decision| decision.bytes),
                limit: deferral.map(|decision| decision.limit.to_string()).unwrap_or_default(),
                reason: deferral.map(|decision| decision.reason.to_string()).unwrap_or_default(),
            }
        });
        self.tell(&Message::Epoch {
            epoch,
            t_s,
            loss: report.mean_loss,
            deferred_pct: report.deferred_fraction * 100.0,
        })?;
        // The last epoch is measured on what `finish` leaves.
        if epoch + 1 < self.spec.epochs && self.measures(epoch, members) {
            let parameters = self.parameters.clone();
            self.snapshots.push(Snapshot { epoch, t_s, samples, parameters });
        }
        Ok(())
    }

    /// Whether this rank measures the accuracy at the end of an epoch: they take turns.
    fn measures(&self, epoch: u32, members: Option<&[u32]>) -> bool {
        let ranks = self.spec.ranks;
        let turns = (0..ranks).map(|next| (epoch % ranks + next) % ranks);
        let turns = turns.filter(|rank| self.crew.has(*rank));
        let mut able = turns.filter(|rank| members.is_none_or(|members| members.contains(rank)));
        able.next() == Some(self.rank)
    }

    /// Writes down what was decided at a meeting; rank 0 tells the parent too.
    fn note(&mut self, at: Position, decisions: Vec<Decision>) -> Result<(), WorkerError> {
        for decision in decisions {
            let t_s = self.clock.elapsed().as_secs_f64();
            let decision = Decision { t_s, step: at.step, samples: self.samples, ..decision };
            self.journal.decision(&decision);
            if self.rank == 0 {
                self.tell(&Message::Decision(decision))?;
            }
        }
        Ok(())
    }
}

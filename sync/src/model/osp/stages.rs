//! The stages of one step of OSP, and of a drain.
//!
//! Owns their order and what each does to the global state and to the trainer's copy. Never
//! communicates: it queues actions. Called by [`Osp`]'s event handler.

use super::correction::Guess;
use super::flight::{Ics, drain_id, rs_id};
use super::global::{Update, mean_of};
use super::importance::{Gib, Importance, random_score, turn_score};
use super::{Action, GibLag, IcsMerge, Lane, Osp, Stage, SyncModel, Tensors, Timing, check};
use crate::model::ReduceId;
use crate::optimiser::{StepSize, clip_scale, sum_of_squares};

impl Osp {
    /// Takes in a gradient during the backward pass.
    pub(super) fn begin_early(&mut self, tensor: usize, gradient: &[f32]) {
        self.begin_split();
        self.rs.put(tensor, gradient, &self.layout, &self.flights);
        self.rs.start(&mut self.actions);
    }

    /// Splits the step at hand, if that was not done.
    fn begin_split(&mut self) {
        if !std::mem::replace(&mut self.is_split, true) {
            self.turn_gib();
            let names = (rs_id(self.step), self.config.rs_parts.max(1));
            self.rs.begin(&self.layout, &self.gib, names, self.policy.window().is_some());
        }
    }

    /// Takes in all gradients that are not there yet.
    fn put_rest(&mut self, tensors: &Tensors<'_, '_>) {
        self.begin_split();
        for (tensor, gradient) in tensors.gradients.iter().enumerate() {
            if !self.rs.is_ready(tensor) {
                self.rs.put(tensor, gradient, &self.layout, &self.flights);
            }
        }
    }

    /// Waits for the ICS that this step may no longer go without, or goes on.
    pub(super) fn begin_step(&mut self, tensors: &mut Tensors<'_, '_>) {
        if self.overlaps() {
            self.put_rest(tensors);
            self.rs.start(&mut self.actions);
        }
        match self.flights.queue.front().filter(|ics| ics.step < self.due()) {
            Some(ics) => {
                self.actions.push_back(Action::Wait { id: ics.id() });
                self.stage = Stage::WaitingIcs;
            }
            None => self.begin_rs(tensors),
        }
    }

    /// The end of a step without a step after it: all that is under way, then all that was carried.
    pub(super) fn begin_drain(&mut self) {
        if let Some(ics) = self.flights.queue.front() {
            self.actions.push_back(Action::Wait { id: ics.id() });
            self.stage = Stage::Draining;
            return;
        }
        let mut data = std::mem::take(&mut self.buffers[0]);
        data.clear();
        for (index, slice) in self.layout.slices().iter().enumerate() {
            if self.flights.parts[index].carried > 0 {
                data.extend_from_slice(self.flights.carried(slice.flat()));
            }
        }
        if data.is_empty() {
            self.buffers[0] = data;
            self.stage = Stage::Idle;
        } else {
            self.actions.push_back(Action::Reduce { id: drain_id(self.step), data });
            self.stage = Stage::DrainingCarry;
        }
    }

    pub(super) fn handle_reduced(
        &mut self,
        id: ReduceId,
        data: Vec<f32>,
        timing: Timing,
        tensors: &mut Tensors<'_, '_>,
    ) {
        let is_overlapped = matches!(self.stage, Stage::Draining | Stage::WaitingIcs);
        // Of an RS that began in the backward pass, an end that nobody saw tells nothing.
        if is_overlapped || !timing.blocked.is_zero() {
            self.measurements.transfer(data.len(), self.job.world_size, timing, is_overlapped);
        }
        match self.stage {
            Stage::Draining => {
                self.merge_ics(data, Some(tensors));
                self.begin_drain();
            }
            Stage::DrainingCarry => {
                self.merge_carry(data, tensors);
                self.stage = Stage::Idle;
            }
            Stage::WaitingIcs => {
                self.window.wait(timing.blocked.as_secs_f64());
                self.merge_ics(data, None);
                self.begin_rs(tensors);
            }
            Stage::WaitingRs => {
                if self.rs.reduced(id, data) {
                    self.finish_rs(tensors);
                }
            }
            stage => panic!("a reduction ended in stage {stage:?}"),
        }
    }

    /// Step 1: applies the averaged gradients of the oldest ICS. Where no step follows, the
    /// trainer's parameters become the global ones.
    fn merge_ics(&mut self, data: Vec<f32>, mut publish: Option<&mut Tensors<'_, '_>>) {
        let ics = self.flights.queue.pop_front().expect("an ICS was waited for");
        let update = self.update(ics.step, ics.size);
        let mut rest = data.as_slice();
        let (mut mean_squares, mut elements) = (0.0, 0);
        for index in ics.slices {
            let slice = self.layout.slices()[index];
            let (gradient, later) = rest.split_at(slice.len);
            let part = &mut self.flights.parts[index];
            let count = part.sent;
            part.is_held = false;
            if self.measures_squares() {
                let squares = sum_of_squares(gradient);
                self.global.squares[index] = squares / (count * count) as f64;
                mean_squares += squares;
            }
            elements += slice.len as u64 * count;
            self.global.apply(index, slice.flat(), gradient, count, &update);
            if let Some(tensors) = &mut publish {
                let target = &mut tensors.parameters[slice.tensor][slice.within()];
                target.copy_from_slice(&self.global.parameters[slice.flat()]);
            }
            rest = later;
        }
        self.window.reduced(true, ics.own_squares, mean_squares, elements);
        self.buffers[1] = data;
    }

    /// The end of a drain: what was carried, with the size of the last step.
    fn merge_carry(&mut self, data: Vec<f32>, tensors: &mut Tensors<'_, '_>) {
        let update = self.update(self.step - 1, self.last_size);
        let mut rest = data.as_slice();
        for (index, slice) in self.layout.slices().iter().enumerate() {
            let count = self.flights.take_carry(index, slice.flat());
            if count > 0 {
                let (gradient, later) = rest.split_at(slice.len);
                self.global.apply(index, slice.flat(), gradient, count, &update);
                let target = &mut tensors.parameters[slice.tensor][slice.within()];
                target.copy_from_slice(&self.global.parameters[slice.flat()]);
                rest = later;
            }
        }
        self.buffers[0] = data;
    }

    /// Steps 2 and 3, or what is left of them.
    fn begin_rs(&mut self, tensors: &mut Tensors<'_, '_>) {
        self.put_rest(tensors);
        if self.rs.finish(&mut self.actions) {
            self.stage = Stage::WaitingRs;
        } else {
            self.finish_rs(tensors);
        }
    }

    /// The rest of step 3, and steps 4 and 5.
    fn finish_rs(&mut self, tensors: &mut Tensors<'_, '_>) {
        self.is_split = false;
        let size = self.step_size();
        let update = self.update(self.step, size);
        let mut deferred = std::mem::take(&mut self.buffers[1]);
        deferred.clear();
        let (mut sent, mut elements) = (Vec::new(), 0);
        for index in 0..self.layout.slices().len() {
            let slice = self.layout.slices()[index];
            let target = &mut tensors.parameters[slice.tensor][slice.within()];
            let gradient = &tensors.gradients[slice.tensor][slice.within()];
            if self.gib.is_important(index) {
                let count = self.flights.take_carry(index, slice.flat()) + 1;
                elements += slice.len as u64 * count;
                self.global.apply(index, slice.flat(), self.rs.average(index), count, &update);
                target.copy_from_slice(&self.global.parameters[slice.flat()]);
            } else if self.flights.parts[index].is_held {
                self.flights.carry(index, slice.flat(), gradient);
                self.guess(index, &update, target);
            } else {
                self.launch(index, gradient, &update, &mut deferred, target);
                sent.push(index);
            }
        }
        let mean_squares = self.rs.averages().map(|part| self.squares(part)).sum();
        self.window.reduced(false, self.rs.squares(), mean_squares, elements);
        self.sent_bytes = size_of_val(deferred.as_slice()) as u64;
        if sent.is_empty() {
            self.buffers[1] = deferred;
        } else {
            let own_squares = self.squares(&deferred);
            let id = Ics::id_of(self.step);
            self.actions.push_back(Action::StartReduce {
                id,
                data: deferred,
                lane: Lane::Background,
            });
            self.flights.queue.push_back(Ics { step: self.step, size, slices: sent, own_squares });
        }
        self.last_size = size;
        self.step += 1;
        self.begin_agreements();
    }

    /// Steps 4 and 5 for a slice that is deferred and not under way.
    fn launch(
        &mut self,
        index: usize,
        gradient: &[f32],
        update: &Update,
        deferred: &mut Vec<f32>,
        target: &mut [f32],
    ) {
        let slice = self.layout.slices()[index];
        let flat = slice.flat();
        let start = deferred.len();
        let count = self.flights.append(index, flat.clone(), gradient, deferred);
        self.flights.take_carry(index, flat.clone());
        self.flights.launch(index, count, update.step, update.size);
        if self.config.span == 1 {
            let before = self.global.before(flat, gradient);
            self.config.lgp.provisional(&update.job.optimiser, before, update.size, target);
            return;
        }
        match self.config.merge {
            IcsMerge::Delta => self.flights.show(index, flat, &deferred[start..], count),
            IcsMerge::Overwrite => self.flights.show(index, flat, gradient, 1),
        }
        self.guess(index, update, target);
    }

    /// Step 4 where ICS spans steps: what the slice would be if all that is under way, and all
    /// that is carried, had this rank's gradients for averages.
    fn guess(&self, index: usize, update: &Update, target: &mut [f32]) {
        let flat = self.layout.slices()[index].flat();
        let part = self.flights.parts[index];
        let mut guess = Guess {
            parameters: self.global.parameters[flat.clone()].to_vec(),
            moments: self.global.moments.part(flat.clone()),
            average: self.global.average.get(flat.clone()).unwrap_or_default(),
        };
        let (lgp, optimiser) = (self.config.lgp, &update.job.optimiser);
        let shown = (self.flights.shown(flat.clone()), part.shown);
        lgp.advance(optimiser, &mut guess, shown, part.size);
        if part.carried > 0 {
            let carried = (self.flights.carried(flat), part.carried);
            lgp.advance(optimiser, &mut guess, carried, update.size);
        }
        target.copy_from_slice(&guess.parameters);
    }

    /// After a step: the end of a window, then the comparison of replicas, where they are due.
    pub(super) fn begin_agreements(&mut self) {
        if self.policy.window().is_some_and(|window| self.window.steps >= window) {
            self.actions.push_back(Action::Gather { words: self.window.words() });
            self.stage = Stage::EndingWindow;
        } else {
            self.begin_check();
        }
    }

    pub(super) fn begin_check(&mut self) {
        self.stage = Stage::Idle;
        if self.job.check_is_due(self.step) {
            let words = vec![self.fingerprint()];
            self.actions.push_back(Action::Gather { words });
            self.stage = Stage::Checking;
        }
    }

    pub(super) fn check_replicas(&mut self, words: &[u64]) {
        self.actions.extend(check::compare(self.step, words).map(Action::Fail));
        self.stage = Stage::Idle;
    }

    /// Step 2: the bitmap of the step at hand.
    fn turn_gib(&mut self) {
        let due = self.due();
        if self.decision.bytes == 0 {
            if self.gib.deferred_bytes() > 0 {
                self.gib = Gib::all_important(self.layout.slices().len());
            }
            self.upcoming = None;
        } else {
            let is_due = self.step.is_multiple_of(self.config.gib_every);
            let fresh = is_due.then(|| self.select_gib());
            match self.config.gib_lag {
                GibLag::One => self.gib = fresh.unwrap_or_else(|| self.gib.clone()),
                GibLag::Two => {
                    if let Some(upcoming) = std::mem::replace(&mut self.upcoming, fresh) {
                        self.gib = upcoming;
                    }
                }
            }
        }
        // A slice that stays under way cannot be reduced a second time.
        self.gib.hold(&self.layout, |index| self.flights.is_held(index, due));
    }

    /// What was sent in earlier steps than this one is merged in the step at hand.
    fn due(&self) -> u64 {
        (self.step + 1).saturating_sub(self.config.span)
    }

    fn select_gib(&mut self) -> Gib {
        let due = self.due();
        let Self { layout, global, config, job, step, flights, .. } = self;
        let count = layout.slices().len();
        let (min_len, bytes) = (config.min_deferred_len, self.decision.bytes);
        let scores: Vec<f32> = match config.importance {
            Importance::Random if *step > 0 => {
                (0..count).map(|slice| random_score(job.seed, *step, slice)).collect()
            }
            Importance::RoundRobin if *step > 0 => {
                (0..count).map(|slice| turn_score(slice, self.cursor, count)).collect()
            }
            _ => global.scores.clone(),
        };
        let gib =
            Gib::select_with(layout, &scores, min_len, bytes, |index| flights.is_held(index, due));
        if config.importance == Importance::RoundRobin && count > 0 {
            let may_wait =
                |index: &usize| layout.tensors()[layout.slices()[*index].tensor].len >= min_len;
            let important = (0..count).filter(may_wait).filter(|index| gib.is_important(*index));
            self.cursor = (self.cursor + count - important.count() % count) % count;
        }
        gib
    }

    /// How far this step goes, on important slices and later on deferred ones: a gradient is
    /// clipped by its norm where it is known, and by that of the step before where it is not yet.
    fn step_size(&mut self) -> StepSize {
        let mut size = StepSize::new(self.ended.learning_rate, self.global.updates + self.step);
        if self.job.clip_norm.is_some() {
            let mut room = Vec::new();
            for index in 0..self.layout.slices().len() {
                if self.gib.is_important(index) {
                    let count = self.flights.parts[index].carried + 1;
                    let mean = mean_of(self.rs.average(index), count, &mut room);
                    self.global.squares[index] = sum_of_squares(mean);
                }
            }
            let norm = self.global.squares.iter().sum::<f64>().sqrt();
            size.gradient_scale = clip_scale(norm, self.job.clip_norm);
        }
        size
    }

    fn update(&self, step: u64, size: StepSize) -> Update {
        // A bitmap is made at steps that `gib_every` divides, of the gradients of the step before;
        // where ICS spans steps, of the last gradients that each slice has had.
        let is_due = self.config.span > 1 || (step + 1).is_multiple_of(self.config.gib_every);
        let is_scored = self.decision.bytes > 0 && is_due;
        Update { step, size, is_scored, job: self.job, config: self.config }
    }

    fn measures_squares(&self) -> bool {
        self.job.clip_norm.is_some() || self.policy.window().is_some()
    }

    /// The sum of squares, if a window's rule wants it.
    fn squares(&self, data: &[f32]) -> f64 {
        if self.policy.window().is_some() { sum_of_squares(data) } else { 0.0 }
    }
}

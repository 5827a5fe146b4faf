//! BSP: all ranks average all gradients after each step, and wait for it.
//!
//! Owns the optimiser's memory. The parameters are the trainer's own, the same on every rank.
//! Never lets a rank go on before the last byte is there: bucketed reductions during the backward
//! pass, which would hide a part, are not made yet. Built by [`super::build`].
//!
//! Per step and rank: one all_reduce of S(G) bytes, all of it exposed.

use std::collections::VecDeque;

use super::check::{self, Fingerprint};
use super::osp::budget::Decision;
use super::{Action, Event, Job, Memory, SyncModel, Tensors, Traffic};
use crate::layout::ELEMENT_BYTES;
use crate::optimiser::{Moments, StepSize, clip_scale, sum_of_squares};

/// Bulk synchronous parallel.
#[derive(Debug)]
pub struct Bsp {
    job: Job,
    memory: Memory,
    /// Finished steps.
    step: u64,
    learning_rate: f32,
    /// Room for a flat gradient, between steps.
    buffer: Vec<f32>,
    actions: VecDeque<Action>,
    decision: Decision,
}

impl Bsp {
    /// A model at rest.
    pub fn new(job: Job, memory: Memory) -> Self {
        Self {
            job,
            step: 0,
            learning_rate: 0.0,
            buffer: Vec::with_capacity(memory.moments.first.len()),
            memory,
            actions: VecDeque::new(),
            decision: Decision::never(),
        }
    }

    fn apply(&mut self, data: Vec<f32>, tensors: &mut Tensors<'_, '_>) {
        let mut size = StepSize::new(self.learning_rate, self.memory.updates);
        if self.job.clip_norm.is_some() {
            let norm = sum_of_squares(&data).sqrt();
            size.gradient_scale = clip_scale(norm, self.job.clip_norm);
        }
        let mut start = 0;
        for parameters in tensors.parameters.iter_mut() {
            let range = start..start + parameters.len();
            start = range.end;
            let moments = self.memory.moments.range_mut(range.clone());
            self.job.optimiser.step(parameters, moments, &data[range], size);
        }
        self.memory.updates += 1;
        self.buffer = data;
        self.step += 1;
        if self.job.check_is_due(self.step) {
            let mut print = Fingerprint::new(self.step);
            tensors.parameters.iter().for_each(|parameters| print.floats(parameters));
            self.actions.push_back(Action::Gather { words: vec![print.value()] });
        }
    }
}

impl SyncModel for Bsp {
    fn handle_event(&mut self, event: Event, tensors: &mut Tensors<'_, '_>) {
        match event {
            Event::Drain | Event::EpochEnded { .. } => {}
            Event::Gathered { words } => {
                self.actions.extend(check::compare(self.step, &words).map(Action::Fail));
            }
            Event::Reduced { data, .. } => self.apply(data, tensors),
            Event::StepEnded(ended) => {
                self.learning_rate = ended.learning_rate;
                let mut data = std::mem::take(&mut self.buffer);
                data.clear();
                tensors.gradients.iter().for_each(|gradient| data.extend_from_slice(gradient));
                self.actions.push_back(Action::Reduce { id: self.step, data });
            }
            event => panic!("BSP does not wait for '{}'", event.name()),
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn staleness(&self) -> u64 {
        0
    }

    fn traffic(&self) -> Traffic {
        let important_bytes = (self.memory.moments.first.len() * ELEMENT_BYTES) as u64;
        Traffic { important_bytes, deferred_bytes: 0 }
    }

    fn decision(&self) -> &Decision {
        &self.decision
    }

    fn take_memory(&mut self) -> Option<Memory> {
        let empty = Memory { moments: Moments::default(), updates: 0 };
        Some(std::mem::replace(&mut self.memory, empty))
    }
}

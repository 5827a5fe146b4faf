//! BSP: all ranks average all gradients after each step, and wait for it.
//!
//! Owns the optimiser's memory. The parameters are the trainer's own, the same on every rank.
//! Never lets a rank go on before the last byte is there. Built by [`super::build`].
//!
//! Per step and rank: one all_reduce of S(G) bytes, all of it exposed. With buckets, one for each,
//! that start while the backward pass goes on: exposed is what does not hide behind it. Both give
//! the same bits wherever the sums of the reductions do.

mod buckets;
mod replan;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::check::{self, Fingerprint};
use super::osp::budget::Decision;
use super::{Action, Event, Job, Memory, SyncModel, Tensors, Traffic};
use crate::bucket::rule::BucketRule;
use crate::layout::{ELEMENT_BYTES, Layout};
use crate::optimiser::{Moments, StepSize, clip_scale, sum_of_squares};
use buckets::Bucketing;

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
    /// None for one reduction after the backward pass.
    buckets: Option<Bucketing>,
    /// What the exchanges asked for are for, the first one first.
    gathers: VecDeque<Purpose>,
    decision: Decision,
}

/// What an exchange of words is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Comparing the replicas.
    Check,
    /// Planning the buckets.
    Plan,
}

impl Bsp {
    /// A model at rest that reduces everything at once.
    pub fn new(job: Job, memory: Memory) -> Self {
        Self {
            job,
            step: 0,
            learning_rate: 0.0,
            buffer: Vec::with_capacity(memory.moments.first.len()),
            memory,
            actions: VecDeque::new(),
            buckets: None,
            gathers: VecDeque::new(),
            decision: Decision::never(),
        }
    }

    /// A model at rest that reduces gradients in buckets, cut by `rule`.
    pub fn with_buckets(job: Job, memory: Memory, rule: BucketRule, layout: &Layout) -> Self {
        Self { buckets: Some(Bucketing::new(rule, layout)), ..Self::new(job, memory) }
    }

    fn gather(&mut self, purpose: Purpose, words: Vec<u64>) {
        self.gathers.push_back(purpose);
        self.actions.push_back(Action::Gather { words });
    }

    /// Applies what the buckets hold.
    fn apply_buckets(&mut self, tensors: &mut Tensors<'_, '_>) {
        let Some(buckets) = &mut self.buckets else { return };
        let mut data = std::mem::take(&mut self.buffer);
        let words = buckets.finish_step(&mut data);
        self.apply(data, tensors);
        if let Some(words) = words {
            self.gather(Purpose::Plan, words);
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
            self.gather(Purpose::Check, vec![print.value()]);
        }
    }
}

impl SyncModel for Bsp {
    fn handle_event(&mut self, event: Event, tensors: &mut Tensors<'_, '_>) {
        match event {
            Event::Drain | Event::EpochEnded { .. } => {}
            Event::Gathered { words } => match (self.gathers.pop_front(), &mut self.buckets) {
                (Some(Purpose::Plan), Some(buckets)) => buckets.replan(&words),
                _ => self.actions.extend(check::compare(self.step, &words).map(Action::Fail)),
            },
            Event::GradientReady { tensor, compute } => {
                if let Some(buckets) = &mut self.buckets {
                    buckets.add(tensor, tensors.gradients[0], compute, &mut self.actions);
                }
            }
            Event::Reduced { id, data, timing } => match &mut self.buckets {
                None => self.apply(data, tensors),
                Some(buckets) => {
                    if buckets.reduced(id, data, timing.blocked) {
                        self.apply_buckets(tensors);
                    }
                }
            },
            Event::StepEnded(ended) => {
                self.learning_rate = ended.learning_rate;
                if let Some(buckets) = &mut self.buckets {
                    buckets.end_step(tensors.gradients, ended.compute, &mut self.actions);
                    if buckets.is_complete() {
                        self.apply_buckets(tensors);
                    }
                    return;
                }
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

    fn overlaps(&self) -> bool {
        self.buckets.is_some()
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

//! Buckets of gradients that are reduced while the backward pass goes on.
//!
//! Owns which tensors go together, what of them is ready, and the order in which reductions start.
//! Never changes a parameter: BSP does, with the averaged gradients that this gives it. Called by
//! [`super::Bsp`].
//!
//! A bucket starts when all its tensors are ready and all buckets before it have started. So the
//! order of reductions follows from the plan alone, whatever the order of tensors on each rank.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::replan::{Replan, Stage};
use crate::bucket::rule::BucketRule;
use crate::bucket::{self, Gradient};
use crate::layout::{ELEMENT_BYTES, Layout};
use crate::model::{Action, Lane, ReduceId};

/// The gradients of one rank, in buckets.
#[derive(Debug)]
pub(super) struct Bucketing {
    /// Each tensor's place in a flat gradient.
    flat: Vec<Range<usize>>,
    rule: BucketRule,
    replan: Option<Replan>,
    stage: Stage,
    buckets: Vec<Bucket>,
    /// By tensor: its bucket and its place there; none without elements.
    places: Vec<Option<(usize, Range<usize>)>>,
    /// Of the step under way.
    is_ready: Vec<bool>,
    /// The first bucket that has not started.
    next: usize,
    /// The reduction of the first bucket of this step.
    base: ReduceId,
    /// Buckets whose average is there.
    reduced: usize,
}

#[derive(Debug)]
struct Bucket {
    tensors: Vec<usize>,
    len: usize,
    /// Gradients, then their average; out while it is reduced.
    data: Vec<f32>,
    missing: usize,
}

impl Bucketing {
    pub(super) fn new(rule: BucketRule, layout: &Layout) -> Self {
        let mut start = 0;
        let range = |len: usize| {
            start += len;
            start - len..start
        };
        let flat: Vec<Range<usize>> =
            layout.tensors().iter().map(|spec| spec.len).map(range).collect();
        let count = flat.len();
        let mut bucketing = Self {
            flat,
            rule,
            replan: Replan::new(rule, count),
            stage: Stage::Settled,
            buckets: Vec::new(),
            places: Vec::new(),
            is_ready: vec![false; count],
            next: 0,
            base: 0,
            reduced: 0,
        };
        bucketing.begin_step();
        bucketing
    }

    /// Takes in a gradient of the step under way, which is ready after `compute`.
    ///
    /// # Panics
    /// If it was there before, or has another length.
    pub(super) fn add(
        &mut self,
        tensor: usize,
        gradient: &[f32],
        compute: Duration,
        actions: &mut VecDeque<Action>,
    ) {
        self.put(tensor, gradient, compute);
        if !self.stage.is_measured() {
            self.start(actions);
        }
    }

    /// Takes in the gradients that were not added, and asks for all that is not under way.
    pub(super) fn end_step(
        &mut self,
        gradients: &[&[f32]],
        compute: Duration,
        actions: &mut VecDeque<Action>,
    ) {
        for (tensor, gradient) in gradients.iter().enumerate() {
            if !self.is_ready[tensor] {
                self.put(tensor, gradient, compute);
            }
        }
        let ids = self.base..self.base + self.buckets.len() as u64;
        if self.stage.is_measured() {
            let buckets = self.buckets.iter_mut().zip(ids);
            actions.extend(
                buckets.map(|(bucket, id)| Action::Reduce {
                    id,
                    data: std::mem::take(&mut bucket.data),
                }),
            );
        } else {
            self.start(actions);
            actions.extend(ids.map(|id| Action::Wait { id }));
        }
    }

    /// Takes in a bucket's average, for which the rank was `blocked`; whether it is the last.
    pub(super) fn reduced(&mut self, id: ReduceId, data: Vec<f32>, blocked: Duration) -> bool {
        let index = (id - self.base) as usize;
        if let Some(replan) = &mut self.replan {
            replan.reduced(self.stage, index, blocked);
        }
        self.buckets[index].data = data;
        self.reduced += 1;
        self.is_complete()
    }

    /// Whether all averages of the step are there.
    pub(super) fn is_complete(&self) -> bool {
        self.reduced == self.buckets.len()
    }

    /// Writes the averages of the step that is complete into `flat`, and begins the next. The
    /// words to exchange, if a plan is to be made of them.
    pub(super) fn finish_step(&mut self, flat: &mut Vec<f32>) -> Option<Vec<u64>> {
        flat.resize(self.flat.last().map_or(0, |range| range.end), 0.0);
        for (range, place) in self.flat.iter().zip(&self.places) {
            if let Some((bucket, within)) = place {
                flat[range.clone()].copy_from_slice(&self.buckets[*bucket].data[within.clone()]);
            }
        }
        self.base += self.buckets.len() as u64;
        let words = self.replan.as_mut().and_then(Replan::end_step);
        self.begin_step();
        words
    }

    /// Plans anew from the words of all ranks.
    pub(super) fn replan(&mut self, words: &[u64]) {
        let Some(replan) = self.replan.take() else { return };
        let sizes: Vec<u64> = self.flat.iter().map(|range| bytes(range.len())).collect();
        if let Some((order, buckets)) = replan.plan(words, &sizes) {
            self.cut(&order, &buckets);
        }
    }

    /// Tensors of each bucket, in the order in which these start.
    #[cfg(test)]
    pub(super) fn plan(&self) -> Vec<Vec<usize>> {
        self.buckets.iter().map(|bucket| bucket.tensors.clone()).collect()
    }

    fn begin_step(&mut self) {
        let stage = self.replan.as_ref().map_or(Stage::Settled, Replan::stage);
        if stage != self.stage || self.places.is_empty() {
            self.stage = stage;
            let order = self.reverse_order();
            let gradients: Vec<Gradient> = order
                .iter()
                .map(|tensor| Gradient {
                    bytes: bytes(self.flat[*tensor].len()),
                    backward: Duration::ZERO,
                })
                .collect();
            let buckets = match stage {
                Stage::Grown => bucket::rule::grow(&gradients),
                Stage::Settled => self.rule.caps().fill(&gradients),
                Stage::Whole => bucket::Buckets::from_iter(
                    (!gradients.is_empty()).then_some(0..gradients.len()),
                ),
            };
            self.cut(&order, &buckets);
        }
        self.is_ready.fill(false);
        (self.next, self.reduced) = (0, 0);
        self.buckets.iter_mut().for_each(|bucket| bucket.missing = bucket.tensors.len());
    }

    /// The tensors with elements, last first.
    fn reverse_order(&self) -> Vec<usize> {
        (0..self.flat.len()).rev().filter(|tensor| !self.flat[*tensor].is_empty()).collect()
    }

    /// Makes buckets of these runs of tensors.
    fn cut(&mut self, order: &[usize], buckets: &[Range<usize>]) {
        self.places = vec![None; self.flat.len()];
        self.buckets.clear();
        for run in buckets {
            let tensors = order[run.clone()].to_vec();
            let mut len = 0;
            for tensor in &tensors {
                let start = len;
                len += self.flat[*tensor].len();
                self.places[*tensor] = Some((self.buckets.len(), start..len));
            }
            let missing = tensors.len();
            self.buckets.push(Bucket { tensors, len, data: Vec::new(), missing });
        }
    }

    fn put(&mut self, tensor: usize, gradient: &[f32], compute: Duration) {
        assert!(!self.is_ready[tensor], "tensor {tensor} is ready twice");
        self.is_ready[tensor] = true;
        if let Some(replan) = &mut self.replan {
            replan.ready(self.stage, tensor, compute);
        }
        if let Some((index, within)) = self.places[tensor].clone() {
            let bucket = &mut self.buckets[index];
            bucket.data.resize(bucket.len, 0.0);
            bucket.data[within].copy_from_slice(gradient);
            bucket.missing -= 1;
        }
    }

    /// Starts what can start.
    fn start(&mut self, actions: &mut VecDeque<Action>) {
        while let Some(bucket) = self.buckets.get_mut(self.next).filter(|next| next.missing == 0) {
            let (id, data) = (self.base + self.next as u64, std::mem::take(&mut bucket.data));
            actions.push_back(Action::StartReduce { id, data, lane: Lane::Urgent });
            self.next += 1;
        }
    }
}

fn bytes(len: usize) -> u64 {
    (len * ELEMENT_BYTES) as u64
}

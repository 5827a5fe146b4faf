//! RS of one step: the important gradients, in one part or in several that start during the
//! backward pass.
//!
//! Owns which slices go together, what of them is ready, and the order in which reductions start.
//! Never changes a parameter. Called by the stages.
//!
//! Parts are runs of tensors, last first, since the backward pass comes to these first. A part
//! starts when all its tensors are ready and all parts before it have started: the order follows
//! from the bitmap alone, whatever the order of tensors on each rank.

use std::collections::VecDeque;
use std::ops::Range;

use super::flight::Flights;
use super::importance::Gib;
use crate::layout::{ELEMENT_BYTES, Layout};
use crate::model::{Action, Lane, ReduceId};
use crate::optimiser::sum_of_squares;

/// The important gradients of one step of one rank.
#[derive(Debug, Default)]
pub(super) struct Rs {
    parts: Vec<Part>,
    /// By slice: its part and its place there; none where it is deferred.
    places: Vec<Option<(usize, Range<usize>)>>,
    /// By tensor: its part, if it has an important slice.
    tensors: Vec<Option<usize>>,
    /// By tensor.
    is_ready: Vec<bool>,
    /// The reduction of the first part.
    base: ReduceId,
    /// The first part that has not started.
    next: usize,
    /// Parts whose average is there.
    reduced: usize,
    /// Sum of squares of what was put in, if that is wanted.
    squares: Option<f64>,
    /// Buffers of earlier steps.
    spare: Vec<Vec<f32>>,
}

#[derive(Debug)]
struct Part {
    len: usize,
    /// Gradients, then their average; out while it is reduced.
    data: Vec<f32>,
    /// Tensors that are not ready.
    missing: usize,
}

impl Rs {
    /// Begins a step with this bitmap, in at most `most` parts, whose reductions have names from
    /// `base` on.
    pub(super) fn begin(
        &mut self,
        layout: &Layout,
        gib: &Gib,
        (base, most): (ReduceId, u64),
        measures_squares: bool,
    ) {
        let room = std::mem::take(&mut self.parts).into_iter().map(|part| part.data);
        self.spare.extend(room.filter(|data| data.capacity() > 0));
        let count = layout.tensors().len();
        (self.base, self.next, self.reduced) = (base, 0, 0);
        self.squares = measures_squares.then_some(0.0);
        refill(&mut self.is_ready, count, false);
        refill(&mut self.tensors, count, None);
        refill(&mut self.places, layout.slices().len(), None);
        // A part that is closed has at least its share, so that there are never more than `most`.
        let elements = (layout.bytes() - gib.deferred_bytes()) / ELEMENT_BYTES as u64;
        let cap = usize::try_from(elements.div_ceil(most)).unwrap_or(usize::MAX);
        let mut is_open = false;
        let mut end = layout.slices().len();
        for tensor in (0..count).rev() {
            let mine = |index: &usize| layout.slices()[*index].tensor == tensor;
            let first = (0..end).rev().take_while(mine).last().unwrap_or(end);
            let important = (first..end).filter(|index| gib.is_important(*index));
            for index in important {
                if !is_open {
                    let data = self.spare.pop().unwrap_or_default();
                    self.parts.push(Part { len: 0, data, missing: 0 });
                    is_open = true;
                }
                let number = self.parts.len() - 1;
                let part = &mut self.parts[number];
                if self.tensors[tensor].is_none() {
                    self.tensors[tensor] = Some(number);
                    part.missing += 1;
                }
                let start = part.len;
                part.len += layout.slices()[index].len;
                self.places[index] = Some((number, start..part.len));
            }
            end = first;
            is_open &= self.parts.last().is_some_and(|part| part.len < cap);
        }
        // What is in it is overwritten whole before it is sent.
        self.parts.iter_mut().for_each(|part| part.data.resize(part.len, 0.0));
    }

    /// Whether this tensor's gradient was put in.
    pub(super) fn is_ready(&self, tensor: usize) -> bool {
        self.is_ready[tensor]
    }

    /// Takes in a gradient, and what was carried of it.
    ///
    /// # Panics
    /// If it was there before.
    pub(super) fn put(
        &mut self,
        tensor: usize,
        gradient: &[f32],
        layout: &Layout,
        flights: &Flights,
    ) {
        assert!(!self.is_ready[tensor], "tensor {tensor} is ready twice");
        self.is_ready[tensor] = true;
        let Some(number) = self.tensors[tensor] else { return };
        let first = layout.slices().partition_point(|slice| slice.tensor < tensor);
        let slices = layout.slices()[first..].iter().take_while(|slice| slice.tensor == tensor);
        let part = &mut self.parts[number];
        for (index, slice) in (first..).zip(slices) {
            if let Some((_, place)) = &self.places[index] {
                let target = &mut part.data[place.clone()];
                flights.write(index, slice.flat(), &gradient[slice.within()], target);
                if let Some(squares) = &mut self.squares {
                    *squares += sum_of_squares(target);
                }
            }
        }
        part.missing -= 1;
    }

    /// Sum of squares of all that was put in; 0 if that was not asked for.
    pub(super) fn squares(&self) -> f64 {
        self.squares.unwrap_or(0.0)
    }

    /// Starts what can start.
    pub(super) fn start(&mut self, actions: &mut VecDeque<Action>) {
        while let Some(part) = self.parts.get_mut(self.next).filter(|next| next.missing == 0) {
            let (id, data) = (self.base + self.next as u64, std::mem::take(&mut part.data));
            actions.push_back(Action::StartReduce { id, data, lane: Lane::Urgent });
            self.next += 1;
        }
    }

    /// Asks for all averages, whose gradients are all there; whether there is any.
    pub(super) fn finish(&mut self, actions: &mut VecDeque<Action>) -> bool {
        match &mut self.parts[..] {
            [] => return false,
            // Who waits at once is quicker without a request.
            [part] if self.next == 0 => {
                let data = std::mem::take(&mut part.data);
                actions.push_back(Action::Reduce { id: self.base, data });
            }
            parts => {
                let ids = (self.base..).take(parts.len());
                self.start(actions);
                actions.extend(ids.map(|id| Action::Wait { id }));
            }
        }
        true
    }

    /// All averages, part by part, once they are complete.
    pub(super) fn averages(&self) -> impl Iterator<Item = &[f32]> {
        self.parts.iter().map(|part| &part.data[..])
    }

    /// Takes in a part's average; whether it is the last.
    pub(super) fn reduced(&mut self, id: ReduceId, data: Vec<f32>) -> bool {
        self.parts[(id - self.base) as usize].data = data;
        self.reduced += 1;
        self.reduced == self.parts.len()
    }

    /// The average of an important slice, once it is complete.
    pub(super) fn average(&self, index: usize) -> &[f32] {
        let (number, place) = self.places[index].clone().expect("an important slice");
        &self.parts[number].data[place]
    }
}

/// Makes `list` so many copies of `value`, in the room that it has.
fn refill<T: Clone>(list: &mut Vec<T>, len: usize, value: T) {
    list.clear();
    list.resize(len, value);
}

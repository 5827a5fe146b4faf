//! A round whose transfers are under way, and what they wait for of the round before.
//!
//! Owns which chunks are posted and which are done. Called by [`super::machine`].
//!
//! A transfer waits for one of the round before if they share elements and either of them is a
//! receive. If they have the same span, which is cut into the same chunks, chunk waits for chunk;
//! else for the whole step. A send of nothing waits for all receives of the round before: it says
//! that its rank has come this far, and so have those that it heard of. Nothing else of two
//! adjacent rounds can conflict, since the rounds before them are over.

use super::machine::{Direction, PlanOutput, Transfer, chunks};
use super::plan::{Round, Span, Step};
use crate::id::Rank;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The transfers of a round.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    steps: Vec<StepInFlight>,
    /// Where a message's step is, in order of the message.
    places: Vec<(Name, usize)>,
    /// Chunks that are not done.
    left: u64,
}

/// What tells a round's transfers apart, but for their chunk.
type Name = (Rank, u32, bool);

#[derive(Debug)]
struct StepInFlight {
    peer: Rank,
    tag: u32,
    direction: Direction,
    span: Span,
    chunks: Vec<Chunk>,
    /// Chunks that are not done.
    left: u64,
    waits: Vec<WaitsFor>,
}

#[derive(Debug)]
struct Chunk {
    span: Span,
    is_posted: bool,
    is_done: bool,
}

/// A step of the round before, by its place.
#[derive(Clone, Copy, Debug)]
struct WaitsFor {
    step: usize,
    /// Chunk by chunk; else all of it.
    is_alike: bool,
}

impl InFlight {
    /// Of a round, with nothing posted yet. Receives come first: memory is ready before the peer is
    /// told to send.
    pub(super) fn new(round: &Round, chunk_len: u64) -> Self {
        let mut steps = Vec::new();
        for wants_receives in [true, false] {
            for step in &round.steps {
                let (peer, tag, span, direction) = match *step {
                    Step::Recv { peer, tag, span, fold } if wants_receives => {
                        (peer, tag, span, Direction::Recv(fold))
                    }
                    Step::Send { peer, tag, span } if !wants_receives => {
                        (peer, tag, span, Direction::Send)
                    }
                    _ => continue,
                };
                let chunk = |(_, span)| Chunk { span, is_posted: false, is_done: false };
                let chunks: Vec<_> = chunks(span, chunk_len).map(chunk).collect();
                let (left, waits) = (chunks.len() as u64, Vec::new());
                steps.push(StepInFlight { peer, tag, direction, span, chunks, left, waits });
            }
        }
        let name = |(place, step): (usize, &StepInFlight)| {
            (name(step.peer, step.tag, step.direction), place)
        };
        let mut places: Vec<_> = steps.iter().enumerate().map(name).collect();
        places.sort_unstable();
        let left = steps.iter().map(|step| step.left).sum();
        Self { steps, places, left }
    }

    /// Whether all is done.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Whether everything is posted.
    pub(super) fn is_posted(&self) -> bool {
        self.steps.iter().flat_map(|step| &step.chunks).all(|chunk| chunk.is_posted)
    }

    /// Whether a message of both has the same name.
    pub(super) fn shares_a_name(&self, other: &Self) -> bool {
        let is_there = |(name, _): &(Name, usize)| {
            other.places.binary_search_by_key(name, |(name, _)| *name).is_ok()
        };
        self.places.iter().any(is_there)
    }

    /// Posts everything.
    pub(super) fn post_all(&mut self, outputs: &mut VecDeque<PlanOutput>) {
        for step in &mut self.steps {
            for chunk in 0..step.chunks.len() {
                step.post(chunk, outputs);
            }
        }
    }

    /// Takes down what this round's transfers wait for.
    pub(super) fn wait_for(&mut self, before: &Self) {
        for step in &mut self.steps {
            let conflicts = |earlier: &StepInFlight| {
                let (is_send, after_send) =
                    (step.direction == Direction::Send, earlier.direction == Direction::Send);
                let tells = is_send && step.span.len == 0 && !after_send;
                tells || !(is_send && after_send) && step.span.overlaps(&earlier.span)
            };
            let waits = before.steps.iter().enumerate().filter(|(_, earlier)| conflicts(earlier));
            let waits = waits.map(|(place, earlier)| WaitsFor {
                step: place,
                is_alike: earlier.span == step.span,
            });
            step.waits = waits.collect();
        }
    }

    /// Posts what need not wait.
    pub(super) fn post_ready(&mut self, before: &Self, outputs: &mut VecDeque<PlanOutput>) {
        for step in &mut self.steps {
            for chunk in 0..step.chunks.len() {
                step.post_if_ready(chunk, before, outputs);
            }
        }
    }

    /// Posts what waited for this chunk of a step of the round before.
    pub(super) fn post_after(
        &mut self,
        before: &Self,
        done: usize,
        chunk: u32,
        outputs: &mut VecDeque<PlanOutput>,
    ) {
        let is_all_done = before.steps[done].left == 0;
        for step in &mut self.steps {
            let Some(waits) = step.waits.iter().find(|waits| waits.step == done) else { continue };
            if waits.is_alike {
                step.post_if_ready(chunk as usize, before, outputs);
            } else if is_all_done {
                for chunk in 0..step.chunks.len() {
                    step.post_if_ready(chunk, before, outputs);
                }
            }
        }
    }

    /// A transfer is done; the place of its step, if it is of this round.
    pub(super) fn complete(&mut self, transfer: &Transfer) -> Option<usize> {
        let name = name(transfer.peer, transfer.tag, transfer.direction);
        let found = self.places.binary_search_by_key(&name, |(name, _)| *name).ok()?;
        let (_, place) = self.places[found];
        let step = &mut self.steps[place];
        let chunk = step.chunks.get_mut(transfer.chunk as usize)?;
        debug_assert!(chunk.is_posted && !chunk.is_done, "{transfer:?} is not under way");
        if !core::mem::replace(&mut chunk.is_done, true) {
            step.left -= 1;
            self.left -= 1;
        }
        Some(place)
    }
}

impl StepInFlight {
    fn post_if_ready(
        &mut self,
        chunk: usize,
        before: &InFlight,
        outputs: &mut VecDeque<PlanOutput>,
    ) {
        let is_met = |waits: &WaitsFor| {
            let earlier = &before.steps[waits.step];
            if waits.is_alike { earlier.chunks[chunk].is_done } else { earlier.left == 0 }
        };
        if self.waits.iter().all(is_met) {
            self.post(chunk, outputs);
        }
    }

    fn post(&mut self, chunk: usize, outputs: &mut VecDeque<PlanOutput>) {
        let Chunk { span, is_posted, .. } = &mut self.chunks[chunk];
        if core::mem::replace(is_posted, true) {
            return;
        }
        let (peer, tag, direction) = (self.peer, self.tag, self.direction);
        let chunk = u32::try_from(chunk).expect("chunks of a span are counted in 32 bits");
        outputs.push_back(PlanOutput::Post(Transfer { peer, tag, chunk, direction, span: *span }));
    }
}

fn name(peer: Rank, tag: u32, direction: Direction) -> Name {
    (peer, tag, direction == Direction::Send)
}

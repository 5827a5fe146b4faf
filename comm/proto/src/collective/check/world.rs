//! Runs all ranks of a world at once, on expressions in place of numbers.
//!
//! A send ends only when its receive is posted. That is the hardest transport a plan can meet:
//! one that takes messages early can only help.

use super::values::{Value, Values};
use super::wires::Wires;
use super::{Flaw, Job, Place};
use crate::collective::plan::{Area, Fold, Span, Step};
use crate::id::Rank;
use alloc::vec;
use alloc::vec::Vec;

/// The world when all have finished.
pub(super) struct End {
    pub(super) values: Values,
    ranks: Vec<State>,
}

impl End {
    pub(super) fn output(&self, rank: Rank) -> &[Value] {
        &self.ranks[rank as usize].areas[Area::Output as usize]
    }

    /// Whether something that `other` did before can have led to the end of `rank`.
    pub(super) fn has_heard(&self, rank: Rank, other: Rank) -> bool {
        let (word, bit) = bit_of(other);
        self.ranks[rank as usize].heard[word] & bit != 0
    }
}

/// Runs to the end.
pub(super) fn run(job: &Job<'_>, wires: &Wires) -> Result<End, Flaw> {
    let source_len = |rank| job.source(rank).map_or(0, |area| job.area_len(rank, area));
    let values = Values::new(job.ranks().map(source_len));
    let ranks = job.ranks().map(|rank| State::new(job, &values, rank)).collect();
    let mut world = World { job, wires, end: End { values, ranks }, posted: Vec::new() };
    world.posted = vec![false; wires.len()];
    let mut ready: Vec<Rank> = job.ranks().rev().collect();
    while let Some(rank) = ready.pop() {
        world.enter_round(rank, &mut ready)?;
    }
    let is_stuck = |(_, state): &(Rank, &State)| state.outstanding > 0;
    let stuck: Vec<_> = job.ranks().zip(&world.end.ranks).filter(is_stuck).collect();
    if stuck.is_empty() {
        return Ok(world.end);
    }
    let stuck = stuck.into_iter().map(|(rank, state)| (rank, state.next_round - 1)).collect();
    Err(Flaw::Deadlock { stuck })
}

struct State {
    /// By [`Area`].
    areas: [Vec<Value>; 3],
    next_round: usize,
    outstanding: usize,
    /// Ranks heard of when the round began: what its messages tell.
    heard_before: Vec<u64>,
    heard: Vec<u64>,
}

impl State {
    fn new(job: &Job<'_>, values: &Values, rank: Rank) -> Self {
        let undefined = |area| {
            let len = usize::try_from(job.area_len(rank, area)).expect("a proved area is small");
            vec![Value::UNDEFINED; len]
        };
        let mut areas = [Area::Input, Area::Output, Area::Scratch].map(undefined);
        if let Some(area) = job.source(rank) {
            areas[area as usize] = values.contributions(rank);
        }
        let mut heard = vec![0; job.plans.len().div_ceil(64)];
        let (word, bit) = bit_of(rank);
        heard[word] |= bit;
        Self { areas, next_round: 0, outstanding: 0, heard_before: heard.clone(), heard }
    }

    fn read(&self, at: Place, span: Span) -> Result<Vec<Value>, Flaw> {
        let values = &self.areas[span.area as usize][range(span)];
        let element = (span.offset..).zip(values).find(|(_, v)| **v == Value::UNDEFINED);
        match element {
            Some((element, _)) => Err(Flaw::Undefined { at, area: span.area, element }),
            None => Ok(values.to_vec()),
        }
    }

    /// All parts of the sources, one after the other, folded from the left; the second source is
    /// one part.
    fn fold(&self, at: Place, sources: [Span; 3], values: &mut Values) -> Result<Vec<Value>, Flaw> {
        let len = range(sources[1]).len();
        let mut read = Vec::new();
        for source in sources {
            read.extend(self.read(at, source)?);
        }
        let mut folded: Vec<Value> = read.drain(..len).collect();
        for part in read.chunks(len.max(1)) {
            for (total, value) in folded.iter_mut().zip(part) {
                *total = values.combine(*total, *value);
            }
        }
        Ok(folded)
    }

    fn write(
        &mut self,
        at: Place,
        span: Span,
        fold: Fold,
        arrived: &[Value],
        values: &mut Values,
    ) -> Result<(), Flaw> {
        if fold == Fold::Reduce {
            let here = self.read(at, span)?;
            let target = &mut self.areas[span.area as usize][range(span)];
            for ((target, here), arrived) in target.iter_mut().zip(here).zip(arrived) {
                *target = values.combine(here, *arrived);
            }
        } else {
            self.areas[span.area as usize][range(span)].copy_from_slice(arrived);
        }
        Ok(())
    }
}

struct World<'a> {
    job: &'a Job<'a>,
    wires: &'a Wires,
    end: End,
    /// Messages of which one side has come.
    posted: Vec<bool>,
}

impl World<'_> {
    /// Starts a rank's next round, and whatever can go on because of it.
    fn enter_round(&mut self, rank: Rank, ready: &mut Vec<Rank>) -> Result<(), Flaw> {
        let state = &mut self.end.ranks[rank as usize];
        let index = state.next_round;
        let Some(round) = self.job.plan(rank).rounds.get(index) else { return Ok(()) };
        state.next_round += 1;
        state.heard_before.clone_from(&state.heard);
        for (step, what) in round.steps.iter().enumerate() {
            let at = Place { rank, round: index, step };
            let values = &mut self.end.values;
            let (read, target, fold) = match *what {
                Step::Copy { source, target } => (state.read(at, source)?, target, Fold::Replace),
                Step::Reduce { source, target } => (state.read(at, source)?, target, Fold::Reduce),
                Step::ReduceMany { before, own, after, target } => {
                    let folded = state.fold(at, [before, own, after], values)?;
                    (folded, target, Fold::Replace)
                }
                Step::Recv { .. } | Step::Send { .. } => continue,
            };
            state.write(at, target, fold, &read, values)?;
        }
        state.outstanding = self.wires.of_round(rank, index).count();
        if state.outstanding == 0 {
            ready.push(rank);
        }
        let wires = self.wires;
        for id in wires.of_round(rank, index) {
            if core::mem::replace(&mut self.posted[id], true) {
                self.deliver(id, ready)?;
            }
        }
        Ok(())
    }

    fn deliver(&mut self, id: usize, ready: &mut Vec<Rank>) -> Result<(), Flaw> {
        let message = self.wires.message(id);
        let (from, to) = (message.send.rank as usize, message.recv.rank as usize);
        let read = self.end.ranks[from].read(message.send, message.source)?;
        let heard = self.end.ranks[from].heard_before.clone();
        let state = &mut self.end.ranks[to];
        let values = &mut self.end.values;
        state.write(message.recv, message.target, message.fold, &read, values)?;
        for (word, more) in state.heard.iter_mut().zip(heard) {
            *word |= more;
        }
        for rank in [message.send.rank, message.recv.rank] {
            let state = &mut self.end.ranks[rank as usize];
            state.outstanding -= 1;
            if state.outstanding == 0 {
                ready.push(rank);
            }
        }
        Ok(())
    }
}

fn range(span: Span) -> core::ops::Range<usize> {
    let index = |n| usize::try_from(n).expect("a proved area is small");
    index(span.offset)..index(span.offset + span.len)
}

fn bit_of(rank: Rank) -> (usize, u64) {
    (rank as usize / 64, 1 << (rank % 64))
}

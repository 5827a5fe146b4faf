//! Runs a plan: posts a round's transfers in chunks, waits for them, goes on.
//!
//! Owns progress through one plan and nothing else: contract, deadline and abort belong to
//! [`crate::operations`].

use super::plan::{Fold, Plan, Span, Step};
use crate::id::Rank;
use alloc::collections::VecDeque;

/// Which way a transfer goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// From the peer, folded in.
    Recv(Fold),
    /// To the peer.
    Send,
}

/// A chunk of a send or receive step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Transfer {
    /// Rank of the plan's communicator.
    pub peer: Rank,
    /// The step's tag.
    pub tag: u32,
    /// Which chunk of the step.
    pub chunk: u32,
    /// Which way.
    pub direction: Direction,
    /// Elements.
    pub span: Span,
}

/// What the driver must do for a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlanOutput {
    /// The plan is done.
    Finished,
    /// A step without a peer: do it now, before the next output.
    Local(Step),
    /// Start it; call [`PlanMachine::handle_completed`] when it is done.
    Post(Transfer),
}

/// Progress through one plan.
#[derive(Debug)]
pub struct PlanMachine {
    plan: Plan,
    chunk_len: u64,
    next_round: usize,
    outstanding: u64,
    outputs: VecDeque<PlanOutput>,
    finished: bool,
}

impl PlanMachine {
    /// Starts `plan`, in chunks of at most `chunk_len` elements, which every rank must give
    /// alike.
    ///
    /// # Panics
    /// If `chunk_len` is 0.
    pub fn new(plan: Plan, chunk_len: u64) -> Self {
        assert!(chunk_len > 0, "a chunk holds at least one element");
        let mut machine = Self {
            plan,
            chunk_len,
            next_round: 0,
            outstanding: 0,
            outputs: VecDeque::new(),
            finished: false,
        };
        machine.advance();
        machine
    }

    /// One posted transfer is done.
    pub fn handle_completed(&mut self) {
        debug_assert!(self.outstanding > 0, "more completions than transfers");
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.outstanding == 0 {
            self.advance();
        }
    }

    /// The next thing to do; `None` until a completion.
    pub fn poll_output(&mut self) -> Option<PlanOutput> {
        self.outputs.pop_front()
    }

    /// The plan being run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Rounds begun so far.
    pub fn rounds_begun(&self) -> usize {
        self.next_round
    }

    fn advance(&mut self) {
        while self.outstanding == 0 && !self.finished {
            let Some(round) = self.plan.rounds.get(self.next_round) else {
                self.finished = true;
                self.outputs.push_back(PlanOutput::Finished);
                return;
            };
            self.next_round += 1;
            let local = round.steps.iter().filter(|step| step.is_local());
            self.outputs.extend(local.map(|step| PlanOutput::Local(*step)));
            // Receives first: memory is ready before the peer is told to send.
            for pass in [true, false] {
                for step in &round.steps {
                    let (peer, tag, span, direction) = match *step {
                        Step::Recv { peer, tag, span, fold } if pass => {
                            (peer, tag, span, Direction::Recv(fold))
                        }
                        Step::Send { peer, tag, span } if !pass => {
                            (peer, tag, span, Direction::Send)
                        }
                        _ => continue,
                    };
                    for (chunk, span) in chunks(span, self.chunk_len) {
                        self.outstanding += 1;
                        self.outputs.push_back(PlanOutput::Post(Transfer {
                            peer,
                            tag,
                            chunk,
                            direction,
                            span,
                        }));
                    }
                }
            }
        }
    }
}

/// Splits a span; an empty one is one empty chunk, because its message still travels.
fn chunks(span: Span, chunk_len: u64) -> impl Iterator<Item = (u32, Span)> {
    let count = span.len.div_ceil(chunk_len).max(1);
    (0..count).map(move |index| {
        let start = index * chunk_len;
        let len = chunk_len.min(span.len - start);
        let chunk = u32::try_from(index).expect("chunks of a span are counted in 32 bits");
        (chunk, Span { offset: span.offset + start, len, ..span })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::plan::Round;
    use alloc::vec;
    use alloc::vec::Vec;

    fn drain(machine: &mut PlanMachine) -> Vec<PlanOutput> {
        core::iter::from_fn(|| machine.poll_output()).collect()
    }

    #[test]
    fn chunks_cover_the_span_once() {
        for len in [0, 1, 6, 7, 8, 21] {
            let span = Span::output(5, len);
            let parts: Vec<_> = chunks(span, 7).collect();
            assert_eq!(parts.iter().map(|(_, s)| s.len).sum::<u64>(), len);
            assert!(!parts.is_empty());
            let mut next = 5;
            for (index, (chunk, part)) in parts.iter().enumerate() {
                assert_eq!(*chunk as usize, index);
                assert_eq!(part.offset, next);
                next += part.len;
            }
        }
    }

    #[test]
    fn a_round_waits_for_all_its_transfers() {
        let span = Span::output(0, 4);
        let recv = Step::Recv { peer: 1, tag: 0, span, fold: Fold::Reduce };
        let send = Step::Send { peer: 1, tag: 1, span: Span::output(4, 4) };
        let copy = Step::Copy { source: span, target: Span::scratch(0, 4) };
        let plan = Plan {
            scratch_len: 4,
            rounds: vec![Round { steps: vec![send, recv, copy] }, Round { steps: vec![copy] }],
        };
        let mut machine = PlanMachine::new(plan, 3);
        let outputs = drain(&mut machine);
        assert_eq!(outputs[0], PlanOutput::Local(copy));
        assert_eq!(outputs.len(), 1 + 2 + 2);
        for _ in 0..3 {
            machine.handle_completed();
            assert_eq!(machine.poll_output(), None);
        }
        machine.handle_completed();
        assert_eq!(drain(&mut machine), [PlanOutput::Local(copy), PlanOutput::Finished]);
    }

    #[test]
    fn an_empty_plan_finishes_at_once() {
        let mut machine = PlanMachine::new(Plan::default(), 1);
        assert_eq!(drain(&mut machine), [PlanOutput::Finished]);
    }
}

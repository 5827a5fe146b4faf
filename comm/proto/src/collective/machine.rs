//! Runs a plan: posts a round's transfers in chunks, and those of the next round as chunks of this
//! one are done.
//!
//! Owns progress through one plan and nothing else: contract, deadline and abort belong to
//! [`crate::operations`].
//!
//! Two rounds are in flight, so that a link has the next chunk to carry while the last one of a
//! round is still on its way. What a transfer of the later round must wait for is found from their
//! spans (`in_flight`). A round with local steps begins when all before it is done.

use super::in_flight::InFlight;
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
    current: InFlight,
    /// The round after it, of which some transfers are under way.
    ahead: Option<InFlight>,
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
            current: InFlight::default(),
            ahead: None,
            outputs: VecDeque::new(),
            finished: false,
        };
        machine.advance();
        machine
    }

    /// A posted transfer is done.
    pub fn handle_completed(&mut self, transfer: &Transfer) {
        if let Some(step) = self.current.complete(transfer) {
            if let Some(ahead) = &mut self.ahead {
                ahead.post_after(&self.current, step, transfer.chunk, &mut self.outputs);
            }
        } else if let Some(ahead) = &mut self.ahead {
            let step = ahead.complete(transfer);
            debug_assert!(step.is_some(), "{transfer:?} was not under way");
        }
        if self.current.is_over() {
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
        while self.current.is_over() && !self.finished {
            // All of the round ahead is under way by now.
            let Some(next) = self.ahead.take().or_else(|| self.begin_round()) else {
                self.finished = true;
                self.outputs.push_back(PlanOutput::Finished);
                return;
            };
            debug_assert!(next.is_posted(), "what waited for the round before waits no more");
            self.current = next;
            self.look_ahead();
        }
    }

    /// Begins the next round after all others; `None` after the last.
    fn begin_round(&mut self) -> Option<InFlight> {
        let round = self.plan.rounds.get(self.next_round)?;
        self.next_round += 1;
        let locals = round.steps.iter().filter(|step| step.is_local());
        self.outputs.extend(locals.map(|step| PlanOutput::Local(*step)));
        let mut begun = InFlight::new(round, self.chunk_len);
        begun.post_all(&mut self.outputs);
        Some(begun)
    }

    /// Begins what the next round can do beside this one.
    fn look_ahead(&mut self) {
        let Some(round) = self.plan.rounds.get(self.next_round) else { return };
        if round.steps.iter().any(Step::is_local) || self.current.is_over() {
            return;
        }
        self.next_round += 1;
        let mut ahead = InFlight::new(round, self.chunk_len);
        debug_assert!(!ahead.shares_a_name(&self.current), "no two messages share a name");
        ahead.wait_for(&self.current);
        ahead.post_ready(&self.current, &mut self.outputs);
        self.ahead = Some(ahead);
    }
}

/// Splits a span; an empty one is one empty chunk, because its message still travels.
pub(super) fn chunks(span: Span, chunk_len: u64) -> impl Iterator<Item = (u32, Span)> {
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

    fn posted(outputs: &[PlanOutput]) -> Vec<Transfer> {
        let transfer = |output: &PlanOutput| match output {
            PlanOutput::Post(transfer) => Some(*transfer),
            _ => None,
        };
        outputs.iter().filter_map(transfer).collect()
    }

    #[test]
    fn a_round_with_local_steps_waits_for_all_before() {
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
        let transfers = posted(&outputs);
        assert_eq!((outputs.len(), transfers.len()), (1 + 2 + 2, 4));
        for transfer in &transfers[..3] {
            machine.handle_completed(transfer);
            assert_eq!(machine.poll_output(), None);
        }
        machine.handle_completed(&transfers[3]);
        assert_eq!(drain(&mut machine), [PlanOutput::Local(copy), PlanOutput::Finished]);
    }

    /// Chunks of a block that is passed on go on one by one, and a block that nothing touches is
    /// received at once.
    #[test]
    fn the_next_round_begins_chunk_by_chunk() {
        let block = |index: u64| Span::output(index * 6, 6);
        let recv = |tag, index| Step::Recv { peer: 2, tag, span: block(index), fold: Fold::Reduce };
        let send = |tag, index| Step::Send { peer: 1, tag, span: block(index) };
        let rounds = vec![
            Round { steps: vec![send(0, 0), recv(0, 1)] },
            Round { steps: vec![send(1, 1), recv(1, 2)] },
            // Overwrites what the round before sends, and sends half of what it receives.
            Round {
                steps: vec![
                    Step::Send { peer: 1, tag: 2, span: Span::output(12, 3) },
                    Step::Recv { peer: 2, tag: 2, span: block(1), fold: Fold::Replace },
                ],
            },
        ];
        let mut machine = PlanMachine::new(Plan { scratch_len: 0, rounds }, 2);
        let names = |transfers: &[Transfer]| -> Vec<(u32, u32, bool)> {
            transfers.iter().map(|t| (t.tag, t.chunk, t.direction == Direction::Send)).collect()
        };
        let first = posted(&drain(&mut machine));
        let receives = |tag| [(tag, 0, false), (tag, 1, false), (tag, 2, false)];
        let sends = |tag| [(tag, 0, true), (tag, 1, true), (tag, 2, true)];
        assert_eq!(names(&first), [receives(0), sends(0), receives(1)].concat());
        // Chunk 1 of what is passed on has come.
        machine.handle_completed(&first[1]);
        let passed = posted(&drain(&mut machine));
        assert_eq!(names(&passed), [(1, 1, true)]);
        // It goes, and so do all receives of the round after it, before its own round begins.
        machine.handle_completed(&passed[0]);
        first[6..9].iter().for_each(|receive| machine.handle_completed(receive));
        assert_eq!(machine.poll_output(), None);
        // The first round's rest: the third begins with what need not wait.
        let rest: Vec<_> = [0, 2, 3, 4, 5].map(|index| first[index]).into();
        rest.iter().for_each(|transfer| machine.handle_completed(transfer));
        let third = posted(&drain(&mut machine));
        let expected = [(1, 0, true), (1, 2, true), (2, 1, false), (2, 0, true), (2, 1, true)];
        assert_eq!(names(&third), expected);
    }

    /// Or a barrier would let ranks through before all have come.
    #[test]
    fn a_message_of_nothing_waits_for_what_was_to_be_heard() {
        let span = Span::output(0, 0);
        let recv = |tag| Step::Recv { peer: 1, tag, span, fold: Fold::Replace };
        let send = |tag| Step::Send { peer: 1, tag, span };
        let round = |tag| Round { steps: vec![send(tag), recv(tag)] };
        let plan = Plan { scratch_len: 0, rounds: vec![round(0), round(1)] };
        let mut machine = PlanMachine::new(plan, 3);
        let is_send = |t: &Transfer| t.direction == Direction::Send;
        let first = posted(&drain(&mut machine));
        assert_eq!(first.iter().filter(|t| is_send(t)).count(), 1);
        first.iter().filter(|t| is_send(t)).for_each(|t| machine.handle_completed(t));
        assert_eq!(machine.poll_output(), None);
        let heard = first.iter().find(|t| !is_send(t) && t.tag == 0).unwrap();
        machine.handle_completed(heard);
        assert!(posted(&drain(&mut machine)).iter().any(is_send));
    }

    #[test]
    fn an_empty_plan_finishes_at_once() {
        let mut machine = PlanMachine::new(Plan::default(), 1);
        assert_eq!(drain(&mut machine), [PlanOutput::Finished]);
    }
}

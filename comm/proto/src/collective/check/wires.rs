//! Which send belongs to which receive.

use super::{Flaw, Job, Place};
use crate::collective::plan::{Fold, Span, Step};
use crate::id::Rank;
use alloc::vec;
use alloc::vec::Vec;

/// A message from send to receive.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) send: Place,
    pub(super) recv: Place,
    pub(super) source: Span,
    pub(super) target: Span,
    pub(super) fold: Fold,
}

/// All messages of a world.
pub(super) struct Wires {
    messages: Vec<Message>,
    /// Message of each step, by rank, round and step; local steps have none.
    ids: Vec<Vec<Vec<Option<usize>>>>,
}

/// A step with the name of its message; sends sort before receives of the same name.
type Named = ((Rank, Rank, u32), bool, Place);

impl Wires {
    /// Finds the receive of every send and the send of every receive.
    pub(super) fn connect(job: &Job<'_>) -> Result<Self, Flaw> {
        let mut named: Vec<Named> = Vec::new();
        for (at, step) in job.ranks().flat_map(|rank| job.places(rank)) {
            match *step {
                Step::Send { peer, tag, .. } => named.push(((at.rank, peer, tag), false, at)),
                Step::Recv { peer, tag, .. } => named.push(((peer, at.rank, tag), true, at)),
                Step::Copy { .. } | Step::Reduce { .. } | Step::ReduceMany { .. } => {}
            }
        }
        named.sort_unstable();
        let blank = |rank| {
            let rounds = job.plan(rank).rounds.iter();
            rounds.map(|round| vec![None; round.steps.len()]).collect()
        };
        let ids = job.ranks().map(blank).collect();
        let mut wires = Self { messages: Vec::with_capacity(named.len() / 2), ids };
        for same in named.chunk_by(|a, b| a.0 == b.0) {
            wires.connect_one(job, same)?;
        }
        wires.check_order(job)?;
        Ok(wires)
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn message(&self, id: usize) -> &Message {
        &self.messages[id]
    }

    /// Messages of a round.
    pub(super) fn of_round(&self, rank: Rank, round: usize) -> impl Iterator<Item = usize> {
        self.ids[rank as usize][round].iter().filter_map(|id| *id)
    }

    fn connect_one(&mut self, job: &Job<'_>, same: &[Named]) -> Result<(), Flaw> {
        let mut pairs = same.windows(2);
        if let Some([_, (_, _, at)]) = pairs.find(|pair| pair[0].1 == pair[1].1) {
            return Err(Flaw::DuplicateTag { at: *at });
        }
        let &[(_, false, send), (_, true, recv)] = same else {
            return Err(Flaw::Unmatched { at: same[0].2 });
        };
        let (&Step::Send { span: source, .. }, &Step::Recv { span: target, fold, .. }) =
            (job.step(send), job.step(recv))
        else {
            unreachable!("named so above");
        };
        if source.len != target.len {
            let (sent, received) = (source.len, target.len);
            return Err(Flaw::LengthMismatch { source: send, target: recv, sent, received });
        }
        for at in [send, recv] {
            self.ids[at.rank as usize][at.round][at.step] = Some(self.messages.len());
        }
        self.messages.push(Message { send, recv, source, target, fold });
        Ok(())
    }

    /// A wire delivers in order, so what is sent first must not be wanted last.
    fn check_order(&self, job: &Job<'_>) -> Result<(), Flaw> {
        for rank in job.ranks() {
            let mut last_round = vec![0; job.plans.len()];
            let ids = self.ids[rank as usize].iter().flatten().flatten();
            for message in ids.map(|id| self.message(*id)).filter(|m| m.send.rank == rank) {
                let last = &mut last_round[message.recv.rank as usize];
                if message.recv.round < *last {
                    return Err(Flaw::Overtaking { send: message.send });
                }
                *last = message.recv.round;
            }
        }
        Ok(())
    }
}

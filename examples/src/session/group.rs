//! The ranks that go on while others sit out.
//!
//! Owns their session, over a communicator of their own, and what those that sit out keep. Never
//! decides who. Called at meetings.

use syncline::{Communicator, Session, Snapshot, TensorSpec};

use crate::BoxError;

/// A group from one meeting to the next.
#[derive(Debug)]
pub(super) struct Group {
    members: Vec<u32>,
    /// None on a rank that sits out.
    own: Option<(Communicator, Session)>,
    /// The state that the group started from.
    start: Snapshot,
}

impl Group {
    /// Makes the group of `members`, world ranks in ascending order, from the state of `session`,
    /// which rests until the group is dissolved. Collective over all ranks.
    pub(super) fn form(
        members: Vec<u32>,
        session: &mut Session,
        communicator: &Communicator,
        tensors: &[TensorSpec],
        parameters: &mut [&mut [f32]],
    ) -> Result<Self, BoxError> {
        let start = session.snapshot(parameters)?;
        let is_member = members.contains(&communicator.rank());
        let own = match communicator.split(is_member.then_some(0), 0)? {
            None => None,
            Some(own) => {
                let config = *session.config();
                let mut session = Session::new(&own, tensors, parameters, &config)?;
                session.restore(&start, config.model, parameters)?;
                Some((own, session))
            }
        };
        Ok(Self { members, own, start })
    }

    /// World ranks, ascending.
    pub(super) fn members(&self) -> &[u32] {
        &self.members
    }

    /// How many.
    pub(super) fn count(&self) -> u32 {
        self.members.len() as u32
    }

    /// The communicator and the session of the group, on its members.
    pub(super) fn own(&mut self) -> Option<(&Communicator, &mut Session)> {
        self.own.as_mut().map(|(communicator, session)| (&*communicator, session))
    }

    /// Ends the group: its state becomes that of `session` on all ranks. Collective over all ranks;
    /// those that sat out wait here for the others.
    pub(super) fn dissolve(
        self,
        session: &mut Session,
        communicator: &Communicator,
        parameters: &mut [&mut [f32]],
    ) -> Result<(), BoxError> {
        let mut state = self.start;
        if let Some((_, mut own)) = self.own {
            state = own.snapshot(parameters)?;
        }
        let root = self.members.first().copied().ok_or("a group has a member")?;
        state.broadcast(communicator, root)?;
        let model = session.config().model;
        session.restore(&state, model, parameters)?;
        Ok(())
    }
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;

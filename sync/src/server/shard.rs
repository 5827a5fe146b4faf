//! One shard of the parameter server: parameters and optimiser's memory of a part of the flat
//! space.
//!
//! Owns the order in which pushes are applied: that of their arrival, each at once, whole. Never
//! communicates: a message goes in, and with a push a reply comes out. Called by the server's
//! thread, and by the lockstep harness.

use crate::error::{Error, Result};
use crate::model::Memory;
use crate::optimiser::{Moments, Optimiser, StepSize};

use super::wire::{self, Header};

/// A shard, and which workers are done with it.
#[derive(Debug)]
pub struct Shard {
    rank: u32,
    optimiser: Optimiser,
    parameters: Vec<f32>,
    /// Of this part of the parameters, and the updates before this shard's first.
    memory: Memory,
    /// Pushes applied.
    version: u64,
    /// Room for one gradient.
    gradient: Vec<f32>,
    /// Per worker, whether it pushes no more.
    done: Vec<bool>,
}

impl Shard {
    /// A shard on `rank`, for as many workers as there are ranks.
    ///
    /// # Panics
    /// If the memory is not that of as many parameters.
    pub fn new(
        rank: u32,
        world_size: u32,
        optimiser: Optimiser,
        parameters: Vec<f32>,
        memory: Memory,
    ) -> Self {
        assert_eq!(parameters.len(), memory.moments.first.len(), "the moments of this shard");
        Self {
            rank,
            optimiser,
            memory,
            version: 0,
            gradient: Vec::with_capacity(parameters.len()),
            done: vec![false; world_size as usize],
            parameters,
        }
    }

    /// Applies `message`, which came from `worker`. A push leaves the reply in it.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it is no push or done, of another rank, or comes after a done. The
    /// shard is unchanged then.
    pub fn handle_message(&mut self, worker: u32, message: &mut Vec<u32>) -> Result<Handled> {
        let broken = |what: &str| Err(Error::Protocol { reason: format!("rank {worker} {what}") });
        let (header, values) = wire::decode(message, self.parameters.len())?;
        let is_done = self.done.get(worker as usize).copied().unwrap_or(true);
        match header {
            _ if is_done => broken("sent a message after it was done"),
            Header::Done { worker: sender } | Header::Push { worker: sender, .. }
                if sender != worker =>
            {
                broken(&format!("sent a message in the name of rank {sender}"))
            }
            Header::Done { .. } => {
                self.done[worker as usize] = true;
                Ok(Handled::Done)
            }
            Header::Push { clock, learning_rate, .. } => {
                self.gradient.clear();
                self.gradient.extend(values);
                let size = StepSize::new(learning_rate, self.updates());
                let Self { parameters, memory, gradient, .. } = self;
                self.optimiser.step(parameters, memory.moments.all_mut(), gradient, size);
                self.version += 1;
                let header = Header::Reply { server: self.rank, clock, version: self.version };
                wire::encode(header, self.parameters.iter().copied(), message);
                Ok(Handled::Reply)
            }
            Header::Reply { .. } => broken("sent a reply to a server"),
            Header::Stop if worker == self.rank => Ok(Handled::Stop),
            Header::Stop => broken("told another rank's server to stop"),
        }
    }

    /// Lets all workers push again.
    pub fn reopen(&mut self) {
        self.done.fill(false);
    }

    /// Whether all workers are done.
    pub fn all_done(&self) -> bool {
        self.done.iter().all(|done| *done)
    }

    /// Whether this worker is done.
    pub fn is_done(&self, worker: u32) -> bool {
        self.done[worker as usize]
    }

    /// The parameters.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// What the optimiser remembers of them.
    pub fn moments(&self) -> &Moments {
        &self.memory.moments
    }

    /// Updates of these parameters so far, those before this shard's first included.
    pub fn updates(&self) -> u64 {
        self.memory.updates + self.version
    }

    /// How many pushes were applied.
    pub fn version(&self) -> u64 {
        self.version
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The worker is done.
    Done,
    /// The message is now the reply.
    Reply,
    /// The shard's rank gives up: serve no more.
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimiser::Sgd;

    fn message(header: Header, values: &[f32]) -> Vec<u32> {
        let mut message = Vec::new();
        wire::encode(header, values.iter().copied(), &mut message);
        message
    }

    fn push(worker: u32, clock: u64, values: &[f32]) -> Vec<u32> {
        message(Header::Push { worker, clock, version: 0, learning_rate: 0.5 }, values)
    }

    fn shard() -> Shard {
        let optimiser = Sgd { momentum: 0.5, ..Sgd::default() }.into();
        Shard::new(4, 2, optimiser, vec![1.0, 2.0], Memory::new(&optimiser, 2))
    }

    #[test]
    fn pushes_are_applied_in_order_and_answered() {
        let mut shard = shard();
        let mut first = push(1, 7, &[1.0, 2.0]);
        assert_eq!(shard.handle_message(1, &mut first).unwrap(), Handled::Reply);
        let (header, values) = wire::decode(&first, 2).unwrap();
        assert_eq!(header, Header::Reply { server: 4, clock: 7, version: 1 });
        assert_eq!(values.collect::<Vec<_>>(), [0.5, 1.0]);
        shard.handle_message(0, &mut push(0, 0, &[0.0, 1.0])).unwrap();
        assert_eq!(shard.parameters(), [0.25, 0.0]);
        assert_eq!(shard.version(), 2);
    }

    #[test]
    fn all_are_done_when_each_said_so_and_may_start_again() {
        let mut shard = shard();
        for worker in [1, 0] {
            assert!(!shard.all_done());
            let mut done = message(Header::Done { worker }, &[0.0; 2]);
            assert_eq!(shard.handle_message(worker, &mut done).unwrap(), Handled::Done);
            assert!(shard.is_done(worker));
        }
        assert!(shard.all_done());
        shard.reopen();
        assert!(!shard.is_done(0) && !shard.is_done(1));
        assert_eq!(shard.parameters(), [1.0, 2.0]);
    }

    #[test]
    fn what_breaks_the_protocol_is_refused_and_changes_nothing() {
        let mut shard = shard();
        let reply = Header::Reply { server: 1, clock: 0, version: 0 };
        let stop = message(Header::Stop, &[0.0; 2]);
        for (mut bad, text) in [
            (push(0, 0, &[1.0; 2]), "rank 1 sent a message in the name of rank 0"),
            (push(1, 0, &[1.0; 3]), "3 values for a shard of 2"),
            (message(reply, &[1.0; 2]), "rank 1 sent a reply"),
            (stop, "rank 1 told another"),
        ] {
            let error = shard.handle_message(1, &mut bad).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        shard.handle_message(1, &mut message(Header::Done { worker: 1 }, &[0.0; 2])).unwrap();
        let error = shard.handle_message(1, &mut push(1, 0, &[1.0; 2])).unwrap_err().to_string();
        assert!(error.contains("after it was done"), "{error}");
        assert_eq!((shard.parameters(), shard.version()), (&[1.0, 2.0][..], 0));
    }
}

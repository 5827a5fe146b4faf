//! A rank's end of the parameter server: its own shard, and what it has under way to all of them.
//!
//! Owns who serves the shard when: a thread while workers push, this object between a collection
//! and the next push. Called by the exchange.

use syncline_comm::{Communicator, Request};

use crate::config::SessionConfig;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::model::Memory;
use crate::server::shard::Shard;
use crate::server::wire::{self, HEADER_WORDS, Header};
use crate::server::{PUSH_TAG, REPLY_TAG, Server};

/// This rank's end of the parameter server.
#[derive(Debug)]
pub(super) struct Shards {
    pub(super) communicator: Communicator,
    /// Served while workers push; at rest between a collection and the next push.
    pub(super) state: ShardState,
    pub(super) lens: Vec<usize>,
    /// By server: what was sent last, and the reply to it.
    pub(super) sent: Vec<Option<Request<u32>>>,
    pub(super) replies: Vec<Option<Request<u32>>>,
}

#[derive(Debug)]
pub(super) enum ShardState {
    Lost,
    Resting(Box<Shard>),
    Served(Server),
}

impl Shards {
    pub(super) fn new(
        communicator: Communicator,
        config: &SessionConfig,
        layout: &Layout,
        parameters: &[f32],
        memory: &Memory,
    ) -> Result<Self> {
        let (rank, world_size) = (communicator.rank(), communicator.world_size());
        let range = |rank: u32| layout.shard(rank as usize, world_size as usize);
        let own = parameters[range(rank)].to_vec();
        let memory = Memory { moments: memory.moments.part(range(rank)), updates: memory.updates };
        let shard = Shard::new(rank, world_size, config, own, memory)?;
        let none = || (0..world_size).map(|_| None).collect();
        Ok(Self {
            communicator,
            state: ShardState::Resting(Box::new(shard)),
            lens: (0..world_size).map(|rank| range(rank).len()).collect(),
            sent: none(),
            replies: none(),
        })
    }

    pub(super) fn push(&mut self, server: u32, message: Vec<u32>, replies: bool) -> Result<()> {
        if !matches!(self.state, ShardState::Served(_)) {
            let ShardState::Resting(shard) = std::mem::replace(&mut self.state, ShardState::Lost)
            else {
                return Err(Error::Protocol { reason: "this rank's shard is lost".to_owned() });
            };
            self.state = ShardState::Served(Server::start(&self.communicator, *shard)?);
        }
        let index = server as usize;
        // The reply goes where the last message came from; that was sent before it was answered.
        let last = self.sent[index].take().map(Request::wait).transpose()?;
        if replies {
            let words = HEADER_WORDS + self.lens[index];
            let buffer = last.unwrap_or_else(|| vec![0; words]);
            let reply = self.communicator.start_recv(buffer, server, REPLY_TAG)?;
            self.replies[index] = Some(reply);
        }
        self.sent[index] = Some(self.communicator.start_send(message, server, PUSH_TAG)?);
        Ok(())
    }

    pub(super) fn await_reply(&mut self, server: u32) -> Result<Vec<u32>> {
        let reply = self.replies[server as usize].take().expect("a push before its reply");
        let message = reply.wait()?;
        let (header, _) = wire::decode(&message, self.lens[server as usize])?;
        if header != Header::Stop {
            return Ok(message);
        }
        // This rank's own shard knows why.
        let is_own = server == self.communicator.rank();
        if let ShardState::Served(server) = &mut self.state
            && is_own
        {
            server.join()?;
        }
        Err(Error::Protocol { reason: format!("the shard of rank {server} gave up") })
    }

    /// The shard, between a collection and the next push.
    pub(super) fn resting(&self) -> Result<&Shard> {
        match &self.state {
            ShardState::Resting(shard) => Ok(shard),
            _ => Err(Error::Protocol { reason: "this rank's shard is not at rest".to_owned() }),
        }
    }

    pub(super) fn stop(&mut self) -> Result<Shard> {
        for request in self.sent.iter_mut().filter_map(Option::take) {
            request.wait()?;
        }
        match std::mem::replace(&mut self.state, ShardState::Lost) {
            ShardState::Lost => {
                Err(Error::Protocol { reason: "this rank's shard is lost".to_owned() })
            }
            ShardState::Resting(shard) => Ok(*shard),
            ShardState::Served(server) => server.collect(),
        }
    }
}

//! Does what the models ask for, in virtual time.
//!
//! Owns the sums, the way of messages to shards and back, and the words for what a rank waits for.
//! Never looks into what it carries. Called by the driver.

use super::driver::{Happening, Simulation, Trainer};
use super::error::{SimulationError, name_ranks};
use super::lanes::Lane;
use super::mail::{Content, Message};
use super::meeting::{Key, Part, average};
use super::rank::{Phase, Wait, duration};
use crate::error::Error;
use crate::model::{self, Action, Event, ReduceId, SyncModel};
use crate::server::shard::{Reply, Shard};

/// A started reduction that is over.
#[derive(Debug)]
pub(super) struct Finished {
    data: Vec<f32>,
    /// Ranks that have not asked for it.
    left: usize,
}

impl<M: SyncModel> Simulation<M> {
    /// Does one thing that the model of `index` asks for, or lets it wait for that.
    pub(super) fn act(&mut self, index: usize, action: Action) -> Result<(), SimulationError> {
        let rank = index as u32;
        match action {
            Action::AwaitReply { server } => match self.ranks[index].take_reply(server) {
                Some(message) => self.ranks[index].handle(Event::Replied { server, message }),
                None => self.block(index, Wait::Reply(server)),
            },
            Action::Collect => {
                let key = Key::Collect(self.ranks[index].collects);
                self.ranks[index].collects += 1;
                self.block(index, Wait::Collect);
                if self.meetings.join(key, Lane::Urgent, rank, Part::Nothing)?.is_some() {
                    self.collection = Some(key);
                    self.collect_if_done();
                }
            }
            Action::Fail(source) => return Err(SimulationError::Model { rank, source }),
            Action::AwaitStage { server, stage } => self.await_stage(index, server, stage),
            Action::EndStages { server, head } => {
                self.send(rank, server, Content::StagePush { head, body: Vec::new() })?;
            }
            Action::PushStage { server, stage, head, body, .. } => {
                self.ranks[index].pushed.insert((server, stage), self.now);
                self.send(rank, server, Content::StagePush { head, body })?;
            }
            Action::Gather { words } => {
                let key = Key::Gather(self.ranks[index].gathers);
                self.ranks[index].gathers += 1;
                self.block(index, Wait::Gather);
                self.join(key, Lane::Urgent, rank, Part::Words(words))?;
            }
            Action::Push { server, message, .. } => {
                self.send(rank, server, Content::Push(message))?;
            }
            Action::Reduce { id, data } => {
                self.block(index, Wait::Reduce(id));
                self.join(Key::Reduce(id), Lane::Urgent, rank, Part::Floats(data))?;
            }
            Action::StartReduce { id, data, lane } => {
                let lane = match lane {
                    model::Lane::Background => Lane::Background,
                    model::Lane::Urgent => Lane::Urgent,
                };
                self.ranks[index].began.insert(id, self.now);
                self.join(Key::Reduce(id), lane, rank, Part::Floats(data))?;
            }
            Action::Wait { id } => match self.take_finished(id) {
                Some(data) => self.ranks[index].handle_reduced(id, data, 0.0, self.now),
                None => self.block(index, Wait::Started(id)),
            },
        }
        Ok(())
    }

    pub(super) fn block(&mut self, index: usize, wait: Wait) {
        self.ranks[index].blocked = Some((wait, self.now));
    }

    /// A rank arrives at a collective, which starts if it is the last.
    fn join(&mut self, key: Key, lane: Lane, rank: u32, part: Part) -> Result<(), SimulationError> {
        let Some(len) = self.meetings.join(key, lane, rank, part)? else { return Ok(()) };
        let (network, ranks) = (&self.settings.network, self.ranks.len() as u32);
        let seconds = match key {
            Key::Reduce(_) => network.all_reduce_s(len as f64 * network.element_bytes, ranks),
            Key::Collect(_) | Key::Gather(_) => {
                let bytes = len as f64 * size_of::<u64>() as f64 * f64::from(ranks);
                network.all_gather_s(bytes, ranks)
            }
        };
        self.lanes.start(lane, key, seconds, self.now);
        Ok(())
    }

    /// The collective that ends now: gives each rank that waits for it what came of it.
    pub(super) fn finish_collective(
        &mut self,
        trainer: &mut dyn Trainer,
    ) -> Result<(), SimulationError> {
        let Some(key) = self.lanes.finish(self.now) else { return Ok(()) };
        let parts = self.meetings.take(key);
        match key {
            Key::Collect(_) => {
                let collected = if self.servers.is_empty() {
                    self.collect_shards()
                } else {
                    self.collect_servers()
                };
                let (parameters, versions) =
                    collected.map_err(|source| SimulationError::Model { rank: 0, source })?;
                let event = Event::Collected { parameters, versions };
                self.deliver(Wait::Collect, &event, trainer)
            }
            Key::Gather(_) => {
                let words = |part| match part {
                    Part::Words(words) => words,
                    Part::Floats(_) | Part::Nothing => Vec::new(),
                };
                let words = parts.into_iter().flat_map(words).collect();
                self.deliver(Wait::Gather, &Event::Gathered { words }, trainer)
            }
            Key::Reduce(id) => self.deliver_reduced(id, average(parts), trainer),
        }
    }

    fn collect_shards(&mut self) -> Result<(Vec<f32>, Vec<u64>), Error> {
        self.shards.iter_mut().try_for_each(Shard::reopen)?;
        let parameters = self.shards.iter().flat_map(Shard::parameters).copied().collect();
        Ok((parameters, self.shards.iter().map(Shard::version).collect()))
    }

    fn deliver(
        &mut self,
        wait: Wait,
        event: &Event,
        trainer: &mut dyn Trainer,
    ) -> Result<(), SimulationError> {
        for index in 0..self.ranks.len() {
            if self.ranks[index].waits_for(wait) {
                self.ranks[index].release(self.now);
                self.ranks[index].handle(event.clone());
                self.advance(index, trainer)?;
            }
        }
        Ok(())
    }

    fn deliver_reduced(
        &mut self,
        id: ReduceId,
        data: Vec<f32>,
        trainer: &mut dyn Trainer,
    ) -> Result<(), SimulationError> {
        let waits =
            |wait| matches!(wait, Wait::Reduce(other) | Wait::Started(other) if other == id);
        let waiting: Vec<usize> = (0..self.ranks.len())
            .filter(|index| self.ranks[*index].blocked.is_some_and(|(wait, _)| waits(wait)))
            .collect();
        for index in &waiting {
            let blocked_s = self.ranks[*index].release(self.now);
            self.ranks[*index].handle_reduced(id, data.clone(), blocked_s, self.now);
            self.advance(*index, trainer)?;
        }
        let left = self.ranks.len() - waiting.len();
        if left > 0 {
            self.finished.insert(id, Finished { data, left });
        }
        Ok(())
    }

    /// A started reduction's result, if it is over.
    fn take_finished(&mut self, id: ReduceId) -> Option<Vec<f32>> {
        let finished = self.finished.get_mut(&id)?;
        finished.left -= 1;
        if finished.left > 0 {
            return Some(finished.data.clone());
        }
        self.finished.remove(&id).map(|finished| finished.data)
    }

    /// Puts a message on its way.
    pub(super) fn send(
        &mut self,
        from: u32,
        to: u32,
        content: Content,
    ) -> Result<(), SimulationError> {
        if to as usize >= self.ranks.len() {
            let reason = format!("a message to rank {to} of {}", self.ranks.len());
            return Err(SimulationError::Model { rank: from, source: Error::Protocol { reason } });
        }
        let network = &self.settings.network;
        let latency_s = network.latency.as_secs_f64();
        let seconds = network.wire_s(content.bytes(network));
        let message = Message { from, to, content, seconds };
        if from == to {
            self.queue.push(self.now, Happening::Received(message));
        } else {
            let start = self.cards.send(from, seconds, self.now);
            self.queue.push(start + latency_s, Happening::Reached(message));
        }
        Ok(())
    }

    /// A message is there.
    pub(super) fn receive(
        &mut self,
        message: Message,
        trainer: &mut dyn Trainer,
    ) -> Result<(), SimulationError> {
        let Message { from, to, content, .. } = message;
        match content {
            Content::Push(words) => {
                let now = duration(self.now);
                let handled = self.shards[to as usize].handle_message(from, words, now);
                let handled =
                    handled.map_err(|source| SimulationError::Model { rank: from, source })?;
                self.answer(to, handled.replies)?;
                self.collect_if_done();
                Ok(())
            }
            Content::Reply(words) => self.take_reply(from, to, words, trainer),
            Content::StagePush { head, body } => self.serve(from, to, &head, body),
            Content::StageReply { stage, words, .. } => {
                self.take_stage_reply(from, to, stage, words, trainer)
            }
        }
    }

    /// A shard's reply is here.
    fn take_reply(
        &mut self,
        from: u32,
        to: u32,
        words: Vec<u32>,
        trainer: &mut dyn Trainer,
    ) -> Result<(), SimulationError> {
        let index = to as usize;
        let count = self.ranks.len();
        let rank = &mut self.ranks[index];
        if rank.waits_for(Wait::Reply(from)) {
            rank.release(self.now);
            rank.handle(Event::Replied { server: from, message: words });
            return self.advance(index, trainer);
        }
        rank.replies.resize_with(count, Default::default);
        rank.replies[from as usize].push_back(words);
        Ok(())
    }

    /// Sends what a shard answers, and remembers when it wants to be called.
    fn answer(&mut self, server: u32, replies: Vec<Reply>) -> Result<(), SimulationError> {
        for (worker, reply) in replies {
            self.send(server, worker, Content::Reply(reply))?;
        }
        if let Some(due) = self.shards[server as usize].due() {
            let time = due.as_secs_f64().max(self.now);
            self.queue.push(time, Happening::ShardDue(server as usize));
        }
        Ok(())
    }

    /// Calls a shard, if it still wants that.
    pub(super) fn tick(&mut self, server: usize) -> Result<(), SimulationError> {
        // A duration is a whole number of nanoseconds, this time is not.
        let now = duration(self.now + 1e-9);
        if self.shards[server].due().is_none_or(|due| due > now) {
            return Ok(());
        }
        let rank = server as u32;
        let replies = self.shards[server].tick(now);
        self.answer(rank, replies.map_err(|source| SimulationError::Model { rank, source })?)
    }

    /// Brings the shards together when all ranks wait for it and no worker pushes any more.
    pub(super) fn collect_if_done(&mut self) {
        if let Some(key) = self.collection.filter(|_| self.open_server().is_none()) {
            self.collection = None;
            let (network, ranks) = (&self.settings.network, self.ranks.len() as u32);
            let bytes = self.layout.len() as f64 * network.element_bytes;
            self.lanes.start(Lane::Urgent, key, network.all_gather_s(bytes, ranks), self.now);
        }
    }

    /// A rank whose shard or server is still pushed to.
    fn open_server(&self) -> Option<u32> {
        if self.servers.is_empty() {
            return (0..).zip(&self.shards).find(|(_, shard)| !shard.all_done()).map(|(at, _)| at);
        }
        let open = self.servers.iter().find(|server| !server.all_done());
        open.map(|server| server.part().server)
    }

    /// Each rank that is not over, and what it waits for.
    pub(super) fn waiting(&self) -> Vec<(u32, String)> {
        let ranks = (0_u32..).zip(&self.ranks).filter(|(_, rank)| rank.phase != Phase::Over);
        ranks
            .map(|(index, rank)| {
                let what = rank.blocked.map(|(wait, _)| match wait {
                    Wait::Collect => self.name_collection(Key::Collect(rank.collects - 1)),
                    Wait::Gather => self.name(Key::Gather(rank.gathers - 1), "a gather"),
                    Wait::Reduce(id) => self.name(Key::Reduce(id), &format!("reduction {id}")),
                    Wait::Reply(server) => format!("a reply of the shard on rank {server}"),
                    Wait::Stage(server, stage) => {
                        format!("the reply to {stage:?} of the server on rank {server}")
                    }
                    Wait::Started(id) if !rank.began.contains_key(&id) => {
                        format!("reduction {id}, which it has not started")
                    }
                    Wait::Started(id) => {
                        self.name(Key::Reduce(id), &format!("the started reduction {id}"))
                    }
                });
                (index, what.unwrap_or_else(|| "nothing".to_owned()))
            })
            .collect()
    }

    fn name(&self, key: Key, what: &str) -> String {
        match self.meetings.absent(key).as_slice() {
            [] => what.to_owned(),
            absent => format!("{what}, to which {} did not come", name_ranks(absent)),
        }
    }

    fn name_collection(&self, key: Key) -> String {
        let what = "the shards to be brought together";
        match self.open_server().filter(|_| self.meetings.absent(key).is_empty()) {
            Some(shard) => format!("{what}; workers still push to that of rank {shard}"),
            None => self.name(key, what),
        }
    }
}

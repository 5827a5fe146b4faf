//! A rank's end of OSP's parameter server: its own server, and what it has under way to all.
//!
//! Owns who has the server when: a thread while workers push, this object between a collection and
//! the next push. Called by the exchange.

use std::collections::BTreeMap;
use std::time::Duration;

use syncline_comm::Request;

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::model::osp_server::settings::{Assignment, OspServerConfig};
use crate::model::{Job, Memory, Timing};
use crate::server::osp::OspShard;
use crate::server::osp::service::{BODY_TAG, HEAD_TAG, Lanes, REPLY_TAG, Service};
use crate::server::osp::wire::{self, HEAD_WORDS, Stage};

/// This rank's end of OSP's parameter server.
#[derive(Debug)]
pub(super) struct Stages {
    pub(super) lanes: Lanes,
    state: StageState,
    /// Per rank: elements that it serves.
    pub(super) lens: Vec<usize>,
    /// The last push of each stage to each server.
    sent: BTreeMap<(u32, Stage), Vec<Request<u32>>>,
    replies: BTreeMap<(u32, Stage), (Moment, Request<u32>)>,
}

#[derive(Debug)]
enum StageState {
    Lost,
    /// This rank serves nothing.
    Nothing,
    Resting(Box<OspShard>),
    Served(Service),
}

impl Stages {
    pub(super) fn new(
        lanes: Lanes,
        job: Job,
        config: OspServerConfig,
        layout: &Layout,
        parameters: &[f32],
        memory: &Memory,
    ) -> Self {
        let assignment = Assignment::new(config.placement, job.world_size, layout);
        let len = |rank| assignment.part_of(rank).map_or(0, |part| part.flat.len());
        let shard = OspShard::new(job, config, layout, parameters, memory);
        let resting = |shard| StageState::Resting(Box::new(shard));
        Self {
            lanes,
            state: shard.map_or(StageState::Nothing, resting),
            lens: (0..job.world_size).map(len).collect(),
            sent: BTreeMap::new(),
            replies: BTreeMap::new(),
        }
    }

    /// Starts to send a push, and to receive its reply.
    pub(super) fn push(
        &mut self,
        (server, stage): (u32, Stage),
        head: [u32; HEAD_WORDS],
        body: Vec<u32>,
        reply_words: usize,
    ) -> Result<()> {
        self.serve()?;
        let lane = self.lanes.of(stage);
        let reply = lane.start_recv(vec![0; reply_words], server, REPLY_TAG)?;
        self.replies.insert((server, stage), (Moment::now(), reply));
        let head = lane.start_send(head.to_vec(), server, HEAD_TAG)?;
        let sent = vec![head, lane.start_send(body, server, BODY_TAG)?];
        // The last push was answered, so it was sent.
        let last = self.sent.insert((server, stage), sent);
        last.into_iter().flatten().try_for_each(|request| request.wait().map(drop))?;
        Ok(())
    }

    /// Tells a server that this rank pushes no more.
    pub(super) fn end(&mut self, server: u32, head: [u32; HEAD_WORDS]) -> Result<()> {
        let head = self.lanes.urgent.start_send(head.to_vec(), server, HEAD_TAG)?;
        self.sent.entry((server, Stage::Rs)).or_default().push(head);
        Ok(())
    }

    /// The reply to the last push of that stage, and how long it was under way.
    pub(super) fn await_reply(&mut self, server: u32, stage: Stage) -> Result<(Vec<u32>, Timing)> {
        let (began, reply) =
            self.replies.remove(&(server, stage)).expect("a push before its reply");
        let was_done = reply.is_done();
        let start = Moment::now();
        let message = reply.wait()?;
        if wire::is_refusal(&message) && server == self.lanes.urgent.rank() {
            // The thread's error says more.
            self.collect()?;
        }
        let blocked = if was_done { Duration::ZERO } else { start.elapsed() };
        Ok((message, Timing { elapsed: began.elapsed(), blocked }))
    }

    /// What this rank serves, between a collection and the next push.
    pub(super) fn resting(&self) -> Result<Option<&OspShard>> {
        match &self.state {
            StageState::Nothing => Ok(None),
            StageState::Resting(shard) => Ok(Some(shard)),
            StageState::Lost | StageState::Served(_) => {
                Err(Error::Protocol { reason: "this rank's server is not at rest".to_owned() })
            }
        }
    }

    /// Waits until all workers are done with this rank's server.
    pub(super) fn stop(&mut self) -> Result<()> {
        let sent = std::mem::take(&mut self.sent);
        sent.into_values().flatten().try_for_each(|request| request.wait().map(drop))?;
        self.collect()
    }

    /// What the server's thread ends with.
    fn collect(&mut self) -> Result<()> {
        if let StageState::Served(_) = self.state
            && let StageState::Served(service) =
                std::mem::replace(&mut self.state, StageState::Lost)
        {
            self.state = StageState::Resting(Box::new(service.collect()?));
        }
        Ok(())
    }

    fn serve(&mut self) -> Result<()> {
        if matches!(self.state, StageState::Nothing | StageState::Served(_)) {
            return Ok(());
        }
        let StageState::Resting(shard) = std::mem::replace(&mut self.state, StageState::Lost)
        else {
            return Err(Error::Protocol { reason: "this rank's server is lost".to_owned() });
        };
        self.state = StageState::Served(Service::start(&self.lanes, *shard)?);
        Ok(())
    }
}

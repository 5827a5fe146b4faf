//! OSP's parameter servers of all ranks, for the lockstep harness.
//!
//! Owns the servers and the replies that no rank has asked for yet. Never reorders: a push is
//! served when it is made. Called by the harness.

use std::collections::{BTreeMap, VecDeque};

use crate::config::{ModelKind, SessionConfig};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::model::{Action, Event, Job, Memory, Timing};
use crate::server::osp::wire::Stage;
use crate::server::osp::{Expected, OspShard};

#[derive(Debug)]
pub(super) struct Staged {
    pub(super) shards: Vec<OspShard>,
    world_size: u32,
    /// Whether anything was pushed since the last collection.
    is_open: bool,
    /// By worker, server and stage.
    replies: BTreeMap<(u32, u32, Stage), VecDeque<Vec<u32>>>,
}

impl Staged {
    /// The servers that `config` asks for, which may be none.
    pub(super) fn new(
        config: &SessionConfig,
        world_size: u32,
        layout: &Layout,
        parameters: &[f32],
    ) -> Self {
        let mut shards = Vec::new();
        if let ModelKind::OspServer(settings) = config.model {
            let memory = Memory::new(&config.optimiser, layout.len());
            let job = |rank| Job::new(rank, world_size, config);
            let shard = |rank| OspShard::new(job(rank), settings, layout, parameters, &memory);
            shards.extend((0..world_size).filter_map(shard));
        }
        Self { shards, world_size, is_open: false, replies: BTreeMap::new() }
    }

    /// Serves a push, or a worker's end.
    pub(super) fn push(
        &mut self,
        worker: u32,
        server: u32,
        head: &[u32],
        body: Vec<u32>,
    ) -> Result<()> {
        let shard = self.shards.iter_mut().find(|shard| shard.part().server == server);
        let shard = shard.expect("a server of this job");
        if let Expected::Body(push) = shard.handle_head(worker, head)? {
            self.is_open = true;
            for reply in shard.handle_body(&push, body)? {
                for worker in 0..self.world_size {
                    let queue = self.replies.entry((worker, server, reply.stage)).or_default();
                    queue.push_back(reply.message_for(worker));
                }
            }
        }
        Ok(())
    }

    /// The reply that `worker` waits for with this action, if it waits for one that is here.
    pub(super) fn reply(&mut self, worker: u32, action: Option<&Action>) -> Option<Event> {
        let Some(&Action::AwaitStage { server, stage }) = action else { return None };
        let message = self.replies.get_mut(&(worker, server, stage))?.pop_front()?;
        Some(Event::StageReplied { server, message, timing: Timing::default() })
    }

    /// All parameters and versions, once every worker is done.
    pub(super) fn collect(&mut self) -> Result<Event> {
        let is_open = std::mem::take(&mut self.is_open);
        let is_busy = is_open && !self.shards.iter().all(OspShard::all_done);
        if is_busy || !self.replies.values().all(VecDeque::is_empty) {
            let reason = "servers are collected while workers push".to_owned();
            return Err(Error::Protocol { reason });
        }
        self.shards.iter_mut().try_for_each(OspShard::reopen)?;
        let parameters = self.shards.iter().flat_map(OspShard::parameters).copied().collect();
        let versions = self.shards.iter().map(OspShard::version).collect();
        Ok(Event::Collected { parameters, versions })
    }
}

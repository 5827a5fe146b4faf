//! OSP's servers in the simulation: pushes of either stage, and the replies to them.
//!
//! Owns when a push is served: as its last byte is there, in no time. Never decides what is
//! applied: the servers do. Called by the driver.
//!
//! Messages of both stages leave and enter a link in the order in which they come, without the
//! precedence that RS has on a real one. The two meet only where servers are many: a rank starts
//! ICS when its RS was answered, and the next RS when its ICS was, so all that can wait is a reply
//! to RS, on its way into a rank, behind a push of ICS.

use super::driver::{Simulation, Trainer};
use super::error::SimulationError;
use super::mail::Content;
use super::rank::Wait;
use crate::error::Error;
use crate::model::SyncModel;
use crate::server::osp::wire::Stage;
use crate::server::osp::{Expected, OspShard};

impl<M: SyncModel> Simulation<M> {
    /// Lets a rank wait for a server's reply, or gives it one that is here.
    pub(super) fn await_stage(&mut self, index: usize, server: u32, stage: Stage) {
        let rank = &mut self.ranks[index];
        match rank.stage_replies.remove(&(server, stage)) {
            Some(message) => rank.handle_stage((server, stage), message, 0.0, self.now),
            None => self.block(index, Wait::Stage(server, stage)),
        }
    }

    /// A push is at its server, or the word that a rank pushes no more.
    pub(super) fn serve(
        &mut self,
        from: u32,
        to: u32,
        head: &[u32],
        body: Vec<u32>,
    ) -> Result<(), SimulationError> {
        let failed = |source: Error| SimulationError::Model { rank: from, source };
        let server = self.servers.iter_mut().find(|server| server.part().server == to);
        let none = || Error::Protocol { reason: format!("rank {to} serves nothing") };
        let server = server.ok_or_else(none).map_err(failed)?;
        let replies = match server.handle_head(from, head).map_err(failed)? {
            Expected::Body(push) => server.handle_body(&push, body).map_err(failed)?,
            Expected::Done | Expected::Stop => Vec::new(),
        };
        for reply in replies {
            let (stage, header_words) = (reply.stage, reply.header_words());
            // Beginning at the next rank, as a session's server does.
            let count = self.ranks.len() as u32;
            for rank in (1..=count).map(|next| (to + next) % count) {
                let words = reply.message_for(rank);
                self.send(to, rank, Content::StageReply { stage, header_words, words })?;
            }
        }
        self.collect_if_done();
        Ok(())
    }

    /// A server's reply is here.
    pub(super) fn take_stage_reply(
        &mut self,
        from: u32,
        to: u32,
        stage: Stage,
        words: Vec<u32>,
        trainer: &mut dyn Trainer,
    ) -> Result<(), SimulationError> {
        let index = to as usize;
        let rank = &mut self.ranks[index];
        if rank.waits_for(Wait::Stage(from, stage)) {
            let blocked_s = rank.release(self.now);
            rank.handle_stage((from, stage), words, blocked_s, self.now);
            return self.advance(index, trainer);
        }
        rank.stage_replies.insert((from, stage), words);
        Ok(())
    }

    /// All parameters and versions of OSP's servers, which may be pushed to again.
    pub(super) fn collect_servers(&mut self) -> Result<(Vec<f32>, Vec<u64>), Error> {
        self.servers.iter_mut().try_for_each(OspShard::reopen)?;
        let parameters = self.servers.iter().flat_map(OspShard::parameters).copied().collect();
        Ok((parameters, self.servers.iter().map(OspShard::version).collect()))
    }
}

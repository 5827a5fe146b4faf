//! The thread that serves one [`OspShard`].
//!
//! Owns the receives that are under way and the order in which they are served: that of their
//! arrival, which the server's arithmetic does not depend on. Never changes a message. Called by
//! the session.
//!
//! RS travels on the urgent communicator, ICS on the background one, both ways. From each worker at
//! most one message a communicator is awaited: the head of its next push, or the body after it.
//! Each receive is bounded by the communicator's deadline.

use std::thread::JoinHandle;

use syncline_comm::{Communicator, Request, wait_any};

use super::wire::{HEAD_WORDS, Head, Push, Stage};
use super::{Expected, OspShard, Reply};
use crate::error::{Error, Result};

/// Tag of the heads of pushes.
pub(crate) const HEAD_TAG: u32 = 3;
/// Tag of their bodies.
pub(crate) const BODY_TAG: u32 = 4;
/// Tag of replies.
pub(crate) const REPLY_TAG: u32 = 5;

/// The communicators of both stages, with the same ranks.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    pub(crate) urgent: Communicator,
    pub(crate) background: Communicator,
}

impl Lanes {
    pub(crate) fn of(&self, stage: Stage) -> &Communicator {
        match stage {
            Stage::Rs => &self.urgent,
            Stage::Ics => &self.background,
        }
    }
}

/// A server that a thread of this process runs.
#[derive(Debug)]
pub(crate) struct Service {
    lanes: Lanes,
    thread: Option<JoinHandle<Result<OspShard>>>,
}

impl Service {
    /// Starts to serve `shard`.
    pub(crate) fn start(lanes: &Lanes, mut shard: OspShard) -> Result<Self> {
        shard.reopen()?;
        let name = format!("syncline-osp-{}", lanes.urgent.rank());
        let mut serving = Serving::new(lanes.clone());
        let serve = move || match serving.run(&mut shard) {
            Ok(()) => Ok(shard),
            Err(error) => {
                serving.refuse(&shard);
                Err(error)
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(serve).map_err(Error::Thread)?;
        Ok(Self { lanes: lanes.clone(), thread: Some(thread) })
    }

    /// Waits until all workers are done, and gives the shard back.
    pub(crate) fn collect(mut self) -> Result<OspShard> {
        let thread = self.thread.take().expect("taken only here and by drop");
        let panicked = |_| Error::Protocol { reason: "the server's thread panicked".to_owned() };
        thread.join().map_err(panicked)?
    }
}

impl Drop for Service {
    /// Stops a server that was not collected: its rank gave up.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let (own, head) = (self.lanes.urgent.rank(), Head::Stop.encode().to_vec());
        // Not waited for: a thread that has ended by itself receives no more.
        drop(self.lanes.urgent.start_send(head, own, HEAD_TAG));
        let _ = thread.join();
    }
}

/// What a receive is for.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    Head { worker: u32, stage: Stage },
    Body(Push),
}

#[derive(Debug)]
struct Serving {
    lanes: Lanes,
    awaited: Vec<Awaited>,
    requests: Vec<Request<u32>>,
    /// The last replies of each stage, which may still be on their way.
    sent: [Vec<Request<u32>>; 2],
}

impl Serving {
    fn new(lanes: Lanes) -> Self {
        Self { lanes, awaited: Vec::new(), requests: Vec::new(), sent: Default::default() }
    }

    fn run(&mut self, shard: &mut OspShard) -> Result<()> {
        for worker in 0..self.lanes.urgent.world_size() {
            self.await_head(worker, Stage::Rs)?;
        }
        while !self.requests.is_empty() {
            // The one that was served goes to the end, so that none is passed over for long.
            let index = wait_any(&self.requests)?;
            let awaited = self.awaited.remove(index);
            let message = self.requests.remove(index).wait()?;
            match awaited {
                Awaited::Head { worker, stage } => match shard.handle_head(worker, &message)? {
                    Expected::Body(push) if push.stage == stage => self.await_body(push)?,
                    Expected::Body(push) => return wrong_lane(&push),
                    Expected::Done => {}
                    Expected::Stop => return Ok(()),
                },
                Awaited::Body(push) => {
                    if push.stage == Stage::Rs {
                        self.await_head(push.worker, Stage::Rs)?;
                    }
                    for reply in shard.handle_body(&push, message)? {
                        self.send(&reply)?;
                        if reply.stage == Stage::Rs && shard.expects_ics() {
                            let workers = 0..self.lanes.urgent.world_size();
                            workers.into_iter().try_for_each(|w| self.await_head(w, Stage::Ics))?;
                        }
                    }
                }
            }
        }
        let last = std::mem::take(&mut self.sent);
        last.into_iter().flatten().try_for_each(|reply| reply.wait().map(drop))?;
        Ok(())
    }

    /// Tells all workers that this server gives up, where they wait or will wait for its replies.
    fn refuse(&self, shard: &OspShard) {
        for stage in [Stage::Rs, Stage::Ics] {
            let Some(reply) = shard.refusal(stage) else { continue };
            let lane = self.lanes.of(stage);
            for worker in 0..lane.world_size() {
                // Fails only if the communicator did, which tells them as well. It is not waited
                // for: a worker may have ended.
                let _ = lane.start_send(reply.message_for(worker), worker, REPLY_TAG);
            }
        }
    }

    fn await_head(&mut self, worker: u32, stage: Stage) -> Result<()> {
        let head = vec![0; HEAD_WORDS];
        self.requests.push(self.lanes.of(stage).start_recv(head, worker, HEAD_TAG)?);
        self.awaited.push(Awaited::Head { worker, stage });
        Ok(())
    }

    fn await_body(&mut self, push: Push) -> Result<()> {
        let body = vec![0; push.words as usize];
        let lane = self.lanes.of(push.stage);
        self.requests.push(lane.start_recv(body, push.worker, BODY_TAG)?);
        self.awaited.push(Awaited::Body(push));
        Ok(())
    }

    /// To all workers. A worker pushes when it has the last reply, so that was sent long ago.
    fn send(&mut self, reply: &Reply) -> Result<()> {
        let (lane, last) = (self.lanes.of(reply.stage), &mut self.sent[reply.stage as usize]);
        last.drain(..).try_for_each(|reply| reply.wait().map(drop))?;
        // Each server begins at another rank, so that no link gets the replies of all at once.
        let (own, count) = (lane.rank(), lane.world_size());
        for worker in (1..=count).map(|next| (own + next) % count) {
            last.push(lane.start_send(reply.message_for(worker), worker, REPLY_TAG)?);
        }
        Ok(())
    }
}

fn wrong_lane(push: &Push) -> Result<()> {
    let Push { worker, stage, .. } = push;
    let reason = format!("rank {worker} pushed {stage:?} on the other stage's communicator");
    Err(Error::Protocol { reason })
}

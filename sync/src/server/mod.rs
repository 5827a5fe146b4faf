//! The parameter server of ASP, in shards that are co-located with the ranks; OSP's is in [`osp`].
//!
//! Owns the shards, their messages, and the thread that serves one. Never decides when a worker
//! goes on. Called by the session, which starts one shard per rank and stops it to collect them.
//!
//! ```text
//! worker 0 ──push──▶ ┌─────────────┐
//! worker 1 ──push──▶ │ thread:     │ ──reply──▶ the worker that pushed
//! worker 2 ──push──▶ │ one shard   │
//!    of every rank   └─────────────┘ until all workers are done, or this rank's says stop
//! ```

pub mod osp;
pub mod shard;
pub mod wire;

use std::thread::JoinHandle;

use syncline_comm::{Communicator, Request, wait_any};

use crate::error::{Error, Result};
use shard::{Handled, Shard};
use wire::{HEADER_WORDS, Header};

/// Tag of messages to a shard.
pub(crate) const PUSH_TAG: u32 = 1;
/// Tag of messages to a worker.
pub(crate) const REPLY_TAG: u32 = 2;

/// A shard that a thread of this process serves.
#[derive(Debug)]
pub(crate) struct Server {
    communicator: Communicator,
    thread: Option<JoinHandle<Result<Shard>>>,
    shard_len: usize,
}

impl Server {
    /// Starts to serve `shard` on `communicator`, which has the workers' ranks.
    pub(crate) fn start(communicator: &Communicator, mut shard: Shard) -> Result<Self> {
        shard.reopen();
        let shard_len = shard.parameters().len();
        let own = communicator.clone();
        let name = format!("syncline-shard-{}", own.rank());
        let serve = move || serve(&own, shard);
        let thread = std::thread::Builder::new().name(name).spawn(serve).map_err(Error::Thread)?;
        Ok(Self { communicator: communicator.clone(), thread: Some(thread), shard_len })
    }

    /// Waits until all workers are done, and gives the shard back. Bounded by the deadline of
    /// the receive that the thread waits for.
    pub(crate) fn collect(mut self) -> Result<Shard> {
        let thread = self.thread.take().expect("taken only here and by drop");
        let panicked = |_| Error::Protocol { reason: "the shard's thread panicked".to_owned() };
        thread.join().map_err(panicked)?
    }
}

impl Drop for Server {
    /// Stops a server that was not collected: its rank gave up.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let rank = self.communicator.rank();
        let mut message = Vec::new();
        wire::encode(Header::Stop, std::iter::repeat_n(0.0, self.shard_len), &mut message);
        // Either fails only if the communicator did, which ends the thread as well.
        let _ = self.communicator.start_send(message, rank, PUSH_TAG).map(Request::wait);
        let _ = thread.join();
    }
}

/// The thread: one receive per worker that is not done, served in the order of arrival.
fn serve(communicator: &Communicator, mut shard: Shard) -> Result<Shard> {
    let words = HEADER_WORDS + shard.parameters().len();
    let receive = |worker, buffer| communicator.start_recv(buffer, worker, PUSH_TAG);
    let mut replies: Vec<Option<Request<u32>>> = Vec::new();
    let mut workers = Vec::new();
    let mut requests = Vec::new();
    for worker in 0..communicator.world_size() {
        replies.push(None);
        workers.push(worker);
        requests.push(receive(worker, vec![0_u32; words])?);
    }
    while !requests.is_empty() {
        // The one that was served goes to the end, so that none is passed over for long.
        let index = wait_any(&requests)?;
        let worker = workers.remove(index);
        let mut message = requests.remove(index).wait()?;
        match shard.handle_message(worker, &mut message)? {
            Handled::Done => {}
            Handled::Reply => {
                let sent = communicator.start_send(message, worker, REPLY_TAG)?;
                // A worker pushes when it has the last reply, so that was sent long ago.
                let buffer = match replies[worker as usize].replace(sent) {
                    Some(last) => last.wait()?,
                    None => vec![0; words],
                };
                workers.push(worker);
                requests.push(receive(worker, buffer)?);
            }
            Handled::Stop => return Ok(shard),
        }
    }
    for reply in replies.into_iter().flatten() {
        reply.wait()?;
    }
    Ok(shard)
}

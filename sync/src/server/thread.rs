//! The thread that serves one shard.
//!
//! Owns the requests that are under way between the shard and its workers. Never looks into a
//! message. Started by the session with the first push, and ended by the last worker's end.

use std::thread::JoinHandle;
use std::time::Duration;

use syncline_comm::{Communicator, Request, wait_any};

use super::shard::{Outcome, Reply, Shard};
use super::wire::{self, HEADER_WORDS, Header};
use super::{PUSH_TAG, REPLY_TAG};
use crate::clock::{Moment, pause};
use crate::error::{Error, Result};

/// How long a push may lie while the thread waits for a time: much less than a step.
const LONGEST_PAUSE: Duration = Duration::from_micros(200);

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
        shard.reopen()?;
        let shard_len = shard.parameters().len();
        let own = communicator.clone();
        let name = format!("syncline-shard-{}", own.rank());
        let serve = move || Desk::open(&own, shard)?.serve();
        let thread = std::thread::Builder::new().name(name).spawn(serve).map_err(Error::Thread)?;
        Ok(Self { communicator: communicator.clone(), thread: Some(thread), shard_len })
    }

    /// Waits until all workers are done, and gives the shard back. Bounded by the deadline of
    /// the receive that the thread waits for.
    pub(crate) fn collect(mut self) -> Result<Shard> {
        self.join()
    }

    /// The same, for a thread that has given up or is about to: its error.
    pub(crate) fn join(&mut self) -> Result<Shard> {
        let lost = || Error::Protocol { reason: "this rank's shard is lost".to_owned() };
        let thread = self.thread.take().ok_or_else(lost)?;
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
        // Not waited for: a thread that has ended by itself receives no more.
        drop(self.communicator.start_send(message, rank, PUSH_TAG));
        let _ = thread.join();
    }
}

/// What the thread has under way.
struct Desk<'a> {
    communicator: &'a Communicator,
    shard: Shard,
    /// When it was opened: times of the shard are since then.
    start: Moment,
    /// One receive per worker that is not done, held or not.
    requests: Vec<Request<u32>>,
    /// Whose, in the same order.
    workers: Vec<u32>,
    /// By worker: the last reply.
    replies: Vec<Option<Request<u32>>>,
}

impl<'a> Desk<'a> {
    fn open(communicator: &'a Communicator, shard: Shard) -> Result<Self> {
        let (start, world_size) = (Moment::now(), communicator.world_size());
        let replies = (0..world_size).map(|_| None).collect();
        let (requests, workers) = (Vec::new(), Vec::new());
        let mut desk = Self { communicator, shard, start, requests, workers, replies };
        (0..world_size).try_for_each(|worker| desk.receive(worker))?;
        Ok(desk)
    }

    /// Serves until all workers are done. If a message or the rule breaks what was promised, all
    /// who wait for this shard, or will, are told to give up.
    fn serve(mut self) -> Result<Shard> {
        let outcome = self.serve_all();
        if matches!(outcome, Err(Error::Protocol { .. })) {
            for worker in (0..self.communicator.world_size()).filter(|w| !self.shard.is_done(*w)) {
                let mut message = Vec::new();
                let zeros = std::iter::repeat_n(0.0, self.shard.parameters().len());
                wire::encode(Header::Stop, zeros, &mut message);
                // Fails only if the communicator did, which ends the worker as well.
                drop(self.communicator.start_send(message, worker, REPLY_TAG));
            }
        }
        outcome.map(|()| self.shard)
    }

    /// Serves messages in the order of arrival.
    fn serve_all(&mut self) -> Result<()> {
        while !self.requests.is_empty() {
            if let Some(index) = self.wait()? {
                // The one that was served goes to the end, so that none is passed over for long.
                let worker = self.workers.remove(index);
                let message = self.requests.remove(index).wait()?;
                let handled = self.shard.handle_message(worker, message, self.start.elapsed())?;
                match handled.outcome {
                    Outcome::Done => {}
                    Outcome::Pushed => self.receive(worker)?,
                    Outcome::Stop => return Ok(()),
                }
                self.send(handled.replies)?;
            } else {
                let replies = self.shard.tick(self.start.elapsed())?;
                self.send(replies)?;
            }
        }
        for reply in self.replies.iter_mut().filter_map(Option::take) {
            reply.wait()?;
        }
        Ok(())
    }

    /// Waits for a message and says which, or for the time that the shard has named.
    fn wait(&self) -> Result<Option<usize>> {
        while let Some(due) = self.shard.due() {
            if let Some(index) = self.requests.iter().position(Request::is_done) {
                return Ok(Some(index));
            }
            match due.checked_sub(self.start.elapsed()) {
                Some(left) if !left.is_zero() => pause(left.min(LONGEST_PAUSE)),
                _ => return Ok(None),
            }
        }
        Ok(Some(wait_any(&self.requests)?))
    }

    /// Posts a receive. What it receives into was sent to the same worker before: a worker pushes
    /// when it has the last reply, so that one has left.
    fn receive(&mut self, worker: u32) -> Result<()> {
        let words = HEADER_WORDS + self.shard.parameters().len();
        let buffer = match self.replies[worker as usize].take() {
            Some(last) => last.wait()?,
            None => vec![0; words],
        };
        self.requests.push(self.communicator.start_recv(buffer, worker, PUSH_TAG)?);
        self.workers.push(worker);
        Ok(())
    }

    fn send(&mut self, replies: Vec<Reply>) -> Result<()> {
        for (worker, message) in replies {
            let sent = self.communicator.start_send(message, worker, REPLY_TAG)?;
            self.replies[worker as usize] = Some(sent);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SessionConfig;
    use crate::model::Memory;

    #[test]
    fn a_broken_promise_ends_all_who_wait() {
        let set = |config: &mut syncline_comm::Config| config.timeout = Duration::from_secs(30);
        syncline_comm::testing::threads(2, set, |world| {
            let config = SessionConfig::default();
            let memory = Memory::new(&config.optimiser, 3);
            let shard = Shard::new(world.rank(), 2, &config, vec![1.0; 3], memory).unwrap();
            let server = Server::start(&world, shard).unwrap();
            let push = |server: u32, clock| {
                let worker = world.rank();
                let header =
                    Header::Push { worker, clock, version: 0, learning_rate: 1.0, sample_ns: 0 };
                let mut message = Vec::new();
                wire::encode(header, [0.5; 3].into_iter(), &mut message);
                // Not waited for: the shard may have given up.
                drop(world.start_send(message, server, PUSH_TAG).unwrap());
                let mut reply = vec![0; HEADER_WORDS + 3];
                world.recv(&mut reply, server, REPLY_TAG).unwrap();
                wire::decode(&reply, 3).unwrap().0
            };
            // To the shard of rank 0: worker 1's first push has the wrong clock. Worker 0 never
            // did anything wrong, and hears of it at its next push at the latest.
            let reply = push(0, u64::from(world.rank()));
            if world.rank() == 1 || reply == Header::Stop {
                assert_eq!(reply, Header::Stop);
            } else {
                assert_eq!(push(0, 1), Header::Stop);
            }
            // That of rank 1 is broken too, by a worker that nobody else waits for; its thread has
            // ended when it is dropped, with a message to itself that it will never take.
            if world.rank() == 1 {
                assert_eq!(push(1, 7), Header::Stop);
                let start = Moment::now();
                let mut message = Vec::new();
                let header = Header::Push {
                    worker: 1,
                    clock: 8,
                    version: 0,
                    learning_rate: 1.0,
                    sample_ns: 0,
                };
                wire::encode(header, [0.5; 3].into_iter(), &mut message);
                drop(world.start_send(message, 1, PUSH_TAG).unwrap());
                drop(server);
                assert!(start.elapsed() < Duration::from_secs(10), "waits for its own deadline");
            } else {
                let error = server.collect().unwrap_err().to_string();
                assert!(error.contains("push 1 of rank 1 came where push 0 is next"), "{error}");
            }
        });
    }
}

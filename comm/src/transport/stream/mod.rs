//! Messages over byte streams: what TCP connections and shared-memory rings have in common.
//!
//! Owns the streams and the requests posted to them. Never blocks, never reads a clock, never
//! calls the engine. Used by the TCP and the shared-memory transport.
//!
//! | file | what it holds |
//! |---|---|
//! | `rail` | one stream to one peer: the two halves below on one stream, and its end |
//! | `sending` | messages this rank sends: held, cleared, lent; credit spent |
//! | `receiving` | messages it receives: posted, kept, offered, pulled; credit returned |
//! | `outbound` | frames being written: the queues and the vectored write |
//! | `inbound` | the frame being read, and how its payload is folded in |
//! | here | all rails of a transport |
//!
//! A pair of ranks may have several streams (rails). Chunk c of a message travels on rail
//! `c % rails`, which both sides compute, so each rail matches its messages alone.
//!
//! # Frames
//!
//! | frame | from | means |
//! |---|---|---|
//! | `Data`, offset 0 | sender | an eager message: at most `EAGER_MAX_BYTES`, unasked, for credit |
//! | `Data`, offset 1 | sender | a message that `ClearToSend` asked for |
//! | `Pull`, offset 0 | sender | an offer: I hold this message, ask for it |
//! | `Pull`, else | sender | in place of `Data`: fetch it at this address of my process |
//! | `ClearToSend` | receiver | I have posted this message; offset 1: I can fetch it myself |
//! | `ClearToSend`, offset 2 | receiver | a note: I wait for this message, and nothing has moved |
//! | `Ack`, len > 0 | receiver | I have fetched it |
//! | `Ack`, len 0 | receiver | credit: `offset` is the cost of all eager messages taken so far |
//!
//! A message of more than `EAGER_MAX_BYTES` waits (`held`) for its `ClearToSend`, so its bytes
//! go straight to their place. A smaller one is sent at once, at a cost of its bytes and
//! `MESSAGE_COST`, while the sender has credit; the receiver gives credit back as receives take
//! messages. Without credit it is held too, and offered. A large message that nobody has asked
//! for in `OFFER_AFTER` is offered as well: its receiver may have posted something small under
//! its name, never ask, and must see that the two calls differ.
//!
//! **Nothing locks up.** What a peer can have unposted here is bounded by its credit, so a stream
//! is always read to its end: control frames are never stuck behind messages that nobody has
//! posted. A held message goes once it is asked for, which takes its receive and nothing else.
//!
//! **Disagreement** is seen by whoever has both sides of a message before it: the sender at
//! `ClearToSend`, the receiver at `Data` or an offer. It is reported when the frame comes, and
//! once more if the request it disagrees with is posted only later.

mod inbound;
mod outbound;
mod rail;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;

use super::{Event, Transport, WorkRequest};
use rail::Rail;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice};
use std::time::Duration;
use syncline_proto::id::Rank;
use syncline_proto::time::Instant;

/// Bytes read at a time where they cannot be folded in place.
const SCRATCH_BYTES: usize = 256 << 10;
/// What one rail's unposted eager messages may cost.
const CREDIT: u64 = 4 << 20;
/// What an eager message costs beside its bytes.
const MESSAGE_COST: u64 = 128;
/// Names of messages that a peer may offer or ask for before this rank posts them.
const MARKS_MAX: usize = 1 << 18;
/// When a large message that nobody has asked for is offered.
const OFFER_AFTER: Duration = Duration::from_millis(200);
/// A message at least so long is fetched by its receiver, where that can be.
const PULL_MIN_BYTES: usize = 64 << 10;

/// A reliable, ordered, non-blocking byte stream to one peer.
///
/// "Would block" is `Ok(0)`; the peer's end is an [`io::ErrorKind::UnexpectedEof`] error, and a
/// peer that breaks the stream's own rules is [`io::ErrorKind::InvalidData`]. Other errors are the
/// operating system's.
pub trait Stream: Send + fmt::Debug {
    /// Writes some leading bytes of `parts`.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Reads some bytes.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// As [`read`](Self::read), when what follows is expected to be short: may read further at
    /// the price of a counted copy.
    fn read_ahead(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read(into)
    }

    /// Shows up to `max` of the next bytes to `consume`, which takes them all: in place if they
    /// lie in memory already, else by way of `scratch`. How many there were.
    fn read_with(
        &mut self,
        max: usize,
        scratch: &mut [u8],
        consume: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize>;

    /// Whether a look is worth its cost though nothing is expected.
    fn may_have_news(&self) -> bool;

    /// A source of readiness, for streams that the kernel watches.
    fn source(&mut self) -> Option<&mut mio::net::TcpStream> {
        None
    }

    /// The kernel says that the stream is ready.
    fn handle_ready(&mut self, _readable: bool, _writable: bool) {}

    /// Name of the two ends, for errors.
    fn ends(&self) -> String;

    /// Bytes this stream has copied beside moving them between the wire and what it was given.
    fn bytes_copied(&self) -> u64 {
        0
    }
}

/// Reads the memory of one peer's process.
pub trait Puller: Send + fmt::Debug {
    /// Fills `into` from `address` of the peer's process.
    ///
    /// # Errors
    /// The operating system's, also when less than all of it could be read.
    fn read(&mut self, address: u64, into: &mut [u8]) -> io::Result<()>;
}

/// A peer's rails.
#[derive(Debug)]
struct Peer<S> {
    rails: Vec<Rail<S>>,
    has_failed: bool,
}

/// All streams of one kind.
#[derive(Debug)]
pub struct StreamTransport<S> {
    name: &'static str,
    token_base: usize,
    peers: Vec<Peer<S>>,
    by_rank: BTreeMap<Rank, usize>,
    /// (peer, rail) by mio token less the base.
    tokens: Vec<(usize, usize)>,
    scratch: Vec<u8>,
    /// Rails that something was posted to since the last push.
    touched: Vec<(usize, usize)>,
}

impl<S: Stream> StreamTransport<S> {
    /// Over the given streams, at least one for each peer; both sides give as many.
    ///
    /// # Panics
    /// If a peer has no stream.
    pub fn new(
        name: &'static str,
        token_base: usize,
        rank: Rank,
        epoch: u32,
        links: Vec<(Rank, Vec<S>)>,
    ) -> Self {
        let mut tokens = Vec::new();
        let mut by_rank = BTreeMap::new();
        let mut peers = Vec::new();
        for (index, (peer, streams)) in links.into_iter().enumerate() {
            assert!(!streams.is_empty(), "rank {peer} has no stream");
            by_rank.insert(peer, index);
            tokens.extend((0..streams.len()).map(|rail| (index, rail)));
            let rails = streams.into_iter().map(|s| Rail::new(name, rank, peer, epoch, s));
            peers.push(Peer { rails: rails.collect(), has_failed: false });
        }
        Self {
            name,
            token_base,
            peers,
            by_rank,
            tokens,
            scratch: vec![0; SCRATCH_BYTES],
            touched: Vec::new(),
        }
    }

    /// Large messages of `peer` are read from its memory, and it reads ours: both ends must have
    /// found that they can. With several rails only the first does so.
    ///
    /// # Panics
    /// If there is no such peer.
    pub fn set_puller(&mut self, peer: Rank, puller: Box<dyn Puller>) {
        self.peers[self.by_rank[&peer]].rails[0].set_puller(puller);
    }

    /// All streams, for transports that must tell them something.
    pub(crate) fn streams_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.peers.iter_mut().flat_map(|peer| &mut peer.rails).map(Rail::stream_mut)
    }

    fn live_rails(&self) -> impl Iterator<Item = &Rail<S>> {
        self.peers.iter().filter(|peer| !peer.has_failed).flat_map(|peer| &peer.rails)
    }
}

impl<S: Stream> Transport for StreamTransport<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn post(&mut self, now: Instant, request: WorkRequest) {
        let index = self.by_rank[&request.peer];
        let rails = &mut self.peers[index].rails;
        let rail = request.message.chunk as usize % rails.len();
        rails[rail].post(now, request);
        let touched = (index, rail);
        if self.touched.last() != Some(&touched) {
            self.touched.push(touched);
        }
    }

    fn push(&mut self) {
        for (peer, rail) in self.touched.drain(..) {
            self.peers[peer].rails[rail].write();
        }
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        for peer in self.peers.iter_mut().filter(|peer| !peer.has_failed) {
            for rail in &mut peer.rails {
                match rail.poll(now, &mut self.scratch, events) {
                    Ok(has_moved) => moved |= has_moved,
                    Err(failure) => {
                        peer.has_failed = true;
                        moved = true;
                        events.push(Event::Failed(failure));
                        break;
                    }
                }
            }
        }
        moved
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.live_rails().filter_map(Rail::next_timeout).min()
    }

    fn register(&mut self, registry: &mio::Registry) -> io::Result<()> {
        let interest = mio::Interest::READABLE | mio::Interest::WRITABLE;
        for (index, (peer, rail)) in self.tokens.iter().enumerate() {
            let stream = self.peers[*peer].rails[*rail].stream_mut();
            if let Some(source) = stream.source() {
                registry.register(source, mio::Token(self.token_base + index), interest)?;
            }
        }
        Ok(())
    }

    fn handle_ready(&mut self, token: mio::Token, readable: bool, writable: bool) {
        let index = token.0.checked_sub(self.token_base);
        if let Some((peer, rail)) = index.and_then(|index| self.tokens.get(index)) {
            self.peers[*peer].rails[*rail].stream_mut().handle_ready(readable, writable);
        }
    }

    fn prepare_sleep(&mut self) -> bool {
        !self.live_rails().any(Rail::has_work)
    }

    fn tell_posted(&mut self) {
        let live = self.peers.iter_mut().filter(|peer| !peer.has_failed);
        live.flat_map(|peer| &mut peer.rails).for_each(Rail::tell_posted);
    }

    fn is_flushed(&self) -> bool {
        self.live_rails().all(Rail::is_flushed)
    }

    fn cancel_all(&mut self) {
        for rail in self.peers.iter_mut().flat_map(|peer| &mut peer.rails) {
            rail.cancel_all();
        }
    }

    fn bytes_copied(&self) -> u64 {
        self.peers.iter().flat_map(|peer| &peer.rails).map(Rail::bytes_copied).sum()
    }
}

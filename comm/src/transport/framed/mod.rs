//! Messages over byte streams: what TCP connections and shared-memory rings have in common.
//!
//! | file | what it holds |
//! |---|---|
//! | `rail` | one stream to one peer: what is posted, held, kept; the frames in and out |
//! | `inbound` | a frame being received |
//! | `outbound` | frames being sent |
//! | here | all rails of a transport |
//!
//! A pair of ranks may have several streams (rails); chunk c of a message travels on rail
//! `c % rails`, which both sides compute, so each stream matches its messages alone.

mod inbound;
mod outbound;
mod rail;

use super::{Event, Transport, WorkRequest};
use rail::Rail;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice};
use syncline_proto::id::Rank;
use syncline_proto::time::Instant;

/// Bytes read at a time where they cannot be folded in place.
const SCRATCH_BYTES: usize = 256 << 10;

/// A reliable, ordered, non-blocking byte stream to one peer.
///
/// "Would block" is `Ok(0)`; the peer's end is an [`io::ErrorKind::UnexpectedEof`] error.
pub trait Stream: Send + fmt::Debug {
    /// Writes some leading bytes of `parts`.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Reads some bytes.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

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
}

/// A peer's streams.
#[derive(Debug)]
struct Peer<S> {
    rank: Rank,
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
        let peers: Vec<Peer<S>> = links
            .into_iter()
            .enumerate()
            .map(|(index, (peer, rails))| {
                assert!(!rails.is_empty(), "rank {peer} has no stream");
                tokens.extend((0..rails.len()).map(|rail| (index, rail)));
                let open = |stream| Rail::new(name, rank, peer, epoch, stream);
                let rails = rails.into_iter().map(open).collect();
                Peer { rank: peer, rails, has_failed: false }
            })
            .collect();
        let by_rank = peers.iter().enumerate().map(|(index, peer)| (peer.rank, index)).collect();
        let scratch = vec![0; SCRATCH_BYTES];
        Self { name, token_base, peers, by_rank, tokens, scratch }
    }

    /// All streams, for transports that must tell them something.
    pub(crate) fn streams_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.peers.iter_mut().flat_map(|peer| &mut peer.rails).map(Rail::stream_mut)
    }
}

impl<S: Stream> Transport for StreamTransport<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn post(&mut self, _now: Instant, request: WorkRequest) {
        let peer = &mut self.peers[self.by_rank[&request.peer]];
        let rail = request.message.chunk as usize % peer.rails.len();
        peer.rails[rail].post(request);
    }

    fn poll(&mut self, _now: Instant, events: &mut Vec<Event>) -> bool {
        let mut progressed = false;
        for peer in &mut self.peers {
            if peer.has_failed {
                continue;
            }
            for rail in &mut peer.rails {
                match rail.poll(&mut self.scratch, events) {
                    Ok(moved) => progressed |= moved,
                    Err(failure) => {
                        peer.has_failed = true;
                        progressed = true;
                        events.push(Event::Failed(failure));
                        break;
                    }
                }
            }
        }
        progressed
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

    fn tell_posted(&mut self) {
        let live = self.peers.iter_mut().filter(|peer| !peer.has_failed);
        live.flat_map(|peer| &mut peer.rails).for_each(Rail::tell_posted);
    }

    fn is_flushed(&self) -> bool {
        self.peers.iter().all(|peer| peer.has_failed || peer.rails.iter().all(Rail::is_flushed))
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

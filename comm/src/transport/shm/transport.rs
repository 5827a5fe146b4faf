//! Messages to the ranks of this host.
//!
//! Owns the rings to all of them and this rank's bell: registers it with the engine's sleep, and
//! tells peers when it is needed. What messages are is the framing's business.

use super::bell::{lower, raise, silence};
use super::cma::Puller;
use super::segment::NodeSegment;
use super::stream::{RingStream, SegmentPuller};
use crate::transport::stream::StreamTransport;
use crate::transport::{Event, Transport, WorkRequest};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use syncline_proto::id::Rank;
use syncline_proto::time::Instant;

/// By which the engine's sleep names this rank's bell.
const BELL: Token = Token(16);

/// The transport between ranks of one host.
#[derive(Debug)]
pub struct ShmTransport {
    streams: StreamTransport<RingStream>,
    segment: Arc<NodeSegment>,
}

/// Messages over the segment's rings, for `rank` in `epoch`; `ranks` are the host's world ranks by
/// local rank. Make one per segment. It also wakes the engine for the lanes of the segment.
///
/// # Panics
/// If `ranks` are not as many as the segment's, or this rank is not where it should be.
pub fn transport(
    segment: Arc<NodeSegment>,
    ranks: Vec<Rank>,
    rank: Rank,
    epoch: u32,
) -> ShmTransport {
    assert_eq!(ranks.len(), segment.local_size() as usize, "world ranks of the host");
    let me = segment.local_index();
    assert_eq!(ranks[me as usize], rank, "world rank of local rank {me}");
    let others: Vec<(u32, Rank)> = (0..).zip(ranks).filter(|(local, _)| *local != me).collect();
    let links = others
        .iter()
        .map(|&(local, peer)| (peer, vec![RingStream::new(Arc::clone(&segment), local)]))
        .collect();
    let mut streams = StreamTransport::new("shm", 0, rank, epoch, links);
    for (local, peer) in others {
        // Lending needs no permission of ours: a peer that can fetch says so when it asks.
        if let Some(puller) = Puller::probe(&segment, local) {
            let segment = Arc::clone(&segment);
            streams.set_puller(peer, Box::new(SegmentPuller { puller, segment, peer: local }));
        }
    }
    ShmTransport { streams, segment }
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        self.streams.name()
    }

    fn post(&mut self, now: Instant, request: WorkRequest) {
        self.streams.post(now, request);
    }

    fn push(&mut self) {
        self.streams.push();
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        self.streams.poll(now, events)
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.streams.next_timeout()
    }

    fn register(&mut self, registry: &Registry) -> io::Result<()> {
        let bell = self.segment.bell(self.segment.local_index());
        registry.register(&mut SourceFd(&bell.as_raw_fd()), BELL, Interest::READABLE)
    }

    fn handle_ready(&mut self, token: Token, _readable: bool, _writable: bool) {
        if token == BELL {
            silence(self.segment.bell(self.segment.local_index()));
        }
    }

    fn prepare_sleep(&mut self) -> bool {
        raise(self.segment.sleeping(self.segment.local_index()));
        // All are asked, so that each has looked.
        let news = self.streams.streams_mut().filter_map(|s| s.has_news().then_some(())).count();
        self.streams.prepare_sleep() && news == 0
    }

    fn finish_sleep(&mut self) {
        lower(self.segment.sleeping(self.segment.local_index()));
        self.streams.finish_sleep();
    }

    fn tell_posted(&mut self) {
        self.streams.tell_posted();
    }

    fn is_flushed(&self) -> bool {
        self.streams.is_flushed()
    }

    fn cancel_all(&mut self) {
        self.streams.streams_mut().for_each(|stream| stream.withdraw());
        self.streams.cancel_all();
    }

    fn bytes_copied(&self) -> u64 {
        self.streams.bytes_copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::conformance::{self, Ends};
    use crate::transport::shm::layout::Layout;
    use crate::transport::stream::Stream;

    const RANKS: [Rank; 2] = [4, 7];

    fn transports(layout: Layout) -> [ShmTransport; 2] {
        let mut segments = NodeSegment::for_threads_of(layout).unwrap().into_iter();
        RANKS.map(|rank| transport(Arc::new(segments.next().unwrap()), RANKS.to_vec(), rank, 1))
    }

    fn ends(layout: Layout) -> Ends {
        Ends::two(RANKS, transports(layout).map(|end| -> Box<dyn Transport> { Box::new(end) }))
    }

    #[test]
    fn conforms() {
        conformance::check_all(|| ends(Layout::fit(2, u64::MAX).unwrap()));
    }

    #[test]
    fn conforms_with_tiny_rings() {
        let layout = Layout { local_size: 2, ring_bytes: 256, chunk_bytes: 4096 };
        conformance::check_all(|| ends(layout));
    }

    #[test]
    fn a_sleeper_is_rung_for_a_message_and_stays_awake_for_one_that_came() {
        let [mut first, mut second] = transports(Layout::fit(2, u64::MAX).unwrap());
        let rings = |transport: &ShmTransport| {
            let bell = transport.segment.bell(transport.segment.local_index());
            rustix::io::read(bell, &mut [0; 8]).is_ok()
        };
        let send = |transport: &mut ShmTransport| {
            let stream = transport.streams.streams_mut().next().unwrap();
            stream.write_vectored(&[io::IoSlice::new(b"x")]).unwrap();
        };
        send(&mut first);
        assert!(!second.prepare_sleep(), "something came");
        second.finish_sleep();
        assert!(second.prepare_sleep(), "it has been looked at");
        assert!(!rings(&second));
        send(&mut first);
        assert!(rings(&second));
        send(&mut first);
        assert!(!rings(&second), "one ring is enough");
        second.finish_sleep();
        send(&mut first);
        assert!(!rings(&second), "nobody sleeps");
    }
}

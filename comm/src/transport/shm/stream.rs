//! A pair of rings to one peer, as a byte stream.
//!
//! Owns the copies in and out of the rings and the ringing of the peer's bell. Knows nothing of
//! messages: `super::super::stream` does. Never blocks.
//!
//! Invariant of the `unsafe` here: the ranges come from [`Producer::room`] and
//! [`Consumer::filled`], which give out only bytes inside the ring that are this end's until it
//! commits or releases them.

use super::bell::{Word, must_ring, ring};
use super::cma::Puller;
use super::layout::PAD;
use super::ring::{Consumer, Corrupt, Producer, Words};
use super::segment::NodeSegment;
use crate::transport::stream::{self, Stream};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use syncline_kernels::{Stores, copy};

/// The other end gets to see this much while the rest is being copied, bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Both rings between this rank and another of the host.
#[derive(Debug)]
pub struct RingStream {
    segment: Arc<NodeSegment>,
    /// Local rank of the peer.
    peer: u32,
    producer: Producer,
    consumer: Consumer,
    /// Whether the peer's end was closed when this end last looked.
    saw_end: bool,
}

impl RingStream {
    /// To a local rank. There must be one at a time.
    pub(super) fn new(segment: Arc<NodeSegment>, peer: u32) -> Self {
        let capacity = segment.layout().ring_bytes;
        let (producer, consumer) = (Producer::new(capacity), Consumer::new(capacity));
        Self { segment, peer, producer, consumer, saw_end: false }
    }

    /// This end takes back all memory it has lent: what the peer fetches from now on, it must not
    /// believe.
    pub(super) fn withdraw(&self) {
        withdrawn(&self.segment, self.segment.local_index(), self.peer).publish(1);
        AtomicU64::fence();
    }

    /// Whether anything this end waits for has happened since it last looked.
    pub(super) fn has_news(&mut self) -> bool {
        let me = self.segment.local_index();
        let came = self.consumer.has_news(&words(&self.segment, self.peer, me));
        let went = self.producer.has_news(&words(&self.segment, me, self.peer));
        let is_closed = closed(&self.segment, self.peer, me).observe() != 0;
        let ended = is_closed && !std::mem::replace(&mut self.saw_end, is_closed);
        came || went || ended
    }

    /// Copies the leading bytes of `part` into the ring; how many.
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        let me = self.segment.local_index();
        let words = words(&self.segment, me, self.peer);
        let mut done = 0;
        while done < part.len() {
            let max = (part.len() - done).min(PIECE_BYTES);
            let room = self.producer.room(&words, max).map_err(corrupt)?;
            if room.is_empty() {
                break;
            }
            let target = start(&self.segment, me, self.peer, &room);
            // SAFETY: inside the ring, and this end's alone by `room` until it is committed.
            let target = unsafe { std::slice::from_raw_parts_mut(target, room.len()) };
            copy(target, &part[done..done + room.len()], Stores::Cached);
            self.producer.commit(&words, room.len());
            done += room.len();
            if must_ring(self.segment.sleeping(self.peer)) {
                ring(self.segment.bell(self.peer));
            }
        }
        Ok(done)
    }

    /// Shows up to `max` of the next bytes piece by piece; how many there were.
    fn show(&mut self, max: usize, mut show: impl FnMut(&[u8])) -> io::Result<usize> {
        let me = self.segment.local_index();
        let words = words(&self.segment, self.peer, me);
        let mut done = 0;
        while done < max {
            let piece_max = (max - done).min(PIECE_BYTES);
            let filled = self.consumer.filled(&words, piece_max).map_err(corrupt)?;
            if filled.is_empty() {
                break;
            }
            let source = start(&self.segment, self.peer, me, &filled);
            // SAFETY: inside the ring and this end's alone by `filled`, until `release` below,
            // when the slice is gone. A peer that writes there all the same changes bytes, which
            // nothing here relies on.
            show(unsafe { std::slice::from_raw_parts(source, filled.len()) });
            self.consumer.release(&words, filled.len());
            done += filled.len();
            AtomicU64::fence();
            if words.is_blocked.observe() != 0 && must_ring(self.segment.sleeping(self.peer)) {
                ring(self.segment.bell(self.peer));
            }
        }
        if done == 0 && max > 0 {
            self.check_end()?;
        }
        Ok(done)
    }

    /// An error if the peer has closed its end and nothing is left to read.
    fn check_end(&self) -> io::Result<()> {
        let me = self.segment.local_index();
        let is_closed = closed(&self.segment, self.peer, me).observe() != 0;
        if is_closed && !self.consumer.is_filled(&words(&self.segment, self.peer, me)) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed it"));
        }
        Ok(())
    }
}

impl Stream for RingStream {
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut done = 0;
        for part in parts {
            let written = self.write(part)?;
            done += written;
            if written < part.len() {
                break;
            }
        }
        Ok(done)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        self.show(into.len(), |bytes| {
            copy(&mut into[done..done + bytes.len()], bytes, Stores::Cached);
            done += bytes.len();
        })
    }

    fn read_with(
        &mut self,
        max: usize,
        _scratch: &mut [u8],
        consume: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        self.show(max, consume)
    }

    fn may_have_news(&self) -> bool {
        let me = self.segment.local_index();
        self.consumer.is_filled(&words(&self.segment, self.peer, me))
            || closed(&self.segment, self.peer, me).observe() != 0
    }

    fn ends(&self) -> String {
        let (me, pids) = (self.segment.local_index(), self.segment.pids());
        let end = |local: u32| format!("local rank {local} (pid {})", pids[local as usize]);
        format!("{} -> {}", end(me), end(self.peer))
    }
}

/// Fetches what a peer of the segment has lent.
#[derive(Debug)]
pub(super) struct SegmentPuller {
    pub(super) puller: Puller,
    pub(super) segment: Arc<NodeSegment>,
    /// Local rank of the peer.
    pub(super) peer: u32,
}

impl stream::Puller for SegmentPuller {
    fn read(&mut self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.puller.pull(address, into)?;
        // Looked at after the bytes: if it is not set now, they were the peer's to lend.
        AtomicU64::fence();
        let me = self.segment.local_index();
        if withdrawn(&self.segment, self.peer, me).observe() != 0 {
            return Err(io::Error::other("the peer has taken back the memory it had lent"));
        }
        Ok(())
    }
}

impl Drop for RingStream {
    fn drop(&mut self) {
        closed(&self.segment, self.segment.local_index(), self.peer).publish(1);
        if must_ring(self.segment.sleeping(self.peer)) {
            ring(self.segment.bell(self.peer));
        }
    }
}

fn words(segment: &NodeSegment, from: u32, to: u32) -> Words<'_, AtomicU64> {
    let head = segment.layout().ring_head(from, to);
    let word = |offset| segment.mapping().word(head + offset);
    Words { tail: word(0), is_blocked: word(8), head: word(PAD) }
}

/// Set once `from` may use the memory it has lent `to` for something else.
fn withdrawn(segment: &NodeSegment, from: u32, to: u32) -> &AtomicU64 {
    segment.mapping().word(segment.layout().ring_head(from, to) + 24)
}

/// Not 0 once the producer is gone.
fn closed(segment: &NodeSegment, from: u32, to: u32) -> &AtomicU64 {
    segment.mapping().word(segment.layout().ring_head(from, to) + 16)
}

/// The address of a range of a ring.
fn start(segment: &NodeSegment, from: u32, to: u32, range: &Range<usize>) -> *mut u8 {
    let ring = segment.layout().ring(from, to);
    assert!(range.end <= segment.layout().ring_bytes, "{range:?} of a ring");
    segment.mapping().bytes(ring + range.start, range.len()).as_ptr()
}

fn corrupt(_: Corrupt) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer's counters in shared memory are corrupt")
}

#[cfg(test)]
mod tests {
    use super::super::bell::{lower, raise, silence};
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::thread;

    /// A stream per thread, to each other.
    fn pair() -> [RingStream; 2] {
        let segments = NodeSegment::for_threads(2).unwrap();
        let mut streams = [1, 0].into_iter().zip(segments);
        std::array::from_fn(|_| {
            let (peer, segment) = streams.next().unwrap();
            RingStream::new(Arc::new(segment), peer)
        })
    }

    /// What an engine does when nothing moves.
    fn sleep(stream: &mut RingStream) {
        let segment = Arc::clone(&stream.segment);
        let me = segment.local_index();
        raise(segment.sleeping(me));
        if !stream.has_news() {
            let bell = segment.bell(me);
            let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
            let rung = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&limit)).unwrap();
            assert_eq!(rung, 1, "nobody rang");
            silence(bell);
        }
        lower(segment.sleeping(me));
    }

    fn pattern(at: usize) -> u8 {
        u8::try_from(at.wrapping_mul(0x9E37_79B9) >> 11 & 0xFF).unwrap()
    }

    #[test]
    fn a_stream_keeps_bytes_and_order_while_both_sleep() {
        let [mut near, mut far] = pair();
        let total = 5 * near.segment.layout().ring_bytes + 12_345;
        thread::scope(|scope| {
            scope.spawn(move || {
                let data: Vec<u8> = (0..total).map(pattern).collect();
                let mut sent = 0;
                while sent < total {
                    let middle = (sent + 100).min(total);
                    let parts = [IoSlice::new(&data[sent..middle]), IoSlice::new(&data[middle..])];
                    match near.write_vectored(&parts).unwrap() {
                        0 => sleep(&mut near),
                        count => sent += count,
                    }
                }
                // Dropped here: the end is seen only after the last byte.
            });
            let (mut received, mut turn) = (0, 0);
            let mut buffer = vec![0; 300_000];
            loop {
                turn += 1;
                let mut check = |bytes: &[u8]| {
                    for byte in bytes {
                        assert_eq!(*byte, pattern(received));
                        received += 1;
                    }
                };
                let result = if turn % 2 == 0 {
                    far.read_with(turn % 7 * 50_000 + 1, &mut [], &mut check)
                } else {
                    let count = far.read(&mut buffer);
                    check(&buffer[..*count.as_ref().unwrap_or(&0)]);
                    count
                };
                match result {
                    Ok(0) => sleep(&mut far),
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                        break;
                    }
                }
            }
            assert_eq!(received, total);
        });
    }

    #[test]
    fn nothing_there_is_no_error() {
        let [mut near, far] = pair();
        assert_eq!(near.read(&mut [0; 8]).unwrap(), 0);
        assert!(!near.may_have_news() && !near.has_news());
        assert_eq!(
            near.ends(),
            format!("local rank 0 (pid {0}) -> local rank 1 (pid {0})", std::process::id())
        );
        drop(far);
        assert!(near.may_have_news() && near.has_news() && !near.has_news());
        let error = near.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_mad_peer_is_an_error() {
        let [mut near, far] = pair();
        near.write_vectored(&[IoSlice::new(b"abc")]).unwrap();
        let forward = words(&far.segment, 0, 1);
        forward.head.publish(u64::MAX);
        let error = near.write_vectored(&[IoSlice::new(&vec![0; 2 << 20])]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        words(&far.segment, 1, 0).tail.publish(u64::MAX);
        let error = near.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}

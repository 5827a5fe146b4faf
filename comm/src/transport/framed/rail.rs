//! One stream to one peer: matching of messages, frames in and out.
//!
//! **Flow.** A message of more than [`EAGER_MAX_BYTES`] waits (`held`) until the receiver has said
//! that it is posted (`ClearToSend`), so its bytes always go straight to their place. A smaller
//! one is sent at once; if it comes before its receive it is kept, at most [`KEPT_MAX_BYTES`] per
//! stream, beyond which the stream is not read until a receive takes something out. That cannot
//! lock up: who is not read waits for a receive that its peer has yet to post, and a receive that
//! is posted takes what is kept without reading.

use super::Stream;
use super::inbound::{Filling, Inbound, Target, read_payload};
use super::outbound::Outbound;
use crate::memory::LocalSlice;
use crate::transport::{
    Class, EAGER_MAX_BYTES, Event, PeerFailure, RequestId, Sink, Work, WorkRequest,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use syncline_proto::call::{Call, Fingerprint};
use syncline_proto::id::{MessageId, Rank};
use syncline_proto::wire::{FrameHeader, FrameKind};

/// Bytes of unposted messages kept per stream.
const KEPT_MAX_BYTES: usize = 16 << 20;
/// What an unposted message costs beside its bytes.
const KEPT_OVERHEAD: usize = 128;
/// Bytes read in one poll, so that other peers get their turn.
const POLL_BYTES: usize = 4 << 20;

#[derive(Debug)]
struct Posted {
    /// Whether the peer has been told that it is posted.
    told: bool,
    id: RequestId,
    fingerprint: Fingerprint,
    sink: Sink,
}

#[derive(Debug)]
struct Held {
    id: RequestId,
    fingerprint: Fingerprint,
    class: Class,
    data: LocalSlice,
}

#[derive(Debug)]
struct Kept {
    fingerprint: Fingerprint,
    bytes: Vec<u8>,
}

/// One stream and its messages.
#[derive(Debug)]
pub(super) struct Rail<S> {
    name: &'static str,
    rank: Rank,
    peer: Rank,
    epoch: u32,
    stream: S,
    inbound: Inbound,
    outbound: Outbound,
    posted: BTreeMap<MessageId, Posted>,
    held: BTreeMap<MessageId, Held>,
    /// Messages the peer has posted and we have not.
    cleared: BTreeSet<MessageId>,
    kept: BTreeMap<MessageId, Kept>,
    kept_bytes: usize,
    /// Events found while posting.
    pending: Vec<Event>,
    bytes_copied: u64,
    /// Cut in the middle of a frame by `cancel_all`.
    is_useless: bool,
}

impl<S: Stream> Rail<S> {
    pub(super) fn new(name: &'static str, rank: Rank, peer: Rank, epoch: u32, stream: S) -> Self {
        Self {
            name,
            rank,
            peer,
            epoch,
            stream,
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            posted: BTreeMap::new(),
            held: BTreeMap::new(),
            cleared: BTreeSet::new(),
            kept: BTreeMap::new(),
            kept_bytes: 0,
            pending: Vec::new(),
            bytes_copied: 0,
            is_useless: false,
        }
    }

    pub(super) fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    pub(super) fn bytes_copied(&self) -> u64 {
        self.bytes_copied
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.is_useless || (self.outbound.is_empty() && self.held.is_empty())
    }

    pub(super) fn post(&mut self, request: WorkRequest) {
        let WorkRequest { id, message, fingerprint, class, work, .. } = request;
        match work {
            Work::Recv(sink) => self.post_recv(id, message, fingerprint, sink),
            Work::Send(data) => self.post_send(id, message, fingerprint, class, data),
        }
        // What the stream takes at once need not wait for a poll. An error is the poll's to tell.
        let _ = self.outbound.write(&mut self.stream, &mut self.pending);
    }

    fn post_send(
        &mut self,
        id: RequestId,
        message: MessageId,
        fingerprint: Fingerprint,
        class: Class,
        data: LocalSlice,
    ) {
        let is_cleared = self.cleared.remove(&message);
        if data.len() > EAGER_MAX_BYTES && !is_cleared {
            self.held.insert(message, Held { id, fingerprint, class, data });
            return;
        }
        let header = self.header(FrameKind::Data, message, fingerprint, data.len());
        self.outbound.queue(&header, data, class, id);
    }

    fn post_recv(
        &mut self,
        id: RequestId,
        message: MessageId,
        fingerprint: Fingerprint,
        sink: Sink,
    ) {
        if let Some(kept) = self.kept.remove(&message) {
            self.kept_bytes -= kept.bytes.len() + KEPT_OVERHEAD;
            if kept.fingerprint == fingerprint && kept.bytes.len() == sink.memory.len() {
                Filling::new(id, sink).take(&kept.bytes);
                self.pending.push(Event::Completed(id));
            } else {
                self.arrived(message, kept.fingerprint, false);
            }
            return;
        }
        let told = sink.memory.len() > EAGER_MAX_BYTES;
        if told {
            let len = sink.memory.len();
            let header = self.header(FrameKind::ClearToSend, message, fingerprint, len);
            self.outbound.queue_control(&header);
        }
        self.posted.insert(message, Posted { told, id, fingerprint, sink });
    }

    /// Tells the peer of small receives too, which it needs only to see that the calls differ.
    pub(super) fn tell_posted(&mut self) {
        let (source, epoch) = (self.rank, self.epoch);
        for (message, posted) in self.posted.iter_mut().filter(|(_, posted)| !posted.told) {
            posted.told = true;
            self.outbound.queue_control(&FrameHeader {
                kind: FrameKind::ClearToSend,
                source,
                message: *message,
                epoch,
                len: posted.sink.memory.len() as u64,
                fingerprint: posted.fingerprint,
                offset: 0,
            });
        }
    }

    /// Moves what can be moved; whether anything was.
    pub(super) fn poll(
        &mut self,
        scratch: &mut [u8],
        events: &mut Vec<Event>,
    ) -> Result<bool, PeerFailure> {
        if self.is_useless {
            return Ok(false);
        }
        let mut moved = !self.pending.is_empty();
        events.append(&mut self.pending);
        if !self.outbound.is_empty() {
            let written = self.outbound.write(&mut self.stream, events);
            moved |= written.map_err(|error| self.failure(&error))?;
        }
        let expects = !self.posted.is_empty()
            || !self.held.is_empty()
            || !matches!(self.inbound, Inbound::Header(_, 0));
        if expects || self.stream.may_have_news() {
            moved |= self.read(scratch, events)?;
            events.append(&mut self.pending);
        }
        Ok(moved)
    }

    fn read(&mut self, scratch: &mut [u8], events: &mut Vec<Event>) -> Result<bool, PeerFailure> {
        let mut budget = POLL_BYTES;
        let mut moved = false;
        while budget > 0 && self.kept_bytes < KEPT_MAX_BYTES {
            let count = match &mut self.inbound {
                Inbound::Header(bytes, have) => {
                    let read = self.stream.read(&mut bytes[*have..]);
                    let count = read.map_err(|error| self.failure(&error))?;
                    if count == 0 {
                        break;
                    }
                    let Inbound::Header(bytes, have) = &mut self.inbound else { unreachable!() };
                    *have += count;
                    if *have == FrameHeader::BYTES {
                        let bytes = *bytes;
                        self.inbound = Inbound::default();
                        self.handle_header(&bytes)?;
                        if let Inbound::Payload(_, 0) = self.inbound {
                            self.end_payload(events);
                        }
                    }
                    count
                }
                Inbound::Payload(target, left) => {
                    let read = read_payload(&mut self.stream, target, *left, scratch);
                    let count = read.map_err(|error| self.failure(&error))?;
                    if count == 0 {
                        break;
                    }
                    let Inbound::Payload(_, left) = &mut self.inbound else { unreachable!() };
                    *left -= count;
                    if *left == 0 {
                        self.end_payload(events);
                    }
                    count
                }
            };
            moved = true;
            budget = budget.saturating_sub(count);
        }
        Ok(moved)
    }

    fn handle_header(&mut self, bytes: &[u8; FrameHeader::BYTES]) -> Result<(), PeerFailure> {
        let header = FrameHeader::decode(bytes).map_err(|e| self.broken(&e.to_string()))?;
        if header.source != self.peer {
            return Err(self.broken(&format!("a frame of rank {}", header.source)));
        }
        if header.epoch != self.epoch {
            return Err(self.broken(&format!("a frame of epoch {}", header.epoch)));
        }
        match header.kind {
            FrameKind::ClearToSend => self.handle_clear(&header),
            FrameKind::Data => self.handle_data(&header),
            FrameKind::Ack | FrameKind::Pull => Err(self.broken("a frame this stream cannot have")),
        }
    }

    fn handle_clear(&mut self, header: &FrameHeader) -> Result<(), PeerFailure> {
        let FrameHeader { message, fingerprint, .. } = *header;
        match self.held.remove(&message) {
            Some(held) if held.fingerprint == fingerprint => {
                if held.data.len() as u64 != header.len {
                    return Err(self.lengths(message, held.data.len() as u64, header.len));
                }
                let frame = self.header(FrameKind::Data, message, fingerprint, held.data.len());
                self.outbound.queue(&frame, held.data, held.class, held.id);
                let written = self.outbound.write(&mut self.stream, &mut self.pending);
                written.map_err(|error| self.failure(&error))?;
            }
            Some(_) => self.arrived(message, fingerprint, true),
            None => {
                self.cleared.insert(message);
                self.arrived(message, fingerprint, true);
            }
        }
        Ok(())
    }

    fn handle_data(&mut self, header: &FrameHeader) -> Result<(), PeerFailure> {
        let FrameHeader { message, fingerprint, .. } = *header;
        let len = usize::try_from(header.len).map_err(|_| self.broken("a length beyond memory"))?;
        let agrees = self.posted.get(&message).map(|posted| posted.fingerprint == fingerprint);
        let target = match agrees {
            Some(true) => {
                let posted = self.posted.remove(&message).expect("just seen");
                if posted.sink.memory.len() != len {
                    let here = posted.sink.memory.len() as u64;
                    return Err(self.lengths(message, header.len, here));
                }
                Target::Sink(Filling::new(posted.id, posted.sink))
            }
            Some(false) => {
                self.arrived(message, fingerprint, false);
                Target::Discard
            }
            None => {
                self.arrived(message, fingerprint, false);
                if len <= EAGER_MAX_BYTES {
                    Target::Keep { message, fingerprint, bytes: Vec::with_capacity(len) }
                } else {
                    Target::Discard
                }
            }
        };
        self.inbound = Inbound::Payload(target, len);
        Ok(())
    }

    fn end_payload(&mut self, events: &mut Vec<Event>) {
        let Inbound::Payload(target, _) = std::mem::take(&mut self.inbound) else { return };
        match target {
            Target::Discard => {}
            Target::Keep { message, fingerprint, bytes } => self.keep(message, fingerprint, bytes),
            Target::Sink(filling) => events.push(Event::Completed(filling.id)),
        }
    }

    /// Keeps a message, unless its receive was posted while it came.
    fn keep(&mut self, message: MessageId, fingerprint: Fingerprint, bytes: Vec<u8>) {
        self.bytes_copied += bytes.len() as u64;
        match self.posted.remove(&message) {
            Some(Posted { id, sink, .. }) if sink.memory.len() == bytes.len() => {
                Filling::new(id, sink).take(&bytes);
                self.pending.push(Event::Completed(id));
            }
            _ => {
                self.kept_bytes += bytes.len() + KEPT_OVERHEAD;
                self.kept.insert(message, Kept { fingerprint, bytes });
            }
        }
    }

    fn arrived(&mut self, message: MessageId, fingerprint: Fingerprint, is_asked: bool) {
        let call = Call { comm: message.comm, seq: message.seq, fingerprint };
        self.pending.push(Event::Arrived { peer: self.peer, call, message, is_asked });
    }

    fn header(
        &self,
        kind: FrameKind,
        message: MessageId,
        fingerprint: Fingerprint,
        len: usize,
    ) -> FrameHeader {
        let (source, epoch) = (self.rank, self.epoch);
        FrameHeader { kind, source, message, epoch, len: len as u64, fingerprint, offset: 0 }
    }

    fn failure(&self, error: &io::Error) -> PeerFailure {
        let detail = format!("{} {}: {error}", self.name, self.stream.ends());
        PeerFailure { peer: self.peer, is_end: true, detail }
    }

    fn broken(&self, what: &str) -> PeerFailure {
        let detail = format!("{} {}: {what}", self.name, self.stream.ends());
        PeerFailure { peer: self.peer, is_end: false, detail }
    }

    fn lengths(&self, message: MessageId, sent: u64, expected: u64) -> PeerFailure {
        let MessageId { comm, seq, .. } = message;
        self.broken(&format!(
            "in call #{seq} on {comm} a message of {sent} bytes was sent, {expected} were expected"
        ))
    }

    /// Forgets every request; afterwards none of their memory is touched.
    pub(super) fn cancel_all(&mut self) {
        self.is_useless |= self.outbound.cancel();
        self.posted.clear();
        self.held.clear();
        self.cleared.clear();
        self.kept.clear();
        self.kept_bytes = 0;
        self.pending.clear();
        if let Inbound::Payload(target, _) = &mut self.inbound {
            if let Target::Sink(filling) = target {
                filling.release();
            }
            *target = Target::Discard;
        }
    }
}

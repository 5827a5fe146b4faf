//! One stream to one peer: frames in, frames out, and its end.
//!
//! Owns the stream and both halves of the matching. Whatever goes wrong comes out of
//! [`Rail::poll`] as the peer's failure, after everything that arrived before it.

use super::inbound::{Inbound, Target};
use super::outbound::Outbound;
use super::receiving::{Posted, Receiving};
use super::sending::{Outgoing, Sending};
use super::{Puller, Stream};
use crate::transport::{Event, PeerFailure, RequestId, Work, WorkRequest};
use std::io;
use syncline_proto::call::{Call, Fingerprint};
use syncline_proto::id::{MessageId, Rank};
use syncline_proto::time::Instant;
use syncline_proto::wire::{FrameHeader, FrameKind};

/// Bytes read in one poll, so that other peers get their turn.
const READ_BYTES: usize = 4 << 20;

/// The peer has done what the protocol does not allow; in words.
#[derive(Debug)]
pub(super) struct Breach(String);

pub(super) type Checked<T> = Result<T, Breach>;

impl Breach {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub(super) fn about(message: MessageId, fingerprint: Fingerprint, what: &str) -> Self {
        let MessageId { comm, seq, step, chunk } = message;
        let call = Call { comm, seq, fingerprint };
        Self(format!("message {step:#x}.{chunk} of {call}: {what}"))
    }

    pub(super) fn lengths(
        message: MessageId,
        fingerprint: Fingerprint,
        sent: u64,
        expected: u64,
    ) -> Self {
        let text = format!("{sent} bytes were sent, {expected} were expected");
        Self::about(message, fingerprint, &text)
    }
}

/// What both halves of the matching act on.
#[derive(Debug)]
pub(super) struct Port {
    rank: Rank,
    peer: Rank,
    epoch: u32,
    pub(super) outbound: Outbound,
    /// What happened since the last poll.
    events: Vec<Event>,
}

impl Port {
    pub(super) fn header(
        &self,
        kind: FrameKind,
        message: MessageId,
        fingerprint: Fingerprint,
        len: usize,
        offset: u64,
    ) -> FrameHeader {
        let (source, epoch) = (self.rank, self.epoch);
        FrameHeader { kind, source, message, epoch, len: len as u64, fingerprint, offset }
    }

    /// Queues a frame without a payload.
    pub(super) fn control(
        &mut self,
        kind: FrameKind,
        message: MessageId,
        fingerprint: Fingerprint,
        len: usize,
        offset: u64,
    ) {
        let header = self.header(kind, message, fingerprint, len, offset);
        self.outbound.queue_control(&header);
    }

    pub(super) fn return_credit(&mut self, taken: u64) {
        let nobody = Fingerprint::decode([0; Fingerprint::BYTES]);
        self.control(FrameKind::Ack, MessageId::default(), nobody, 0, taken);
    }

    pub(super) fn arrived(&mut self, message: MessageId, fingerprint: Fingerprint, is_asked: bool) {
        let call = Call { comm: message.comm, seq: message.seq, fingerprint };
        self.events.push(Event::Arrived { peer: self.peer, call, message, is_asked });
    }

    pub(super) fn completed(&mut self, id: RequestId) {
        self.events.push(Event::Completed(id));
    }
}

/// One stream and its messages.
#[derive(Debug)]
pub(super) struct Rail<S> {
    name: &'static str,
    stream: S,
    port: Port,
    sending: Sending,
    receiving: Receiving,
    inbound: Inbound,
    /// Writing is over; told once all that came before has been read.
    write_error: Option<io::Error>,
    /// Found while posting.
    breach: Option<Breach>,
    /// A frame was cut in the middle by `cancel_all`: nothing can be sent any more.
    is_cut: bool,
}

impl<S: Stream> Rail<S> {
    pub(super) fn new(name: &'static str, rank: Rank, peer: Rank, epoch: u32, stream: S) -> Self {
        let outbound = Outbound::default();
        Self {
            name,
            stream,
            port: Port { rank, peer, epoch, outbound, events: Vec::new() },
            sending: Sending::default(),
            receiving: Receiving::default(),
            inbound: Inbound::default(),
            write_error: None,
            breach: None,
            is_cut: false,
        }
    }

    pub(super) fn set_puller(&mut self, puller: Box<dyn Puller>) {
        self.receiving.set_puller(puller);
        self.sending.allow_lending();
    }

    pub(super) fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    pub(super) fn post(&mut self, now: Instant, request: WorkRequest) {
        let WorkRequest { id, message, fingerprint, class, work, .. } = request;
        if self.is_cut {
            let text = "nothing can follow the frame that a cancelled operation was cut off in";
            self.breach.get_or_insert_with(|| Breach::new(text));
            return;
        }
        let result = match work {
            Work::Recv(sink) => {
                let posted = Posted { id, fingerprint, sink, is_cleared: false, is_noted: false };
                self.receiving.post(&mut self.port, message, posted)
            }
            Work::Send(data) => {
                let outgoing = Outgoing { id, fingerprint, class, data };
                self.sending.post(&mut self.port, now, message, outgoing)
            }
        };
        if let Err(breach) = result {
            self.breach.get_or_insert(breach);
        }
    }

    /// Moves what can be moved; whether anything was.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        scratch: &mut [u8],
        events: &mut Vec<Event>,
    ) -> Result<bool, PeerFailure> {
        self.sending.tick(&mut self.port, now);
        let mut moved = !self.port.events.is_empty();
        moved |= self.write();
        let result = self.take_in(scratch);
        moved |= self.write();
        events.append(&mut self.port.events);
        Ok(result? | moved)
    }

    /// Reads and fetches; whether anything came.
    fn take_in(&mut self, scratch: &mut [u8]) -> Result<bool, PeerFailure> {
        if let Some(breach) = self.breach.take() {
            return Err(self.broken(&breach));
        }
        let mut moved = false;
        if self.expects_frames() || self.stream.may_have_news() {
            moved = self.read(scratch)?;
        }
        if self.receiving.is_fetching() {
            let fetched = self.receiving.fetch(&mut self.port, scratch);
            moved |= fetched.map_err(|error| self.ended(&error))?;
        }
        match &self.write_error {
            Some(error) if !moved => Err(self.ended(error)),
            _ => Ok(moved),
        }
    }

    fn expects_frames(&self) -> bool {
        let is_between = matches!(self.inbound, Inbound::Header(_, 0));
        !(is_between && self.receiving.is_idle() && self.sending.is_idle())
            || self.write_error.is_some()
    }

    /// Writes what the stream takes; whether it took anything.
    pub(super) fn write(&mut self) -> bool {
        if self.write_error.is_some() || self.port.outbound.is_empty() {
            return false;
        }
        match self.port.outbound.write(&mut self.stream, &mut self.port.events) {
            Ok(moved) => moved,
            Err(error) => {
                self.write_error = Some(error);
                false
            }
        }
    }

    fn read(&mut self, scratch: &mut [u8]) -> Result<bool, PeerFailure> {
        let mut total = 0;
        while total < READ_BYTES {
            let read = match &mut self.inbound {
                Inbound::Header(header, have) => {
                    let into = &mut header[*have..];
                    let read = if self.receiving.expects_short() {
                        self.stream.read_ahead(into)
                    } else {
                        self.stream.read(into)
                    };
                    *have += *read.as_ref().unwrap_or(&0);
                    read
                }
                Inbound::Payload(target, left) => {
                    let read = target.read(&mut self.stream, *left, scratch);
                    *left -= *read.as_ref().unwrap_or(&0);
                    read
                }
            };
            let count = read.map_err(|error| self.ended(&error))?;
            if count == 0 {
                break;
            }
            total += count;
            self.advance()?;
        }
        Ok(total > 0)
    }

    /// Acts on a header or payload that is complete.
    fn advance(&mut self) -> Result<(), PeerFailure> {
        if let Inbound::Header(header, FrameHeader::BYTES) = &self.inbound {
            let header = *header;
            self.inbound = Inbound::default();
            self.handle_header(&header).map_err(|breach| self.broken(&breach))?;
        }
        if let Inbound::Payload(_, 0) = self.inbound
            && let Inbound::Payload(target, _) = std::mem::take(&mut self.inbound)
        {
            let handled = self.receiving.handle_payload(&mut self.port, target);
            handled.map_err(|breach| self.broken(&breach))?;
        }
        Ok(())
    }

    fn handle_header(&mut self, bytes: &[u8; FrameHeader::BYTES]) -> Checked<()> {
        let header = FrameHeader::decode(bytes).map_err(|e| Breach::new(&e.to_string()))?;
        let Port { peer, epoch, .. } = self.port;
        if header.source != peer {
            let text = format!("field source is {}, not {peer}", header.source);
            return Err(Breach::new(&text));
        }
        if header.epoch != epoch {
            let text = format!("field epoch is {}, not {epoch}", header.epoch);
            return Err(Breach::new(&text));
        }
        match header.kind {
            FrameKind::Ack => self.sending.handle_ack(&mut self.port, &header),
            FrameKind::ClearToSend => self.sending.handle_clear(&mut self.port, &header),
            FrameKind::Data => {
                let (target, len) = self.receiving.handle_data(&mut self.port, &header)?;
                self.inbound = Inbound::Payload(target, len);
                Ok(())
            }
            FrameKind::Pull if header.offset == 0 => {
                self.receiving.handle_offer(&mut self.port, &header)
            }
            FrameKind::Pull => self.receiving.handle_pull(&header),
        }
    }

    /// Forgets every request; afterwards none of their memory is touched.
    pub(super) fn cancel_all(&mut self) {
        let (is_cut, unsent_cost) = self.port.outbound.cancel();
        self.is_cut |= is_cut;
        self.sending.cancel(unsent_cost);
        self.receiving.cancel();
        self.port.events.clear();
        self.breach = None;
        if let Inbound::Payload(target, _) = &mut self.inbound {
            *target = Target::Discard;
        }
    }

    /// Tells the peer which short receives wait, so that it sees whether the calls agree.
    pub(super) fn tell_posted(&mut self) {
        if !self.is_cut {
            self.receiving.tell_posted(&mut self.port);
        }
    }

    /// Whether a poll would do something though nothing has come.
    pub(super) fn has_work(&self) -> bool {
        !self.port.events.is_empty()
            || self.breach.is_some()
            || self.write_error.is_some()
            || self.receiving.is_fetching()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.sending.next_timeout()
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.port.outbound.is_empty() && self.sending.is_idle()
    }

    pub(super) fn bytes_copied(&self) -> u64 {
        self.receiving.bytes_copied() + self.stream.bytes_copied()
    }

    fn ended(&self, error: &io::Error) -> PeerFailure {
        let is_end = error.kind() != io::ErrorKind::InvalidData;
        self.failure(is_end, &error.to_string())
    }

    fn broken(&self, breach: &Breach) -> PeerFailure {
        self.failure(false, &breach.0)
    }

    fn failure(&self, is_end: bool, what: &str) -> PeerFailure {
        let detail = format!("{} {}: {what}", self.name, self.stream.ends());
        PeerFailure { peer: self.port.peer, is_end, detail }
    }
}

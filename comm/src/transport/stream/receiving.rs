//! Messages this rank receives over one rail: posted, kept until posted, fetched.
//!
//! Owns the memory of posted receives, and what came before its receive. Never touches a stream.
//! Called by the rail.

use super::inbound::{Filling, Target};
use super::rail::{Breach, Checked, Port};
use super::sending::{ASKED, CAN_PULL, Mark, NOTE, eager_cost, mark_message};
use super::{CREDIT, Puller};
use crate::transport::{EAGER_MAX_BYTES, RequestId, Sink};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use syncline_proto::call::Fingerprint;
use syncline_proto::id::MessageId;
use syncline_proto::wire::{FrameHeader, FrameKind};

/// Credit is given back when so much of it is due.
const RETURN_AT: u64 = CREDIT / 4;
/// Bytes fetched in one poll, so that other peers get their turn.
const FETCH_BYTES: usize = 1 << 20;
/// Bytes fetched at a time where they are reduced from a scratch.
const FETCH_PIECE_BYTES: usize = 128 << 10;

/// A posted receive.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) id: RequestId,
    pub(super) fingerprint: Fingerprint,
    pub(super) sink: Sink,
    /// Whether the peer has been asked for it.
    pub(super) is_cleared: bool,
    /// Whether the peer has been told of it without being asked.
    pub(super) is_noted: bool,
}

/// A message that nobody has posted yet.
#[derive(Debug)]
struct Kept {
    fingerprint: Fingerprint,
    bytes: Vec<u8>,
}

/// A message being read from the peer's memory.
#[derive(Debug)]
struct Fetch {
    message: MessageId,
    fingerprint: Fingerprint,
    address: u64,
    len: usize,
    done: usize,
    filling: Filling,
}

/// One rail's receives.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    posted: BTreeMap<MessageId, Posted>,
    /// Posted receives that are not short.
    large: usize,
    kept: BTreeMap<MessageId, Kept>,
    /// Cost of what is kept, or about to be.
    kept_cost: u64,
    /// Held by the peer, and not posted here.
    offered: BTreeMap<MessageId, Mark>,
    fetches: VecDeque<Fetch>,
    puller: Option<Box<dyn Puller>>,
    /// Cost of all eager messages that left for a receive or nowhere.
    taken: u64,
    /// What the peer knows of that.
    reported: u64,
    bytes_copied: u64,
    /// Late frames of forgotten messages are no breach.
    is_cancelled: bool,
}

/// A receive of more bytes is worth a read of its own.
const SHORT_BYTES: usize = 4 << 10;

impl Receiving {
    pub(super) fn set_puller(&mut self, puller: Box<dyn Puller>) {
        self.puller = Some(puller);
    }

    pub(super) fn bytes_copied(&self) -> u64 {
        self.bytes_copied
    }

    /// Whether no receive is waiting.
    pub(super) fn is_idle(&self) -> bool {
        self.posted.is_empty()
    }

    /// Whether only short messages are expected.
    pub(super) fn expects_short(&self) -> bool {
        self.large == 0
    }

    /// Whether something waits to be fetched.
    pub(super) fn is_fetching(&self) -> bool {
        !self.fetches.is_empty()
    }

    pub(super) fn post(
        &mut self,
        port: &mut Port,
        message: MessageId,
        mut posted: Posted,
    ) -> Checked<()> {
        if let Some(kept) = self.kept.remove(&message) {
            self.take_kept(port, kept.bytes.len());
            return self.settle(port, message, posted, kept);
        }
        let len = posted.sink.memory.len() as u64;
        let offered = self.offered.remove(&message);
        if let Some(mark) = offered {
            if mark.fingerprint != posted.fingerprint {
                // The sender sees it at our `ClearToSend`.
                port.arrived(message, mark.fingerprint, false);
            } else if mark.len != len {
                return Err(Breach::lengths(message, mark.fingerprint, mark.len, len));
            }
        }
        if offered.is_some() || len > EAGER_MAX_BYTES as u64 {
            self.clear(port, message, &mut posted);
        }
        self.insert(message, posted);
        Ok(())
    }

    /// Notes to the peer which receives it has not been asked for, each once.
    pub(super) fn tell_posted(&mut self, port: &mut Port) {
        let untold = |posted: &&mut Posted| !posted.is_cleared && !posted.is_noted;
        for (message, posted) in self.posted.iter_mut() {
            if untold(&posted) {
                posted.is_noted = true;
                let len = posted.sink.memory.len();
                port.control(FrameKind::ClearToSend, *message, posted.fingerprint, len, NOTE);
            }
        }
    }

    /// Asks for a message, once.
    fn clear(&self, port: &mut Port, message: MessageId, posted: &mut Posted) {
        clear(port, message, posted, self.puller.is_some());
    }

    fn insert(&mut self, message: MessageId, posted: Posted) {
        self.large += usize::from(posted.sink.memory.len() > SHORT_BYTES);
        let before = self.posted.insert(message, posted);
        debug_assert!(before.is_none(), "{message:?} is received twice");
    }

    fn remove(&mut self, message: &MessageId) -> Option<Posted> {
        let posted = self.posted.remove(message)?;
        self.large -= usize::from(posted.sink.memory.len() > SHORT_BYTES);
        Some(posted)
    }

    /// A receive and the message that came before it.
    fn settle(
        &mut self,
        port: &mut Port,
        message: MessageId,
        posted: Posted,
        kept: Kept,
    ) -> Checked<()> {
        let Kept { fingerprint, bytes } = kept;
        if fingerprint != posted.fingerprint {
            port.arrived(message, fingerprint, false);
            self.insert(message, posted);
            return Ok(());
        }
        let (sent, expected) = (bytes.len() as u64, posted.sink.memory.len() as u64);
        if sent != expected {
            return Err(Breach::lengths(message, fingerprint, sent, expected));
        }
        Filling::new(posted.id, posted.sink).take(&bytes);
        port.completed(posted.id);
        Ok(())
    }

    /// Where the payload of a `Data` frame goes.
    pub(super) fn handle_data(
        &mut self,
        port: &mut Port,
        header: &FrameHeader,
    ) -> Checked<(Target, usize)> {
        let FrameHeader { message, fingerprint, offset, .. } = *header;
        let is_asked = offset == ASKED;
        if offset > ASKED {
            return Err(Breach::new("field offset of a Data out of range"));
        }
        let len = usize::try_from(header.len).map_err(|_| Breach::new("field len out of range"))?;
        if !is_asked && len > EAGER_MAX_BYTES {
            return Err(Breach::about(message, fingerprint, "sent unasked, too long for that"));
        }
        let cost = if is_asked { 0 } else { eager_cost(len) };
        let target = match self.posted.get(&message) {
            Some(posted) if is_asked && !posted.is_cleared => {
                return Err(Breach::about(message, fingerprint, "sent as if asked for"));
            }
            Some(posted) if posted.fingerprint == fingerprint => {
                let filling = self.fill(message, len as u64)?;
                self.take(port, cost);
                Target::Sink(filling)
            }
            Some(_) => {
                port.arrived(message, fingerprint, false);
                self.take(port, cost);
                Target::Discard
            }
            None if is_asked && self.is_cancelled => Target::Discard,
            None if is_asked => {
                return Err(Breach::about(message, fingerprint, "sent as if asked for"));
            }
            None => self.begin_to_keep(port, header, len)?,
        };
        Ok((target, len))
    }

    /// Takes the receive posted for `message`, to fill it with `len` bytes.
    fn fill(&mut self, message: MessageId, len: u64) -> Checked<Filling> {
        let posted = self.remove(&message).expect("the caller has seen it");
        let expected = posted.sink.memory.len() as u64;
        if expected != len {
            return Err(Breach::lengths(message, posted.fingerprint, len, expected));
        }
        Ok(Filling::new(posted.id, posted.sink))
    }

    fn begin_to_keep(
        &mut self,
        port: &mut Port,
        header: &FrameHeader,
        len: usize,
    ) -> Checked<Target> {
        let FrameHeader { message, fingerprint, .. } = *header;
        if self.kept.contains_key(&message) {
            return Err(Breach::about(message, fingerprint, "sent twice"));
        }
        let cost = eager_cost(len);
        if self.kept_cost + cost > CREDIT {
            return Err(Breach::about(message, fingerprint, "sent without credit"));
        }
        self.kept_cost += cost;
        port.arrived(message, fingerprint, false);
        Ok(Target::Keep { message, fingerprint, bytes: Vec::with_capacity(len) })
    }

    /// A payload is complete.
    pub(super) fn handle_payload(&mut self, port: &mut Port, target: Target) -> Checked<()> {
        match target {
            Target::Discard => Ok(()),
            Target::Sink(filling) => {
                port.completed(filling.id);
                Ok(())
            }
            Target::Keep { message, fingerprint, bytes } => {
                self.bytes_copied += bytes.len() as u64;
                let kept = Kept { fingerprint, bytes };
                match self.remove(&message) {
                    Some(posted) => {
                        self.take_kept(port, kept.bytes.len());
                        self.settle(port, message, posted, kept)
                    }
                    None => {
                        self.kept.insert(message, kept);
                        Ok(())
                    }
                }
            }
        }
    }

    /// The peer holds a message.
    pub(super) fn handle_offer(&mut self, port: &mut Port, header: &FrameHeader) -> Checked<()> {
        let (message, mark) = (header.message, Mark::of(header));
        let can_pull = self.puller.is_some();
        let Some(posted) = self.posted.get_mut(&message) else {
            port.arrived(message, mark.fingerprint, false);
            return mark_message(&mut self.offered, message, mark);
        };
        let expected = posted.sink.memory.len() as u64;
        if mark.fingerprint != posted.fingerprint {
            port.arrived(message, mark.fingerprint, false);
        } else if mark.len != expected {
            return Err(Breach::lengths(message, mark.fingerprint, mark.len, expected));
        }
        clear(port, message, posted, can_pull);
        Ok(())
    }

    /// The peer has lent a message's memory.
    pub(super) fn handle_pull(&mut self, header: &FrameHeader) -> Checked<()> {
        let FrameHeader { message, fingerprint, offset: address, .. } = *header;
        let Some(posted) = self.posted.get(&message) else {
            if self.is_cancelled {
                return Ok(());
            }
            return Err(Breach::about(message, fingerprint, "lent without being asked for"));
        };
        let agrees = posted.fingerprint == fingerprint && posted.is_cleared;
        if !agrees || self.puller.is_none() {
            return Err(Breach::about(message, fingerprint, "lent without being asked for"));
        }
        let filling = self.fill(message, header.len)?;
        let len = usize::try_from(header.len).expect("as long as a receive here");
        self.fetches.push_back(Fetch { message, fingerprint, address, len, done: 0, filling });
        Ok(())
    }

    /// Fetches some of what is lent; whether anything.
    pub(super) fn fetch(&mut self, port: &mut Port, scratch: &mut [u8]) -> io::Result<bool> {
        let Some(puller) = &mut self.puller else { return Ok(false) };
        let mut total = 0;
        while let Some(fetch) = self.fetches.front_mut().filter(|_| total < FETCH_BYTES) {
            let left = (fetch.len - fetch.done).min(FETCH_BYTES - total);
            let address = fetch.address.wrapping_add(fetch.done as u64);
            let count = match fetch.filling.direct() {
                Some(memory) => {
                    puller.read(address, &mut memory[..left])?;
                    fetch.filling.skip(left);
                    left
                }
                None => {
                    let count = left.min(FETCH_PIECE_BYTES).min(scratch.len());
                    puller.read(address, &mut scratch[..count])?;
                    fetch.filling.take(&scratch[..count]);
                    count
                }
            };
            fetch.done += count;
            total += count;
            if fetch.done == fetch.len {
                let Fetch { message, fingerprint, len, filling, .. } =
                    self.fetches.pop_front().expect("the front one");
                port.control(FrameKind::Ack, message, fingerprint, len, 0);
                port.completed(filling.id);
            }
        }
        Ok(total > 0)
    }

    /// An eager message of `len` bytes leaves what is kept.
    fn take_kept(&mut self, port: &mut Port, len: usize) {
        let cost = eager_cost(len);
        self.kept_cost -= cost;
        self.take(port, cost);
    }

    /// An eager message has got to its receive, or is nobody's.
    fn take(&mut self, port: &mut Port, cost: u64) {
        self.taken += cost;
        if self.taken - self.reported >= RETURN_AT {
            self.reported = self.taken;
            port.return_credit(self.taken);
        }
    }

    /// Forgets all. What is kept, or was about to be, is taken.
    pub(super) fn cancel(&mut self) {
        self.posted.clear();
        self.large = 0;
        self.kept.clear();
        self.offered.clear();
        self.fetches.clear();
        self.taken += std::mem::take(&mut self.kept_cost);
        self.is_cancelled = true;
    }
}

/// Asks for a message, once.
fn clear(port: &mut Port, message: MessageId, posted: &mut Posted, can_pull: bool) {
    if !std::mem::replace(&mut posted.is_cleared, true) {
        let len = posted.sink.memory.len();
        let offset = if can_pull { CAN_PULL } else { 0 };
        port.control(FrameKind::ClearToSend, message, posted.fingerprint, len, offset);
    }
}

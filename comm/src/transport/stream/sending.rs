//! Messages this rank sends over one rail: held until asked for, or eager for credit.
//!
//! Owns the memory of messages that wait; hands it to the outbound queues when they may go. Never
//! touches a stream. Called by the rail.

use super::rail::{Breach, Checked, Port};
use super::{CREDIT, MARKS_MAX, MESSAGE_COST, OFFER_AFTER, PULL_MIN_BYTES};
use crate::memory::LocalSlice;
use crate::transport::{Class, EAGER_MAX_BYTES, RequestId};
use std::collections::{BTreeMap, VecDeque};
use syncline_proto::call::Fingerprint;
use syncline_proto::id::MessageId;
use syncline_proto::time::Instant;
use syncline_proto::wire::{FrameHeader, FrameKind};

/// `offset` of a message that was asked for.
pub(super) const ASKED: u64 = 1;
/// `offset` of a `ClearToSend` whose sender can fetch the message.
pub(super) const CAN_PULL: u64 = 1;

/// `offset` of a `ClearToSend` that asks for nothing.
pub(super) const NOTE: u64 = 2;

/// A posted send.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) id: RequestId,
    pub(super) fingerprint: Fingerprint,
    pub(super) class: Class,
    pub(super) data: LocalSlice,
}

#[derive(Debug)]
struct Held {
    outgoing: Outgoing,
    is_offered: bool,
}

/// What the peer has said of a message that this rank has not posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) fingerprint: Fingerprint,
    pub(super) len: u64,
    pub(super) offset: u64,
}

impl Mark {
    pub(super) fn of(header: &FrameHeader) -> Self {
        let FrameHeader { fingerprint, len, offset, .. } = *header;
        Self { fingerprint, len, offset }
    }
}

/// One rail's sends.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// Posted, and not asked for.
    held: BTreeMap<MessageId, Held>,
    /// Asked for, and not posted.
    cleared: BTreeMap<MessageId, Mark>,
    /// Being fetched by the peer.
    lent: BTreeMap<MessageId, Outgoing>,
    /// When to offer what is held, earliest first.
    offers: VecDeque<(Instant, MessageId)>,
    /// Cost of all eager messages sent.
    spent: u64,
    /// Of those, what the peer's receives have taken.
    returned: u64,
    may_lend: bool,
    /// Late words about forgotten messages are no breach.
    is_cancelled: bool,
}

impl Sending {
    pub(super) fn allow_lending(&mut self) {
        self.may_lend = true;
    }

    /// Whether anything waits for a word of the peer.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.lent.is_empty()
    }

    pub(super) fn post(
        &mut self,
        port: &mut Port,
        now: Instant,
        message: MessageId,
        outgoing: Outgoing,
    ) -> Checked<()> {
        let len = outgoing.data.len();
        if let Some(mark) = self.cleared.remove(&message) {
            if mark.fingerprint == outgoing.fingerprint {
                return self.release(port, message, outgoing, mark);
            }
            port.arrived(message, mark.fingerprint, true);
            // The receiver must see this call too.
            self.hold(port, message, outgoing, None);
            return Ok(());
        }
        if len > EAGER_MAX_BYTES {
            self.hold(port, message, outgoing, Some(now + OFFER_AFTER));
            return Ok(());
        }
        let cost = eager_cost(len);
        if self.spent - self.returned + cost > CREDIT {
            self.hold(port, message, outgoing, None);
            return Ok(());
        }
        self.spent += cost;
        let header = port.header(FrameKind::Data, message, outgoing.fingerprint, len, 0);
        port.outbound.queue(&header, outgoing.data, outgoing.class, outgoing.id, cost);
        Ok(())
    }

    /// Keeps a message until it is asked for, and offers it: then, or now.
    fn hold(
        &mut self,
        port: &mut Port,
        message: MessageId,
        outgoing: Outgoing,
        offer_at: Option<Instant>,
    ) {
        let mut held = Held { outgoing, is_offered: false };
        match offer_at {
            Some(at) => self.offers.push_back((at, message)),
            None => held.offer(port, message),
        }
        let before = self.held.insert(message, held);
        debug_assert!(before.is_none(), "{message:?} is sent twice");
    }

    /// Sends what was asked for.
    fn release(
        &mut self,
        port: &mut Port,
        message: MessageId,
        outgoing: Outgoing,
        asked: Mark,
    ) -> Checked<()> {
        let (len, fingerprint) = (outgoing.data.len(), outgoing.fingerprint);
        if asked.len != len as u64 {
            return Err(Breach::lengths(message, fingerprint, len as u64, asked.len));
        }
        if self.may_lend && asked.offset == CAN_PULL && len >= PULL_MIN_BYTES {
            port.control(FrameKind::Pull, message, fingerprint, len, outgoing.data.address());
            self.lent.insert(message, outgoing);
            return Ok(());
        }
        let header = port.header(FrameKind::Data, message, fingerprint, len, ASKED);
        port.outbound.queue(&header, outgoing.data, outgoing.class, outgoing.id, 0);
        Ok(())
    }

    pub(super) fn handle_clear(&mut self, port: &mut Port, header: &FrameHeader) -> Checked<()> {
        let mark = Mark::of(header);
        if mark.offset == NOTE {
            port.arrived(header.message, mark.fingerprint, true);
            return Ok(());
        }
        if mark.offset > CAN_PULL {
            return Err(Breach::new("field offset of a ClearToSend out of range"));
        }
        let message = header.message;
        match self.held.remove(&message) {
            Some(held) if held.outgoing.fingerprint == mark.fingerprint => {
                self.release(port, message, held.outgoing, mark)
            }
            Some(mut held) => {
                port.arrived(message, mark.fingerprint, true);
                held.offer(port, message);
                self.held.insert(message, held);
                Ok(())
            }
            None => {
                port.arrived(message, mark.fingerprint, true);
                mark_message(&mut self.cleared, message, mark)
            }
        }
    }

    pub(super) fn handle_ack(&mut self, port: &mut Port, header: &FrameHeader) -> Checked<()> {
        if header.len == 0 {
            let returned = header.offset;
            if returned < self.returned || returned > self.spent {
                let Self { spent, returned: before, .. } = self;
                let text = format!("credit of {returned} after {before}, {spent} were spent");
                return Err(Breach::new(&text));
            }
            self.returned = returned;
            return Ok(());
        }
        match self.lent.remove(&header.message) {
            Some(lent) if lent.data.len() as u64 == header.len => {
                port.completed(lent.id);
                Ok(())
            }
            None if self.is_cancelled => Ok(()),
            _ => Err(Breach::new("an Ack of a message that was not lent")),
        }
    }

    /// Offers what has been held for long.
    pub(super) fn tick(&mut self, port: &mut Port, now: Instant) {
        while let Some((at, message)) = self.offers.front().copied() {
            match self.held.get_mut(&message) {
                Some(_) if at > now => return,
                Some(held) => held.offer(port, message),
                None => {}
            }
            self.offers.pop_front();
        }
    }

    /// When [`Sending::tick`] next has something to do.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.offers.front().map(|(at, _)| *at)
    }

    /// Forgets all, and takes back the credit of messages that were queued and did not go.
    pub(super) fn cancel(&mut self, unsent_cost: u64) {
        let Self { spent, returned, may_lend, .. } = *self;
        let spent = spent - unsent_cost;
        *self = Self { spent, returned, may_lend, is_cancelled: true, ..Self::default() };
    }
}

impl Held {
    fn offer(&mut self, port: &mut Port, message: MessageId) {
        if !std::mem::replace(&mut self.is_offered, true) {
            let Outgoing { fingerprint, data, .. } = &self.outgoing;
            port.control(FrameKind::Pull, message, *fingerprint, data.len(), 0);
        }
    }
}

/// Credit an eager message of `len` bytes costs.
pub(super) fn eager_cost(len: usize) -> u64 {
    len as u64 + MESSAGE_COST
}

/// Notes what the peer says of a message that this rank has not posted.
pub(super) fn mark_message(
    marks: &mut BTreeMap<MessageId, Mark>,
    message: MessageId,
    mark: Mark,
) -> Checked<()> {
    if marks.insert(message, mark).is_some() {
        return Err(Breach::about(message, mark.fingerprint, "asked for or offered twice"));
    }
    if marks.len() > MARKS_MAX {
        return Err(Breach::new("it asks for or offers more messages than may be outstanding"));
    }
    Ok(())
}

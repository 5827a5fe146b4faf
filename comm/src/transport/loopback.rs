//! A rank to itself: the smallest correct transport, and the reference.

use super::{Event, RequestId, Sink, Transport, Work, WorkRequest};
use crate::memory::LocalSlice;
use std::collections::BTreeMap;
use syncline_proto::call::{Call, Fingerprint};
use syncline_proto::id::{MessageId, Rank};
use syncline_proto::time::Instant;

#[derive(Debug)]
enum Waiting {
    Recv(RequestId, Fingerprint, Sink),
    Send(RequestId, Fingerprint, LocalSlice),
}

/// Messages from a rank to itself.
#[derive(Debug)]
pub struct Loopback {
    rank: Rank,
    waiting: BTreeMap<MessageId, Waiting>,
    events: Vec<Event>,
}

impl Loopback {
    /// For this rank.
    pub fn new(rank: Rank) -> Self {
        Self { rank, waiting: BTreeMap::new(), events: Vec::new() }
    }
}

impl Transport for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn post(&mut self, _now: Instant, request: WorkRequest) {
        let WorkRequest { id, message, fingerprint, work, .. } = request;
        let (send, recv) = match (self.waiting.remove(&message), work) {
            (Some(Waiting::Recv(recv, theirs, sink)), Work::Send(data)) => {
                ((id, fingerprint, data), (recv, theirs, sink))
            }
            (Some(Waiting::Send(send, theirs, data)), Work::Recv(sink)) => {
                ((send, theirs, data), (id, fingerprint, sink))
            }
            (_, Work::Recv(sink)) => {
                self.waiting.insert(message, Waiting::Recv(id, fingerprint, sink));
                return;
            }
            (_, Work::Send(data)) => {
                self.waiting.insert(message, Waiting::Send(id, fingerprint, data));
                return;
            }
        };
        let ((send, sent, data), (recv, expected, mut sink)) = (send, recv);
        if sent != expected || data.len() != sink.memory.len() {
            let call = Call { comm: message.comm, seq: message.seq, fingerprint: sent };
            let is_asked = false;
            self.events.push(Event::Arrived { peer: self.rank, call, message, is_asked });
            return;
        }
        sink.fold_in(0, data.bytes());
        self.events.extend([Event::Completed(send), Event::Completed(recv)]);
    }

    fn poll(&mut self, _now: Instant, events: &mut Vec<Event>) -> bool {
        let moved = !self.events.is_empty();
        events.append(&mut self.events);
        moved
    }

    fn prepare_sleep(&mut self) -> bool {
        self.events.is_empty()
    }

    fn is_flushed(&self) -> bool {
        !self.waiting.values().any(|waiting| matches!(waiting, Waiting::Send(..)))
    }

    fn cancel_all(&mut self) {
        self.waiting.clear();
        self.events.clear();
    }

    fn bytes_copied(&self) -> u64 {
        0
    }
}

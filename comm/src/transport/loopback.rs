//! A rank to itself: the smallest correct transport, and the reference.
//!
//! Owns the request that came first of each pair; folds the send straight into the receive when
//! the second is posted. A send that nobody receives waits at its sender, so it has not arrived.

use super::{Event, PeerFailure, RequestId, Sink, Transport, Work, WorkRequest};
use crate::memory::LocalSlice;
use std::collections::BTreeMap;
use syncline_proto::call::{Call, Fingerprint};
use syncline_proto::id::{MessageId, Rank};
use syncline_proto::time::Instant;

#[derive(Debug)]
struct Recv {
    id: RequestId,
    fingerprint: Fingerprint,
    sink: Sink,
}

#[derive(Debug)]
struct Send {
    id: RequestId,
    fingerprint: Fingerprint,
    data: LocalSlice,
}

/// Messages from a rank to itself.
#[derive(Debug)]
pub struct Loopback {
    rank: Rank,
    recvs: BTreeMap<MessageId, Recv>,
    sends: BTreeMap<MessageId, Send>,
    /// What happened since the last poll.
    events: Vec<Event>,
    has_failed: bool,
}

impl Loopback {
    /// For this rank.
    pub fn new(rank: Rank) -> Self {
        let (recvs, sends) = (BTreeMap::new(), BTreeMap::new());
        Self { rank, recvs, sends, events: Vec::new(), has_failed: false }
    }

    /// Both sides of a message are here.
    fn meet(&mut self, message: MessageId, send: Send, mut recv: Recv) {
        let MessageId { comm, seq, .. } = message;
        let call = Call { comm, seq, fingerprint: send.fingerprint };
        if send.fingerprint != recv.fingerprint {
            self.events.push(Event::Arrived { peer: self.rank, call, message, is_asked: false });
            // Both stay posted, as with any other peer.
            self.sends.insert(message, send);
            self.recvs.insert(message, recv);
            return;
        }
        let (sent, expected) = (send.data.len(), recv.sink.memory.len());
        if sent != expected {
            if !std::mem::replace(&mut self.has_failed, true) {
                let detail =
                    format!("loopback: {call}: {sent} bytes were sent, {expected} were expected");
                let failure = PeerFailure { peer: self.rank, is_end: false, detail };
                self.events.push(Event::Failed(failure));
            }
            return;
        }
        recv.sink.fold_in(0, send.data.bytes());
        self.events.extend([Event::Completed(send.id), Event::Completed(recv.id)]);
    }
}

impl Transport for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn post(&mut self, _now: Instant, request: WorkRequest) {
        let WorkRequest { id, message, fingerprint, work, .. } = request;
        match work {
            Work::Recv(sink) => {
                let recv = Recv { id, fingerprint, sink };
                match self.sends.remove(&message) {
                    Some(send) => self.meet(message, send, recv),
                    None => drop(self.recvs.insert(message, recv)),
                }
            }
            Work::Send(data) => {
                let send = Send { id, fingerprint, data };
                match self.recvs.remove(&message) {
                    Some(recv) => self.meet(message, send, recv),
                    None => drop(self.sends.insert(message, send)),
                }
            }
        }
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
        self.sends.is_empty()
    }

    fn cancel_all(&mut self) {
        self.recvs.clear();
        self.sends.clear();
        self.events.clear();
    }

    fn bytes_copied(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::Loopback;
    use crate::transport::conformance::{self, Ends};

    #[test]
    fn conforms() {
        conformance::check_all(|| Ends::same(0, Box::new(Loopback::new(0))));
    }
}

//! A slow network, played on a fast transport, so that a laptop can show what waiting costs.
//!
//! Models this rank's network card: one queue for all peers, `bytes_per_s` of messages and their
//! headers, full duplex, urgent messages before background ones, one message at a time; then
//! `latency`. A send is handed to the inner transport when its last byte would arrive. The
//! receiver's card is not modelled, so many senders to one rank are not slowed by one another.
//!
//! Owns the sends that have not arrived yet. The card works while nobody looks: a poll that comes
//! late does not lower the rate, but what it hands over is late by as much.

use super::{Class, Event, Transport, Work, WorkRequest};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;
use syncline_proto::time::Instant;
use syncline_proto::wire::FrameHeader;

/// Paces another transport.
#[derive(Debug)]
pub struct Paced {
    inner: Box<dyn Transport>,
    bytes_per_s: f64,
    latency: Duration,
    /// When the card has sent all it was given.
    free_at: Instant,
    /// Waiting for the card, with the time they were posted.
    urgent: VecDeque<(Instant, WorkRequest)>,
    background: VecDeque<(Instant, WorkRequest)>,
    /// Sent, or being sent, and due at the other end.
    flying: VecDeque<(Instant, WorkRequest)>,
}

impl Paced {
    /// Over `inner`, whose other end sees messages after their time on the wire and `latency`.
    ///
    /// # Panics
    /// If `bytes_per_s` is not positive.
    pub fn new(inner: Box<dyn Transport>, bytes_per_s: f64, latency: Duration) -> Self {
        assert!(bytes_per_s > 0.0, "{bytes_per_s} bytes/s: a link moves something");
        Self {
            inner,
            bytes_per_s,
            latency,
            free_at: Instant::ZERO,
            urgent: VecDeque::new(),
            background: VecDeque::new(),
            flying: VecDeque::new(),
        }
    }

    /// Puts on the wire what the card has begun by `now`.
    fn transmit(&mut self, now: Instant) {
        while self.free_at <= now {
            let next = self.urgent.pop_front().or_else(|| self.background.pop_front());
            let Some((posted, request)) = next else { return };
            let start = self.free_at.max(posted);
            let bytes = send_bytes(&request) + FrameHeader::BYTES;
            self.free_at = start + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
            self.flying.push_back((self.free_at + self.latency, request));
        }
    }
}

fn send_bytes(request: &WorkRequest) -> usize {
    match &request.work {
        Work::Recv(_) => 0,
        Work::Send(data) => data.len(),
    }
}

impl Transport for Paced {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn post(&mut self, now: Instant, request: WorkRequest) {
        if matches!(request.work, Work::Recv(_)) {
            return self.inner.post(now, request);
        }
        // What the card has begun by now, an urgent message no longer overtakes.
        self.transmit(now);
        match request.class {
            Class::Background => self.background.push_back((now, request)),
            Class::Urgent => self.urgent.push_back((now, request)),
        }
        self.transmit(now);
    }

    fn push(&mut self) {
        self.inner.push();
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        self.transmit(now);
        while let Some((_, request)) = self.flying.pop_front_if(|(due, _)| *due <= now) {
            self.inner.post(now, request);
            moved = true;
        }
        moved | self.inner.poll(now, events)
    }

    fn next_timeout(&self) -> Option<Instant> {
        let due = self.flying.front().map(|(due, _)| *due);
        let is_waiting = !(self.urgent.is_empty() && self.background.is_empty());
        let card = is_waiting.then_some(self.free_at);
        due.into_iter().chain(card).chain(self.inner.next_timeout()).min()
    }

    fn register(&mut self, registry: &mio::Registry) -> io::Result<()> {
        self.inner.register(registry)
    }

    fn handle_ready(&mut self, token: mio::Token, readable: bool, writable: bool) {
        self.inner.handle_ready(token, readable, writable);
    }

    fn prepare_sleep(&mut self) -> bool {
        self.inner.prepare_sleep()
    }

    fn finish_sleep(&mut self) {
        self.inner.finish_sleep();
    }

    fn tell_posted(&mut self) {
        self.inner.tell_posted();
    }

    fn is_flushed(&self) -> bool {
        self.urgent.is_empty()
            && self.background.is_empty()
            && self.flying.is_empty()
            && self.inner.is_flushed()
    }

    fn cancel_all(&mut self) {
        self.urgent.clear();
        self.background.clear();
        self.flying.clear();
        self.inner.cancel_all();
    }

    fn bytes_copied(&self) -> u64 {
        self.inner.bytes_copied()
    }
}

#[cfg(test)]
mod tests;

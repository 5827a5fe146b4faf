//! What goes out in which order, and what happens while a frame is half way.

use super::pipe::{Pipe, Wire, pair};
use super::transport;
use crate::memory::{lend, lend_mut};
use crate::transport::conformance::{Message, message};
use crate::transport::stream::{OFFER_AFTER, StreamTransport};
use crate::transport::{Class, Event, RequestId, Sink, SinkFold, Transport, Work, WorkRequest};
use std::sync::{Arc, Mutex};
use syncline_kernels::{DType, ReduceOp};
use syncline_proto::collective::Span;
use syncline_proto::collective::machine::{Direction, Transfer};
use syncline_proto::id::OpId;
use syncline_proto::time::Instant;
use syncline_proto::wire::{FrameHeader, FrameKind};

pub(super) fn request(op: u64, message: Message, work: Work) -> WorkRequest {
    let direction = Direction::Send;
    let transfer = Transfer { peer: 7, tag: 0, chunk: 0, direction, span: Span::input(0, 0) };
    WorkRequest {
        id: RequestId { op: OpId(op), transfer },
        peer: 7,
        message: message.id,
        fingerprint: message.fingerprint,
        class: message.class,
        work,
    }
}

/// Rank 4's transport, and both wires of its stream to rank 7, whom the test plays.
pub(super) struct Bench {
    pub(super) transport: StreamTransport<Pipe>,
    pub(super) incoming: Arc<Mutex<Wire>>,
    pub(super) outgoing: Arc<Mutex<Wire>>,
    _far: Pipe,
}

impl Bench {
    pub(super) fn new(capacity: usize) -> Self {
        let [near, far] = pair(capacity, 0);
        let (incoming, outgoing) = (Arc::clone(&near.from), Arc::clone(&near.to));
        Self { transport: transport(4, near), incoming, outgoing, _far: far }
    }

    pub(super) fn post(&mut self, op: u64, message: Message, work: Work) {
        self.transport.post(Instant(1), request(op, message, work));
        self.transport.push();
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.incoming.lock().unwrap().bytes.extend(bytes);
    }

    pub(super) fn poll(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while self.transport.poll(Instant(2), &mut events) {}
        events
    }

    /// Takes what has been written: each frame's header, and its payload's length if it is whole.
    pub(super) fn take_frames(&mut self) -> Vec<FrameHeader> {
        let mut outgoing = self.outgoing.lock().unwrap();
        let bytes: Vec<u8> = outgoing.bytes.drain(..).collect();
        let mut frames = Vec::new();
        let mut rest = &bytes[..];
        while let Some((header, after)) = rest.split_first_chunk::<{ FrameHeader::BYTES }>() {
            let header = FrameHeader::decode(header).unwrap();
            let payload = if header.kind == FrameKind::Data { header.len as usize } else { 0 };
            rest = &after[payload.min(after.len())..];
            frames.push(header);
        }
        frames
    }
}

/// A frame of rank 7.
pub(super) fn frame(kind: FrameKind, message: Message, len: u64, offset: u64) -> FrameHeader {
    let Message { id, fingerprint, .. } = message;
    FrameHeader { kind, source: 7, message: id, epoch: 1, len, fingerprint, offset }
}

pub(super) fn data_frame(message: Message, data: &[u8], offset: u64) -> Vec<u8> {
    let mut bytes = frame(FrameKind::Data, message, data.len() as u64, offset).encode().to_vec();
    bytes.extend(data);
    bytes
}

fn background(seq: u64) -> Message {
    Message { class: Class::Background, ..message(seq, 1) }
}

#[test]
fn urgent_goes_before_background_and_control_before_both() {
    let data = vec![0_u8; 10_000];
    let mut memory = vec![0_u8; 100_000];
    // Room for one frame and a half.
    let mut bench = Bench::new(15_000);
    for seq in 0..3 {
        bench.post(seq, background(seq), Work::Send(lend(&data)));
    }
    for seq in 10..12 {
        bench.post(seq, message(seq, 1), Work::Send(lend(&data)));
    }
    let sink = Sink { memory: lend_mut(&mut memory), fold: SinkFold::Replace };
    bench.post(20, message(20, 1), Work::Recv(sink));
    let mut order = Vec::new();
    let mut bytes = Vec::new();
    loop {
        bench.poll();
        let mut outgoing = bench.outgoing.lock().unwrap();
        if outgoing.bytes.is_empty() {
            break;
        }
        bytes.extend(outgoing.bytes.drain(..));
    }
    bench.feed(&[]);
    bench.outgoing.lock().unwrap().bytes.extend(bytes);
    order.extend(bench.take_frames().iter().map(|header| header.message.seq));
    // 0 was written at once, 1 had begun; the rest as it should be.
    assert_eq!(order, [0, 1, 20, 10, 11, 2]);
}

#[test]
fn small_frames_share_a_write_straight_from_memory() {
    let data = [5_u8; 100];
    let mut bench = Bench::new(1000);
    // The stream is full while six are posted.
    bench.outgoing.lock().unwrap().bytes.extend([0; 1000]);
    for seq in 0..6 {
        bench.post(seq, message(seq, 1), Work::Send(lend(&data)));
    }
    bench.outgoing.lock().unwrap().bytes.clear();
    let events = bench.poll();
    assert_eq!(events.len(), 6, "{events:?}");
    assert_eq!(bench.outgoing.lock().unwrap().writes, [(6 * 164, 12)]);
}

#[test]
fn what_is_posted_together_shares_a_write() {
    let mut memory = vec![0; 40_000];
    let mut bench = Bench::new(100_000);
    for (seq, part) in (0..).zip(memory.chunks_mut(1000)) {
        let fold = SinkFold::Replace;
        let sink = Sink { memory: lend_mut(part), fold };
        bench.transport.post(Instant(1), request(seq, message(seq, 1), Work::Recv(sink)));
    }
    let data = [1; 50_000];
    bench.transport.post(Instant(1), request(90, message(90, 1), Work::Send(lend(&data))));
    bench.transport.tell_posted();
    assert!(bench.outgoing.lock().unwrap().writes.is_empty(), "nothing goes before the push");
    bench.transport.push();
    assert_eq!(bench.outgoing.lock().unwrap().writes, [(40 * 64, 40)]);
}

/// Feeds the first half of an eager message, posts a receive, feeds the rest.
fn post_half_way(sent: Message, posted: Message, len: usize) -> (Vec<Event>, Vec<u8>) {
    let mut memory = vec![1_u8; len];
    let mut bench = Bench::new(10_000);
    let bytes = data_frame(sent, &[2; 100], 0);
    bench.feed(&bytes[..120]);
    assert!(matches!(bench.poll()[..], [Event::Arrived { .. }]));
    let fold = SinkFold::Reduce(DType::U8, ReduceOp::Sum);
    bench.post(1, posted, Work::Recv(Sink { memory: lend_mut(&mut memory), fold }));
    bench.feed(&bytes[120..]);
    let events = bench.poll();
    drop(bench);
    (events, memory)
}

#[test]
fn a_receive_posted_while_its_message_comes_is_met() {
    let (events, memory) = post_half_way(message(1, 1), message(1, 1), 100);
    assert!(matches!(events[..], [Event::Completed(_)]), "{events:?}");
    assert_eq!(memory, [3; 100]);
}

#[test]
fn a_receive_of_another_call_posted_while_a_message_comes_is_not_filled() {
    let (events, memory) = post_half_way(message(1, 1), message(1, 2), 100);
    let [Event::Arrived { call, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(call.fingerprint.count, 1);
    assert_eq!(memory, [1; 100]);
}

#[test]
fn a_receive_of_another_length_posted_while_a_message_comes_fails() {
    let (events, memory) = post_half_way(message(1, 1), message(1, 1), 99);
    let [Event::Failed(failure)] = &events[..] else { panic!("{events:?}") };
    assert!(!failure.is_end && failure.detail.contains("100 bytes were sent, 99 were expected"));
    assert_eq!(memory, [1; 99]);
}

#[test]
fn what_came_before_a_write_failed_is_delivered_first() {
    let data = [5_u8; 100];
    // More than is read in one poll.
    let mut memory = vec![vec![0_u8; 3 << 20]; 3];
    let mut bench = Bench::new(10_000);
    let mut bytes = Vec::new();
    for (seq, memory) in (1..).zip(&mut memory) {
        let sink = Sink { memory: lend_mut(memory), fold: SinkFold::Replace };
        bench.post(seq, message(seq, 1), Work::Recv(sink));
        bytes.extend(data_frame(message(seq, 1), &vec![7; 3 << 20], 1));
    }
    bench.poll();
    bench.feed(&bytes);
    bench.outgoing.lock().unwrap().is_broken = true;
    bench.post(9, message(9, 1), Work::Send(lend(&data)));
    let events = bench.poll();
    let (Some(Event::Failed(failure)), 4) = (events.last(), events.len()) else {
        panic!("{events:?}");
    };
    assert!(failure.is_end && failure.detail.contains("os error 32"), "{failure:?}");
    assert!(memory.iter().flatten().all(|byte| *byte == 7));
}

#[test]
fn after_a_write_failed_one_looks_though_nobody_says_so() {
    let data = [5_u8; 100];
    let mut bench = Bench::new(10_000);
    bench.incoming.lock().unwrap().is_quiet = true;
    bench.feed(&data_frame(message(1, 1), &data, 0));
    bench.outgoing.lock().unwrap().is_broken = true;
    bench.post(9, message(9, 1), Work::Send(lend(&data)));
    let events = bench.poll();
    assert!(matches!(events[..], [Event::Arrived { .. }, Event::Failed(_)]), "{events:?}");
}

#[test]
fn after_cancel_the_rest_of_a_frame_is_skipped_and_the_next_one_is_met() {
    let mut bench = Bench::new(10_000);
    let mut memory = vec![0_u8; 100];
    let sink = |memory: &mut [u8]| Sink { memory: lend_mut(memory), fold: SinkFold::Replace };
    bench.post(1, message(1, 1), Work::Recv(sink(&mut memory)));
    let bytes = data_frame(message(1, 1), &[7; 100], 0);
    bench.feed(&bytes[..100]);
    bench.poll();
    bench.transport.cancel_all();
    let before = memory.clone();
    let mut next = vec![0_u8; 5];
    bench.post(2, message(2, 1), Work::Recv(sink(&mut next)));
    bench.feed(&bytes[100..]);
    bench.feed(&data_frame(message(2, 1), &[8; 5], 0));
    let events = bench.poll();
    assert!(matches!(&events[..], [Event::Completed(id)] if id.op.0 == 2), "{events:?}");
    assert!(memory == before && next == [8; 5]);
}

#[test]
fn nothing_follows_a_frame_that_was_cut_off() {
    let data = vec![5_u8; 1000];
    let mut bench = Bench::new(500);
    bench.post(1, message(1, 1), Work::Send(lend(&data)));
    bench.transport.cancel_all();
    bench.outgoing.lock().unwrap().bytes.clear();
    assert!(bench.poll().is_empty() && bench.transport.is_flushed());
    bench.post(2, message(2, 1), Work::Send(lend(&data)));
    let events = bench.poll();
    let [Event::Failed(failure)] = &events[..] else { panic!("{events:?}") };
    assert!(!failure.is_end && failure.detail.contains("cut off"), "{failure:?}");
    assert!(bench.outgoing.lock().unwrap().bytes.is_empty());
}

#[test]
fn a_long_message_that_nobody_asks_for_is_offered_after_a_while() {
    let data = vec![5_u8; 100_000];
    let mut bench = Bench::new(10_000);
    bench.post(1, message(1, 1), Work::Send(lend(&data)));
    let due = Instant(1) + OFFER_AFTER;
    assert_eq!(bench.transport.next_timeout(), Some(due));
    let mut events = Vec::new();
    bench.transport.poll(Instant(due.0 - 1), &mut events);
    assert!(bench.take_frames().is_empty());
    for expected in [1, 0] {
        bench.transport.poll(due, &mut events);
        let frames = bench.take_frames();
        assert_eq!(frames.len(), expected);
        assert!(frames.iter().all(|f| (f.kind, f.offset) == (FrameKind::Pull, 0)));
    }
    assert_eq!(bench.transport.next_timeout(), None);
    // One that has been asked for in time is not.
    bench.post(2, message(2, 1), Work::Send(lend(&data)));
    bench.feed(&frame(FrameKind::ClearToSend, message(2, 1), 100_000, 0).encode());
    bench.poll();
    bench.transport.poll(due, &mut events);
    assert_eq!(bench.transport.next_timeout(), None);
    assert!(bench.take_frames().iter().all(|f| f.kind == FrameKind::Data));
}

#[test]
fn a_peer_that_asks_for_another_call_is_shown_ours() {
    let data = vec![5_u8; 100_000];
    for is_asked_first in [false, true] {
        let mut bench = Bench::new(10_000);
        let ask = frame(FrameKind::ClearToSend, message(1, 2), 100_000, 0).encode();
        if is_asked_first {
            bench.feed(&ask);
            assert_eq!(bench.poll().len(), 1);
        }
        bench.post(1, message(1, 1), Work::Send(lend(&data)));
        if !is_asked_first {
            bench.feed(&ask);
        }
        let events = bench.poll();
        assert!(
            matches!(&events[..], [Event::Arrived { call, .. }] if call.fingerprint.count == 2)
        );
        let frames = bench.take_frames();
        assert!(frames.len() == 1 && (frames[0].kind, frames[0].offset) == (FrameKind::Pull, 0));
        assert_eq!(frames[0].fingerprint, message(1, 1).fingerprint);
    }
}

#[test]
fn background_frames_share_a_write_only_while_it_is_short() {
    let data = vec![5_u8; 30_000];
    let mut bench = Bench::new(1 << 20);
    bench.outgoing.lock().unwrap().bytes.extend(vec![0; 1 << 20]);
    for seq in 0..6 {
        bench.post(seq, background(seq), Work::Send(lend(&data)));
    }
    bench.outgoing.lock().unwrap().bytes.clear();
    bench.poll();
    let three = (3 * 30_064, 6);
    assert_eq!(bench.outgoing.lock().unwrap().writes, [three, three]);
}

#[test]
fn short_receives_are_told_once_when_nothing_moves() {
    let mut bench = Bench::new(10_000);
    let (mut short, mut long) = (vec![0_u8; 10], vec![0_u8; 100_000]);
    let sink = |memory: &mut [u8]| Sink { memory: lend_mut(memory), fold: SinkFold::Replace };
    bench.post(1, message(1, 1), Work::Recv(sink(&mut short)));
    bench.post(2, message(2, 1), Work::Recv(sink(&mut long)));
    bench.poll();
    let kinds = |frames: Vec<FrameHeader>| -> Vec<(u64, u64)> {
        frames.iter().map(|header| (header.message.seq, header.offset)).collect()
    };
    assert_eq!(kinds(bench.take_frames()), [(2, 0)]);
    for expected in [vec![(1, 2)], vec![]] {
        bench.transport.tell_posted();
        bench.poll();
        assert_eq!(kinds(bench.take_frames()), expected);
    }
    // Being told is not being asked: an offer is still answered.
    bench.feed(&frame(FrameKind::Pull, message(1, 1), 10, 0).encode());
    bench.poll();
    assert_eq!(kinds(bench.take_frames()), [(1, 0)]);
}

//! A peer that does what the protocol does not allow.

use super::order::{Bench, data_frame, frame};
use crate::memory::{lend, lend_mut};
use crate::transport::conformance::message;
use crate::transport::stream::CREDIT;
use crate::transport::{EAGER_MAX_BYTES, Event, Sink, SinkFold, Work};
use syncline_proto::wire::{FrameHeader, FrameKind};

/// Feeds `bytes` to a transport that has a large receive 1 and a large send 2 posted; the failure
/// must say `text`.
fn refused(bytes: &[u8], text: &str) {
    let mut memory = vec![9_u8; 100_000];
    let data = vec![0_u8; 100_000];
    let mut bench = Bench::new(1 << 20);
    let sink = Sink { memory: lend_mut(&mut memory), fold: SinkFold::Replace };
    bench.post(1, message(1, 1), Work::Recv(sink));
    bench.post(2, message(2, 1), Work::Send(lend(&data)));
    bench.feed(bytes);
    let events = bench.poll();
    let Some((Event::Failed(failure), others)) = events.split_last() else {
        panic!("{text}: {events:?}");
    };
    assert!(others.iter().all(|event| matches!(event, Event::Arrived { .. })), "{events:?}");
    assert!(failure.peer == 7 && !failure.is_end, "{text}: {failure:?}");
    assert!(failure.detail.starts_with("pipe here -> there: "), "{failure:?}");
    assert!(failure.detail.contains(text), "{text}: {failure:?}");
    // That was all: nothing more comes of it.
    bench.feed(bytes);
    assert!(bench.poll().is_empty());
    drop(bench);
    assert!(memory.iter().all(|byte| *byte == 9), "{text}: memory was touched");
}

fn refused_frame(frame: FrameHeader, text: &str) {
    refused(&frame.encode(), text);
}

#[test]
fn headers_name_the_field_at_fault() {
    let good = frame(FrameKind::ClearToSend, message(3, 1), 1, 0);
    refused_frame(FrameHeader { source: 6, ..good }, "field source is 6, not 7");
    refused_frame(FrameHeader { epoch: 2, ..good }, "field epoch is 2, not 1");
    refused_frame(FrameHeader { offset: 3, ..good }, "field offset of a ClearToSend");
    refused_frame(FrameHeader { len: 1 << 41, ..good }, "field len");
    let mut bytes = good.encode();
    bytes[3] = 77;
    refused(&bytes, "field kind");
    bytes[2] = 9;
    refused(&bytes, "version 9");
    bytes[0] = 0;
    refused(&bytes, "not a syncline frame");
}

#[test]
fn messages_that_were_not_asked_for_are_refused() {
    let long = EAGER_MAX_BYTES as u64 + 1;
    refused_frame(frame(FrameKind::Data, message(3, 1), long, 0), "sent unasked");
    refused_frame(frame(FrameKind::Data, message(3, 1), 10, 1), "sent as if asked for");
    refused_frame(frame(FrameKind::Data, message(3, 1), 10, 2), "field offset of a Data");
    refused_frame(frame(FrameKind::Pull, message(3, 1), 10, 4096), "lent without being asked");
    // Nobody here can fetch.
    refused_frame(frame(FrameKind::Pull, message(1, 1), 100_000, 4096), "lent without being");
    refused_frame(frame(FrameKind::Ack, message(2, 1), 100_000, 0), "was not lent");
    refused_frame(frame(FrameKind::Ack, message(2, 1), 0, 1), "credit of 1 after 0");
}

#[test]
fn nothing_is_said_twice() {
    let twice = |kind, offset| {
        let bytes = frame(kind, message(3, 1), 10, offset).encode();
        refused(&[bytes, bytes].concat(), "twice");
    };
    twice(FrameKind::ClearToSend, 0);
    twice(FrameKind::Pull, 0);
    let bytes = data_frame(message(3, 1), &[0; 10], 0);
    refused(&[&bytes[..], &bytes[..]].concat(), "sent twice");
}

#[test]
fn lengths_must_agree() {
    let text = |sent, expected| format!("{sent} bytes were sent, {expected} were expected");
    refused_frame(frame(FrameKind::Data, message(1, 1), 99, 1), &text(99, 100_000));
    refused_frame(frame(FrameKind::Pull, message(1, 1), 99, 0), &text(99, 100_000));
    refused_frame(frame(FrameKind::ClearToSend, message(2, 1), 99, 0), &text(100_000, 99));
}

#[test]
fn credit_is_the_bound_on_what_is_kept() {
    let mut bytes = Vec::new();
    let data = vec![0_u8; EAGER_MAX_BYTES];
    for seq in 0..=CREDIT / EAGER_MAX_BYTES as u64 {
        bytes.extend(data_frame(message(100 + seq, 1), &data, 0));
    }
    refused(&bytes, "sent without credit");
}

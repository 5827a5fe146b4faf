//! Credit: what is spent comes back, once.

use super::order::{Bench, data_frame, frame};
use crate::memory::{lend, lend_mut};
use crate::transport::conformance::message;
use crate::transport::stream::{CREDIT, MESSAGE_COST};
use crate::transport::{EAGER_MAX_BYTES, Event, Sink, SinkFold, Transport, Work};
use syncline_proto::wire::FrameKind;

const COST: u64 = EAGER_MAX_BYTES as u64 + MESSAGE_COST;

#[test]
fn credit_is_given_back_as_receives_take_messages() {
    let data = vec![1_u8; EAGER_MAX_BYTES];
    let mut memory = vec![0_u8; EAGER_MAX_BYTES];
    let mut bench = Bench::new(1 << 20);
    // These are kept at first, and forgotten: that gives their credit back, too.
    for seq in 0..5 {
        bench.feed(&data_frame(message(seq, 1), &data, 0));
    }
    bench.poll();
    bench.transport.cancel_all();
    let mut given_back = Vec::new();
    for seq in 10..110 {
        // Every third comes before its receive.
        let comes = data_frame(message(seq, 1), &data, 0);
        if seq.is_multiple_of(3) {
            bench.feed(&comes);
            bench.poll();
        }
        let sink = Sink { memory: lend_mut(&mut memory), fold: SinkFold::Replace };
        bench.post(seq, message(seq, 1), Work::Recv(sink));
        if !seq.is_multiple_of(3) {
            bench.feed(&comes);
        }
        bench.poll();
        for header in bench.take_frames() {
            assert_eq!((header.kind, header.len), (FrameKind::Ack, 0));
            assert_eq!(header.offset, (seq - 9 + 5) * COST, "all that was taken so far");
            given_back.push(header.offset);
        }
    }
    // Not at every message, and early enough that the sender need not stop.
    assert!((3..=8).contains(&given_back.len()), "{given_back:?}");
    assert!(given_back.windows(2).all(|pair| pair[1] - pair[0] <= CREDIT / 2));
}

#[test]
fn a_sender_whose_credit_comes_back_is_eager_again() {
    let data = vec![1_u8; EAGER_MAX_BYTES];
    let mut bench = Bench::new(16 << 20);
    let eager_max = CREDIT / COST;
    for seq in 0..eager_max + 2 {
        bench.post(seq, message(seq, 1), Work::Send(lend(&data)));
    }
    let kinds = |bench: &mut Bench, kind| {
        bench.poll();
        bench.take_frames().iter().filter(|header| header.kind == kind).count() as u64
    };
    let sent = |bench: &mut Bench| kinds(bench, FrameKind::Data);
    assert_eq!(sent(&mut bench), eager_max);
    bench.feed(&frame(FrameKind::Ack, message(0, 1), 0, 2 * COST).encode());
    bench.poll();
    for seq in 500..503 {
        bench.post(seq, message(seq, 1), Work::Send(lend(&data)));
    }
    assert_eq!(sent(&mut bench), 2, "as many as there is credit for");
    // Those that are held need no credit once they are asked for.
    bench
        .feed(&frame(FrameKind::ClearToSend, message(eager_max, 1), data.len() as u64, 0).encode());
    let events = bench.poll();
    assert!(matches!(&events[..], [Event::Completed(id)] if id.op.0 == eager_max), "{events:?}");
    assert!(!bench.transport.is_flushed(), "others are still held");
}

#[test]
fn what_was_cancelled_before_it_went_costs_nothing() {
    let data = vec![1_u8; EAGER_MAX_BYTES];
    let mut bench = Bench::new(1000);
    for round in 0..100 {
        // The stream is full.
        bench.outgoing.lock().unwrap().bytes.resize(1000, 0);
        for seq in 0..10 {
            bench.post(seq, message(100 * round + seq, 1), Work::Send(lend(&data)));
        }
        bench.transport.cancel_all();
    }
    bench.outgoing.lock().unwrap().bytes.clear();
    bench.post(1, message(1, 1), Work::Send(lend(&data)));
    bench.poll();
    let frames = bench.take_frames();
    assert!(frames.len() == 1 && frames[0].kind == FrameKind::Data, "{frames:?}");
}

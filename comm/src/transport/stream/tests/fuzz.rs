//! Any bytes at all: no panic, bounded memory, at most one failure.

use super::order::{Bench, frame};
use crate::memory::{LocalSlice, lend, lend_mut};
use crate::transport::conformance::{Random, message};
use crate::transport::stream::CREDIT;
use crate::transport::{Event, Sink, SinkFold, Transport, Work};
use syncline_kernels::{DType, ReduceOp};
use syncline_proto::wire::FrameKind;

const KINDS: [FrameKind; 4] =
    [FrameKind::Ack, FrameKind::ClearToSend, FrameKind::Data, FrameKind::Pull];
/// Lengths around every bound.
const LENS: [usize; 8] = [0, 1, 100, 4096, 32 << 10, (32 << 10) + 1, 70_000, 1 << 30];

/// A frame that is right or nearly so, with some of its payload.
fn some_frame(random: &mut Random) -> Vec<u8> {
    let kind = KINDS[random.below(KINDS.len())];
    let len = LENS[random.below(LENS.len())];
    let message = message(random.below(6) as u64, 1 + random.below(20) as u64 / 19);
    let header = frame(kind, message, len as u64, random.below(3) as u64);
    let mut bytes = header.encode().to_vec();
    if kind == FrameKind::Data {
        bytes.resize(bytes.len() + len.min(100_000), 1);
    }
    if random.below(20) == 0 {
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
    }
    bytes
}

fn play(seed: u64, some_bytes: impl Fn(&mut Random) -> Vec<u8>) -> usize {
    let mut random = Random::new(seed);
    let data = vec![1_u8; 70_000];
    let mut memory = vec![vec![0_u8; 70_000]; 6];
    let mut bench = Bench::new(1 << 20);
    for (seq, memory) in memory.iter_mut().enumerate().take(4) {
        let len = LENS[random.below(7)];
        let part: LocalSlice = lend_mut(&mut memory[..len]);
        let fold = if random.below(2) == 0 {
            SinkFold::Reduce(DType::U8, ReduceOp::Max)
        } else {
            SinkFold::Replace
        };
        bench.post(seq as u64, message(seq as u64, 1), Work::Recv(Sink { memory: part, fold }));
        let len = LENS[random.below(7)];
        bench.post(10 + seq as u64, message(seq as u64, 1), Work::Send(lend(&data[..len])));
    }
    let mut failures = 0;
    let mut events = 0;
    for _ in 0..60 {
        let bytes = some_bytes(&mut random);
        bench.feed(&bytes);
        for event in bench.poll() {
            events += 1;
            failures += usize::from(matches!(event, Event::Failed(_)));
        }
        bench.outgoing.lock().unwrap().bytes.clear();
        let copied = bench.transport.bytes_copied();
        assert!(copied <= CREDIT, "seed {seed}: {copied} bytes kept");
        if random.below(100) == 0 {
            bench.transport.cancel_all();
        }
        if failures > 0 {
            bench.incoming.lock().unwrap().bytes.clear();
        }
    }
    assert!(failures <= 1, "seed {seed}: {failures} failures");
    events
}

#[test]
fn frames_that_are_nearly_right() {
    let events: usize = (0..3000).map(|seed| play(seed, some_frame)).sum();
    assert!(events > 6000, "only {events} events: nothing got through");
}

#[test]
fn noise() {
    for seed in 0..300 {
        play(seed, |random| {
            let len = random.below(500);
            random.bytes(len)
        });
    }
}

#[test]
fn announcements_are_bounded() {
    let mut bench = Bench::new(1 << 20);
    let mut count = 0;
    let failure = loop {
        for _ in 0..1000 {
            let message = message(count, 1);
            count += 1;
            bench.feed(&frame(FrameKind::Pull, message, 10, 0).encode());
        }
        if let Some(Event::Failed(failure)) = bench.poll().pop() {
            break failure;
        }
        assert!(count < 1 << 20, "so many offers are all noted");
    };
    assert!(failure.detail.contains("more messages than may be outstanding"), "{failure:?}");
}

//! Tests of the framing over streams that a test controls byte by byte.

mod breach;
mod credit;
mod fuzz;
mod order;
mod pipe;

use super::inbound::Filling;
use super::{CREDIT, Puller, StreamTransport};
use crate::memory::lend_mut;
use crate::transport::conformance::{self, Ends, Random, message};
use crate::transport::{RequestId, Sink, SinkFold, Transport};
use pipe::{Pipe, pair};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use syncline_kernels::{DType, ReduceOp, reduce_bytes};
use syncline_proto::collective::Span;
use syncline_proto::collective::machine::{Direction, Transfer};
use syncline_proto::id::OpId;

/// Reads this process's own memory.
#[derive(Debug)]
struct OwnMemory(File);

impl Puller for OwnMemory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, address)
    }
}

/// A transport of rank 4 or 7 to the other one.
fn transport(rank: u32, pipe: Pipe) -> StreamTransport<Pipe> {
    StreamTransport::new("pipe", 0, rank, 1, vec![(11 - rank, vec![pipe])])
}

fn ends(seed: u64, may_pull: [bool; 2]) -> Ends {
    let [a, b] = pair(100_000, seed);
    let mut both = [transport(4, a), transport(7, b)];
    for (index, peer) in [7, 4].into_iter().enumerate() {
        if may_pull[index] {
            let memory = File::open("/proc/self/mem").unwrap();
            both[index].set_puller(peer, Box::new(OwnMemory(memory)));
        }
    }
    Ends::two([4, 7], both.map(|one| -> Box<dyn Transport> { Box::new(one) }))
}

#[test]
fn conforms_however_the_bytes_are_cut() {
    conformance::check_all(|| ends(1, [false, false]));
}

#[test]
fn conforms_when_both_fetch() {
    conformance::check_all(|| ends(2, [true, true]));
}

#[test]
fn conforms_when_one_can_fetch() {
    conformance::check_all(|| ends(3, [true, false]));
}

#[test]
fn a_fetched_message_does_not_pass_the_stream() {
    let [a, b] = pair(4096, 9);
    let stalled = a.clone_gauge();
    let mut both = [transport(4, a), transport(7, b)];
    for (one, peer) in both.iter_mut().zip([7, 4]) {
        one.set_puller(peer, Box::new(OwnMemory(File::open("/proc/self/mem").unwrap())));
    }
    let mut ends = Ends::two([4, 7], both.map(|one| -> Box<dyn Transport> { Box::new(one) }));
    let data = Random::new(1).bytes(5 << 20);
    let mut memory = vec![0; data.len()];
    let recv = ends.recv(1, message(1, 1), &mut memory, SinkFold::Replace);
    let send = ends.send(0, message(1, 1), &data);
    let mut polls = 0;
    while !ends.completed.contains(&recv) {
        ends.step();
        polls += 1;
    }
    assert!(polls >= 5, "5 MiB in {polls} polls: others must get their turn");
    ends.finish("a fetched message", &[send, recv]);
    assert!(memory == data);
    assert!(stalled.total() < 1000, "{} bytes passed the stream", stalled.total());
}

#[test]
fn a_fetch_that_fails_is_the_peers_end() {
    #[derive(Debug)]
    struct Gone;
    impl Puller for Gone {
        fn read(&mut self, _address: u64, _into: &mut [u8]) -> io::Result<()> {
            Err(io::Error::from_raw_os_error(3))
        }
    }
    let [a, b] = pair(4096, 9);
    let mut both = [transport(4, a), transport(7, b)];
    both[0].set_puller(7, Box::new(Gone));
    both[1].set_puller(4, Box::new(Gone));
    let mut ends = Ends::two([4, 7], both.map(|one| -> Box<dyn Transport> { Box::new(one) }));
    let (data, mut memory) = (vec![1; 70_000], vec![0; 70_000]);
    ends.recv(1, message(1, 1), &mut memory, SinkFold::Replace);
    ends.send(0, message(1, 1), &data);
    ends.run("the failure", |ends| !ends.failed.is_empty());
    let (end, failure) = &ends.failed[0];
    assert!(*end == 1 && failure.is_end && failure.detail.contains("os error 3"), "{failure:?}");
}

#[test]
fn elements_are_folded_whole_however_they_are_cut() {
    let mut random = Random::new(6);
    let span = Span::input(0, 0);
    let transfer = Transfer { peer: 0, tag: 0, chunk: 0, direction: Direction::Send, span };
    let id = RequestId { op: OpId(0), transfer };
    for dtype in DType::ALL {
        for limit in [1, 2, 3, 5, 7, 9, 64, 1000] {
            let data = random.bytes(dtype.size() * 357);
            let mut memory = random.bytes(data.len());
            let mut expected = memory.clone();
            reduce_bytes(dtype, ReduceOp::Sum, &mut expected, &data);
            let fold = SinkFold::Reduce(dtype, ReduceOp::Sum);
            let mut filling = Filling::new(id, Sink { memory: lend_mut(&mut memory), fold });
            let mut rest = &data[..];
            while !rest.is_empty() {
                let (part, after) = rest.split_at((1 + random.below(limit)).min(rest.len()));
                filling.take(part);
                rest = after;
            }
            assert!(memory == expected, "{dtype} in pieces of up to {limit}");
        }
    }
}

#[test]
fn eager_messages_beyond_the_credit_wait_at_the_sender() {
    // So small that their number is what counts.
    let mut ends = ends(4, [false, false]);
    let count = usize::try_from(CREDIT / 128).unwrap() + 1000;
    let data = [1, 2, 3];
    let mut ops: Vec<u64> =
        (0..count).map(|seq| ends.send(0, message(seq as u64, 1), &data[..seq % 4])).collect();
    ends.settle();
    let sent = ends.completed.len();
    assert!(sent < count && sent > count / 2, "{sent} of {count} went");
    let mut memory = vec![vec![0; 3]; count];
    for (seq, memory) in memory.iter_mut().enumerate() {
        let memory = &mut memory[..seq % 4];
        ops.push(ends.recv(1, message(seq as u64, 1), memory, SinkFold::Replace));
    }
    ends.run("all of them", |ends| ends.completed.len() == ops.len());
    assert!(ends.failed.is_empty());
    assert!(memory.iter().enumerate().all(|(seq, m)| m[..seq % 4] == data[..seq % 4]));
}

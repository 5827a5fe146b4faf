//! One suite for every transport: what the contract page of [`transport`](super) promises.
//!
//! A test makes [`Ends`] over the transports it is about and calls [`check_all`]. Time is made up:
//! every step is a millisecond; only the limit on a test's own patience is real.

use super::{
    Class, EAGER_MAX_BYTES, Event, PeerFailure, RequestId, Sink, SinkFold, Transport, Work,
    WorkRequest,
};
use crate::memory::{lend, lend_mut};
use crate::time::now;
use std::collections::BTreeSet;
use std::time::Duration;
use syncline_kernels::{DType, ReduceOp, reduce_bytes};
use syncline_proto::call::{Call, Fingerprint};
use syncline_proto::collective::machine::{Direction, Transfer};
use syncline_proto::collective::{Fold, Span};
use syncline_proto::id::{CommId, MessageId, OpId, Rank};
use syncline_proto::time::Instant;

/// A test that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(1);
/// When an engine that sees nothing move tells of its receives.
const STALL: Duration = Duration::from_millis(100);

/// The two ends of one pair of ranks, or one transport that is both.
#[derive(Debug)]
pub(crate) struct Ends {
    transports: Vec<Option<Box<dyn Transport>>>,
    /// Where each would sleep.
    polls: Vec<mio::Poll>,
    ranks: [Rank; 2],
    now: Instant,
    moved_at: Instant,
    next_op: u64,
    /// Requests completed, in order.
    pub(crate) completed: Vec<u64>,
    /// Who saw it, what, and whether it was asked for.
    pub(crate) arrived: Vec<(usize, Call, MessageId, bool)>,
    pub(crate) failed: Vec<(usize, PeerFailure)>,
}

impl Ends {
    /// A transport from a rank to itself.
    pub(crate) fn same(rank: Rank, transport: Box<dyn Transport>) -> Self {
        Self::over(vec![Some(transport)], [rank, rank])
    }

    /// Two transports connected to each other.
    pub(crate) fn two(ranks: [Rank; 2], transports: [Box<dyn Transport>; 2]) -> Self {
        Self::over(transports.map(Some).into(), ranks)
    }

    fn over(mut transports: Vec<Option<Box<dyn Transport>>>, ranks: [Rank; 2]) -> Self {
        let mut polls = Vec::new();
        for transport in transports.iter_mut().flatten() {
            let poll = mio::Poll::new().unwrap();
            transport.register(poll.registry()).unwrap();
            polls.push(poll);
        }
        Self {
            transports,
            polls,
            ranks,
            now: Instant(1),
            moved_at: Instant(1),
            next_op: 0,
            completed: Vec::new(),
            arrived: Vec::new(),
            failed: Vec::new(),
        }
    }

    fn is_same(&self) -> bool {
        self.transports.len() == 1
    }

    pub(crate) fn transport(&mut self, end: usize) -> &mut dyn Transport {
        let index = end.min(self.transports.len() - 1);
        self.transports[index].as_deref_mut().expect("that end is gone")
    }

    fn post(&mut self, end: usize, message: Message, direction: Direction, work: Work) -> u64 {
        let op = self.next_op;
        self.next_op += 1;
        let peer = self.ranks[1 - end];
        let Message { id: message, fingerprint, class } = message;
        let (tag, chunk, span) = (message.step, message.chunk, Span::input(0, 0));
        let id =
            RequestId { op: OpId(op), transfer: Transfer { peer, tag, chunk, direction, span } };
        let request = WorkRequest { id, peer, message, fingerprint, class, work };
        let now = self.now;
        let transport = self.transport(end);
        transport.post(now, request);
        transport.push();
        op
    }

    /// Sends `data`, which must stay until the request is over.
    pub(crate) fn send(&mut self, end: usize, message: Message, data: &[u8]) -> u64 {
        self.post(end, message, Direction::Send, Work::Send(lend(data)))
    }

    /// Receives into `memory`, which must stay until the request is over.
    pub(crate) fn recv(
        &mut self,
        end: usize,
        message: Message,
        memory: &mut [u8],
        fold: SinkFold,
    ) -> u64 {
        let direction = match fold {
            SinkFold::Reduce(..) => Direction::Recv(Fold::Reduce),
            SinkFold::Replace => Direction::Recv(Fold::Replace),
        };
        self.post(end, message, direction, Work::Recv(Sink { memory: lend_mut(memory), fold }))
    }

    /// Polls every end once; whether anything moved.
    pub(crate) fn step(&mut self) -> bool {
        self.now = self.now + STEP;
        let mut moved = false;
        for (end, transport) in self.transports.iter_mut().enumerate() {
            let Some(transport) = transport else { continue };
            let mut events = Vec::new();
            moved |= transport.poll(self.now, &mut events);
            for event in events {
                match event {
                    Event::Arrived { peer, call, message, is_asked } => {
                        assert_eq!(peer, self.ranks[1 - end]);
                        self.arrived.push((end, call, message, is_asked));
                    }
                    Event::Completed(id) => self.completed.push(id.op.0),
                    Event::Failed(failure) => self.failed.push((end, failure)),
                }
            }
        }
        if moved {
            self.moved_at = self.now;
        } else {
            self.look();
            std::thread::yield_now();
        }
        if self.now.since(self.moved_at) >= STALL {
            self.moved_at = self.now;
            self.transports.iter_mut().flatten().for_each(|t| t.tell_posted());
        }
        moved
    }

    /// What an engine does before it sleeps and after, without the sleep.
    fn look(&mut self) {
        let mut ready = mio::Events::with_capacity(16);
        for (transport, poll) in self.transports.iter_mut().zip(&mut self.polls) {
            let Some(transport) = transport else { continue };
            if transport.prepare_sleep() {
                poll.poll(&mut ready, Some(Duration::ZERO)).unwrap();
                for event in &ready {
                    let end = event.is_read_closed() || event.is_error();
                    let (readable, writable) = (event.is_readable(), event.is_writable());
                    transport.handle_ready(event.token(), readable || end, writable || end);
                }
            }
            transport.finish_sleep();
        }
    }

    /// Steps until `is_done`.
    pub(crate) fn run(&mut self, what: &str, is_done: impl Fn(&Self) -> bool) {
        let deadline = now() + PATIENCE;
        while !is_done(self) {
            self.step();
            assert!(now() < deadline, "{what}: not done in time; {self:#?}");
        }
    }

    /// Steps until all of `ops` are completed, once each.
    pub(crate) fn finish(&mut self, what: &str, ops: &[u64]) {
        let wanted: BTreeSet<u64> = ops.iter().copied().collect();
        self.run(what, |ends| {
            assert!(ends.failed.is_empty(), "{what}: {:?}", ends.failed);
            wanted.iter().all(|op| ends.completed.contains(op))
        });
        for op in &wanted {
            let times = self.completed.iter().filter(|o| *o == op).count();
            assert_eq!(times, 1, "{what}: request {op} completed {times} times");
        }
    }

    /// Steps a while, for what must not happen.
    pub(crate) fn idle(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }

    /// Steps until nothing has moved for some time.
    pub(crate) fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 50 {
            quiet = if self.step() { 0 } else { quiet + 1 };
        }
    }
}

/// What a test calls a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) id: MessageId,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) class: Class,
}

/// Message number `seq` of the world's communicator, of a call that is called `count`.
pub(crate) fn message(seq: u64, count: u64) -> Message {
    let id = MessageId { comm: CommId::WORLD, seq, step: 3, chunk: 0 };
    let fingerprint = Fingerprint { kind: 2, dtype: 0, op: 0, algorithm: 1, root: 0, count };
    Message { id, fingerprint, class: Class::Urgent }
}

/// Numbers that look random and are the same in every run.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % limit as u64).unwrap()
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| u8::try_from(self.below(256)).unwrap()).collect()
    }
}

/// Every test of the suite, each on new ends.
pub(crate) fn check_all(make: impl Fn() -> Ends) {
    eager_in_both_orders(make());
    large_in_both_orders(make());
    many_interleaved(make());
    reductions(make());
    same_name_both_ways(make());
    control_is_not_stuck_behind_what_nobody_has_posted(make());
    for (case, sent, expected) in
        [("small", 10, 20), ("large", 90_000, 80_000), ("more", 90_000, 20), ("less", 20, 90_000)]
    {
        for order in Order::ALL {
            for tag in [3, 3 | MessageId::POINT_TO_POINT] {
                mismatch_is_reported_and_not_folded(make(), case, order, tag, [sent, expected]);
                mismatch_is_reported_and_not_folded(make(), case, order, tag, [sent, sent]);
            }
            lengths_that_differ_are_a_failure(make(), case, order, sent, expected);
        }
    }
    cancelled_memory_is_not_touched(&make);
    if make().is_same() {
        return;
    }
    urgent_overtakes_background(make());
    the_peers_end_is_told_once(make());
}

/// Which side of a message is posted first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// And has crossed before the receive is posted, if it can.
    SendFirst,
    /// And the sender knows, if it can, before it posts.
    RecvFirst,
    /// Both at once.
    Together,
}

impl Order {
    const ALL: [Self; 3] = [Self::SendFirst, Self::RecvFirst, Self::Together];
}

fn post_both(
    ends: &mut Ends,
    message: Message,
    data: &[u8],
    memory: &mut [u8],
    order: Order,
) -> [u64; 2] {
    if order == Order::RecvFirst {
        let recv = ends.recv(1, message, memory, SinkFold::Replace);
        ends.settle();
        return [recv, ends.send(0, message, data)];
    }
    let send = ends.send(0, message, data);
    if order == Order::SendFirst {
        ends.settle();
    }
    [send, ends.recv(1, message, memory, SinkFold::Replace)]
}

fn both_orders(mut ends: Ends, sizes: &[usize]) {
    let mut random = Random::new(1);
    let mut seq = 0;
    for size in sizes {
        for order in Order::ALL {
            let data = random.bytes(*size);
            let mut memory = vec![0; *size];
            let message = message(seq, *size as u64);
            let ops = post_both(&mut ends, message, &data, &mut memory, order);
            ends.finish("a message", &ops);
            assert!(memory == data, "{size} bytes, {order:?}");
            seq += 1;
        }
    }
    assert!(ends.transport(0).is_flushed() && ends.transport(1).is_flushed());
}

fn eager_in_both_orders(ends: Ends) {
    both_orders(ends, &[0, 1, 7, 64, 4095, 4096, 4097, EAGER_MAX_BYTES]);
}

fn large_in_both_orders(ends: Ends) {
    both_orders(ends, &[EAGER_MAX_BYTES + 1, 65_536, 100_001, 1 << 20, (3 << 20) + 5]);
}

fn many_interleaved(mut ends: Ends) {
    const MESSAGES: usize = 120;
    let mut random = Random::new(2);
    let sizes: Vec<usize> = (0..MESSAGES)
        .map(|_| {
            let limit = [200, 5000, 50_000, 1 << 20][random.below(4)];
            random.below(limit)
        })
        .collect();
    let data: Vec<Vec<u8>> = sizes.iter().map(|size| random.bytes(*size)).collect();
    let mut memory: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
    let mut todo: Vec<(usize, bool)> =
        (0..MESSAGES).flat_map(|i| [(i, true), (i, false)]).collect();
    let mut ops = Vec::new();
    while !todo.is_empty() {
        let (index, is_send) = todo.swap_remove(random.below(todo.len()));
        let mut message = message(index as u64, sizes[index] as u64);
        message.id.chunk = u32::try_from(index).unwrap();
        if index.is_multiple_of(3) {
            message.class = Class::Background;
        }
        let from = index % 2;
        ops.push(if is_send {
            ends.send(from, message, &data[index])
        } else {
            ends.recv(1 - from, message, &mut memory[index], SinkFold::Replace)
        });
        if random.below(3) == 0 {
            ends.step();
        }
    }
    ends.finish("many messages", &ops);
    assert!(memory == data, "messages got mixed up");
}

fn reductions(mut ends: Ends) {
    let mut random = Random::new(3);
    for (seq, dtype) in DType::ALL.into_iter().enumerate() {
        for (part, count) in [1, 333, 9001, 70_001].into_iter().enumerate() {
            let len = count * dtype.size();
            let data = random.bytes(len);
            let mut memory = random.bytes(len);
            let mut expected = memory.clone();
            reduce_bytes(dtype, ReduceOp::Max, &mut expected, &data);
            let message = message((seq * 4 + part) as u64, count as u64);
            let fold = SinkFold::Reduce(dtype, ReduceOp::Max);
            let ops = [ends.recv(1, message, &mut memory, fold), ends.send(0, message, &data)];
            ends.finish("a reduction", &ops);
            assert!(memory == expected, "{dtype}, {count} elements");
        }
    }
}

/// Sends of both ranks may have one name: who sends is part of it.
fn same_name_both_ways(mut ends: Ends) {
    if ends.is_same() {
        return;
    }
    let mut random = Random::new(4);
    for (seq, len) in [100, 100_000].into_iter().enumerate() {
        let (a, b) = (random.bytes(len), random.bytes(len + 8));
        let (mut at_a, mut at_b) = (vec![0; len + 8], vec![0; len]);
        let mut there = message(seq as u64, 1);
        there.id.step |= MessageId::POINT_TO_POINT;
        let mut back = message(seq as u64, 2);
        back.id.step |= MessageId::POINT_TO_POINT;
        let mut ops = vec![ends.send(0, there, &a), ends.send(1, back, &b)];
        ends.settle();
        ops.push(ends.recv(0, back, &mut at_a, SinkFold::Replace));
        ops.push(ends.recv(1, there, &mut at_b, SinkFold::Replace));
        ends.finish("both ways", &ops);
        assert!(at_a == b && at_b == a);
        // What was told early says which direction it is about.
        for (end, call, _, is_asked) in &ends.arrived {
            let direction = if (*end == 0) == *is_asked { there } else { back };
            assert_eq!(call.fingerprint, direction.fingerprint, "{:?}", ends.arrived);
        }
    }
}

/// Much more unposted than is kept: both sides go on, and other messages pass.
fn control_is_not_stuck_behind_what_nobody_has_posted(mut ends: Ends) {
    const MESSAGES: usize = 700;
    let mut random = Random::new(5);
    let data = random.bytes(EAGER_MAX_BYTES);
    let mut ops: Vec<u64> =
        (0..MESSAGES).map(|seq| ends.send(0, message(seq as u64, 1), &data)).collect();
    ends.settle();
    let copied = ends.transport(1).bytes_copied();
    assert!(copied <= 16 << 20, "{copied} bytes kept");

    let large = random.bytes(1 << 20);
    for from in [0, 1] {
        let mut memory = vec![0; large.len()];
        let passing = message(9000 + from as u64, 2);
        let recv = ends.recv(1 - from, passing, &mut memory, SinkFold::Replace);
        let send = ends.send(from, passing, &large);
        ends.finish("a message past those that nobody has posted", &[recv, send]);
        assert!(memory == large);
    }
    let mut memory = vec![vec![0; data.len()]; MESSAGES];
    for (seq, memory) in memory.iter_mut().enumerate().rev() {
        ops.push(ends.recv(1, message(seq as u64, 1), memory, SinkFold::Replace));
        if seq.is_multiple_of(50) {
            ends.step();
        }
    }
    ends.finish("messages that were held back", &ops);
    assert!(memory.iter().all(|memory| *memory == data));
    // A second time, to see that credit has come back.
    let (mut memory, last) = (vec![0; 4], [1, 2, 3, 4]);
    let message = message(20_000, 3);
    let ops = [ends.send(0, message, &last), ends.recv(1, message, &mut memory, SinkFold::Replace)];
    ends.finish("the next message", &ops);
    assert_eq!(memory, last);
}

fn mismatch_is_reported_and_not_folded(
    mut ends: Ends,
    case: &str,
    order: Order,
    tag: u32,
    [sent, expected]: [usize; 2],
) {
    let data = vec![7; sent];
    let mut memory = vec![9; expected];
    let (mut mine, mut theirs) = (message(1, 1000), message(1, 1001));
    (mine.id.step, theirs.id.step) = (tag, tag);
    let fold = SinkFold::Reduce(DType::U8, ReduceOp::Sum);
    let post = |ends: &mut Ends, memory: &mut [u8], what: bool| match what {
        true => ends.send(0, mine, &data),
        false => ends.recv(1, theirs, memory, fold),
    };
    post(&mut ends, &mut memory, order != Order::RecvFirst);
    if order != Order::Together {
        ends.settle();
    }
    let early = ends.arrived.len();
    let last = post(&mut ends, &mut memory, order == Order::RecvFirst);
    let what = format!("mismatch, {case}, {order:?}, tag {tag:#x}");
    ends.run(&what, |ends| {
        assert!(ends.failed.is_empty(), "{what}: {:?}", ends.failed);
        let saw = |count| ends.arrived.iter().any(|(_, call, ..)| call.fingerprint.count == count);
        ends.arrived.len() > early && (saw(1000) || saw(1001))
    });
    ends.idle(500);
    assert!(early <= 1, "{what}: told {early} times while one side was posted");
    let recv = if order == Order::RecvFirst { last - 1 } else { last };
    assert!(!ends.completed.contains(&recv), "{what}: the receive completed");
    assert!(memory.iter().all(|byte| *byte == 9), "{what}: memory was touched");
    for (end, call, id, is_asked) in &ends.arrived {
        // Each side is told the other's call; who is its own peer may be told either.
        let wrong = if *end == 0 { 1000 } else { 1001 };
        assert!(ends.is_same() || call.fingerprint.count != wrong, "{what}: told its own call");
        assert_eq!((*id, call.seq), (mine.id, 1), "{what}");
        assert!(ends.is_same() || *is_asked == (*end == 0), "{what}: end {end} is told wrongly");
    }
    for end in [0, 1] {
        let times = ends.arrived.iter().filter(|(e, ..)| *e == end).count();
        assert!(times <= 2, "{what}: end {end} was told {times} times");
    }
}

fn lengths_that_differ_are_a_failure(
    mut ends: Ends,
    case: &str,
    order: Order,
    sent: usize,
    expected: usize,
) {
    let data = vec![7; sent];
    let mut memory = vec![9; expected];
    post_both(&mut ends, message(1, 0), &data, &mut memory, order);
    let what = format!("lengths, {case}, {order:?}");
    ends.run(&what, |ends| !ends.failed.is_empty());
    let (_, failure) = &ends.failed[0];
    assert!(!failure.is_end, "{what}: {failure:?}");
    let text = format!("{sent} bytes were sent, {expected} were expected");
    assert!(failure.detail.contains(&text), "{what}: {failure:?}");
    ends.idle(300);
    assert!(memory.iter().all(|byte| *byte == 9), "{what}: memory was touched");
    let per_end = |end| ends.failed.iter().filter(|(e, _)| *e == end).count();
    assert!(per_end(0) <= 1 && per_end(1) <= 1, "{what}: {:?}", ends.failed);
}

fn cancelled_memory_is_not_touched(make: &impl Fn() -> Ends) {
    for steps in 0..12 {
        for cancelled in [0, 1] {
            let mut ends = make();
            let data = vec![vec![5; 3 << 20], vec![5; 1000], vec![5; 40_000]];
            let mut memory: Vec<Vec<u8>> = data.iter().map(|data| vec![1; data.len()]).collect();
            let mut late = vec![1; 1000];
            for (seq, memory) in memory.iter_mut().enumerate() {
                let fold = SinkFold::Reduce(DType::U8, ReduceOp::Sum);
                ends.recv(1, message(seq as u64, 1), memory, fold);
            }
            ends.recv(1, message(70, 1), &mut late, SinkFold::Replace);
            if !ends.is_same() {
                for (seq, data) in data.iter().enumerate() {
                    ends.send(0, message(seq as u64, 1), data);
                }
            }
            ends.idle(steps);
            ends.transport(cancelled).cancel_all();
            let before = (memory.clone(), late.clone());
            let completed = ends.completed.len();
            if cancelled == 1 {
                ends.send(0, message(70, 1), &data[1]);
                ends.idle(300);
                // The sender may finish; the receiver has nothing left.
                assert!(ends.completed.len() <= completed + 4);
                assert!((memory, late) == before, "touched after {steps} steps");
            } else {
                drop(data);
                ends.idle(300);
                let is_right = memory.iter().flatten().all(|byte| [1, 6].contains(byte));
                assert!(is_right, "not the data, after {steps} steps");
            }
        }
    }
}

fn urgent_overtakes_background(mut ends: Ends) {
    const MESSAGES: usize = 48;
    let data = vec![3; 1 << 20];
    let mut memory = vec![vec![0; data.len()]; MESSAGES];
    let mut background = Vec::new();
    let mut ops = Vec::new();
    for (seq, memory) in memory.iter_mut().enumerate() {
        let message = Message { class: Class::Background, ..message(seq as u64, 1) };
        background.push(ends.recv(1, message, memory, SinkFold::Replace));
        ops.push(ends.send(0, message, &data));
    }
    ends.idle(3);
    let urgent = message(1000, 1);
    let mut first = vec![0; 1000];
    let recv = ends.recv(1, urgent, &mut first, SinkFold::Replace);
    ops.extend([recv, ends.send(0, urgent, &data[..1000])]);
    ops.extend(&background);
    ends.finish("urgent and background", &ops);
    let place = ends.completed.iter().position(|op| *op == recv);
    let last = ends.completed.iter().rposition(|op| background.contains(op));
    assert!(place < last, "the urgent message came last");
    assert!(first == data[..1000] && memory.iter().all(|memory| *memory == data));
}

fn the_peers_end_is_told_once(mut ends: Ends) {
    let data = vec![4; 20_000];
    let (mut memory, mut never) = (vec![0; data.len()], vec![0; 10]);
    let lost = ends.recv(1, message(2, 1), &mut never, SinkFold::Replace);
    let sent = ends.send(0, message(1, 1), &data);
    ends.finish("the last message", &[sent]);
    ends.settle();
    assert!(ends.transport(0).is_flushed());
    ends.transports[0] = None;
    let recv = ends.recv(1, message(1, 1), &mut memory, SinkFold::Replace);
    ends.run("the peer's end", |ends| !ends.failed.is_empty());
    ends.idle(300);
    assert_eq!(ends.failed.len(), 1, "{:?}", ends.failed);
    let (end, failure) = &ends.failed[0];
    assert_eq!((*end, failure.peer, failure.is_end), (1, ends.ranks[0], true), "{failure:?}");
    assert!(ends.completed.contains(&recv) && memory == data, "what came before the end is lost");
    assert!(!ends.completed.contains(&lost));
    // Requests to a peer that is gone go nowhere, quietly.
    ends.send(1, message(3, 1), &data);
    ends.idle(10);
    assert_eq!(ends.failed.len(), 1);
    ends.transport(1).cancel_all();
}

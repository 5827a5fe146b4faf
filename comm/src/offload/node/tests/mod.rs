//! Threads as ranks over one segment, against results computed directly.

mod faults;

use super::*;
use crate::time::now;
use crate::transport::shm::layout::Layout;
use std::thread;
use std::time::Duration;
use syncline_kernels::{Kernels, Stores, Variant, bf16, f16};
use syncline_proto::call::Fingerprint;
use syncline_proto::id::CommId;

const LIMIT: Duration = Duration::from_secs(120);
/// Of the tests' staging buffers: a call of a few of them passes through all there is.
const CHUNK_BYTES: usize = 4096;

fn segments(size: u32) -> Vec<NodeSegment> {
    let layout = Layout { local_size: size, ring_bytes: 4096, chunk_bytes: CHUNK_BYTES };
    NodeSegment::for_threads_of(layout).unwrap()
}

/// Runs `body` on a thread per member; their results by member.
fn on_members<T: Send>(size: u32, body: impl Fn(Member) -> T + Sync) -> Vec<T> {
    on_members_of(segments(size), LaneId { index: 0, generation: 0 }, body)
}

fn on_members_of<T: Send>(
    segments: Vec<NodeSegment>,
    id: LaneId,
    body: impl Fn(Member) -> T + Sync,
) -> Vec<T> {
    let size = u32::try_from(segments.len()).unwrap();
    let members: Vec<_> =
        (0..size).map(|local_index| LaneMember { local_index, rank: rank(local_index) }).collect();
    thread::scope(|scope| {
        let start = |(me, segment)| {
            let (members, body) = (&members, &body);
            scope.spawn(move || {
                let lane = NodeLane::open(Arc::new(segment), id, members, me);
                body(Member { lane, me, size, seq: 0, always_sleeps: false })
            })
        };
        let threads: Vec<_> = (0..size).zip(segments).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// World ranks differ from member indices.
fn rank(member: u32) -> Rank {
    100 + member
}

struct Member {
    lane: NodeLane,
    me: u32,
    size: u32,
    seq: u64,
    always_sleeps: bool,
}

/// A call's arguments, but for the memory.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Args {
    kind: CollectiveKind,
    dtype: DType,
    op: ReduceOp,
    root: u32,
    /// Elements of a block.
    count: usize,
    in_place: bool,
}

impl Args {
    fn new(kind: CollectiveKind, count: usize) -> Self {
        Self { kind, dtype: DType::F32, op: ReduceOp::Sum, root: 0, count, in_place: false }
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint {
            kind: self.kind as u8,
            dtype: self.dtype.code(),
            op: self.op.code(),
            algorithm: 0,
            root: self.root,
            count: self.count as u64,
        }
    }
}

impl Member {
    /// Starts a call on this memory.
    fn start(&mut self, args: &Args, input: &mut [u8], output: &mut [u8], deadline: Instant) {
        self.seq += 1;
        let call = Call { comm: CommId(9), seq: self.seq, fingerprint: args.fingerprint() };
        // SAFETY: each test waits for the call's end, or cancels, before it touches the memory.
        let lend = |bytes: &mut [u8]| unsafe { LocalSlice::new(bytes.as_mut_ptr(), bytes.len()) };
        self.lane.start(NodeCall {
            op: OpId(self.seq),
            call,
            kind: args.kind,
            dtype: args.dtype,
            reduce_op: Some(args.op),
            root: args.root,
            input: lend(input),
            output: lend(output),
            deadline,
        });
    }

    /// Polls, yields and sleeps until `count` calls are over.
    fn wait(&mut self, count: usize) -> Vec<(OpId, Result<(), Arc<Fault>>)> {
        let mut events = Vec::new();
        let mut fruitless = 0;
        while events.len() < count {
            if self.lane.poll(now(), &mut events) {
                fruitless = 0;
                continue;
            }
            fruitless += 1;
            if !self.always_sleeps && fruitless < 20 {
                thread::yield_now();
            } else {
                self.sleep();
            }
        }
        events.into_iter().map(|NodeEvent::Finished { op, result }| (op, result)).collect()
    }

    /// Sleeps on the bell, at most until the next deadline.
    fn sleep(&mut self) {
        if self.lane.prepare_sleep() {
            let until = self.lane.next_deadline().unwrap_or(Instant::ZERO);
            let bell = self.lane.lane.own_bell();
            let timeout = until.since(now()).try_into().unwrap();
            let mut fds = [rustix::event::PollFd::new(bell, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&timeout)).unwrap();
            crate::transport::shm::bell::silence(bell);
        }
        self.lane.finish_sleep();
    }

    /// Runs a call on data made from the call's number, and checks the result.
    fn run(&mut self, args: &Args) {
        let (seed, size) = (self.seq, self.size);
        let data = |member: u32| contribution(args, seed, member, size);
        let (mut input, mut output) = self.memory(args, &data(self.me));
        let before = input.clone();
        self.start(args, &mut input, &mut output, now() + LIMIT);
        let ends = self.wait(1);
        assert_eq!(ends[0].0, OpId(self.seq));
        ends[0].1.as_ref().unwrap();
        assert_eq!(input, before, "the input of {args:?} was written");
        let all: Vec<_> = (0..size).map(data).collect();
        let expected = expected(args, &all, self.me);
        let differs = output.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!((differs, output.len()), (None, expected.len()), "{args:?} on {}", self.me);
    }

    /// Input and output for a call that contributes `data`; what is not written is 0xEE.
    fn memory(&self, args: &Args, data: &[u8]) -> (Vec<u8>, Vec<u8>) {
        use CollectiveKind as Kind;
        let is_root = args.root == self.me;
        let block = args.count * args.dtype.size();
        let all = block * self.size as usize;
        let output = match args.kind {
            Kind::AllGather | Kind::AllToAll => all,
            Kind::Gather => {
                if is_root {
                    all
                } else {
                    0
                }
            }
            Kind::Reduce => {
                if is_root {
                    block
                } else {
                    0
                }
            }
            Kind::Barrier => 0,
            _ => block,
        };
        let mut output = vec![0xEE; output];
        let in_place = match args.kind {
            Kind::Broadcast if !is_root => return (Vec::new(), output),
            Kind::Reduce | Kind::Gather | Kind::Broadcast => args.in_place && is_root,
            Kind::AllReduce | Kind::AllGather => args.in_place,
            _ => false,
        };
        if !in_place {
            return (data.to_vec(), output);
        }
        let at = match args.kind {
            Kind::AllGather | Kind::Gather => self.me as usize * block,
            _ => 0,
        };
        output[at..at + data.len()].copy_from_slice(data);
        (Vec::new(), output)
    }
}

/// What a member puts in.
fn contribution(args: &Args, seed: u64, member: u32, size: u32) -> Vec<u8> {
    use CollectiveKind as Kind;
    let blocks = match args.kind {
        Kind::AllToAll | Kind::ReduceScatter => size as usize,
        Kind::Scatter if member == args.root => size as usize,
        Kind::Broadcast if member != args.root => 0,
        Kind::Barrier | Kind::Scatter => 0,
        _ => 1,
    };
    let mut state = seed ^ u64::from(member) << 32 ^ 0x9E37_79B9_7F4A_7C15;
    let mut data = Vec::new();
    for _ in 0..args.count * blocks {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Neither zero nor NaN, whose bits the kernels' own tests look after.
        let number = f32::from(u8::try_from(state & 0x7F).unwrap() + 1) / 16.0;
        let number = if state & 0x80 == 0 { number } else { -number };
        match args.dtype {
            DType::F16 => data.extend(f16::from_f32(number).to_le_bytes()),
            DType::BF16 => data.extend(bf16::from_f32(number).to_le_bytes()),
            DType::F32 => data.extend(number.to_le_bytes()),
            DType::F64 => data.extend(f64::from(number).to_le_bytes()),
            _ => data.extend(&state.to_le_bytes()[..args.dtype.size()]),
        }
    }
    data
}

/// What member `me` gets.
fn expected(args: &Args, all: &[Vec<u8>], me: u32) -> Vec<u8> {
    use CollectiveKind as Kind;
    let block = args.count * args.dtype.size();
    let mine = me as usize * block..(me as usize + 1) * block;
    let root = args.root as usize;
    let is_root = args.root == me;
    match args.kind {
        Kind::AllReduce => fold(args, all),
        Kind::Reduce if is_root => fold(args, all),
        Kind::ReduceScatter => fold(args, all)[mine].to_vec(),
        Kind::Broadcast => all[root].clone(),
        Kind::AllGather => all.concat(),
        Kind::Gather if is_root => all.concat(),
        Kind::AllToAll => all.iter().flat_map(|data| data[mine.clone()].to_vec()).collect(),
        Kind::Scatter => all[root][mine].to_vec(),
        _ => Vec::new(),
    }
}

/// In member order, by the scalar kernels, in one piece.
fn fold(args: &Args, all: &[Vec<u8>]) -> Vec<u8> {
    let kernels = Kernels::of(Variant::Scalar).unwrap();
    let mut result = vec![0; all[0].len()];
    let sources: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    kernels.reduce_many_bytes(args.dtype, args.op, &mut result, &sources, Stores::Cached);
    if args.op == ReduceOp::Avg {
        let size = u32::try_from(all.len()).unwrap();
        kernels.finish_average_bytes(args.dtype, &mut result, size);
    }
    result
}

const KINDS: [CollectiveKind; 9] = [
    CollectiveKind::AllGather,
    CollectiveKind::AllReduce,
    CollectiveKind::AllToAll,
    CollectiveKind::Barrier,
    CollectiveKind::Broadcast,
    CollectiveKind::Gather,
    CollectiveKind::Reduce,
    CollectiveKind::ReduceScatter,
    CollectiveKind::Scatter,
];

/// A call drawn from `state`, the same on every member.
fn draw(state: &mut u64, size: u32, counts: &[usize]) -> Args {
    let mut below = |limit: usize| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(*state >> 33).unwrap() % limit
    };
    Args {
        kind: KINDS[below(KINDS.len())],
        dtype: DType::ALL[below(DType::ALL.len())],
        op: ReduceOp::ALL[below(ReduceOp::ALL.len())],
        root: u32::try_from(below(size as usize)).unwrap(),
        count: counts[below(counts.len())],
        in_place: below(2) == 0,
    }
}

#[test]
fn every_type_and_operation_reduces_like_the_oracle() {
    for size in [2, 3, 5] {
        on_members(size, |mut member| {
            for dtype in DType::ALL {
                for op in ReduceOp::ALL {
                    for count in [1, 777, 5_011] {
                        let kind = CollectiveKind::AllReduce;
                        let in_place = count != 777;
                        let args = Args { dtype, op, in_place, ..Args::new(kind, count) };
                        member.run(&args);
                    }
                }
            }
        });
    }
}

#[test]
fn random_calls_back_to_back() {
    let counts = [0, 1, 2, 63, 64, 65, 511, 512, 513, 1024, 1025, 3000];
    for size in 1..=8 {
        on_members(size, |mut member| {
            let mut state = u64::from(size);
            for _ in 0..120 {
                member.run(&draw(&mut state, size, &counts));
            }
        });
    }
}

#[test]
fn calls_of_many_chunks() {
    for size in [2, 4, 7] {
        on_members(size, |mut member| {
            for kind in KINDS {
                for count in [CHUNK_BYTES * 2, CHUNK_BYTES * 5 + 21] {
                    let args = Args { dtype: DType::I16, root: 1, ..Args::new(kind, count) };
                    member.run(&args);
                    member.run(&Args { in_place: true, op: ReduceOp::Avg, ..args });
                }
            }
        });
    }
}

#[test]
fn chunks_of_the_usual_size() {
    for size in [2, 5] {
        let segments = NodeSegment::for_threads(size).unwrap();
        on_members_of(segments, LaneId { index: 0, generation: 0 }, |mut member| {
            for op in [ReduceOp::Avg, ReduceOp::Sum] {
                let kind = CollectiveKind::AllReduce;
                member.run(&Args { op, in_place: true, ..Args::new(kind, 500_003) });
            }
        });
    }
}

#[test]
fn results_past_the_cache_are_right() {
    on_members(2, |mut member| {
        // 4 MiB for each; the second block begins at an odd address.
        let args = Args { dtype: DType::U8, ..Args::new(CollectiveKind::AllGather, (4 << 20) + 3) };
        member.run(&args);
        member.run(&Args { in_place: true, ..args });
    });
}

#[test]
fn members_that_always_sleep_are_woken() {
    for size in [2, 3, 8] {
        on_members(size, |mut member| {
            member.always_sleeps = true;
            let mut state = 77;
            for _ in 0..100 {
                member.run(&draw(&mut state, size, &[0, 1, 700, 9000]));
            }
        });
    }
}

#[test]
fn only_some_sleep() {
    on_members(4, |mut member| {
        member.always_sleeps = member.me.is_multiple_of(2);
        let mut state = 78;
        for _ in 0..100 {
            member.run(&draw(&mut state, 4, &[0, 1, 700, 9000]));
        }
    });
}

#[test]
fn many_calls_may_wait_in_line() {
    on_members(3, |mut member| {
        let args = Args { in_place: true, ..Args::new(CollectiveKind::AllReduce, 3000) };
        let mut buffers: Vec<Vec<u8>> = (0..40_u32)
            .map(|i| (0..3000).flat_map(|_| (i as f32).to_le_bytes()).collect())
            .collect();
        for buffer in &mut buffers {
            member.start(&args, &mut [], buffer, now() + LIMIT);
        }
        let ends = member.wait(40);
        assert!(ends.iter().map(|(op, _)| op.0).eq(1..=40));
        for (i, buffer) in (0..).zip(&buffers) {
            let i: u16 = i;
            let expected = (3.0 * f32::from(i)).to_le_bytes();
            assert!(buffer.chunks(4).all(|element| element == expected), "call {i}");
        }
    });
}

#[test]
fn a_lane_passes_to_the_next_communicator() {
    let size = 3;
    for generation in 0..3 {
        // The same memory, as a process has it: opened again by fewer members.
        let id = LaneId { index: 5, generation };
        on_members_of(segments(size), id, |mut member| {
            for _ in 0..generation + 1 {
                member.run(&Args::new(CollectiveKind::AllReduce, 100));
            }
        });
    }
    let segments: Vec<_> = segments(size).into_iter().map(Arc::new).collect();
    for generation in 0..4 {
        // Members differ, so counters do when the next generation begins.
        let locals: Vec<u32> = if generation % 2 == 0 { vec![2, 0, 1] } else { vec![1, 2] };
        let members: Vec<_> = locals
            .iter()
            .map(|local| LaneMember { local_index: *local, rank: rank(*local) })
            .collect();
        thread::scope(|scope| {
            for (me, local) in (0..).zip(&locals) {
                let (members, segment) = (&members, Arc::clone(&segments[*local as usize]));
                scope.spawn(move || {
                    let id = LaneId { index: 5, generation };
                    let lane = NodeLane::open(segment, id, members, me);
                    let size = u32::try_from(members.len()).unwrap();
                    let mut member = Member { lane, me, size, seq: 0, always_sleeps: false };
                    for count in [10, 4_000, 5] {
                        member.run(&Args::new(CollectiveKind::AllReduce, count));
                    }
                });
            }
        });
    }
}

#[test]
fn lanes_do_not_disturb_each_other() {
    let segments: Vec<_> = segments(2).into_iter().map(Arc::new).collect();
    let members = [0, 1].map(|local_index| LaneMember { local_index, rank: rank(local_index) });
    thread::scope(|scope| {
        for (me, segment) in (0..).zip(&segments) {
            scope.spawn(move || {
                let open = |index| {
                    let id = LaneId { index, generation: 0 };
                    let lane = NodeLane::open(Arc::clone(segment), id, &members, me);
                    Member { lane, me, size: 2, seq: 0, always_sleeps: false }
                };
                let mut lanes = [open(0), open(15)];
                for round in 0..50 {
                    let first = &mut lanes[round % 2];
                    first.run(&Args::new(CollectiveKind::AllReduce, 2_500));
                }
            });
        }
    });
}

//! What a collective inside one host costs, without the engine: microseconds and GB/s by size.
//!
//! `cargo run --release -p syncline-comm --example node_latency -- [RANKS] [KIND] [MAX_BYTES]`
//!
//! Ranks are processes: this one is rank 0 and starts the others with the same arguments, its
//! segment's name and their rank. A rank spins if each has a core, else it yields.

use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_comm::offload::node::{LaneId, LaneMember, NodeLane, RunArgs};
use syncline_comm::transport::shm::{NodeSegment, Puller, SegmentHost};
use syncline_comm::{CollectiveKind, DType, ReduceOp};
use syncline_proto::call::{Call, Fingerprint};
use syncline_proto::id::CommId;
use syncline_proto::time::Instant as Deadline;

const SECRET: [u8; 32] = [1; 32];
const LIMIT: Duration = Duration::from_secs(60);
/// Each size is measured for about this long.
const BUDGET: Duration = Duration::from_millis(400);
const NEVER: Deadline = Deadline(u64::MAX);

struct Rank {
    lane: NodeLane,
    size: u32,
    seq: u64,
    spins: u32,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text = |at: usize, default: &str| arguments.get(at).map_or(default, |a| a).to_owned();
    let size: u32 = text(0, "2").parse().expect("a number of ranks");
    let kind_name = text(1, "all_reduce");
    let kind = CollectiveKind::ALL.into_iter().find(|kind| kind.name() == kind_name);
    let kind = kind.unwrap_or_else(|| panic!("{kind_name} is no collective"));
    let max_bytes: usize = text(2, "67108864").parse().expect("a number of bytes");
    if let (Some(name), Some(rank)) = (arguments.get(3), arguments.get(4)) {
        let rank = rank.parse().expect("a rank");
        let segment = NodeSegment::join(name, rank, size, &SECRET, NEVER).expect("join");
        measure(segment, kind, max_bytes, |_, _| {});
        return;
    }
    let (name, host) = SegmentHost::bind().expect("bind");
    let program = std::env::current_exe().expect("this program");
    let start = |rank: u32| {
        let (size, bytes, rank) = (size.to_string(), max_bytes.to_string(), rank.to_string());
        let arguments = [&size, &kind_name, &bytes, &name, &rank];
        Command::new(&program).args(arguments).spawn().expect("start a rank")
    };
    let children: Vec<Child> = (1..size).map(start).collect();
    let segment = host.serve(size, &SECRET, NEVER).expect("serve");
    let can_pull = size > 1 && Puller::probe(&segment, 1).is_some();
    let pull = if can_pull { "may" } else { "may not" };
    println!("{kind_name}, {size} ranks, f32 sum; rank 0 {pull} read rank 1's memory");
    println!("{:>12} {:>12} {:>12} {:>12} {:>8}", "bytes", "p10 us", "p50 us", "mean us", "GB/s");
    measure(segment, kind, max_bytes, |bytes, times| {
        times.sort_unstable();
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let (p10, p50) = (us(times[times.len() / 10]), us(times[times.len() / 2]));
        let mean = us(times.iter().sum::<Duration>()) / times.len() as f64;
        let rate = bytes as f64 / p50 / 1e3;
        println!("{bytes:>12} {p10:>12.2} {p50:>12.2} {mean:>12.2} {rate:>8.2}");
    });
    for mut child in children {
        assert!(child.wait().expect("wait").success());
    }
}

/// Times calls of growing size; `report` gets (bytes, times).
fn measure(
    segment: NodeSegment,
    kind: CollectiveKind,
    max_bytes: usize,
    mut report: impl FnMut(usize, &mut [Duration]),
) {
    let (me, size) = (segment.local_index(), segment.local_size());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spins = if size as usize <= cores { 20_000 } else { 0 };
    let members: Vec<_> =
        (0..size).map(|index| LaneMember { local_index: index, rank: index }).collect();
    let id = LaneId { index: 0, generation: 0 };
    let lane = NodeLane::open(Arc::new(segment), id, &members, me);
    let mut rank = Rank { lane, size, seq: 0, spins };
    let mut bytes = 4;
    while bytes <= max_bytes {
        let (mut input, mut output) = memory(kind, bytes, me, size);
        let once = time(&mut rank, kind, &mut input, &mut output, 5)[4];
        // Rank 0 says how often, for all.
        let count = (BUDGET.as_nanos() / once.as_nanos().max(100)).clamp(10, 200_000);
        let mut count = u32::try_from(count).expect("clamped").to_le_bytes();
        rank.run(CollectiveKind::Broadcast, &mut [], &mut count);
        let count = u32::from_le_bytes(count);
        let mut times = time(&mut rank, kind, &mut input, &mut output, count);
        report(bytes, &mut times);
        bytes *= 4;
    }
}

/// Input and output of a call that the size `bytes` describes: all of it for the kinds that
/// reduce or broadcast, all blocks together for the rest.
fn memory(kind: CollectiveKind, bytes: usize, me: u32, size: u32) -> (Vec<u8>, Vec<u8>) {
    let block = (bytes / size as usize).next_multiple_of(4);
    let all = block * size as usize;
    let at_root = |len: usize| if me == 0 { len } else { 0 };
    let (input, output) = match kind {
        CollectiveKind::AllReduce | CollectiveKind::Broadcast => (0, bytes),
        CollectiveKind::Reduce => (bytes, at_root(bytes)),
        CollectiveKind::AllGather => (block, all),
        CollectiveKind::Gather => (block, at_root(all)),
        CollectiveKind::Scatter => (at_root(all), block),
        CollectiveKind::AllToAll => (all, all),
        CollectiveKind::ReduceScatter => (all, block),
        _ => (0, 0),
    };
    (vec![0; input], vec![0; output])
}

#[expect(clippy::disallowed_methods, reason = "measures itself, not the library's idea of time")]
fn time(
    rank: &mut Rank,
    kind: CollectiveKind,
    input: &mut [u8],
    output: &mut [u8],
    count: u32,
) -> Vec<Duration> {
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let start = Instant::now();
        rank.run(kind, input, output);
        times.push(start.elapsed());
    }
    times
}

impl Rank {
    fn run(&mut self, kind: CollectiveKind, input: &mut [u8], output: &mut [u8]) {
        self.seq += 1;
        assert!(self.size > 0);
        let dtype = if kind == CollectiveKind::Broadcast { DType::U8 } else { DType::F32 };
        let fingerprint = Fingerprint {
            kind: kind as u8,
            dtype: dtype.code(),
            op: ReduceOp::Sum.code(),
            algorithm: 0,
            root: 0,
            count: 0,
        };
        let call = Call { comm: CommId::WORLD, seq: self.seq, fingerprint };
        let reduce_op = Some(ReduceOp::Sum);
        let args = RunArgs { call, kind, dtype, reduce_op, root: 0, spins: self.spins };
        self.lane.run(args, input, output, LIMIT).expect("a collective");
    }
}

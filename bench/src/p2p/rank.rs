//! What both ranks execute.
//!
//! Owns the order of messages. Latency: rank 0 sends and waits for the answer, so the engine spins
//! as it does for any caller. Bandwidth: rank 0 keeps `depth` messages outstanding, rank 1 as many
//! receives; after the last, rank 1 answers with one byte, and only then the clock stops.

use super::options::P2pOptions;
use super::report::{BwRow, LatRow, P2pRow};
use crate::rank::{ROW_MARK, transport};
use crate::stats::{cpu_per_gib, host_clock_s, mean_and_stdev, peak_rate, percentile, process_cpu};
use std::collections::VecDeque;
use std::time::Instant;
use syncline_comm::{Communicator, Error, ErrorKind, ReduceOp, Request, Result};

/// Tag of what is measured.
const TAG: u32 = 0;
/// Tag of the byte that says that all has arrived.
const DONE_TAG: u32 = 1;

/// Measures every size; rank 0 prints a marked line with a [`P2pRow`] for each.
///
/// # Errors
/// Those of the communicator; [`ErrorKind::InvalidArgument`] if it has not two ranks.
pub fn run(options: &P2pOptions) -> Result<()> {
    let world = Communicator::init()?;
    let ranks = world.world_size();
    if ranks != super::options::RANKS {
        let text = format!("p2p is measured between 2 ranks; this job has {ranks}");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    for bytes in options.sizes() {
        let row = if options.lat {
            P2pRow::Lat(latency(&world, options, bytes)?)
        } else {
            P2pRow::Bw(bandwidth(&world, options, bytes)?)
        };
        if world.rank() == 0 {
            println!("{ROW_MARK}{}", serde_json::to_string(&row).expect("a row is plain data"));
        }
    }
    Ok(())
}

fn latency(world: &Communicator, options: &P2pOptions, bytes: u64) -> Result<LatRow> {
    let wrong = check(world, bytes)?;
    let (peer, is_first) = (1 - world.rank(), world.rank() == 0);
    let sent = vec![1_u8; length(bytes)];
    let mut received = vec![0_u8; length(bytes)];
    let mut round = || {
        if is_first {
            world.send(&sent, peer, TAG)?;
            world.recv(&mut received, peer, TAG)
        } else {
            world.recv(&mut received, peer, TAG)?;
            world.send(&sent, peer, TAG)
        }
    };
    for _ in 0..options.warmup() {
        round()?;
    }
    let mut times = Vec::with_capacity(options.iterations as usize);
    let mut last = Instant::now();
    for _ in 0..options.iterations {
        round()?;
        let now = Instant::now();
        times.push((now - last).as_secs_f64() * 1e6 / 2.0);
        last = now;
    }
    times.sort_by(f64::total_cmp);
    let (avg_us, stdev_us) = mean_and_stdev(&times);
    Ok(LatRow {
        transport: transport(world),
        bytes,
        iterations: u64::from(options.iterations),
        min_us: times[0],
        max_us: times[times.len() - 1],
        typical_us: percentile(&times, 0.5),
        avg_us,
        stdev_us,
        p99_us: percentile(&times, 0.99),
        p999_us: percentile(&times, 0.999),
        wrong,
    })
}

fn bandwidth(world: &Communicator, options: &P2pOptions, bytes: u64) -> Result<BwRow> {
    let wrong = check(world, bytes)?;
    let depth = options.depth(bytes);
    let is_first = world.rank() == 0;
    let both = options.bidirectional;
    let mut flow = Flow {
        sends: is_first || both,
        receives: !is_first || both,
        spare: Vec::new(),
        depth: depth as usize,
    };
    let buffers = flow.depth * (usize::from(flow.sends) + usize::from(flow.receives));
    // Written to here: the first touch of memory is not the link's.
    flow.spare.resize_with(buffers, || vec![1_u8; length(bytes)]);
    flow.run(world, options.warmup())?;
    world.barrier()?;
    let cpu_before = process_cpu();
    let times = flow.run(world, options.iterations)?;
    let mut cpu_s = [(process_cpu() - cpu_before).as_secs_f64()];
    let mut elapsed_s = [times.elapsed_s];
    world.all_reduce(&mut cpu_s, ReduceOp::Sum)?;
    world.all_reduce(&mut elapsed_s, ReduceOp::Max)?;
    let peak_per_s = peak(world, options, &times)?;

    let messages = u64::from(options.iterations) * if both { 2 } else { 1 };
    let per_s = messages as f64 / elapsed_s[0].max(1e-9);
    let mib = bytes as f64 / f64::from(1 << 20);
    Ok(BwRow {
        transport: transport(world),
        bytes,
        iterations: u64::from(options.iterations),
        bidirectional: both,
        depth,
        // No stretch is better than all where all were posted at once.
        peak_mib_s: peak_per_s.max(per_s) * mib,
        average_mib_s: per_s * mib,
        rate_mpps: per_s / 1e6,
        cpu_s_per_gib: cpu_per_gib(cpu_s[0], bytes.saturating_mul(messages)),
        wrong,
    })
}

/// Messages per second of the best stretch. Both ways, a stretch is the same messages of both
/// directions, from the first post of any until all had arrived: two directions that are fast one
/// after the other do not add up.
fn peak(world: &Communicator, options: &P2pOptions, times: &Times) -> Result<f64> {
    let count = options.iterations as usize;
    // Posted by 0 and arrived at 1, posted by 1 and arrived at 0; each rank knows its own.
    let mut all = vec![0.0; 4 * count];
    let (posted_at, arrived_at) = if world.rank() == 0 { (0, 3) } else { (2, 1) };
    for (at, own) in [(posted_at, &times.posted), (arrived_at, &times.arrived)] {
        all[at * count..][..own.len()].copy_from_slice(own);
    }
    world.all_reduce(&mut all, ReduceOp::Sum)?;
    let part = |at: usize| &all[at * count..][..count];
    if !options.bidirectional {
        return Ok(peak_rate(part(0), part(1)));
    }
    let zip = |one: usize, other: usize, pick: fn(f64, f64) -> f64| -> Vec<f64> {
        part(one).iter().zip(part(other)).map(|(a, b)| pick(*a, *b)).collect()
    };
    Ok(2.0 * peak_rate(&zip(0, 2, f64::min), &zip(1, 3, f64::max)))
}

/// What one rank saw of a stream, in seconds; `posted` and `arrived` by the host's clock.
struct Times {
    elapsed_s: f64,
    posted: Vec<f64>,
    arrived: Vec<f64>,
}

/// One rank's part of a stream.
struct Flow {
    sends: bool,
    receives: bool,
    /// Buffers that are not under way.
    spare: Vec<Vec<u8>>,
    depth: usize,
}

impl Flow {
    /// Sends and receives so many.
    ///
    /// A rank sends and receives in turn, so neither is ever `2 * depth` ahead of the other and
    /// both always have a message to wait for that will come.
    fn run(&mut self, world: &Communicator, count: u32) -> Result<Times> {
        let (peer, count) = (1 - world.rank(), count as usize);
        let mut out = VecDeque::with_capacity(self.depth);
        let mut coming = VecDeque::with_capacity(self.depth);
        let mut posted = Vec::with_capacity(if self.sends { count } else { 0 });
        let mut arrived = Vec::with_capacity(if self.receives { count } else { 0 });
        if self.receives {
            for _ in 0..self.depth.min(count) {
                coming.push_back(world.start_recv(self.take(), peer, TAG)?);
            }
        }
        world.barrier()?;
        let start = Instant::now();
        for index in 0..count {
            if self.sends {
                if index >= self.depth {
                    self.give_back(out.pop_front())?;
                }
                posted.push(host_clock_s());
                out.push_back(world.start_send(self.take(), peer, TAG)?);
            }
            if self.receives {
                self.give_back(coming.pop_front())?;
                arrived.push(host_clock_s());
                if index + self.depth < count {
                    coming.push_back(world.start_recv(self.take(), peer, TAG)?);
                }
            }
        }
        while !out.is_empty() {
            self.give_back(out.pop_front())?;
        }
        if !self.sends {
            world.send(&[1_u8], peer, DONE_TAG)?;
        } else if !self.receives {
            world.recv(&mut [0_u8], peer, DONE_TAG)?;
        }
        Ok(Times { elapsed_s: start.elapsed().as_secs_f64(), posted, arrived })
    }

    fn take(&mut self) -> Vec<u8> {
        self.spare.pop().expect("a window has as many buffers as messages")
    }

    fn give_back(&mut self, oldest: Option<Request<u8>>) -> Result<()> {
        if let Some(request) = oldest {
            self.spare.push(request.wait()?);
        }
        Ok(())
    }
}

/// One message each way; bytes that arrived wrong on both ranks.
fn check(world: &Communicator, bytes: u64) -> Result<u64> {
    let (rank, peer) = (world.rank(), 1 - world.rank());
    let pattern = |rank: u32| move |index: usize| (index % 251) as u8 ^ rank as u8;
    let sent = world.start_send((0..length(bytes)).map(pattern(rank)).collect(), peer, TAG)?;
    let mut received = vec![0_u8; length(bytes)];
    world.recv(&mut received, peer, TAG)?;
    sent.wait()?;
    let expected = (0..received.len()).map(pattern(peer));
    let mut wrong =
        [received.iter().zip(expected).filter(|(got, due)| **got != *due).count() as u64];
    world.all_reduce(&mut wrong, ReduceOp::Sum)?;
    Ok(wrong[0])
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("sizes are checked")
}

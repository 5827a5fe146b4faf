//! Measures the links between hosts when a job starts, so that algorithms are chosen for the
//! network that is there.
//!
//! Owns which calls are made and how times become a [`LinkCost`]. The slowest rank's times count,
//! and all ranks learn them, so that all choose alike. Called once by [`Communicator::connect`].
//!
//! Two figures are wanted: latency, from sums of one word, and bandwidth, from sums that grow until
//! one takes long enough to be timed. Before they are known, links are taken to be slow, for which
//! the cost model chooses a ring: of all algorithms the one that never sends two messages into one
//! port at the same time, so that what is measured is the link.

use super::Communicator;
use crate::error::Result;
use crate::time::now;
use std::time::Duration;
use syncline_kernels::ReduceOp;
use syncline_proto::collective::tuning::{Link, LinkCost};

/// Sums of one word.
const LATENCY_CALLS: u32 = 8;
/// The first sum that is timed for bandwidth, in bytes.
const BYTES_FIRST: usize = 64 << 10;
/// The last.
const BYTES_LAST: usize = 8 << 20;
/// A sum that takes as long is long enough.
const LONG: Duration = Duration::from_millis(4);

/// What links between hosts are taken for while they are measured: 10 Mbit/s.
pub(super) fn unknown() -> LinkCost {
    let default = LinkCost::default();
    LinkCost { remote: Link { bytes_per_s: 1_250_000, ..default.remote }, ..default }
}

impl Communicator {
    /// Measures the links between hosts. Collective.
    pub(super) fn measure_links(&self) -> Result<LinkCost> {
        let world_size = u64::from(self.world_size());
        // The first call opens what is opened late.
        let mut shortest = self.time_sum(1)?;
        for _ in 0..LATENCY_CALLS {
            shortest = shortest.min(self.time_sum(1)?);
        }
        let [word] = self.agree([shortest])?;
        let mut bytes = BYTES_FIRST;
        let long = loop {
            let twice = [self.time_sum(bytes / 4)?, self.time_sum(bytes / 4)?];
            let [first, second] = self.agree(twice)?;
            let shortest = first.min(second);
            if shortest >= LONG || bytes >= BYTES_LAST {
                break shortest;
            }
            bytes *= 8;
        };
        Ok(links(word, long, bytes as u64, world_size))
    }

    fn time_sum(&self, len: usize) -> Result<Duration> {
        let mut data = vec![0_f32; len];
        let start = now();
        self.all_reduce(&mut data, ReduceOp::Sum)?;
        Ok(now() - start)
    }

    /// The longest of each time over all ranks.
    fn agree<const N: usize>(&self, times: [Duration; N]) -> Result<[Duration; N]> {
        let mut all = times.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.all_reduce(&mut all, ReduceOp::Max)?;
        Ok(all.map(Duration::from_nanos))
    }
}

/// Costs of which these times follow: of a sum of one word, in about 2 log2(n) messages one after
/// the other at most, and of one of `bytes` around a ring of `n` ranks.
fn links(word: Duration, long: Duration, bytes: u64, world_size: u64) -> LinkCost {
    let default = LinkCost::default();
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let steps = u64::from(world_size.next_power_of_two().trailing_zeros()).max(1);
    let latency_ns = (nanos(word) / steps).max(1_000);
    let hops = 2 * (world_size - 1);
    let moved = u128::from(hops * bytes / world_size);
    // Hops overlap where a message is longer than a chunk, so not all of the latency is in it.
    let busy = nanos(long).saturating_sub(hops.saturating_mul(latency_ns) / 2).max(1);
    let bytes_per_s = (moved * 1_000_000_000 / u128::from(busy)).clamp(10_000, 1 << 40);
    let bytes_per_s = u64::try_from(bytes_per_s).expect("clamped");
    let message_ns = default.remote.message_ns.min(latency_ns);
    LinkCost { remote: Link { latency_ns, message_ns, bytes_per_s }, ..default }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_follow_from_times_by_hand() {
        // 8 ranks: 3 steps for a word, 14 hops of an eighth of 64 KiB each.
        let (word, long) = (Duration::from_micros(300), Duration::from_micros(10_700));
        let remote = links(word, long, 65_536, 8).remote;
        assert_eq!(remote.latency_ns, 100_000);
        // 114,688 bytes in 10,700 - 700 us.
        assert_eq!(remote.bytes_per_s, 11_468_800);
    }

    #[test]
    fn absurd_times_give_links_that_can_be_computed_with() {
        for (word, long) in [(0, 0), (u64::MAX, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            let times = [word, long].map(Duration::from_nanos);
            let remote = links(times[0], times[1], 8 << 20, 2).remote;
            assert!(remote.latency_ns >= 1_000 && remote.bytes_per_s >= 10_000);
        }
    }
}

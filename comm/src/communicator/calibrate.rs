//! Measures the links between hosts when a job starts, so that algorithms are chosen for the
//! network that is there.
//!
//! Owns which calls are made and how times become a [`LinkCost`]. The slowest rank's times count,
//! and all ranks learn them, so that all choose alike. Called once by [`Communicator::connect`].
//!
//! Three figures are wanted: latency, from sums of one word at doubling distance; what each further
//! message at the same time costs, from sums of some words from everybody to everybody, which on a
//! host with fewer cores than ranks is far from nothing; and bandwidth, from sums around a ring
//! that grow until one takes long enough to be timed: of all algorithms the one that never sends
//! two messages into one port at the same time, so that what is measured is the link. All are
//! forced, whatever else the job was told to use. Hops inside a host are taken to cost nothing.

use super::Communicator;
use crate::error::Result;
use crate::time::now;
use std::time::Duration;
use syncline_kernels::ReduceOp;
use syncline_proto::collective::Algorithm;
use syncline_proto::collective::tuning::{Link, LinkCost};

/// What is not counted as long.
const WORD_BYTES: u64 = 16;
/// Of the sum from everybody to everybody.
const WORDS_BYTES: u64 = 32;
/// Larger worlds send too much from everybody to everybody to measure that.
const EVERYBODY_MAX: u64 = 64;
/// Sums of one word.
const LATENCY_CALLS: u32 = 8;
/// The first sum that is timed for bandwidth, in bytes.
const BYTES_FIRST: usize = 64 << 10;
/// The last.
const BYTES_LAST: usize = 8 << 20;
/// A sum that takes as long is long enough.
const LONG: Duration = Duration::from_millis(4);

/// The algorithm of a sum of so many bytes while links are measured.
pub(super) fn algorithm(bytes: u64) -> Algorithm {
    match bytes {
        _ if bytes <= WORD_BYTES => Algorithm::RecursiveDoubling,
        _ if bytes <= WORDS_BYTES => Algorithm::Direct,
        _ => Algorithm::Ring,
    }
}

impl Communicator {
    /// Measures the links between hosts. Collective.
    pub(super) fn measure_links(&self) -> Result<LinkCost> {
        // The first call opens what is opened late.
        let word = self.shortest_sum(&mut [1_f32])?;
        let ranks = u64::from(self.world_size());
        let mut words = [1_f32; WORDS_BYTES as usize / size_of::<f32>()];
        let words = match ranks {
            ..=EVERYBODY_MAX => Some(self.shortest_sum(&mut words)?),
            _ => None,
        };
        let [word, worst] = self.agree([word, words.unwrap_or_default()])?;
        let words = words.map(|_| worst);
        let mut bytes = BYTES_FIRST;
        let long = loop {
            // Written to here: the first touch of memory is not the link's.
            let mut data = vec![1_f32; bytes / size_of::<f32>()];
            let twice = [self.time_sum(&mut data)?, self.time_sum(&mut data)?];
            let [first, second] = self.agree(twice)?;
            let shortest = first.min(second);
            if shortest >= LONG || bytes >= BYTES_LAST {
                break shortest;
            }
            bytes = (bytes * 8).min(BYTES_LAST);
        };
        let hosts = u64::from(self.inner.topology.host_count());
        let links = links(word, long, bytes as u64, ranks, hosts);
        let Link { latency_ns, message_ns, .. } = links.remote;
        let message_ns = words
            .map_or(message_ns, |words| self::message_ns(words, latency_ns, ranks, message_ns));
        Ok(LinkCost { remote: Link { message_ns, ..links.remote }, ..links })
    }

    fn shortest_sum(&self, data: &mut [f32]) -> Result<Duration> {
        let mut shortest = self.time_sum(data)?;
        for _ in 0..LATENCY_CALLS {
            shortest = shortest.min(self.time_sum(data)?);
        }
        Ok(shortest)
    }

    fn time_sum(&self, data: &mut [f32]) -> Result<Duration> {
        let start = now();
        self.all_reduce(data, ReduceOp::Sum)?;
        Ok(now() - start)
    }

    /// The longest of each time over all ranks.
    fn agree<const N: usize>(&self, times: [Duration; N]) -> Result<[Duration; N]> {
        let mut all = times.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.all_reduce(&mut all, ReduceOp::Max)?;
        Ok(all.map(Duration::from_nanos))
    }
}

/// Costs of which these times follow: of a sum of one word, in about log2(hosts) messages between
/// hosts, and of one of `bytes` around a ring of all ranks, in which a host has one way out.
fn links(word: Duration, long: Duration, bytes: u64, ranks: u64, hosts: u64) -> LinkCost {
    let default = LinkCost::default();
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let levels = u64::from(hosts.next_power_of_two().trailing_zeros()).max(1);
    let latency_ns = (nanos(word) / levels).max(1_000);
    let moved = u128::from(2 * (ranks - 1) * bytes / ranks);
    // Hops overlap where a message is longer than a chunk, so not all of the latency is in it.
    let hops = 2 * (ranks - 1).min(hosts);
    let busy = nanos(long).saturating_sub(hops.saturating_mul(latency_ns) / 2).max(1);
    let bytes_per_s = (moved * 1_000_000_000 / u128::from(busy)).clamp(10_000, 1 << 40);
    let bytes_per_s = u64::try_from(bytes_per_s).expect("clamped");
    let message_ns = default.remote.message_ns.min(latency_ns);
    LinkCost { remote: Link { latency_ns, message_ns, bytes_per_s }, ..default }
}

/// What a further message costs, if a sum from everybody to everybody and back takes so long: in
/// each of two rounds a rank sends and receives one to and from each other rank.
fn message_ns(words: Duration, latency_ns: u64, ranks: u64, default: u64) -> u64 {
    let further = (2 * ranks).saturating_sub(4);
    let round = u64::try_from(words.as_nanos() / 2).unwrap_or(u64::MAX);
    let most = latency_ns.max(1);
    round.saturating_sub(latency_ns).checked_div(further).map_or(default, |ns| ns.clamp(1, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_follow_from_times_by_hand() {
        // 8 hosts: 3 steps for a word, 14 hops of an eighth of 64 KiB each.
        let (word, long) = (Duration::from_micros(300), Duration::from_micros(10_700));
        let remote = links(word, long, 65_536, 8, 8).remote;
        assert_eq!(remote.latency_ns, 100_000);
        // 114,688 bytes in 10,700 - 700 us.
        assert_eq!(remote.bytes_per_s, 11_468_800);
    }

    #[test]
    fn hops_inside_a_host_cost_nothing() {
        // 2 hosts of 8 ranks, 1 ms and 1 Gbit/s: one step between hosts for a word; 983,040 bytes
        // in 7,864 us, and two hops each way, half of which counts.
        let word = Duration::from_micros(1000);
        let long = Duration::from_nanos(7_864_320 + 2_000_000);
        let remote = links(word, long, 512 << 10, 16, 2).remote;
        assert_eq!((remote.latency_ns, remote.bytes_per_s), (1_000_000, 125_000_000));
    }

    #[test]
    fn a_message_costs_what_many_take() {
        // Two rounds of 100 us and 12 further messages of 25 us.
        assert_eq!(message_ns(Duration::from_micros(800), 100_000, 8, 3), 25_000);
        assert_eq!(message_ns(Duration::from_micros(800), 10_000, 8, 3), 10_000, "at most latency");
        assert_eq!(message_ns(Duration::ZERO, 100_000, 8, 3), 1);
        assert_eq!(message_ns(Duration::from_micros(800), 100_000, 2, 3), 3, "nobody else");
    }

    #[test]
    fn absurd_times_give_links_that_can_be_computed_with() {
        for (word, long) in [(0, 0), (u64::MAX, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            let times = [word, long].map(Duration::from_nanos);
            let remote = links(times[0], times[1], 8 << 20, 2, 2).remote;
            assert!(remote.latency_ns >= 1_000 && remote.bytes_per_s >= 10_000);
        }
    }
}

//! How long an algorithm should take: a closed formula per kind and algorithm.
//!
//! Owns the model and nothing else; never measures. Used by [`super::tuning::choose`].
//!
//! The model is Hockney's (a message costs latency plus bytes over bandwidth), with a cost per
//! message as in LogP and a cost per reduced byte. All numbers are integers and every step rounds
//! the same way everywhere, so that ranks that were given the same costs predict the same times.
//!
//! What it leaves out: late ranks, the first touch of memory, caches, congestion beyond the links
//! of a host.

use super::Algorithm;
use super::blocks::{ceil_log2, floor_log2};
use super::topology::Topology;
use super::tuning::is_supported;
use crate::call::CollectiveKind;
use bincode::{Decode, Encode};

/// What a message costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Link {
    /// α: from the start of an empty message to its arrival.
    pub latency_ns: u64,
    /// For each further message that a rank sends or receives at the same time.
    pub message_ns: u64,
    /// 1/β: of one direction.
    pub bytes_per_s: u64,
}

/// What moving and reducing costs; all ranks must be given the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct LinkCost {
    /// Between ranks of a host; every rank has it to itself.
    pub local: Link,
    /// Between hosts; the ranks of a host share it.
    pub remote: Link,
    /// 1/γ: bytes of one operand that a rank reduces; copies are counted as fast.
    pub reduce_bytes_per_s: u64,
}

impl Default for LinkCost {
    /// Round figures for shared memory inside and 10 Gbit/s TCP between hosts. Assumed, not
    /// measured: good for the order of algorithms, not for times.
    fn default() -> Self {
        Self {
            local: Link { latency_ns: 1_000, message_ns: 200, bytes_per_s: 5_000_000_000 },
            remote: Link { latency_ns: 30_000, message_ns: 3_000, bytes_per_s: 1_250_000_000 },
            reduce_bytes_per_s: 8_000_000_000,
        }
    }
}

/// How much longer bytes take that several hosts send into one port at once. Measured over shaped
/// TCP links among 8 hosts at 60 Mbit/s: 10 to 60, more with more bytes.
const CONGESTION_PERCENT: u128 = 25;

/// How much longer bytes take in exchanges at doubling distance than around a ring. Measured there
/// as well: 5 to 17.
const UNEVEN_PERCENT: u128 = 10;

/// Predicted time in nanoseconds; `None` if the kind has no such algorithm.
///
/// `bytes` are those of the count that [`Shape`](super::Shape) describes: the vector for
/// `all_reduce`, `broadcast` and `reduce`, a rank's block for the rest, a pair's block for
/// `all_to_all`. Where blocks are uneven, give the mean, or anything that all ranks know.
pub fn cost(
    kind: CollectiveKind,
    algorithm: Algorithm,
    bytes: u64,
    topology: &Topology,
    links: &LinkCost,
) -> Option<u64> {
    use Algorithm as A;
    use CollectiveKind as K;
    if !is_supported(kind, algorithm) {
        return None;
    }
    let model = Model::new(topology, links);
    if model.ranks == 1 {
        return Some(0);
    }
    let (ranks, bytes) = (u64::from(model.ranks), u128::from(bytes));
    let others = u128::from(ranks - 1);
    let block = bytes.div_ceil(u128::from(ranks));
    Some(match (kind, algorithm) {
        (K::AllReduce, _) => model.all_reduce(algorithm, bytes),
        (K::AllGather | K::AllToAll, A::Direct) => model.everybody(bytes),
        (K::AllGather, A::RecursiveDoubling) => {
            let copy = model.reduction(bytes);
            sum([copy, model.dissemination(|blocks| blocks * bytes)])
        }
        (K::AllGather, _) => model.around(bytes),
        (K::AllToAll, _) => sum([model.reduction(bytes), model.pairwise(bytes)]),
        (K::Barrier, A::Direct) => model.everybody(0),
        (K::Barrier, _) => model.dissemination(|_| 0),
        (K::Broadcast, A::Direct) | (K::Gather | K::Scatter, _) => model.one_to_all(bytes),
        (K::Broadcast, A::Ring) => sum([model.one_to_all(block), model.around(block)]),
        (K::Broadcast, _) => model.tree(bytes),
        (K::Reduce, A::Direct) => {
            sum([model.one_to_all(bytes), model.reduction((others + 1) * bytes)])
        }
        (K::Reduce, A::Ring) => {
            // One pass more, because the input is copied before it is reduced into.
            let reduction = model.reduction(others * block + bytes);
            sum([model.around(block), reduction, model.one_to_all(block)])
        }
        (K::Reduce, _) => {
            // One pass more, because the input is copied before it is reduced into.
            sum([model.tree(bytes), model.reduction((model.doublings() + 1) * bytes)])
        }
        (K::ReduceScatter, A::Direct) => {
            sum([model.everybody(bytes), model.reduction((others + 1) * bytes)])
        }
        (K::ReduceScatter, _) => sum([model.around(bytes), model.reduction(others * bytes)]),
        (K::SendRecv | K::Split, _) => return None,
    })
}

struct Model<'a> {
    links: &'a LinkCost,
    topology: &'a Topology,
    ranks: u32,
    /// Ranks of the fullest host.
    local_ranks: u32,
    hosts: u32,
}

impl<'a> Model<'a> {
    fn new(topology: &'a Topology, links: &'a LinkCost) -> Self {
        Self {
            links,
            topology,
            ranks: topology.world_size(),
            local_ranks: topology.ranks_per_host_max(),
            hosts: topology.host_count(),
        }
    }

    fn all_reduce(&self, algorithm: Algorithm, bytes: u128) -> u64 {
        let others = u128::from(self.ranks - 1);
        let block = bytes.div_ceil(u128::from(self.ranks));
        match algorithm {
            Algorithm::Direct => {
                let exchange = self.everybody(block);
                // One pass more for the copy from scratch.
                sum([exchange, self.reduction((others + 1) * block), exchange])
            }
            Algorithm::HalvingDoubling => self.core(bytes, |level| 2 * (bytes >> (level + 1)), 2),
            Algorithm::Hierarchical => self.hierarchical(bytes),
            Algorithm::Node => u64::MAX,
            Algorithm::RecursiveDoubling => {
                sum([self.core(bytes, |_| bytes, 1), self.reduction(bytes)])
            }
            Algorithm::Ring => {
                let around = self.around(block);
                sum([around, self.reduction(others * block), around])
            }
            Algorithm::Tree => {
                let tree = self.tree(bytes);
                sum([tree, self.reduction(self.doublings() * bytes), tree])
            }
        }
    }

    /// Exchanges at doubling distance among the power of two, extra ranks before and after.
    /// `moved`: bytes of a level, each way, in `messages` messages one after the other.
    fn core(&self, bytes: u128, moved: impl Fn(u32) -> u128, messages: u64) -> u64 {
        let levels = floor_log2(self.ranks);
        let mut total = 0;
        for level in 0..levels {
            let flows = self.topology.exchange_flows(level);
            let wire = self.shared(flows, self.uneven(flows, moved(level)));
            let more = self.link(flows == 0).latency_ns.saturating_mul(messages - 1);
            total = sum([total, wire, more, self.reduction(moved(level) / u128::from(messages))]);
        }
        if self.ranks.is_power_of_two() {
            return total;
        }
        let extra = self.shared(self.topology.exchange_flows(levels), bytes);
        sum([total, extra, self.reduction(bytes), extra])
    }

    /// Bytes of an exchange with one partner after the other, which waits for the slower one each
    /// time, while links stand still; around a ring, chunks flow on.
    fn uneven(&self, flows: u32, bytes: u128) -> u128 {
        if flows == 0 { bytes } else { (bytes * (100 + UNEVEN_PERCENT)).div_ceil(100) }
    }

    fn hierarchical(&self, bytes: u128) -> u64 {
        let levels = ceil_log2(self.local_ranks);
        let local = self.transfer(&self.links.local, 1, bytes).saturating_mul(levels.into());
        let hosts = u128::from(self.hosts);
        let block = bytes.div_ceil(hosts);
        let steps = u64::from(self.hosts - 1);
        let remote = self.transfer(&self.links.remote, 1, block).saturating_mul(steps);
        let reduced = u128::from(levels) * bytes + (hosts - 1) * block;
        sum([local, local, self.reduction(reduced), remote, remote])
    }

    /// A binomial tree, one way.
    fn tree(&self, bytes: u128) -> u64 {
        let level = |level| self.shared(self.topology.tree_flows(level), bytes);
        (0..ceil_log2(self.ranks)).map(level).fold(0, u64::saturating_add)
    }

    /// `n - 1` steps of a ring in which each host has one way out and one in. All blocks cross
    /// each link, but on its way a block meets no more links between hosts than there are hosts.
    fn around(&self, bytes: u128) -> u64 {
        let far = if self.hosts == 1 { 0 } else { self.steps().min(self.hosts.into()) };
        let near = self.steps() - far;
        let slowest = self.link(self.hosts == 1).bytes_per_s;
        sum([
            self.links.remote.latency_ns.saturating_mul(far),
            self.links.local.latency_ns.saturating_mul(near),
            transfer_ns(u128::from(self.steps()) * bytes, slowest),
        ])
    }

    /// `n - 1` steps in which everybody has another partner.
    fn pairwise(&self, bytes: u128) -> u64 {
        let latency = self.link(self.hosts == 1).latency_ns.saturating_mul(self.steps());
        sum([latency, self.traffic(bytes)])
    }

    /// `ceil(log2 n)` steps; step `k` moves `moved(min(2^k, n - 2^k))` bytes.
    fn dissemination(&self, moved: impl Fn(u128) -> u128) -> u64 {
        let step = |level: u32| {
            let distance = 1_u32 << level;
            let bytes = moved(u128::from(distance.min(self.ranks - distance)));
            self.shared(self.topology.shift_flows(level), bytes)
        };
        (0..ceil_log2(self.ranks)).map(step).fold(0, u64::saturating_add)
    }

    /// Everybody sends `bytes` to everybody at once.
    fn everybody(&self, bytes: u128) -> u64 {
        // A rank sends and receives as many.
        let messages = 2 * self.steps() - 1;
        sum([self.transfer(self.link(self.hosts == 1), messages, 0), self.traffic(bytes)])
    }

    /// What everybody's `bytes` to everybody take on the links.
    fn traffic(&self, bytes: u128) -> u64 {
        let (near, far) = (u128::from(self.local_ranks - 1), self.ranks - self.local_ranks);
        let inside = transfer_ns(near * bytes, self.links.local.bytes_per_s);
        let far_bytes = u128::from(self.local_ranks) * u128::from(far) * bytes;
        // Several hosts send into one port at once: its queue overflows, and senders back off.
        let percent = if self.hosts > 2 { 100 + CONGESTION_PERCENT } else { 100 };
        let far_bytes = (far_bytes * percent).div_ceil(100);
        inside.max(transfer_ns(far_bytes, self.links.remote.bytes_per_s))
    }

    /// One rank, on a host as full as the mean, sends `bytes` to, or receives them from, every
    /// other.
    fn one_to_all(&self, bytes: u128) -> u64 {
        let local_ranks = self.ranks.div_ceil(self.hosts);
        let (near, far) = (local_ranks - 1, self.ranks - local_ranks);
        let inside = transfer_ns(u128::from(near) * bytes, self.links.local.bytes_per_s);
        let outside = transfer_ns(u128::from(far) * bytes, self.links.remote.bytes_per_s);
        let link = self.link(self.hosts == 1);
        sum([self.transfer(link, self.steps(), 0), inside.max(outside)])
    }

    /// A message of each rank; `flows` of them share the way out of a host.
    fn shared(&self, flows: u32, bytes: u128) -> u64 {
        self.transfer(self.link(flows == 0), 1, bytes * u128::from(flows.max(1)))
    }

    fn link(&self, is_local: bool) -> &Link {
        if is_local { &self.links.local } else { &self.links.remote }
    }

    fn transfer(&self, link: &Link, messages: u64, bytes: u128) -> u64 {
        let more = link.message_ns.saturating_mul(messages - 1);
        sum([link.latency_ns, more, transfer_ns(bytes, link.bytes_per_s)])
    }

    fn reduction(&self, bytes: u128) -> u64 {
        transfer_ns(bytes, self.links.reduce_bytes_per_s)
    }

    fn steps(&self) -> u64 {
        u64::from(self.ranks - 1)
    }

    fn doublings(&self) -> u128 {
        u128::from(ceil_log2(self.ranks))
    }
}

/// Rounded up; "never" if it does not fit.
fn transfer_ns(bytes: u128, bytes_per_s: u64) -> u64 {
    let time = bytes.saturating_mul(1_000_000_000).div_ceil(u128::from(bytes_per_s.max(1)));
    u64::try_from(time).unwrap_or(u64::MAX)
}

fn sum<const N: usize>(parts: [u64; N]) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

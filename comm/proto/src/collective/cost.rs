//! How long an algorithm should take: a closed formula per kind and algorithm.
//!
//! Owns the model and nothing else; never measures. Used by [`super::tuning::choose`].
//!
//! The model is Hockney's (a message costs latency plus bytes over bandwidth), with a cost per
//! message as in LogP and a cost per reduced byte. All numbers are integers and every step rounds
//! the same way everywhere, so that ranks that were given the same costs predict the same times.
//!
//! What it leaves out: late ranks, the first touch of memory, caches, congestion beyond the link
//! of a host that its ranks share.

use super::Algorithm;
use super::blocks::{ceil_log2, floor_log2};
use super::topology::Topology;
use super::tuning::is_supported;
use crate::call::CollectiveKind;

/// What a message costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// α: from the start of an empty message to its arrival.
    pub latency_ns: u64,
    /// For each further message that a rank sends or receives at the same time.
    pub message_ns: u64,
    /// 1/β: of one direction.
    pub bytes_per_s: u64,
}

/// What moving and reducing costs; all ranks must be given the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkCost {
    /// Between ranks of a host; every rank has it to itself.
    pub local: Link,
    /// Between hosts; the ranks of a host share it.
    pub remote: Link,
    /// 1/γ: bytes of one operand that a rank reduces.
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
        (K::AllGather | K::AllToAll | K::Barrier, A::Direct) => model.everybody(bytes),
        (K::AllGather, A::RecursiveDoubling) => model.dissemination(|blocks| blocks * bytes),
        (K::AllGather, _) => model.around(bytes),
        (K::AllToAll, _) => model.pairwise(bytes),
        (K::Barrier, _) => model.dissemination(|_| 0),
        (K::Broadcast, A::Direct) | (K::Gather | K::Scatter, _) => model.one_to_all(bytes),
        (K::Broadcast, A::Ring) => sum([model.one_to_all(block), model.around(block)]),
        (K::Broadcast, _) => model.tree(bytes),
        (K::Reduce, A::Direct) => sum([model.one_to_all(bytes), model.reduction(others * bytes)]),
        (K::Reduce, A::Ring) => {
            let reduction = model.reduction(others * block);
            sum([model.around(block), reduction, model.one_to_all(block)])
        }
        (K::Reduce, _) => sum([model.tree(bytes), model.reduction(model.doublings() * bytes)]),
        (K::ReduceScatter, A::Direct) => {
            sum([model.everybody(bytes), model.reduction(others * bytes)])
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
                sum([exchange, self.reduction(others * block), exchange])
            }
            Algorithm::HalvingDoubling => self.core(bytes, |level| 2 * (bytes >> (level + 1)), 2),
            Algorithm::Hierarchical => self.hierarchical(bytes),
            Algorithm::Node => u64::MAX,
            Algorithm::RecursiveDoubling => self.core(bytes, |_| bytes, 1),
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
            let wire = self.doubling(level, self.local_ranks, moved(level));
            let (latency, reduced) = (self.latency(self.is_local(level)), moved(level));
            let reduction = self.reduction(reduced / u128::from(messages));
            total = sum([total, wire, latency.saturating_mul(messages - 1), reduction]);
        }
        if self.ranks.is_power_of_two() {
            return total;
        }
        let extra = self.doubling(levels, self.local_ranks, bytes);
        sum([total, extra, self.reduction(bytes), extra])
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
        // Distances are not a power of two from the root's host on, so hosts rarely align.
        let crossing = if self.hosts == 1 { 0 } else { ceil_log2(self.ranks) };
        let crossing = crossing.saturating_sub(self.topology.local_levels());
        let local = ceil_log2(self.ranks) - crossing;
        let far = self.transfer(&self.links.remote, 1, bytes).saturating_mul(crossing.into());
        let near = self.transfer(&self.links.local, 1, bytes).saturating_mul(local.into());
        sum([far, near])
    }

    /// `n - 1` steps of a ring in which each host has one way out and one in.
    fn around(&self, bytes: u128) -> u64 {
        self.transfer(self.link(self.hosts == 1), 1, bytes).saturating_mul(self.steps())
    }

    /// `n - 1` steps in which everybody has another partner.
    fn pairwise(&self, bytes: u128) -> u64 {
        let shared = if self.hosts == 1 { 1 } else { u128::from(self.local_ranks) };
        self.transfer(self.link(self.hosts == 1), 1, shared * bytes).saturating_mul(self.steps())
    }

    /// `ceil(log2 n)` steps; step `k` moves `moved(min(2^k, n - 2^k))` bytes.
    fn dissemination(&self, moved: impl Fn(u128) -> u128) -> u64 {
        let mut total = 0;
        for level in 0..ceil_log2(self.ranks) {
            let distance = 1 << level;
            let bytes = moved(u128::from(distance.min(self.ranks - distance)));
            let shared = u128::from(self.local_ranks.min(distance));
            let is_local = self.hosts == 1;
            let bytes = if is_local { bytes } else { shared * bytes };
            total = sum([total, self.transfer(self.link(is_local), 1, bytes)]);
        }
        total
    }

    /// Everybody sends `bytes` to everybody at once.
    fn everybody(&self, bytes: u128) -> u64 {
        let (near, far) = (self.local_ranks - 1, self.ranks - self.local_ranks);
        let near_bytes = u128::from(near) * bytes;
        if self.hosts == 1 {
            return self.transfer(&self.links.local, near.into(), near_bytes);
        }
        let far_bytes = u128::from(self.local_ranks) * u128::from(far) * bytes;
        let inside = transfer_ns(near_bytes, self.links.local.bytes_per_s);
        sum([self.transfer(&self.links.remote, self.steps(), far_bytes), inside])
    }

    /// One rank sends `bytes` to, or receives them from, every other.
    fn one_to_all(&self, bytes: u128) -> u64 {
        let (near, far) = (self.local_ranks - 1, self.ranks - self.local_ranks);
        let near_bytes = u128::from(near) * bytes;
        if self.hosts == 1 {
            return self.transfer(&self.links.local, near.into(), near_bytes);
        }
        let inside = transfer_ns(near_bytes, self.links.local.bytes_per_s);
        let far_bytes = u128::from(far) * bytes;
        sum([self.transfer(&self.links.remote, self.steps(), far_bytes), inside])
    }

    fn doubling(&self, level: u32, shared: u32, bytes: u128) -> u64 {
        if self.is_local(level) {
            return self.transfer(&self.links.local, 1, bytes);
        }
        self.transfer(&self.links.remote, 1, bytes * u128::from(shared))
    }

    fn is_local(&self, level: u32) -> bool {
        self.hosts == 1 || level < self.topology.local_levels()
    }

    fn link(&self, is_local: bool) -> &Link {
        if is_local { &self.links.local } else { &self.links.remote }
    }

    fn latency(&self, is_local: bool) -> u64 {
        self.link(is_local).latency_ns
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

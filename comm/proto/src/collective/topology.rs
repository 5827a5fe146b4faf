//! Which ranks share a host, as far as plans and predictions care.
//!
//! Owns nothing that changes: made once per communicator, from what its ranks told one another,
//! so that all have the same.

use super::blocks::{Group, ceil_log2, floor_log2};
use crate::id::Rank;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// The hosts of a communicator's ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    hosts: Vec<u32>,
    host_count: u32,
    ranks_per_host_max: u32,
    /// By level: messages out of the busiest host when each index meets the one `2^level` away.
    exchange_flows: Vec<u32>,
    /// The same when each rank sends to the one `2^level` on.
    shift_flows: Vec<u32>,
    /// The same for the edges of one level of a binomial tree from index 0.
    tree_flows: Vec<u32>,
    /// Ranks host by host, unless that is the order they have.
    order: Option<Vec<Rank>>,
}

impl Topology {
    /// `hosts[r]` is the host of rank `r`, any number that its other ranks have too.
    ///
    /// # Panics
    /// If there is no rank, or more than 2^32 - 1.
    pub fn new(hosts: Vec<u32>) -> Self {
        assert!(!hosts.is_empty(), "a communicator has at least one rank");
        let world_size = u32::try_from(hosts.len()).expect("ranks are counted in 32 bits");
        let mut by_host: BTreeMap<u32, Vec<Rank>> = BTreeMap::new();
        for (rank, host) in (0..world_size).zip(&hosts) {
            by_host.entry(*host).or_default().push(rank);
        }
        let mut groups: Vec<Vec<Rank>> = by_host.into_values().collect();
        groups.sort_unstable_by_key(|ranks| ranks[0]);
        let count = |len: usize| u32::try_from(len).expect("no more than the ranks");
        let host_count = count(groups.len());
        let largest = groups.iter().map(Vec::len).max().unwrap_or(0);
        let order = groups.concat();
        let core = 1 << floor_log2(world_size);
        let host_at = |index: u32| hosts[order[index as usize] as usize];
        let exchange = |level: u32| {
            // The level beyond the last is the way of the ranks beyond the power of two.
            let is_met = |index: &u32| (*index ^ (1 << level)) < core.max(1 << level);
            let pairs = (0..world_size).filter(is_met).map(|index| (index, index ^ (1 << level)));
            let pairs = pairs.filter(|(_, other)| *other < world_size);
            busiest(pairs.map(|(index, other)| (host_at(index), host_at(other))))
        };
        let shift = |level: u32| {
            let to = |rank| Group::world(rank, world_size).after(1 << level) as usize;
            busiest((0..world_size).map(|rank| (hosts[rank as usize], hosts[to(rank)])))
        };
        let tree = |level: u32| {
            let step = 1_u64 << level;
            let parents = (0..u64::from(world_size).saturating_sub(step)).step_by(2 << level);
            let index = |n: u64| u32::try_from(n).expect("below the world size");
            busiest(parents.map(|n| (host_at(index(n)), host_at(index(n + step)))))
        };
        let exchange_flows = (0..=floor_log2(world_size)).map(exchange).collect();
        let shift_flows = (0..ceil_log2(world_size)).map(shift).collect();
        let tree_flows = (0..ceil_log2(world_size)).map(tree).collect();
        Self {
            host_count,
            ranks_per_host_max: count(largest),
            exchange_flows,
            shift_flows,
            tree_flows,
            order: (!order.is_sorted()).then_some(order),
            hosts,
        }
    }

    /// All ranks on one host.
    ///
    /// # Panics
    /// If `world_size` is 0.
    pub fn single_host(world_size: u32) -> Self {
        Self::new(vec![0; world_size as usize])
    }

    /// Ranks.
    pub fn world_size(&self) -> u32 {
        u32::try_from(self.hosts.len()).expect("checked by new")
    }

    /// The host of each rank.
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// Different hosts.
    pub fn host_count(&self) -> u32 {
        self.host_count
    }

    /// Ranks of the fullest host.
    pub fn ranks_per_host_max(&self) -> u32 {
        self.ranks_per_host_max
    }

    /// Messages that leave the busiest host when, in [`Topology::group`]'s order, each index
    /// below the power of two meets `index ^ 2^level`; for the last level, which reaches beyond
    /// it, when the ranks beyond meet their partners.
    pub(super) fn exchange_flows(&self, level: u32) -> u32 {
        self.exchange_flows[level as usize]
    }

    /// Messages that leave the busiest host when each rank sends to `rank + 2^level`.
    pub(super) fn shift_flows(&self, level: u32) -> u32 {
        self.shift_flows[level as usize]
    }

    /// Messages that leave the busiest host in a level of a binomial tree from index 0.
    pub(super) fn tree_flows(&self, level: u32) -> u32 {
        self.tree_flows[level as usize]
    }

    /// All ranks, host by host, so that neighbours share a host where they can.
    ///
    /// # Panics
    /// If `rank` is not one of them.
    pub fn group(&self, rank: Rank) -> Group<'_> {
        match &self.order {
            None => Group::world(rank, self.world_size()),
            Some(order) => Group::listed(rank, order).expect("the order holds every rank"),
        }
    }
}

/// Of messages from host to host, how many leave the one that most leave; 0 if all stay inside.
fn busiest(messages: impl Iterator<Item = (u32, u32)>) -> u32 {
    let mut flows: BTreeMap<u32, u32> = BTreeMap::new();
    for (from, _) in messages.filter(|(from, to)| from != to) {
        *flows.entry(from).or_insert(0) += 1;
    }
    flows.into_values().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_come_in_turns_are_put_together() {
        let topology = Topology::new(vec![5, 2, 5, 2, 5, 2, 5, 2]);
        assert_eq!((topology.world_size(), topology.host_count()), (8, 2));
        assert_eq!(topology.ranks_per_host_max(), 4);
        assert_eq!([0, 1, 2].map(|level| topology.exchange_flows(level)), [0, 0, 4]);
        assert_eq!([0, 1, 2].map(|level| topology.shift_flows(level)), [4, 0, 0]);
        assert_eq!([0, 1, 2].map(|level| topology.tree_flows(level)), [0, 0, 1]);
        let group = topology.group(2);
        let order: Vec<_> = (0..8).map(|index| group.rank_at(index)).collect();
        assert_eq!(order, [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!((group.index(), group.index_of(3)), (1, Some(5)));
    }

    #[test]
    fn ranks_in_order_stay() {
        let topology = Topology::new(vec![9, 9, 1, 1, 1]);
        assert_eq!(topology.group(3).rank_at(4), 4);
        assert_eq!(topology.ranks_per_host_max(), 3);
        // 0-1, 2-3 | 0-2, 1-3 | the extra: 4-0
        assert_eq!([0, 1, 2].map(|level| topology.exchange_flows(level)), [0, 2, 1]);
        assert_eq!(Topology::single_host(6).exchange_flows(1), 0);
    }
}

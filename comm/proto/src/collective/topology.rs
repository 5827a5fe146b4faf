//! Which ranks share a host, as far as plans and predictions care.
//!
//! Owns nothing that changes: made once per communicator, from what its ranks told one another,
//! so that all have the same.

use super::blocks::Group;
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
    local_levels: u32,
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
        let even = groups.iter().all(|ranks| ranks.len() == largest);
        let order = groups.concat();
        Self {
            hosts,
            host_count,
            ranks_per_host_max: count(largest),
            local_levels: if even { largest.trailing_zeros() } else { 0 },
            order: (!order.is_sorted()).then_some(order),
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

    /// How many doublings of distance stay inside every host, in [`Topology::group`]'s order.
    pub fn local_levels(&self) -> u32 {
        self.local_levels
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_come_in_turns_are_put_together() {
        let topology = Topology::new(vec![5, 2, 5, 2, 5, 2, 5, 2]);
        assert_eq!((topology.world_size(), topology.host_count()), (8, 2));
        assert_eq!((topology.ranks_per_host_max(), topology.local_levels()), (4, 2));
        let group = topology.group(2);
        let order: Vec<_> = (0..8).map(|index| group.rank_at(index)).collect();
        assert_eq!(order, [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!((group.index(), group.index_of(3)), (1, Some(5)));
    }

    #[test]
    fn ranks_in_order_stay() {
        let topology = Topology::new(vec![9, 9, 1, 1, 1]);
        assert_eq!(topology.group(3).rank_at(4), 4);
        assert_eq!((topology.ranks_per_host_max(), topology.local_levels()), (3, 0));
        assert_eq!(Topology::single_host(6).local_levels(), 1);
    }
}

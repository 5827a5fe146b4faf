//! Inside each host, then between hosts, then inside again: each host's link carries one vector,
//! not one per rank.
//!
//! ```text
//! host A  0 <- 1 <- 3     0 ==ring==+     0 -> 1 -> 3
//! host B  2 <- 4          2 ==ring==+     2 -> 4
//! host C  5               5 ==ring==+     5
//! ```
//!
//! The lowest rank of a host leads it. Per rank, for `c` elements, `h` hosts, and `t` the cost of
//! [`super::tree`] over the host's ranks, `r` that of [`super::ring`] over the leaders:
//!
//! | | longest chain of steps | elements sent |
//! |---|---|---|
//! | leader | `2 ceil(log2 ranks) + 2(h-1)` | `t(broadcast) + r(all-reduce)` |
//! | others | `2 ceil(log2 ranks)` and the leaders' ring | `t(reduce) + t(broadcast)` |
//!
//! Hosts may have any number of ranks, and ranks may be anywhere.
//!
//! Source: the textbook two-level scheme; see A. Faraj and X. Yuan, ICS 2005, and A. Sergeev and
//! M. Del Balso, arXiv 1802.05799.

use super::blocks::Group;
use super::plan::{Plan, Span};
use super::{ring, tree};
use crate::id::Rank;
use alloc::vec::Vec;

/// All-reduce of `count` elements in place; `hosts[r]` is the host of rank `r`.
///
/// # Panics
/// If `rank` has no host.
pub fn all_reduce(rank: Rank, hosts: &[u32], count: u64) -> Plan {
    let mut plan = Plan::default();
    let vector = Span::output(0, count);
    let host = hosts[rank as usize];
    let ranks = || (0..).zip(hosts);
    let members: Vec<Rank> = ranks().filter(|(_, h)| **h == host).map(|(r, _)| r).collect();
    let group = Group::listed(rank, &members).expect("a rank is on its own host");
    let leaders = leaders(hosts);
    tree::reduce_rounds(&mut plan, &group, 0, 0, vector);
    if let Some(leading) = Group::listed(rank, &leaders) {
        ring::all_reduce_rounds(&mut plan, &leading, 2 * tree::TAGS, count);
    }
    tree::broadcast_rounds(&mut plan, &group, 0, tree::TAGS, vector);
    plan
}

/// The lowest rank of each host, ascending.
pub(super) fn leaders(hosts: &[u32]) -> Vec<Rank> {
    let mut seen = alloc::collections::BTreeSet::new();
    (0..).zip(hosts).filter(|(_, host)| seen.insert(**host)).map(|(rank, _)| rank).collect()
}

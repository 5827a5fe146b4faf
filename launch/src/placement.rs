//! Decides which host each rank runs on.
//!
//! Owns the rule, which is pure: hosts' slots are filled in the order given, a host's ranks are
//! consecutive. Never starts anything. Called by `command::run`.

use std::fmt;

use crate::hostfile::{Host, Origin};

/// What the user asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Request {
    /// Number of ranks, if said.
    pub rank_count: Option<u32>,
    /// Ranks a host takes, in place of its slots, if said.
    pub ranks_per_host: Option<u32>,
    /// Whether hosts may take more ranks than they have slots.
    pub oversubscribe: bool,
}

/// Where one rank runs. A placement is a list of these, indexed by rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index into the hosts.
    pub host: usize,
    /// Number of this rank among those of its host.
    pub local_rank: u32,
    /// Number of ranks on its host.
    pub local_world_size: u32,
}

/// Why ranks cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlacementError {
    /// More ranks than the hosts take.
    NotEnoughSlots {
        /// Ranks asked for.
        rank_count: u32,
        /// Ranks all hosts take.
        slots: u64,
        /// Whether oversubscription was asked for, and its limits are what is in the way.
        oversubscribe: bool,
    },
    /// Nothing says how many ranks to start.
    NoRankCount,
    /// A rank would run on another host.
    RemoteHost {
        /// The host.
        name: String,
        /// Where it is named.
        origin: Origin,
        /// The first rank that would run there.
        rank: u32,
    },
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEnoughSlots { rank_count, slots, oversubscribe: false } => write!(
                f,
                "{rank_count} ranks asked for, but the hosts have {slots} slots in all (a host \
                 without a count has 1); raise the counts or pass --oversubscribe"
            ),
            Self::NotEnoughSlots { rank_count, slots, oversubscribe: true } => {
                write!(f, "{rank_count} ranks asked for, but max_slots allows {slots} in all")
            }
            Self::NoRankCount => {
                write!(f, "how many ranks? pass -n N (or --nproc-per-node N, or hosts with slots)")
            }
            Self::RemoteHost { name, origin, rank } => write!(
                f,
                "{origin}: rank {rank} would run on '{name}', but starting ranks on another host \
                 over ssh is not supported yet; use localhost, or start each host's ranks with \
                 RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand"
            ),
        }
    }
}

impl std::error::Error for PlacementError {}

/// Places the ranks of `request` on `hosts`; no hosts means this one, with as many slots as are
/// needed. Without a rank count every slot gets a rank. With `oversubscribe` the ranks beyond
/// the slots are dealt one by one to the hosts in order, within `max_slots`.
///
/// # Errors
/// There is no rank count to be had, or there are too few slots.
pub fn place(request: Request, hosts: &[Host]) -> Result<Vec<Place>, PlacementError> {
    if hosts.is_empty() {
        let limit = request.ranks_per_host;
        let count = request.rank_count.or(limit).ok_or(PlacementError::NoRankCount)?;
        if let Some(limit) = limit.filter(|limit| *limit < count && !request.oversubscribe) {
            let slots = u64::from(limit);
            return Err(PlacementError::NotEnoughSlots {
                rank_count: count,
                slots,
                oversubscribe: false,
            });
        }
        return Ok(number_ranks(&[count]));
    }
    let slots: Vec<u32> = hosts.iter().map(|h| request.ranks_per_host.unwrap_or(h.slots)).collect();
    let slots_total: u64 = slots.iter().copied().map(u64::from).sum();
    let wanted = request.rank_count.map_or(slots_total, u64::from);
    let rank_count = u32::try_from(wanted).unwrap_or(u32::MAX);
    let mut left = rank_count;
    let mut counts: Vec<u32> = Vec::with_capacity(hosts.len());
    for slots in slots {
        counts.push(slots.min(left));
        left -= slots.min(left);
    }
    if left > 0 && !request.oversubscribe {
        return Err(PlacementError::NotEnoughSlots {
            rank_count,
            slots: slots_total,
            oversubscribe: false,
        });
    }
    while left > 0 {
        let left_before = left;
        for (count, host) in counts.iter_mut().zip(hosts) {
            if left > 0 && host.slots_max.is_none_or(|limit| *count < limit) {
                *count += 1;
                left -= 1;
            }
        }
        if left == left_before {
            let slots = u64::from(rank_count - left);
            return Err(PlacementError::NotEnoughSlots { rank_count, slots, oversubscribe: true });
        }
    }
    Ok(number_ranks(&counts))
}

/// Checks that every rank is on this host, which is all the launcher can start on today.
///
/// # Errors
/// The first rank that is not, with the host and where it was named.
pub fn require_local(places: &[Place], hosts: &[Host]) -> Result<(), PlacementError> {
    for (rank, place) in (0..).zip(places) {
        if let Some(host) = hosts.get(place.host).filter(|host| !host.is_local) {
            let (name, origin) = (host.name.clone(), host.origin.clone());
            return Err(PlacementError::RemoteHost { name, origin, rank });
        }
    }
    Ok(())
}

/// Ranks in host order, `counts[host]` of them each.
fn number_ranks(counts: &[u32]) -> Vec<Place> {
    let on_host = |(host, &count): (usize, &u32)| {
        (0..count).map(move |local_rank| Place { host, local_rank, local_world_size: count })
    };
    counts.iter().enumerate().flat_map(on_host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: u32, slots_max: Option<u32>) -> Host {
        let origin = Origin::List { entry: 1 };
        Host { name: name.to_owned(), slots, slots_max, is_local: name == "here", origin }
    }

    fn request(rank_count: Option<u32>) -> Request {
        Request { rank_count, ..Request::default() }
    }

    /// Ranks per host, after checking that the numbering is consistent.
    fn counts(request: Request, hosts: &[Host]) -> Result<Vec<u32>, PlacementError> {
        let places = place(request, hosts)?;
        let mut counts = vec![0; hosts.len().max(1)];
        let mut host_before = 0;
        for place in &places {
            assert!(place.host >= host_before, "ranks of a host are consecutive");
            assert_eq!(place.local_rank, counts[place.host]);
            host_before = place.host;
            counts[place.host] += 1;
        }
        for place in &places {
            assert_eq!(place.local_world_size, counts[place.host]);
        }
        Ok(counts)
    }

    #[test]
    fn without_hosts_any_number_is_fine() {
        assert_eq!(counts(request(Some(9)), &[]).unwrap(), [9]);
        assert_eq!(place(request(None), &[]), Err(PlacementError::NoRankCount));
        let per_host = Request { ranks_per_host: Some(3), ..Request::default() };
        assert_eq!(counts(per_host, &[]).unwrap(), [3]);
        assert_eq!(counts(Request { rank_count: Some(2), ..per_host }, &[]).unwrap(), [2]);
        let too_many = place(Request { rank_count: Some(4), ..per_host }, &[]).unwrap_err();
        assert!(matches!(too_many, PlacementError::NotEnoughSlots { slots: 3, .. }));
    }

    #[test]
    fn slots_fill_in_order() {
        let hosts = [host("a", 2, None), host("b", 3, None)];
        assert_eq!(counts(request(Some(3)), &hosts).unwrap(), [2, 1]);
        assert_eq!(counts(request(None), &hosts).unwrap(), [2, 3]);
        let per_host = Request { ranks_per_host: Some(4), ..Request::default() };
        assert_eq!(counts(per_host, &hosts).unwrap(), [4, 4]);
        assert_eq!(counts(Request { rank_count: Some(6), ..per_host }, &hosts).unwrap(), [4, 2]);
    }

    #[test]
    fn too_many_ranks_need_permission() {
        let hosts = [host("a", 2, None), host("b", 1, None)];
        let error = place(request(Some(6)), &hosts).unwrap_err();
        assert!(error.to_string().contains("6 ranks asked for, but the hosts have 3 slots"));
        let allowed = Request { rank_count: Some(6), oversubscribe: true, ..Request::default() };
        assert_eq!(counts(allowed, &hosts).unwrap(), [4, 2]);
    }

    #[test]
    fn oversubscription_respects_max_slots() {
        let hosts = [host("a", 1, Some(2)), host("b", 1, Some(3))];
        let allowed =
            |n| Request { rank_count: Some(n), oversubscribe: true, ..Request::default() };
        assert_eq!(counts(allowed(5), &hosts).unwrap(), [2, 3]);
        let error = place(allowed(6), &hosts).unwrap_err();
        assert_eq!(error.to_string(), "6 ranks asked for, but max_slots allows 5 in all");
    }

    #[test]
    fn only_a_rank_on_another_host_is_refused() {
        let hosts = [host("here", 2, None), host("there", 2, None)];
        let fits = place(request(Some(2)), &hosts).unwrap();
        assert_eq!(require_local(&fits, &hosts), Ok(()));
        let spills = place(request(Some(3)), &hosts).unwrap();
        let error = require_local(&spills, &hosts).unwrap_err();
        assert!(
            matches!(&error, PlacementError::RemoteHost { name, rank: 2, .. } if name == "there")
        );
        assert!(error.to_string().contains("over ssh is not supported yet"));
    }
}

//! Sharing a segment among the ranks of each host, or deciding together to do without.

use super::{gather, wants_segment};
use crate::config::{Config, TransportChoice};
use crate::control::ControlPlane;
use crate::error::{Error, ErrorKind, Result};
use crate::time::now;
use crate::transport::shm::{NodeSegment, SegmentHost, ShmUnavailable};
use std::sync::Arc;
use std::time::Duration;
use syncline_proto::id::Rank;
use syncline_proto::time::Instant;

/// Ranks on one host beyond which rings between all pairs cost too much memory.
const LOCAL_RANKS_MAX: usize = 64;

/// How long sharing may take before ranks do without.
const SHARE_TIME: Duration = Duration::from_secs(20);

/// The segment of this rank's host. `None` on all ranks of a host, if it cannot be on one.
pub(super) fn share(
    config: &Config,
    control: &ControlPlane,
    hosts: &[u32],
    deadline: Instant,
) -> Result<Option<Arc<NodeSegment>>> {
    let rank = config.place.rank;
    let host = hosts[rank as usize];
    let local: Vec<Rank> = (0..).zip(hosts).filter(|(_, h)| **h == host).map(|(r, _)| r).collect();
    let wanted = wants_segment(config) && (2..=LOCAL_RANKS_MAX).contains(&local.len());
    let leads = local[0] == rank;

    // Everybody takes part in both rounds, also who needs no segment.
    let bound = (wanted && leads).then(SegmentHost::bind);
    let (name, segment_host, refusal) = match bound {
        Some(Ok((name, segment_host))) => (name, Some(segment_host), None),
        Some(Err(why)) => (String::new(), None, Some(why)),
        None => (String::new(), None, None),
    };
    let names: Vec<String> = gather(control, "naming segments", &name, deadline)?;
    let name = &names[local[0] as usize];
    let result = if !wanted {
        None
    } else if let Some(why) = refusal {
        Some(Err(why.to_string()))
    } else if name.is_empty() {
        Some(Err(format!("rank {} could not make it", local[0])))
    } else {
        let until = deadline.min(now() + SHARE_TIME);
        let joined = open(config, segment_host, name, &local, until);
        Some(joined.map_err(|why| why.to_string()))
    };

    let mine = result.as_ref().and_then(|r| r.as_ref().err().cloned()).unwrap_or_default();
    let reasons: Vec<String> = gather(control, "sharing segments", &mine, deadline)?;
    let failed = local.iter().find(|r| !reasons[**r as usize].is_empty());
    match (result, failed) {
        (Some(Ok(segment)), None) => Ok(Some(Arc::new(segment))),
        (None, _) => Ok(None),
        (Some(_), failed) => {
            let by = failed.copied().unwrap_or(rank);
            let why = format!("shared memory refused on rank {by}: {}", reasons[by as usize]);
            if config.transport == TransportChoice::Shm {
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
            if leads {
                tracing::warn!("{why}; ranks of this host use tcp");
            }
            Ok(None)
        }
    }
}

fn open(
    config: &Config,
    segment_host: Option<SegmentHost>,
    name: &str,
    local: &[Rank],
    until: Instant,
) -> std::result::Result<NodeSegment, ShmUnavailable> {
    let size = u32::try_from(local.len()).expect("few local ranks");
    let index = (0..size).zip(local).find(|(_, r)| **r == config.place.rank).map_or(0, |(i, _)| i);
    let secret = &config.secret.0;
    match segment_host {
        Some(segment_host) => segment_host.serve(size, secret, until),
        None => NodeSegment::join(name, index, size, secret, until),
    }
}

//! One process's part in one job: what all its communicators share, and its end.

use crate::bootstrap::{self, Joined, Peer};
use crate::config::Config;
use crate::control::{ControlPlane, HubThread};
use crate::engine::{Counters, Driver};
use crate::error::{Error, Result};
use crate::time::now;
use crate::transport::shm::NodeSegment;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use syncline_proto::call::Call;
use syncline_proto::collective::topology::Topology;
use syncline_proto::collective::tuning::LinkCost;
use syncline_proto::fault::Fault;
use syncline_proto::id::Rank;

/// How long the last data may take to leave at the end.
const FLUSH_TIME: Duration = Duration::from_secs(5);
/// How long the end waits for ranks that still work.
const LINGER: Duration = Duration::from_secs(10);
/// How long rank 0's end waits for the hub's last words.
const HUB_TIME: Duration = Duration::from_secs(2);

/// A joined job.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) config: Config,
    pub(crate) driver: Arc<Driver>,
    pub(crate) topology: Topology,
    pub(crate) segment: Option<Arc<NodeSegment>>,
    pub(crate) transport_names: Vec<&'static str>,
    /// What links between hosts cost, once measured.
    pub(crate) links: OnceLock<LinkCost>,
    control: Option<Arc<ControlPlane>>,
    hub: Mutex<Option<HubThread>>,
    peers: Vec<Peer>,
    /// The next communicator's number, as far as this rank knows.
    pub(crate) next_comm: AtomicU32,
    /// The next lane of this host's segment, as far as this rank knows.
    pub(crate) next_lane: AtomicU32,
}

impl Job {
    /// Joins.
    pub(crate) fn join(config: Config) -> Result<Self> {
        let joined = bootstrap::join(&config)?;
        let Joined { driver, control, hub, peers, topology, segment, transport_names } = joined;
        Ok(Self {
            config,
            driver,
            topology,
            segment,
            transport_names,
            links: OnceLock::new(),
            control,
            hub: Mutex::new(hub),
            peers,
            next_comm: AtomicU32::new(1),
            next_lane: AtomicU32::new(1),
        })
    }

    /// World rank of this process.
    pub(crate) fn rank(&self) -> Rank {
        self.config.place.rank
    }

    /// What a call of this rank returns for the job's fault.
    pub(crate) fn error(&self, call: Option<Call>, fault: Arc<Fault>) -> Error {
        let peer = fault.culprit.and_then(|culprit| self.describe(culprit));
        let error = Error::from_fault(self.rank(), call, fault);
        match peer {
            Some(peer) => error.peer(peer),
            None => error,
        }
    }

    /// Who a rank is.
    pub(crate) fn describe(&self, rank: Rank) -> Option<String> {
        let peer = self.peers.get(rank as usize)?;
        let Peer { host_name, pid, address, .. } = peer;
        Some(format!("rank {rank} is process {pid} on {host_name} ({address})"))
    }

    /// What this rank has moved.
    pub(crate) fn counters(&self) -> Counters {
        self.driver.counters()
    }

    /// Whether this host's ranks share memory that collectives may go through.
    pub(crate) fn may_use_lanes(&self) -> bool {
        self.segment.is_some() && self.config.pacing.is_none()
    }

    /// Whether links between hosts are to be measured, and were not yet: no call is made before.
    pub(crate) fn measures_links(&self) -> bool {
        let Config { pacing, calibrates, .. } = self.config;
        calibrates
            && pacing.is_none()
            && self.topology.host_count() > 1
            && self.links.get().is_none()
    }

    /// Raises the next communicator's number.
    pub(crate) fn reserve_comms(&self, next: u32) {
        self.next_comm.fetch_max(next, Ordering::SeqCst);
    }
}

impl Drop for Job {
    /// Leaves: lets the last data out, says goodbye, waits a bounded time for the others so that
    /// nobody's last call meets a closed door.
    fn drop(&mut self) {
        let panicking = std::thread::panicking();
        if !panicking {
            self.driver.flush(now() + FLUSH_TIME);
        }
        if let Some(control) = &self.control {
            control.leave(panicking);
            if !panicking && self.driver.fault().is_none() {
                control.inbox().wait_all_left(now() + LINGER);
            }
        }
        self.driver.close();
        // The engine holds it too.
        if let Some(control) = self.control.take() {
            control.close();
        }
        let hub = self.hub.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut hub) = hub {
            hub.join(now() + HUB_TIME);
        }
    }
}

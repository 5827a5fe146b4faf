//! The public face: a group of ranks and what they do together.

mod calibrate;
mod call;
mod collectives;
mod grade;
mod point_to_point;
mod request;
mod split;

pub use call::Explanation;
pub use request::{Request, wait_any};

use crate::config::Config;
use crate::determinism::Determinism;
use crate::engine::Counters;
use crate::error::Result;
use crate::job::Job;
use crate::transport::Class;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use syncline_proto::collective::topology::Topology;
use syncline_proto::id::{CommId, Rank};

/// A group of ranks with its own sequence of calls.
///
/// A handle: cloning it makes another handle to the same communicator. It may be shared between
/// threads; calls on one communicator get their order from the moment they are made, and every
/// rank must make the same calls in the same order. Calls on different communicators are
/// independent.
///
/// Every collective has three forms: blocking on borrowed memory (`all_reduce`), started on owned
/// memory (`start_all_reduce`, which returns a [`Request`]), and, for the bindings, raw.
///
/// Every call ends within [`Config::timeout`]. After any error but
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) all communicators of the job
/// are finished and further calls return the same first cause.
///
/// When the last handle goes, the process leaves the job: it waits up to ten seconds for the
/// other ranks to leave too, so let ranks leave together.
#[derive(Clone)]
pub struct Communicator {
    inner: Arc<Inner>,
    /// Of the calls made by this handle.
    determinism: Determinism,
}

struct Inner {
    job: Arc<Job>,
    comm: CommId,
    /// World ranks, by this communicator's ranks.
    members: Arc<[Rank]>,
    rank: Rank,
    class: Class,
    topology: Topology,
    /// The segment's lane, where all members share a host.
    lane: Option<u32>,
    timeout: Duration,
    /// The number of the next collective.
    next_collective: AtomicU64,
    /// That of the next message, by (peer, tag, is send).
    next_messages: Mutex<BTreeMap<(Rank, u32, bool), u64>>,
}

impl Communicator {
    /// Joins the job that the launcher's variables describe ([`mod@crate::env`]); a process started
    /// by no launcher is a world of one.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for settings that cannot work,
    /// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) naming the ranks that did not come.
    pub fn init() -> Result<Self> {
        Self::connect(Config::from_env()?)
    }

    /// Joins the job that `config` describes.
    ///
    /// # Errors
    /// As for [`Communicator::init`].
    pub fn connect(config: Config) -> Result<Self> {
        let timeout = config.timeout;
        let job = Arc::new(Job::join(config)?);
        let world_size = job.config.place.world_size;
        let members: Arc<[Rank]> = (0..world_size).collect();
        let topology = job.topology.clone();
        let all_here = topology.host_count() == 1 && world_size > 1;
        // Lane 0 is the world's.
        let lane = (all_here && job.may_use_lanes()).then_some(0);
        let inner = Inner {
            comm: CommId::WORLD,
            rank: job.rank(),
            members,
            class: Class::Urgent,
            topology,
            lane,
            timeout,
            next_collective: AtomicU64::new(0),
            next_messages: Mutex::default(),
            job,
        };
        inner.open_lane();
        let world = Self { inner: Arc::new(inner), determinism: Determinism::Fast };
        let job = &world.inner.job;
        if job.measures_links() {
            let links = world.measure_links()?;
            job.links.set(links).expect("links are measured once");
        }
        Ok(world.with_determinism(job.config.determinism))
    }

    /// This process's number, `0..world_size`.
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// Processes in this communicator.
    pub fn world_size(&self) -> u32 {
        u32::try_from(self.inner.members.len()).expect("ranks are counted in 32 bits")
    }

    /// World ranks of the members, by rank.
    pub fn members(&self) -> &[Rank] {
        &self.inner.members
    }

    /// Which host each rank is on, as numbers.
    pub fn hosts(&self) -> &[u32] {
        self.inner.topology.hosts()
    }

    /// What moves messages to `peer`: `loopback`, `shm`, `tcp`, or such with pacing.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn transport_to(&self, peer: Rank) -> &'static str {
        self.inner.job.transport_names[self.inner.members[peer as usize] as usize]
    }

    /// Whether collectives of this communicator can go through memory shared on one host.
    pub fn has_node_path(&self) -> bool {
        self.inner.lane.is_some()
    }

    /// What this process has moved, all communicators of the job together.
    pub fn counters(&self) -> Counters {
        self.inner.job.counters()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.job.driver.lock().remove_lane(self.comm);
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("comm", &self.inner.comm)
            .field("rank", &self.inner.rank)
            .field("members", &self.inner.members)
            .field("class", &self.inner.class)
            .field("determinism", &self.determinism)
            .finish_non_exhaustive()
    }
}

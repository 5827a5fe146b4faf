//! How ranks meet: from settings to connected transports.
//!
//! 1. Rank 0 listens at the meeting place and starts the hub; every rank is let in.
//! 2. Gather: host, process, data address of every rank. The data address is the source address
//!    of the route to the meeting place, never what a host name resolves to (B23, B31).
//! 3. Ranks of one host share a segment, where that works (B38, B40).
//! 4. All other pairs connect by TCP; the lower rank listens.
//! 5. Gather: everybody is ready, or everybody hears who is not and why.
//!
//! One deadline for all of it (B09). Nothing listens on an address that is not needed (B36).

mod connect;
pub(crate) mod host;
mod segment;

use crate::config::{Config, TransportChoice};
use crate::control::handshake::{Hello, Purpose};
use crate::control::{ControlPlane, HubThread};
use crate::engine::{Driver, Engine, Patience};
use crate::error::{Error, ErrorKind, Result};
use crate::time::now;
use crate::transport::loopback::Loopback;
use crate::transport::paced::Paced;
use crate::transport::shm::NodeSegment;
use crate::transport::tcp::TcpTransport;
use crate::transport::{Transport, shm};
use bincode::{Decode, Encode};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use syncline_proto::collective::topology::Topology;
use syncline_proto::fault::{Fault, FaultKind};
use syncline_proto::id::Rank;
use syncline_proto::membership::Pace;
use syncline_proto::time::Instant;
use syncline_proto::wire::{decode_control, encode_control};

/// The job's generation. Recovery under a new one is not built yet.
const EPOCH: u32 = 0;

/// Who a rank is, as the others were told.
#[derive(Clone, Debug, Encode, Decode)]
pub(crate) struct Peer {
    host_id: String,
    /// For people.
    pub(crate) host_name: String,
    /// Process number on its host.
    pub(crate) pid: u32,
    /// Where it takes data connections.
    pub(crate) address: String,
}

/// A joined job.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) driver: Arc<Driver>,
    pub(crate) control: Option<Arc<ControlPlane>>,
    pub(crate) hub: Option<HubThread>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) topology: Topology,
    /// Shared with the ranks of this host.
    pub(crate) segment: Option<Arc<NodeSegment>>,
    /// What joins this rank to each, for `info` and errors.
    pub(crate) transport_names: Vec<&'static str>,
}

/// Joins the job.
pub(crate) fn join(config: &Config) -> Result<Joined> {
    if config.place.world_size == 1 {
        return alone(config);
    }
    let deadline = now() + config.connect_timeout;
    let pace = Pace { silence: config.peer_timeout, ..Pace::default() };
    let (hub, stream) = meet(config, pace, deadline)?;
    let local = stream.local_addr().map_err(|e| Error::io("control connection", e))?;
    let control = ControlPlane::start(config.place.rank, stream, pace)
        .map_err(|e| Error::io("control thread", e))?;
    let control = Arc::new(control);
    connect_all(config, &control, local, deadline)
        .inspect_err(|error| report(&control, config.place.rank, error))
        .map(|joined| Joined { hub, ..joined })
}

/// Tells the others why this rank cannot come.
fn report(control: &ControlPlane, rank: Rank, error: &Error) {
    if error.fault().is_none() {
        let text = format!("rank {rank} could not join: {error}");
        control.report(&Fault::new(FaultKind::Transport, rank, text).with_culprit(rank));
    }
}

fn alone(config: &Config) -> Result<Joined> {
    let transports: Vec<Box<dyn Transport>> = vec![Box::new(Loopback::new(0))];
    let engine = Engine::new(0, transports, vec![0], None).map_err(|e| Error::io("engine", e))?;
    Ok(Joined {
        driver: Driver::new(engine, Patience::for_local_ranks(1)),
        control: None,
        hub: None,
        peers: vec![me(config, SocketAddr::from(([127, 0, 0, 1], 0)))],
        topology: Topology::single_host(1),
        segment: None,
        transport_names: vec!["loopback"],
    })
}

fn me(config: &Config, address: SocketAddr) -> Peer {
    Peer {
        host_id: host::host_id(config.played_host),
        host_name: host::host_name(),
        pid: std::process::id(),
        address: address.to_string(),
    }
}

/// Rank 0 opens the meeting place; everybody is let in.
fn meet(config: &Config, pace: Pace, deadline: Instant) -> Result<(Option<HubThread>, TcpStream)> {
    let place = &config.place;
    let hub = if place.rank == 0 {
        let listener = connect::listen_at(&place.master_addr, place.master_port)?;
        host::relisten(&listener, 4096);
        let agreement = config.agreement();
        let secret = config.secret.clone();
        let hub = HubThread::start(listener, place.world_size, secret, agreement, pace, deadline);
        Some(hub.map_err(|e| Error::io("hub thread", e))?)
    } else {
        None
    };
    let hello = Hello::new(Purpose::Control, place.rank, 0, config.agreement());
    let at = (&*place.master_addr, place.master_port);
    let stream = connect::reach(at, &hello, &config.secret, deadline).map_err(|error| {
        let (host, port) = at;
        error.context(format!("rank {} joining at {host}:{port}", place.rank))
    })?;
    Ok((hub, stream))
}

fn connect_all(
    config: &Config,
    control: &Arc<ControlPlane>,
    local: SocketAddr,
    deadline: Instant,
) -> Result<Joined> {
    let rank = config.place.rank;
    let address = SocketAddr::new(local.ip(), 0);
    let listener = TcpListener::bind(address)
        .map_err(|e| Error::io(format!("listening for data at {address}"), e))?;
    host::relisten(&listener, 1024);
    let address = listener.local_addr().map_err(|e| Error::io("data listener", e))?;
    let peers: Vec<Peer> = gather(control, "meeting", &me(config, address), deadline)?;
    let hosts = number_hosts(&peers);
    let segment = segment::share(config, control, &hosts, deadline)?;

    let me = rank as usize;
    let by_segment = |peer: usize| segment.is_some() && hosts[peer] == hosts[me];
    let by_tcp: Vec<Rank> =
        (0..config.place.world_size).filter(|r| *r != rank && !by_segment(*r as usize)).collect();
    let links = connect::links(config, &listener, &peers, &by_tcp, deadline)?;
    drop(listener);

    let mut transports: Vec<Box<dyn Transport>> = vec![Box::new(Loopback::new(rank))];
    let mut route = vec![0; peers.len()];
    if let Some(segment) = &segment {
        let local: Vec<Rank> =
            (0..).zip(&hosts).filter(|(_, host)| **host == hosts[me]).map(|(r, _)| r).collect();
        for peer in local.iter().filter(|r| **r != rank) {
            route[*peer as usize] = transports.len();
        }
        let shm = shm::transport(Arc::clone(segment), local, rank, EPOCH);
        transports.push(paced(config, Box::new(shm)));
    }
    if !by_tcp.is_empty() {
        for peer in &by_tcp {
            route[*peer as usize] = transports.len();
        }
        let tcp = TcpTransport::over(rank, EPOCH, links).map_err(|e| Error::io("tcp", e))?;
        transports.push(paced(config, Box::new(tcp)));
    }
    let transport_names = route.iter().map(|index| transports[*index].name()).collect();
    let engine = Engine::new(rank, transports, route, Some(Arc::clone(control)))
        .map_err(|e| Error::io("engine", e))?;
    gather(control, "waiting for all ranks to be ready", &(), deadline)?;

    let local_ranks = hosts.iter().filter(|host| **host == hosts[me]).count();
    let patience = Patience::for_local_ranks(u32::try_from(local_ranks).unwrap_or(u32::MAX));
    Ok(Joined {
        driver: Driver::new(engine, patience),
        control: Some(Arc::clone(control)),
        hub: None,
        peers,
        topology: Topology::new(hosts),
        segment,
        transport_names,
    })
}

fn paced(config: &Config, transport: Box<dyn Transport>) -> Box<dyn Transport> {
    match config.pacing {
        Some(pacing) => Box::new(Paced::new(transport, pacing.rate.bytes_per_s, pacing.latency)),
        None => transport,
    }
}

/// Every rank's value, by rank.
fn gather<T: Encode + Decode<()>>(
    control: &ControlPlane,
    what: &str,
    mine: &T,
    deadline: Instant,
) -> Result<Vec<T>> {
    let internal =
        |e: syncline_proto::wire::Malformed| Error::new(ErrorKind::Internal, e.to_string());
    let blobs = control.gather(what, encode_control(mine).map_err(internal)?, deadline)?;
    blobs.iter().map(|blob| decode_control(blob).map_err(internal)).collect()
}

/// Hosts numbered in the order in which ranks name them.
fn number_hosts(peers: &[Peer]) -> Vec<u32> {
    let mut seen: Vec<&str> = Vec::new();
    let number = |peer: &'_ Peer, seen: &mut Vec<&str>| -> u32 {
        let found = seen.iter().position(|id| *id == peer.host_id);
        u32::try_from(found.unwrap_or(seen.len())).expect("fewer hosts than ranks")
    };
    peers
        .iter()
        .map(|peer| {
            let host = number(peer, &mut seen);
            if host as usize == seen.len() {
                seen.push(&peer.host_id);
            }
            host
        })
        .collect()
}

/// Whether shared memory may be used at all.
fn wants_segment(config: &Config) -> bool {
    config.transport != TransportChoice::Tcp
}

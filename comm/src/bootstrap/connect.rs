//! Sockets of the meeting: listening where needed, reaching who listens.

use super::Peer;
use crate::config::{Config, JobSecret};
use crate::control::handshake::{Hello, Purpose, admit, introduce};
use crate::error::{Error, ErrorKind, Result};
use crate::time::now;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;
use syncline_proto::id::Rank;
use syncline_proto::operations::RankList;
use syncline_proto::time::Instant;

/// One attempt to connect takes no longer.
const ATTEMPT: Duration = Duration::from_secs(3);
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Listens at the first address of `host` that is this machine's.
pub(super) fn listen_at(host: &str, port: u16) -> Result<TcpListener> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in resolve(host, port)? {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    let hint = match last.kind() {
        io::ErrorKind::AddrInUse => "another job uses this port; choose another MASTER_PORT",
        _ => "MASTER_ADDR must be an address of the host on which rank 0 runs",
    };
    Err(Error::io(format!("rank 0 listening at {host}:{port}"), last).hint(hint))
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let found: io::Result<Vec<SocketAddr>> = (host, port).to_socket_addrs().map(Iterator::collect);
    found.map_err(|e| {
        Error::new(ErrorKind::Config, format!("MASTER_ADDR={host:?} does not resolve: {e}"))
            .source_error(e)
    })
}

/// Connects and is let in, trying again while nobody listens yet.
pub(super) fn reach(
    (host, port): (&str, u16),
    hello: &Hello,
    secret: &JobSecret,
    deadline: Instant,
) -> Result<TcpStream> {
    let mut pause = PAUSE_FIRST;
    loop {
        let attempt = resolve(host, port).and_then(|a| attempt(&a, hello, secret, deadline));
        let error = match attempt {
            Ok(stream) => return Ok(stream),
            // A listener that is not ours may go away; one that refuses us means it.
            Err(error) if error.kind() == ErrorKind::Config => return Err(error),
            Err(error) => error,
        };
        if deadline.since(now()) <= pause {
            let text = format!("rank {} not reached in time; last attempt: {error}", hello.target);
            return Err(Error::new(ErrorKind::Timeout, text)
                .hint("is rank 0 running, and is MASTER_ADDR:MASTER_PORT reachable from here?"));
        }
        // Ranks that start together spread out by their number.
        let jitter = Duration::from_micros(u64::from(hello.rank % 64) * 100);
        std::thread::park_timeout(pause + jitter);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn attempt(
    addresses: &[SocketAddr],
    hello: &Hello,
    secret: &JobSecret,
    deadline: Instant,
) -> Result<TcpStream> {
    let mut last = Error::new(ErrorKind::Config, "no address");
    for address in addresses {
        let limit = ATTEMPT.min(deadline.since(now())).max(Duration::from_millis(1));
        let stream = TcpStream::connect_timeout(address, limit);
        let mut stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                last = Error::io(format!("connecting to {address}"), error);
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        match introduce(&mut stream, hello, secret, deadline.min(now() + ATTEMPT)) {
            Ok(()) => return Ok(stream),
            Err(error) => last = error.context(format!("speaking to {address}")),
        }
    }
    Err(last)
}

/// All data connections of this rank: it connects to lower ranks and listens for higher ones.
pub(super) fn links(
    config: &Config,
    listener: &TcpListener,
    peers: &[Peer],
    by_tcp: &[Rank],
    deadline: Instant,
) -> Result<Vec<(Rank, Vec<TcpStream>)>> {
    let rank = config.place.rank;
    let (lower, higher): (Vec<Rank>, Vec<Rank>) = by_tcp.iter().partition(|peer| **peer < rank);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| accept(config, listener, &higher, deadline));
        let mut links = BTreeMap::new();
        for peer in lower {
            for rail in 0..config.rails {
                let hello = Hello::new(Purpose::Data { rail }, rank, peer, config.agreement());
                let address: SocketAddr = peers[peer as usize].address.parse().map_err(|_| {
                    Error::new(ErrorKind::Protocol, format!("rank {peer} gave no address"))
                })?;
                let host = address.ip().to_string();
                let stream = reach((&host, address.port()), &hello, &config.secret, deadline)
                    .map_err(|e| e.context(format!("rank {rank} connecting to rank {peer}")))?;
                links.entry(peer).or_insert_with(Vec::new).push(stream);
            }
        }
        let accepted = accepting.join().map_err(|_| Error::new(ErrorKind::Internal, "acceptor"))?;
        links.extend(accepted?);
        Ok(links.into_iter().collect())
    })
}

fn accept(
    config: &Config,
    listener: &TcpListener,
    expected: &[Rank],
    deadline: Instant,
) -> Result<BTreeMap<Rank, Vec<TcpStream>>> {
    let rank = config.place.rank;
    let mut rails: BTreeMap<Rank, BTreeMap<u32, TcpStream>> = BTreeMap::new();
    let io = |e| Error::io("listening for data", e);
    listener.set_nonblocking(true).map_err(io)?;
    loop {
        let is_complete = |r: &Rank| rails.get(r).is_some_and(|s| s.len() == config.rails as usize);
        let absent: Vec<Rank> = expected.iter().filter(|r| !is_complete(r)).copied().collect();
        if absent.is_empty() {
            break;
        }
        if now() >= deadline {
            let text = format!("{} did not connect to rank {rank} in time", RankList(&absent));
            return Err(Error::new(ErrorKind::Timeout, text));
        }
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                std::thread::park_timeout(Duration::from_millis(1));
                continue;
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(e) => return Err(io(e)),
        };
        stream.set_nonblocking(false).map_err(io)?;
        let _ = stream.set_nodelay(true);
        let limit = deadline.min(now() + ATTEMPT);
        let admitted = admit(&mut stream, &config.secret, limit, |hello| {
            let free = |rail| !rails.get(&hello.rank).is_some_and(|s| s.contains_key(&rail));
            match hello.purpose {
                Purpose::Data { rail }
                    if hello.target == rank
                        && expected.contains(&hello.rank)
                        && rail < config.rails
                        && free(rail) =>
                {
                    Ok(())
                }
                _ => Err(format!("rank {rank} expects no such connection")),
            }
        });
        match admitted {
            Ok(hello) => {
                if let Purpose::Data { rail } = hello.purpose {
                    rails.entry(hello.rank).or_default().insert(rail, stream);
                }
            }
            Err(error) => tracing::debug!("data connection not let in: {error}"),
        }
    }
    Ok(rails.into_iter().map(|(peer, streams)| (peer, streams.into_values().collect())).collect())
}

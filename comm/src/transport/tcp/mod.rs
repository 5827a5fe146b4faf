//! TCP: between hosts, and between ranks of a host that cannot share memory.
//!
//! The kernel's copies are the only ones: vectored writes straight from the caller's memory, reads
//! straight into it (or, to be reduced, into a scratch that stays in the cache).

use super::framed::{Stream, StreamTransport};
use mio::net::TcpStream;
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, IoSlice, Read, Write};
use std::time::Duration;
use syncline_proto::id::Rank;

/// First of the tokens by which the engine's sleep names TCP connections.
const TOKEN_BASE: usize = 1 << 10;
/// What is asked for; the system may give less.
const BUFFER_BYTES: usize = 4 << 20;

/// All TCP connections of a rank.
pub type TcpTransport = StreamTransport<TcpConnection>;

impl TcpTransport {
    /// Over connections that have been let in; several for one peer are its rails.
    ///
    /// # Errors
    /// The operating system's, when a connection cannot be made non-blocking.
    pub fn over(
        rank: Rank,
        epoch: u32,
        links: Vec<(Rank, Vec<std::net::TcpStream>)>,
    ) -> io::Result<Self> {
        let connections = |streams: Vec<std::net::TcpStream>| -> io::Result<Vec<TcpConnection>> {
            streams.into_iter().map(TcpConnection::new).collect()
        };
        let links: io::Result<Vec<_>> =
            links.into_iter().map(|(peer, streams)| Ok((peer, connections(streams)?))).collect();
        Ok(Self::new("tcp", TOKEN_BASE, rank, epoch, links?))
    }
}

/// One connection.
#[derive(Debug)]
pub struct TcpConnection {
    stream: TcpStream,
    ends: String,
    /// The kernel has said so, and we have not found otherwise.
    readable: bool,
}

impl TcpConnection {
    fn new(stream: std::net::TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        // Idle connections are cut by firewalls; keep-alives show that they stand (B11).
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(60))
            .with_interval(Duration::from_secs(15))
            .with_retries(3);
        let _ = socket.set_tcp_keepalive(&keepalive);
        let _ = socket.set_send_buffer_size(BUFFER_BYTES);
        let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
        let end = |address: io::Result<std::net::SocketAddr>| {
            address.map_or_else(|_| String::from("?"), |address| address.to_string())
        };
        let ends = format!("{} -> {}", end(stream.local_addr()), end(stream.peer_addr()));
        Ok(Self { stream: TcpStream::from_std(stream), ends, readable: true })
    }
}

impl Stream for TcpConnection {
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        would_block(self.stream.write_vectored(parts))
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.stream.read(into) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed it")),
            Ok(count) => Ok(count),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(0)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(e) => Err(e),
        }
    }

    fn read_with(
        &mut self,
        max: usize,
        scratch: &mut [u8],
        consume: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        let max = max.min(scratch.len());
        let count = self.read(&mut scratch[..max])?;
        consume(&scratch[..count]);
        Ok(count)
    }

    fn may_have_news(&self) -> bool {
        self.readable
    }

    fn source(&mut self) -> Option<&mut TcpStream> {
        Some(&mut self.stream)
    }

    fn handle_ready(&mut self, readable: bool, _writable: bool) {
        self.readable |= readable;
    }

    fn ends(&self) -> String {
        self.ends.clone()
    }
}

fn would_block(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(0)
        }
        other => other,
    }
}

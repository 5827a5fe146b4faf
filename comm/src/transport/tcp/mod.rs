//! TCP: between hosts, and between ranks of a host that cannot share memory.
//!
//! Owns nothing but the connections: messages are the framing's business
//! ([`stream`](super::stream)), making and admitting connections is the bootstrap's. The kernel's
//! copies are the only ones: vectored writes straight from the caller's memory, reads straight
//! into it (or, to be reduced, into a scratch that stays in the cache). Short messages alone are
//! read with their headers, a counted copy of at most 4 KiB.

mod connection;
#[cfg(test)]
mod tests;

pub use connection::TcpConnection;

use super::stream::StreamTransport;
use std::io;
use syncline_proto::id::Rank;

/// First of the tokens by which the engine's sleep names TCP connections.
pub const TCP_TOKEN_BASE: usize = 1 << 10;

/// All TCP connections of a rank.
pub type TcpTransport = StreamTransport<TcpConnection>;

impl TcpTransport {
    /// Over connections that have been let in; several for one peer are its rails, in the same
    /// order on both sides.
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
        Ok(Self::new("tcp", TCP_TOKEN_BASE, rank, epoch, links?))
    }
}

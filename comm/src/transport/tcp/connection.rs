//! One connection, as a byte stream.
//!
//! Owns the socket and what was read ahead of it. Never blocks.

use crate::transport::stream::Stream;
use mio::net::TcpStream;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
use std::time::Duration;

/// Read at once where short messages are expected.
const AHEAD_BYTES: usize = 4 << 10;

/// One connection to one peer.
#[derive(Debug)]
pub struct TcpConnection {
    stream: TcpStream,
    ends: String,
    /// The kernel has said so, and we have not found otherwise.
    is_readable: bool,
    /// Bytes read before they were wanted.
    ahead: Box<[u8; AHEAD_BYTES]>,
    /// Where those that are left begin and end.
    ahead_start: usize,
    ahead_end: usize,
    bytes_copied: u64,
}

impl TcpConnection {
    pub(super) fn new(stream: std::net::TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // Idle connections are cut by firewalls; keep-alives show that they stand (B11).
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(60))
            .with_interval(Duration::from_secs(15))
            .with_retries(3);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        let end = |address: io::Result<SocketAddr>| {
            address.map_or_else(|_| String::from("?"), |address| address.to_string())
        };
        let ends = format!("{} -> {}", end(stream.local_addr()), end(stream.peer_addr()));
        Ok(Self {
            stream: TcpStream::from_std(stream),
            ends,
            is_readable: true,
            ahead: Box::new([0; AHEAD_BYTES]),
            ahead_start: 0,
            ahead_end: 0,
            bytes_copied: 0,
        })
    }

    /// The next bytes that were read ahead, at most `max`; they are used up.
    fn take_ahead(&mut self, max: usize) -> &[u8] {
        let start = self.ahead_start;
        self.ahead_start += max.min(self.ahead_end - start);
        &self.ahead[start..self.ahead_start]
    }

    fn has_ahead(&self) -> bool {
        self.ahead_start < self.ahead_end
    }

    /// What a read of the socket means to a [`Stream`].
    fn judge(&mut self, result: io::Result<usize>) -> io::Result<usize> {
        match result {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed it")),
            Ok(count) => Ok(count),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                Ok(0)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(e) => Err(e),
        }
    }
}

impl Stream for TcpConnection {
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        // Not writev: a broken connection must be an error, not a signal that a host program of
        // this library may not have silenced.
        let mut nothing = SendAncillaryBuffer::default();
        match sendmsg(&self.stream, parts, &mut nothing, SendFlags::NOSIGNAL) {
            Ok(count) => Ok(count),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.has_ahead() {
            let ahead = self.take_ahead(into.len());
            let count = ahead.len();
            into[..count].copy_from_slice(ahead);
            self.bytes_copied += count as u64;
            return Ok(count);
        }
        let result = self.stream.read(into);
        self.judge(result)
    }

    fn read_ahead(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !self.has_ahead() {
            (self.ahead_start, self.ahead_end) = (0, 0);
            let result = self.stream.read(&mut self.ahead[..]);
            self.ahead_end = self.judge(result)?;
        }
        let ahead = self.take_ahead(into.len());
        let count = ahead.len();
        into[..count].copy_from_slice(ahead);
        Ok(count)
    }

    fn read_with(
        &mut self,
        max: usize,
        scratch: &mut [u8],
        consume: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        if self.has_ahead() {
            let ahead = self.take_ahead(max);
            consume(ahead);
            return Ok(ahead.len());
        }
        let max = max.min(scratch.len());
        let result = self.stream.read(&mut scratch[..max]);
        let count = self.judge(result)?;
        consume(&scratch[..count]);
        Ok(count)
    }

    fn may_have_news(&self) -> bool {
        self.is_readable || self.has_ahead()
    }

    fn source(&mut self) -> Option<&mut TcpStream> {
        Some(&mut self.stream)
    }

    fn handle_ready(&mut self, readable: bool, _writable: bool) {
        // Nothing to note for writing: whoever has something to write tries.
        self.is_readable |= readable;
    }

    fn ends(&self) -> String {
        self.ends.clone()
    }

    fn bytes_copied(&self) -> u64 {
        self.bytes_copied
    }
}

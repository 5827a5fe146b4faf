//! Length-prefixed control messages over a non-blocking socket.

use bytes::{Buf, BufMut, BytesMut};
use mio::net::TcpStream;
use std::io::{self, Read, Write};
use syncline_proto::membership::ControlMessage;
use syncline_proto::wire::{CONTROL_MAX_BYTES, decode_control, encode_control};

/// One control connection.
#[derive(Debug)]
pub(super) struct Framed {
    pub(super) stream: TcpStream,
    incoming: BytesMut,
    outgoing: BytesMut,
}

impl Framed {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, incoming: BytesMut::new(), outgoing: BytesMut::new() }
    }

    /// Queues a message; [`Framed::flush`] sends it.
    pub(super) fn queue(&mut self, message: &ControlMessage) -> io::Result<()> {
        let body = encode_control(message).map_err(io::Error::other)?;
        self.outgoing.put_u32_le(u32::try_from(body.len()).map_err(io::Error::other)?);
        self.outgoing.put_slice(&body);
        Ok(())
    }

    /// Whether all that was queued has left.
    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Writes what the socket takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.outgoing.advance(count),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads all that is there. Messages that came before an end are still delivered.
    pub(super) fn read(&mut self, messages: &mut Vec<ControlMessage>) -> io::Result<()> {
        let mut chunk = [0; 16 << 10];
        let end = loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => break Err(io::Error::new(io::ErrorKind::UnexpectedEof, "end of stream")),
                Ok(count) => self.incoming.extend_from_slice(&chunk[..count]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break Err(e),
            }
        };
        while let Some(prefix) = self.incoming.first_chunk::<4>() {
            let len = u32::from_le_bytes(*prefix) as usize;
            if len > CONTROL_MAX_BYTES {
                return Err(io::Error::other(format!("control message of {len} bytes")));
            }
            if self.incoming.len() < 4 + len {
                break;
            }
            self.incoming.advance(4);
            let body = self.incoming.split_to(len);
            messages.push(decode_control(&body).map_err(io::Error::other)?);
        }
        end
    }
}

//! The frame being read, and how its payload is folded in.
//!
//! Owns the memory of the receive being filled, until it is complete or released. Knows nothing of
//! matching. Called by the rail.

use super::Stream;
use crate::transport::{RequestId, Sink, SinkFold};
use std::io;
use syncline_proto::call::Fingerprint;
use syncline_proto::id::MessageId;
use syncline_proto::wire::FrameHeader;

/// Bytes of the largest element.
const ELEMENT_MAX_BYTES: usize = 16;

/// What the stream is in the middle of.
#[derive(Debug)]
pub(super) enum Inbound {
    /// A header, of which so many bytes are here.
    Header([u8; FrameHeader::BYTES], usize),
    /// A payload of which so many bytes are missing.
    Payload(Target, usize),
}

impl Default for Inbound {
    fn default() -> Self {
        Self::Header([0; FrameHeader::BYTES], 0)
    }
}

/// Where a payload goes.
#[derive(Debug)]
pub(super) enum Target {
    /// Nobody wants it.
    Discard,
    /// Nobody has posted it yet.
    Keep { message: MessageId, fingerprint: Fingerprint, bytes: Vec<u8> },
    /// Into a posted receive.
    Sink(Filling),
}

impl Target {
    /// Reads some of a payload of which `left` bytes are missing.
    pub(super) fn read(
        &mut self,
        stream: &mut impl Stream,
        left: usize,
        scratch: &mut [u8],
    ) -> io::Result<usize> {
        match self {
            Self::Discard => stream.read_with(left, scratch, &mut |_| {}),
            Self::Keep { bytes, .. } => {
                stream.read_with(left, scratch, &mut |part| bytes.extend_from_slice(part))
            }
            Self::Sink(filling) => match filling.direct() {
                Some(memory) => {
                    let count = stream.read(&mut memory[..left])?;
                    filling.skip(count);
                    Ok(count)
                }
                None => stream.read_with(left, scratch, &mut |part| filling.take(part)),
            },
        }
    }
}

/// A receive being filled.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) id: RequestId,
    sink: Sink,
    /// Bytes folded in.
    offset: usize,
    /// Start of an element whose rest has not come.
    carry: [u8; ELEMENT_MAX_BYTES],
    carried: usize,
}

impl Filling {
    pub(super) fn new(id: RequestId, sink: Sink) -> Self {
        Self { id, sink, offset: 0, carry: [0; ELEMENT_MAX_BYTES], carried: 0 }
    }

    /// Folds in all of `bytes`, keeping the start of an unfinished element.
    pub(super) fn take(&mut self, mut bytes: &[u8]) {
        let size = self.sink.granularity();
        if self.carried > 0 {
            let missing = (size - self.carried).min(bytes.len());
            self.carry[self.carried..self.carried + missing].copy_from_slice(&bytes[..missing]);
            self.carried += missing;
            bytes = &bytes[missing..];
            if self.carried < size {
                return;
            }
            self.sink.fold_in(self.offset, &self.carry[..size]);
            self.offset += size;
            self.carried = 0;
        }
        let whole = bytes.len() - bytes.len() % size;
        if whole > 0 {
            self.sink.fold_in(self.offset, &bytes[..whole]);
            self.offset += whole;
        }
        let rest = &bytes[whole..];
        self.carry[..rest.len()].copy_from_slice(rest);
        self.carried = rest.len();
    }

    /// Memory that may be filled from its start, if nothing is to be reduced. Who fills it tells
    /// by [`Filling::skip`].
    pub(super) fn direct(&mut self) -> Option<&mut [u8]> {
        let offset = self.offset;
        (self.sink.fold == SinkFold::Replace).then(|| &mut self.sink.memory.bytes_mut()[offset..])
    }

    /// So many bytes of [`Filling::direct`] are filled.
    pub(super) fn skip(&mut self, count: usize) {
        self.offset += count;
    }
}

//! Frames being written: control before urgent before background, changing only between frames.
//!
//! Owns the memory of messages that are on their way out. Called by the rail.

use super::Stream;
use crate::memory::LocalSlice;
use crate::transport::{Class, Event, RequestId};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use syncline_proto::wire::FrameHeader;

/// Parts of one vectored write: a header and a payload for each frame.
const PARTS: usize = 64;
/// Background frames join a write until it has so many bytes, so that an urgent one that comes
/// meanwhile waits for little more than one frame.
const BACKGROUND_BYTES: usize = 64 << 10;
/// Bytes written in one call, so that other peers get their turn.
const WRITE_BYTES: usize = 4 << 20;

/// A frame on its way.
#[derive(Debug)]
struct Frame {
    header: [u8; FrameHeader::BYTES],
    payload: LocalSlice,
    /// Completed when the last byte is written.
    id: Option<RequestId>,
    /// Credit spent on it.
    cost: u64,
}

impl Frame {
    fn len(&self) -> usize {
        FrameHeader::BYTES + self.payload.len()
    }
}

/// Frames of one stream.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// The frame of which some bytes are written.
    current: Option<Frame>,
    /// How many.
    written: usize,
    control: VecDeque<Frame>,
    urgent: VecDeque<Frame>,
    background: VecDeque<Frame>,
}

impl Outbound {
    pub(super) fn queue_control(&mut self, header: &FrameHeader) {
        let payload = LocalSlice::empty();
        self.control.push_back(Frame { header: header.encode(), payload, id: None, cost: 0 });
    }

    pub(super) fn queue(
        &mut self,
        header: &FrameHeader,
        payload: LocalSlice,
        class: Class,
        id: RequestId,
        cost: u64,
    ) {
        let frame = Frame { header: header.encode(), payload, id: Some(id), cost };
        match class {
            Class::Background => self.background.push_back(frame),
            Class::Urgent => self.urgent.push_back(frame),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none()
            && self.control.is_empty()
            && self.urgent.is_empty()
            && self.background.is_empty()
    }

    /// Writes what the stream takes; whether it took anything.
    pub(super) fn write(
        &mut self,
        stream: &mut impl Stream,
        events: &mut Vec<Event>,
    ) -> io::Result<bool> {
        let mut total = 0;
        while total < WRITE_BYTES {
            let mut parts = [IoSlice::new(&[]); PARTS];
            let used = self.gather(&mut parts);
            if used == 0 {
                break;
            }
            let count = stream.write_vectored(&parts[..used])?;
            if count == 0 {
                break;
            }
            total += count;
            self.advance(count, events);
        }
        Ok(total > 0)
    }

    /// What the next write may take, in order; how many parts.
    fn gather<'a>(&'a self, parts: &mut [IoSlice<'a>; PARTS]) -> usize {
        let before = self.current.iter().chain(&self.control).chain(&self.urgent);
        let frames = before.map(|frame| (frame, false));
        let frames = frames.chain(self.background.iter().map(|frame| (frame, true)));
        let mut used = 0;
        let mut bytes = 0;
        let mut skip = self.written;
        for (frame, may_wait) in frames {
            if used + 2 > PARTS || (may_wait && bytes >= BACKGROUND_BYTES) {
                break;
            }
            for part in [&frame.header[..], frame.payload.bytes()] {
                let rest = &part[skip.min(part.len())..];
                skip -= skip.min(part.len());
                if !rest.is_empty() {
                    parts[used] = IoSlice::new(rest);
                    used += 1;
                    bytes += rest.len();
                }
            }
        }
        used
    }

    /// The stream has taken so many bytes of what [`Outbound::gather`] showed.
    fn advance(&mut self, count: usize, events: &mut Vec<Event>) {
        self.written += count;
        loop {
            let queues = [&mut self.control, &mut self.urgent, &mut self.background];
            let next = || queues.into_iter().find_map(VecDeque::pop_front);
            let Some(frame) = self.current.take().or_else(next) else { return };
            if self.written < frame.len() {
                self.current = Some(frame);
                return;
            }
            self.written -= frame.len();
            events.extend(frame.id.map(Event::Completed));
            if self.written == 0 {
                return;
            }
        }
    }

    /// Drops everything. Whether a frame was cut in the middle, after which the stream is of no
    /// use; and the credit of frames of which nothing was sent.
    pub(super) fn cancel(&mut self) -> (bool, u64) {
        let is_cut = self.current.is_some();
        let queues = [&self.control, &self.urgent, &self.background];
        let cost = queues.into_iter().flatten().map(|frame| frame.cost).sum();
        *self = Self::default();
        (is_cut, cost)
    }
}

//! Frames being sent: control before urgent before background, switching only between frames.

use super::Stream;
use crate::memory::LocalSlice;
use crate::transport::{Class, Event, RequestId};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use syncline_proto::wire::FrameHeader;

/// Parts of one vectored write: a header and a payload for each of so many frames.
const FRAMES_PER_WRITE: usize = 8;

/// A frame on its way.
#[derive(Debug)]
struct Frame {
    header: [u8; FrameHeader::BYTES],
    payload: LocalSlice,
    /// Completed when the last byte is written.
    id: Option<RequestId>,
}

impl Frame {
    fn len(&self) -> usize {
        FrameHeader::BYTES + self.payload.len()
    }
}

/// Frames of one stream.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// Begun, or chosen to go next; never reordered.
    current: VecDeque<Frame>,
    /// Bytes of the first current frame that are written.
    written: usize,
    control: VecDeque<Frame>,
    urgent: VecDeque<Frame>,
    background: VecDeque<Frame>,
}

impl Outbound {
    pub(super) fn queue_control(&mut self, header: &FrameHeader) {
        let payload = LocalSlice::empty();
        self.control.push_back(Frame { header: header.encode(), payload, id: None });
    }

    pub(super) fn queue(
        &mut self,
        header: &FrameHeader,
        payload: LocalSlice,
        class: Class,
        id: RequestId,
    ) {
        let frame = Frame { header: header.encode(), payload, id: Some(id) };
        match class {
            Class::Background => self.background.push_back(frame),
            Class::Urgent => self.urgent.push_back(frame),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.current.is_empty()
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
        let mut moved = false;
        loop {
            self.choose();
            if self.current.is_empty() {
                return Ok(moved);
            }
            let mut parts = [IoSlice::new(&[]); 2 * FRAMES_PER_WRITE];
            let mut used = 0;
            let mut skip = self.written;
            for frame in self.current.iter().take(FRAMES_PER_WRITE) {
                for part in [&frame.header[..], frame.payload.bytes()] {
                    let rest = &part[skip.min(part.len())..];
                    skip -= skip.min(part.len());
                    if !rest.is_empty() {
                        parts[used] = IoSlice::new(rest);
                        used += 1;
                    }
                }
            }
            let count = stream.write_vectored(&parts[..used])?;
            if count == 0 {
                return Ok(moved);
            }
            moved = true;
            self.written += count;
            while let Some(frame) = self.current.pop_front_if(|f| f.len() <= self.written) {
                self.written -= frame.len();
                events.extend(frame.id.map(Event::Completed));
            }
        }
    }

    /// Fills the current write. A background frame goes alone, so that what is urgent waits for
    /// one frame at most.
    fn choose(&mut self) {
        while self.current.len() < FRAMES_PER_WRITE {
            let next = self.control.pop_front().or_else(|| self.urgent.pop_front());
            match next {
                Some(frame) => self.current.push_back(frame),
                None => break,
            }
        }
        if self.current.is_empty() {
            self.current.extend(self.background.pop_front());
        }
    }

    /// Drops everything. Whether a frame was cut in the middle, after which the stream is of no
    /// use.
    pub(super) fn cancel(&mut self) -> bool {
        let cut = self.written > 0;
        *self = Self::default();
        cut
    }
}

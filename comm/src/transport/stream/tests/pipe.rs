//! Two streams in memory, cut anywhere.

use crate::transport::conformance::Random;
use crate::transport::stream::Stream;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) bytes: VecDeque<u8>,
    /// Bytes and parts of each write that took something.
    pub(super) writes: Vec<(usize, usize)>,
    /// The writer is gone.
    pub(super) is_closed: bool,
    /// Writes fail from now on.
    pub(super) is_broken: bool,
    /// Nobody says that there are bytes to read.
    pub(super) is_quiet: bool,
    total: usize,
}

/// One end.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) from: Arc<Mutex<Wire>>,
    pub(super) to: Arc<Mutex<Wire>>,
    capacity: usize,
    /// Cuts at random, if given.
    random: Option<Random>,
}

/// Counts what a pipe has sent.
#[derive(Debug)]
pub(super) struct Gauge(Arc<Mutex<Wire>>);

impl Gauge {
    pub(super) fn total(&self) -> usize {
        self.0.lock().unwrap().total
    }
}

/// Two ends of a pipe that holds `capacity` bytes in each direction, and moves some of what it
/// could at a time: at random by `seed`, or everything for seed 0.
pub(super) fn pair(capacity: usize, seed: u64) -> [Pipe; 2] {
    let wires = [Arc::<Mutex<Wire>>::default(), Arc::default()];
    [0, 1].map(|end| Pipe {
        from: Arc::clone(&wires[end]),
        to: Arc::clone(&wires[1 - end]),
        capacity,
        random: (seed > 0).then(|| Random::new(seed + end as u64)),
    })
}

impl Pipe {
    pub(super) fn clone_gauge(&self) -> Gauge {
        Gauge(Arc::clone(&self.to))
    }

    /// Some of `possible`.
    fn cut(&mut self, possible: usize) -> usize {
        let Some(random) = &mut self.random else { return possible };
        if possible == 0 || random.below(8) == 0 {
            return 0;
        }
        let limit = if random.below(4) == 0 { possible.min(70) } else { possible };
        1 + random.below(limit)
    }
}

impl Stream for Pipe {
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let to = Arc::clone(&self.to);
        let mut to = to.lock().unwrap();
        if to.is_broken {
            return Err(io::Error::from_raw_os_error(32));
        }
        let count = self.cut(wanted.min(self.capacity - to.bytes.len()));
        let bytes = parts.iter().flat_map(|part| part.iter().copied()).take(count);
        to.bytes.extend(bytes);
        to.total += count;
        if count > 0 {
            to.writes.push((count, parts.len()));
        }
        Ok(count)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let from = Arc::clone(&self.from);
        let mut from = from.lock().unwrap();
        if from.bytes.is_empty() && from.is_closed {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the pipe is closed"));
        }
        let count = self.cut(into.len().min(from.bytes.len()));
        for (target, byte) in into.iter_mut().zip(from.bytes.drain(..count)) {
            *target = byte;
        }
        Ok(count)
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
        let from = self.from.lock().unwrap();
        !from.is_quiet && (!from.bytes.is_empty() || from.is_closed)
    }

    fn ends(&self) -> String {
        String::from("here -> there")
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // A test that fails while it looks at the wire poisons the lock.
        if let Ok(mut to) = self.to.lock() {
            to.is_closed = true;
        }
    }
}

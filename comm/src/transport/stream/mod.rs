//! Messages over byte streams: what TCP connections and shared-memory rings have in common.

use std::fmt;
use std::io::{self, IoSlice};

/// A reliable, ordered, non-blocking byte stream to one peer.
///
/// "Would block" is `Ok(0)`; the peer's end is an [`io::ErrorKind::UnexpectedEof`] error.
pub trait Stream: Send + fmt::Debug {
    /// Writes some leading bytes of `parts`.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Reads some bytes.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Shows up to `max` of the next bytes, in place if they lie in memory already, else in
    /// `scratch`; `consume` says how many it took, and is shown the rest again next time. A
    /// socket must hand over all it read, so it needs `keep` bytes the caller did not take to be
    /// put back: see the implementations.
    fn read_with(
        &mut self,
        max: usize,
        scratch: &mut [u8],
        consume: &mut dyn FnMut(&[u8]) -> usize,
    ) -> io::Result<usize>;
}

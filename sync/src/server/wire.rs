//! The parameter server's messages: eight words of header, then parameters or gradients.
//!
//! Owns encoding and decoding, both ways. Never trusts a length or a kind. Called by the shards
//! and by the workers (`model/worker.rs`).
//!
//! A message is a vector of `u32`, so that header and values travel in one buffer: a value is the
//! bits of its `f32`, which no copy can change (as it may with a signalling NaN in an `f32`).
//!
//! | word | push, done, stop | reply |
//! |---|---|---|
//! | 0 | kind: 1 push, 2 done, 4 stop | kind: 3 |
//! | 1 | worker's rank | server's rank |
//! | 2, 3 | the worker's clock: pushes before this one | the same, of the push it answers |
//! | 4, 5 | version of the shard that the gradient is of | version now |
//! | 6 | learning rate, bits | staleness of the push it answers |
//! | 7 | 0 | 0 |
//! | 8.. | gradient, or zeros | parameters |
//!
//! 64-bit numbers have their low word first.

use crate::error::{Error, Result};

/// Words before the values.
pub const HEADER_WORDS: usize = 8;

const PUSH: u32 = 1;
const DONE: u32 = 2;
const REPLY: u32 = 3;
const STOP: u32 = 4;

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Header {
    /// This worker pushes no more until all shards were brought together.
    Done {
        /// Who.
        worker: u32,
    },
    /// A gradient of the shard.
    Push {
        /// Whose.
        worker: u32,
        /// Its pushes before this one.
        clock: u64,
        /// Version of the parameters that the gradient was computed with.
        version: u64,
        /// What to multiply the velocity with.
        learning_rate: f32,
    },
    /// The shard's parameters.
    Reply {
        /// Whose shard.
        server: u32,
        /// The clock of the push that this answers.
        clock: u64,
        /// How many updates they contain: of one push each, but for GBA.
        version: u64,
        /// How many updates had come between the gradient's version and its push when that was
        /// taken in.
        staleness: u32,
    },
    /// The shard's own rank gives up, or, as a reply, the shard does.
    Stop,
}

/// A message of `header` and the bits of `values`, in `message`, whose content is lost.
pub fn encode(header: Header, values: impl Iterator<Item = f32>, message: &mut Vec<u32>) {
    let (kind, rank, clock, version, last) = match header {
        Header::Done { worker } => (DONE, worker, 0, 0, 0),
        Header::Push { worker, clock, version, learning_rate } => {
            (PUSH, worker, clock, version, learning_rate.to_bits())
        }
        Header::Reply { server, clock, version, staleness } => {
            (REPLY, server, clock, version, staleness)
        }
        Header::Stop => (STOP, 0, 0, 0, 0),
    };
    let ([clock_low, clock_high], [version_low, version_high]) = (halves(clock), halves(version));
    message.clear();
    message.extend([kind, rank, clock_low, clock_high, version_low, version_high]);
    message.extend([last, 0]);
    message.extend(values.map(f32::to_bits));
}

/// Header and values, of which there must be `len`.
///
/// # Errors
/// [`Error::Protocol`] if the message is of another length, or of no known kind.
pub fn decode(message: &[u32], len: usize) -> Result<(Header, impl Iterator<Item = f32> + '_)> {
    let broken = |reason| Err(Error::Protocol { reason });
    let Some((header, values)) = message.split_first_chunk::<HEADER_WORDS>() else {
        return broken(format!("a message of {} words has no header", message.len()));
    };
    if values.len() != len {
        return broken(format!("{} values for a shard of {len}", values.len()));
    }
    let [kind, rank, clock_low, clock_high, version_low, version_high, last, _] = *header;
    let (clock, version) = (whole(clock_low, clock_high), whole(version_low, version_high));
    let header = match kind {
        PUSH => {
            let learning_rate = f32::from_bits(last);
            Header::Push { worker: rank, clock, version, learning_rate }
        }
        DONE => Header::Done { worker: rank },
        REPLY => Header::Reply { server: rank, clock, version, staleness: last },
        STOP => Header::Stop,
        kind => return broken(format!("a message of unknown kind {kind} from rank {rank}")),
    };
    Ok((header, values.iter().map(|bits| f32::from_bits(*bits))))
}

fn halves(number: u64) -> [u32; 2] {
    // Truncation is meant.
    [number as u32, (number >> 32) as u32]
}

fn whole(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let large = 0x1234_5678_9abc_def0;
        for header in [
            Header::Done { worker: 3 },
            Header::Push { worker: u32::MAX, clock: large, version: !large, learning_rate: 0.1 },
            Header::Reply { server: 7, clock: 1, version: large, staleness: u32::MAX },
            Header::Stop,
        ] {
            let values = [1.5, -0.0, f32::INFINITY];
            let mut message = vec![9; 100];
            encode(header, values.into_iter(), &mut message);
            let (found, decoded) = decode(&message, 3).unwrap();
            assert_eq!(found, header);
            let bits: Vec<u32> = decoded.map(f32::to_bits).collect();
            assert_eq!(bits, values.map(f32::to_bits));
        }
    }

    #[test]
    fn broken_messages_are_errors() {
        let mut message = Vec::new();
        encode(Header::Done { worker: 3 }, [0.0; 4].into_iter(), &mut message);
        let refused = |message: &[u32], len, text| {
            let error = decode(message, len).err().unwrap().to_string();
            assert!(error.contains(text), "{error}");
        };
        refused(&[], 0, "0 words");
        refused(&message[..HEADER_WORDS - 1], 0, "7 words");
        refused(&message, 5, "4 values for a shard of 5");
        message[0] = 77;
        refused(&message, 4, "unknown kind 77 from rank 3");
    }
}

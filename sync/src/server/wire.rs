//! The parameter server's messages: nine words of header, then parameters or gradients.
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
//! | 7 | nanoseconds a sample took, 0 if not known | samples of the worker's next step, 0 if free |
//! | 8 | 0 | samples of the workers before it |
//! | 9.. | gradient, or zeros | parameters |
//!
//! 64-bit numbers have their low word first.

use crate::error::{Error, Result};
use crate::policy::batch::Batch;

/// Words before the values.
pub const HEADER_WORDS: usize = 9;

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
        /// Nanoseconds of computing for each sample; 0 if not known.
        sample_ns: u32,
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
        /// What the worker takes next, if the shard has a say in that.
        batch: Option<Batch>,
    },
    /// The shard's own rank gives up, or, as a reply, the shard does.
    Stop,
}

/// A message of `header` and the bits of `values`, in `message`, whose content is lost.
pub fn encode(header: Header, values: impl Iterator<Item = f32>, message: &mut Vec<u32>) {
    let (kind, rank, clock, version, last) = match header {
        Header::Done { worker } => (DONE, worker, 0, 0, [0; 3]),
        Header::Push { worker, clock, version, learning_rate, sample_ns } => {
            (PUSH, worker, clock, version, [learning_rate.to_bits(), sample_ns, 0])
        }
        Header::Reply { server, clock, version, staleness, batch } => {
            let Batch { start, samples } = batch.unwrap_or(Batch { start: 0, samples: 0 });
            (REPLY, server, clock, version, [staleness, samples, start])
        }
        Header::Stop => (STOP, 0, 0, 0, [0; 3]),
    };
    let ([clock_low, clock_high], [version_low, version_high]) = (halves(clock), halves(version));
    message.clear();
    message.extend([kind, rank, clock_low, clock_high, version_low, version_high]);
    message.extend(last);
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
    let [kind, rank, clock_low, clock_high, version_low, version_high, last, samples, start] =
        *header;
    let (clock, version) = (whole(clock_low, clock_high), whole(version_low, version_high));
    let header = match kind {
        PUSH => {
            let learning_rate = f32::from_bits(last);
            Header::Push { worker: rank, clock, version, learning_rate, sample_ns: samples }
        }
        DONE => Header::Done { worker: rank },
        REPLY => {
            let batch = (samples > 0).then_some(Batch { start, samples });
            Header::Reply { server: rank, clock, version, staleness: last, batch }
        }
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
        let (worker, learning_rate, sample_ns) = (u32::MAX, 0.1, 5);
        let push = Header::Push { worker, clock: large, version: !large, learning_rate, sample_ns };
        let (server, staleness) = (7, u32::MAX);
        let reply = |batch| Header::Reply { server, clock: 1, version: large, staleness, batch };
        for header in [
            Header::Done { worker: 3 },
            push,
            reply(None),
            reply(Some(Batch { start: 0, samples: 1 })),
            reply(Some(Batch { start: 77, samples: u32::MAX })),
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
        refused(&message[..HEADER_WORDS - 1], 0, "8 words");
        refused(&message, 5, "4 values for a shard of 5");
        message[0] = 77;
        refused(&message, 4, "unknown kind 77 from rank 3");
    }
}

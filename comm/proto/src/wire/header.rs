//! The 64 bytes in front of every frame on a data stream. Little-endian.
//!
//! | at | field | | at | field |
//! |---|---|---|---|---|
//! | 0 | magic u16 | | 24 | chunk u32 |
//! | 2 | version u8 | | 28 | epoch u32 |
//! | 3 | kind u8 | | 32 | len u64 |
//! | 4 | source u32 | | 40 | fingerprint, 16 bytes |
//! | 8 | comm u32 | | 56 | offset u64 |
//! | 12 | seq u64 | | 64 | end |
//! | 20 | step u32 | | | |

use super::Malformed;
use crate::call::Fingerprint;
use crate::id::{CommId, MessageId, Rank};

const MAGIC: u16 = 0x5C1E;
/// Of the data frames. Both ends must have the same.
pub const VERSION: u8 = 1;
/// No message is longer: a longer length is an error, never an allocation.
pub const MESSAGE_MAX_BYTES: u64 = 1 << 40;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// The receiver has read a [`FrameKind::Pull`]'s memory; the sender may reuse it.
    Ack = 1,
    /// The receiver has posted this message: the sender may send it. No payload.
    ClearToSend = 2,
    /// A message; `len` bytes follow.
    Data = 3,
    /// A message the receiver fetches itself from `offset` (an address) of the sender's process.
    Pull = 4,
}

impl FrameKind {
    fn from_code(code: u8) -> Option<Self> {
        [Self::Ack, Self::ClearToSend, Self::Data, Self::Pull]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}

/// Front of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// What it is.
    pub kind: FrameKind,
    /// World rank of the sender.
    pub source: Rank,
    /// Which message.
    pub message: MessageId,
    /// The job's generation; frames of another are refused.
    pub epoch: u32,
    /// Bytes of the message.
    pub len: u64,
    /// The sender's call.
    pub fingerprint: Fingerprint,
    /// Meaning depends on `kind`; 0 where it has none.
    pub offset: u64,
}

impl FrameHeader {
    /// Bytes on the wire.
    pub const BYTES: usize = 64;

    /// To bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        b[2] = VERSION;
        b[3] = self.kind as u8;
        b[4..8].copy_from_slice(&self.source.to_le_bytes());
        b[8..12].copy_from_slice(&self.message.comm.0.to_le_bytes());
        b[12..20].copy_from_slice(&self.message.seq.to_le_bytes());
        b[20..24].copy_from_slice(&self.message.step.to_le_bytes());
        b[24..28].copy_from_slice(&self.message.chunk.to_le_bytes());
        b[28..32].copy_from_slice(&self.epoch.to_le_bytes());
        b[32..40].copy_from_slice(&self.len.to_le_bytes());
        b[40..56].copy_from_slice(&self.fingerprint.encode());
        b[56..64].copy_from_slice(&self.offset.to_le_bytes());
        b
    }

    /// From bytes that came over a wire.
    ///
    /// # Errors
    /// Whatever is not a header of this version, with the field at fault.
    pub fn decode(b: &[u8; Self::BYTES]) -> Result<Self, Malformed> {
        if u16::from_le_bytes(take(b, 0)) != MAGIC {
            return Err(Malformed::Magic);
        }
        if b[2] != VERSION {
            return Err(Malformed::Version(b[2]));
        }
        let kind = FrameKind::from_code(b[3]).ok_or(Malformed::Field("kind"))?;
        let len = u64::from_le_bytes(take(b, 32));
        if len > MESSAGE_MAX_BYTES {
            return Err(Malformed::Field("len"));
        }
        Ok(Self {
            kind,
            source: u32::from_le_bytes(take(b, 4)),
            message: MessageId {
                comm: CommId(u32::from_le_bytes(take(b, 8))),
                seq: u64::from_le_bytes(take(b, 12)),
                step: u32::from_le_bytes(take(b, 20)),
                chunk: u32::from_le_bytes(take(b, 24)),
            },
            epoch: u32::from_le_bytes(take(b, 28)),
            len,
            fingerprint: Fingerprint::decode(take(b, 40)),
            offset: u64::from_le_bytes(take(b, 56)),
        })
    }
}

/// `N` bytes of `b` from `at`, which is a constant inside the header.
fn take<const N: usize>(b: &[u8; FrameHeader::BYTES], at: usize) -> [u8; N] {
    core::array::from_fn(|i| b[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Pull,
            source: 7,
            message: MessageId { comm: CommId(3), seq: 1 << 40, step: 9, chunk: 11 },
            epoch: 2,
            len: 1 << 33,
            fingerprint: Fingerprint {
                kind: 2,
                dtype: 3,
                op: 4,
                algorithm: 5,
                root: 6,
                count: 1 << 35,
            },
            offset: u64::MAX - 1,
        }
    }

    #[test]
    fn round_trip() {
        assert_eq!(FrameHeader::decode(&header().encode()), Ok(header()));
    }

    #[test]
    fn refuses_what_is_not_ours() {
        let good = header().encode();
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            FrameHeader::decode(&bytes)
        };
        assert_eq!(with(0, 0), Err(Malformed::Magic));
        assert_eq!(with(2, 9), Err(Malformed::Version(9)));
        assert_eq!(with(3, 0), Err(Malformed::Field("kind")));
        assert_eq!(with(39, 1), Err(Malformed::Field("len")));
    }

    #[test]
    fn any_bytes_decode_without_panic() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            let mut bytes = header().encode();
            for _ in 0..4 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                bytes[(state >> 58) as usize] = (state >> 40) as u8;
            }
            let _ = FrameHeader::decode(&bytes);
        }
    }
}

//! What travels: fixed headers in front of data, and how control messages are encoded.
//!
//! Decoders take any bytes and never panic; what they refuse is [`Malformed`].

pub mod header;

use alloc::vec::Vec;
use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use core::fmt;

pub use header::{FrameHeader, FrameKind};

/// Largest encoded control message.
pub const CONTROL_MAX_BYTES: usize = 1 << 20;

const CONFIG: Configuration<LittleEndian, Fixint, Limit<CONTROL_MAX_BYTES>> =
    bincode::config::standard().with_fixed_int_encoding().with_limit::<CONTROL_MAX_BYTES>();

/// Why bytes were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Malformed {
    /// A control message that does not decode, or has bytes left over.
    Control,
    /// A field has a value outside its range.
    Field(&'static str),
    /// Not one of our headers.
    Magic,
    /// Another version of the protocol.
    Version(u8),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control => f.write_str("control message does not decode"),
            Self::Field(name) => write!(f, "field {name} out of range"),
            Self::Magic => f.write_str("not a syncline frame"),
            Self::Version(v) => {
                write!(f, "protocol version {v}, this build speaks {}", header::VERSION)
            }
        }
    }
}

impl core::error::Error for Malformed {}

/// Encodes a control message: fixed-width little-endian, at most [`CONTROL_MAX_BYTES`].
///
/// # Errors
/// [`Malformed::Control`] if it is larger.
pub fn encode_control<T: bincode::Encode>(message: &T) -> Result<Vec<u8>, Malformed> {
    bincode::encode_to_vec(message, CONFIG).map_err(|_| Malformed::Control)
}

/// Decodes exactly one control message.
///
/// # Errors
/// [`Malformed::Control`] for anything else.
pub fn decode_control<T: bincode::Decode<()>>(bytes: &[u8]) -> Result<T, Malformed> {
    match bincode::decode_from_slice(bytes, CONFIG) {
        Ok((message, used)) if used == bytes.len() => Ok(message),
        _ => Err(Malformed::Control),
    }
}

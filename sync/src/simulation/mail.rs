//! Messages between a rank and a server: what they carry, and their bytes on a link.
//!
//! Owns what of a message is header and what is values, of which only the latter grow with the
//! model that a small layout stands for. Never sends. Called by the driver.

use super::network::Network;
use crate::layout::ELEMENT_BYTES;
use crate::server::osp::wire::{HEAD_WORDS, Stage};
use crate::server::wire::HEADER_WORDS;

/// A message on its way.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) content: Content,
    /// What it takes on a link.
    pub(super) seconds: f64,
}

/// What a message carries.
#[derive(Debug)]
pub(super) enum Content {
    /// To a shard: [`crate::server::wire`].
    Push(Vec<u32>),
    /// From a shard.
    Reply(Vec<u32>),
    /// To one of OSP's servers: [`crate::server::osp::wire`]. The body of an end is empty.
    StagePush { head: [u32; HEAD_WORDS], body: Vec<u32> },
    /// From one of OSP's servers.
    StageReply { stage: Stage, header_words: usize, words: Vec<u32> },
}

impl Content {
    /// Bytes that it has on a link.
    pub(super) fn bytes(&self, network: &Network) -> f64 {
        let (header, words) = match self {
            Self::Push(words) | Self::Reply(words) => (HEADER_WORDS, words.len()),
            Self::StagePush { body, .. } => (HEAD_WORDS, HEAD_WORDS + body.len()),
            Self::StageReply { header_words, words, .. } => (*header_words, words.len()),
        };
        let values = words.saturating_sub(header) as f64;
        (header * ELEMENT_BYTES) as f64 + values * network.element_bytes
    }
}

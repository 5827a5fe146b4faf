//! The parameter server of ASP and its relatives, in shards that are co-located with the ranks;
//! OSP's is in [`osp`].
//!
//! Owns the shards, their messages, and the thread that serves one. When a worker goes on is up to
//! the shard's rule. Called by the session, which starts one shard per rank and stops it to collect
//! them.
//!
//! ```text
//! worker 0 ──push──▶ ┌─────────────┐ ◀── rule: apply or gather, reply or hold
//! worker 1 ──push──▶ │ thread:     │ ──reply──▶ the workers that may go on
//! worker 2 ──push──▶ │ one shard   │ ◀── audit: is the promise kept?
//!    of every rank   └─────────────┘ until all workers are done, or this rank's says stop
//! ```

pub mod audit;
pub mod config;
pub mod osp;
pub mod rule;
pub mod shard;
#[cfg(test)]
mod tests;
mod thread;
pub mod wire;

pub(crate) use thread::Server;

/// Tag of messages to a shard.
pub(crate) const PUSH_TAG: u32 = 1;
/// Tag of messages to a worker.
pub(crate) const REPLY_TAG: u32 = 2;

//! Collectives for distributed training over shared memory and TCP.
pub mod memory;
pub mod transport;

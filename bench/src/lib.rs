//! Micro-benchmarks of collectives, in nccl-tests' habits, and of the kernels under them.
//!
//! `syncline perf` is this crate: [`rank::run`] is what every rank executes, [`report`] what the
//! parent prints. Algorithm and bus bandwidth are nccl-tests' definitions (see its page on
//! performance): algbw = bytes / time, busbw = algbw times the factor of the collective, which
//! makes it comparable with the speed of the hardware whatever the number of ranks.
#![forbid(unsafe_code)]

pub mod collective;
pub mod compare;
pub mod kernels;
pub mod machine;
pub mod options;
pub mod p2p;
pub mod rank;
pub mod report;
pub mod stats;

pub use options::PerfOptions;
pub use report::Row;

//! Syncline's protocols as state machines: no socket, no clock, no thread, no `unsafe`.
//!
//! Every protocol here is driven by somebody else: the engine of `syncline-comm` in production,
//! the simulator of `syncline-sim` in tests. Both feed inputs with the current time, drain
//! outputs, and ask when to come back. What a machine decides therefore is the same in both.
//!
//! | module | what it holds |
//! |---|---|
//! | [`id`] | ranks, communicators, message identity |
//! | [`time`] | [`time::Instant`], passed in, never read |
//! | [`machine`] | the one shape of every protocol |
//! | [`call`] | what a call asks for, and its 16-byte fingerprint |
//! | [`fault`] | the one error that crosses ranks |
//! | [`collective`] | plans, the algorithms that make them, the machine that runs them |
//! | [`membership`] | the control plane: meeting, liveness, spread of faults |
//! | [`operations`] | every operation of one rank: contract, deadline, abort |
//! | [`wire`] | frame headers and control messages |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod call;
pub mod collective;
pub mod fault;
pub mod id;
pub mod machine;
pub mod membership;
pub mod operations;
pub mod time;
pub mod wire;

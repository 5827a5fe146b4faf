//! Process tests of the launcher: the real binary, real ranks, real signals. Every wait is
//! bounded, and every process is started, and ended, by the test that needs it.

#![expect(clippy::unwrap_used, reason = "in a test, the failure is the message")]

mod exit;
mod hosts;
mod job;
mod output;
mod signals;
mod support;
mod variables;

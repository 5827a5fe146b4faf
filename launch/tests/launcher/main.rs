//! Process tests of the launcher: the real binary, real ranks, real signals. Every wait is
//! bounded, and every process is started, and ended, by the test that needs it.

mod exit;
mod hosts;
mod job;
mod output;
mod signals;
mod support;
mod variables;

//! Whole-system tests: what only several processes can show.
//!
//! The tests are in `tests/`; here is what they share.

pub mod cluster;
pub mod fold;
pub mod oracle;

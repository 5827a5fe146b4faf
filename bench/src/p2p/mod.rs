//! Point to point between two ranks, in perftest's habits: `syncline perf p2p`.
//!
//! [`options`] is the command line, [`rank`] what both ranks execute, [`report`] rows as
//! perftest's columns and as JSON.

pub mod options;
pub mod rank;
pub mod report;

pub use options::P2pOptions;
pub use report::{P2pReport, P2pRow};

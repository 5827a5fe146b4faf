//! Reports on runs: the comparison table, its JSON, and one HTML file with figures.
//!
//! Owns their form and the statistics over runs. Measures nothing and starts nothing. Called by
//! `syncline report`, with run directories (`syncline::record`) and files of `syncline train
//! --json`.

mod figure;
mod load;
mod measured;
mod page;
mod plane;
mod summary;
#[cfg(test)]
mod tests;

pub use load::{LoadError, load};
pub use measured::{Decided, Measured, Point, SyncTime};
pub use page::page;
pub use summary::{ModelSummary, Stat, Study, TimeToTarget};

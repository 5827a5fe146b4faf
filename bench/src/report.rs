//! Rows, as a table and as JSON.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// `all_reduce` and so on.
    pub collective: String,
    /// Ranks.
    pub ranks: u32,
    /// What joins them.
    pub transport: String,
    /// How it was carried out.
    pub algorithm: String,
    /// Size in bytes, nccl-tests' meaning.
    pub bytes: u64,
    /// Elements.
    pub count: u64,
    /// Element type.
    pub dtype: String,
    /// Reduction, or `none`.
    pub op: String,
    /// Root, or -1.
    pub root: i64,
    /// Measured iterations.
    pub iterations: u64,
    /// Median time of the slowest rank.
    pub p50_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
    /// Shortest.
    pub min_us: f64,
    /// Bytes over median time, in 1e9 bytes per second.
    pub algbw_gbps: f64,
    /// The same times the collective's factor.
    pub busbw_gbps: f64,
    /// Wrong elements on all ranks, in two checked calls.
    pub wrong: u64,
}

/// All measurements of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// In the order measured.
    pub rows: Vec<Row>,
}

/// Column heads that go with a row's [`fmt::Display`].
pub const HEAD: &str = "\
#       size        count    type   redop   root       time   algbw   busbw  #wrong        p99  path
#        (B)   (elements)                               (us)  (GB/s)  (GB/s)               (us)";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, count, dtype, op, root, p50_us, p99_us, .. } = self;
        let Self { algbw_gbps, busbw_gbps, wrong, transport, algorithm, .. } = self;
        write!(
            f,
            "{bytes:>12} {count:>12} {dtype:>7} {op:>7} {root:>6} {p50_us:>10.2} {algbw_gbps:>7.2} \
             {busbw_gbps:>7.2} {wrong:>7} {p99_us:>10.2}  {transport}/{algorithm}"
        )
    }
}

impl Report {
    /// Wrong elements of all rows.
    pub fn wrong(&self) -> u64 {
        self.rows.iter().map(|row| row.wrong).sum()
    }

    /// Mean bus bandwidth, nccl-tests' last line.
    pub fn mean_busbw(&self) -> f64 {
        let sum: f64 = self.rows.iter().map(|row| row.busbw_gbps).sum();
        sum / self.rows.len().max(1) as f64
    }
}

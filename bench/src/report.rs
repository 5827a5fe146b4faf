//! Rows, as a table and as JSON.

use crate::compare::Compared;
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
    /// Grade of its bits: `fast` or `canonical`.
    #[serde(default = "fast")]
    pub determinism: String,
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
    /// 90th percentile of the same; 0 in reports from before there was one.
    #[serde(default)]
    pub p90_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
    /// Shortest.
    pub min_us: f64,
    /// Bytes over median time, in 1e9 bytes per second.
    pub algbw_gbps: f64,
    /// The same times the collective's factor.
    pub busbw_gbps: f64,
    /// CPU seconds of all ranks' processes over the measured iterations, user's and kernel's, for
    /// each GiB (2^30 bytes) of size times iterations; none where the size is 0.
    #[serde(default)]
    pub cpu_s_per_gib: Option<f64>,
    /// What the library expected, where its cost model covers the algorithm.
    #[serde(default)]
    pub predicted_us: Option<f64>,
    /// Calls whose results were checked.
    #[serde(default)]
    pub checked: u64,
    /// Wrong elements on all ranks, in the checked calls.
    pub wrong: u64,
    /// Algorithms that could have been taken, the one that was among them, where asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
}

/// An algorithm that a call could take.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Candidate {
    /// Its name.
    pub algorithm: String,
    /// How long it should take, where the cost model covers it.
    pub predicted_us: Option<f64>,
    /// Why it was not taken; none if it was.
    pub rejected: Option<String>,
}

/// All measurements of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// In the order measured.
    pub rows: Vec<Row>,
    /// Each row beside that of an earlier report, where asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comparison: Vec<Compared>,
}

/// Column heads that go with a row's [`fmt::Display`].
pub const HEAD: &str = concat!(
    "#       size        count    type   redop   root       time   algbw   busbw  #wrong",
    "        p90        p99  CPU s  path\n",
    "#        (B)   (elements)                               (us)  (GB/s)  (GB/s)        ",
    "       (us)       (us)   /GiB",
);

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, count, dtype, op, root, p50_us, p90_us, p99_us, .. } = self;
        let Self { algbw_gbps, busbw_gbps, wrong, transport, algorithm, .. } = self;
        let wrong = if self.checked > 0 { wrong.to_string() } else { "N/A".to_owned() };
        let cpu = self.cpu_s_per_gib.map_or_else(|| "-".to_owned(), short);
        write!(
            f,
            "{bytes:>12} {count:>12} {dtype:>7} {op:>7} {root:>6} {p50_us:>10.2} {algbw_gbps:>7.2} \
             {busbw_gbps:>7.2} {wrong:>7} {p90_us:>10.2} {p99_us:>10.2} {cpu:>6}  \
             {transport}/{algorithm}"
        )
    }
}

/// The grade of reports from before there was another.
fn fast() -> String {
    "fast".to_owned()
}

/// In six columns, as long as it is under a million.
fn short(value: f64) -> String {
    match value {
        _ if value < 10.0 => format!("{value:.3}"),
        _ if value < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
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

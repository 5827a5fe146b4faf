//! Rows of point to point, in perftest's columns and as JSON.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "test", rename_all = "snake_case")]
pub enum P2pRow {
    /// Half round trips.
    Lat(LatRow),
    /// A stream of messages.
    Bw(BwRow),
}

/// Half round trips, in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LatRow {
    /// What joins the two ranks.
    pub transport: String,
    /// Size of a message.
    pub bytes: u64,
    /// Round trips.
    pub iterations: u64,
    /// Shortest.
    pub min_us: f64,
    /// Longest.
    pub max_us: f64,
    /// Median.
    pub typical_us: f64,
    /// Mean.
    pub avg_us: f64,
    /// Standard deviation.
    pub stdev_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Bytes that arrived wrong, of two checked messages.
    pub wrong: u64,
}

/// A stream of messages; MiB are 2^20 bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BwRow {
    /// What joins the two ranks.
    pub transport: String,
    /// Size of a message.
    pub bytes: u64,
    /// Messages in each direction.
    pub iterations: u64,
    /// Whether both ranks sent.
    pub bidirectional: bool,
    /// Messages outstanding.
    pub depth: u32,
    /// The best stretch of messages, from when its first was posted until its last had arrived.
    pub peak_mib_s: f64,
    /// All messages, until all had arrived.
    pub average_mib_s: f64,
    /// Millions of messages per second, on average.
    pub rate_mpps: f64,
    /// CPU seconds of both processes for each GiB (2^30 bytes) that was sent.
    pub cpu_s_per_gib: Option<f64>,
    /// Bytes that arrived wrong, of two checked messages.
    pub wrong: u64,
}

/// All measurements of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct P2pReport {
    /// In the order measured.
    pub rows: Vec<P2pRow>,
}

/// Column heads of latencies.
pub const LAT_HEAD: &str = concat!(
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]",
    "    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]",
);
/// Column heads of bandwidths.
pub const BW_HEAD: &str =
    " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]";

impl P2pRow {
    /// Bytes that arrived wrong.
    pub fn wrong(&self) -> u64 {
        match self {
            Self::Lat(row) => row.wrong,
            Self::Bw(row) => row.wrong,
        }
    }

    /// What joins the two ranks.
    pub fn transport(&self) -> &str {
        match self {
            Self::Lat(row) => &row.transport,
            Self::Bw(row) => &row.transport,
        }
    }
}

impl fmt::Display for P2pRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lat(row) => {
                let LatRow { bytes, iterations, min_us, max_us, typical_us, avg_us, .. } = row;
                let LatRow { stdev_us, p99_us, p999_us, .. } = row;
                write!(
                    f,
                    " {bytes:<7} {iterations:<10} {min_us:>14.2} {max_us:>14.2} \
                     {typical_us:>16.2} {avg_us:>14.2} {stdev_us:>16.2} {p99_us:>22.2} \
                     {p999_us:>24.2}"
                )
            }
            Self::Bw(row) => {
                let BwRow { bytes, iterations, peak_mib_s, average_mib_s, rate_mpps, .. } = row;
                write!(
                    f,
                    " {bytes:<10} {iterations:<11} {peak_mib_s:>18.2} {average_mib_s:>21.2} \
                     {rate_mpps:>15.6}"
                )
            }
        }
    }
}

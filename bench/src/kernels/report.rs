//! Rows of the kernels, as a table and as JSON.

use crate::machine::{Machine, size_text};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a row is called that no cache can help.
const MEMORY: &str = "memory";
/// So many times the last cache is memory's size; a part of less may still be there.
const BEYOND_CACHE: u64 = 4;

/// One measurement. GB/s are 1e9 bytes, read and written.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelRow {
    /// `copy`, `reduce`, `reduce_into`, `reduce_many`.
    pub kernel: String,
    /// `cached` or `streaming`.
    pub stores: String,
    /// Arrays read, without the one written to.
    pub inputs: u32,
    /// Element type; `any` for copies.
    pub dtype: String,
    /// Bytes of one array.
    pub bytes: u64,
    /// Threads.
    pub threads: u32,
    /// The nearest cache that holds all arrays: `L1`, `L2`, `L3`; `memory`, between the last cache
    /// and memory `L3+`, `?` if the caches are not known.
    pub level: String,
    /// Bytes that one call on all threads reads and writes.
    pub moved_bytes: u64,
    /// The kernel.
    pub gbps: f64,
    /// The same pattern in plain Rust.
    pub plain_gbps: f64,
    /// Kernel over plain, median of the rounds' ratios.
    pub plain_ratio: f64,
    /// STREAM's add.
    pub stream_gbps: f64,
    /// Kernel over STREAM's add, as above.
    pub stream_ratio: f64,
}

/// All measurements of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct KernelReport {
    /// What they were measured on.
    pub machine: Machine,
    /// The kernels' variant.
    pub variant: String,
    /// Cores that everything else used meanwhile, if known.
    pub others_cores: Option<f64>,
    /// In the order measured.
    pub rows: Vec<KernelRow>,
}

/// Column heads that go with a row's [`fmt::Display`].
pub const HEAD: &str = concat!(
    "# kernel       stores     inputs  type  array  threads  level    GB/s",
    "   plain  ratio  STREAM  ratio",
);

impl fmt::Display for KernelRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, stores, inputs, dtype, threads, level, .. } = self;
        let Self { gbps, plain_gbps, plain_ratio, stream_gbps, stream_ratio, .. } = self;
        let array = size_text(self.bytes);
        write!(
            f,
            "  {kernel:<12} {stores:<9} {inputs:>7} {dtype:>5} {array:>6} {threads:>8}  \
             {level:<6} {gbps:>6.1} {plain_gbps:>7.1} {plain_ratio:>6.2} {stream_gbps:>7.1} \
             {stream_ratio:>6.2}"
        )
    }
}

/// The name of the level of the memory that such arrays are in. The last cache is shared by all
/// threads, the others are each core's own.
pub(super) fn level(caches: &[u64], bytes_per_thread: u64, threads: u32) -> &'static str {
    const NAMES: [&str; 4] = ["L1", "L2", "L3", "L4"];
    let Some((last, own)) = caches.split_last() else { return "?" };
    if let Some((_, name)) = own.iter().zip(NAMES).find(|(size, _)| bytes_per_thread <= **size) {
        return name;
    }
    let all = bytes_per_thread * u64::from(threads);
    match all {
        _ if all <= *last => NAMES[own.len().min(NAMES.len() - 1)],
        _ if all < BEYOND_CACHE * *last => "L3+",
        _ => MEMORY,
    }
}

impl KernelReport {
    /// What the rows say about the goal, and how far to trust them; lines of a table.
    pub fn verdict(&self, goal: f64) -> String {
        let memory: Vec<&KernelRow> = self.rows.iter().filter(|row| row.level == MEMORY).collect();
        let short: Vec<_> = memory.iter().filter(|row| row.plain_ratio < goal).collect();
        let percent = (goal * 1e6).round() / 1e4;
        let mut text = format!(
            "# {} of {} rows at memory's size reach {percent} % of the plain way\n",
            memory.len() - short.len(),
            memory.len()
        );
        for row in short {
            text += &format!(
                "#   below: {} {}, {} inputs, {}, {}, {} threads: {:.1} % of the plain way\n",
                row.kernel,
                row.stores,
                row.inputs,
                row.dtype,
                size_text(row.bytes),
                row.threads,
                row.plain_ratio * 100.0
            );
        }
        match self.others_cores {
            Some(cores) => text += &format!("# load of the rest of the machine: {cores:.2} cores"),
            None => text += "# load of the rest of the machine: unknown",
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_where_they_fit() {
        let caches = [32 << 10, 512 << 10, 32 << 20];
        let of = |bytes, threads| level(&caches, bytes, threads);
        assert_eq!([of(32 << 10, 2), of(33 << 10, 1), of(1 << 20, 1)], ["L1", "L2", "L3"]);
        assert_eq!([of(20 << 20, 1), of(20 << 20, 2), of(64 << 20, 2)], ["L3", "L3+", "memory"]);
        assert_eq!(level(&[], 1, 1), "?");
    }

    #[test]
    fn a_row_below_the_goal_is_named() {
        let row = KernelRow {
            kernel: "reduce".into(),
            stores: "cached".into(),
            inputs: 1,
            dtype: "f32".into(),
            bytes: 256 << 20,
            threads: 2,
            level: MEMORY.into(),
            moved_bytes: 3 << 28,
            gbps: 9.0,
            plain_gbps: 10.0,
            plain_ratio: 0.9,
            stream_gbps: 10.0,
            stream_ratio: 0.9,
        };
        let near = KernelRow { level: "L2".into(), ..row.clone() };
        let good = KernelRow { plain_ratio: 0.96, ..row.clone() };
        let rows = vec![row, near, good];
        let report = KernelReport { rows, ..KernelReport::default() };
        let text = report.verdict(0.95);
        assert!(text.starts_with("# 1 of 2 rows"), "{text}");
        assert!(text.contains("reduce cached, 1 inputs, f32, 256M, 2 threads: 90.0 %"), "{text}");
    }
}

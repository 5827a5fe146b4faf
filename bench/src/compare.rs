//! A report beside an earlier one.
//!
//! Owns which rows belong together and what counts as slower. Never measures. Called by
//! `syncline perf --compare` before it measures ([`Earlier::check`]) and after.

use crate::collective::Collective;
use crate::options::PerfOptions;
use crate::report::{Report, Row};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// The rows of an earlier report, for the measurement that is to be compared with it.
#[derive(Clone, Debug)]
pub struct Earlier {
    /// The file, for messages.
    file: String,
    rows: Vec<Row>,
}

/// One row, then and now.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Compared {
    /// Ranks.
    pub ranks: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// Median time then.
    pub old_us: f64,
    /// Median time now.
    pub new_us: f64,
    /// New over old.
    pub ratio: f64,
    /// Whether the ratio is over one by more than the threshold.
    pub slower: bool,
    /// Transport and algorithm, then and now where they differ.
    pub path: String,
}

/// Column heads that go with a [`Compared`]'s [`fmt::Display`].
pub const HEAD: &str = "#       size  ranks    old (us)    new (us)   ratio";

impl Earlier {
    /// Reads what `--json` wrote.
    ///
    /// # Errors
    /// The file cannot be read, or is no such report; in words.
    pub fn read(path: &Path) -> Result<Self, String> {
        let file = path.display().to_string();
        let text = std::fs::read(path).map_err(|error| format!("cannot read {file}: {error}"))?;
        let report: Report = serde_json::from_slice(&text).map_err(|error| {
            format!("{file} is not what `syncline perf COLLECTIVE --json` writes: {error}")
        })?;
        Ok(Self { file, rows: report.rows })
    }

    /// Whether every row that `options` will measure has its earlier one.
    ///
    /// # Errors
    /// It has not, with what is missing and what is there.
    pub fn check(&self, options: &PerfOptions) -> Result<(), String> {
        let file = &self.file;
        let collective = options.collective;
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        let mut keep = |what: &str, wanted: String, of: &dyn Fn(&Row) -> String| {
            let mut there: Vec<String> = rows.iter().map(|row| of(row)).collect();
            there.dedup();
            rows.retain(|row| of(row) == wanted);
            if !rows.is_empty() {
                return Ok(());
            }
            Err(match there.is_empty() {
                true => format!("{file} has no rows"),
                false => format!("{file} has {what} {}, not {wanted}", there.join(", ")),
            })
        };
        keep("collective", collective.name().into(), &|row| row.collective.clone())?;
        keep("type", options.dtype.to_string(), &|row| row.dtype.clone())?;
        keep("operation", collective.op_name(options.op), &|row| row.op.clone())?;
        keep("root", collective.root_shown(options.root).to_string(), &|row| row.root.to_string())?;
        if let Some(row) = rows.iter().find(|row| row.p50_us <= 0.0) {
            return Err(format!("{file} has a row of {} bytes without a time", row.bytes));
        }
        for ranks in &options.ranks {
            let same: Vec<u64> =
                rows.iter().filter(|row| row.ranks == *ranks).map(|row| row.bytes).collect();
            if same.is_empty() {
                return Err(format!("{file} has no rows of {ranks} ranks"));
            }
            for bytes in sizes(options, collective, *ranks) {
                if !same.contains(&bytes) {
                    let there: Vec<String> = same.iter().map(ToString::to_string).collect();
                    let there = there.join(", ");
                    return Err(format!(
                        "{file} has no row of {bytes} bytes on {ranks} ranks; it has {there}. \
                         Give the -b, -e and -f it was measured with"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Each of `rows` beside its earlier one, which [`check`](Self::check) has found to be there.
    /// Of several alike, the first counts. A row is slower when it takes over `1 + threshold`
    /// times as long.
    pub fn compare(&self, rows: &[Row], threshold: f64) -> Vec<Compared> {
        rows.iter()
            .filter_map(|new| {
                let old = self.rows.iter().find(|old| key(old) == key(new))?;
                let ratio = new.p50_us / old.p50_us;
                let [was, is] =
                    [old, new].map(|row| format!("{}/{}", row.transport, row.algorithm));
                Some(Compared {
                    ranks: new.ranks,
                    bytes: new.bytes,
                    old_us: old.p50_us,
                    new_us: new.p50_us,
                    ratio,
                    slower: ratio > 1.0 + threshold,
                    path: if was == is { is } else { format!("{was} -> {is}") },
                })
            })
            .collect()
    }

    /// Rows that none of `rows` is compared with.
    pub fn unused(&self, rows: &[Row]) -> usize {
        self.rows.iter().filter(|old| rows.iter().all(|new| key(new) != key(old))).count()
    }
}

/// What makes two rows the same measurement.
fn key(row: &Row) -> (&str, u32, u64, &str, &str, i64) {
    (&row.collective, row.ranks, row.bytes, &row.dtype, &row.op, row.root)
}

/// Sizes as rows will have them.
fn sizes(options: &PerfOptions, collective: Collective, ranks: u32) -> Vec<u64> {
    let sizes = options.sizes().into_iter();
    sizes.map(|bytes| collective.actual_bytes(bytes, options.dtype, ranks)).collect()
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, bytes, old_us, new_us, ratio, path, .. } = self;
        let mark = if self.slower { "  SLOWER" } else { "" };
        write!(f, "{bytes:>12} {ranks:>6} {old_us:>11.2} {new_us:>11.2} {ratio:>7.2}  {path}{mark}")
    }
}

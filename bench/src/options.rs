//! Command line of `syncline perf`.

use crate::collective::Collective;
use clap::Args;
use std::path::PathBuf;
use syncline_comm::{DType, Determinism, ReduceOp, TransportChoice};

/// Examples shown by `--help`.
pub const EXAMPLES: &str = "\
Examples:
  syncline perf all_reduce -n 2,4,8
  syncline perf all_gather -n 4 -b 1K -e 64M -f 4 --transport tcp
  syncline perf all_reduce -n 2 -d bf16 -o max --json -
  syncline perf send_recv -n 2 -b 8 -e 8
  syncline perf all_reduce -n 2 --json before.json
  syncline perf all_reduce -n 2 --compare before.json --threshold 10%
  syncline perf p2p --lat            between two ranks, in perftest's columns
  syncline perf kernels              the arithmetic alone, beside plain loops

Columns: size of the buffer in bytes, elements, type, operation, root, time (median over
iterations of the slowest rank), algorithm and bus bandwidth in GB/s (1e9 bytes), wrong elements
on all ranks in the checked calls, 90th and 99th percentile, CPU seconds of all ranks together for
each GiB (2^30 bytes) of size times iterations. JSON has all of these, the shortest time and what
the library had predicted.

Exit codes: 0; 1 failed, or results are wrong; 2 the request makes no sense; 3 with --compare, at
least one row is slower than it was by more than --threshold.";

/// What to measure.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PerfOptions {
    /// Collective to measure
    #[arg(value_enum, default_value = "all_reduce")]
    pub collective: Collective,
    /// Numbers of ranks, measured one after the other
    #[arg(short = 'n', long = "ranks", value_delimiter = ',', default_value = "2",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub ranks: Vec<u32>,
    /// Smallest size in bytes
    #[arg(short = 'b', long = "minbytes", default_value = "8", value_parser = parse_bytes)]
    pub min_bytes: u64,
    /// Largest size in bytes
    #[arg(short = 'e', long = "maxbytes", default_value = "64M", value_parser = parse_bytes)]
    pub max_bytes: u64,
    /// Each size is the last one times this
    #[arg(short = 'f', long = "stepfactor", default_value = "4",
          value_parser = clap::value_parser!(u64).range(2..=1024))]
    pub step_factor: u64,
    /// Element type
    #[arg(short = 'd', long = "datatype", default_value = "f32", value_parser = parse_dtype)]
    pub dtype: DType,
    /// Reduction
    #[arg(short = 'o', long = "op", default_value = "sum", value_parser = parse_op)]
    pub op: ReduceOp,
    /// Root of rooted collectives
    #[arg(short = 'r', long = "root", default_value = "0")]
    pub root: u32,
    /// Iterations before measuring
    #[arg(short = 'w', long = "warmup-iters", default_value = "3")]
    pub warmup: u32,
    /// Calls whose results are checked, before measuring and again after it; 0 checks nothing
    #[arg(short = 'c', long = "check", value_name = "N", num_args = 0..=1,
          default_value = "1", default_missing_value = "1",
          value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub check: u32,
    /// Measured iterations; by default as many as fit into --budget-ms
    #[arg(long = "iters", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: Option<u32>,
    /// Time per size
    #[arg(long = "budget-ms", default_value = "300")]
    pub budget_ms: u64,
    /// How ranks of this host reach each other: auto, shm or tcp
    #[arg(long, default_value = "auto", value_parser = parse_transport)]
    pub transport: TransportChoice,
    /// Force an algorithm: direct, halving_doubling, hierarchical, node, recursive_doubling, ring,
    /// tree
    #[arg(long)]
    pub algorithm: Option<String>,
    /// Bits of reductions: fast (whatever algorithm is fastest) or canonical (of one fold in the
    /// order of ranks); by default what SYNCLINE_DETERMINISM says
    #[arg(long, value_parser = parse_determinism)]
    pub determinism: Option<Determinism>,
    /// Deadline of every call, in seconds
    #[arg(long = "timeout-s", default_value = "60")]
    pub timeout_s: f64,
    /// Write {"rows":[...]} to a file, or to standard output with -. A file that is there is
    /// replaced when all is measured, and kept if that fails
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<String>,
    /// Compare with what an earlier --json wrote: median times, row by row
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
    /// With --compare, how much longer a row may take
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = parse_percent)]
    pub threshold: f64,
    /// Add to each row what else could have been taken
    #[arg(long = "explains", hide = true)]
    pub explains: bool,
}

impl PerfOptions {
    /// The sizes to measure, in bytes.
    pub fn sizes(&self) -> Vec<u64> {
        let next = |bytes: &u64| bytes.checked_mul(self.step_factor);
        let mut sizes: Vec<u64> = std::iter::successors(Some(self.min_bytes.max(1)), next)
            .take_while(|bytes| *bytes <= self.max_bytes)
            .collect();
        if self.collective == Collective::Barrier {
            sizes.truncate(1);
        }
        sizes
    }

    /// The same measurement as a command line for one rank.
    pub fn to_arguments(&self) -> Vec<String> {
        let mut arguments = vec![self.collective.name().to_owned()];
        let mut put = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
        put("-b", self.min_bytes.to_string());
        put("-e", self.max_bytes.to_string());
        put("-f", self.step_factor.to_string());
        put("-d", self.dtype.to_string());
        put("-o", self.op.to_string());
        put("-r", self.root.to_string());
        put("-w", self.warmup.to_string());
        put("-c", self.check.to_string());
        put("--budget-ms", self.budget_ms.to_string());
        if let Some(iterations) = self.iterations {
            put("--iters", iterations.to_string());
        }
        if self.explains {
            arguments.push("--explains".to_owned());
        }
        arguments
    }

    /// Settings of the ranks, as the communicator's variables.
    pub fn to_variables(&self) -> Vec<(String, String)> {
        let mut variables = rank_variables(self.transport, self.timeout_s);
        if let Some(algorithm) = &self.algorithm {
            variables.push(("SYNCLINE_ALGORITHM".into(), algorithm.clone()));
        }
        if let Some(determinism) = self.determinism {
            variables.push(("SYNCLINE_DETERMINISM".into(), determinism.to_string()));
        }
        variables
    }
}

/// Transport and deadline, as the communicator's variables.
pub(crate) fn rank_variables(transport: TransportChoice, timeout_s: f64) -> Vec<(String, String)> {
    vec![
        ("SYNCLINE_TRANSPORT".into(), transport.name().to_owned()),
        ("SYNCLINE_TIMEOUT_S".into(), timeout_s.to_string()),
    ]
}

/// `8`, `4K`, `64M`, `1G`: powers of 1024.
///
/// # Errors
/// The text is nothing like it, in words.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim().trim_end_matches(['b', 'B']).trim_end_matches(['i', 'I']);
    let (number, scale) = match trimmed.char_indices().last() {
        Some((at, 'k' | 'K')) => (&trimmed[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&trimmed[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&trimmed[..at], 1 << 30),
        _ => (trimmed, 1_u64),
    };
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} is not like 8, 4K, 64M or 1G"))?;
    number.checked_mul(scale).ok_or_else(|| format!("{text} is too large"))
}

/// `10%`, as a share.
pub(crate) fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').and_then(|number| number.trim_end().parse().ok());
    let percent = number.filter(|percent| (0.0..=1e6).contains(percent));
    percent.map(|percent: f64| percent / 100.0).ok_or_else(|| format!("{text:?} is not like 10%"))
}

/// `f32`, `bf16` and so on.
pub(crate) fn parse_dtype(text: &str) -> Result<DType, String> {
    text.parse().map_err(|_| {
        let known: Vec<_> = DType::ALL.iter().map(ToString::to_string).collect();
        format!("{text:?} is none of {}", known.join(", "))
    })
}

fn parse_op(text: &str) -> Result<ReduceOp, String> {
    text.parse().map_err(|_| format!("{text:?} is none of sum, prod, min, max, avg"))
}

fn parse_determinism(text: &str) -> Result<Determinism, String> {
    text.parse().map_err(|error: syncline_comm::Error| error.to_string())
}

/// `auto`, `shm`, `tcp`.
pub(crate) fn parse_transport(text: &str) -> Result<TransportChoice, String> {
    text.parse().map_err(|error: syncline_comm::Error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_nccl_tests_users_write_them() {
        for (text, bytes) in [("8", 8), ("4K", 4096), ("64M", 64 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1T", "99999999999G"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_threshold_says_percent() {
        assert_eq!(parse_percent("10%"), Ok(0.1));
        assert_eq!(parse_percent("0 %"), Ok(0.0));
        for text in ["", "%", "0.1", "-5%", "NaN%", "inf%", "1e9%"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }
}

//! Command line of `syncline perf p2p`.

use crate::options::{parse_bytes, parse_transport, rank_variables};
use clap::{ArgGroup, Args};
use syncline_comm::TransportChoice;

/// Examples shown by `--help`.
pub const EXAMPLES: &str = "\
Examples:
  syncline perf p2p --lat                      2 bytes there and back, 1000 times
  syncline perf p2p --lat -a --transport tcp   all sizes from 2 to 2^23
  syncline perf p2p --bw -s 1M -n 500 -t 16    a stream with 16 messages outstanding
  syncline perf p2p --bw -b --json -           both ways at once

The columns are perftest's. Latency: half the time of a round trip, in microseconds; t_typical is
the median. Bandwidth: MB are 2^20 bytes, as in perftest. The average is that of all messages,
until the receiver says that it has them all; the peak is that of the best stretch of 1, 2, 4, ...
messages, from when its first was posted until its last had arrived. With -b both count the
messages of the two directions over the same time. One message of each size is checked in each
direction.

Exit codes: 0; 1 failed, or bytes arrived wrong; 2 the request makes no sense.";

/// Ranks of a measurement.
pub const RANKS: u32 = 2;
/// The largest size of `--all`, in bytes.
const ALL_BYTES_MAX: u64 = 1 << 23;
/// The largest size, in bytes.
const BYTES_MAX: u64 = 1 << 32;
/// Buffers of one direction take no more than this and one message, in bytes.
const WINDOW_BYTES_MAX: u64 = 256 << 20;

/// What to measure between two ranks.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES,
          group = ArgGroup::new("what").args(["lat", "bw"]).required(true).multiple(false))]
pub struct P2pOptions {
    /// Latency: half a round trip
    #[arg(long)]
    pub lat: bool,
    /// Bandwidth: messages one after the other
    #[arg(long)]
    pub bw: bool,
    /// Size of a message in bytes [default: 2, or 64K with --bw]
    #[arg(short = 's', long, value_parser = parse_bytes, conflicts_with = "all")]
    pub size: Option<u64>,
    /// All sizes from 2 to 2^23 bytes, in powers of two
    #[arg(short = 'a', long)]
    pub all: bool,
    /// Measured iterations (not ranks: those are two)
    #[arg(short = 'n', long = "iters", default_value = "1000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: u32,
    /// Iterations before measuring [default: a tenth of those measured]
    #[arg(short = 'w', long = "warmup-iters")]
    pub warmup: Option<u32>,
    /// Both ways at once; with --bw
    #[arg(short = 'b', long, conflicts_with = "lat")]
    pub bidirectional: bool,
    /// Messages outstanding, less if they took over 256 MiB; with --bw
    #[arg(short = 't', visible_short_alias = 'q', long, default_value = "128",
          conflicts_with = "lat",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub tx_depth: u32,
    /// Ranks; only 2 makes sense
    #[arg(long, default_value = "2")]
    pub ranks: u32,
    /// How ranks of this host reach each other: auto, shm or tcp
    #[arg(long, default_value = "auto", value_parser = parse_transport)]
    pub transport: TransportChoice,
    /// Deadline of every message, in seconds
    #[arg(long = "timeout-s", default_value = "60")]
    pub timeout_s: f64,
    /// Write {"rows":[...]} to a file, or to standard output with -. A file that is there is
    /// replaced when all is measured, and kept if that fails
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<String>,
}

impl P2pOptions {
    /// Whether the request makes sense.
    ///
    /// # Errors
    /// It does not, in words.
    pub fn check(&self) -> Result<(), String> {
        if self.ranks != RANKS {
            let ranks = self.ranks;
            return Err(format!(
                "p2p is measured between {RANKS} ranks, not {ranks}; `syncline perf send_recv -n \
                 {ranks}` passes messages around a ring"
            ));
        }
        match self.size {
            Some(bytes) if !(1..=BYTES_MAX).contains(&bytes) => {
                Err(format!("--size {bytes} does not lie in 1..={BYTES_MAX}"))
            }
            _ => Ok(()),
        }
    }

    /// The sizes to measure, in bytes.
    pub fn sizes(&self) -> Vec<u64> {
        if self.all {
            return (1..=ALL_BYTES_MAX.ilog2()).map(|power| 1 << power).collect();
        }
        vec![self.size.unwrap_or(if self.bw { 64 << 10 } else { 2 })]
    }

    /// Iterations before measuring.
    pub fn warmup(&self) -> u32 {
        self.warmup.unwrap_or_else(|| self.iterations.div_ceil(10))
    }

    /// Messages of so many bytes that may be outstanding.
    pub fn depth(&self, bytes: u64) -> u32 {
        let most = (WINDOW_BYTES_MAX / bytes.max(1)).max(1);
        self.tx_depth.min(u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// The same measurement as a command line for one rank.
    pub fn to_arguments(&self) -> Vec<String> {
        let mut arguments = vec![if self.bw { "--bw" } else { "--lat" }.to_owned()];
        let mut put = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
        if let Some(bytes) = self.size {
            put("-s", bytes.to_string());
        }
        put("-n", self.iterations.to_string());
        put("-w", self.warmup().to_string());
        if self.bw {
            put("-t", self.tx_depth.to_string());
        }
        let flags = [(self.all, "-a"), (self.bidirectional, "-b")];
        arguments.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, f)| (*f).to_owned()));
        arguments
    }

    /// Settings of the ranks, as the communicator's variables.
    pub fn to_variables(&self) -> Vec<(String, String)> {
        rank_variables(self.transport, self.timeout_s)
    }
}

//! The command line of `syncline simulate`. Owns names, checks and help; defaults that depend on a
//! testbed are `plan`'s. Parsed by the binary.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::testbed::Testbed;
use crate::model::NetKind;
use crate::spec::{Straggler, SyncModel};
use crate::units::{LinkRate, parse_latency};

/// Longer explanation under the options.
pub const EXAMPLES: &str = "\
Examples:
  syncline simulate
      BSP, OSP and ASP on 8 and 64 ranks over 1, 10, 25 and 100 Gbit/s: a model of 100 MB that
      computes 100 ms a step
  syncline simulate --ranks 8,64,1024 --bandwidth 10G --bytes 400MB --compute 250ms --jitter 0.1
      a larger model, ranks that differ by chance
  syncline simulate --gradients real --ranks 4 --bandwidth 150mbit --compute 24ms
      a small network learns the embedded digits: accuracy over virtual time
  syncline simulate --straggler 3:30ms:10-40 --json results.json
      rank 3 computes 30 ms longer in steps 10 to 40
  syncline simulate --testbed osp9
      8 ranks at 10 Gbit/s, in the manner of a paper; what differs is printed

What is simulated, and what is left out, is said in the library's documentation of
syncline::simulation: no congestion in the switch, no cost of updates, no packet headers.

Exit codes: 0 done, 1 failed, 2 usage.";

/// Options of `syncline simulate`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SimulateOptions {
    /// Synchronisation models
    #[arg(long, value_delimiter = ',', default_value = "bsp,osp,asp", value_name = "LIST")]
    pub models: Vec<SyncModel>,

    /// Numbers of ranks [default: 8,64; with real gradients 8]
    #[arg(long, short = 'n', value_delimiter = ',', value_name = "LIST",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: Vec<u32>,

    /// Rates of each rank's link, in each direction: 10G, 100mbit, 12.5MB/s, none [default:
    /// 1G,10G,25G,100G]
    #[arg(long, value_delimiter = ',', value_parser = parse_rate, value_name = "LIST")]
    pub bandwidth: Vec<LinkRate>,

    /// Time of each message's way: 30us, 1ms
    #[arg(long, default_value = "30us", value_parser = parse_latency, value_name = "TIME")]
    pub latency: Duration,

    /// Bytes of the model on the wire: 100MB, 98MiB [default: 100MB; with real gradients the
    /// network's own]
    #[arg(long, value_parser = parse_bytes, value_name = "BYTES")]
    pub bytes: Option<u64>,

    /// Time of a forward and backward pass; several, as measured, of which each step of each rank
    /// draws one [default: 100ms]
    #[arg(long, value_delimiter = ',', value_parser = parse_compute, value_name = "LIST")]
    pub compute: Vec<Duration>,

    /// Share of each pass that is random, 0 to 1, with an exponential tail
    #[arg(long, default_value_t = 0.0, value_parser = parse_share, value_name = "X")]
    pub jitter: f64,

    /// Make a rank compute longer, in each step or in steps FROM to TO, counted from the first
    /// measured one; can be given several times
    #[arg(long = "straggler", value_name = "RANK:TIME[:FROM-TO]")]
    pub stragglers: Vec<Straggler>,

    /// Whether a network learns, or only times are computed
    #[arg(long, value_enum, default_value_t = GradientKind::None)]
    pub gradients: GradientKind,

    /// Samples per rank and step [default: 32]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536), value_name = "N")]
    pub batch: Option<u32>,

    /// Measured steps of each rank, rounded up to a multiple of 4; without gradients [default: 12]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000), value_name = "N")]
    pub steps: Option<u64>,

    /// Passes over the training images; with real gradients
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000),
          value_name = "N")]
    pub epochs: u32,

    /// Learning rate; with real gradients
    #[arg(long, default_value_t = 0.05, value_parser = parse_rate_of_learning, value_name = "X")]
    pub lr: f32,

    /// Momentum; with real gradients
    #[arg(long, default_value_t = 0.9, value_parser = parse_momentum, value_name = "X")]
    pub momentum: f32,

    /// Which network learns; with real gradients
    #[arg(long, value_enum, default_value_t = NetKind::Cnn)]
    pub net: NetKind,

    /// Accuracy whose time is asked for; with real gradients
    #[arg(long, default_value_t = 0.9, value_parser = parse_share, value_name = "X")]
    pub target: f64,

    /// Defaults in the manner of a paper's testbed
    #[arg(long, value_enum)]
    pub testbed: Option<Testbed>,

    /// Fixes everything that is drawn at random
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Write results as JSON; - means standard output, and moves the table to standard error
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// No progress bars
    #[arg(long, short)]
    pub quiet: bool,
}

/// Where gradients come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GradientKind {
    /// Nowhere: the models run on a small stand-in, whose bytes count as those of the large model
    None,
    /// A small network on the embedded digits, up to 64 ranks
    Real,
}

/// As [`LinkRate`], and `10G` for 10 Gbit/s, as network cards are named.
fn parse_rate(text: &str) -> Result<LinkRate, String> {
    let is_short = text.ends_with(['G', 'M']);
    let long = if is_short { format!("{text}bit") } else { text.to_owned() };
    LinkRate::from_str(&long).map_err(|error| error.to_string())
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 7] = [
        ("", 1.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", 1024.0),
        ("MiB", 1024.0 * 1024.0),
        ("GiB", 1024.0 * 1024.0 * 1024.0),
    ];
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = UNITS.iter().find(|(name, _)| *name == text[end..].trim());
    let number = text[..end].parse::<f64>().ok();
    let bytes = unit.zip(number).map(|((_, factor), number)| number * factor);
    let bytes = bytes.filter(|bytes| (1e3..=1e13).contains(bytes));
    let hint = "write 500kB, 100MB, 98MiB or 1.4GB, between 1 kB and 10 TB";
    bytes.map(|bytes| bytes.round() as u64).ok_or_else(|| hint.to_owned())
}

fn parse_compute(text: &str) -> Result<Duration, String> {
    let time = parse_latency(text).map_err(|error| error.to_string())?;
    if time.is_zero() { Err("a computation takes some time".to_owned()) } else { Ok(time) }
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a number from 0 to 1".to_owned())
}

fn parse_rate_of_learning(text: &str) -> Result<f32, String> {
    let lr = text.parse::<f32>().ok().filter(|lr| lr.is_finite() && *lr > 0.0);
    lr.ok_or_else(|| "a learning rate is a number above 0".to_owned())
}

fn parse_momentum(text: &str) -> Result<f32, String> {
    let momentum = text.parse::<f32>().ok().filter(|momentum| (0.0..1.0).contains(momentum));
    momentum.ok_or_else(|| "momentum is a number from 0 to below 1".to_owned())
}

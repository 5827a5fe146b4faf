//! The command line of `syncline train`. Owns names, defaults, checks and help; does nothing
//! itself. Parsed by the binary, read by `driver`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::data::DataKind;
use crate::model::NetKind;
use crate::spec::{RunSpec, SyncModel, TransportKind};
use crate::units::{LinkRate, parse_latency};

/// Longer explanation under the options, for the binary's `after_help`.
pub const EXAMPLES: &str = "\
Examples:
  syncline train
      4 ranks on this host train on the embedded digits, under BSP and then under OSP
  syncline train --models bsp,osp,asp --seeds 1,2,3,4,5 --json results.json
      three models, five seeds each; the table shows mean and standard deviation
  syncline train --link-rate 100mbit --link-latency 200us
      the same over a slower link
  syncline train --link-rate none --transport shm
      as fast as this host can
  syncline train --data fashion-mnist --data-dir ./fashion --epochs 3
      a larger set, read from its four IDX files";

/// Options of `syncline train`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TrainOptions {
    /// Synchronisation models to train under, one run after the other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bsp,osp", value_name = "LIST")]
    pub models: Vec<SyncModel>,

    /// Number of ranks, each a process on this host
    #[arg(long, short = 'n', default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    pub ranks: u32,

    /// Fixes the data's division and order and the initial parameters
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Several seeds, each a run per model; the table shows mean and standard deviation
    #[arg(long, value_delimiter = ',', conflicts_with = "seed", value_name = "LIST")]
    pub seeds: Vec<u64>,

    /// Passes over the training images [default: 25 for digits, 5 for the larger sets]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    pub epochs: Option<u32>,

    /// Images per rank and step
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536),
          value_name = "N")]
    pub batch: u32,

    /// Learning rate
    #[arg(long, default_value_t = 0.05, value_parser = parse_lr, value_name = "X")]
    pub lr: f32,

    /// Momentum; 0 for none
    #[arg(long, default_value_t = 0.9, value_parser = parse_momentum, value_name = "X")]
    pub momentum: f32,

    /// What to train on
    #[arg(long, value_enum, default_value_t = DataKind::Digits)]
    pub data: DataKind,

    /// Folder with the IDX files of fashion-mnist or mnist, packed (.gz) or not
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Which network
    #[arg(long, value_enum, default_value_t = NetKind::Cnn)]
    pub net: NetKind,

    /// What carries the bytes
    #[arg(long, value_enum, default_value_t = TransportKind::Auto)]
    pub transport: TransportKind,

    /// Pace of each rank's link: 100mbit, 1gbit, 12.5MB/s, or none to not hold it back
    #[arg(long, default_value = DEFAULT_LINK_RATE, value_name = "RATE")]
    pub link_rate: LinkRate,

    /// Time added to every message's way: 200us, 1ms
    #[arg(long, default_value = "0", value_parser = parse_latency, value_name = "TIME")]
    pub link_latency: Duration,

    /// Write results as JSON; - means standard output, and moves the table to standard error
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Where the plot of accuracy against time goes
    #[arg(long, default_value = "runs/train.svg", value_name = "FILE")]
    pub plot: PathBuf,

    /// Draw no plot
    #[arg(long, conflicts_with = "plot")]
    pub no_plot: bool,

    /// No progress bars
    #[arg(long, short)]
    pub quiet: bool,
}

/// Slow enough that exchanging all gradients takes about as long as computing them here.
const DEFAULT_LINK_RATE: &str = "150mbit";

impl TrainOptions {
    /// All runs in order: for each seed each model once, so that a change in the machine's speed
    /// meets all models alike. A model or seed named twice runs once.
    pub fn runs(&self) -> Vec<RunSpec> {
        let mut runs: Vec<RunSpec> = Vec::new();
        let one = [self.seed];
        let seeds = if self.seeds.is_empty() { &one[..] } else { &self.seeds };
        for (seed, model) in
            seeds.iter().flat_map(|seed| self.models.iter().map(move |m| (seed, m)))
        {
            let run = self.run(*model, *seed);
            if !runs.contains(&run) {
                runs.push(run);
            }
        }
        runs
    }

    /// Whether results go to standard output as JSON.
    pub fn json_to_stdout(&self) -> bool {
        self.json.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    fn run(&self, model: SyncModel, seed: u64) -> RunSpec {
        RunSpec {
            model,
            seed,
            ranks: self.ranks,
            epochs: self.epochs.unwrap_or_else(|| self.data.default_epochs()),
            batch: self.batch,
            lr: self.lr,
            momentum: self.momentum,
            data: self.data,
            data_dir: self.data_dir.clone(),
            net: self.net,
            transport: self.transport,
            link_rate: self.link_rate,
            link_latency: self.link_latency,
        }
    }
}

fn parse_lr(text: &str) -> Result<f32, String> {
    let lr = text.parse::<f32>().ok().filter(|lr| lr.is_finite() && *lr > 0.0);
    lr.ok_or_else(|| "a learning rate is a number above 0".to_owned())
}

fn parse_momentum(text: &str) -> Result<f32, String> {
    let momentum = text.parse::<f32>().ok().filter(|momentum| (0.0..1.0).contains(momentum));
    momentum.ok_or_else(|| "momentum is a number from 0 to below 1".to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        options: TrainOptions,
    }

    /// The options of a command line.
    pub(crate) fn parse(line: &str) -> Result<TrainOptions, String> {
        let words = std::iter::once("train").chain(line.split_whitespace());
        Command::try_parse_from(words).map(|c| c.options).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_sound() {
        Command::command().debug_assert();
    }

    #[test]
    fn defaults_are_the_advertised_demonstration() {
        let options = parse("").unwrap();
        let runs = options.runs();
        let models: Vec<SyncModel> = runs.iter().map(|run| run.model).collect();
        assert_eq!(models, [SyncModel::Bsp, SyncModel::Osp]);
        assert_eq!((runs[0].ranks, runs[0].epochs, runs[0].batch), (4, 25, 32));
        assert_eq!(runs[0].link_rate.mbps(), Some(150.0));
        assert_eq!(options.plot, PathBuf::from("runs/train.svg"));
        assert_eq!(parse("--data mnist").unwrap().runs()[0].epochs, 5);
    }

    #[test]
    fn seeds_and_models_make_runs_without_repeats() {
        let options = parse("--models osp,asp,osp --seeds 3,4").unwrap();
        let runs: Vec<(u64, &str)> =
            options.runs().iter().map(|run| (run.seed, run.model.name())).collect();
        assert_eq!(runs, [(3, "osp"), (3, "asp"), (4, "osp"), (4, "asp")]);
        assert_eq!(parse("--seed 9").unwrap().runs()[0].seed, 9);
    }

    #[test]
    fn bad_values_are_refused_with_a_reason() {
        for (line, reason) in [
            ("--ranks 0", "0 is not in 1..=64"),
            ("--models bsp,xsp", "possible values: asp, bsp, osp"),
            ("--seed 1 --seeds 2", "cannot be used with"),
            ("--epochs 0", "0 is not in 1..=10000"),
            ("--batch 0", "0 is not in 1..=65536"),
            ("--lr -1", "unexpected argument"),
            ("--lr=-1", "a learning rate is a number above 0"),
            ("--lr nan", "a learning rate is a number above 0"),
            ("--momentum 1", "momentum is a number from 0 to below 1"),
            ("--link-rate 100mbps", "write mbit for bits, MB/s for bytes"),
            ("--link-latency 3", "write 500ns, 200us, 1.5ms or 1s"),
            ("--no-plot --plot x", "cannot be used with"),
        ] {
            let message = parse(line).unwrap_err();
            assert!(message.contains(reason), "{line}: {message}");
        }
        assert!(parse("--json -").unwrap().json_to_stdout());
        assert!(!parse("--json x").unwrap().json_to_stdout());
    }
}

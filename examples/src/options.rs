//! The command line of `syncline train`. Owns names, defaults, checks and help; does nothing
//! itself. Parsed by the binary, read by `driver`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use syncline::control::momentum;
use syncline::policy::schedule::Schedule;
use syncline::record::RunDir;

use crate::data::text::DEFAULT_CONTEXT;
use crate::data::{DataKind, DataSource};
use crate::model::NetKind;
use crate::session;
use crate::spec::{
    OptimiserKind, RunSpec, Steering, Straggler, StragglerPolicyKind, SyncModel, TransportKind,
};
use crate::units::{LinkRate, parse_latency};

/// Longer explanation under the options, for the binary's `after_help`.
pub const EXAMPLES: &str = "\
Examples:
  syncline train
      4 ranks on this host train on the embedded digits, under BSP and then under OSP
  syncline train --models bsp,osp,asp --seeds 1,2,3,4,5 --json results.json
      three models, five seeds each; the table shows mean and standard deviation
  syncline train --models bsp,bsp:12.5%+asp,sync-switch --log logs && syncline report logs
      BSP alone, with a planned switch to ASP, and with one that a policy chooses; then the report
  syncline train --models bsp,ddp,mg-wfbp,bsp-buckets,osp
      BSP with reductions after the backward pass; during it, in buckets as DDP cuts them, as
      MG-WFBP does, or as ends first by measured times; and OSP
  syncline train --link-rate 100mbit --link-latency 200us
      the same over a slower link
  syncline train --link-rate none --transport shm
      as fast as this host can
  syncline train --data fashion-mnist --data-dir ./fashion --epochs 3
      a larger set, read from its four IDX files
  syncline train --models bsp,osp,osp:cap=0.95,ssp:staleness=5
      models with other settings than their defaults
  syncline train --data shakespeare.txt --train-limit 200000 --link-rate none
      a language model: the next byte of a text, from the 32 before it";

/// Options of `syncline train`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TrainOptions {
    /// Synchronisation models to train under, one run after the other, each with settings if
    /// need be, as in osp:cap=0.95:span=2 (osp:? names those of osp); a plan such as
    /// bsp:12.5%+asp runs under BSP for 12.5 % of the samples and then under ASP; sync-switch
    /// starts under BSP and goes over to ASP by itself when the gradients' noise allows it
    #[arg(long, value_delimiter = ',', default_value = "bsp,osp", value_name = "LIST")]
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

    /// Passes over the training items [default: 25 for digits, 5 for the larger sets, 1 for a text]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    pub epochs: Option<u32>,

    /// Images that go through a rank's network at once
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536),
          value_name = "N")]
    pub batch: u32,

    /// Learning rate
    #[arg(long, default_value_t = 0.05, value_parser = parse_lr, value_name = "X")]
    pub lr: f32,

    /// Momentum; 0 for none
    #[arg(long, default_value_t = 0.9, value_parser = parse_momentum, value_name = "X")]
    pub momentum: f32,

    /// How parameters follow from gradients
    #[arg(long, value_enum, default_value_t = OptimiserKind::Sgd)]
    pub optimiser: OptimiserKind,

    /// Pull of the parameters towards 0; 0 for none
    #[arg(long, default_value_t = 0.0, value_parser = parse_weight_decay, value_name = "X")]
    pub weight_decay: f32,

    /// Shorten gradients whose norm over all tensors is above X
    #[arg(long, value_parser = parse_clip_norm, value_name = "X")]
    pub clip_norm: Option<f32>,

    /// Course of the learning rate over the samples of all ranks, such as
    /// cosine:total=36000,warmup=2000 or step:0.1@18000,27000 [default: constant]
    #[arg(long, value_parser = parse_schedule, value_name = "TEXT")]
    pub schedule: Option<String>,

    /// Make a rank sleep in each step, or in steps FROM to TO; can be given several times
    #[arg(long = "straggler", value_name = "RANK:TIME[:FROM-TO]")]
    pub stragglers: Vec<Straggler>,

    /// What to train on: digits, fashion-mnist, mnist, text:FILE, or FILE.txt
    #[arg(long, default_value = "digits", value_name = "DATA")]
    pub data: DataSource,

    /// Folder with the IDX files of fashion-mnist or mnist, packed (.gz) or not
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Train on the first N items only
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub train_limit: Option<u32>,

    /// Measure accuracy on the first N items only [default: 10000 of a text, else all]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub test_limit: Option<u32>,

    /// Bytes of a text that the next one is told from [default: 32]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096), value_name = "N")]
    pub context: Option<u32>,

    /// Which network [default: charlm for a text, else cnn]
    #[arg(long, value_enum)]
    pub net: Option<NetKind>,

    /// What carries the bytes
    #[arg(long, value_enum, default_value_t = TransportKind::Auto)]
    pub transport: TransportKind,

    /// Pace of each rank's link: 100mbit, 1gbit, 12.5MB/s, or none to not hold it back
    #[arg(long, default_value = DEFAULT_LINK_RATE, value_name = "RATE")]
    pub link_rate: LinkRate,

    /// Time added to every message's way: 200us, 1ms
    #[arg(long, default_value = "0", value_parser = parse_latency, value_name = "TIME")]
    pub link_latency: Duration,

    /// Serve metrics for Prometheus while training: rank R on port P + R of 127.0.0.1
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=65_472), value_name = "P")]
    pub metrics_port: Option<u16>,

    /// What the momentum is under ASP, counted from its start: keep, zero, scaled, delayed:UPDATES,
    /// ramp:UPDATES or double:UPDATES
    #[arg(long, default_value = "keep", value_parser = parse_switch_momentum, value_name = "HOW")]
    pub switch_momentum: String,

    /// What to do about ranks that are slow under BSP
    #[arg(long, value_enum, default_value_t = StragglerPolicyKind::None)]
    pub straggler_policy: StragglerPolicyKind,

    /// When training diverges, go back to an earlier state and on under BSP
    #[arg(long)]
    pub guard: bool,

    /// Steps from one measurement of all ranks to the next, where a policy needs them
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000),
          value_name = "STEPS")]
    pub window: u32,

    /// Write run logs for `syncline report` into a folder of DIR for each run
    #[arg(long, value_name = "DIR")]
    pub log: Option<PathBuf>,

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
            let run = self.run(model, *seed);
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

    /// Checks what no option can check alone.
    ///
    /// # Errors
    ///
    /// A network or a setting that the data has no use for, a straggler that is no rank, a sync
    /// model or a course of the momentum that the optimiser does not go with, or run logs where
    /// there are some.
    pub fn check(&self) -> Result<(), String> {
        self.check_data()?;
        let has_momentum = matches!(self.optimiser, OptimiserKind::Sgd | OptimiserKind::Nesterov);
        if !has_momentum && self.switch_momentum != "keep" {
            let name = self.optimiser.name();
            return Err(format!("--switch-momentum is for sgd and nesterov, not for {name}"));
        }
        for run in self.runs() {
            session::check(&run).map_err(|error| error.to_string())?;
        }
        for dir in self.runs().iter().filter_map(|run| run.log.as_ref()) {
            if RunDir::ranks_in(dir).is_ok_and(|ranks| !ranks.is_empty()) {
                let dir = dir.display();
                return Err(format!("--log: there are run logs in {dir}; choose another folder"));
            }
        }
        let stranger = self.stragglers.iter().find(|slow| slow.rank >= self.ranks);
        match stranger {
            Some(slow) => {
                let (rank, ranks) = (slow.rank, self.ranks);
                Err(format!("--straggler {slow}: no rank {rank} among {ranks}, counted from 0"))
            }
            None => Ok(()),
        }
    }

    fn check_data(&self) -> Result<(), String> {
        let is_text = self.data.kind == DataKind::Text;
        let (data, net) = (self.data.kind.name(), self.net().name());
        if is_text != self.net().is_for_text() {
            let wanted = if is_text { "charlm" } else { "cnn or mlp" };
            return Err(format!("--net {net} cannot train on {data}: choose {wanted}"));
        }
        if is_text && self.data_dir.is_some() {
            return Err("--data-dir is for images: the text's file is part of --data".to_owned());
        }
        if !is_text && self.context.is_some() {
            return Err(format!("--context is for a text, and {data} is none"));
        }
        Ok(())
    }

    fn net(&self) -> NetKind {
        let usual = if self.data.kind == DataKind::Text { NetKind::Charlm } else { NetKind::Cnn };
        self.net.unwrap_or(usual)
    }

    fn run(&self, model: &SyncModel, seed: u64) -> RunSpec {
        RunSpec {
            model: model.clone(),
            seed,
            ranks: self.ranks,
            epochs: self.epochs.unwrap_or_else(|| self.data.kind.default_epochs()),
            batch: self.batch,
            lr: self.lr,
            schedule: self.schedule.clone(),
            optimiser: self.optimiser,
            momentum: self.momentum,
            weight_decay: self.weight_decay,
            clip_norm: self.clip_norm,
            stragglers: self.stragglers.clone(),
            data: self.data.kind,
            data_dir: self.data.file.clone().or_else(|| self.data_dir.clone()),
            train_limit: self.train_limit,
            test_limit: self.test_limit.or_else(|| self.data.kind.default_test_limit()),
            context: self.context.unwrap_or(DEFAULT_CONTEXT),
            net: self.net(),
            transport: self.transport,
            link_rate: self.link_rate,
            link_latency: self.link_latency,
            metrics_port: self.metrics_port,
            steering: Steering {
                momentum: self.switch_momentum.clone(),
                stragglers: self.straggler_policy,
                guards: self.guard,
                window: self.window,
            },
            log: self.log.as_ref().map(|dir| dir.join(format!("{}-seed{seed}", model.name()))),
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

fn parse_weight_decay(text: &str) -> Result<f32, String> {
    let decay = text.parse::<f32>().ok().filter(|decay| decay.is_finite() && *decay >= 0.0);
    decay.ok_or_else(|| "weight decay is a number from 0 on".to_owned())
}

fn parse_clip_norm(text: &str) -> Result<f32, String> {
    let norm = text.parse::<f32>().ok().filter(|norm| norm.is_finite() && *norm > 0.0);
    norm.ok_or_else(|| "a norm to clip at is a number above 0".to_owned())
}

fn parse_switch_momentum(text: &str) -> Result<String, String> {
    momentum::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn parse_schedule(text: &str) -> Result<String, String> {
    let schedule = text.parse::<Schedule>().map_err(|error| error.to_string())?;
    Ok(schedule.to_string())
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
        let models: Vec<&str> = runs.iter().map(|run| run.model.name()).collect();
        assert_eq!(models, ["bsp", "osp"]);
        assert_eq!((runs[0].ranks, runs[0].epochs, runs[0].batch), (4, 25, 32));
        assert_eq!(runs[0].link_rate.mbps(), Some(150.0));
        assert_eq!(options.plot, PathBuf::from("runs/train.svg"));
        assert_eq!(parse("--data mnist").unwrap().runs()[0].epochs, 5);
    }

    #[test]
    fn seeds_and_models_make_runs_without_repeats() {
        let runs = parse("--models osp,asp,osp --seeds 3,4").unwrap().runs();
        let runs: Vec<(u64, &str)> = runs.iter().map(|run| (run.seed, run.model.name())).collect();
        assert_eq!(runs, [(3, "osp"), (3, "asp"), (4, "osp"), (4, "asp")]);
        assert_eq!(parse("--seed 9").unwrap().runs()[0].seed, 9);
    }

    #[test]
    fn settings_reach_the_run() {
        let line = "--optimiser adamw --weight-decay 0.01 --clip-norm 2 --schedule cosine:total=90 \
                    --straggler 3:30ms:1-4 --straggler 0:1ms \
                    --train-limit 100 --test-limit 50";
        let options = parse(line).unwrap();
        let run = &options.runs()[0];
        assert_eq!((run.optimiser, run.weight_decay), (OptimiserKind::AdamW, 0.01));
        assert_eq!(
            (run.clip_norm, run.schedule.as_deref()),
            (Some(2.0), Some("cosine:total=90,final=0"))
        );
        let stragglers: Vec<String> = run.stragglers.iter().map(ToString::to_string).collect();
        assert_eq!(stragglers, ["3:30ms:1-4", "0:1ms"]);
        assert_eq!((run.train_limit, run.test_limit), (Some(100), Some(50)));
        assert!(options.check().is_ok());
        let line = "--models bsp:1%+osp:1%+asp --guard";
        assert!(parse(line).unwrap().check().unwrap_err().contains("one or two phases"));
        let error = parse("--models asp:9%+bsp --guard").unwrap().check().unwrap_err();
        assert!(error.contains("wait for each other"), "{error}");
        let error = parse("--ranks 3 --straggler 3:1ms").unwrap().check().unwrap_err();
        assert_eq!(error, "--straggler 3:1ms: no rank 3 among 3, counted from 0");
    }

    #[test]
    fn a_text_brings_its_network_and_its_limits() {
        let options = parse("--data plays.txt --context 16").unwrap();
        assert!(options.check().is_ok());
        let run = &options.runs()[0];
        assert_eq!((run.data, run.net, run.context), (DataKind::Text, NetKind::Charlm, 16));
        assert_eq!(run.data_dir.as_deref(), Some(std::path::Path::new("plays.txt")));
        assert_eq!((run.epochs, run.test_limit, run.train_limit), (1, Some(10_000), None));
        assert_eq!(parse("--data text:x --test-limit 5").unwrap().runs()[0].test_limit, Some(5));
        for (line, reason) in [
            ("--data a.txt --net mlp", "--net mlp cannot train on text: choose charlm"),
            ("--net charlm", "--net charlm cannot train on digits: choose cnn or mlp"),
            ("--data a.txt --data-dir b", "--data-dir is for images"),
            ("--context 8", "--context is for a text, and digits is none"),
        ] {
            let error = parse(line).unwrap().check().unwrap_err();
            assert!(error.starts_with(reason), "{line}: {error}");
        }
    }

    #[test]
    fn plans_and_their_settings_reach_the_run() {
        let line = "--models bsp,bsp:12.5%+asp --switch-momentum ramp:50 --log x --guard \
                    --straggler-policy elastic --window 7";
        let runs = parse(line).unwrap().runs();
        assert_eq!(runs[1].model.name(), "bsp:12.5%+asp");
        let expected = Steering {
            momentum: "ramp:50".to_owned(),
            stragglers: StragglerPolicyKind::Elastic,
            guards: true,
            window: 7,
        };
        assert_eq!(runs[1].steering, expected);
        assert_eq!(runs[1].log, Some(PathBuf::from("x/bsp:12.5%+asp-seed1")));
        assert_eq!(parse("").unwrap().runs()[0].steering, Steering::default());
        let error = parse("--optimiser adam --switch-momentum zero").unwrap().check().unwrap_err();
        assert!(error.contains("for sgd and nesterov, not for adam"), "{error}");
    }

    #[test]
    fn logs_are_never_overwritten() {
        let folder = tempfile::TempDir::new().unwrap();
        let options = parse(&format!("--models bsp --log {}", folder.path().display())).unwrap();
        assert!(options.check().is_ok());
        let run = folder.path().join("bsp-seed1");
        std::fs::create_dir(&run).unwrap();
        assert!(options.check().is_ok());
        std::fs::write(run.join("rank-0.jsonl"), "").unwrap();
        assert!(options.check().unwrap_err().contains("choose another folder"));
    }

    #[test]
    fn bad_values_are_refused_with_a_reason() {
        let unknown = "xsp".parse::<SyncModel>().unwrap_err();
        for (line, reason) in [
            ("--ranks 0", "0 is not in 1..=64"),
            ("--models bsp,xsp", unknown.as_str()),
            ("--models bsp+asp", "'bsp' needs its share of the samples"),
            ("--switch-momentum half", "no course of the momentum 'half'"),
            ("--straggler-policy wait", "possible values: none, greedy, elastic"),
            ("--window 0", "0 is not in 1..=100000"),
            ("--weight-decay=-1", "weight decay is a number from 0 on"),
            ("--clip-norm 0", "a norm to clip at is a number above 0"),
            ("--straggler 1", "write RANK:TIME or RANK:TIME:FROM-TO"),
            ("--schedule cosin", "'cosin' is not understood"),
            ("--train-limit 0", "0 is not in 1.."),
            ("--seed 1 --seeds 2", "cannot be used with"),
            ("--epochs 0", "0 is not in 1..=10000"),
            ("--batch 0", "0 is not in 1..=65536"),
            ("--data cifar", "write digits, fashion-mnist, mnist, text:FILE or FILE.txt"),
            ("--data text:", "write text:FILE"),
            ("--context 0", "0 is not in 1..=4096"),
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

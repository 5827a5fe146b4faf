//! What one run is, as the parent tells its ranks. Owns nothing but the description.
//! Made by `options`, carried to each rank as one argument, read by `worker`.

mod steering;
mod straggler;
mod sync_model;

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::data::DataKind;
use crate::model::NetKind;
use crate::units::LinkRate;

pub use steering::{Steering, StragglerPolicyKind};
pub use straggler::Straggler;
pub use sync_model::SyncModel;
#[cfg(test)]
pub(crate) use sync_model::tests::model;

/// How parameters follow from gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimiserKind {
    /// Gradient descent with momentum
    #[default]
    Sgd,
    /// Gradient descent with Nesterov's momentum
    Nesterov,
    /// Adam; weight decay is part of the gradient
    Adam,
    /// Adam with decoupled weight decay
    #[value(name = "adamw")]
    #[serde(rename = "adamw")]
    AdamW,
}

impl OptimiserKind {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Nesterov => "nesterov",
            Self::Adam => "adam",
            Self::AdamW => "adamw",
        }
    }
}

/// How ranks talk to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportKind {
    /// The fastest that works
    Auto,
    /// Shared memory
    Shm,
    /// TCP over the loopback interface
    Tcp,
}

/// One run: one synchronisation model, one seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// Synchronisation model.
    pub model: SyncModel,
    /// Fixes the data's division and order and the initial parameters.
    pub seed: u64,
    /// World size.
    pub ranks: u32,
    /// Passes over the training images.
    pub epochs: u32,
    /// Images per rank and step.
    pub batch: u32,
    /// Learning rate.
    pub lr: f32,
    /// Its course over the job's samples, in the words of the library; none for constant.
    pub schedule: Option<String>,
    /// How parameters follow from gradients.
    pub optimiser: OptimiserKind,
    /// Momentum; 0 for none.
    pub momentum: f32,
    /// Pull of the parameters towards 0; 0 for none.
    pub weight_decay: f32,
    /// Longest gradient, by Euclidean norm over all tensors; none for any length.
    pub clip_norm: Option<f32>,
    /// Ranks that are made slow.
    pub stragglers: Vec<Straggler>,
    /// Data set.
    pub data: DataKind,
    /// Folder of the data set's files, or the text file, where it does not ship with the program.
    pub data_dir: Option<PathBuf>,
    /// Most items to train on; none for all.
    pub train_limit: Option<u32>,
    /// Most items to measure accuracy on; none for all.
    pub test_limit: Option<u32>,
    /// Bytes of text that the next one is told from; without meaning for images.
    pub context: u32,
    /// Network.
    pub net: NetKind,
    /// Transport asked for.
    pub transport: TransportKind,
    /// Pace of every rank's link.
    pub link_rate: LinkRate,
    /// Added to every message's way.
    pub link_latency: Duration,
    /// Where rank 0 serves metrics; each other rank does so as many ports on as its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<u16>,
    /// When and why the sync model or the ranks that take part change.
    pub steering: Steering,
    /// Folder of this run's logs; none for no logs.
    pub log: Option<PathBuf>,
}

impl RunSpec {
    /// The rank that only serves, if the model at the start has one.
    pub fn server_only_rank(&self) -> Option<u32> {
        let plan = self.model.plan().ok().flatten()?;
        plan.phases().first()?.model.server_only_rank()
    }

    /// How many ranks train.
    pub fn workers(&self) -> u32 {
        self.ranks.saturating_sub(u32::from(self.server_only_rank().is_some()))
    }

    /// The description as one command-line argument.
    pub fn to_arg(&self) -> String {
        serde_json::to_string(self).expect("no map with keys that are not strings, no failing type")
    }

    /// Reads what [`Self::to_arg`] wrote.
    ///
    /// # Errors
    ///
    /// The text is something else.
    pub fn from_arg(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The setting that a table or plot belongs to, without model and seed, on one line.
    pub fn setting(&self) -> String {
        let latency = match self.link_latency {
            Duration::ZERO => String::new(),
            latency => format!(" + {latency:?}"),
        };
        let workers = self.workers();
        let ranks = if workers == 1 { "1 rank".to_owned() } else { format!("{workers} ranks") };
        let net = self.net.name().to_ascii_uppercase();
        let link = match self.link_rate.bytes_per_s {
            None => "link not paced".to_owned(),
            Some(_) => format!("link {}", self.link_rate),
        };
        let data = self.data.name();
        let batch = self.batch;
        let rest = self.unusual();
        format!("{data}, {net}, {ranks} x batch {batch}, {link}{latency}{rest}")
    }

    /// What differs from the defaults beyond the usual, each part after a comma.
    fn unusual(&self) -> String {
        let mut parts = Vec::new();
        if self.data == DataKind::Text {
            parts.push(format!("context {}", self.context));
        }
        if self.optimiser != OptimiserKind::default() {
            parts.push(self.optimiser.name().to_owned());
        }
        if self.weight_decay != 0.0 {
            parts.push(format!("weight decay {}", self.weight_decay));
        }
        parts.extend(self.clip_norm.map(|norm| format!("gradients clipped to {norm}")));
        parts.extend(self.schedule.as_ref().map(|schedule| format!("schedule {schedule}")));
        parts.extend(self.stragglers.iter().map(|slow| format!("straggler {slow}")));
        parts.extend(self.steering.unusual());
        parts.extend(self.train_limit.map(|limit| format!("at most {limit} to train on")));
        parts.extend(self.test_limit.map(|limit| format!("at most {limit} to test on")));
        parts.iter().fold(String::new(), |mut text, part| {
            write!(text, ", {part}").expect("to memory");
            text
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small run on the digits.
    pub(crate) fn spec(name: &str) -> RunSpec {
        RunSpec {
            model: model(name),
            seed: 7,
            ranks: 4,
            epochs: 3,
            batch: 16,
            lr: 0.05,
            schedule: None,
            optimiser: OptimiserKind::Sgd,
            momentum: 0.9,
            weight_decay: 0.0,
            clip_norm: None,
            stragglers: Vec::new(),
            data: DataKind::Digits,
            data_dir: None,
            train_limit: None,
            test_limit: None,
            context: 32,
            net: NetKind::Cnn,
            transport: TransportKind::Auto,
            link_rate: LinkRate { bytes_per_s: Some(25_000_000) },
            link_latency: Duration::ZERO,
            metrics_port: None,
            steering: Steering::default(),
            log: None,
        }
    }

    #[test]
    fn a_run_survives_its_way_through_an_argument() {
        let mut sent = spec("osp");
        sent.lr = 0.1 + f32::EPSILON;
        sent.seed = u64::MAX;
        sent.stragglers = vec!["3:30ms:1-2".parse().unwrap()];
        sent.optimiser = OptimiserKind::AdamW;
        sent.clip_norm = Some(1.5);
        sent.metrics_port = Some(9000);
        sent.schedule = Some("warm \"up\"".to_owned());
        sent.data_dir = Some(PathBuf::from("/a b/c"));
        sent.link_latency = Duration::from_nanos(1_234_567_891);
        assert_eq!(RunSpec::from_arg(&sent.to_arg()).unwrap(), sent);
        assert!(RunSpec::from_arg("{}").is_err());
    }

    #[test]
    fn the_setting_names_what_matters() {
        let mut spec = spec("bsp");
        assert_eq!(spec.setting(), "digits, CNN, 4 ranks x batch 16, link 200 Mbit/s");
        spec.link_latency = Duration::from_micros(200);
        assert!(spec.setting().ends_with("link 200 Mbit/s + 200µs"));
        spec.link_rate = LinkRate { bytes_per_s: None };
        spec.ranks = 1;
        assert_eq!(spec.setting(), "digits, CNN, 1 rank x batch 16, link not paced + 200µs");
    }

    #[test]
    fn the_setting_names_what_is_unusual() {
        let mut spec = spec("bsp");
        spec.data = DataKind::Text;
        spec.optimiser = OptimiserKind::Adam;
        spec.weight_decay = 0.5;
        spec.clip_norm = Some(2.0);
        spec.schedule = Some("cosine".to_owned());
        spec.stragglers = vec!["3:30ms:1-2".parse().unwrap()];
        spec.train_limit = Some(100);
        spec.test_limit = Some(50);
        assert_eq!(
            spec.setting(),
            "text, CNN, 4 ranks x batch 16, link 200 Mbit/s, context 32, adam, weight decay 0.5, \
             gradients clipped to 2, schedule cosine, straggler 3:30ms:1-2, at \
             most 100 to train on, at most 50 to test on"
        );
    }

    #[test]
    fn optimisers_have_one_name_everywhere() {
        for kind in OptimiserKind::value_variants() {
            assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.name());
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}

//! What one run is, as the parent tells its ranks. Owns nothing but the description.
//! Made by `options`, carried to each rank as one argument, read by `worker`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::data::DataKind;
use crate::model::NetKind;
use crate::units::LinkRate;

/// The synchronisation models that the trainer can compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncModel {
    /// Asynchronous parallel: nobody waits for anybody
    Asp,
    /// Bulk synchronous parallel: every step waits for all gradients
    Bsp,
    /// Overlapped synchronisation parallel: waits for the important gradients only
    Osp,
}

impl SyncModel {
    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Asp => "asp",
            Self::Bsp => "bsp",
            Self::Osp => "osp",
        }
    }

    /// The name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Asp => "ASP",
            Self::Bsp => "BSP",
            Self::Osp => "OSP",
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
    /// Momentum; 0 for none.
    pub momentum: f32,
    /// Data set.
    pub data: DataKind,
    /// Folder of the data set's files, where it does not ship with the program.
    pub data_dir: Option<PathBuf>,
    /// Network.
    pub net: NetKind,
    /// Transport asked for.
    pub transport: TransportKind,
    /// Pace of every rank's link.
    pub link_rate: LinkRate,
    /// Added to every message's way.
    pub link_latency: Duration,
}

impl RunSpec {
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
        let ranks =
            if self.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", self.ranks) };
        let net = self.net.name().to_ascii_uppercase();
        let link = match self.link_rate.bytes_per_s {
            None => "link not paced".to_owned(),
            Some(_) => format!("link {}", self.link_rate),
        };
        let data = self.data.name();
        format!("{data}, {net}, {ranks} x batch {}, {link}{latency}", self.batch)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small run on the digits.
    pub(crate) fn spec(model: SyncModel) -> RunSpec {
        RunSpec {
            model,
            seed: 7,
            ranks: 4,
            epochs: 3,
            batch: 16,
            lr: 0.05,
            momentum: 0.9,
            data: DataKind::Digits,
            data_dir: None,
            net: NetKind::Cnn,
            transport: TransportKind::Auto,
            link_rate: LinkRate { bytes_per_s: Some(25_000_000) },
            link_latency: Duration::ZERO,
        }
    }

    #[test]
    fn a_run_survives_its_way_through_an_argument() {
        let mut sent = spec(SyncModel::Osp);
        sent.lr = 0.1 + f32::EPSILON;
        sent.seed = u64::MAX;
        sent.data_dir = Some(PathBuf::from("/a b/c"));
        sent.link_latency = Duration::from_nanos(1_234_567_891);
        assert_eq!(RunSpec::from_arg(&sent.to_arg()).unwrap(), sent);
        assert!(RunSpec::from_arg("{}").is_err());
    }

    #[test]
    fn the_setting_names_what_matters() {
        let mut spec = spec(SyncModel::Bsp);
        assert_eq!(spec.setting(), "digits, CNN, 4 ranks x batch 16, link 200 Mbit/s");
        spec.link_latency = Duration::from_micros(200);
        assert!(spec.setting().ends_with("link 200 Mbit/s + 200µs"));
        spec.link_rate = LinkRate { bytes_per_s: None };
        spec.ranks = 1;
        assert_eq!(spec.setting(), "digits, CNN, 1 rank x batch 16, link not paced + 200µs");
    }
}

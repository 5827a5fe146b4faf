//! The options with all defaults filled in. Owns the defaults, and what no option can check alone.
//! Made by `simulate`, read by all that follows.

use std::time::Duration;

use super::error::SimulateError;
use super::options::{GradientKind, SimulateOptions};
use syncline::{BudgetRule, ModelKind, OspConfig};

use crate::model::NetKind;
use crate::spec::{Straggler, SyncModel};
use crate::units::LinkRate;

/// Most ranks that gradients are computed for.
const REAL_RANKS_MAX: u32 = 64;

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) models: Vec<SyncModel>,
    pub(super) ranks: Vec<u32>,
    pub(super) rates: Vec<LinkRate>,
    pub(super) latency: Duration,
    /// None: what the network that learns has.
    pub(super) bytes: Option<u64>,
    pub(super) compute: Vec<Duration>,
    pub(super) jitter: f64,
    pub(super) stragglers: Vec<Straggler>,
    pub(super) batch: u32,
    pub(super) steps: u64,
    pub(super) is_real: bool,
    pub(super) epochs: u32,
    pub(super) lr: f32,
    pub(super) momentum: f32,
    pub(super) net: NetKind,
    pub(super) target: f64,
    pub(super) seed: u64,
    pub(super) note: Option<&'static str>,
}

impl Plan {
    pub(super) fn new(options: &SimulateOptions) -> Result<Self, SimulateError> {
        let is_real = options.gradients == GradientKind::Real;
        let preset = options.testbed.map(|testbed| testbed.preset());
        let preset = preset.as_ref();
        let default_ranks = match preset {
            Some(preset) => vec![preset.ranks],
            None if is_real => vec![8],
            None => vec![8, 64],
        };
        let gbit = |gbit: u64| LinkRate { bytes_per_s: Some(gbit * 125_000_000) };
        let default_rates = match preset {
            Some(preset) => vec![preset.rate.parse().expect("a rate that is tested")],
            None => [1, 10, 25, 100].map(gbit).to_vec(),
        };
        let default_bytes = preset.map_or(100_000_000, |preset| preset.bytes);
        let default_compute = preset.map_or(Duration::from_millis(100), |preset| preset.compute);
        let preset_stragglers = || preset.map(|p| p.stragglers.clone()).unwrap_or_default();
        let plan = Self {
            models: distinct(&options.models),
            ranks: distinct(or(&options.ranks, default_ranks)),
            rates: distinct(or(&options.bandwidth, default_rates)),
            latency: options.latency,
            bytes: options.bytes.or_else(|| (!is_real).then_some(default_bytes)),
            compute: or(&options.compute, vec![default_compute]),
            jitter: options.jitter,
            stragglers: or(&options.stragglers, preset_stragglers()),
            batch: options.batch.unwrap_or_else(|| preset.map_or(32, |preset| preset.batch)),
            steps: options.steps.unwrap_or_else(|| preset.map_or(12, |preset| preset.steps)),
            is_real,
            epochs: options.epochs,
            lr: options.lr,
            momentum: options.momentum,
            net: options.net,
            target: options.target,
            seed: options.seed,
            note: preset.map(|preset| preset.note),
        };
        plan.check()?;
        Ok(plan)
    }

    /// All pairs of a number of ranks and a rate.
    pub(super) fn cells(&self) -> impl Iterator<Item = (u32, LinkRate)> + '_ {
        self.ranks.iter().flat_map(|ranks| self.rates.iter().map(|rate| (*ranks, *rate)))
    }

    /// The setting that all cells share, in words.
    pub(super) fn setting(&self) -> String {
        let times: Vec<String> = self.compute.iter().map(|time| format!("{time:?}")).collect();
        let jitter = if self.jitter > 0.0 {
            format!(" with {:.0} % jitter", self.jitter * 100.0)
        } else {
            String::new()
        };
        let stragglers = self.stragglers.iter().map(|slow| format!(", straggler {slow}"));
        let stragglers: String = stragglers.collect();
        let gradients = if self.is_real {
            format!("digits, {}", self.net.name().to_ascii_uppercase())
        } else {
            "no gradients".to_owned()
        };
        let size = self.bytes.map_or_else(String::new, |b| format!(", {} MB", b as f64 / 1e6));
        format!(
            "simulated: {gradients}{size}, batch {} per rank, computes {}{jitter}, latency {:?}\
             {stragglers}",
            self.batch,
            times.join(" or "),
            self.latency
        )
    }

    fn check(&self) -> Result<(), SimulateError> {
        let fewest = self.ranks.iter().copied().min().unwrap_or(0);
        let most = self.ranks.iter().copied().max().unwrap_or(0);
        let reason = if let Some(slow) = self.stragglers.iter().find(|slow| slow.rank >= fewest) {
            format!("--straggler {slow}: no rank {} among {fewest}, counted from 0", slow.rank)
        } else if self.is_real && most > REAL_RANKS_MAX {
            format!("--gradients real: at most {REAL_RANKS_MAX} ranks, not {most}")
        } else if let Some(reason) = self.models.iter().find_map(|model| self.refuses(model)) {
            reason
        } else {
            return Ok(());
        };
        Err(SimulateError::Options { reason })
    }

    /// Why a model cannot be simulated, if it cannot.
    fn refuses(&self, model: &SyncModel) -> Option<String> {
        let name = model.name();
        match name.parse::<ModelKind>() {
            Err(_) => {
                Some(format!("--models: '{name}' is no single model, which alone is simulated"))
            }
            Ok(ModelKind::Osp(OspConfig { budget: BudgetRule::Windowed(_), .. }))
                if !self.is_real =>
            {
                let reason = "follows gradients: simulate it with --gradients real";
                Some(format!("--models: '{name}' {reason}"))
            }
            Ok(model) => self.refuses_ranks(name, &model),
        }
    }

    /// Why a model cannot be simulated with these ranks, some of them slow.
    fn refuses_ranks(&self, name: &str, model: &ModelKind) -> Option<String> {
        let server_only = model.server_only_rank();
        if let Some(slow) = self.stragglers.iter().find(|slow| Some(slow.rank) == server_only) {
            let reason = format!("rank {} of '{name}' does not train, it serves", slow.rank);
            return Some(format!("--straggler {slow}: {reason}"));
        }
        let mut refusals = self.ranks.iter().filter_map(|ranks| model.check_world(*ranks).err());
        refusals.next().map(|error| format!("--models '{name}': {error}"))
    }
}

fn or<T: Clone>(given: &[T], default: Vec<T>) -> Vec<T> {
    if given.is_empty() { default } else { given.to_vec() }
}

/// The same in the same order, each once.
fn distinct<T: Clone + PartialEq>(values: impl AsRef<[T]>) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for value in values.as_ref() {
        if !kept.contains(value) {
            kept.push(value.clone());
        }
    }
    kept
}

//! Settings of a session, and whether they can work.
//!
//! Owns the choice of model and what applies to all of them; the settings of one model are beside
//! it. Never reads the environment: the trainer decides. Called by the session.

mod text;

use std::str::FromStr;

pub use crate::bucket::rule::{BucketRule, ByteCaps, PlanConfig, Planner};
use crate::error::{Error, Result};
use crate::layout::Granularity;
pub use crate::model::diloco::DilocoConfig;
pub use crate::model::local_sgd::LocalSgdConfig;
use crate::model::osp::budget::BudgetRule;
pub use crate::model::osp::{GibLag, IcsMerge, OspConfig};
pub use crate::model::osp_server::settings::OspServerConfig;
use crate::optimiser::Optimiser;
pub use crate::server::config::{
    BatchRule, DsspConfig, GbaModelConfig, R2spConfig, ServerConfig, SspConfig,
};

/// Of `osp-adaptive`: the bound that kept BSP's accuracy where deferring much does harm, and
/// deferred most where it does none (docs/osp.md).
const NOISE_BOUND: f64 = 10.0;
/// Of `osp-adaptive`: steps from one budget to the next.
const BUDGET_WINDOW: u64 = 8;

/// Settings of a session; they must be the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionConfig {
    /// The sync model.
    pub model: ModelKind,
    /// How gradients become updates.
    pub optimiser: Optimiser,
    /// Largest norm of an averaged gradient over all tensors; a longer one is scaled down to it.
    /// Under OSP, deferred slices count with their last known gradient; under the server models,
    /// each worker clips its own gradient, as each rank does under local SGD and DiLoCo.
    pub clip_norm: Option<f32>,
    /// Samples of each rank in a step, all alike, where the trainer lets the model divide their sum
    /// otherwise ([`Session::next_batch`](crate::Session::next_batch)); none if it does not.
    pub batch: Option<u32>,
    /// Fixes whatever the model draws at random.
    pub seed: u64,
    /// Steps from one comparison of all replicas to the next; 0 for none. A comparison reads the
    /// parameters once and exchanges 16 bytes.
    pub check_every: u64,
    /// Whether the model runs under audit ([`crate::audit`]): it fails where it breaks a rule.
    pub audits: bool,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            model: ModelKind::Bsp,
            optimiser: Optimiser::default(),
            clip_norm: None,
            batch: None,
            seed: 0,
            check_every: 100,
            audits: false,
        }
    }
}

/// A sync model and its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ModelKind {
    /// Asynchronous parallel, on a parameter server sharded over the ranks.
    Asp(AspConfig),
    /// Bulk synchronous parallel.
    Bsp,
    /// The same, with reductions that start during the backward pass.
    BspBuckets(BucketRule),
    /// Streaming DiLoCo: local steps, with fragments of the model averaged while they go on.
    Diloco(DilocoConfig),
    /// Local SGD: local steps, with parameters averaged now and then.
    LocalSgd(LocalSgdConfig),
    /// Stale synchronous parallel with a bound that moves, on the parameter server.
    Dssp(DsspConfig),
    /// The parameter server gathers a global batch for each update.
    Gba(GbaModelConfig),
    /// Overlapped synchronous parallel, in its all-reduce form.
    Osp(OspConfig),
    /// The parameter server serves one worker after another.
    R2sp(R2spConfig),
    /// Stale synchronous parallel, on the parameter server: nobody leads the slowest by far.
    Ssp(SspConfig),
    /// Overlapped synchronous parallel, on a parameter server: the paper's own form.
    OspServer(OspServerConfig),
}

impl ModelKind {
    /// All names that a model can be parsed from.
    pub const NAMES: [&'static str; 14] = [
        "asp",
        "bsp",
        "bsp-buckets",
        "ddp",
        "diloco",
        "dssp",
        "gba",
        "local-sgd",
        "mg-wfbp",
        "osp",
        "osp-adaptive",
        "osp-ps",
        "r2sp",
        "ssp",
    ];

    /// Its name on command lines and in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Asp(_) => "asp",
            Self::Bsp => "bsp",
            Self::Diloco(_) => "diloco",
            Self::LocalSgd(_) => "local-sgd",
            Self::BspBuckets(rule) => rule.name(),
            Self::Dssp(_) => "dssp",
            Self::Gba(_) => "gba",
            Self::Osp(OspConfig { budget: BudgetRule::Windowed(_), .. }) => "osp-adaptive",
            Self::Osp(_) => "osp",
            Self::OspServer(_) => "osp-ps",
            Self::R2sp(_) => "r2sp",
            Self::Ssp(_) => "ssp",
        }
    }

    /// What shards and workers do, if it has a parameter server. Its ranks may then make different
    /// numbers of steps between two drains.
    pub fn server(&self) -> Option<ServerConfig> {
        match *self {
            Self::Asp(asp) => Some(asp.into()),
            Self::Bsp
            | Self::BspBuckets(_)
            | Self::Diloco(_)
            | Self::LocalSgd(_)
            | Self::Osp(_)
            | Self::OspServer(_) => None,
            Self::Dssp(dssp) => Some(dssp.into()),
            Self::Gba(gba) => Some(gba.into()),
            Self::R2sp(r2sp) => Some(r2sp.into()),
            Self::Ssp(ssp) => Some(ssp.into()),
        }
    }

    /// The rank that only serves and does not train, if there is one; the others then do.
    pub fn server_only_rank(&self) -> Option<u32> {
        match self {
            Self::OspServer(server) => server.placement.server_only_rank(),
            _ => None,
        }
    }

    /// Whether it can work with so many ranks.
    ///
    /// # Errors
    /// [`Error::Config`] if the rank of its server is none, or nobody would train.
    pub fn check_world(&self, world_size: u32) -> Result<()> {
        match self {
            Self::OspServer(server) => server.check_world(world_size),
            _ => Ok(()),
        }
    }

    /// How the shards of all tensors, or the unit of importance, are cut.
    pub(crate) fn granularity(&self) -> Granularity {
        match self {
            Self::Osp(osp) => osp.granularity,
            Self::OspServer(server) => server.osp.granularity,
            _ => Granularity::Tensors,
        }
    }
}

impl FromStr for ModelKind {
    type Err = Error;

    /// The model of that name, with the settings that follow it, if any, and defaults for the rest:
    /// `osp`, `osp:cap=0.95:span=2`, `ssp:staleness=5`.
    ///
    /// | model | settings |
    /// |---|---|
    /// | `osp`, `osp-adaptive`, `osp-ps` | `share` (fixed, of the bytes), `cap`, `merge=delta\|overwrite`, `lgp=local\|plain\|ema\|none`, `importance=mean\|sum\|signed\|random\|round-robin`, `slice` (bytes, or `tensor`), `gib-every` |
    /// | `osp`, `osp-adaptive` | `span`, `rs-parts` |
    /// | `osp-adaptive` | `bound`, `window` |
    /// | `osp-ps` | `placement=sharded\|colocated@RANK\|dedicated@RANK`, `moments=cheapest\|shipped` |
    /// | `asp`, `ssp`, `dssp`, `r2sp` | `pull=after-push\|next-step`, `rate=per-push\|per-round` |
    /// | `r2sp` | `batches=by-speed\|equal` |
    /// | `ssp` | `staleness` |
    /// | `dssp` | `lower`, `r-max` |
    /// | `gba` | `group`, `pull` |
    /// | `ddp` | `first`, `bucket` (both bytes), `least-buckets` |
    /// | `local-sgd` | `every`, `averages-memory` |
    /// | `diloco` | `every`, `fragments`, `delay`, `outer-rate`, `outer-momentum`, `nesterov` |
    ///
    /// # Errors
    /// [`Error::Config`] for a name, a setting or a value that there is not.
    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(':');
        let mut model = named(parts.next().unwrap_or_default())?;
        let mut is_default = true;
        for setting in parts {
            text::set(&mut model, setting)?;
            is_default = false;
        }
        if !is_default {
            SessionConfig { model, ..SessionConfig::default() }.validate()?;
        }
        Ok(model)
    }
}

/// The model of that name, with default settings.
fn named(name: &str) -> Result<ModelKind> {
    match name {
        "asp" => Ok(ModelKind::Asp(AspConfig::default())),
        "bsp" => Ok(ModelKind::Bsp),
        "diloco" => Ok(ModelKind::Diloco(DilocoConfig::default())),
        "local-sgd" => Ok(ModelKind::LocalSgd(LocalSgdConfig::default())),
        "dssp" => Ok(ModelKind::Dssp(DsspConfig::default())),
        "gba" => Ok(ModelKind::Gba(GbaModelConfig::default())),
        "osp" => Ok(ModelKind::Osp(OspConfig::default())),
        "osp-adaptive" => {
            let budget = BudgetRule::adaptive(NOISE_BOUND, BUDGET_WINDOW);
            Ok(ModelKind::Osp(OspConfig { budget, ..OspConfig::default() }))
        }
        "osp-ps" => Ok(ModelKind::OspServer(OspServerConfig::default())),
        "r2sp" => Ok(ModelKind::R2sp(R2spConfig::default())),
        "ssp" => Ok(ModelKind::Ssp(SspConfig::default())),
        _ => BucketRule::named(name).map(ModelKind::BspBuckets).ok_or_else(|| {
            let names = ModelKind::NAMES.join(", ");
            Error::Config { reason: format!("no sync model '{name}'; there are {names}") }
        }),
    }
}

/// Settings of ASP, and of a worker under every model with a parameter server, the same on every
/// rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AspConfig {
    /// When a worker waits for the parameters that answer its push.
    pub pull: Pull,
    /// What the learning rate is meant for.
    pub rate: AspRate,
}

impl Default for AspConfig {
    fn default() -> Self {
        Self { pull: Pull::AfterPush, rate: AspRate::PerRound }
    }
}

/// When a worker waits for the parameters that answer its push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    /// Before its next step: the round trip is exposed, the parameters are as fresh as can be.
    AfterPush,
    /// After its next step: the round trip hides behind the computation, at one step of staleness.
    NextStep,
}

/// What a learning rate is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AspRate {
    /// One push of one worker.
    PerPush,
    /// One update with the average of all ranks, as in BSP: a push counts 1/world_size of it. So
    /// one learning rate serves all models.
    PerRound,
}

impl SessionConfig {
    /// Whether the settings can work.
    ///
    /// # Errors
    /// [`Error::Config`] that names the first setting that cannot.
    pub fn validate(&self) -> Result<()> {
        self.optimiser.validate()?;
        let limit = self.clip_norm.unwrap_or(1.0);
        require(limit.is_finite() && limit > 0.0, "the clipped norm is above 0", limit)?;
        require(self.batch != Some(0), "a batch has 1 sample or more", 0)?;
        match &self.model {
            ModelKind::Diloco(diloco) => diloco.validate()?,
            ModelKind::LocalSgd(local) => local.validate()?,
            ModelKind::BspBuckets(rule) => rule.validate()?,
            ModelKind::Osp(osp) => osp.validate(&self.optimiser)?,
            ModelKind::OspServer(server) => server.validate()?,
            _ => {}
        }
        self.model.server().map_or(Ok(()), |server| server.validate())
    }
}

pub(crate) fn require(holds: bool, rule: &str, value: impl std::fmt::Display) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::Config { reason: format!("{rule}, not {value}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::osp::budget::BudgetRule;
    use crate::model::osp::correction::Lgp;
    use crate::optimiser::{Adam, Sgd};

    #[test]
    fn defaults_are_valid() {
        for name in ModelKind::NAMES {
            let model: ModelKind = name.parse().unwrap();
            assert_eq!(model.name(), name);
            let has_server = ["asp", "dssp", "gba", "r2sp", "ssp"].contains(&name);
            assert_eq!(model.server().is_some(), has_server);
            SessionConfig { model, ..Default::default() }.validate().unwrap();
        }
        assert!("bps".parse::<ModelKind>().unwrap_err().to_string().contains("'bps'"));
    }

    #[test]
    fn each_bad_setting_is_named() {
        let osp = OspConfig::default();
        let fixed = |share| OspConfig { budget: BudgetRule::fixed(share), ..osp };
        let slices =
            |max_bytes| OspConfig { granularity: Granularity::Slices { max_bytes }, ..osp };
        for (bad, text) in [
            (fixed(1.1), "share"),
            (fixed(f64::NAN), "share"),
            (OspConfig { gib_every: 0, ..osp }, "gib_every"),
            (OspConfig { lgp: Lgp::Ema { gamma: 1.0, lambda: 0.5 }, ..osp }, "gamma"),
            (OspConfig { lgp: Lgp::Ema { gamma: 0.9, lambda: 2.0 }, ..osp }, "lambda"),
            (slices(3), "slice"),
            (OspConfig { span: 0, ..osp }, "span"),
            (OspConfig { span: 65, ..osp }, "span"),
            (OspConfig { budget: BudgetRule::noise(0.0, 4), ..osp }, "bound"),
            (OspConfig { budget: BudgetRule::noise(f64::NAN, 4), ..osp }, "bound"),
            (OspConfig { budget: BudgetRule::adaptive(0.1, 0), ..osp }, "window"),
        ] {
            let config = SessionConfig { model: ModelKind::Osp(bad), ..Default::default() };
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let noise = OspConfig { budget: BudgetRule::noise(0.1, 4), ..osp };
        let (model, optimiser) = (ModelKind::Osp(noise), Adam::default().into());
        let error = SessionConfig { model, optimiser, ..Default::default() }.validate();
        assert!(error.unwrap_err().to_string().contains("SGD"));
        let dssp = DsspConfig { r_max: u64::MAX, ..Default::default() };
        let config = SessionConfig { model: ModelKind::Dssp(dssp), ..Default::default() };
        assert!(config.validate().unwrap_err().to_string().contains("r_max"));
        let optimiser = Sgd { momentum: 1.0, ..Sgd::default() }.into();
        let error = SessionConfig { optimiser, ..Default::default() }.validate().unwrap_err();
        assert!(error.to_string().contains("momentum"), "{error}");
    }
}

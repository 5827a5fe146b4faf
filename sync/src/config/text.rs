//! Settings of a model as text: `osp:cap=0.95:span=2`.
//!
//! Owns the keys and how their values are read. Never checks whether a value can work, which the
//! model's own settings do. Called where a [`ModelKind`] is parsed.

use std::fmt::Display;
use std::str::FromStr;

use super::{AspConfig, AspRate, BatchRule, BucketRule, ModelKind, Pull};
use crate::error::{Error, Result};
use crate::layout::Granularity;
use crate::model::diloco::DilocoConfig;
use crate::model::osp::budget::BudgetRule;
use crate::model::osp::correction::Lgp;
use crate::model::osp::importance::Importance;
use crate::model::osp::{IcsMerge, OspConfig};
use crate::model::osp_server::settings::{MomentSource, OspServerConfig, Placement};

/// Weights of [`Lgp::Ema`] where the text says `ema` alone.
const EMA: Lgp = Lgp::Ema { gamma: 0.9, lambda: 0.5 };

/// Changes one setting of a model, given as `KEY=VALUE`.
///
/// # Errors
/// [`Error::Config`] that names the keys of this model, or the values of the key.
pub(super) fn set(model: &mut ModelKind, setting: &str) -> Result<()> {
    let name = model.name();
    let Some((key, value)) = setting.split_once('=') else {
        let known = keys(model).join(", ");
        return refuse(format!(
            "'{setting}' is no setting of {name}, as in {name}:KEY=VALUE; keys are {known}"
        ));
    };
    let is_set = match model {
        ModelKind::Bsp => false,
        ModelKind::BspBuckets(rule) => buckets(rule, key, value)?,
        ModelKind::Osp(osp) => set_osp(osp, key, value)?,
        ModelKind::OspServer(server) => on_server(server, key, value)?,
        ModelKind::LocalSgd(local) => match key {
            "every" => put(&mut local.every, key, value)?,
            "averages-memory" => put(&mut local.averages_memory, key, value)?,
            _ => false,
        },
        ModelKind::Diloco(config) => diloco(config, key, value)?,
        ModelKind::Asp(config) => worker(config, key, value)?,
        ModelKind::Ssp(config) => match key {
            "staleness" => put(&mut config.staleness, key, value)?,
            _ => worker(&mut config.worker, key, value)?,
        },
        ModelKind::Dssp(config) => match key {
            "lower" => put(&mut config.lower, key, value)?,
            "r-max" => put(&mut config.r_max, key, value)?,
            _ => worker(&mut config.worker, key, value)?,
        },
        ModelKind::R2sp(config) => match key {
            "batches" => {
                let known = [("by-speed", BatchRule::default()), ("equal", BatchRule::Equal)];
                config.batches = one_of(key, value, &known)?;
                true
            }
            _ => worker(&mut config.worker, key, value)?,
        },
        ModelKind::Gba(config) => match key {
            "group" => {
                config.group = Some(number(key, value)?);
                true
            }
            "pull" => {
                config.pull = pull(value)?;
                true
            }
            _ => false,
        },
    };
    if is_set {
        return Ok(());
    }
    let known = keys(model);
    refuse(if known.is_empty() {
        format!("'{setting}': {name} has no settings")
    } else {
        format!("'{setting}': {name} has no setting '{key}', but {}", known.join(", "))
    })
}

/// The keys of a model's settings.
fn keys(model: &ModelKind) -> Vec<&'static str> {
    const OSP: [&str; 9] =
        ["share", "bound", "window", "cap", "merge", "lgp", "importance", "slice", "gib-every"];
    let osp = |more: &[&'static str]| [&OSP[..], more].concat();
    match model {
        ModelKind::Bsp | ModelKind::BspBuckets(BucketRule::Planned(_)) => vec![],
        ModelKind::BspBuckets(BucketRule::Bytes(_)) => vec!["first", "bucket", "least-buckets"],
        ModelKind::Osp(_) => osp(&["span", "rs-parts"]),
        ModelKind::OspServer(_) => osp(&["placement", "moments"]),
        ModelKind::LocalSgd(_) => vec!["every", "averages-memory"],
        ModelKind::Diloco(_) => {
            vec!["every", "fragments", "delay", "outer-rate", "outer-momentum", "nesterov"]
        }
        ModelKind::Asp(_) => vec!["pull", "rate"],
        ModelKind::R2sp(_) => vec!["batches", "pull", "rate"],
        ModelKind::Ssp(_) => vec!["staleness", "pull", "rate"],
        ModelKind::Dssp(_) => vec!["lower", "r-max", "pull", "rate"],
        ModelKind::Gba(_) => vec!["group", "pull"],
    }
}

fn buckets(rule: &mut BucketRule, key: &str, value: &str) -> Result<bool> {
    let BucketRule::Bytes(caps) = rule else { return Ok(false) };
    match key {
        "first" => put(&mut caps.first_bytes, key, value),
        "bucket" => put(&mut caps.cap_bytes, key, value),
        "least-buckets" => put(&mut caps.least_buckets, key, value),
        _ => Ok(false),
    }
}

/// The settings of both forms of OSP, and those of the all-reduce form.
fn set_osp(osp: &mut OspConfig, key: &str, value: &str) -> Result<bool> {
    match (key, &mut osp.budget) {
        ("share", budget) => *budget = BudgetRule::fixed(number(key, value)?),
        ("bound", BudgetRule::Windowed(rule)) => rule.bound = number(key, value)?,
        ("window", BudgetRule::Windowed(rule)) => rule.window = number(key, value)?,
        ("bound" | "window", _) => {
            return refuse(format!("'{key}' is a setting of osp-adaptive, which has windows"));
        }
        ("cap", _) => osp.ceiling.cap = number(key, value)?,
        ("merge", _) => {
            osp.merge = one_of(
                key,
                value,
                &[("delta", IcsMerge::Delta), ("overwrite", IcsMerge::Overwrite)],
            )?;
        }
        ("lgp", _) => {
            let known = [
                ("local", Lgp::Local),
                ("plain", Lgp::LocalPlain),
                ("ema", EMA),
                ("none", Lgp::None),
            ];
            osp.lgp = one_of(key, value, &known)?;
        }
        ("importance", _) => {
            let known = [
                ("mean", Importance::Mean),
                ("sum", Importance::Sum),
                ("signed", Importance::Signed),
                ("random", Importance::Random),
                ("round-robin", Importance::RoundRobin),
            ];
            osp.importance = one_of(key, value, &known)?;
        }
        ("slice", _) => {
            osp.granularity = match value {
                "tensor" => Granularity::Tensors,
                bytes => Granularity::Slices { max_bytes: number(key, bytes)? },
            };
        }
        ("gib-every", _) => osp.gib_every = number(key, value)?,
        ("span", _) => osp.span = number(key, value)?,
        ("rs-parts", _) => osp.rs_parts = number(key, value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn on_server(server: &mut OspServerConfig, key: &str, value: &str) -> Result<bool> {
    match key {
        // They have one value only on servers.
        "span" | "rs-parts" => return Ok(false),
        "placement" => {
            let (place, rank) = value.split_once('@').unwrap_or((value, "0"));
            let rank = number(key, rank)?;
            let known = [
                ("sharded", Placement::Sharded),
                ("colocated", Placement::Colocated { rank }),
                ("dedicated", Placement::Dedicated { rank }),
            ];
            server.placement = one_of(key, place, &known)?;
            server.osp.ceiling.umax = OspServerConfig::new(server.placement).osp.ceiling.umax;
        }
        "moments" => {
            let known = [("cheapest", MomentSource::Cheapest), ("shipped", MomentSource::Shipped)];
            server.moments = one_of(key, value, &known)?;
        }
        _ => return set_osp(&mut server.osp, key, value),
    }
    Ok(true)
}

fn diloco(config: &mut DilocoConfig, key: &str, value: &str) -> Result<bool> {
    match key {
        "every" => put(&mut config.every, key, value),
        "fragments" => put(&mut config.fragments, key, value),
        "delay" => put(&mut config.delay, key, value),
        "outer-rate" => put(&mut config.outer_rate, key, value),
        "outer-momentum" => put(&mut config.outer_momentum, key, value),
        "nesterov" => put(&mut config.is_nesterov, key, value),
        _ => Ok(false),
    }
}

fn worker(config: &mut AspConfig, key: &str, value: &str) -> Result<bool> {
    match key {
        "pull" => config.pull = pull(value)?,
        "rate" => {
            let known = [("per-push", AspRate::PerPush), ("per-round", AspRate::PerRound)];
            config.rate = one_of(key, value, &known)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn pull(value: &str) -> Result<Pull> {
    one_of("pull", value, &[("after-push", Pull::AfterPush), ("next-step", Pull::NextStep)])
}

fn put<T: FromStr<Err: Display>>(place: &mut T, key: &str, value: &str) -> Result<bool> {
    *place = number(key, value)?;
    Ok(true)
}

fn number<T: FromStr<Err: Display>>(key: &str, value: &str) -> Result<T> {
    value.parse().or_else(|error| refuse(format!("{key}={value}: {error}")))
}

fn one_of<T: Copy>(key: &str, value: &str, known: &[(&str, T)]) -> Result<T> {
    let found = known.iter().find(|(name, _)| *name == value);
    found.map(|(_, meant)| *meant).map_or_else(
        || {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            refuse(format!("{key}={value}: it is one of {}", names.join(", ")))
        },
        Ok,
    )
}

fn refuse<T>(reason: String) -> Result<T> {
    Err(Error::Config { reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_carries_settings() {
        let model: ModelKind = "osp:cap=0.95:span=2:merge=overwrite:lgp=none".parse().unwrap();
        let ModelKind::Osp(osp) = model else { panic!("{model:?}") };
        assert_eq!((osp.ceiling.cap, osp.span), (0.95, 2));
        assert_eq!((osp.merge, osp.lgp), (IcsMerge::Overwrite, Lgp::None));
        let model: ModelKind = "ssp:staleness=5:pull=next-step".parse().unwrap();
        let ModelKind::Ssp(ssp) = model else { panic!("{model:?}") };
        assert_eq!((ssp.staleness, ssp.worker.pull), (5, Pull::NextStep));
        let model: ModelKind = "osp-ps:share=0.5:placement=colocated@3".parse().unwrap();
        let ModelKind::OspServer(server) = model else { panic!("{model:?}") };
        assert_eq!(server.placement, Placement::Colocated { rank: 3 });
        assert_eq!(server.osp.budget, BudgetRule::fixed(0.5));
        let dedicated: ModelKind = "osp-ps:placement=dedicated@2".parse().unwrap();
        assert_eq!(dedicated.server_only_rank(), Some(2));
        let single = OspServerConfig::new(server.placement);
        assert_eq!(server.osp.ceiling.umax, single.osp.ceiling.umax);
    }

    /// What [`keys`] lists is what can be set, with a value that says nothing, or with a real one.
    #[test]
    fn each_key_that_is_listed_can_be_set() {
        for name in ModelKind::NAMES {
            let model: ModelKind = name.parse().unwrap();
            for key in keys(&model) {
                let error = set(&mut model.clone(), &format!("{key}=")).err();
                let text = error.map(|error| error.to_string()).unwrap_or_default();
                let is_refused = text.contains(&format!("{key}=:"));
                let is_of_windows = text.contains("osp-adaptive");
                assert!(is_refused || is_of_windows, "{name}:{key}: '{text}'");
            }
        }
    }

    #[test]
    fn b_bad_settings_say_what_would_do() {
        for (text, wanted) in [
            ("osp:speed=1", "share, bound"),
            ("osp:fast", "osp:KEY=VALUE"),
            ("osp:span=two", "span=two: invalid digit"),
            ("osp:span=0", "the span lies in 1..=64, not 0"),
            ("osp:cap=NaN", "the cap lies in 0..=1"),
            ("osp:bound=3", "osp-adaptive"),
            ("osp:merge=both", "delta, overwrite"),
            ("osp-ps:span=2", "no setting 'span'"),
            ("osp-ps:placement=here", "sharded, colocated, dedicated"),
            ("bsp:x=1", "bsp has no settings"),
            ("local-sgd:every=0", "not every 0"),
            ("ssp:3", "staleness"),
            ("r2sp:batches=fair", "by-speed, equal"),
        ] {
            let error = text.parse::<ModelKind>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}

//! One model over one number of ranks and one rate. Owns the translation of the plan into the
//! library's settings. Called by `simulate`.

use indicatif::ProgressBar;
use syncline::lockstep::TensorList;
use syncline::simulation::{Compute, Network, Outcome, Settings, Simulation, Straggler, Trainer};
use syncline::{
    BudgetRule, Granularity, ModelKind, OspConfig, OspServerConfig, SessionConfig, Sgd,
};

use super::digits::Digits;
use super::error::SimulateError;
use super::plan::Plan;
use super::report::ModelRun;
use super::stand_in::{self, EPOCH_STEPS, SLICE_LEN, StandIn};
use crate::spec::SyncModel;
use crate::units::LinkRate;

/// First epochs of the stand-in that are not measured: OSP needs some to find its budget, the
/// others to leave the common start.
const OSP_WARMUP_EPOCHS: u64 = 5;
const WARMUP_EPOCHS: u64 = 3;

/// Simulates one model.
pub(super) fn run(
    plan: &Plan,
    model: &SyncModel,
    ranks: u32,
    rate: LinkRate,
    bar: &ProgressBar,
) -> Result<ModelRun, SimulateError> {
    let kind: ModelKind = model
        .name()
        .parse()
        .map_err(|error: syncline::Error| SimulateError::Options { reason: error.to_string() })?;
    if plan.is_real {
        let mut digits = Digits::new(plan, ranks, kind.server_only_rank(), bar)?;
        let start = digits.start();
        let sgd = Sgd { momentum: plan.momentum, ..Sgd::default() };
        let config = SessionConfig {
            model: kind,
            optimiser: sgd.into(),
            seed: plan.seed,
            ..SessionConfig::default()
        };
        let mut settings = settings(plan, rate, &start);
        settings.epochs = u64::from(plan.epochs);
        settings.steps_per_epoch = digits.steps_per_epoch();
        settings.is_drained = true;
        let (outcome, end) = play(&config, ranks, &start, settings, &mut digits, bar, model)?;
        let (accuracy, curve) = digits.finish(outcome.end_s, &end);
        Ok(ModelRun::new(model, plan, &outcome).with_accuracy(accuracy, curve, plan.target))
    } else {
        let (config, warmup_epochs) = stand_in_config(kind, plan.seed);
        let start = stand_in::parameters(ranks, &kind);
        let mut settings = settings(plan, rate, &start);
        settings.steps_per_epoch = EPOCH_STEPS;
        settings.warmup_epochs = warmup_epochs;
        settings.epochs = warmup_epochs + plan.steps.div_ceil(EPOCH_STEPS);
        let before = warmup_epochs * EPOCH_STEPS;
        for slow in &mut settings.compute.stragglers {
            slow.from = slow.from.saturating_add(before);
            slow.to = slow.to.saturating_add(before);
        }
        let mut trainer = StandIn { bar };
        let (outcome, _) = play(&config, ranks, &start, settings, &mut trainer, bar, model)?;
        Ok(ModelRun::new(model, plan, &outcome))
    }
}

fn play(
    config: &SessionConfig,
    ranks: u32,
    start: &TensorList,
    settings: Settings,
    trainer: &mut dyn Trainer,
    bar: &ProgressBar,
    model: &SyncModel,
) -> Result<(Outcome, TensorList), SimulateError> {
    let workers = ranks - u32::from(config.model.server_only_rank().is_some());
    bar.set_length(settings.epochs * settings.steps_per_epoch * u64::from(workers));
    let run = || format!("{}, {ranks} ranks", model.title());
    let simulation = Simulation::new(config, ranks, start, settings);
    let played = simulation.and_then(|simulation| simulation.run(trainer));
    let (outcome, simulation) =
        played.map_err(|source| SimulateError::Simulation { run: run(), source })?;
    Ok((outcome, simulation.parameters(0).clone()))
}

/// Settings with which a stand-in tells the times of a large model, and how many epochs that takes.
fn stand_in_config(kind: ModelKind, seed: u64) -> (SessionConfig, u64) {
    let (model, warmup_epochs) = match kind {
        ModelKind::Osp(osp) => (ModelKind::Osp(stand_in_osp(osp)), OSP_WARMUP_EPOCHS),
        ModelKind::OspServer(server) => {
            let server = OspServerConfig { osp: stand_in_osp(server.osp), ..server };
            (ModelKind::OspServer(server), OSP_WARMUP_EPOCHS)
        }
        kind => (kind, WARMUP_EPOCHS),
    };
    (SessionConfig { model, seed, check_every: 0, ..SessionConfig::default() }, warmup_epochs)
}

/// OSP's settings on a stand-in.
fn stand_in_osp(osp: OspConfig) -> OspConfig {
    OspConfig {
        budget: BudgetRule::LossDriven { smoothing: 0.0, rise: 0.1 },
        min_deferred_len: 1,
        granularity: Granularity::Slices { max_bytes: SLICE_LEN * size_of::<f32>() },
        // Where in the backward pass important gradients come depends on the network: RS starts
        // after it, which is the worst case.
        rs_parts: 0,
        ..osp
    }
}

/// What both kinds of gradients share.
fn settings(plan: &Plan, rate: LinkRate, start: &TensorList) -> Settings {
    let elements: usize = start.iter().map(Vec::len).sum();
    let own_bytes = elements as f64 * size_of::<f32>() as f64;
    let bytes = plan.bytes.map_or(own_bytes, |bytes| bytes as f64);
    let stragglers = plan.stragglers.iter().map(|slow| {
        let (from, to) = slow.steps.unwrap_or((0, u64::MAX));
        Straggler { rank: slow.rank, delay: slow.delay, from, to }
    });
    Settings {
        network: Network {
            bytes_per_s: rate.bytes_per_s.map_or(f64::INFINITY, |bytes| bytes as f64),
            latency: plan.latency,
            element_bytes: bytes / elements as f64,
        },
        compute: Compute {
            times: plan.compute.clone(),
            jitter: plan.jitter,
            stragglers: stragglers.collect(),
            seed: plan.seed,
        },
        epochs: 1,
        steps_per_epoch: 1,
        warmup_epochs: 0,
        is_drained: false,
    }
}

//! Synchronisation models for distributed training, and the collectives under them.
//!
//! This is the one crate a trainer depends on. A [`Session`] keeps the parameters of all ranks
//! together while each computes gradients on its part of the data:
//!
//! | model | what a step waits for | take it when |
//! |---|---|---|
//! | [`ModelKind::Bsp`] | all gradients of all ranks | the network is fast; as the reference |
//! | [`ModelKind::BspBuckets`] | the same, part of which travels during the backward pass | as BSP; the fair base to compare with |
//! | [`ModelKind::Osp`] | the important gradients; the rest follow during the next step | the network is slow |
//! | [`ModelKind::OspServer`] | the same, from a parameter server | the paper's form is wanted |
//! | [`ModelKind::LocalSgd`] | nothing; every so many steps, an average of all parameters | an average a step costs too much |
//! | [`ModelKind::Diloco`] | nothing, while its averages hide behind steps | the network is very slow |
//! | [`ModelKind::Asp`] | its own round trip to the parameter server | ranks differ in speed, and accuracy may suffer |
//! | [`ModelKind::Ssp`], [`ModelKind::Dssp`] | the slowest rank, if it is far behind | the same, and staleness is to have a bound |
//! | [`ModelKind::R2sp`] | its turn at the parameter server | a server's link is what is slow |
//! | [`ModelKind::Gba`] | its own round trip | the same as ASP, with the global batch of BSP |
//!
//! A trainer that owns its optimiser takes averaged gradients from a [`GradientSync`] instead,
//! under BSP or OSP.
//!
//! - **Numbers.** Each step returns a [`StepReport`]; [`RunStats`] makes means and tails of them.
//! - **Agreement.** What the ranks agree on has the same bits on every rank; every so many steps
//!   they compare it ([`SessionConfig::check_every`]).
//! - **Under it** is [`comm`], whose names are here too: [`Communicator`] and what belongs to it.
//! - **Policies** without I/O, for rates, switches and stragglers: [`policy`]; what to reduce
//!   together: [`bucket`].
//! - **Audits**: rules that a running model keeps, or fails: [`audit`].
//! - **Studies** without a network: [`lockstep`]; over a simulated one: [`simulation`].

#![forbid(unsafe_code)]

pub mod audit;
pub mod bucket;
mod clock;
pub mod config;
pub mod control;
mod error;
mod gradient_sync;
pub mod layout;
pub mod lockstep;
#[cfg(feature = "prometheus")]
pub mod metrics;
pub mod model;
mod optimiser;
pub mod policy;
pub mod record;
mod report;
pub mod server;
mod session;
pub mod simulation;

pub use config::{
    AspConfig, AspRate, BatchRule, BucketRule, ByteCaps, DilocoConfig, DsspConfig, GbaModelConfig,
    GibLag, IcsMerge, LocalSgdConfig, ModelKind, OspConfig, OspServerConfig, PlanConfig, Planner,
    Pull, R2spConfig, ServerConfig, SessionConfig, SspConfig,
};
pub use error::{Error, Result};
pub use gradient_sync::{DeferConfig, GradientModel, GradientSync, GradientSyncConfig, SyncReport};
pub use layout::{Granularity, Layout, TensorSpec};
pub use model::diloco::{FragmentCut, Merge};
pub use model::osp::budget::{BudgetRule, Ceiling, Decision, Limit, UmaxModel};
pub use model::osp::correction::Lgp;
pub use model::osp::importance::Importance;
pub use model::osp::window::{Aimd, WindowRule};
pub use model::osp_server::settings::{MomentSource, Placement};
pub use optimiser::{Adam, Moments, Optimiser, Sgd, StepSize};
pub use policy::batch::Batch;
pub use report::{RunStats, StepReport, Summary};
pub use server::audit::AuditReport;
pub use session::{Session, Snapshot, Switch, SwitchReport};

pub use syncline_comm as comm;
pub use syncline_comm::{
    Algorithm, Class, CollectiveKind, Communicator, Config, Counters, DType, Determinism, Element,
    ErrorKind, Explanation, LinkRate, Pacing, ReduceOp, Request, TransportChoice, bf16, f16,
    wait_any,
};

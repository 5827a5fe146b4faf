//! Synchronisation models for distributed training, and the collectives under them.
//!
//! This is the one crate a trainer depends on. A [`Session`] keeps the parameters of all ranks
//! together while each computes gradients on its part of the data:
//!
//! | model | what a step waits for | take it when |
//! |---|---|---|
//! | [`ModelKind::Bsp`] | all gradients of all ranks | the network is fast; as the reference |
//! | [`ModelKind::Osp`] | the important gradients; the rest follow during the next step | the network is slow |
//! | [`ModelKind::Asp`] | its own round trip to the parameter server | ranks differ in speed, and accuracy may suffer |
//!
//! - **Numbers.** Each step returns a [`StepReport`]; [`RunStats`] makes means and tails of them.
//! - **Agreement.** What the ranks agree on has the same bits on every rank; every so many steps
//!   they compare it ([`SessionConfig::check_every`]).
//! - **Under it** is [`comm`], whose names are here too: [`Communicator`] and what belongs to it.
//! - **Policies** without I/O, for rates, switches and stragglers: [`policy`]; what to reduce
//!   together: [`bucket`].
//! - **Studies** without a network: [`lockstep`].

#![forbid(unsafe_code)]

pub mod bucket;
mod clock;
pub mod config;
pub mod control;
mod error;
pub mod layout;
pub mod lockstep;
pub mod model;
mod optimiser;
pub mod policy;
pub mod record;
mod report;
pub mod server;
mod session;

pub use config::{AspConfig, AspRate, GibLag, ModelKind, OspConfig, Pull, SessionConfig};
pub use error::{Error, Result};
pub use layout::{Granularity, Layout, TensorSpec};
pub use model::osp::budget::{BudgetRule, Ceiling, Decision, Limit, UmaxModel};
pub use model::osp::correction::Lgp;
pub use model::osp::importance::Importance;
pub use optimiser::{Adam, Moments, Optimiser, Sgd, StepSize};
pub use report::{RunStats, StepReport, Summary};
pub use session::{Session, Snapshot, Switch, SwitchReport};

pub use syncline_comm as comm;
pub use syncline_comm::{
    Algorithm, Class, CollectiveKind, Communicator, Config, Counters, DType, Element, ErrorKind,
    Explanation, LinkRate, Pacing, ReduceOp, Request, TransportChoice, bf16, f16, wait_any,
};

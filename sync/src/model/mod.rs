//! Sync models: the rules for what is exchanged after a step, and when a rank may go on.
//!
//! Owns the vocabulary that models and their drivers share. A model is a state machine: events go
//! in, actions come out, and between them it does all the arithmetic on parameters, velocity and
//! gradients. It never communicates, blocks, or reads a clock. Two drivers run it: the session,
//! over a communicator, and [`crate::lockstep`], over exact sums in memory.
//!
//! ```text
//!            handle_event                         poll_action
//! GradientReady, StepEnded ┐                  ┌──────────────▶ Reduce, StartReduce, Wait
//! Reduced   ───────────────┤                  ├──────────────▶ Gather
//! Gathered  ───────────────┼──▶  SyncModel  ──┼──────────────▶ Push, AwaitReply, Collect
//! Replied   ───────────────┤                  ├──────────────▶ PushStage, AwaitStage, EndStages
//! StageReplied ────────────┤                  ├──────────────▶ Fail
//! EpochEnded, Drain ───────┘                  └──────────────▶ none left: the rank may go on
//! ```

mod bsp;
pub(crate) mod check;
pub mod diloco;
mod inner;
pub mod local_sgd;
pub mod osp;
pub mod osp_server;
mod worker;

use std::fmt::Debug;
use std::time::Duration;

pub use bsp::Bsp;
pub use diloco::Diloco;
pub use local_sgd::LocalSgd;
pub use osp::Osp;
pub use osp_server::OspServer;
pub use worker::Worker;

use crate::audit::{Audited, Rules};
use crate::config::{ModelKind, SessionConfig};
use crate::error::Error;
use crate::layout::Layout;
use crate::optimiser::{Moments, Optimiser};
use crate::policy::batch::Batch;
use crate::server::osp::wire::{HEAD_WORDS, Stage};
use osp::budget::Decision;

/// Names one reduction of one model; the same on every rank.
pub type ReduceId = u64;

/// What a rank has to tell its model.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// All shards of the parameter server, as [`Action::Collect`] asked.
    Collected {
        /// All parameters, flat.
        parameters: Vec<f32>,
        /// Each shard's version.
        versions: Vec<u64>,
    },
    /// The trainer wants the global parameters, on every rank, with nothing under way.
    Drain,
    /// An epoch is over on every rank.
    EpochEnded {
        /// This rank's mean training loss.
        mean_loss: f64,
    },
    /// The backward pass has finished one gradient, the only one in [`Tensors`], whose parameters
    /// are empty: the pass still reads them. Before [`Event::StepEnded`], in any order, each tensor
    /// at most once a step. Given only to models that say [`SyncModel::overlaps`].
    GradientReady {
        /// Which tensor.
        tensor: usize,
        /// Time since the rank was last allowed to go on.
        compute: Duration,
    },
    /// What all ranks gave to [`Action::Gather`].
    Gathered {
        /// Each rank's words, in order of ranks.
        words: Vec<u64>,
    },
    /// A reduction is done.
    Reduced {
        /// Which.
        id: ReduceId,
        /// The average over all ranks.
        data: Vec<f32>,
        /// How long it took.
        timing: Timing,
    },
    /// A shard's reply.
    Replied {
        /// The rank whose shard it is.
        server: u32,
        /// As [`crate::server::wire`] has it.
        message: Vec<u32>,
    },
    /// The reply of one of OSP's servers.
    StageReplied {
        /// Its rank.
        server: u32,
        /// As [`crate::server::osp::wire`] has it.
        message: Vec<u32>,
        /// From the push until the end of the reply was seen.
        timing: Timing,
    },
    /// The forward and backward pass of a step is over; its gradients are in [`Tensors`].
    StepEnded(StepEnded),
}

impl Event {
    /// Which event, without its data.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Collected { .. } => "collected",
            Self::Drain => "drain",
            Self::EpochEnded { .. } => "epoch ended",
            Self::GradientReady { .. } => "gradient ready",
            Self::Gathered { .. } => "gathered",
            Self::Reduced { .. } => "reduced",
            Self::Replied { .. } => "replied",
            Self::StageReplied { .. } => "stage replied",
            Self::StepEnded(_) => "step ended",
        }
    }
}

/// The end of a step's computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepEnded {
    /// Rate for this step's update; the same on every rank.
    pub learning_rate: f32,
    /// This rank's training loss in this step.
    pub loss: f32,
    /// Time since the rank was last allowed to go on.
    pub compute: Duration,
}

/// How long a reduction took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From its start until its end was seen.
    pub elapsed: Duration,
    /// The part of it in which the rank did nothing else. Zero if the reduction was over when it
    /// was asked for: its end lies somewhere before then.
    pub blocked: Duration,
}

/// What a model wants done, in this order.
#[derive(Debug)]
pub enum Action {
    /// Wait for the next reply of this rank's shard, and give it as [`Event::Replied`].
    AwaitReply {
        /// The rank whose shard it is.
        server: u32,
    },
    /// Wait for the reply to the last [`Action::PushStage`], and give it as
    /// [`Event::StageReplied`].
    AwaitStage {
        /// The server's rank.
        server: u32,
        /// Of which stage.
        stage: Stage,
    },
    /// Wait until every worker has told this rank's shard that it pushes no more, and bring all
    /// shards together: [`Event::Collected`].
    Collect,
    /// Tell one of OSP's servers that this rank pushes no more.
    EndStages {
        /// The server's rank.
        server: u32,
        /// As [`crate::server::osp::wire`] has it.
        head: [u32; HEAD_WORDS],
    },
    /// Give up.
    Fail(Error),
    /// Exchange a few words between all ranks, blocking: [`Event::Gathered`].
    Gather {
        /// This rank's words; equally many on every rank.
        words: Vec<u64>,
    },
    /// Send a message to a shard.
    Push {
        /// The rank whose shard it is.
        server: u32,
        /// As [`crate::server::wire`] has it.
        message: Vec<u32>,
        /// Whether the shard will reply.
        replies: bool,
    },
    /// Push to one of OSP's servers: RS ahead of all other traffic, ICS in the background.
    PushStage {
        /// The server's rank.
        server: u32,
        /// Of which stage.
        stage: Stage,
        /// As [`crate::server::osp::wire`] has it.
        head: [u32; HEAD_WORDS],
        /// The same.
        body: Vec<u32>,
        /// Words of the reply.
        reply_words: usize,
    },
    /// Average over all ranks, blocking, ahead of all other traffic: [`Event::Reduced`].
    Reduce {
        /// Which.
        id: ReduceId,
        /// This rank's part; equally long on every rank.
        data: Vec<f32>,
    },
    /// Start to average over all ranks, and go on: [`Action::Wait`] gets the result. Every rank
    /// starts the reductions of one lane in the same order.
    StartReduce {
        /// Which.
        id: ReduceId,
        /// This rank's part; equally long on every rank.
        data: Vec<f32>,
        /// Ahead of what it goes.
        lane: Lane,
    },
    /// Wait for a started reduction: [`Event::Reduced`].
    Wait {
        /// Which.
        id: ReduceId,
    },
}

/// What a started reduction goes ahead of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Yields to all other traffic: the rank computes on while it travels.
    Background,
    /// Ahead of all background traffic: the rank will soon wait for it.
    Urgent,
}

/// The trainer's tensors, lent for one call.
#[derive(Debug)]
pub struct Tensors<'a, 't> {
    /// What the trainer computes with. A model writes here what the next step shall use.
    pub parameters: &'a mut [&'t mut [f32]],
    /// This step's gradients, or the one that is ready; empty at other events.
    pub gradients: &'a [&'a [f32]],
}

/// Bytes of gradient of one step of one rank; of parameters, for models that average those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Exchanged before the next step began.
    pub important_bytes: u64,
    /// Exchanged while the next step computed.
    pub deferred_bytes: u64,
}

/// A sync model of one rank.
///
/// Every rank's model sees the same kinds of events in the same order (but for those with a
/// parameter server, whose workers run apart between [`Event::Drain`]s), and asks for the same
/// reductions in the same order.
pub trait SyncModel: Send + Debug {
    /// Takes note of `event`, and reads and writes `tensors` as it needs.
    ///
    /// # Panics
    /// If the event is none that this model waits for: a bug of the driver.
    fn handle_event(&mut self, event: Event, tensors: &mut Tensors<'_, '_>);

    /// The next thing to do; after each event, call until there is none.
    fn poll_action(&mut self) -> Option<Action>;

    /// Whether the model wants to hear of each gradient during the backward pass.
    fn overlaps(&self) -> bool {
        false
    }

    /// What this rank takes of the global batch in its next step, if the model divides it.
    fn next_batch(&self) -> Option<Batch> {
        None
    }

    /// How many updates the parameters that this rank computes with lack at most.
    fn staleness(&self) -> u64;

    /// What the last step moved.
    fn traffic(&self) -> Traffic;

    /// How many bytes may be deferred now, and why not more.
    fn decision(&self) -> &Decision;

    /// What the optimiser remembers, out of a model at rest after [`Event::Drain`], which is of no
    /// use then; `None` for models whose parameters a server owns.
    fn take_memory(&mut self) -> Option<Memory> {
        None
    }
}

/// What an optimiser has to remember from one model to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// Of all parameters, flat.
    pub moments: Moments,
    /// Updates made so far.
    pub updates: u64,
}

impl Memory {
    /// That of a start from nothing.
    pub fn new(optimiser: &Optimiser, len: usize) -> Self {
        Self { moments: Moments::new(optimiser, len), updates: 0 }
    }
}

impl<M: SyncModel + ?Sized> SyncModel for Box<M> {
    fn handle_event(&mut self, event: Event, tensors: &mut Tensors<'_, '_>) {
        (**self).handle_event(event, tensors);
    }

    fn poll_action(&mut self) -> Option<Action> {
        (**self).poll_action()
    }

    fn overlaps(&self) -> bool {
        (**self).overlaps()
    }

    fn next_batch(&self) -> Option<Batch> {
        (**self).next_batch()
    }

    fn staleness(&self) -> u64 {
        (**self).staleness()
    }

    fn traffic(&self) -> Traffic {
        (**self).traffic()
    }

    fn decision(&self) -> &Decision {
        (**self).decision()
    }

    fn take_memory(&mut self) -> Option<Memory> {
        (**self).take_memory()
    }
}

/// What every model has to know about the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// This rank.
    pub rank: u32,
    /// Ranks.
    pub world_size: u32,
    /// Fixes whatever is drawn at random; the same on every rank.
    pub seed: u64,
    /// How gradients become updates.
    pub optimiser: Optimiser,
    /// Largest norm of a gradient over all tensors.
    pub clip_norm: Option<f32>,
    /// Samples of each rank in a step, where the model may divide their sum.
    pub batch: Option<u32>,
    /// Steps from one comparison of all replicas to the next; 0 for none.
    pub check_every: u64,
}

impl Job {
    /// The job of a session with `config`.
    pub fn new(rank: u32, world_size: u32, config: &SessionConfig) -> Self {
        let SessionConfig { optimiser, clip_norm, batch, seed, check_every, .. } = *config;
        Self { rank, world_size, seed, optimiser, clip_norm, batch, check_every }
    }

    fn check_is_due(&self, step: u64) -> bool {
        self.check_every > 0 && step.is_multiple_of(self.check_every)
    }
}

/// The model that `config` asks for, on tensors with these initial parameters and what the
/// optimiser remembers of the steps before.
///
/// # Panics
/// If the tensors are not those of `layout`, or `config` is not valid.
pub fn build(
    config: &SessionConfig,
    job: Job,
    layout: Layout,
    parameters: &[&mut [f32]],
    memory: Memory,
) -> Box<dyn SyncModel> {
    let rules = config.audits.then(|| Rules::of(config, job.rank, layout.len())).flatten();
    let model: Box<dyn SyncModel> = match &config.model {
        ModelKind::Asp(asp) => Box::new(Worker::new(job, (*asp).into(), layout)),
        ModelKind::Bsp => Box::new(Bsp::new(job, memory)),
        ModelKind::Dssp(dssp) => Box::new(Worker::new(job, (*dssp).into(), layout)),
        ModelKind::Gba(gba) => Box::new(Worker::new(job, (*gba).into(), layout)),
        ModelKind::R2sp(r2sp) => Box::new(Worker::new(job, (*r2sp).into(), layout)),
        ModelKind::Ssp(ssp) => Box::new(Worker::new(job, (*ssp).into(), layout)),
        ModelKind::Diloco(diloco) => {
            Box::new(Diloco::new(job, *diloco, &layout, parameters, memory))
        }
        ModelKind::LocalSgd(local) => Box::new(LocalSgd::new(job, *local, memory)),
        ModelKind::BspBuckets(rule) => Box::new(Bsp::with_buckets(job, memory, *rule, &layout)),
        ModelKind::Osp(osp) => Box::new(Osp::new(job, *osp, layout, parameters, memory)),
        ModelKind::OspServer(osp) => {
            Box::new(OspServer::new(job, *osp, layout, parameters, memory))
        }
    };
    if rules.is_some() { Box::new(Audited::new(model, rules)) } else { model }
}

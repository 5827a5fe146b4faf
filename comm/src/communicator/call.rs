//! From a call to a launch: check, choose, number.
//!
//! Owns the choice of an algorithm, which depends only on what all ranks have alike, and the
//! sequence numbers. Never waits.

use super::{Communicator, Inner, calibrate, grade};
use crate::determinism::Determinism;
use crate::engine::{Body, Done, Launch, Outcome};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::LocalSlice;
use crate::offload::node::{LaneId, LaneMember, NodeLane};
use crate::transport::Class;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use syncline_kernels::{DType, ReduceOp};
use syncline_proto::call::{Call, CollectiveKind, Fingerprint};
use syncline_proto::collective::Algorithm;
use syncline_proto::collective::shape::{Counts, Shape};
use syncline_proto::collective::tuning::{self, Choice, Demand, Link, LinkCost, Reason};
use syncline_proto::id::Rank;

/// Chunks of urgent messages.
const CHUNK_BYTES: u64 = 256 << 10;
/// Chunks of messages that must let urgent ones pass, or that go over a slow link.
const CHUNK_BYTES_SMALL: u64 = 32 << 10;
/// What a link carries in this time makes a chunk, within the two sizes above.
const CHUNK_TIME: Duration = Duration::from_millis(2);

/// What a paced message costs beside its bytes: both ends sleep and are woken for it.
const PACED_LATENCY_NS: u64 = 200_000;
/// What each further message at the same time costs.
const PACED_MESSAGE_NS: u64 = 20_000;

/// Buffers and meaning of a collective, before it has a number.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) kind: CollectiveKind,
    pub(super) dtype: DType,
    pub(super) op: Option<ReduceOp>,
    pub(super) determinism: Determinism,
    pub(super) shape: Shape,
    pub(super) input: LocalSlice,
    pub(super) output: LocalSlice,
    pub(super) buffer: Option<Box<dyn Any + Send>>,
}

/// Which way a call would go, and why not another: what `syncline info` prints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// Chosen.
    pub algorithm: Algorithm,
    /// How long it should take, where the cost model covers it.
    pub predicted_ns: Option<u64>,
    /// All that could carry the call out, the chosen one among them, with how long each should
    /// take in nanoseconds where the cost model covers it.
    pub candidates: Vec<(Algorithm, Option<u64>)>,
    /// Not chosen, with the reason.
    pub rejected: Vec<(Algorithm, String)>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.algorithm)?;
        if let Some(ns) = self.predicted_ns {
            write!(f, " (predicted {ns} ns)")?;
        }
        Ok(())
    }
}

impl Communicator {
    /// Which algorithm a collective of `bytes` would take on this communicator, and why; for one
    /// that reduces, a sum of `f32`.
    ///
    /// `bytes` is the whole vector for `all_reduce`, `broadcast` and `reduce`, else a rank's block.
    pub fn explain(&self, kind: CollectiveKind, bytes: u64) -> Explanation {
        self.explain_reduction(kind, bytes, DType::F32, ReduceOp::Sum)
    }

    /// The same for another type and operation, on which the choice depends if this handle asks
    /// for [`Determinism::Canonical`].
    pub fn explain_reduction(
        &self,
        kind: CollectiveKind,
        bytes: u64,
        dtype: DType,
        op: ReduceOp,
    ) -> Explanation {
        let text = |c: Choice| -> Vec<(Algorithm, String)> {
            c.rejected.into_iter().map(|(a, reason)| (a, reason.to_string())).collect()
        };
        let canonical = grade::narrows(self.determinism, Some((dtype, op)));
        let choice = self.inner.choose(kind, bytes, canonical);
        let mut candidates = candidates(&choice);
        if self.inner.takes_node_path(kind) {
            let mut rejected = text(choice.clone());
            rejected.retain(|(a, _)| *a != Algorithm::Node);
            let why = "all ranks share this host's memory".to_owned();
            rejected.push((choice.algorithm, why));
            rejected.sort();
            candidates.push((Algorithm::Node, None));
            candidates.sort();
            let algorithm = Algorithm::Node;
            return Explanation { algorithm, predicted_ns: None, candidates, rejected };
        }
        let (algorithm, predicted_ns) = (choice.algorithm, Some(choice.predicted_ns));
        Explanation { algorithm, predicted_ns, candidates, rejected: text(choice) }
    }
}

impl Inner {
    pub(super) fn world_size(&self) -> u32 {
        u32::try_from(self.members.len()).expect("ranks are counted in 32 bits")
    }

    /// Hands the communicator's lane to the engine.
    pub(super) fn open_lane(&self) {
        let (Some(index), Some(segment)) = (self.lane, &self.job.segment) else { return };
        let host = |rank: Rank| self.job.topology.hosts()[rank as usize];
        // Place in the segment: world ranks of this host, in order.
        let place = |rank: Rank| {
            let lower = (0..rank).filter(|r| host(*r) == host(rank)).count();
            u32::try_from(lower).expect("ranks are counted in 32 bits")
        };
        let member = |rank: &Rank| LaneMember { local_index: place(*rank), rank: *rank };
        let members: Vec<LaneMember> = self.members.iter().map(member).collect();
        let id = LaneId { index, generation: 0 };
        let lane = NodeLane::open(Arc::clone(segment), id, &members, self.rank);
        self.job.driver.lock().add_lane(self.comm, lane);
    }

    /// What messages cost, as far as all ranks know it alike.
    fn links(&self) -> LinkCost {
        let links = LinkCost::default();
        let Some(pacing) = self.job.config.pacing else {
            return *self.job.links.get().unwrap_or(&links);
        };
        let latency = u64::try_from(pacing.latency.as_nanos()).unwrap_or(u64::MAX);
        let paced = Link {
            latency_ns: latency.saturating_add(PACED_LATENCY_NS),
            message_ns: PACED_MESSAGE_NS,
            bytes_per_s: pacing.rate.bytes_per_s as u64,
        };
        LinkCost { local: paced, remote: paced, ..links }
    }

    pub(super) fn choose(&self, kind: CollectiveKind, bytes: u64, canonical: bool) -> Choice {
        let measured = self.job.measures_links().then(|| calibrate::algorithm(bytes));
        let forced = measured.or(self.job.config.algorithm);
        let demand = Demand { forced, canonical };
        tuning::choose(kind, bytes, &self.topology, &self.links(), demand)
    }

    /// Whether the call goes through the host's shared memory instead of messages.
    pub(super) fn takes_node_path(&self, kind: CollectiveKind) -> bool {
        let wanted = self.job.config.algorithm.is_none_or(|a| a == Algorithm::Node);
        self.lane.is_some() && wanted && NodeLane::supports(kind, self.world_size())
    }

    /// Carries out a collective; what owned its memory comes back.
    pub(super) fn run(&self, prepared: Prepared) -> Result<Option<Box<dyn Any + Send>>> {
        let mut launch = self.launch(prepared)?;
        let mut call = launch.call;
        let outcome = self.job.driver.run(|_| {
            call.seq = self.next_number();
            launch.call = call;
            launch
        });
        self.result(call, outcome)
    }

    /// Starts a collective.
    pub(super) fn start(&self, prepared: Prepared) -> Result<(Call, Arc<Done>)> {
        let mut launch = self.launch(prepared)?;
        let mut call = launch.call;
        let done = self.job.driver.start(|_| {
            call.seq = self.next_number();
            launch.call = call;
            launch
        });
        Ok((call, done))
    }

    /// Of the next collective. Taken under the engine's lock, so that calls are posted in this
    /// order.
    fn next_number(&self) -> u64 {
        self.next_collective.fetch_add(1, Ordering::Relaxed)
    }

    /// What to launch, but for the call's number.
    fn launch(&self, prepared: Prepared) -> Result<Launch> {
        let Prepared { kind, dtype, op, determinism, shape, input, output, buffer } = prepared;
        self.check(kind, dtype, &shape, &input, &output)?;
        let canonical = grade::narrows(determinism, op.map(|op| (dtype, op)));
        if canonical {
            grade::check(kind, self.job.config.algorithm, self.world_size())?;
        }
        let bytes = fingerprint_bytes(&shape, dtype);
        let node = self.takes_node_path(kind) && is_uniform(&shape);
        let algorithm = match node {
            true => Algorithm::Node,
            false => self.choose(kind, bytes, canonical).algorithm,
        };
        let has_root = syncline_proto::collective::shape::has_root(kind);
        let fingerprint = Fingerprint {
            kind: kind as u8,
            dtype: dtype.code(),
            op: grade::op_code(op, determinism),
            algorithm: algorithm as u8,
            root: if has_root { shape.root } else { Fingerprint::NO_ROOT },
            count: fingerprint_count(&shape),
        };
        let body = if node {
            Body::Node { root: shape.root, kind }
        } else {
            let plan = tuning::plan(kind, algorithm, self.rank, &self.topology, &shape);
            let plan = plan.ok_or_else(|| {
                let text = format!("no plan for {kind} by {algorithm}");
                Error::new(ErrorKind::Internal, text)
            })?;
            Body::Plan {
                plan,
                members: Arc::clone(&self.members),
                chunk_len: self.chunk_len(dtype),
            }
        };
        let average = op == Some(ReduceOp::Avg) && !output.is_empty();
        Ok(Launch {
            call: Call { comm: self.comm, seq: 0, fingerprint },
            body,
            dtype,
            op: op.unwrap_or(ReduceOp::Sum),
            average_over: average.then(|| self.world_size()),
            class: self.class,
            endpoint: None,
            input,
            output,
            timeout: self.timeout,
            buffer,
        })
    }

    pub(super) fn chunk_len(&self, dtype: DType) -> u64 {
        let is_small = self.job.config.pacing.is_some() || self.class == Class::Background;
        let bytes = match self.job.links.get() {
            _ if is_small => CHUNK_BYTES_SMALL,
            Some(links) => chunk_bytes(links.remote.bytes_per_s),
            None => CHUNK_BYTES,
        };
        bytes / dtype.size() as u64
    }

    /// The result of a call that is over.
    pub(super) fn result(
        &self,
        call: Call,
        outcome: Outcome,
    ) -> Result<Option<Box<dyn Any + Send>>> {
        match outcome.fault {
            Some(fault) => Err(self.job.error(Some(call), fault)),
            None => Ok(outcome.buffer),
        }
    }

    fn check(
        &self,
        kind: CollectiveKind,
        dtype: DType,
        shape: &Shape,
        input: &LocalSlice,
        output: &LocalSlice,
    ) -> Result<()> {
        let invalid =
            |text: String| Error::new(ErrorKind::InvalidArgument, format!("{kind}: {text}"));
        let extent = shape.extent(kind, self.rank, self.world_size()).ok_or_else(|| {
            let world_size = self.world_size();
            invalid(format!("root or counts do not fit a world of {world_size}: {shape:?}"))
        })?;
        let size = dtype.size() as u64;
        for (name, elements, slice) in
            [("input", extent.input, input), ("output", extent.output, output)]
        {
            let bytes = elements.checked_mul(size);
            if bytes != Some(slice.len() as u64) {
                let has = slice.len() as u64 / size;
                return Err(invalid(format!(
                    "{name} has {has} elements, the call needs {elements}"
                )));
            }
        }
        Ok(())
    }
}

/// Of a link that carries so much: a power of two.
fn chunk_bytes(bytes_per_s: u64) -> u64 {
    let carried = u128::from(bytes_per_s) * CHUNK_TIME.as_nanos() / 1_000_000_000;
    let carried = u64::try_from(carried).unwrap_or(CHUNK_BYTES);
    1 << carried.clamp(CHUNK_BYTES_SMALL, CHUNK_BYTES).ilog2()
}

/// What the cost model covers, in the order of [`Algorithm::ALL`].
fn candidates(choice: &Choice) -> Vec<(Algorithm, Option<u64>)> {
    let others = choice.rejected.iter().filter_map(|(algorithm, reason)| match reason {
        Reason::NotCanonical { predicted_ns }
        | Reason::NotForced { predicted_ns }
        | Reason::Slower { predicted_ns } => Some((*algorithm, Some(*predicted_ns))),
        Reason::NotSupported | Reason::OneLevel => None,
    });
    let mut all: Vec<_> = others.chain([(choice.algorithm, Some(choice.predicted_ns))]).collect();
    all.sort();
    all
}

fn is_uniform(shape: &Shape) -> bool {
    matches!(shape.counts, Counts::Uniform(_))
}

/// What the choice of an algorithm depends on; the same on all ranks.
fn fingerprint_bytes(shape: &Shape, dtype: DType) -> u64 {
    let elements = match &shape.counts {
        Counts::Uniform(count) => *count,
        Counts::PerRank(counts) => counts.iter().copied().max().unwrap_or(0),
        Counts::Exchange { .. } => 0,
    };
    elements.saturating_mul(dtype.size() as u64)
}

fn fingerprint_count(shape: &Shape) -> u64 {
    match &shape.counts {
        Counts::Uniform(count) => *count,
        // FNV-1a: ranks that give different counts find out.
        Counts::PerRank(counts) => {
            counts.iter().flat_map(|c| c.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        }
        Counts::Exchange { .. } => 0,
    }
}

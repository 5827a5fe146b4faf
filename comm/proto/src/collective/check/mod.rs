//! The prover: whether the plans of a whole world do what their kind promises.
//!
//! Owns the rules a plan must keep and the symbolic run that shows the result. Moves no byte,
//! knows no algorithm. Used by tests, and by debug builds before a plan is run.
//!
//! What is proved, in this order:
//!
//! 1. every step alone: in bounds, no input written, peers and tags legal (`rounds`);
//! 2. every round alone: nothing touches what a receive of it writes (`rounds`);
//! 3. every message: sent once, received once, with one length, in an order that needs no
//!    buffering of one message to get at the next (`wires`);
//! 4. all ranks together: they come to an end even if a send waits for its receive, and nobody
//!    reads memory that nobody wrote (`world`);
//! 5. the result: each element of each output holds exactly the contributions it should, all
//!    replicas of `all_reduce` computed by the very same expression, nobody past a barrier
//!    before everybody came (`results`).
//!
//! The result does not depend on timing: a message's content is fixed when its round starts, and
//! each message has one place to go. So one run stands for all.
//!
//! Time and memory grow with the elements, so prove small counts; a plan's steps do not depend on
//! the count.

mod results;
mod rounds;
#[cfg(test)]
mod tests;
mod values;
mod wires;
mod world;

use super::plan::{Area, Plan, Step};
use super::shape::{Extent, Shape};
use crate::call::CollectiveKind;
use crate::id::Rank;
use alloc::vec::Vec;
use core::fmt;

/// Proves the plans of a world: `plans[r]` is rank `r`'s, for a call with `shapes[r]`.
///
/// # Errors
/// The first flaw found.
///
/// # Panics
/// If the world has more elements than 32 bits count.
pub fn check(kind: CollectiveKind, plans: &[Plan], shapes: &[Shape]) -> Result<(), Flaw> {
    let job = Job::new(kind, plans, shapes)?;
    for rank in job.ranks() {
        rounds::check(&job, rank)?;
    }
    let wires = wires::Wires::connect(&job)?;
    let end = world::run(&job, &wires)?;
    results::check(&job, &end)
}

/// A step of a rank's plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// Whose plan.
    pub rank: Rank,
    /// Index into [`Plan::rounds`].
    pub round: usize,
    /// Index into the round's steps.
    pub step: usize,
}

/// What is wrong with a world's plans.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// A receive writes what another step of its round reads or writes.
    Aliased {
        /// The receive.
        recv: Place,
        /// The other step's index in the round.
        with: usize,
    },
    /// An output element holds a contribution too often, too rarely, or where it does not belong.
    Contribution {
        /// Whose output.
        rank: Rank,
        /// Index into it.
        element: u64,
        /// Whose contribution.
        source: Rank,
        /// Index into the source's data.
        source_element: u64,
        /// How often it is in.
        times: u64,
    },
    /// All remaining ranks wait for one another.
    Deadlock {
        /// Rank and round of each.
        stuck: Vec<(Rank, usize)>,
    },
    /// Two messages of one direction between two ranks have the same tag.
    DuplicateTag {
        /// The later step.
        at: Place,
    },
    /// A step writes to the input.
    InputWritten {
        /// The step.
        at: Place,
    },
    /// A message or a local step has another length at its source than at its target.
    LengthMismatch {
        /// The send, or the local step.
        source: Place,
        /// The receive, or the local step.
        target: Place,
        /// Elements at the source.
        sent: u64,
        /// Elements at the target.
        received: u64,
    },
    /// A rank can pass the barrier before another has come to it.
    NotSynchronised {
        /// The one that passes.
        rank: Rank,
        /// The one it has not heard of.
        missing: Rank,
    },
    /// A span ends behind its area.
    OutOfBounds {
        /// The step.
        at: Place,
        /// The area.
        area: Area,
        /// Elements the area has.
        len: u64,
    },
    /// A rank that is not the root of a gather or reduce uses its output.
    OutputOfNonRoot {
        /// The step.
        at: Place,
    },
    /// A message must be received before one that was sent earlier on the same wire.
    Overtaking {
        /// The later send, which is received first.
        send: Place,
    },
    /// A peer is the rank itself, or none of the world.
    PeerInvalid {
        /// The step.
        at: Place,
    },
    /// The same contributions, but not by the same expression: floats may differ in their bits.
    ReplicasDiffer {
        /// Differs from rank 0.
        rank: Rank,
        /// Index into the output.
        element: u64,
    },
    /// The shape does not fit the kind or the world, or there is not one per plan.
    ShapeInvalid {
        /// Whose.
        rank: Rank,
    },
    /// A tag reaches into the bit that marks point-to-point messages.
    TagReserved {
        /// The step.
        at: Place,
    },
    /// A step reads an element that nothing has written.
    Undefined {
        /// The step.
        at: Place,
        /// The memory.
        area: Area,
        /// Index into it.
        element: u64,
    },
    /// A send that nobody receives, or a receive that nobody sends to.
    Unmatched {
        /// The step.
        at: Place,
    },
    /// An output element is never written.
    Unwritten {
        /// Whose output.
        rank: Rank,
        /// Index into it.
        element: u64,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, round {}, step {}", self.rank, self.round, self.step)
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aliased { recv, with } => {
                write!(f, "{recv}: receives into what step {with} uses")
            }
            Self::Contribution { rank, element, source, source_element, times } => write!(
                f,
                "rank {rank}: output {element} holds element {source_element} of rank {source} \
                 {times} times"
            ),
            Self::Deadlock { stuck } => {
                f.write_str("deadlock:")?;
                for (rank, round) in stuck {
                    write!(f, " rank {rank} in round {round};")?;
                }
                Ok(())
            }
            Self::DuplicateTag { at } => write!(f, "{at}: the tag was used before"),
            Self::InputWritten { at } => write!(f, "{at}: writes to the input"),
            Self::LengthMismatch { source, target, sent, received } => {
                write!(f, "{source}: sends {sent} elements, but {target} takes {received}")
            }
            Self::NotSynchronised { rank, missing } => {
                write!(f, "rank {rank} can pass before rank {missing} has come")
            }
            Self::OutOfBounds { at, area, len } => {
                write!(f, "{at}: reaches beyond the {len} elements of {area:?}")
            }
            Self::OutputOfNonRoot { at } => {
                write!(f, "{at}: uses the output of a rank that is not the root")
            }
            Self::Overtaking { send } => {
                write!(f, "{send}: is received before something sent earlier")
            }
            Self::PeerInvalid { at } => write!(f, "{at}: no such peer"),
            Self::ReplicasDiffer { rank, element } => {
                write!(f, "rank {rank}: output {element} is computed unlike rank 0's")
            }
            Self::ShapeInvalid { rank } => write!(f, "rank {rank}: the shape does not fit"),
            Self::TagReserved { at } => write!(f, "{at}: the tag is reserved"),
            Self::Undefined { at, area, element } => {
                write!(f, "{at}: reads element {element} of {area:?}, which nobody has written")
            }
            Self::Unmatched { at } => write!(f, "{at}: has no counterpart"),
            Self::Unwritten { rank, element } => {
                write!(f, "rank {rank}: output {element} is never written")
            }
        }
    }
}

impl core::error::Error for Flaw {}

/// What is to be proved.
struct Job<'a> {
    kind: CollectiveKind,
    plans: &'a [Plan],
    shapes: &'a [Shape],
    extents: Vec<Extent>,
}

impl<'a> Job<'a> {
    fn new(kind: CollectiveKind, plans: &'a [Plan], shapes: &'a [Shape]) -> Result<Self, Flaw> {
        let world_size = u32::try_from(plans.len()).expect("ranks are counted in 32 bits");
        let extent = |rank: Rank| {
            let shape = shapes.get(rank as usize);
            let extent = shape.and_then(|shape| shape.extent(kind, rank, world_size));
            extent.ok_or(Flaw::ShapeInvalid { rank })
        };
        let extents = (0..world_size).map(extent).collect::<Result<_, _>>()?;
        Ok(Self { kind, plans, shapes, extents })
    }

    fn world_size(&self) -> u32 {
        u32::try_from(self.plans.len()).expect("checked by new")
    }

    fn ranks(&self) -> core::ops::Range<Rank> {
        0..self.world_size()
    }

    fn plan(&self, rank: Rank) -> &'a Plan {
        &self.plans[rank as usize]
    }

    fn step(&self, at: Place) -> &'a Step {
        &self.plan(at.rank).rounds[at.round].steps[at.step]
    }

    /// Elements of an area.
    fn area_len(&self, rank: Rank, area: Area) -> u64 {
        let extent = self.extents[rank as usize];
        match area {
            Area::Input => extent.input,
            Area::Output => extent.output,
            Area::Scratch => self.plan(rank).scratch_len,
        }
    }

    /// Where a rank's contribution lies at the start; `None` if it gives nothing.
    fn source(&self, rank: Rank) -> Option<Area> {
        match self.kind {
            CollectiveKind::AllReduce => Some(Area::Output),
            CollectiveKind::Broadcast => {
                (self.shapes[rank as usize].root == rank).then_some(Area::Output)
            }
            _ => Some(Area::Input),
        }
    }

    fn places(&self, rank: Rank) -> impl Iterator<Item = (Place, &'a Step)> {
        let rounds = self.plan(rank).rounds.iter().enumerate();
        rounds.flat_map(move |(round, steps)| {
            let steps = steps.steps.iter().enumerate();
            steps.map(move |(step, what)| (Place { rank, round, step }, what))
        })
    }
}

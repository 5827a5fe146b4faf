//! Collectives: plans, the algorithms that make them, the machine that runs them.
//!
//! An algorithm is a pure function from (rank, world size, counts, root) to a [`Plan`]; the
//! prover checks the plans of a whole world without moving a byte; [`machine::PlanMachine`]
//! runs any plan.

pub mod blocks;
pub mod check;
pub mod cost;
pub mod direct;
pub mod halving_doubling;
pub mod hierarchical;
mod in_flight;
pub mod machine;
pub mod pairwise;
pub mod plan;
pub mod recursive_doubling;
pub mod ring;
pub mod shape;
#[cfg(test)]
mod tests;
pub mod topology;
pub mod tree;
pub mod tuning;

pub use plan::{Area, Fold, Plan, Round, Span, Step};
pub use shape::{Counts, Extent, Shape};
pub use topology::Topology;
pub use tuning::{Choice, Demand, LinkCost};

use core::fmt;

/// How a collective is carried out. The codes are part of the fingerprint, so ranks that would
/// choose differently find out instead of exchanging nonsense.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Algorithm {
    /// Everybody to everybody at once.
    Direct = 1,
    /// Recursive halving, then recursive doubling.
    HalvingDoubling = 2,
    /// Inside each host, then between hosts, then inside again.
    Hierarchical = 3,
    /// Ranks of one host reduce out of each other's shared memory.
    Node = 4,
    /// Whole vectors exchanged at doubling distance.
    RecursiveDoubling = 5,
    /// Around a ring.
    Ring = 6,
    /// Binomial tree.
    Tree = 7,
}

impl Algorithm {
    /// All, in the wire's order.
    pub const ALL: [Self; 7] = [
        Self::Direct,
        Self::HalvingDoubling,
        Self::Hierarchical,
        Self::Node,
        Self::RecursiveDoubling,
        Self::Ring,
        Self::Tree,
    ];

    /// The name in tables and settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::HalvingDoubling => "halving_doubling",
            Self::Hierarchical => "hierarchical",
            Self::Node => "node",
            Self::RecursiveDoubling => "recursive_doubling",
            Self::Ring => "ring",
            Self::Tree => "tree",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

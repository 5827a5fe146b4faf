//! Memory lent to the engine.
//!
//! Invariant of this module's `unsafe`: a [`LocalSlice`] is made only for memory that stays valid,
//! and that its owner does not touch, until the operation it belongs to has ended; the engine
//! drops every slice of an operation before it reports the operation's end, also after an error.
//! Which parts of one memory may be in flight at once is the plan's business: no step of a round
//! touches what another receive of that round writes (`syncline_proto::collective::check`).

mod lease;
mod scratch;
mod slice;

pub(crate) use lease::{lend, lend_mut};
pub(crate) use scratch::{Scratch, Spares};
pub use slice::LocalSlice;

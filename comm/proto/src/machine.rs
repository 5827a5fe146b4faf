//! The one shape of every protocol.

use crate::time::Instant;

/// A protocol without I/O.
///
/// The driver's loop: hand over an input or an expired timer with the current time; call
/// [`poll_output`](Self::poll_output) until `None`; act on what came out; sleep until the next
/// input or [`poll_timeout`](Self::poll_timeout). Machines never call back and never block.
pub trait Machine {
    /// What happens to it.
    type Input;
    /// What it wants done.
    type Output;

    /// Something happened at `now`.
    fn handle_input(&mut self, now: Instant, input: Self::Input);

    /// The time returned by [`poll_timeout`](Self::poll_timeout) has come. Harmless when early.
    fn handle_timeout(&mut self, now: Instant);

    /// The next thing to do, in order; `None` when there is nothing until the next input.
    fn poll_output(&mut self) -> Option<Self::Output>;

    /// When to call [`handle_timeout`](Self::handle_timeout). May change after any other call.
    fn poll_timeout(&self) -> Option<Instant>;
}

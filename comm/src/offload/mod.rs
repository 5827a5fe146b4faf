//! Whole collectives at once, instead of plans of messages.
//!
//! An offload takes a call, does all of it, and reports its end; the engine drives it like a
//! transport and never sees messages. Chosen by the communicator where the members allow it.

pub mod node;

//! The control plane on real sockets: the machines of `syncline_proto::membership` on threads.
//!
//! One member thread per process and, beside rank 0, one hub thread. Both sleep in the kernel
//! unless something happens or a beat is due. Never touches training data; the engine only reads
//! a flag. Called by bootstrap (to meet), the engine (to learn of faults) and the communicator's
//! end (to leave).

mod framed;
pub(crate) mod handshake;
mod hub;
mod inbox;
mod member;

pub(crate) use hub::HubThread;
pub(crate) use member::ControlPlane;

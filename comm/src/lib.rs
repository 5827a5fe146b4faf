//! Collectives for distributed training over shared memory and TCP.
//!
//! ```no_run
//! use syncline_comm::{Communicator, ReduceOp};
//!
//! # fn main() -> Result<(), syncline_comm::Error> {
//! let world = Communicator::init()?; // ranks from the launcher's variables
//! let mut gradient = vec![world.rank() as f32; 1 << 20];
//! world.all_reduce(&mut gradient, ReduceOp::Avg)?;
//! # Ok(())
//! # }
//! ```
//!
//! - **Start.** `syncline run -n 4 -- program`, torchrun, srun, mpirun, or by hand: [`mod@env`].
//! - **Threads.** A [`Communicator`] is `Send + Sync` and cheap to clone. The thread that waits
//!   for a result does the work; a background thread works only while started operations are in
//!   flight and nobody waits. No signal handler is installed, no allocator hooked, no affinity
//!   changed.
//! - **Bits.** Reductions have those of the fastest algorithm, or, where asked for, those of one
//!   fold in the order of ranks: [`Determinism`].
//! - **Errors.** Every wait is bounded. Ranks that make different calls all get
//!   [`ErrorKind::ContractMismatch`]; a rank that dies is [`ErrorKind::PeerLost`] on all others
//!   within seconds. See [`Error`].
//! - **Clean-up.** Nothing is left behind in the file system, whatever ends the process.

mod bell;
mod bootstrap;
mod communicator;
pub mod config;
mod control;
mod determinism;
mod engine;
pub mod env;
mod error;
pub mod host;
mod job;
pub mod memory;
pub mod offload;
#[doc(hidden)]
pub mod testing;
mod time;
pub mod transport;

pub use communicator::{Communicator, Explanation, Request, wait_any};
pub use config::{Config, LinkRate, Pacing, TransportChoice};
pub use determinism::Determinism;
pub use engine::Counters;
pub use error::{Error, ErrorKind, Result};
pub use syncline_kernels::{DType, Element, ReduceOp, bf16, f16};
pub use syncline_proto::call::CollectiveKind;
pub use syncline_proto::collective::Algorithm;
pub use transport::Class;

//! Small classifiers of images and text on the processor: forward, backward, and its parameters by
//! name.
//!
//! Owns the arithmetic of training but for the update of the parameters, which belongs to the
//! synchroniser. Never reads data, starts no thread, and computes the same bits for the same seed
//! each time. Called by `worker`.

mod charlm;
mod conv;
mod dense;
mod embedding;
mod layer;
mod loss;
pub mod matmul;
pub mod network;
mod pool;
pub mod tensor;

pub use network::{NetKind, Network};
pub use tensor::Tensor;

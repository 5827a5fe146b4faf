//! temp
#![forbid(unsafe_code)]
pub mod data;
pub mod model;

//! Settings of a `GradientSync`, and whether they can work.
//!
//! Owns the choice of model. Never reads the environment: the trainer decides. Called by trainers
//! and by [`super::GradientSync::new`].

use crate::config::require;
use crate::error::Result;
use crate::layout::{ELEMENT_BYTES, Granularity};

/// Settings of a [`super::GradientSync`], the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientSyncConfig {
    /// Which gradients a call waits for.
    pub model: GradientModel,
    /// Steps from one comparison of what all ranks must have alike (averages, importance, bitmap)
    /// to the next; 0 for none. A comparison reads the important averages once and exchanges
    /// 8 bytes.
    pub check_every: u64,
}

impl Default for GradientSyncConfig {
    fn default() -> Self {
        Self { model: GradientModel::Bsp, check_every: 100 }
    }
}

/// Which gradients a call waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum GradientModel {
    /// All of all ranks.
    #[default]
    Bsp,
    /// The important ones; the rest are averaged while the next step computes.
    Osp(DeferConfig),
}

impl GradientModel {
    /// OSP that defers this share of all bytes, and else has default settings.
    pub fn osp(share: f64) -> Self {
        Self::Osp(DeferConfig::new(share))
    }
}

/// What OSP defers. A slice's importance is the mean of its averaged gradient's absolute values:
/// the parameters, by which a session weighs them, are not here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeferConfig {
    /// Share of all bytes that is deferred at most, from 0 to 1. The first step defers nothing:
    /// nothing is known of it.
    pub share: f64,
    /// Tensors with fewer elements are never deferred: they would save no time.
    pub min_deferred_len: usize,
    /// The unit of importance.
    pub granularity: Granularity,
}

impl DeferConfig {
    /// Defers this share, and else as [`crate::OspConfig`] does by default.
    pub fn new(share: f64) -> Self {
        let granularity = Granularity::Slices { max_bytes: 16 * 1024 };
        Self { share, min_deferred_len: 1024, granularity }
    }

    /// Nothing, ever.
    pub(super) fn nothing() -> Self {
        Self { granularity: Granularity::Tensors, ..Self::new(0.0) }
    }

    /// Of so many bytes, those that may be deferred.
    pub(super) fn budget(&self, bytes: u64) -> u64 {
        // Rounded up: a share of 1 must defer everything.
        (self.share * bytes as f64).ceil() as u64
    }
}

impl GradientSyncConfig {
    /// Whether the settings can work.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) that names the first setting that cannot.
    pub fn validate(&self) -> Result<()> {
        let DeferConfig { share, granularity, .. } = self.deferred();
        require((0.0..=1.0).contains(&share), "the share lies in 0..=1", share)?;
        if let Granularity::Slices { max_bytes } = granularity {
            let reason = "a slice holds at least one element";
            require(max_bytes >= ELEMENT_BYTES, reason, max_bytes)?;
        }
        Ok(())
    }

    /// What is deferred, if only nothing.
    pub(super) fn deferred(&self) -> DeferConfig {
        match self.model {
            GradientModel::Bsp => DeferConfig::nothing(),
            GradientModel::Osp(defer) => defer,
        }
    }
}

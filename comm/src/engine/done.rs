//! How an operation's end reaches whoever waits for it.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use syncline_proto::fault::Fault;

/// The end of one operation.
#[derive(Debug, Default)]
pub(crate) struct Done {
    is_over: AtomicBool,
    outcome: Mutex<Outcome>,
}

/// What it left.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The first cause, if it failed.
    pub(crate) fault: Option<Arc<Fault>>,
    /// The buffer that the operation owned.
    pub(crate) buffer: Option<Box<dyn Any + Send>>,
}

impl Done {
    /// Whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Takes what it left, once over.
    pub(crate) fn take(&self) -> Outcome {
        std::mem::take(&mut *self.outcome.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn finish(&self, outcome: Outcome) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        self.is_over.store(true, Ordering::Release);
    }
}

//! Started operations.

use super::Communicator;
use crate::engine::Done;
use crate::error::{Error, ErrorKind, Result};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use syncline_kernels::Element;
use syncline_proto::call::Call;

/// An operation in flight, which owns its data.
///
/// Dropping it neither cancels nor waits: the operation goes on, as its peers expect, and its
/// data is freed at its end.
#[must_use = "an operation that nobody waits for may fail unseen"]
pub struct Request<T> {
    communicator: Communicator,
    call: Call,
    done: Arc<Done>,
    data: PhantomData<Vec<T>>,
}

impl<T: Element> Request<T> {
    pub(super) fn new(communicator: Communicator, call: Call, done: Arc<Done>) -> Self {
        Self { communicator, call, done, data: PhantomData }
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_done(&self) -> bool {
        self.done.is_over()
    }

    /// Waits for the end and gives the data back.
    ///
    /// # Errors
    /// See [`Communicator`]; the data is then gone.
    pub fn wait(self) -> Result<Vec<T>> {
        let inner = &self.communicator.inner;
        if !self.done.is_over() {
            inner.job.driver.wait_any(&[&self.done]);
        }
        let buffer = inner.result(self.call, self.done.take())?;
        let data = buffer.and_then(|buffer| buffer.downcast::<Vec<T>>().ok());
        let lost = || Error::new(ErrorKind::Internal, "an operation lost its data");
        data.map(|data| *data).ok_or_else(lost)
    }
}

impl<T> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("call", &self.call)
            .field("is_done", &self.done.is_over())
            .finish_non_exhaustive()
    }
}

/// Waits until one of `requests` is over, well or not, and says which (the first of several).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if there are none, or they belong to different jobs.
pub fn wait_any<T: Element>(requests: &[Request<T>]) -> Result<usize> {
    let invalid = |text| Err(Error::new(ErrorKind::InvalidArgument, text));
    let Some(first) = requests.first() else {
        return invalid("wait_any: no requests");
    };
    let driver = &first.communicator.inner.job.driver;
    if !requests.iter().all(|r| Arc::ptr_eq(&r.communicator.inner.job.driver, driver)) {
        return invalid("wait_any: requests of different jobs");
    }
    let over = || requests.iter().position(|request| request.done.is_over());
    if let Some(index) = over() {
        return Ok(index);
    }
    let ends: Vec<_> = requests.iter().map(|request| &request.done).collect();
    driver.wait_any(&ends);
    over().map_or_else(|| invalid("wait_any: woken for nothing"), Ok)
}

//! Send and receive.

use super::{Communicator, Request};
use crate::engine::{Body, Endpoint, Launch};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{LocalSlice, lend, lend_mut};
use std::any::Any;
use std::sync::{Arc, PoisonError};
use syncline_kernels::{DType, Element, ReduceOp};
use syncline_proto::call::{Call, CollectiveKind, Fingerprint};
use syncline_proto::collective::{Fold, Plan, Round, Span, Step};
use syncline_proto::id::{MessageId, Rank};

impl Communicator {
    /// Sends `data` to rank `to`; returns when the memory may be used again.
    ///
    /// Messages of one pair and tag match in the order in which they are sent and received;
    /// lengths and types must agree, else both sides get
    /// [`ErrorKind::ContractMismatch`]. `to` may be this rank.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn send<T: Element>(&self, data: &[T], to: Rank, tag: u32) -> Result<()> {
        self.message::<T>(lend(data), true, to, tag)
    }

    /// Receives `data` from rank `from`.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn recv<T: Element>(&self, data: &mut [T], from: Rank, tag: u32) -> Result<()> {
        self.message::<T>(lend_mut(data), false, from, tag)
    }

    /// Starts a [`send`](Self::send) of owned data.
    ///
    /// # Errors
    /// See [`Communicator`]; those of the operation come from [`Request::wait`].
    pub fn start_send<T: Element>(&self, data: Vec<T>, to: Rank, tag: u32) -> Result<Request<T>> {
        self.started_message(data, true, to, tag)
    }

    /// Starts a [`recv`](Self::recv) into owned memory.
    ///
    /// # Errors
    /// See [`Communicator`]; those of the operation come from [`Request::wait`].
    pub fn start_recv<T: Element>(&self, data: Vec<T>, from: Rank, tag: u32) -> Result<Request<T>> {
        self.started_message(data, false, from, tag)
    }

    fn started_message<T: Element>(
        &self,
        mut data: Vec<T>,
        is_send: bool,
        peer: Rank,
        tag: u32,
    ) -> Result<Request<T>> {
        // The vector's memory stays where it is while the operation owns the vector.
        let memory = lend_mut(&mut data);
        let buffer: Box<dyn Any + Send> = Box::new(data);
        let mut launch = self.launch_message::<T>(memory, is_send, peer, tag)?;
        launch.buffer = Some(buffer);
        let mut call = launch.call;
        let done = self.inner.job.driver.start(|_| {
            call.seq = self.number_message(&mut launch);
            launch
        });
        Ok(Request::new(self.clone(), call, done))
    }

    fn message<T: Element>(
        &self,
        memory: LocalSlice,
        is_send: bool,
        peer: Rank,
        tag: u32,
    ) -> Result<()> {
        let mut launch = self.launch_message::<T>(memory, is_send, peer, tag)?;
        let mut call = launch.call;
        let outcome = self.inner.job.driver.run(|_| {
            call.seq = self.number_message(&mut launch);
            launch
        });
        self.inner.result(call, outcome).map(|_| ())
    }

    /// Gives a message the next number of its pair and tag. Under the engine's lock, so that
    /// messages are posted in this order.
    fn number_message(&self, launch: &mut Launch) -> u64 {
        let messages = &self.inner.next_messages;
        let mut messages = messages.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoint = launch.endpoint.as_mut().expect("a message has an end here");
        let tag = endpoint.message.step & !MessageId::POINT_TO_POINT;
        let next = messages.entry((endpoint.peer, tag, endpoint.is_send)).or_default();
        let number = *next;
        *next += 1;
        endpoint.message.seq = number;
        launch.call.seq = number;
        number
    }

    /// What to launch, but for the message's number.
    fn launch_message<T: Element>(
        &self,
        memory: LocalSlice,
        is_send: bool,
        peer: Rank,
        tag: u32,
    ) -> Result<Launch> {
        let inner = &self.inner;
        if peer >= self.world_size() || tag >= MessageId::POINT_TO_POINT {
            let world_size = self.world_size();
            let text = format!("send_recv: rank {peer}, tag {tag}, in a world of {world_size}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let dtype: DType = T::DTYPE;
        let count = (memory.len() / dtype.size()) as u64;
        let fingerprint = Fingerprint {
            kind: CollectiveKind::SendRecv as u8,
            dtype: dtype.code(),
            op: Fingerprint::NO_OP,
            algorithm: 0,
            root: Fingerprint::NO_ROOT,
            count,
        };
        let (input, output, step) = if is_send {
            let step = Step::Send { peer, tag, span: Span::input(0, count) };
            (memory, LocalSlice::empty(), step)
        } else {
            let span = Span::output(0, count);
            (LocalSlice::empty(), memory, Step::Recv { peer, tag, span, fold: Fold::Replace })
        };
        let plan = Plan { scratch_len: 0, rounds: vec![Round { steps: vec![step] }] };
        let members = Arc::clone(&inner.members);
        let step = tag | MessageId::POINT_TO_POINT;
        Ok(Launch {
            call: Call { comm: inner.comm, seq: 0, fingerprint },
            body: Body::Plan { plan, members, chunk_len: inner.chunk_len(dtype) },
            dtype,
            op: ReduceOp::Sum,
            average_over: None,
            class: inner.class,
            endpoint: Some(Endpoint {
                peer: inner.members[peer as usize],
                is_send,
                message: MessageId { comm: inner.comm, seq: 0, step, chunk: 0 },
            }),
            input,
            output,
            timeout: inner.timeout,
            buffer: None,
        })
    }
}

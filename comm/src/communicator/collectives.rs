//! The collectives, blocking and started.

use super::call::Prepared;
use super::{Communicator, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{LocalSlice, lend, lend_mut};
use syncline_kernels::{Element, ReduceOp};
use syncline_proto::call::CollectiveKind as Kind;
use syncline_proto::collective::shape::Shape;
use syncline_proto::id::Rank;

impl Communicator {
    /// Reduces `data` over all ranks, in place; every rank gets the same bits. Which bits, says
    /// [`Determinism`](crate::Determinism).
    ///
    /// # Errors
    /// See [`Communicator`]. `data` is then unspecified.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<()> {
        let shape = Shape::uniform(data.len() as u64);
        self.blocking::<T>(Kind::AllReduce, Some(op), shape, LocalSlice::empty(), lend_mut(data))
    }

    /// Reduces `input`, `world_size` blocks of `output.len()`; rank r gets block r.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let shape = Shape::uniform(output.len() as u64);
        self.blocking::<T>(Kind::ReduceScatter, Some(op), shape, lend(input), lend_mut(output))
    }

    /// Reduces `input`, one block per rank of `counts[rank]` elements; rank r gets block r.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        let shape = Shape::per_rank(wide(counts));
        self.blocking::<T>(Kind::ReduceScatter, Some(op), shape, lend(input), lend_mut(output))
    }

    /// Every rank's `input`, one after the other by rank, on every rank.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let shape = Shape::uniform(input.len() as u64);
        self.blocking::<T>(Kind::AllGather, None, shape, lend(input), lend_mut(output))
    }

    /// The same with `counts[rank]` elements from each rank; all ranks know all counts.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<()> {
        let shape = Shape::per_rank(wide(counts));
        self.blocking::<T>(Kind::AllGather, None, shape, lend(input), lend_mut(output))
    }

    /// The root's `data`, on every rank.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: Rank) -> Result<()> {
        let shape = Shape::uniform(data.len() as u64).with_root(root);
        self.blocking::<T>(Kind::Broadcast, None, shape, LocalSlice::empty(), lend_mut(data))
    }

    /// The reduction of all ranks' `input`, in the root's `output`; `None` elsewhere.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let shape = Shape::uniform(input.len() as u64).with_root(root);
        let output = self.on_root(Kind::Reduce, root, output)?;
        self.blocking::<T>(Kind::Reduce, Some(op), shape, lend(input), output)
    }

    /// Every rank's `input`, one after the other, in the root's `output`; `None` elsewhere.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn gather<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        root: Rank,
    ) -> Result<()> {
        let shape = Shape::uniform(input.len() as u64).with_root(root);
        let output = self.on_root(Kind::Gather, root, output)?;
        self.blocking::<T>(Kind::Gather, None, shape, lend(input), output)
    }

    /// The same with `counts[rank]` elements from each rank; all ranks know all counts.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn gather_v<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        counts: &[usize],
        root: Rank,
    ) -> Result<()> {
        let shape = Shape::per_rank(wide(counts)).with_root(root);
        let output = self.on_root(Kind::Gather, root, output)?;
        self.blocking::<T>(Kind::Gather, None, shape, lend(input), output)
    }

    /// Block r of the root's `input`, in rank r's `output`; `input` is `None` elsewhere.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn scatter<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        root: Rank,
    ) -> Result<()> {
        let shape = Shape::uniform(output.len() as u64).with_root(root);
        let input = self.of_root(Kind::Scatter, root, input)?;
        self.blocking::<T>(Kind::Scatter, None, shape, input, lend_mut(output))
    }

    /// The same with `counts[rank]` elements to each rank; all ranks know all counts.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn scatter_v<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        counts: &[usize],
        root: Rank,
    ) -> Result<()> {
        let shape = Shape::per_rank(wide(counts)).with_root(root);
        let input = self.of_root(Kind::Scatter, root, input)?;
        self.blocking::<T>(Kind::Scatter, None, shape, input, lend_mut(output))
    }

    /// Block r of `input` to rank r; block r of `output` from rank r. Both hold `world_size`
    /// blocks of equal length.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let world_size = self.world_size() as usize;
        if !input.len().is_multiple_of(world_size) {
            let text = format!(
                "all_to_all: input of {} elements is no multiple of {world_size} ranks",
                input.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let shape = Shape::uniform((input.len() / world_size) as u64);
        self.blocking::<T>(Kind::AllToAll, None, shape, lend(input), lend_mut(output))
    }

    /// `send_counts[r]` elements to rank r, `recv_counts[r]` from it; blocks lie one after the
    /// other. A pair that disagrees gets [`ErrorKind::Protocol`].
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send_counts: &[usize],
        output: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let shape = Shape::exchange(wide(send_counts), wide(recv_counts));
        self.blocking::<T>(Kind::AllToAll, None, shape, lend(input), lend_mut(output))
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn barrier(&self) -> Result<()> {
        let empty = LocalSlice::empty;
        self.blocking::<u8>(Kind::Barrier, None, Shape::uniform(0), empty(), empty())
    }

    /// Starts an [`all_reduce`](Self::all_reduce) on owned data; it progresses while the caller
    /// computes.
    ///
    /// # Errors
    /// See [`Communicator`]; those of the operation come from [`Request::wait`].
    pub fn start_all_reduce<T: Element>(&self, data: Vec<T>, op: ReduceOp) -> Result<Request<T>> {
        let shape = Shape::uniform(data.len() as u64);
        self.started(Kind::AllReduce, Some(op), shape, data)
    }

    /// Starts a [`broadcast`](Self::broadcast) on owned data.
    ///
    /// # Errors
    /// See [`Communicator`]; those of the operation come from [`Request::wait`].
    pub fn start_broadcast<T: Element>(&self, data: Vec<T>, root: Rank) -> Result<Request<T>> {
        let shape = Shape::uniform(data.len() as u64).with_root(root);
        self.started(Kind::Broadcast, None, shape, data)
    }

    /// Starts a [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// See [`Communicator`]; those of the operation come from [`Request::wait`].
    pub fn start_barrier(&self) -> Result<Request<u8>> {
        self.started(Kind::Barrier, None, Shape::uniform(0), Vec::new())
    }

    fn started<T: Element>(
        &self,
        kind: Kind,
        op: Option<ReduceOp>,
        shape: Shape,
        mut data: Vec<T>,
    ) -> Result<Request<T>> {
        // The vector's memory stays where it is while the operation owns the vector.
        let output = lend_mut(&mut data);
        let buffer: Option<Box<dyn std::any::Any + Send>> = Some(Box::new(data));
        let input = LocalSlice::empty();
        let (dtype, determinism) = (T::DTYPE, self.determinism);
        let prepared = Prepared { kind, dtype, op, determinism, shape, input, output, buffer };
        let (call, done) = self.inner.start(prepared)?;
        Ok(Request::new(self.clone(), call, done))
    }

    pub(super) fn blocking<T: Element>(
        &self,
        kind: Kind,
        op: Option<ReduceOp>,
        shape: Shape,
        input: LocalSlice,
        output: LocalSlice,
    ) -> Result<()> {
        let (dtype, determinism, buffer) = (T::DTYPE, self.determinism, None);
        let prepared = Prepared { kind, dtype, op, determinism, shape, input, output, buffer };
        self.inner.run(prepared).map(|_| ())
    }

    fn on_root<T: Element>(
        &self,
        kind: Kind,
        root: Rank,
        output: Option<&mut [T]>,
    ) -> Result<LocalSlice> {
        match output {
            Some(output) if self.rank() == root => Ok(lend_mut(output)),
            None if self.rank() != root => Ok(LocalSlice::empty()),
            Some(_) => Err(only_root(kind, "an output", root)),
            None => Err(root_needs(kind, "an output")),
        }
    }

    fn of_root<T: Element>(
        &self,
        kind: Kind,
        root: Rank,
        input: Option<&[T]>,
    ) -> Result<LocalSlice> {
        match input {
            Some(input) if self.rank() == root => Ok(lend(input)),
            None if self.rank() != root => Ok(LocalSlice::empty()),
            Some(_) => Err(only_root(kind, "an input", root)),
            None => Err(root_needs(kind, "an input")),
        }
    }
}

fn only_root(kind: Kind, what: &str, root: Rank) -> Error {
    let text = format!("{kind}: {what} was given, this rank is not the root {root}");
    Error::new(ErrorKind::InvalidArgument, text)
}

fn root_needs(kind: Kind, what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{kind}: the root needs {what}"))
}

fn wide(counts: &[usize]) -> Vec<u64> {
    counts.iter().map(|count| *count as u64).collect()
}

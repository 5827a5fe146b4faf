//! What can be measured: buffers, the call itself, the right answer.

use clap::ValueEnum;
use syncline_comm::{Communicator, DType, Element, ReduceOp, Result};

/// A collective to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Collective {
    /// Everybody gets all blocks
    AllGather,
    /// Everybody gets the reduction
    AllReduce,
    /// Everybody exchanges blocks with everybody
    AllToAll,
    /// Everybody waits for everybody
    Barrier,
    /// Everybody gets the root's data
    Broadcast,
    /// The root gets all blocks
    Gather,
    /// The root gets the reduction
    Reduce,
    /// Everybody gets a block of the reduction
    ReduceScatter,
    /// Everybody gets a block of the root's data
    Scatter,
    /// Everybody sends to the next and receives from the previous
    SendRecv,
}

/// Buffers of one rank for one size.
#[derive(Debug)]
pub struct Buffers<T> {
    input: Vec<T>,
    output: Vec<T>,
    /// Elements of a block.
    block: usize,
}

impl Collective {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::AllReduce => "all_reduce",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::Broadcast => "broadcast",
            Self::Gather => "gather",
            Self::Reduce => "reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::Scatter => "scatter",
            Self::SendRecv => "send_recv",
        }
    }

    /// The library's name for it.
    pub fn kind(self) -> Option<syncline_comm::CollectiveKind> {
        use syncline_comm::CollectiveKind as Kind;
        Kind::ALL.into_iter().find(|kind| kind.name() == self.name() && *kind != Kind::SendRecv)
    }

    /// A row's operation: that of a collective that reduces, else `none`.
    pub fn op_name(self, op: ReduceOp) -> String {
        if self.reduces() { op.to_string() } else { "none".to_owned() }
    }

    /// A row's root: that of a collective that has one, else -1.
    pub fn root_shown(self, root: u32) -> i64 {
        if self.has_root() { i64::from(root) } else { -1 }
    }

    /// Bus bandwidth over algorithm bandwidth.
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather
            | Self::AllToAll
            | Self::Gather
            | Self::ReduceScatter
            | Self::Scatter => (n - 1.0) / n,
            Self::Barrier | Self::Broadcast | Self::Reduce | Self::SendRecv => 1.0,
        }
    }

    /// Whether it reduces.
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether it has a root.
    pub fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Gather | Self::Reduce | Self::Scatter)
    }

    /// Buffers whose larger side is `elements` long, rounded down to whole blocks, at least one
    /// element a block.
    pub fn buffers<T: Element>(self, elements: usize, world: &Communicator) -> Buffers<T> {
        let [input, output, block] = self.lengths(elements, world.world_size());
        Buffers { input: vec![T::default(); input], output: vec![T::default(); output], block }
    }

    /// Bytes of the larger side of the buffers that are made for a size of `bytes`.
    pub fn actual_bytes(self, bytes: u64, dtype: DType, ranks: u32) -> u64 {
        let elements = usize::try_from(bytes).unwrap_or(usize::MAX) / dtype.size();
        let [input, output, _] = self.lengths(elements, ranks);
        (input.max(output) as u64).saturating_mul(dtype.size() as u64)
    }

    /// Elements of input, output and a block.
    fn lengths(self, elements: usize, ranks: u32) -> [usize; 3] {
        let n = ranks as usize;
        let block = (elements / n).max(1);
        match self {
            Self::AllReduce | Self::Broadcast => [0, elements.max(1), elements.max(1)],
            Self::Reduce | Self::SendRecv => [elements.max(1); 3],
            Self::AllGather | Self::Gather => [block, block * n, block],
            Self::ReduceScatter | Self::Scatter => [block * n, block, block],
            Self::AllToAll => [block * n, block * n, block],
            Self::Barrier => [0; 3],
        }
    }

    /// One call.
    pub fn call<T: Element>(
        self,
        world: &Communicator,
        buffers: &mut Buffers<T>,
        op: ReduceOp,
        root: u32,
    ) -> Result<()> {
        let Buffers { input, output, .. } = buffers;
        let is_root = world.rank() == root;
        match self {
            Self::AllGather => world.all_gather(input, output),
            Self::AllReduce => world.all_reduce(output, op),
            Self::AllToAll => world.all_to_all(input, output),
            Self::Barrier => world.barrier(),
            Self::Broadcast => world.broadcast(output, root),
            Self::Gather => world.gather(input, is_root.then_some(&mut output[..]), root),
            Self::Reduce => world.reduce(input, is_root.then_some(&mut output[..]), op, root),
            Self::ReduceScatter => world.reduce_scatter(input, output, op),
            Self::Scatter => world.scatter(is_root.then_some(&input[..]), output, root),
            Self::SendRecv => {
                let (rank, n) = (world.rank(), world.world_size());
                let sent = world.start_send(std::mem::take(input), (rank + 1) % n, 0)?;
                world.recv(output, (rank + n - 1) % n, 0)?;
                *input = sent.wait()?;
                Ok(())
            }
        }
    }

    /// Fills the buffers so that the answer is known.
    pub fn fill<T: Element>(self, world: &Communicator, buffers: &mut Buffers<T>) {
        let rank = world.rank();
        let Buffers { input, output, .. } = buffers;
        output.fill(T::from_f64(7.0));
        let in_place = matches!(self, Self::AllReduce | Self::Broadcast);
        let data = if in_place { output } else { input };
        for (index, element) in data.iter_mut().enumerate() {
            *element = value(rank, index);
        }
    }

    /// Elements of this rank that are not what they should be after one call on filled buffers.
    pub fn wrong<T: Element>(
        self,
        world: &Communicator,
        buffers: &Buffers<T>,
        op: ReduceOp,
        root: u32,
    ) -> u64 {
        let (rank, n, block) = (world.rank(), world.world_size(), buffers.block);
        if matches!(self, Self::Gather | Self::Reduce) && rank != root {
            return 0;
        }
        let expected = |index: usize| -> T {
            let (part, at) = ((index / block.max(1)) as u32, index % block.max(1));
            match self {
                Self::AllGather | Self::Gather => value(part, at),
                Self::AllReduce | Self::Reduce => reduced(n, index, op),
                Self::AllToAll => value(part, rank as usize * block + at),
                Self::Barrier => T::default(),
                Self::Broadcast => value(root, index),
                Self::ReduceScatter => reduced(n, rank as usize * block + index, op),
                Self::Scatter => value(root, rank as usize * block + index),
                Self::SendRecv => value((rank + n - 1) % n, index),
            }
        };
        let outputs = buffers.output.iter().enumerate();
        outputs.filter(|(index, got)| **got != expected(*index)).count() as u64
    }
}

impl<T: Element> Buffers<T> {
    /// Bytes of the larger side, nccl-tests' size.
    pub fn bytes(&self) -> u64 {
        let elements = self.input.len().max(self.output.len());
        (elements * T::DTYPE.size()) as u64
    }

    /// Elements of the larger side.
    pub fn count(&self) -> u64 {
        self.input.len().max(self.output.len()) as u64
    }
}

/// Small integers: sums of many ranks are exact in every type.
fn value<T: Element>(rank: u32, index: usize) -> T {
    T::from_f64(((u64::from(rank) + index as u64) % 3) as f64)
}

fn reduced<T: Element>(ranks: u32, index: usize, op: ReduceOp) -> T {
    let values = (0..ranks).map(|rank| value::<T>(rank, index).to_f64());
    match op {
        ReduceOp::Avg => {
            let mean = values.sum::<f64>() / f64::from(ranks);
            let divides = T::from_f64(0.5).to_f64() != 0.0;
            T::from_f64(if divides { mean } else { mean.trunc() })
        }
        ReduceOp::Max => T::from_f64(values.fold(0.0, f64::max)),
        ReduceOp::Min => T::from_f64(values.fold(f64::MAX, f64::min)),
        ReduceOp::Prod => T::from_f64(values.product()),
        ReduceOp::Sum => T::from_f64(values.sum()),
    }
}

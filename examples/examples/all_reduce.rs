//! Joins, sums a vector over all ranks, leaves.
//!
//! ```text
//! cargo build --release -p syncline-examples --example all_reduce
//! cargo run --release -- run -n 4 -- target/release/examples/all_reduce
//! ```

use syncline::{Communicator, ReduceOp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Which rank this is, and where to meet, come from the launcher's variables.
    let world = Communicator::init()?;
    let (rank, ranks) = (world.rank(), world.world_size());

    let mut gradient: Vec<f32> = (0..1_000_000).map(|i| (i % 7) as f32 + rank as f32).collect();
    world.all_reduce(&mut gradient, ReduceOp::Sum)?;

    let ranks_sum: u32 = (0..ranks).sum();
    let wrong = gradient
        .iter()
        .enumerate()
        .filter(|(i, sum)| **sum != (i % 7) as f32 * ranks as f32 + ranks_sum as f32)
        .count();
    println!("rank {rank} of {ranks}: element 0 is {}, {wrong} are wrong", gradient[0]);
    if wrong > 0 { Err("wrong sum".into()) } else { Ok(()) }
} // dropping the last handle leaves the job

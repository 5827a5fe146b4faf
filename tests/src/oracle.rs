//! What collectives must give, computed the plain way.

use syncline_comm::{Element, ReduceOp};

/// Element `index` of rank `rank`'s input, small enough that sums of 33 ranks are exact in every
/// type but i8, u8 and the 16-bit floats' products.
pub fn input<T: Element>(rank: u32, index: usize) -> T {
    let value = (u64::from(rank) * 7 + index as u64 * 3) % 5;
    T::from_f64(value as f64)
}

/// The reduction of all ranks' element `index`.
pub fn reduced<T: Element>(world_size: u32, index: usize, op: ReduceOp) -> T {
    let values = (0..world_size).map(|rank| input::<T>(rank, index).to_f64());
    let sum = || values.clone().sum::<f64>();
    T::from_f64(match op {
        ReduceOp::Sum => sum(),
        ReduceOp::Avg => {
            let mean = sum() / f64::from(world_size);
            // Integers divide towards zero.
            if T::from_f64(0.5).to_f64() == 0.0 { mean.trunc() } else { mean }
        }
        ReduceOp::Max => values.clone().fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => values.clone().fold(f64::INFINITY, f64::min),
        ReduceOp::Prod => values.clone().product(),
    })
}

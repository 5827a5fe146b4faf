//! What every rank of a measurement executes.

use crate::collective::{Buffers, Collective};
use crate::options::PerfOptions;
use crate::report::{Candidate, Row};
use crate::stats::{cpu_per_gib, percentile, process_cpu};
use std::time::Instant;
use syncline_comm::{Communicator, DType, Element, Explanation, ReduceOp, Result, bf16, f16};

/// Marks a line of rank 0's output that holds a [`Row`].
pub const ROW_MARK: &str = "SYNCLINE-PERF-ROW ";
/// No measurement repeats more often.
const ITERATIONS_MAX: f64 = 20_000.0;

/// Measures every size; rank 0 prints a marked line for each.
///
/// # Errors
/// Those of the communicator.
pub fn run(options: &PerfOptions) -> Result<()> {
    let world = Communicator::init()?;
    for bytes in options.sizes() {
        let row = match options.dtype {
            DType::BF16 => measure::<bf16>(&world, options, bytes),
            DType::F16 => measure::<f16>(&world, options, bytes),
            DType::F32 => measure::<f32>(&world, options, bytes),
            DType::F64 => measure::<f64>(&world, options, bytes),
            DType::I16 => measure::<i16>(&world, options, bytes),
            DType::I32 => measure::<i32>(&world, options, bytes),
            DType::I64 => measure::<i64>(&world, options, bytes),
            DType::I8 => measure::<i8>(&world, options, bytes),
            DType::U16 => measure::<u16>(&world, options, bytes),
            DType::U32 => measure::<u32>(&world, options, bytes),
            DType::U64 => measure::<u64>(&world, options, bytes),
            DType::U8 => measure::<u8>(&world, options, bytes),
        }?;
        if world.rank() == 0 {
            let row = serde_json::to_string(&row).expect("a row is plain data");
            println!("{ROW_MARK}{row}");
        }
    }
    Ok(())
}

fn measure<T: Element>(world: &Communicator, options: &PerfOptions, bytes: u64) -> Result<Row> {
    let PerfOptions { collective, op, root, .. } = *options;
    let elements = usize::try_from(bytes).unwrap_or(usize::MAX) / T::DTYPE.size();
    let mut buffers = collective.buffers::<T>(elements, world);
    let mut wrong = check(world, options, &mut buffers)?;
    for _ in 0..options.warmup {
        collective.call(world, &mut buffers, op, root)?;
    }
    let iterations =
        agree_on_iterations(world, options, || collective.call(world, &mut buffers, op, root))?;
    world.barrier()?;
    let mut times = Vec::with_capacity(iterations);
    let cpu_before = process_cpu();
    let mut last = Instant::now();
    for _ in 0..iterations {
        collective.call(world, &mut buffers, op, root)?;
        let now = Instant::now();
        times.push((now - last).as_secs_f64() * 1e6);
        last = now;
    }
    let mut cpu_s = [(process_cpu() - cpu_before).as_secs_f64()];
    world.all_reduce(&mut cpu_s, ReduceOp::Sum)?;
    // An iteration took as long as on its slowest rank.
    world.all_reduce(&mut times, ReduceOp::Max)?;
    times.sort_by(f64::total_cmp);
    wrong += check(world, options, &mut buffers)?;

    let bytes = buffers.bytes();
    let p50_us = percentile(&times, 0.5);
    let algbw_gbps = bytes as f64 / p50_us / 1e3;
    let index_bytes = index_bytes(collective, bytes, world);
    let explain = |kind| world.explain_reduction(kind, index_bytes, T::DTYPE, op);
    let way = collective.kind().map(explain);
    Ok(Row {
        collective: collective.name().into(),
        ranks: world.world_size(),
        transport: transport(world),
        algorithm: way.as_ref().map_or("direct", |way| way.algorithm.name()).into(),
        determinism: world.determinism().to_string(),
        bytes,
        count: buffers.count(),
        dtype: T::DTYPE.to_string(),
        op: collective.op_name(op),
        root: collective.root_shown(root),
        iterations: iterations as u64,
        p50_us,
        p90_us: percentile(&times, 0.9),
        p99_us: percentile(&times, 0.99),
        min_us: times[0],
        algbw_gbps,
        busbw_gbps: algbw_gbps * collective.bus_factor(world.world_size()),
        cpu_s_per_gib: cpu_per_gib(cpu_s[0], bytes.saturating_mul(iterations as u64)),
        predicted_us: way.as_ref().and_then(|way| way.predicted_ns).map(micros),
        checked: 2 * u64::from(options.check),
        wrong,
        candidates: way.filter(|_| options.explains).map(candidates).unwrap_or_default(),
    })
}

/// Makes the calls to check; wrong elements on all ranks.
fn check<T: Element>(
    world: &Communicator,
    options: &PerfOptions,
    buffers: &mut Buffers<T>,
) -> Result<u64> {
    let PerfOptions { collective, op, root, .. } = *options;
    let mut wrong = [0];
    for _ in 0..options.check {
        collective.fill(world, buffers);
        collective.call(world, buffers, op, root)?;
        wrong[0] += collective.wrong(world, buffers, op, root);
    }
    world.all_reduce(&mut wrong, ReduceOp::Sum)?;
    Ok(wrong[0])
}

/// What could have been taken, from the library's account.
fn candidates(way: Explanation) -> Vec<Candidate> {
    let Explanation { algorithm: chosen, candidates, rejected, .. } = way;
    let reason = |algorithm| {
        rejected.iter().find(|(other, _)| *other == algorithm).map(|(_, reason)| reason.clone())
    };
    candidates
        .into_iter()
        .map(|(algorithm, predicted_ns)| Candidate {
            algorithm: algorithm.name().to_owned(),
            predicted_us: predicted_ns.map(micros),
            rejected: reason(algorithm).filter(|_| algorithm != chosen),
        })
        .collect()
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

/// As many as fit into the budget at the slowest rank's pace; the same on all.
fn agree_on_iterations(
    world: &Communicator,
    options: &PerfOptions,
    mut call: impl FnMut() -> Result<()>,
) -> Result<usize> {
    if let Some(iterations) = options.iterations {
        return Ok(iterations as usize);
    }
    world.barrier()?;
    let start = Instant::now();
    for _ in 0..2 {
        call()?;
    }
    let mut once = [start.elapsed().as_secs_f64() / 2.0];
    world.all_reduce(&mut once, ReduceOp::Max)?;
    let budget = options.budget_ms as f64 / 1e3;
    Ok((budget / once[0].max(1e-7)).clamp(5.0, ITERATIONS_MAX) as usize)
}

/// The bytes that the library's own table of algorithms is indexed by.
fn index_bytes(collective: Collective, bytes: u64, world: &Communicator) -> u64 {
    match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => bytes,
        _ => bytes / u64::from(world.world_size()),
    }
}

/// What joins this rank with the others, in words.
pub(crate) fn transport(world: &Communicator) -> String {
    let n = world.world_size();
    let mut names: Vec<&str> =
        (0..n).filter(|r| *r != world.rank()).map(|r| world.transport_to(r)).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() { "loopback".into() } else { names.join("+") }
}

//! Command line of `syncline perf kernels`.

use super::measure::{ARRAYS, part};
use super::pattern::{INPUTS_MAX, INPUTS_MIN, Kernel, Pattern, Through};
use crate::machine::{Machine, available_memory, size_text};
use crate::options::{parse_bytes, parse_dtype};
use clap::Args;
use syncline_comm::DType;

/// Examples shown by `--help`.
pub const EXAMPLES: &str = "\
Examples:
  syncline perf kernels                                   everything, some minutes
  syncline perf kernels --kernels reduce -d f32           one kernel, all levels of the memory
  syncline perf kernels -s 256M -t 1,2 --json kernels.json
  syncline perf kernels --kernels reduce_many --inputs 3,8 --stores streaming -s 64M

No rank is started: this is one process with one or more threads. Kernels: copy; reduce,
acc[i] += source[i]; reduce_into, target[i] = a[i] + b[i]; reduce_many, the sum of 3 to 8 inputs.
Streaming stores go past the cache.

Columns: bytes of one array; threads; the nearest cache that holds all arrays of the pattern, or
memory; GB/s (1e9 bytes) that the pattern reads and writes: 2 arrays for copy, 3 for reduce and
reduce_into, one more than inputs for reduce_many. A line that is fetched only to be overwritten is
not counted, for anybody. Beside it what plain Rust reaches on the same arrays: copy_from_slice, or
the loop anybody would write (16-bit floats are added as integers: the same bytes, no rounding);
and STREAM's add, c[i] = a[i] + b[i] of f64. Ratios are medians of the rounds, in each of which the
three take turns.

Up to 4M every thread has arrays of that size; larger ones are divided among threads. The last
lines say which rows at memory's size miss the goal, and what else the machine was doing.

Exit codes: 0; 1 failed; 2 the request makes no sense.";

/// What to measure of the kernels.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KernelOptions {
    /// Kernels
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "copy,reduce,reduce_into,reduce_many"
    )]
    pub kernels: Vec<Kernel>,
    /// Element types
    #[arg(short = 'd', long = "datatypes", value_delimiter = ',',
          default_value = "f32,bf16,f16,f64,i32", value_parser = parse_dtype)]
    pub dtypes: Vec<DType>,
    /// Numbers of inputs of reduce_many
    #[arg(long, value_delimiter = ',', default_value = "3,4,5,6,7,8",
          value_parser = clap::value_parser!(u32).range(INPUTS_MIN..=INPUTS_MAX))]
    pub inputs: Vec<u32>,
    /// Stores; reduce has no streaming form
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cached,streaming")]
    pub stores: Vec<Through>,
    /// Sizes of one array in bytes
    #[arg(short = 's', long, value_delimiter = ',', default_value = "16K,256K,4M,256M",
          value_parser = parse_bytes)]
    pub sizes: Vec<u64>,
    /// Numbers of threads [default: 1, and as many as there are CPUs]
    #[arg(short = 't', long, value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,
    /// Rounds, in each of which every contender has a turn
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Bytes that a turn reads and writes, at least, on each thread
    #[arg(long, default_value = "256M", value_parser = parse_bytes)]
    pub traffic: u64,
    /// Part of the plain loop's bandwidth that is the goal at memory's size
    #[arg(long, value_name = "PERCENT", default_value = "95%",
          value_parser = crate::options::parse_percent)]
    pub goal: f64,
    /// Write {"machine":...,"rows":[...]} to a file, or to standard output with -. A file that is
    /// there is replaced when all is measured, and kept if that fails
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<String>,
}

impl KernelOptions {
    /// Whether the request makes sense here.
    ///
    /// # Errors
    /// It does not, in words.
    pub fn check(&self, machine: &Machine) -> Result<(), String> {
        if self.patterns(true).is_empty() {
            return Err("reduce has no streaming form: nothing is left to measure".to_owned());
        }
        let available = available_memory();
        for bytes in &self.sizes {
            if *bytes < 8 {
                return Err(format!("--sizes {bytes}: an array has at least 8 bytes"));
            }
            for threads in self.threads(machine) {
                let arrays = part(*bytes, threads).saturating_mul(ARRAYS * u64::from(threads));
                if let Some(available) = available.filter(|available| arrays > *available) {
                    return Err(format!(
                        "arrays of {} on {threads} threads take {} MiB, of which {} are there",
                        size_text(*bytes),
                        arrays >> 20,
                        available >> 20
                    ));
                }
            }
        }
        Ok(())
    }

    /// Numbers of threads to measure.
    pub fn threads(&self, machine: &Machine) -> Vec<u32> {
        if !self.threads.is_empty() {
            return self.threads.clone();
        }
        let mut threads = vec![1, u32::try_from(machine.cpus).unwrap_or(1).min(1024)];
        threads.dedup();
        threads
    }

    /// What to measure of each type; what knows no types with the first only.
    pub fn patterns(&self, is_first: bool) -> Vec<Pattern> {
        let mut patterns = Vec::new();
        for kernel in &self.kernels {
            let each = self.stores.iter().copied();
            match kernel {
                Kernel::Copy if !is_first => {}
                Kernel::Copy => patterns.extend(each.map(Pattern::Copy)),
                Kernel::Reduce if !self.stores.contains(&Through::Cached) => {}
                Kernel::Reduce => patterns.push(Pattern::Reduce),
                Kernel::ReduceInto => patterns.extend(each.map(Pattern::ReduceInto)),
                Kernel::ReduceMany => patterns.extend(self.inputs.iter().flat_map(|inputs| {
                    each.clone().map(|through| Pattern::ReduceMany(through, *inputs))
                })),
            }
        }
        patterns
    }
}

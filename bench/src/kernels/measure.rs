//! Threads, rounds and clocks.
//!
//! Owns that contenders take turns, back and forth, on the same arrays, that the threads begin each
//! turn together, and that a turn lasts until the last of them has ended. Called by
//! `syncline perf kernels`.

use super::options::KernelOptions;
use super::pattern::{Arrays, Contender, Pattern, SOURCES};
use super::plain::Plain;
use super::report::{KernelRow, level};
use crate::machine::Machine;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;
use syncline_comm::{DType, bf16, f16};

/// Arrays that a thread has: a target, sources, and STREAM's three.
pub(super) const ARRAYS: u64 = SOURCES as u64 + 4;
/// Caches belong to cores up to here: each thread has arrays of the whole size.
const OWN_BYTES_MAX: u64 = 4 << 20;
/// Parts of an array begin at such multiples.
const PART_BYTES: u64 = 4096;

/// Bytes of an array on each thread.
pub(super) fn part(bytes: u64, threads: u32) -> u64 {
    if bytes <= OWN_BYTES_MAX || threads == 1 {
        return bytes;
    }
    (bytes / u64::from(threads)).next_multiple_of(PART_BYTES)
}

/// Measures everything of one element type, size and number of threads.
pub fn group(
    options: &KernelOptions,
    machine: &Machine,
    dtype: DType,
    bytes: u64,
    threads: u32,
) -> Vec<KernelRow> {
    let patterns = options.patterns(options.dtypes.first() == Some(&dtype));
    let group = Group { options, machine, patterns, bytes, threads };
    match dtype {
        DType::BF16 => group.measure::<bf16>(),
        DType::F16 => group.measure::<f16>(),
        DType::F32 => group.measure::<f32>(),
        DType::F64 => group.measure::<f64>(),
        DType::I16 => group.measure::<i16>(),
        DType::I32 => group.measure::<i32>(),
        DType::I64 => group.measure::<i64>(),
        DType::I8 => group.measure::<i8>(),
        DType::U16 => group.measure::<u16>(),
        DType::U32 => group.measure::<u32>(),
        DType::U64 => group.measure::<u64>(),
        DType::U8 => group.measure::<u8>(),
    }
}

/// What is measured on one set of arrays.
struct Group<'a> {
    options: &'a KernelOptions,
    machine: &'a Machine,
    patterns: Vec<Pattern>,
    bytes: u64,
    threads: u32,
}

/// When a thread began and ended a turn.
type Turn = (Instant, Instant);

impl Group<'_> {
    fn measure<T: Plain>(&self) -> Vec<KernelRow> {
        let gate = Barrier::new(self.threads as usize);
        let turns: Vec<Vec<Turn>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.threads).map(|_| scope.spawn(|| self.thread::<T>(&gate))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Vec<Turn>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        // From the first beginning to the last end.
        let seconds: Vec<f64> = (0..turns[0].len())
            .map(|turn| {
                let all = || turns.iter().map(|thread| thread[turn]);
                let begin = all().map(|(begin, _)| begin).min();
                let end = all().map(|(_, end)| end).max();
                end.zip(begin).map_or(0.0, |(end, begin)| (end - begin).as_secs_f64()).max(1e-9)
            })
            .collect();
        let per_pattern = Contender::ALL.len() * self.options.rounds as usize;
        let each = self.patterns.iter().zip(seconds.chunks(per_pattern));
        each.map(|(pattern, seconds)| self.row::<T>(*pattern, seconds)).collect()
    }

    /// All turns of one thread; those of a round in the order of [`Contender::ALL`].
    fn thread<T: Plain>(&self, gate: &Barrier) -> Vec<Turn> {
        let mut arrays = Arrays::<T>::new(usize_of(part(self.bytes, self.threads)));
        let mut turns = Vec::new();
        for pattern in &self.patterns {
            // Round 0 only warms up.
            for round in 0..=self.options.rounds {
                let mut order = [0, 1, 2];
                if round % 2 == 1 {
                    order.reverse();
                }
                let mut taken = [None; Contender::ALL.len()];
                for index in order {
                    let contender = Contender::ALL[index];
                    gate.wait();
                    let begin = Instant::now();
                    for _ in 0..self.repeats(*pattern, contender) {
                        pattern.call(contender, black_box(&mut arrays));
                    }
                    taken[index] = Some((begin, Instant::now()));
                }
                if round > 0 {
                    turns.extend(taken.into_iter().flatten());
                }
            }
        }
        turns
    }

    fn repeats(&self, pattern: Pattern, contender: Contender) -> u64 {
        let once = part(self.bytes, self.threads) * pattern.moved_by(contender);
        (self.options.traffic / once.max(1)).max(1)
    }

    fn row<T: Plain>(&self, pattern: Pattern, seconds: &[f64]) -> KernelRow {
        let part_bytes = part(self.bytes, self.threads);
        let moved = |contender| {
            let once = part_bytes * pattern.moved_by(contender) * u64::from(self.threads);
            (once * self.repeats(pattern, contender)) as f64 / 1e9
        };
        let [kernel, plain, stream] = Contender::ALL.map(moved);
        let rounds: Vec<[f64; 3]> = seconds
            .chunks_exact(Contender::ALL.len())
            .map(|turn| [kernel / turn[0], plain / turn[1], stream / turn[2]])
            .collect();
        let of = |figure: fn(&[f64; 3]) -> f64| median(rounds.iter().map(figure).collect());
        KernelRow {
            kernel: pattern.name().into(),
            stores: pattern.through().name().into(),
            inputs: pattern.inputs(),
            dtype: if pattern.is_untyped() { "any".into() } else { T::DTYPE.to_string() },
            bytes: self.bytes,
            threads: self.threads,
            level: level(&self.machine.caches, pattern.arrays() * part_bytes, self.threads).into(),
            moved_bytes: part_bytes * pattern.moved() * u64::from(self.threads),
            gbps: of(|round| round[0]),
            plain_gbps: of(|round| round[1]),
            plain_ratio: of(|round| round[0] / round[1]),
            stream_gbps: of(|round| round[2]),
            stream_ratio: of(|round| round[0] / round[2]),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    crate::stats::percentile(&values, 0.5)
}

fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_arrays_are_divided() {
        assert_eq!(part(16 << 10, 8), 16 << 10);
        assert_eq!(part(256 << 20, 1), 256 << 20);
        assert_eq!(part(256 << 20, 2), 128 << 20);
        assert_eq!(part(5 << 20, 3), (5_u64 << 20).div_ceil(3).next_multiple_of(4096));
    }
}

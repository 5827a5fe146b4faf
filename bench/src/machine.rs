//! The machine under a measurement: processor, caches, memory, and what else it was doing.
//!
//! Owns reading the kernel's files. Never measures. Where a file is missing, a figure is unknown,
//! not wrong. Called by what measures without a collective.

use crate::stats::process_cpu;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Ticks of `/proc/stat` in a second, on every Linux that matters here.
const TICKS_PER_S: f64 = 100.0;

/// What a measurement ran on.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the processor, if known.
    pub processor: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Bytes of the data caches of the first CPU, nearest first; empty if unknown.
    pub caches: Vec<u64>,
}

impl Machine {
    /// Of this process.
    pub fn here() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name"));
        let processor = model.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
        Self {
            processor: processor.unwrap_or("unknown processor").to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
        }
    }

    /// In one line.
    pub fn text(&self) -> String {
        let Self { processor, cpus, caches } = self;
        let caches: Vec<String> = caches.iter().map(|bytes| size_text(*bytes)).collect();
        let caches = if caches.is_empty() { "unknown".to_owned() } else { caches.join(", ") };
        format!("{processor}, {cpus} CPUs, caches {caches}")
    }
}

/// Bytes that can be had without swapping, if known.
pub fn available_memory() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    kib_of(&info, "MemAvailable:").map(|kib| kib << 10)
}

/// The number of KiB in the line of such a file that begins so.
pub(crate) fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches("kB").trim_end().parse().ok()
}

/// Sizes of the data caches in such a folder, nearest first.
fn caches(folder: &Path) -> Vec<u64> {
    let text = |index: usize, name: &str| {
        let path = folder.join(format!("index{index}")).join(name);
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    let mut found: Vec<(u32, u64)> = (0..8)
        .filter(|index| text(*index, "type").is_some_and(|kind| kind != "Instruction"))
        .filter_map(|index| {
            let level = text(index, "level")?.parse().ok()?;
            Some((level, crate::options::parse_bytes(&text(index, "size")?).ok()?))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, bytes)| bytes).collect()
}

/// `16K`, `4M`, `1G` where that is exact, else bytes: what `parse_bytes` reads.
pub fn size_text(bytes: u64) -> String {
    let scales = [(30, "G"), (20, "M"), (10, "K")];
    let fits = |(shift, _): &(u32, &str)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match scales.into_iter().find(fits) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// Watches how many cores others use.
#[derive(Debug)]
pub struct OtherLoad {
    start: Instant,
    own: Duration,
    all_s: Option<f64>,
}

impl OtherLoad {
    /// From now on.
    pub fn watch() -> Self {
        Self { start: Instant::now(), own: process_cpu(), all_s: busy_s() }
    }

    /// Cores that everything but this process has used since, stolen ones included; if known.
    pub fn cores(&self) -> Option<f64> {
        let all = busy_s()? - self.all_s?;
        let own = (process_cpu() - self.own).as_secs_f64();
        Some(((all - own) / self.start.elapsed().as_secs_f64().max(1e-3)).max(0.0))
    }
}

/// Busy and stolen time of all CPUs since the machine started.
fn busy_s() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<f64> = stat
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|word| word.parse().ok())
        .collect();
    let [user, nice, system, _idle, _wait, irq, softirq, steal] = ticks[..] else { return None };
    Some((user + nice + system + irq + softirq + steal) / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_they_are_read() {
        for bytes in [0, 7, 1 << 10, 16 << 10, 3 << 19, 256 << 20, 1 << 30, 1 << 40] {
            assert_eq!(crate::options::parse_bytes(&size_text(bytes)), Ok(bytes));
        }
        assert_eq!([16 << 10, 3 << 19, 1000].map(size_text), ["16K", "1536K", "1000"]);
    }

    #[test]
    fn what_the_kernel_says_is_read() {
        let text = "MemTotal:       24 kB\nMemAvailable:   1048576 kB\n";
        assert_eq!(kib_of(text, "MemAvailable:"), Some(1 << 20));
        assert_eq!(kib_of(text, "VmRSS:"), None);
        assert!(Machine::here().cpus > 0);
        assert_eq!(caches(Path::new("/nowhere")), [0; 0]);
    }
}

//! Reading the run logs of a directory.
//!
//! Owns what counts as a readable log: what is tolerated, what is told, what is an error. Called by
//! reports.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::write::file_name;
use super::{DecisionKind, LogError, Record, Run};

/// What was not understood, because a later version wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Records, and decisions of unknown kind.
    pub records: u64,
    /// Fields of the records that were read.
    pub fields: u64,
}

/// The log of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankLog {
    /// The file.
    pub path: PathBuf,
    /// Its first record.
    pub run: Run,
    /// The others, in order.
    pub records: Vec<Record>,
    /// What was not understood.
    pub skipped: Skipped,
    /// The last line is not whole and was left out: the rank died while writing it, or still runs.
    pub is_truncated: bool,
}

/// The logs of all ranks of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunDir {
    /// The directory.
    pub path: PathBuf,
    /// By rank; never empty.
    pub ranks: Vec<RankLog>,
}

impl RunDir {
    /// Reads every `rank-<r>.jsonl` in the directory `path`.
    ///
    /// # Errors
    ///
    /// The directory cannot be read or holds no log; a file cannot be read, has a line that is no
    /// record (other than a last one that is not whole), does not start with [`Run`] or tells of
    /// another run than the first file: of other model, world size or settings.
    pub fn read(path: &Path) -> Result<Self, LogError> {
        let mut ranks = Vec::new();
        for rank in Self::ranks_in(path)? {
            let log = RankLog::read(&path.join(file_name(rank)))?;
            if log.run.rank != rank {
                let reason = format!("it is of rank {}, unlike its name", log.run.rank);
                return Err(LogError::Inconsistent { path: log.path, reason });
            }
            ranks.push(log);
        }
        let Some(first) = ranks.first() else {
            return Err(LogError::NoLogs { path: path.to_owned() });
        };
        let differs = |log: &&RankLog| difference(&first.run, &log.run).is_some();
        if let Some(other) = ranks.iter().find(differs) {
            let what = difference(&first.run, &other.run).unwrap_or_default();
            let reason = format!("its {what} differs from that of {}", first.path.display());
            return Err(LogError::Inconsistent { path: other.path.clone(), reason });
        }
        Ok(Self { path: path.to_owned(), ranks })
    }

    /// The ranks that have a log in the directory `path`, in order; none if it is no run's.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn ranks_in(path: &Path) -> Result<Vec<u32>, LogError> {
        let refused = |source| LogError::Io { path: path.to_owned(), action: "read", source };
        let mut ranks = Vec::new();
        for entry in fs::read_dir(path).map_err(refused)? {
            let name = entry.map_err(refused)?.file_name();
            let Some(name) = name.to_str() else { continue };
            let digits = name.strip_prefix("rank-").and_then(|rest| rest.strip_suffix(".jsonl"));
            let rank = digits.and_then(|digits| digits.parse().ok());
            // `rank-07` and `rank-+7` are names that no log has.
            ranks.extend(rank.filter(|rank| file_name(*rank) == name));
        }
        ranks.sort_unstable();
        Ok(ranks)
    }

    /// What runs, as the lowest rank has it.
    pub fn run(&self) -> &Run {
        &self.ranks[0].run
    }

    /// Ranks of the world that left no log.
    pub fn missing_ranks(&self) -> Vec<u32> {
        let has_log = |rank: &u32| self.ranks.iter().any(|log| log.run.rank == *rank);
        (0..self.run().ranks).filter(|rank| !has_log(rank)).collect()
    }
}

fn difference(a: &Run, b: &Run) -> Option<&'static str> {
    match () {
        () if a.model != b.model => Some("model"),
        () if a.ranks != b.ranks => Some("world size"),
        () if a.setting != b.setting => Some("setting"),
        () => None,
    }
}

impl RankLog {
    /// Reads one file.
    ///
    /// # Errors
    ///
    /// As [`RunDir::read`], for this file alone.
    pub fn read(path: &Path) -> Result<Self, LogError> {
        let refused = |source| LogError::Io { path: path.to_owned(), action: "read", source };
        let mut file = BufReader::new(File::open(path).map_err(refused)?);
        let (mut run, mut records) = (None, Vec::new());
        let (mut skipped, mut is_truncated) = (Skipped::default(), false);
        let mut bytes = Vec::new();
        for line in 1.. {
            bytes.clear();
            if file.read_until(b'\n', &mut bytes).map_err(refused)? == 0 {
                break;
            }
            let is_whole = bytes.ends_with(b"\n");
            match parse(&bytes, &mut skipped) {
                Ok(Some(Record::Run(first))) if run.is_none() => run = Some(first),
                Ok(Some(Record::Run(_))) => {
                    let reason = format!("line {line} starts a second run");
                    return Err(LogError::Inconsistent { path: path.to_owned(), reason });
                }
                Ok(Some(record)) => records.push(record),
                Ok(None) => {}
                Err(_) if !is_whole => is_truncated = true,
                Err(reason) => {
                    return Err(LogError::Line { path: path.to_owned(), line, reason });
                }
            }
            if run.is_none() {
                break;
            }
        }
        let Some(run) = run else {
            let reason = "it does not start with the record \"run\"".to_owned();
            return Err(LogError::Inconsistent { path: path.to_owned(), reason });
        };
        Ok(Self { path: path.to_owned(), run, records, skipped, is_truncated })
    }
}

/// The record of a line; none if a later version wrote it.
fn parse(line: &[u8], skipped: &mut Skipped) -> Result<Option<Record>, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let Some(written) = value.as_object() else {
        return Err("it is no JSON object".to_owned());
    };
    let Some(tag) = written.get("record").and_then(Value::as_str) else {
        return Err("it has no text \"record\"".to_owned());
    };
    let is_known = match tag {
        "run" | "step" | "epoch" | "accuracy" | "end" => true,
        "decision" => written.get("kind").is_none_or(|kind| {
            !kind.is_string() || serde_json::from_value::<DecisionKind>(kind.clone()).is_ok()
        }),
        _ => false,
    };
    if !is_known {
        skipped.records += 1;
        return Ok(None);
    }
    let names: Vec<String> = written.keys().cloned().collect();
    let record: Record = serde_json::from_value(value).map_err(|error| error.to_string())?;
    // What comes out again are the fields that were understood.
    let understood = serde_json::to_value(&record).map_err(|error| error.to_string())?;
    skipped.fields += names.iter().filter(|name| understood.get(name).is_none()).count() as u64;
    Ok(Some(record))
}

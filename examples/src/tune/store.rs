//! The file that keeps what searches found, for jobs that come again.
//!
//! One JSON object: `version`, and `searches`, a list of `key` and `records`. Owns its form, its
//! checks and that it is replaced as a whole. Never runs a job. Called by `tune`.

use std::error::Error;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use syncline::policy::timing::{Outcome, Record, Trial};

use crate::data::{DataError, Dataset};
use crate::options::TrainOptions;
use crate::spec::RunSpec;

const VERSION: u32 = 1;
/// Longest file: some 100,000 jobs.
const LIMIT_BYTES: u64 = 16 << 20;

/// What makes two jobs the same job, so that what one search found serves the other: network and
/// settings, data, ranks, their links and what they run on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// The run's description without the model and without places.
    job: Value,
    /// Items to train on, items to test on, and a checksum of both.
    data: (usize, usize, String),
    /// What the ranks run on, in words.
    cluster: String,
}

impl Key {
    /// The key of a job on `cluster`, such as `2 cores`. Reads the data.
    ///
    /// # Errors
    ///
    /// The data cannot be read.
    pub fn of(options: &TrainOptions, cluster: String) -> Result<Self, DataError> {
        let Some(spec) = options.runs().into_iter().next() else {
            return Ok(Self { job: Value::Null, data: (0, 0, String::new()), cluster });
        };
        let data = Dataset::of(&spec)?;
        let parts = [&data.train, &data.test].map(|split| [&split.images, &split.labels]);
        let sum = checksum(parts.as_flattened().iter().flat_map(|bytes| bytes.iter().copied()));
        let data = (data.train.len(), data.test.len(), format!("{sum:016x}"));
        Ok(Self { job: without_place(&spec), data, cluster })
    }
}

/// A description without the model, and without where the data lies, and metrics and logs go.
fn without_place(spec: &RunSpec) -> Value {
    // By way of the text, so that numbers are those that a file gives back.
    let mut job: Value = serde_json::from_str(&spec.to_arg()).expect("JSON that was just made");
    if let Value::Object(fields) = &mut job {
        fields.remove("model");
        fields.remove("data_dir");
        fields.remove("metrics_port");
        fields.remove("log");
    }
    job
}

/// FNV-1a of 64 bits: tells different data apart, proof against accidents only.
fn checksum(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// One job's outcome.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Job {
    /// Share of the samples under BSP.
    share: f64,
    run: u32,
    /// None if it diverged.
    accuracy: Option<f64>,
    seconds: f64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    key: Key,
    jobs: Vec<Job>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Contents {
    version: u32,
    searches: Vec<Entry>,
}

/// Why results cannot be read or kept.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The file is there, but is no store of this version. It is left alone.
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system refused.
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Its reason.
        source: io::Error,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign { path, reason } => write!(
                f,
                "{} holds no results of searches: {reason}; choose another --store",
                path.display()
            ),
            Self::Io { path, action, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Foreign { .. } => None,
            Self::Io { source, .. } => Some(source),
        }
    }
}

/// A store by its path. The file need not exist.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// The store at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The jobs that were run for `key`; none if there is no file yet.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is none of ours.
    pub fn records(&self, key: &Key) -> Result<Vec<Record>, StoreError> {
        let entries = self.read()?.searches;
        let own = entries.into_iter().find(|entry| entry.key == *key);
        Ok(own.map_or_else(Vec::new, |entry| entry.jobs.into_iter().map(Job::to_record).collect()))
    }

    /// Replaces the jobs of `key`, and leaves those of other keys as they are. At every moment the
    /// file is either the old or the new one. Of two that save at once, one may be lost.
    ///
    /// # Errors
    ///
    /// The file is none of ours, or cannot be read or written.
    pub fn save(&self, key: &Key, records: &[Record]) -> Result<(), StoreError> {
        let mut contents = self.read()?;
        let jobs = records.iter().map(Job::of_record).collect();
        match contents.searches.iter_mut().find(|entry| entry.key == *key) {
            Some(entry) => entry.jobs = jobs,
            None => contents.searches.push(Entry { key: key.clone(), jobs }),
        }
        let text = serde_json::to_string_pretty(&contents)
            .map_err(|error| self.io("write")(io::Error::other(error)))?;
        self.replace(&format!("{text}\n"))
    }

    fn replace(&self, text: &str) -> Result<(), StoreError> {
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(self.io("make the folder of"))?;
        }
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = self.path.with_file_name(name);
        let written = write_through(&part, text).and_then(|()| fs::rename(&part, &self.path));
        written.map_err(|error| {
            // What went wrong first is what counts.
            let _ = fs::remove_file(&part);
            self.io("write")(error)
        })
    }

    fn read(&self) -> Result<Contents, StoreError> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Contents { version: VERSION, searches: Vec::new() });
            }
            opened => opened.map_err(self.io("read"))?,
        };
        let mut text = Vec::new();
        file.take(LIMIT_BYTES + 1).read_to_end(&mut text).map_err(self.io("read"))?;
        let foreign = |reason| StoreError::Foreign { path: self.path.clone(), reason };
        if text.len() as u64 > LIMIT_BYTES {
            return Err(foreign(format!("it is longer than {LIMIT_BYTES} bytes")));
        }
        let contents: Contents =
            serde_json::from_slice(&text).map_err(|error| foreign(error.to_string()))?;
        if contents.version == VERSION {
            Ok(contents)
        } else {
            Err(foreign(format!("version {}, and {VERSION} is known", contents.version)))
        }
    }

    fn io(&self, action: &'static str) -> impl Fn(io::Error) -> StoreError {
        let path = self.path.clone();
        move |source| StoreError::Io { path: path.clone(), action, source }
    }
}

/// Writes a file, and comes back when it is on the disk.
fn write_through(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

impl Job {
    fn of_record(record: &Record) -> Self {
        let Record { trial, outcome } = *record;
        let Outcome { accuracy, seconds } = outcome;
        Self { share: trial.fraction, run: trial.run, accuracy, seconds }
    }

    fn to_record(self) -> Record {
        let Self { share, run, accuracy, seconds } = self;
        Record { trial: Trial { fraction: share, run }, outcome: Outcome { accuracy, seconds } }
    }
}

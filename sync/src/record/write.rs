//! Writing a run log.
//!
//! Owns the file of one rank while it trains. Never overwrites a log. Called by trainers.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::{End, LogError, Record, Run};

/// Bytes kept back before they go to the file; some hundred steps.
const BUFFER_BYTES: usize = 64 << 10;

/// The log of one rank, open for writing.
///
/// Steps are buffered; any other record brings all before it to the file. Dropping it does so too,
/// but cannot tell of an error; [`Self::end`] can.
#[derive(Debug)]
pub struct RunLog {
    path: PathBuf,
    file: BufWriter<File>,
    line: Vec<u8>,
}

impl RunLog {
    /// Starts the log of `run.rank` in the directory `dir`, which is made if need be.
    ///
    /// # Errors
    ///
    /// The directory or the file cannot be made, or there is a log of this rank already.
    pub fn create(dir: &Path, run: Run) -> Result<Self, LogError> {
        let refused = |path: &Path| {
            let path = path.to_owned();
            move |source| LogError::Io { path, action: "create", source }
        };
        fs::create_dir_all(dir).map_err(refused(dir))?;
        let path = dir.join(file_name(run.rank));
        let file = File::create_new(&path).map_err(refused(&path))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let mut log = Self { path, file, line: Vec::new() };
        log.write(&Record::Run(run))?;
        Ok(log)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a record.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&mut self, record: &Record) -> Result<(), LogError> {
        self.line.clear();
        let made = serde_json::to_writer(&mut self.line, record);
        self.line.push(b'\n');
        made.map_err(io::Error::from)
            .and_then(|()| self.file.write_all(&self.line))
            .map_err(|source| self.refused(source))?;
        if matches!(record, Record::Step(_)) { Ok(()) } else { self.flush() }
    }

    /// Brings all records to the file.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn flush(&mut self) -> Result<(), LogError> {
        self.file.flush().map_err(|source| self.refused(source))
    }

    /// Adds the last record and closes the file.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn end(mut self, end: End) -> Result<(), LogError> {
        self.write(&Record::End(end))
    }

    fn refused(&self, source: io::Error) -> LogError {
        LogError::Io { path: self.path.clone(), action: "write", source }
    }
}

/// The name of a rank's file.
pub(super) fn file_name(rank: u32) -> String {
    format!("rank-{rank}.jsonl")
}

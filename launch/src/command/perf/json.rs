//! Where `--json` writes.
//!
//! Owns that a file which cannot be written is refused before anything is measured, and that an
//! earlier result stays whole until there is a new one. Called by `perf`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The target of `--json`, if there is one.
#[derive(Debug)]
pub(crate) enum JsonTarget {
    /// `--json` was not given.
    None,
    /// `-`.
    Stdout,
    /// A file, open for writing.
    File {
        file: File,
        path: PathBuf,
        /// Made by us, and so far empty.
        is_new: bool,
    },
}

impl JsonTarget {
    /// Opens what `--json` names.
    ///
    /// # Errors
    /// The file cannot be written, in words.
    pub(crate) fn open(json: Option<&str>) -> Result<Self, String> {
        let path = match json {
            None => return Ok(Self::None),
            Some("-") => return Ok(Self::Stdout),
            Some(path) => Path::new(path).to_owned(),
        };
        let is_new = !path.exists();
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Self::File { file, path, is_new })
    }

    /// Where tables go: to standard output, unless JSON does.
    pub(crate) fn table(&self) -> Box<dyn Write> {
        match self {
            Self::Stdout => Box::new(io::stderr()),
            Self::None | Self::File { .. } => Box::new(io::stdout()),
        }
    }

    /// Writes the report, as one line.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&mut self, text: &str) -> io::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                writeln!(stdout, "{text}").and_then(|()| stdout.flush())
            }
            Self::File { file, is_new, .. } => {
                *is_new = false;
                // A pipe or a device has no length.
                if file.metadata()?.is_file() {
                    file.set_len(0)?;
                }
                writeln!(file, "{text}").and_then(|()| file.flush())
            }
        }
    }
}

impl Drop for JsonTarget {
    /// Leaves no empty file behind.
    fn drop(&mut self) {
        if let Self::File { path, is_new: true, .. } = self {
            let _ = fs::remove_file(path);
        }
    }
}

//! `syncline report`: compares runs that are over, or under way, from what they wrote down.
//!
//! Owns the arguments and where the report goes. Reads files only: starts no rank. The report is
//! `syncline-examples`'. Called by [`crate::cli`].

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::{EXIT_FAILED, print};
use clap::Args;
use syncline_examples::BoxError;
use syncline_examples::html::{Study, load, page};

pub(crate) const EXAMPLES: &str = "\
Examples:
    syncline report runs/osp-1 runs/bsp-1          compare two runs
    syncline report runs -o report.html            all runs in a directory, with figures
    syncline report results.json --target 0.95     what 'syncline train --json' wrote
    syncline report runs --json";

/// What can be typed after `syncline report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run directories (of rank-N.jsonl), directories of those, files of 'syncline train --json'
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Accuracy whose time is asked for, above 0 and up to 1
    #[arg(long, default_value = "0.9", value_parser = share)]
    target: f64,
    /// Write one HTML file with figures and all decisions; it needs no other file
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// JSON instead of the table
    #[arg(long)]
    json: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value > 0.0 && value <= 1.0 { Ok(value) } else { Err("not above 0 and up to 1".to_owned()) }
}

/// Reads, compares and prints; returns the exit code.
pub fn run(args: &ReportArgs) -> i32 {
    match report(args) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("syncline report: {error}");
            EXIT_FAILED
        }
    }
}

fn report(args: &ReportArgs) -> Result<(), BoxError> {
    let study = Study::new(load(&args.runs)?, args.target);
    let text = if args.json {
        serde_json::to_string_pretty(&study)?
    } else {
        std::iter::once(study.table()).chain(study.notes()).collect::<Vec<_>>().join("\n")
    };
    print(&format!("{text}\n"))?;
    if let Some(path) = &args.output {
        write(path, &page(&study))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// Writes a file, whose folder it makes if need be.
fn write(path: &Path, text: &str) -> Result<(), BoxError> {
    let refused = |path: &Path, error| format!("cannot write {}: {error}", path.display());
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(|error| refused(folder, error))?;
    }
    fs::write(path, text).map_err(|error| refused(path, error))?;
    Ok(())
}

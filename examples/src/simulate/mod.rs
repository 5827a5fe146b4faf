//! `syncline simulate`: the sync models over a simulated network, in virtual time.
//!
//! Owns the options, the gradients, the table and the JSON. The simulation itself is the
//! library's. Starts no rank and opens no connection. Called by the binary.

mod cell;
mod digits;
mod error;
pub mod options;
mod plan;
mod report;
mod stand_in;
mod testbed;
#[cfg(test)]
mod tests;

pub use error::SimulateError;
pub use options::SimulateOptions;
pub use report::{Cell, ModelRun, Point, SimulateReport};

use std::fs;
use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use plan::Plan;

/// Simulates every model in every cell that `options` ask for.
///
/// # Errors
/// The options do not go together, or a simulation came to no end.
pub fn simulate(options: &SimulateOptions) -> Result<SimulateReport, SimulateError> {
    let plan = Plan::new(options)?;
    let mut cells = Vec::new();
    for (ranks, rate) in plan.cells() {
        let mut runs = Vec::new();
        for model in &plan.models {
            let title = format!("{ranks} ranks, {rate}, {}", model.title());
            let bar = bar(&title, options.quiet);
            runs.push(cell::run(&plan, model, ranks, rate, &bar)?);
            bar.finish_and_clear();
        }
        cells.push(Cell::new(ranks, rate, runs));
    }
    Ok(SimulateReport::new(&plan, cells))
}

/// Prints the table and writes the JSON where `options` say.
///
/// # Errors
/// Something cannot be written.
pub fn publish(options: &SimulateOptions, report: &SimulateReport) -> Result<(), SimulateError> {
    let text = report.text();
    let Some(path) = &options.json else { return say(&mut io::stdout().lock(), &text) };
    let json = serde_json::to_string_pretty(report).map_err(io::Error::other);
    let json = json.map_err(|source| SimulateError::Output { path: path.clone(), source })? + "\n";
    if path.as_os_str() == "-" {
        say(&mut io::stderr().lock(), &text)?;
        return say(&mut io::stdout().lock(), &json);
    }
    say(&mut io::stdout().lock(), &text)?;
    fs::write(path, json).map_err(|source| SimulateError::Output { path: path.clone(), source })?;
    say(&mut io::stdout().lock(), &format!("results: {}\n", path.display()))
}

/// A reader that has seen enough is no error.
fn say(output: &mut dyn Write, text: &str) -> Result<(), SimulateError> {
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => {
            Err(SimulateError::Output { path: "standard output".into(), source })
        }
        _ => Ok(()),
    }
}

/// One simulation's bar; without a terminal, a line.
fn bar(title: &str, is_quiet: bool) -> ProgressBar {
    let target = if is_quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(1), target);
    let template = "{prefix:<36} {bar:30.cyan/dim} {percent:>3} %";
    let style = ProgressStyle::with_template(template).expect("a template that is tested");
    bar.set_style(style.progress_chars("━╸─"));
    bar.set_prefix(title.to_owned());
    if !is_quiet && !io::stderr().is_terminal() {
        eprintln!("{title}");
    }
    bar
}

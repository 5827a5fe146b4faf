//! `syncline info --explain COLLECTIVE SIZE`: every algorithm that could carry out one call,
//! predicted and measured.
//!
//! Owns the order of measurements and the layout. Ranks are `syncline perf`'s: first as a job here
//! would run, which gives the choice and its reasons, then once with each candidate forced. So all
//! figures are of one topology, transport and environment. Called by [`super::run`].

use super::InfoArgs;
use crate::SignalWatch;
use crate::cli::{EXIT_FAILED, EXIT_USAGE, print};
use crate::command::perf;
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};
use std::fmt::Write as _;
use syncline::comm::Determinism;
use syncline_bench::collective::Collective;
use syncline_bench::options::parse_bytes;
use syncline_bench::report::Candidate;
use syncline_bench::{PerfOptions, Row};

/// How messages begin.
const NAME: &str = "syncline info";

/// The call to explain.
#[derive(Debug)]
pub(super) struct Question {
    collective: Collective,
    bytes: u64,
}

/// What became of one candidate.
struct Tried {
    candidate: Candidate,
    /// None where ranks failed or ran another algorithm.
    measured: Option<Row>,
}

impl Question {
    /// Of the words after `--explain`.
    ///
    /// # Errors
    /// They are no collective that has a choice, or no size; in words.
    pub(super) fn parse(words: &[String]) -> Result<Self, String> {
        let [name, size] = words else {
            return Err("--explain takes nothing, or a collective and a size: \
                        --explain all_reduce 1M"
                .to_owned());
        };
        let known = || {
            let all = Collective::value_variants().iter().filter(|one| one.kind().is_some());
            all.map(|one| one.name()).collect::<Vec<_>>().join(", ")
        };
        let collective = Collective::from_str(name, false)
            .map_err(|_| format!("{name:?} is none of {}", known()))?;
        if collective.kind().is_none() {
            return Err(format!(
                "{name} has one algorithm only; there is a choice for {}",
                known()
            ));
        }
        let bytes = parse_bytes(size)?;
        Ok(Self { collective, bytes })
    }

    /// Measures and prints; returns the exit code.
    pub(super) fn answer(&self, args: &InfoArgs) -> i32 {
        let ranks = args.ranks;
        let signals = match SignalWatch::install() {
            Ok(signals) => signals,
            Err(error) => {
                eprintln!("{NAME}: cannot watch signals: {error}");
                return EXIT_FAILED;
            }
        };
        let options = PerfOptions { explains: true, ..self.options(args) };
        let chosen = match self.measure(&options, ranks, &signals) {
            Ok(row) => row,
            Err(code) => return code,
        };
        let mut tried = Vec::new();
        for candidate in chosen.candidates.clone() {
            let algorithm = Some(candidate.algorithm.clone());
            // One that is not canonical shows what the grade costs.
            let determinism = Some(Determinism::Fast);
            let options = PerfOptions { algorithm, determinism, ..self.options(args) };
            let measured = match self.measure(&options, ranks, &signals) {
                Ok(row) => Some(row).filter(|row| row.algorithm == candidate.algorithm),
                Err(code) if signals.interruption().is_some() => return code,
                Err(_) => None,
            };
            tried.push(Tried { candidate, measured });
        }
        let text = if args.json {
            format!("{}\n", to_json(&chosen, &tried))
        } else {
            to_text(&chosen, &tried)
        };
        if let Err(error) = print(&text) {
            eprintln!("{NAME}: {error}");
            return EXIT_FAILED;
        }
        let measured = tried.iter().flat_map(|one| &one.measured);
        let is_wrong = measured.chain([&chosen]).any(|row| row.wrong > 0);
        let is_whole = tried.iter().all(|one| one.measured.is_some());
        if is_whole && !is_wrong { 0 } else { EXIT_FAILED }
    }

    /// One row, or the exit code.
    fn measure(
        &self,
        options: &PerfOptions,
        ranks: u32,
        signals: &SignalWatch,
    ) -> Result<Row, i32> {
        let mut rows: Vec<Row> = Vec::new();
        let code = perf::collective(NAME, options, ranks, None, signals)
            .measure(|line| serde_json::from_str(line).map(|row| rows.push(row)));
        match rows.pop() {
            Some(row) if code == 0 => Ok(row),
            _ => Err(if code == 0 { EXIT_FAILED } else { code }),
        }
    }

    /// `syncline perf`'s own settings, for this call.
    fn options(&self, args: &InfoArgs) -> PerfOptions {
        #[derive(Parser)]
        struct Defaults {
            #[command(flatten)]
            options: PerfOptions,
        }
        let Defaults { options } = Defaults::parse_from([NAME]);
        let (collective, bytes) = (self.collective, self.bytes);
        let InfoArgs { transport, determinism, .. } = *args;
        let (min_bytes, max_bytes) = (bytes, bytes);
        PerfOptions { collective, min_bytes, max_bytes, transport, determinism, ..options }
    }
}

/// Says what was wrong with the request; returns the exit code.
pub(super) fn refuse(error: &str) -> i32 {
    eprintln!("{NAME}: {error}");
    EXIT_USAGE
}

/// Why the chosen algorithm was taken.
fn reason(chosen: &Row, tried: &[Tried]) -> &'static str {
    let is_rejected_as = |start: &str| {
        let mut rejected = tried.iter().flat_map(|one| &one.candidate.rejected);
        rejected.any(|why| why.starts_with(start))
    };
    match tried.len() {
        0 | 1 => "there is no other",
        _ if is_rejected_as("another was asked for") => "asked for by SYNCLINE_ALGORITHM",
        _ if chosen.algorithm == "node" => "all ranks share this host's memory",
        _ if is_rejected_as("not canonical") => "predicted to be the fastest that is canonical",
        _ => "predicted to be the fastest",
    }
}

fn to_text(chosen: &Row, tried: &[Tried]) -> String {
    let Row { collective, bytes, ranks, transport, algorithm, .. } = chosen;
    let why = reason(chosen, tried);
    let mut text = format!(
        "{collective} of {bytes} bytes on {ranks} ranks over {transport}: {algorithm}, {why}\n\
         measured with ranks started here, median of the slowest rank (us): {:.2}\n\n\
         {:<20} {:>14} {:>14}  why not\n",
        chosen.p50_us, "algorithm", "predicted (us)", "measured (us)"
    );
    for Tried { candidate, measured } in tried {
        let predicted = candidate.predicted_us;
        let predicted = predicted.map_or_else(|| "-".to_owned(), |us| format!("{us:.2}"));
        let time = measured.as_ref().map_or_else(
            || "failed".to_owned(),
            |row| format!("{:.2}{}", row.p50_us, if row.wrong > 0 { " WRONG" } else { "" }),
        );
        let why = candidate.rejected.as_deref().unwrap_or("chosen");
        let _ = writeln!(text, "{:<20} {predicted:>14} {time:>14}  {why}", candidate.algorithm);
    }
    let fastest = tried.iter().filter_map(|one| one.measured.as_ref());
    if let Some(row) = fastest.min_by(|one, other| one.p50_us.total_cmp(&other.p50_us)) {
        let _ = writeln!(text, "\nfastest as measured: {}", row.algorithm);
    }
    text
}

fn to_json(chosen: &Row, tried: &[Tried]) -> Value {
    let candidates: Vec<Value> = tried
        .iter()
        .map(|Tried { candidate, measured }| {
            json!({
                "algorithm": candidate.algorithm,
                "predicted_us": candidate.predicted_us,
                "measured_us": measured.as_ref().map(|row| row.p50_us),
                "measured_p99_us": measured.as_ref().map(|row| row.p99_us),
                "iterations": measured.as_ref().map(|row| row.iterations),
                "wrong": measured.as_ref().map(|row| row.wrong),
                "rejected": candidate.rejected,
            })
        })
        .collect();
    json!({
        "collective": chosen.collective,
        "bytes": chosen.bytes,
        "ranks": chosen.ranks,
        "transport": chosen.transport,
        "algorithm": chosen.algorithm,
        "determinism": chosen.determinism,
        "reason": reason(chosen, tried),
        "measured_us": chosen.p50_us,
        "candidates": candidates,
    })
}

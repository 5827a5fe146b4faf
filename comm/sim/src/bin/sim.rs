//! `cargo sim -- SEED`, `cargo sim -- --seeds FROM..TO`: plays seeds, stops at the first that
//! breaks a promise. Exit codes: 127 crash, 128 liveness, 129 correctness.

use std::process::ExitCode;
use syncline_sim::{Scenario, run};

const USAGE: &str = "usage: sim SEED [--trace] | sim --seeds FROM..TO";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (seeds, trace) = match words[..] {
        ["--seeds", range] => match parse(range) {
            Some(seeds) => (seeds, false),
            None => return usage(),
        },
        [seed] | [seed, "--trace"] => match seed.parse() {
            Ok(seed) => (seed..seed + 1, words.len() == 2),
            Err(_) => return usage(),
        },
        _ => return usage(),
    };
    let (mut played, mut succeeded, mut failed) = (0_u64, 0, 0);
    for seed in seeds {
        let scenario = Scenario::from_seed(seed);
        let played_once = std::panic::catch_unwind(|| {
            let print = |line: &str| {
                if trace {
                    println!("{line}");
                }
            };
            (run(&scenario, print), run(&scenario, |_| {}))
        });
        let Ok((report, again)) = played_once else {
            eprintln!("seed {seed}: crash\n{scenario:#?}");
            return ExitCode::from(127);
        };
        if let Some(violation) = report.violation {
            eprintln!("seed {seed}: {violation}\n{scenario:#?}");
            return ExitCode::from(violation.exit_code());
        }
        if report.trace != again.trace {
            eprintln!("seed {seed}: two runs differ");
            return ExitCode::from(129);
        }
        played += 1;
        succeeded += report.succeeded;
        failed += report.failed;
    }
    println!(
        "{played} seeds, each twice alike: {succeeded} calls right, {failed} failed as they must"
    );
    ExitCode::SUCCESS
}

fn parse(range: &str) -> Option<std::ops::Range<u64>> {
    let (from, to) = range.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

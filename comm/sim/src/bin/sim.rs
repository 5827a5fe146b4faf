//! `cargo sim -- SEED`, `cargo sim -- --seeds FROM..TO`: plays seeds, stops at the first that
//! breaks a promise. Exit codes: 127 crash, 128 liveness, 129 correctness. `cargo sim -- --scale
//! RANKS,... [BYTES [RANKS_PER_HOST]]`: what an all-reduce asks of a rank; 1 if it grows too fast.

use std::process::ExitCode;
use syncline_proto::collective::Algorithm;
use syncline_sim::scale::Cost;
use syncline_sim::{Scenario, run};

const USAGE: &str = "usage: sim SEED [--trace] | sim --seeds FROM..TO | \
                     sim --scale RANKS,... [BYTES [RANKS_PER_HOST]]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (seeds, trace) = match words[..] {
        ["--scale", ranks] => return scale(ranks, "1048576", "1"),
        ["--scale", ranks, bytes] => return scale(ranks, bytes, "1"),
        ["--scale", ranks, bytes, per_host] => return scale(ranks, bytes, per_host),
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

/// A line of JSON for each algorithm and number of ranks.
fn scale(ranks: &str, bytes: &str, per_host: &str) -> ExitCode {
    let ranks: Result<Vec<u32>, _> = ranks.split(',').map(str::parse).collect();
    let (Ok(ranks), Ok(bytes), Ok(per_host)) = (ranks, bytes.parse(), per_host.parse()) else {
        return usage();
    };
    if per_host == 0 || ranks.iter().any(|ranks| !(2..=4096).contains(ranks)) {
        return usage();
    }
    let mut code = ExitCode::SUCCESS;
    for algorithm in Algorithm::ALL {
        for cost in ranks.iter().filter_map(|n| Cost::of(algorithm, *n, per_host, bytes)) {
            let Cost { ranks, messages, messages_bound, vectors, vectors_bound, .. } = cost;
            let Cost { scratch, predicted_us, planned, .. } = cost;
            let played = cost.played.map_or_else(|| "null".to_owned(), |count| count.to_string());
            let excess = cost.excess();
            if excess.is_some() {
                code = ExitCode::from(1);
            }
            println!(
                "{{\"algorithm\":\"{}\",\"ranks\":{ranks},\"bytes\":{bytes},\
                 \"ranks_per_host\":{per_host},\"messages\":{messages},\
                 \"messages_bound\":{messages_bound},\"vectors\":{vectors},\
                 \"vectors_bound\":{vectors_bound},\"scratch_vectors\":{scratch},\
                 \"predicted_us\":{predicted_us},\"planned\":{planned},\"played\":{played},\
                 \"excess\":\"{}\"}}",
                algorithm.name(),
                excess.unwrap_or_default()
            );
        }
    }
    code
}

fn parse(range: &str) -> Option<std::ops::Range<u64>> {
    let (from, to) = range.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

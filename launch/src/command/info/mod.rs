//! `syncline info`: what this host can do, and what would be chosen for which size.
//!
//! Owns the questions and the layout. The answers come from a real job of threads of this
//! process, so they are what a job here would do; those about one call come from ranks, see
//! `explain.rs`. Called by [`crate::cli`].

mod explain;

use crate::cli::{EXIT_FAILED, print};
use clap::Args;
use explain::Question;
use serde_json::{Value, json};
use std::fmt::Write as _;
use syncline::comm::host::HostReport;
use syncline::comm::testing::try_threads;
use syncline::comm::{
    Algorithm, CollectiveKind, Communicator, Determinism, Result, TransportChoice,
};

/// Sizes asked for, in bytes.
const SIZES: [u64; 6] = [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20];
/// Collectives asked for.
const KINDS: [CollectiveKind; 5] = [
    CollectiveKind::AllReduce,
    CollectiveKind::AllGather,
    CollectiveKind::ReduceScatter,
    CollectiveKind::Broadcast,
    CollectiveKind::AllToAll,
];

pub(crate) const EXAMPLES: &str = "\
Examples:
    syncline info                      for a job of 4 ranks on this host
    syncline info -n 8 --transport tcp
    syncline info --explain            also why each other algorithm was rejected
    syncline info --explain --transport tcp --determinism canonical
    syncline info --explain all_reduce 1M -n 4 --transport tcp
                                       one call: candidates, predicted and measured
    syncline info --json

SIZE is `syncline perf`'s -b: bytes of the larger buffer. Measured times are those of `syncline perf
COLLECTIVE --algorithm EACH` with ranks started for it on this host; predicted times are the
library's own, by which it chooses.";

/// What can be typed after `syncline info`.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// Ranks of the job to describe
    #[arg(short = 'n', long = "ranks", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// How ranks reach each other: auto, shm or tcp
    #[arg(long, default_value = "auto")]
    transport: TransportChoice,
    /// Bits of reductions, for sums of floats: fast or canonical; by default fast, and for one
    /// call what SYNCLINE_DETERMINISM says
    #[arg(long)]
    determinism: Option<Determinism>,
    /// Say for each size why the other algorithms were rejected. With a collective and a size:
    /// for this call, predicted and measured times of every algorithm that could carry it out
    #[arg(long, num_args = 0..=2, value_names = ["COLLECTIVE", "SIZE"])]
    explain: Option<Vec<String>>,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Looks and prints; returns the exit code.
pub fn run(args: &InfoArgs) -> i32 {
    if let Some(words) = args.explain.as_deref().filter(|words| !words.is_empty()) {
        return match Question::parse(words) {
            Ok(question) => question.answer(args),
            Err(error) => explain::refuse(&error),
        };
    }
    let host = HostReport::probe();
    let adjust = |config: &mut syncline::comm::Config| {
        config.transport = args.transport;
        config.determinism = args.determinism.unwrap_or_default();
    };
    let looked = try_threads(args.ranks, adjust, |world| world.map(|world| look(&world)));
    let job = match looked.into_iter().collect::<Result<Vec<_>>>() {
        Ok(mut ranks) => ranks.swap_remove(0),
        Err(error) => {
            eprintln!("syncline info: {error}");
            return EXIT_FAILED;
        }
    };
    let text = if args.json {
        format!("{}\n", to_json(args, &host, &job))
    } else {
        to_text(args, &host, &job)
    };
    match print(&text) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("syncline info: {error}");
            EXIT_FAILED
        }
    }
}

/// What a rank of the job sees.
struct Seen {
    transport: String,
    node_path: bool,
    choices: Vec<Chosen>,
}

/// One row of the table of choices.
struct Chosen {
    kind: CollectiveKind,
    bytes: u64,
    algorithm: Algorithm,
    rejected: Vec<(Algorithm, String)>,
}

fn look(world: &Communicator) -> Seen {
    let peer = (world.rank() + 1) % world.world_size();
    let choices = KINDS.into_iter().flat_map(|kind| {
        SIZES.into_iter().map(move |bytes| {
            let found = world.explain(kind, bytes);
            Chosen { kind, bytes, algorithm: found.algorithm, rejected: found.rejected }
        })
    });
    Seen {
        transport: world.transport_to(peer).to_owned(),
        node_path: world.has_node_path(),
        choices: choices.collect(),
    }
}

fn to_text(args: &InfoArgs, host: &HostReport, job: &Seen) -> String {
    let mut text = String::from("host\n");
    for (name, value) in host.lines() {
        let _ = writeln!(text, "  {name:<18} {value}");
    }
    let _ = writeln!(text, "\ntransports");
    for (name, verdict) in host.transports() {
        let _ = writeln!(text, "  {name:<18} {verdict}");
    }
    let node =
        if job.node_path { ", collectives through shared memory without messages" } else { "" };
    let _ = writeln!(
        text,
        "\na job of {} ranks here: {}{node}\n\n{:<16}{}",
        args.ranks,
        job.transport,
        "collective",
        SIZES.map(|bytes| format!("{:<20}", size(bytes))).concat().trim_end()
    );
    for rows in job.choices.chunks(SIZES.len()) {
        let names: String =
            rows.iter().map(|row| format!("{:<20}", row.algorithm.name())).collect();
        let _ = writeln!(text, "{:<16}{}", rows[0].kind.name(), names.trim_end());
    }
    if args.explain.is_some() {
        for row in &job.choices {
            let _ = writeln!(text, "\n{} of {}: {}", row.kind, size(row.bytes), row.algorithm);
            for (algorithm, why) in &row.rejected {
                let _ = writeln!(text, "  not {:<20} {why}", algorithm.name());
            }
        }
    } else {
        let _ = writeln!(text, "\n--explain says why each other algorithm was rejected");
    }
    text
}

fn to_json(args: &InfoArgs, host: &HostReport, job: &Seen) -> Value {
    let table = |rows: Vec<(&'static str, String)>| -> Value {
        rows.into_iter()
            .map(|(k, v)| (k.to_owned(), Value::from(v)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let choices: Vec<Value> = job
        .choices
        .iter()
        .map(|row| {
            let rejected: serde_json::Map<_, _> = row
                .rejected
                .iter()
                .map(|(a, why)| (a.name().to_owned(), Value::from(why.as_str())))
                .collect();
            json!({
                "collective": row.kind.name(),
                "bytes": row.bytes,
                "algorithm": row.algorithm.name(),
                "rejected": rejected,
            })
        })
        .collect();
    json!({
        "host": table(host.lines()),
        "transports": table(host.transports()),
        "job": {
            "ranks": args.ranks,
            "transport": job.transport,
            "node_path": job.node_path,
            "determinism": args.determinism.unwrap_or_default().name(),
        },
        "choices": choices,
    })
}

fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{}M", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

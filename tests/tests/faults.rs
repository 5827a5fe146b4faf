//! One of eight ranks dies, freezes, leaves, panics or calls something else, at random moments:
//! every other rank must end with the right typed error, in time, and nothing may be left over.

use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use syncline_tests::cluster::{Cluster, RankEnd};

const RANKS: u32 = 8;
/// Moments per fault and transport.
const MOMENTS: u64 = 20;
/// Deadline of every call in these jobs.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Deadline of joining: a fault may come before all have.
const JOIN_TIMEOUT: Duration = Duration::from_secs(8);
/// A dead peer must be known by then.
const LOSS_LIMIT: Duration = Duration::from_secs(2);

struct Trial {
    fault: &'static str,
    expected: &'static str,
    limit: Duration,
    /// Whether the victim itself must report the error too.
    victim_reports: bool,
}

const KILL: Trial =
    Trial { fault: "kill", expected: "PeerLost", limit: LOSS_LIMIT, victim_reports: false };
const STOP: Trial = Trial {
    fault: "stop",
    expected: "Timeout",
    limit: Duration::from_secs(3 + 2),
    victim_reports: false,
};
const EXIT: Trial = Trial { fault: "exit", ..KILL };
const PANIC: Trial = Trial { fault: "panic", ..KILL };
const COUNT: Trial =
    Trial { fault: "count", expected: "ContractMismatch", limit: LOSS_LIMIT, victim_reports: true };
const DTYPE: Trial = Trial { fault: "dtype", ..COUNT };
const OP: Trial = Trial { fault: "op", ..COUNT };
const KIND: Trial = Trial { fault: "kind", ..COUNT };

/// Runs a trial at [`MOMENTS`] moments, by shared memory's node path, its rings, and TCP.
fn run(trial: &Trial) {
    let before = leftovers();
    for moment in 0..MOMENTS {
        let (transport, algorithm) =
            [("auto", "auto"), ("shm", "ring"), ("tcp", "auto")][moment as usize % 3];
        run_once(trial, moment, transport, algorithm);
    }
    // Other tests run at the same time: what is theirs goes away by itself.
    let mut new: BTreeSet<String> = leftovers().difference(&before).cloned().collect();
    for _ in 0..100 {
        if new.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
        new = new.intersection(&leftovers()).cloned().collect();
    }
    assert!(new.is_empty(), "{}: left over: {new:?}", trial.fault);
}

fn run_once(trial: &Trial, moment: u64, transport: &str, algorithm: &str) {
    let mut random = fastrand::Rng::with_seed(moment * 31 + trial.fault.len() as u64);
    let victim = random.u32(0..RANKS);
    let at = random.u64(0..400);
    let variables = [
        ("FAULT", trial.fault.to_owned()),
        ("VICTIM", victim.to_string()),
        ("AT", at.to_string()),
        ("SEED", random.u64(..).to_string()),
        ("SYNCLINE_TRANSPORT", transport.to_owned()),
        ("SYNCLINE_ALGORITHM", algorithm.to_owned()),
        ("SYNCLINE_CONNECT_TIMEOUT_S", JOIN_TIMEOUT.as_secs().to_string()),
        ("SYNCLINE_TIMEOUT_S", TIMEOUT.as_secs().to_string()),
    ];
    let context = format!("{} of rank {victim} at {at} over {transport} {algorithm}", trial.fault);
    let mut cluster = Cluster::start(env!("CARGO_BIN_EXE_faulty_rank"), RANKS, &variables);
    let from_outside = matches!(trial.fault, "kill" | "stop");
    if from_outside {
        // Some moments fall into joining, most into the calls.
        std::thread::sleep(Duration::from_millis(random.u64(20..600)));
        cluster.signal(victim, if trial.fault == "kill" { Signal::KILL } else { Signal::STOP });
    }
    let start = Instant::now();
    // A fault inside a job comes only once the job has reached it.
    let reach = if from_outside { Duration::ZERO } else { Duration::from_secs(20) };
    let mut ends =
        wait_for_others(&mut cluster, victim, trial.limit + reach + TIMEOUT + JOIN_TIMEOUT);
    if trial.fault == "stop" {
        cluster.signal(victim, Signal::KILL);
    }
    let last = cluster.wait(Duration::from_secs(5));
    for (end, late) in ends.iter_mut().zip(last) {
        *end = end.take().or(late);
    }
    judge(trial, &ends, victim, start, from_outside, &context);
}

fn wait_for_others(cluster: &mut Cluster, victim: u32, limit: Duration) -> Vec<Option<RankEnd>> {
    let deadline = Instant::now() + limit;
    let mut ends: Vec<Option<RankEnd>> = (0..RANKS).map(|_| None).collect();
    while Instant::now() < deadline {
        for (end, new) in ends.iter_mut().zip(cluster.wait(Duration::from_millis(10))) {
            *end = end.take().or(new);
        }
        let others_ended = ends.iter().zip(0..).all(|(end, rank)| rank == victim || end.is_some());
        if others_ended {
            break;
        }
    }
    ends
}

fn judge(
    trial: &Trial,
    ends: &[Option<RankEnd>],
    victim: u32,
    start: Instant,
    from_outside: bool,
    context: &str,
) {
    // A fault from inside begins when the first rank knows of it.
    let first = ends.iter().flatten().map(|end| end.at).min().unwrap_or(start);
    let begin = if from_outside { start } else { first };
    for (end, rank) in ends.iter().zip(0..) {
        if rank == victim && !trial.victim_reports {
            continue;
        }
        let Some(end) = end else { panic!("{context}: rank {rank} hangs: {ends:#?}") };
        let took = end.at - begin;
        let line = end.stdout.lines().find(|line| line.starts_with("error"));
        let line = line.unwrap_or_else(|| panic!("{context}: rank {rank} said {:?}", end.stdout));
        // While joining, a frozen or dead rank is one that never came, or whose stream ended.
        let joining = line.contains("stage=join");
        let kind = line.split(' ').nth(1).unwrap_or_default();
        let fits = kind == trial.expected || (joining && matches!(kind, "PeerLost" | "Timeout"));
        assert!(fits, "{context}: rank {rank}: {line}");
        if kind != "ContractMismatch" && !joining {
            let named = line.contains(&format!("culprit={victim} "))
                || line.contains(&format!("rank {victim}"));
            assert!(named, "{context}: rank {rank} names another: {line}");
        }
        if !joining {
            assert!(took <= trial.limit, "{context}: rank {rank} took {took:?}: {line}");
        }
    }
}

/// What ranks could leave behind: segments, sockets with our names.
fn leftovers() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    if let Ok(entries) = std::fs::read_dir("/dev/shm") {
        found.extend(entries.flatten().map(|e| e.path().display().to_string()));
    }
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    found.extend(sockets.lines().filter(|l| l.contains("syncline")).map(str::to_owned));
    found
}

#[test]
fn b12_kill_9() {
    run(&KILL);
}

#[test]
fn b02_sigstop() {
    run(&STOP);
}

#[test]
fn early_exit() {
    run(&EXIT);
}

#[test]
fn b04_panic() {
    run(&PANIC);
}

#[test]
fn b01_b54_another_count() {
    run(&COUNT);
}

#[test]
fn b57_another_dtype() {
    run(&DTYPE);
}

#[test]
fn another_op() {
    run(&OP);
}

#[test]
fn another_collective() {
    run(&KIND);
}

//! The launcher as a library.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use syncline_launch::{Job, JobEnd, LaunchError, Output, RankStatus, Report, RunningJob, Stream};

use crate::support::{Notes, is_alive};

fn sh(script: &str, world_size: u32) -> Job {
    Job::new("sh", world_size).args(["-c", script]).output(Output::Discard)
}

fn pids(job: &RunningJob) -> Vec<Pid> {
    job.pids().iter().map(|pid| Pid::from_raw(*pid as i32).unwrap()).collect()
}

#[test]
fn lines_and_exits_are_reported_in_order() {
    let (reports, reported) = mpsc::channel();
    let script = "echo a; printf 'b\\377' ; echo c >&2; exit $((RANK * 3))";
    let outcome = sh(&format!("[ $RANK = 0 ] || sleep 0.3; {script}"), 2)
        .output(Output::Report(Box::new(move |report| reports.send(report).unwrap())))
        .start()
        .unwrap()
        .wait();
    let reports: Vec<_> = reported.into_iter().collect();
    for rank in 0..2 {
        let lines = |wanted: Stream| {
            let bytes = reports.iter().filter_map(move |report| match report {
                Report::Line { rank: r, stream, bytes } if *r == rank && *stream == wanted => {
                    Some(bytes.as_slice())
                }
                _ => None,
            });
            bytes.collect::<Vec<_>>()
        };
        assert_eq!(lines(Stream::Stdout), [b"a".as_slice(), b"b\xff"]);
        assert_eq!(lines(Stream::Stderr), [b"c".as_slice()]);
        let is_of_rank = |report: &&Report| match report {
            Report::Exit(exit) => exit.rank == rank,
            Report::Line { rank: r, .. } => *r == rank,
        };
        let last = reports.iter().rfind(is_of_rank).unwrap();
        assert!(matches!(last, Report::Exit(exit) if *exit == outcome.ranks[rank as usize]));
    }
    let failed = outcome.ranks[1];
    assert_eq!(failed.status, RankStatus::Code(3));
    assert_eq!(outcome.end, JobEnd::Failed(failed));
    assert_eq!(outcome.exit_code(), 3);
    assert!(outcome.output_complete);
}

#[test]
fn stop_and_kill_end_a_job() {
    let job = sh("sleep 50", 2).start().unwrap();
    let ranks = pids(&job);
    assert!(ranks.iter().all(|pid| is_alive(*pid)));
    job.stop();
    let outcome = job.wait();
    assert_eq!(outcome.end, JobEnd::Stopped);
    assert!(matches!(outcome.ranks[0].status, RankStatus::Signal { signal: 15, .. }));
    assert!(!ranks.iter().any(|pid| is_alive(*pid)));

    let job = sh("sleep 50", 2).grace(Duration::from_secs(40)).start().unwrap();
    job.kill();
    let outcome = job.wait();
    assert!(matches!(outcome.ranks[1].status, RankStatus::Signal { signal: 9, .. }));
}

#[test]
fn dropping_a_job_kills_it() {
    let job = sh("trap '' TERM; while :; do sleep 1; done", 3).start().unwrap();
    let ranks = pids(&job);
    let dropped = Instant::now();
    drop(job);
    assert!(!ranks.iter().any(|pid| is_alive(*pid)));
    assert!(dropped.elapsed() < Duration::from_secs(10), "{:?}", dropped.elapsed());
}

#[test]
fn ranks_outlive_the_thread_that_asked_for_them() {
    let notes = Notes::new();
    let script = format!("{}sleep 0.7; note done$RANK yes", notes.prelude());
    let job = std::thread::spawn(move || sh(&script, 2).start().unwrap()).join().unwrap();
    assert!(job.wait().is_success());
    assert_eq!(notes.wait("done1"), "yes");
}

#[test]
fn a_panic_in_the_report_stops_the_job_and_comes_out() {
    let job = sh("echo x; sleep 50", 2)
        .output(Output::Report(Box::new(|_| panic!("no more of this"))))
        .start()
        .unwrap();
    let ranks = pids(&job);
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.wait()));
    assert_eq!(waited.unwrap_err().downcast_ref(), Some(&"no more of this"));
    assert!(!ranks.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn a_blocked_report_holds_up_no_end() {
    let (release, blocked) = mpsc::channel::<()>();
    let job = sh("echo x; sleep 50", 1)
        .output(Output::Report(Box::new(move |_| {
            let _ = blocked.recv();
        })))
        .start()
        .unwrap();
    let ranks = pids(&job);
    std::thread::sleep(Duration::from_millis(200));
    job.stop();
    let outcome = job.wait();
    assert_eq!(outcome.end, JobEnd::Stopped);
    assert!(!outcome.output_complete);
    assert!(!is_alive(ranks[0]));
    drop(release);
}

#[test]
fn settings_that_make_no_sense_are_typed_errors() {
    let problem = |job: Job| match job.start() {
        Err(LaunchError::InvalidJob { problem }) => problem,
        other => panic!("{other:?}"),
    };
    assert!(problem(sh("true", 0)).contains("0 ranks asked for"));
    assert!(problem(sh("true", 1025)).contains("1 to 1024"));
    assert!(problem(sh("true", 1).env("WORLD_SIZE", "2")).contains("WORLD_SIZE"));
    assert!(problem(sh("true", 1).env("A\0B", "2")).contains("cannot be set"));
    assert!(problem(sh("true", 1).output(Output::Inherit).log_dir("x")).contains("log files"));
    let missing = Job::new("syncline-no-such-program", 2).start();
    assert!(matches!(missing, Err(LaunchError::NotFound { .. })), "{missing:?}");
}

#[test]
fn one_process_can_run_many_jobs() {
    let jobs: Vec<_> = (0..4).map(|n| sh(&format!("exit {n}"), 3).start().unwrap()).collect();
    let codes: Vec<_> = jobs.into_iter().map(|job| job.wait().exit_code()).collect();
    assert_eq!(codes, [0, 1, 2, 3]);
}

//! Signals to the launcher, and what becomes of every process of the job.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    Escaped, Launcher, Notes, assert_ends, is_alive, run, script, stdout, wait_for,
};

/// What the launcher promises after Ctrl-C or SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Starts ranks that say their pid and then do `work`, and waits until all have said it.
fn start(notes: &Notes, args: &[&str], rank_count: u32, work: &str) -> (Launcher, Vec<Pid>) {
    let count = rank_count.to_string();
    let args = [&["-n", count.as_str()], args].concat();
    let ranks = format!("{}{work}", notes.prelude());
    let launcher = Launcher::start(&mut script(&args, &ranks));
    let pids = (0..rank_count).map(|rank| notes.wait_pid(&format!("pid{rank}"))).collect();
    (launcher, pids)
}

#[track_caller]
fn assert_gone(pids: &[Pid]) {
    let alive: Vec<_> = pids.iter().copied().filter(|pid| is_alive(*pid)).collect();
    // A test that fails leaves no process behind either.
    let _ended: Vec<_> = alive.iter().copied().map(Escaped).collect();
    assert!(alive.is_empty(), "still alive: {alive:?}");
}

/// Signals the launcher, and checks that all ends in time with `code`.
#[track_caller]
fn assert_ends_in_time(launcher: Launcher, pids: &[Pid], signal: Signal, code: i32) -> String {
    let signalled = Instant::now();
    launcher.signal(signal);
    let output = launcher.output();
    let elapsed = signalled.elapsed();
    assert_gone(pids);
    assert_ends(&output, code, "syncline run: SIG");
    assert!(elapsed < END_LIMIT, "took {elapsed:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn interrupts_are_passed_on_as_they_are() {
    for (signal, name, code) in
        [(Signal::INT, "INT", 130), (Signal::TERM, "TERM", 143), (Signal::HUP, "HUP", 129)]
    {
        let notes = Notes::new();
        let work = format!(
            "trap 'note got$RANK {name}; exit 0' {name}; note pid$RANK $$; \
             while :; do sleep 0.1; done"
        );
        let (launcher, pids) = start(&notes, &[], 3, &work);
        let said = assert_ends_in_time(launcher, &pids, signal, code);
        assert!(said.contains(&format!("SIG{name} after")), "{said}");
        for rank in 0..3 {
            assert_eq!(notes.wait(&format!("got{rank}")), name);
        }
    }
}

#[test]
fn ranks_deaf_to_everything_are_killed_in_time() {
    let notes = Notes::new();
    let work = "trap '' INT TERM HUP; note pid$RANK $$; while :; do sleep 1; done";
    let (launcher, pids) = start(&notes, &[], 3, work);
    let said = assert_ends_in_time(launcher, &pids, Signal::INT, 130);
    assert!(said.contains("3 ranks did not end when told to and were killed"), "{said}");
}

#[test]
fn ranks_deaf_to_ctrl_c_get_sigterm_before_they_are_killed() {
    let notes = Notes::new();
    let work = "trap '' INT; trap 'note got$RANK TERM; exit 0' TERM; note pid$RANK $$; \
                while :; do sleep 0.1; done";
    let (launcher, pids) = start(&notes, &[], 2, work);
    let said = assert_ends_in_time(launcher, &pids, Signal::INT, 130);
    assert!(!said.contains("killed"), "{said}");
    assert_eq!((notes.wait("got0"), notes.wait("got1")), ("TERM".into(), "TERM".into()));
}

#[test]
fn a_second_ctrl_c_kills_at_once() {
    let notes = Notes::new();
    let work = "trap '' INT TERM; note pid$RANK $$; while :; do sleep 1; done";
    let (launcher, pids) = start(&notes, &["--interrupt-grace-ms", "40000"], 2, work);
    launcher.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(400));
    assert!(pids.iter().all(|pid| is_alive(*pid)), "the first only asks");
    assert_ends_in_time(launcher, &pids, Signal::INT, 130);
}

#[test]
fn a_doubled_signal_is_one_wish() {
    let notes = Notes::new();
    let work = "trap 'sleep 0.5; note got$RANK 1; exit 0' TERM; note pid$RANK $$; \
                while :; do sleep 0.1; done";
    let (launcher, _) = start(&notes, &["--interrupt-grace-ms", "20000"], 1, work);
    // As coreutils' `timeout` does it: once to the process, once to its group.
    launcher.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(10));
    launcher.signal(Signal::TERM);
    assert_eq!(launcher.status().code(), Some(143));
    assert_eq!(notes.wait("got0"), "1");
}

#[test]
fn ranks_die_with_a_launcher_that_is_killed() {
    let notes = Notes::new();
    let work = "trap '' INT TERM HUP; note pid$RANK $$; while :; do sleep 0.2; done";
    let (launcher, pids) = start(&notes, &[], 4, work);
    let _ended_by_all_means = pids.iter().copied().map(Escaped).collect::<Vec<_>>();
    let killed = Instant::now();
    launcher.signal(Signal::KILL);
    wait_for("end of the ranks", || pids.iter().all(|pid| !is_alive(*pid)).then_some(()));
    assert!(killed.elapsed() < END_LIMIT, "{:?}", killed.elapsed());
}

#[test]
fn a_stopped_rank_is_ended_too() {
    let notes = Notes::new();
    let work = "trap 'note got$RANK TERM; exit 0' TERM; note pid$RANK $$; \
                while :; do sleep 0.1; done";
    let (launcher, pids) = start(&notes, &[], 2, work);
    kill_process(pids[1], Signal::STOP).unwrap();
    kill_process(pids[0], Signal::KILL).unwrap();
    assert_ends(&launcher.output(), 137, "rank 0 of 2 failed first");
    assert_gone(&pids);
    assert_eq!(notes.wait("got1"), "TERM");
}

#[test]
fn what_a_rank_leaves_behind_ends_with_it() {
    let notes = Notes::new();
    // One stray ends when told to, the other has to be killed.
    let work = "note pid$RANK $$; sleep 300 & note mild$RANK $!; \
                sh -c 'trap \"\" TERM; while :; do sleep 1; done' & note deaf$RANK $!; exit 0";
    let started = Instant::now();
    let (launcher, mut pids) = start(&notes, &["--grace-ms", "300"], 2, work);
    for rank in 0..2 {
        pids.push(notes.wait_pid(&format!("mild{rank}")));
        pids.push(notes.wait_pid(&format!("deaf{rank}")));
    }
    assert_ends(&launcher.output(), 0, "");
    assert_gone(&pids);
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

#[test]
fn grandchildren_end_on_ctrl_c() {
    let notes = Notes::new();
    let work = "sh -c 'trap \"\" INT; while :; do sleep 1; done' & note child$RANK $!; \
                note pid$RANK $$; wait";
    let (launcher, mut pids) = start(&notes, &[], 2, work);
    pids.extend([notes.wait_pid("child0"), notes.wait_pid("child1")]);
    assert_ends_in_time(launcher, &pids, Signal::INT, 130);
}

#[test]
fn a_daemon_that_keeps_the_output_open_delays_nobody() {
    let notes = Notes::new();
    // setsid leaves the group, so the launcher must let it live, but not wait for its pipe.
    let work = notes.prelude()
        + "setsid sh -c 'echo $$ > DIR/pid.new; mv DIR/pid.new DIR/pid; exec sleep 300' & \
           while [ ! -e DIR/pid ]; do sleep 0.02; done; echo done";
    let work = work.replace("DIR", &notes.path().display().to_string());
    let started = Instant::now();
    let launcher = Launcher::start(&mut script(&["-n", "1"], &work));
    let daemon = Escaped(notes.wait_pid("pid"));
    // Its exit is looked at alone: the daemon holds the test's own pipe as little as any other.
    let output = launcher.output();
    assert_ends(&output, 0, "");
    assert_eq!(stdout(&output), "done\n");
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert!(is_alive(daemon.0), "it was none of the launcher's business");
}

#[test]
fn user_signals_are_passed_on() {
    let notes = Notes::new();
    let work = "trap 'note got$RANK USR1; exit 0' USR1; note pid$RANK $$; \
                while :; do sleep 0.1; done";
    let (launcher, _) = start(&notes, &[], 2, work);
    launcher.signal(Signal::USR1);
    assert_ends(&launcher.output(), 0, "");
    assert_eq!((notes.wait("got0"), notes.wait("got1")), ("USR1".into(), "USR1".into()));
}

#[test]
fn ctrl_z_stops_and_continues_all_ranks() {
    let notes = Notes::new();
    let (launcher, pids) = start(&notes, &[], 2, "note pid$RANK $$; exec sleep 300");
    let is_stopped = |pid: Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    };
    launcher.signal(Signal::TSTP);
    let all = [pids[0], pids[1], launcher.pid];
    wait_for("stop", || all.iter().all(|pid| is_stopped(*pid)).then_some(()));
    launcher.signal(Signal::CONT);
    wait_for("continuation", || all.iter().all(|pid| !is_stopped(*pid)).then_some(()));
    assert_ends_in_time(launcher, &pids, Signal::INT, 130);
}

/// The same command with a signal ignored from the start; that is inherited.
fn ignoring(signal: &str, inner: &Command) -> Command {
    let mut command = Command::new("env");
    command.arg(format!("--ignore-signal={signal}"));
    command.arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn nohup_is_honoured() {
    let notes = Notes::new();
    let work = notes.prelude() + "note pid$RANK $$; sleep 0.7; echo survived";
    let launcher = Launcher::start(&mut ignoring("HUP", &script(&["-n", "1"], &work)));
    notes.wait_pid("pid0");
    launcher.signal(Signal::HUP);
    let output = launcher.output();
    assert_ends(&output, 0, "");
    assert_eq!(stdout(&output), "survived\n");
}

#[test]
fn a_parent_that_ignores_sigchld_costs_no_exit_code() {
    let output = run(&mut ignoring("CHLD", &script(&["-n", "2"], "exit $((RANK * 5))")));
    assert_ends(&output, 5, "rank 1 of 2 failed first");
}

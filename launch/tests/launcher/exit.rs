//! Exit codes, and the line that explains them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::support::{Notes, assert_ends, run, script, stderr, syncline_run};

#[test]
fn success_is_silent() {
    let output = run(&mut script(&["-n", "3"], "true"));
    assert_ends(&output, 0, "");
    assert_eq!(stderr(&output), "");
}

#[test]
fn the_first_rank_that_fails_decides_and_ends_the_others() {
    let started = Instant::now();
    let ranks = "case $RANK in 2) sleep 0.3; exit 7;; 1) sleep 20; exit 9;; *) sleep 50;; esac";
    let output = run(&mut script(&["-n", "4"], ranks));
    assert_ends(&output, 7, "syncline run: rank 2 of 4 failed first, after 0.");
    assert!(stderr(&output).trim_end().ends_with("exit code 7"), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1);
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

#[test]
fn what_others_do_when_told_to_end_does_not_count() {
    let ranks = "trap 'exit 5' TERM; [ $RANK = 1 ] && { sleep 0.3; exit 3; }; sleep 30 & wait";
    assert_ends(&run(&mut script(&["-n", "3"], ranks)), 3, "rank 1 of 3 failed first");
}

#[test]
fn a_rank_that_ends_well_ends_nobody() {
    let notes = Notes::new();
    let ranks = notes.prelude() + "[ $RANK = 0 ] || { sleep 0.5; note done$RANK yes; }";
    assert_ends(&run(&mut script(&["-n", "3"], &ranks)), 0, "");
    assert_eq!(notes.wait("done1"), "yes");
    assert_eq!(notes.wait("done2"), "yes");
}

#[test]
fn death_by_signal_is_128_and_the_signal() {
    let output = run(&mut script(&["-n", "2"], "[ $RANK = 0 ] && kill -KILL $$; sleep 30"));
    assert_ends(&output, 137, "rank 0 of 2 failed first");
    assert_ends(&output, 137, "SIGKILL (signal 9), not sent by the launcher");
    let output = run(&mut script(&["-n", "2"], "[ $RANK = 1 ] && kill -ABRT $$; sleep 30"));
    assert_ends(&output, 134, "rank 1 of 2 failed first");
    assert_ends(&output, 134, "SIGABRT (signal 6");
}

#[test]
fn a_stubborn_rank_is_killed_after_its_grace() {
    let notes = Notes::new();
    // The shell itself stays: a signal that it ignores would be ignored by its children too.
    let ranks = notes.prelude()
        + "if [ $RANK = 0 ]; then trap '' TERM; note deaf 1; while :; do sleep 1; done; fi; \
           while [ ! -e DIR/deaf ]; do sleep 0.05; done; exit 4";
    let ranks = ranks.replace("DIR", &notes.path().display().to_string());
    let started = Instant::now();
    let output = run(&mut script(&["-n", "2", "--grace-ms", "400"], &ranks));
    assert_ends(&output, 4, "1 rank did not end when told to and was killed");
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_millis(400), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
}

#[test]
fn programs_that_cannot_run_are_named() {
    let output = run(&mut syncline_run(&["-n", "2", "syncline-no-such-program"]));
    assert_ends(&output, 127, "program 'syncline-no-such-program' not found in PATH");
    let notes = Notes::new();
    let path = notes.file("program");
    let name = path.to_str().unwrap();
    assert_ends(&run(&mut syncline_run(&["-n", "2", name])), 127, "not found");
    fs::write(&path, "#!/no/such/interpreter\n").unwrap();
    assert_ends(&run(&mut syncline_run(&["-n", "2", name])), 126, "Permission denied");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(&mut syncline_run(&["-n", "2", name]));
    assert_ends(&output, 126, "is the interpreter in its first line?");
    assert!(stderr(&output).contains(name));
    assert_ends(&run(&mut syncline_run(&["-n", "1", "/"])), 126, "cannot run '/'");
}

#[test]
fn nonsense_is_a_usage_error() {
    let cases: [(&[&str], &str); 10] = [
        (&["-n", "0", "true"], "0 is not in 1..=1024"),
        (&["-n", "1025", "true"], "1025 is not in 1..=1024"),
        (&["-n", "-3", "true"], "'-3'"),
        (&["true"], "how many ranks?"),
        (&["-n", "2"], "<PROGRAM>"),
        (&["-n", "1", "--timeout", "0", "true"], "seconds above 0"),
        (&["-n", "1", "-x", "RANK=3", "true"], "RANK is set by the launcher"),
        (&["-n", "1", "-x", "=3", "true"], "cannot be set"),
        (&["-n", "1", "-x", "SYNCLINE_SURELY_UNSET", "true"], "it is not set here"),
        (&["-n", "1", "--raw-output", "--log-dir", "x", "true"], "cannot be used with"),
    ];
    for (args, words) in cases {
        assert_ends(&run(&mut syncline_run(args)), 2, words);
    }
}

#[test]
fn a_log_folder_that_cannot_be_is_named() {
    let args = ["-n", "1", "--log-dir", "/proc/no/such", "true"];
    assert_ends(&run(&mut syncline_run(&args)), 1, "cannot write the log /proc/no/such");
}

#[test]
fn the_time_limit_ends_everything() {
    let started = Instant::now();
    let output = run(&mut script(&["-n", "2", "--timeout", "0.5"], "sleep 50"));
    assert_ends(&output, 124, "out of time after 0.");
    assert!(started.elapsed() < Duration::from_secs(10));
}

//! Hostfiles and host lists, as far as the command line shows them.

use std::fs;

use crate::support::{Notes, assert_ends, run, stdout, syncline_run};

/// Runs ranks that print their local numbers, on the hosts of this file.
fn with_hostfile(text: &str, args: &[&str]) -> (std::process::Output, String) {
    let notes = Notes::new();
    let path = notes.file("hosts");
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    let mut command = syncline_run(&["--hostfile", &path]);
    command.args(args).args(["sh", "-c", "echo $LOCAL_RANK/$LOCAL_WORLD_SIZE"]);
    (run(&mut command), path)
}

#[test]
fn slots_say_how_many_ranks() {
    let (output, _) = with_hostfile("# mine\nlocalhost slots=2\n127.0.0.1:1\n", &[]);
    assert_ends(&output, 0, "");
    let text = stdout(&output);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0/3", "1/3", "2/3"]);
}

#[test]
fn errors_name_file_and_line() {
    let (output, path) = with_hostfile("localhost slots=2\n\nother slots=many\n", &["-n", "1"]);
    assert_ends(&output, 2, &format!("{path}:3: slots must be a whole number"));
    let (output, path) = with_hostfile("localhost\nnode9 slots=2\n", &["-n", "2"]);
    assert_ends(&output, 2, &format!("{path}:2: rank 1 would run on 'node9'"));
    assert_ends(&output, 2, "over ssh is not supported yet");
    let (output, path) = with_hostfile("#\n", &["-n", "2"]);
    assert_ends(&output, 2, &format!("{path} names no host"));
    let output = run(&mut syncline_run(&["-n", "1", "--hostfile", "/no/such/file", "true"]));
    assert_ends(&output, 2, "cannot read hostfile /no/such/file");
}

#[test]
fn a_remote_host_that_gets_no_rank_is_no_error() {
    let (output, _) = with_hostfile("localhost slots=2\nnode9 slots=2\n", &["-n", "2"]);
    assert_ends(&output, 0, "");
}

#[test]
fn oversubscription_must_be_asked_for() {
    let (output, _) = with_hostfile("localhost slots=2\n", &["-n", "3"]);
    assert_ends(&output, 2, "3 ranks asked for, but the hosts have 2 slots in all");
    let (output, _) = with_hostfile("localhost slots=2\n", &["-n", "3", "--oversubscribe"]);
    assert_ends(&output, 0, "");
    assert_eq!(stdout(&output).lines().count(), 3);
}

#[test]
fn lists_and_ranks_per_host_work() {
    let output = run(&mut syncline_run(&["-H", "localhost:2", "echo", "x"]));
    assert_eq!(stdout(&output), "x\nx\n");
    let output = run(&mut syncline_run(&["--nproc-per-node", "3", "echo", "x"]));
    assert_eq!(stdout(&output), "x\nx\nx\n");
    let args = ["-np", "2", "--nproc-per-node", "1", "-H", "localhost:8", "true"];
    assert_ends(&run(&mut syncline_run(&args)), 2, "have 1 slots");
    assert_ends(&run(&mut syncline_run(&["-H", "a:b", "true"])), 2, "-H entry 1: slots must be");
    let big = run(&mut syncline_run(&["-H", "localhost:5000", "true"]));
    assert_ends(&big, 2, "5000 ranks asked for; a host runs 1 to 1024");
}

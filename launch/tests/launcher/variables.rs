//! What ranks find in their environment.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::process::Output;
use std::thread;
use std::time::Duration;

use crate::support::{Launcher, Notes, assert_ends, run, script, stdout, syncline_run};

/// Name and value of each variable, by rank, from ranks that ran `env` with their output tagged.
fn variables(output: &Output) -> BTreeMap<u32, BTreeMap<String, String>> {
    let mut ranks: BTreeMap<u32, BTreeMap<String, String>> = BTreeMap::new();
    for line in stdout(output).lines() {
        let (tag, variable) = line.split_once(' ').unwrap();
        let rank = tag.trim_matches(['[', ']']).parse().unwrap();
        if let Some((name, value)) = variable.split_once('=') {
            ranks.entry(rank).or_default().insert(name.to_owned(), value.to_owned());
        }
    }
    ranks
}

#[test]
fn every_rank_finds_the_contract() {
    let run_env = || variables(&run(&mut syncline_run(&["-n", "3", "--tag-output", "env"])));
    let ranks = run_env();
    assert_eq!(ranks.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
    let first = &ranks[&0];
    for (rank, variables) in &ranks {
        assert_eq!(variables["RANK"], rank.to_string());
        assert_eq!(variables["LOCAL_RANK"], rank.to_string());
        assert_eq!(variables["WORLD_SIZE"], "3");
        assert_eq!(variables["LOCAL_WORLD_SIZE"], "3");
        assert_eq!(variables["MASTER_ADDR"], "127.0.0.1");
        assert_eq!(variables["SYNCLINE_LAUNCHER"], "1");
        for shared in ["MASTER_PORT", "SYNCLINE_JOB_SECRET"] {
            assert_eq!(variables[shared], first[shared], "the same for all ranks");
        }
    }
    let secret = &first["SYNCLINE_JOB_SECRET"];
    assert!(secret.len() == 64 && secret.bytes().all(|b| b.is_ascii_hexdigit()), "{secret}");
    TcpListener::bind(("127.0.0.1", first["MASTER_PORT"].parse().unwrap())).unwrap();
    assert_ne!(secret, &run_env()[&0]["SYNCLINE_JOB_SECRET"], "new for every job");
}

/// What a process was started with. It reads as nothing for a moment while it becomes another.
fn command_line(pid: i32) -> Vec<u8> {
    for _ in 0..1000 {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        if !line.is_empty() {
            return line;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("process {pid} has no command line");
}

#[test]
fn the_secret_is_on_no_command_line() {
    let notes = Notes::new();
    let ranks = notes.prelude() + "note secret $SYNCLINE_JOB_SECRET; note pid $$; exec sleep 30";
    let launcher = Launcher::start(&mut script(&["-n", "1"], &ranks));
    let secret = notes.wait("secret");
    assert_eq!(secret.len(), 64);
    for pid in [notes.wait_pid("pid"), launcher.pid] {
        let line = command_line(pid.as_raw_nonzero().get());
        assert!(!String::from_utf8_lossy(&line).contains(&secret));
    }
}

#[test]
fn users_set_and_pass_on_variables() {
    let args = ["-n", "2", "--tag-output", "-x", "A=b=c", "--env", "PASSED", "-x", "EMPTY=", "env"];
    let output = run(syncline_run(&args).env("PASSED", "on").env("KEPT", "too"));
    for variables in variables(&output).values() {
        assert_eq!(variables["A"], "b=c");
        assert_eq!(variables["PASSED"], "on");
        assert_eq!(variables["EMPTY"], "");
        assert_eq!(variables["KEPT"], "too");
    }
}

#[test]
fn an_outer_launcher_does_not_leak_in() {
    let outer = [("RANK", "7"), ("WORLD_SIZE", "9"), ("MASTER_PORT", "1"), ("LOCAL_RANK", "5")];
    let output = run(syncline_run(&["-n", "1", "--tag-output", "env"]).envs(outer));
    let variables = &variables(&output)[&0];
    assert_eq!(variables["RANK"], "0");
    assert_eq!(variables["WORLD_SIZE"], "1");
    assert_eq!(variables["LOCAL_RANK"], "0");
    assert_ne!(variables["MASTER_PORT"], "1");
}

#[test]
fn master_address_and_port_can_be_given() {
    let args = ["-n", "1", "--tag-output", "--master-addr", "192.0.2.1", "--master-port", "4711"];
    let output = run(syncline_run(&args).arg("env"));
    let variables = &variables(&output)[&0];
    assert_eq!(variables["MASTER_ADDR"], "192.0.2.1");
    assert_eq!(variables["MASTER_PORT"], "4711");
    let output = run(&mut syncline_run(&["-n", "1", "--master-addr", "192.0.2.1", "true"]));
    assert_ends(&output, 1, "give --master-port as well");
}

#[test]
fn a_wrapping_command_knows_the_rank() {
    let wrap = "env WRAPPED=host{rank}";
    let args = ["-n", "2", "--tag-output", "--wrap", wrap, "env"];
    let ranks = variables(&run(&mut syncline_run(&args)));
    for rank in [0, 1] {
        assert_eq!(ranks[&rank]["WRAPPED"], format!("host{rank}"));
        assert_eq!(ranks[&rank]["RANK"], rank.to_string());
    }
}

#[test]
fn a_wrapping_command_that_is_not_there_is_named() {
    let output = run(&mut syncline_run(&["-n", "2", "--wrap", "surely-not-there {rank}", "env"]));
    assert_eq!(output.status.code(), Some(127));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("surely-not-there"), "{text}");
}

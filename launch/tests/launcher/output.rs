//! What ranks print, and where it goes.

use std::fs;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::support::{Launcher, Notes, assert_ends, run, script, stderr, stdout, syncline_run};

/// Prints 400 numbered lines of many lengths on each stream, the longest far beyond what a pipe
/// takes at once, each made of one letter of its rank and stream.
const CHATTER: &str = r#"awk -v rank=$RANK 'BEGIN {
    for (i = 0; i < 400; i++) {
        length_wanted = (i == 200) ? 300000 : (i * 37) % 9000;
        for (stream = 0; stream < 2; stream++) {
            letter = substr("abcdefgh", rank * 2 + stream + 1, 1);
            text = letter;
            while (length(text) < length_wanted) text = text text;
            line = rank " " stream " " i " " text "\n";
            if (stream == 0) printf "%s", line; else printf "%s", line > "/dev/stderr";
        }
    }
}'"#;

/// Checks that `text` is exactly the lines of [`CHATTER`] of three ranks, mixed in any order but
/// each whole, with `tag(rank)` before them.
#[track_caller]
fn assert_whole_lines(text: &str, tag: impl Fn(usize) -> String) {
    let mut next = [[0; 2]; 3];
    for line in text.lines() {
        let rank_at = line.find(|c: char| c.is_ascii_digit()).unwrap();
        let rank: usize = line[rank_at..=rank_at].parse().unwrap();
        let line = line.strip_prefix(&tag(rank)).unwrap();
        let mut words = line.split(' ');
        let mut number = || words.next().unwrap().parse::<usize>().unwrap();
        let (line_rank, stream, index) = (number(), number(), number());
        assert_eq!(line_rank, rank);
        assert_eq!(index, next[rank][stream], "in order, none lost");
        next[rank][stream] += 1;
        let letter = b"abcdefgh"[rank * 2 + stream];
        let letters = words.next().unwrap();
        assert!(letters.bytes().all(|b| b == letter), "a line is torn");
        let length_wanted = if index == 200 { 300_000 } else { index * 37 % 9000 };
        assert!(letters.len() >= length_wanted);
        assert_eq!(words.next(), None);
    }
    assert_eq!(next, [[400; 2]; 3]);
}

/// Runs [`CHATTER`] with both streams of the launcher in one pipe.
fn chatter(args: &[&str]) -> String {
    let inner = script(args, CHATTER);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(inner.get_program()).args(inner.get_args());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let output = run(&mut command);
    assert_eq!(output.status.code(), Some(0));
    stdout(&output)
}

#[test]
fn tagged_lines_stay_whole_across_ranks_and_streams() {
    assert_whole_lines(&chatter(&["-n", "3", "--tag-output"]), |rank| format!("[{rank}] "));
}

#[test]
fn plain_lines_stay_whole_too() {
    assert_whole_lines(&chatter(&["-n", "3"]), |_| String::new());
}

#[test]
fn an_unfinished_last_line_is_not_lost_and_not_mixed() {
    let output = run(&mut script(&["-n", "4", "--tag-output"], "printf 'x\ny%s' $RANK"));
    let text = stdout(&output);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    let expected = ["[0] x", "[0] y0", "[1] x", "[1] y1", "[2] x", "[2] y2", "[3] x", "[3] y3"];
    assert_eq!(lines, expected);
    assert!(text.ends_with('\n'));
}

#[test]
fn any_bytes_pass_unharmed() {
    let notes = Notes::new();
    let path = notes.file("bytes");
    // Every pair of byte values, so also invalid UTF-8, zeros, and both line ends.
    let bytes: Vec<u8> = (0..=255u8).flat_map(|a| (0..=255u8).flat_map(move |b| [a, b])).collect();
    fs::write(&path, &bytes).unwrap();
    let output = run(&mut syncline_run(&["-n", "1", "cat", path.to_str().unwrap()]));
    assert!(output.stdout == bytes, "plain output differs");
    let output =
        run(&mut syncline_run(&["-n", "1", "--tag-output", "cat", path.to_str().unwrap()]));
    let mut untagged = Vec::new();
    for line in output.stdout.split_inclusive(|b| *b == b'\n') {
        untagged.extend_from_slice(line.strip_prefix(b"[0] ").unwrap());
    }
    untagged.pop(); // the line end added to the last line
    assert!(untagged == bytes, "tagged output differs");
}

#[test]
fn logs_are_written_besides() {
    let notes = Notes::new();
    let dir = notes.file("new/logs");
    let ranks =
        "echo out $RANK; echo first >&2; echo err $RANK >&2; [ $RANK != 1 ] || exit 6; sleep 9";
    let output = run(&mut script(&["-n", "2", "--log-dir", dir.to_str().unwrap()], ranks));
    let log = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    assert_eq!(log("rank-1.out"), "out 1\n");
    assert_eq!(log("rank-1.err"), "first\nerr 1\n");
    assert!(stdout(&output).contains("out 1\n"));
    let tail = format!("exit code 6; {}/rank-1.err ends with: err 1\n", dir.display());
    assert_ends(&output, 6, &tail);
    assert!(dir.join("rank-0.out").exists() && dir.join("rank-0.err").exists());
}

#[test]
fn a_prompt_shows_before_its_answer() {
    let ranks = "[ $RANK = 0 ] || exit 0; printf 'name? '; read x; echo \"hello $x\"";
    let mut launcher = Launcher::start(script(&["-n", "2"], ranks).stdin(Stdio::piped()));
    let mut prompt = [0; 6];
    launcher.child().stdout.as_mut().unwrap().read_exact(&mut prompt).unwrap();
    assert_eq!(&prompt, b"name? ");
    launcher.child().stdin.take().unwrap().write_all(b"bob\n").unwrap();
    assert_eq!(stdout(&launcher.output()), "hello bob\n");
}

#[test]
fn a_line_in_two_halves_is_waited_for() {
    // Rank 1 has much to say while rank 0 hesitates within a line, longer than a prompt waits.
    let ranks = "if [ $RANK = 0 ]; then printf 'first half, '; sleep 0.5; echo second half; \
                 else sleep 0.3; for i in 1 2 3; do echo other; done; fi";
    let text = stdout(&run(&mut script(&["-n", "2"], ranks)));
    assert!(text.contains("first half, second half\n"), "{text:?}");
    assert_eq!(text.matches("other\n").count(), 3);
}

#[test]
fn a_line_that_is_never_finished_delays_others_not_long() {
    let ranks = "[ $RANK = 1 ] || { printf never; exec sleep 300; }; sleep 0.3; echo other; exit 3";
    let output = run(&mut script(&["-n", "2"], ranks));
    assert_ends(&output, 3, "rank 1 of 2 failed first");
    let text = stdout(&output);
    assert!(text.contains("never") && text.contains("other\n"), "{text:?}");
}

#[test]
fn only_rank_0_reads_the_input() {
    let mut launcher =
        Launcher::start(syncline_run(&["-n", "3", "--tag-output", "cat"]).stdin(Stdio::piped()));
    launcher.child().stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let output = launcher.output();
    assert_ends(&output, 0, "");
    assert_eq!(stdout(&output), "[0] one\n[0] two\n");
}

#[test]
fn a_terminal_is_read_for_rank_0() {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let other_end = ioctl_tiocgptpeer(&terminal, flags).unwrap();
    let ranks = "[ $RANK = 0 ] || exit 0; test -t 0 && exit 1; cat";
    let launcher = Launcher::start(script(&["-n", "2"], ranks).stdin(other_end));
    // Two lines and the terminal's end-of-file key.
    rustix::io::write(&terminal, b"one\ntwo\n\x04").unwrap();
    let output = launcher.output();
    assert_ends(&output, 0, "");
    assert_eq!(stdout(&output), "one\ntwo\n");
}

#[test]
fn raw_output_is_the_launchers_own() {
    let notes = Notes::new();
    let path = notes.file("out");
    let file = fs::File::create(&path).unwrap();
    let ranks = "readlink /proc/$$/fd/1";
    let output = run(script(&["-n", "2", "--raw-output"], ranks).stdout(file));
    assert_ends(&output, 0, "");
    let name = fs::canonicalize(&path).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, format!("{0}\n{0}\n", name.display()));
}

#[test]
fn ranks_notice_that_the_reader_has_gone() {
    let mut launcher = Launcher::start(&mut syncline_run(&["-n", "2", "yes"]));
    let mut some = [0; 4096];
    let mut pipe = launcher.child().stdout.take().unwrap();
    pipe.read_exact(&mut some).unwrap();
    drop(pipe);
    let output = launcher.output();
    assert_ends(&output, 128 + Signal::PIPE.as_raw(), "SIGPIPE");
}

#[test]
fn a_stuck_reader_delays_no_end() {
    let notes = Notes::new();
    let ranks = notes.prelude() + "note pid$RANK $$; exec yes";
    let launcher = Launcher::start(&mut script(&["-n", "2"], &ranks));
    let pids = [notes.wait_pid("pid0"), notes.wait_pid("pid1")];
    std::thread::sleep(Duration::from_millis(300)); // until the pipes are full
    let signalled = Instant::now();
    launcher.signal(Signal::INT);
    let status = launcher.status();
    assert!(signalled.elapsed() < Duration::from_secs(2), "{:?}", signalled.elapsed());
    assert_eq!(status.code(), Some(130));
    assert!(!pids.into_iter().any(crate::support::is_alive));
}

#[test]
fn a_slow_reader_gets_everything() {
    let mut launcher = Launcher::start(&mut script(&["-n", "2"], "head -c 200000 /dev/zero"));
    // Longer than any bound of the launcher for somebody who wants it to end.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(launcher.child().try_wait().unwrap().is_none());
    let output = launcher.output();
    assert_ends(&output, 0, "");
    assert_eq!(output.stdout.len(), 400_000);
    assert_eq!(stderr(&output), "");
}

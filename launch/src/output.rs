//! Carries what ranks print to where it should go: console, log files, a function.
//!
//! Owns the pipes from the ranks and a thread that reads them. Never splits a line, changes a
//! byte of one, or waits for a rank. May wait for its target: then the ranks' pipes fill up and
//! they wait too, as they would without a launcher. Started by the supervisor, which must never
//! wait itself.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::TryRecvError;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::mailbox::Inbox;
use crate::outcome::RankExit;
use crate::supervise::now;

/// The longest line that stays whole; a longer one is passed on in pieces of this size.
const LINE_BYTES_MAX: usize = 16 << 20;
/// How long untagged text without a line end waits for the rest of its line. Shorter than what a
/// person notices at a prompt, longer than a program takes between two halves of a line.
const PARTIAL_HOLD: Duration = Duration::from_millis(100);
/// How long everybody else then waits for the rest of that line. On a busy machine a program may
/// well be held up between two halves of a line; at a prompt, nothing else has to be said.
const OPEN_LINE_HOLD: Duration = Duration::from_millis(1000);
/// What is read from one pipe after its rank has ended. The largest pipe an ordinary user can
/// have holds this much, so only a process that outlives its rank could write more.
const DRAIN_BYTES_MAX: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;

/// Which of a rank's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
}

/// What a job tells the function given with [`Output::Report`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A rank has ended, and all its lines have been reported.
    Exit(RankExit),
    /// A rank printed a line.
    Line {
        /// The rank.
        rank: u32,
        /// Where it printed.
        stream: Stream,
        /// The line without its end; any bytes, not always UTF-8.
        bytes: Vec<u8>,
    },
}

/// Where a job's output goes. Log files, if asked for, are written besides.
pub enum Output {
    /// Nowhere.
    Discard,
    /// To this process's own standard output and error, in whole lines.
    Forward {
        /// Whether each line starts with `[rank] `. Then every line gets a line end; otherwise
        /// bytes are passed on exactly, and an unfinished line after 0.1 s, for prompts. Others
        /// then wait up to 1 s for its rest.
        tag: bool,
    },
    /// The ranks get this process's own standard output and error, so a terminal stays one and
    /// nothing passes through the launcher. Lines of several ranks may mix. Excludes log files.
    Inherit,
    /// To a function, called on a thread of the job. It may block: the ranks then wait in turn.
    /// If it panics, the job is stopped and [`crate::RunningJob::wait`] panics likewise.
    Report(Box<dyn FnMut(Report) + Send>),
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Discard => f.write_str("Discard"),
            Self::Forward { tag } => f.debug_struct("Forward").field("tag", tag).finish(),
            Self::Inherit => f.write_str("Inherit"),
            Self::Report(_) => f.write_str("Report(..)"),
        }
    }
}

/// What the supervisor tells the output thread.
#[derive(Debug)]
pub(crate) enum Notice {
    /// This rank has ended.
    Exited(RankExit),
    /// All have: deliver what is left in the pipes, then end.
    Finish,
}

/// One pipe from a rank.
#[derive(Debug)]
pub(crate) struct Source {
    rank: u32,
    stream: Stream,
    /// None at the end.
    pipe: Option<File>,
    log: Option<File>,
    lines: LineBuffer,
    read_at: Instant,
}

impl Source {
    pub(crate) fn new(rank: u32, stream: Stream, pipe: OwnedFd, log: Option<File>) -> Self {
        let lines = LineBuffer::default();
        Self { rank, stream, pipe: Some(pipe.into()), log, lines, read_at: now() }
    }
}

/// Starts the thread that reads `sources` until `notices` says to finish. `on_end` is dropped
/// when it ends, by a panic too.
///
/// # Errors
/// The thread cannot be started, or standard output cannot be duplicated.
pub(crate) fn start<T: Send + 'static>(
    sources: Vec<Source>,
    output: Output,
    notices: Inbox<Notice>,
    on_end: T,
) -> io::Result<JoinHandle<()>> {
    let sink = Sink::new(output)?;
    let buffer = vec![0; READ_BYTES];
    let mut collector = Collector { sources, sink, notices, open_line: None, buffer };
    Builder::new().name("syncline-output".to_owned()).spawn(move || {
        let _on_end = on_end;
        collector.run();
    })
}

struct Collector {
    sources: Vec<Source>,
    sink: Sink,
    notices: Inbox<Notice>,
    /// Whose unfinished line stands on the console. Nobody else is read for a while then.
    open_line: Option<(u32, Stream)>,
    buffer: Vec<u8>,
}

impl Collector {
    fn run(&mut self) {
        while !self.is_told_to_finish() {
            for index in self.wait() {
                self.read(index);
            }
            self.release_partials();
        }
        // Whoever has begun a line ends it first.
        let open_line = self.open_line;
        self.sources.sort_by_key(|source| open_line != Some((source.rank, source.stream)));
        for index in 0..self.sources.len() {
            self.drain(index);
            self.close(index);
        }
    }

    /// Takes the supervisor's notices. True also when the supervisor is gone.
    fn is_told_to_finish(&mut self) -> bool {
        self.notices.silence();
        loop {
            match self.notices.take() {
                Ok(None) => return false,
                Ok(Some(Notice::Exited(exit))) => {
                    self.report_exit(exit);
                }
                Ok(Some(Notice::Finish)) | Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => return false,
            }
        }
    }

    /// Reports an exit after everything the rank printed, if exits are of interest.
    fn report_exit(&mut self, exit: RankExit) {
        if !matches!(self.sink, Sink::Report(_)) {
            return;
        }
        for index in 0..self.sources.len() {
            if self.sources[index].rank == exit.rank {
                self.drain(index);
            }
        }
        if let Sink::Report(report) = &mut self.sink {
            report(Report::Exit(exit));
        }
    }

    /// Sleeps until something happens, and returns which sources can be read.
    fn wait(&mut self) -> Vec<usize> {
        self.sources.retain(|source| source.pipe.is_some());
        let owner = self.open_line_owner();
        let is_heard = |index: &usize| owner.is_none_or(|owner| owner == *index);
        let heard: Vec<usize> = (0..self.sources.len()).filter(is_heard).collect();
        let mut fds = vec![PollFd::new(&self.notices, PollFlags::IN)];
        let pipes = heard.iter().filter_map(|index| self.sources[*index].pipe.as_ref());
        fds.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let has_partials = self.sources.iter().any(|source| !source.lines.pending.is_empty());
        let is_timed = owner.is_some() || (has_partials && self.sink.releases_partials());
        let hold = Timespec { tv_sec: 0, tv_nsec: i64::from(PARTIAL_HOLD.subsec_nanos()) };
        // An interrupted poll found nothing; the loop comes back.
        let _ = poll(&mut fds, is_timed.then_some(&hold));
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = heard.iter().zip(&fds[1..]).filter(|(_, fd)| is_ready(fd));
        ready.map(|(index, _)| *index).collect()
    }

    /// Who has to finish a line before others may speak, as long as there is hope.
    fn open_line_owner(&mut self) -> Option<usize> {
        let open_line = self.open_line?;
        let is_owner = |source: &Source| {
            open_line == (source.rank, source.stream)
                && now().saturating_duration_since(source.read_at) < OPEN_LINE_HOLD
        };
        let owner = self.sources.iter().position(is_owner);
        if owner.is_none() {
            self.open_line = None;
        }
        owner
    }

    /// Reads once and passes on the lines completed. Returns the byte count, 0 at the end.
    fn read(&mut self, index: usize) -> usize {
        let source = &mut self.sources[index];
        let Some(pipe) = &mut source.pipe else { return 0 };
        let count = match pipe.read(&mut self.buffer) {
            Ok(0) => 0,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return 1,
            Err(_) => 0,
        };
        if count == 0 {
            self.close(index);
            return 0;
        }
        source.read_at = now();
        let bytes = &self.buffer[..count];
        write_log(source, bytes);
        let block = source.lines.take_lines(bytes);
        self.write_block(index, &block);
        // Nobody reads it any more: let the rank know, as it would without a launcher.
        let source = &mut self.sources[index];
        if self.sink.is_closed(source.stream) && source.log.is_none() {
            source.pipe = None;
        }
        count
    }

    /// Reads what is in the pipe now, without waiting for more.
    fn drain(&mut self, index: usize) {
        let mut bytes_left = DRAIN_BYTES_MAX;
        while let Some(pipe) = &self.sources[index].pipe {
            let mut fds = [PollFd::new(pipe, PollFlags::IN)];
            let is_ready = poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n > 0);
            let count = if is_ready { self.read(index) } else { 0 };
            bytes_left = bytes_left.saturating_sub(count);
            if count == 0 || bytes_left == 0 {
                break;
            }
        }
    }

    /// Ends a source: its last line may lack an end, and never gets one.
    fn close(&mut self, index: usize) {
        let source = &mut self.sources[index];
        source.pipe = None;
        let rest = source.lines.take_rest();
        self.write_block(index, &rest);
        if self.open_line == Some((self.sources[index].rank, self.sources[index].stream)) {
            self.open_line = None;
        }
    }

    /// Passes on an unfinished line that has waited long enough, where the sink allows it.
    fn release_partials(&mut self) {
        let now = now();
        for index in 0..self.sources.len() {
            let source = &mut self.sources[index];
            let may_speak = self.open_line.is_none_or(|o| o == (source.rank, source.stream));
            let has_waited = now.saturating_duration_since(source.read_at) >= PARTIAL_HOLD;
            if self.sink.releases_partials() && may_speak && has_waited {
                let rest = source.lines.take_rest();
                self.write_block(index, &rest);
            }
        }
    }

    /// Passes on a source's lines, and notes whether the last one is unfinished.
    fn write_block(&mut self, index: usize, block: &[u8]) {
        let source = &self.sources[index];
        self.sink.write_block(source.rank, source.stream, block);
        if self.sink.releases_partials() && !block.is_empty() {
            let is_open = !block.ends_with(b"\n");
            self.open_line = is_open.then_some((source.rank, source.stream));
        }
    }
}

fn write_log(source: &mut Source, bytes: &[u8]) {
    let Some(log) = &mut source.log else { return };
    if let Err(error) = log.write_all(bytes) {
        let (rank, stream) = (source.rank, source.stream);
        eprintln!("syncline: the log of rank {rank} ({stream:?}) ends here: {error}");
        source.log = None;
    }
}

/// Collects bytes until their line is complete.
#[derive(Debug, Default)]
struct LineBuffer {
    pending: Vec<u8>,
}

impl LineBuffer {
    /// Adds `bytes` and takes out everything up to the last line end.
    fn take_lines(&mut self, bytes: &[u8]) -> Vec<u8> {
        let lines_end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |newline| newline + 1);
        let (complete, rest) = bytes.split_at(lines_end);
        let mut block = Vec::new();
        if !complete.is_empty() {
            block = std::mem::take(&mut self.pending);
            block.extend_from_slice(complete);
        }
        self.pending.extend_from_slice(rest);
        if self.pending.len() > LINE_BYTES_MAX {
            block.append(&mut self.pending);
        }
        block
    }

    /// Takes out the unfinished line.
    fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }
}

/// The target of all lines.
enum Sink {
    /// A console stream is None once its reader has gone.
    Console {
        stdout: Option<File>,
        stderr: Option<File>,
        tag: bool,
    },
    Discard,
    Report(Box<dyn FnMut(Report) + Send>),
}

impl Sink {
    fn new(output: Output) -> io::Result<Self> {
        Ok(match output {
            Output::Discard | Output::Inherit => Self::Discard,
            Output::Forward { tag } => Self::Console {
                // Not through `io::Stdout`: its lock would be held while a write is stuck, and
                // the launcher's own last message would wait for it.
                stdout: Some(io::stdout().as_fd().try_clone_to_owned()?.into()),
                stderr: Some(io::stderr().as_fd().try_clone_to_owned()?.into()),
                tag,
            },
            Output::Report(report) => Self::Report(report),
        })
    }

    /// Passes on whole lines; the last may lack its end.
    fn write_block(&mut self, rank: u32, stream: Stream, block: &[u8]) {
        if block.is_empty() {
            return;
        }
        match self {
            Self::Console { stdout, stderr, tag } => {
                let target = match stream {
                    Stream::Stderr => stderr,
                    Stream::Stdout => stdout,
                };
                let Some(file) = target else { return };
                let written = if *tag {
                    write_all(file, &tagged(rank, block))
                } else {
                    write_all(file, block)
                };
                if written.is_err() {
                    *target = None;
                }
            }
            Self::Discard => {}
            Self::Report(report) => {
                for line in block.split_inclusive(|b| *b == b'\n') {
                    let bytes = line.strip_suffix(b"\n").unwrap_or(line).to_vec();
                    report(Report::Line { rank, stream, bytes });
                }
            }
        }
    }

    /// Whether nobody reads `stream` any more.
    fn is_closed(&self, stream: Stream) -> bool {
        match self {
            Self::Console { stderr: None, .. } => stream == Stream::Stderr,
            Self::Console { stdout: None, .. } => stream == Stream::Stdout,
            _ => false,
        }
    }

    /// Whether unfinished lines may go out: never where that could split a line for good.
    fn releases_partials(&self) -> bool {
        matches!(self, Self::Console { tag: false, .. })
    }
}

/// Every line with its rank before it, and with a line end.
fn tagged(rank: u32, block: &[u8]) -> Vec<u8> {
    let tag = format!("[{rank}] ");
    let mut text = Vec::with_capacity(block.len() + block.len() / 4 + tag.len());
    for line in block.split_inclusive(|b| *b == b'\n') {
        text.extend_from_slice(tag.as_bytes());
        text.extend_from_slice(line);
    }
    if text.last() != Some(&b'\n') {
        text.push(b'\n');
    }
    text
}

/// Writes everything, also to a descriptor that another program made non-blocking: terminals
/// and pipes are shared, and so is that flag.
fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(file, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_however_they_go_in() {
        let text = b"one\ntwo \xff\xfe\n\n a long last line without an end";
        for piece_bytes in 1..text.len() {
            let mut lines = LineBuffer::default();
            let mut out = Vec::new();
            for piece in text.chunks(piece_bytes) {
                let block = lines.take_lines(piece);
                assert!(block.is_empty() || block.ends_with(b"\n"));
                out.extend_from_slice(&block);
            }
            assert!(out.ends_with(b"\n\n"));
            out.extend_from_slice(&lines.take_rest());
            assert_eq!(out, text);
        }
    }

    #[test]
    fn a_line_beyond_the_limit_is_passed_on_in_pieces() {
        let mut lines = LineBuffer::default();
        let piece = vec![b'x'; LINE_BYTES_MAX / 2];
        assert!(lines.take_lines(&piece).is_empty());
        assert!(lines.take_lines(&piece).is_empty());
        assert_eq!(lines.take_lines(b"y").len(), LINE_BYTES_MAX / 2 * 2 + 1);
        assert_eq!(lines.take_lines(b"z\n"), b"z\n");
    }

    #[test]
    fn every_line_is_tagged_and_ended() {
        assert_eq!(tagged(12, b"a\n\nb\xff"), b"[12] a\n[12] \n[12] b\xff\n");
        assert_eq!(tagged(0, b"a\n"), b"[0] a\n");
    }
}

//! Watches a running job and ends it: the one loop that decides who is told to end, and when.
//!
//! Owns the ranks' processes, on a thread of its own that lives as long as they do (see
//! [`crate::spawn`] for why). Waits in one poll for everything that can happen, and for nothing
//! else: never for output, a reader, or a rank without a deadline. Started by [`crate::Job`].

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};

use crate::input::InputPump;
use crate::mailbox::{Inbox, Mail};
use crate::outcome::{JobEnd, Outcome, RankExit, RankStatus};
use crate::output::Notice;
use crate::process::RankProcess;
use crate::signal::{SignalWatch, ends_job};

/// How often ranks are looked at that cannot wake the poll.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often a launcher in the background looks whether it came to the foreground.
const FOREGROUND_EVERY: Duration = Duration::from_millis(250);
/// A second signal to end within this time is not a second wish: `timeout` and some shells
/// signal both the launcher and its group.
const REPEAT_AFTER: Duration = Duration::from_millis(100);
/// How long ranks may take to vanish after SIGKILL.
const VANISH: Duration = Duration::from_secs(2);
/// How long output may still be written out when the job did not end by itself.
const OUTPUT_HOLD: Duration = Duration::from_millis(300);

/// The present. The only place of this package that asks the clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Time limits of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For the whole job.
    pub(crate) timeout: Option<Duration>,
    /// From the request to end until SIGKILL, after a failure or the time limit.
    pub(crate) grace: Duration,
    /// The same after a signal to the launcher.
    pub(crate) interrupt_grace: Duration,
}

/// What the job's owner and its output thread tell the supervisor.
#[derive(Debug)]
pub(crate) enum Order {
    /// Kill all ranks now.
    Kill,
    /// The output thread has ended.
    OutputEnded,
    /// Tell all ranks to end.
    Stop,
}

/// Sends [`Order::OutputEnded`] when it is dropped.
#[derive(Debug)]
pub(crate) struct OutputEnd(pub(crate) Mail<Order>);

impl Drop for OutputEnd {
    fn drop(&mut self) {
        self.0.send(Order::OutputEnded);
    }
}

/// The output thread, as the supervisor sees it.
#[derive(Debug)]
pub(crate) struct OutputThread {
    pub(crate) notices: Mail<Notice>,
    pub(crate) thread: JoinHandle<()>,
}

/// A job under way. Whoever starts it fills in the public parts.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) ranks: Vec<RankProcess>,
    pub(crate) input: Option<InputPump>,
    pub(crate) output: Option<OutputThread>,
    orders: Inbox<Order>,
    signals: Option<SignalWatch>,
    limits: Limits,
    started: Instant,
    ending: Option<Ending>,
    output_ended: bool,
}

/// A job that has been told to end.
#[derive(Debug)]
pub(crate) struct Ending {
    end: JobEnd,
    /// When the last signal to the launcher came.
    signalled_at: Option<Instant>,
    /// When ranks that did not heed SIGINT or SIGHUP get SIGTERM.
    term_at: Option<Instant>,
    kill_at: Instant,
    killed_count: Option<u32>,
}

impl Supervisor {
    /// A job without ranks, from whose beginning all times count.
    pub(crate) fn new(orders: Inbox<Order>, signals: Option<SignalWatch>, limits: Limits) -> Self {
        Self {
            ranks: Vec::new(),
            input: None,
            output: None,
            orders,
            signals,
            limits,
            started: now(),
            ending: None,
            output_ended: false,
        }
    }

    /// Kills the ranks started so far, because the job cannot be completed.
    pub(crate) fn abandon(mut self) {
        self.end(JobEnd::Stopped, Signal::KILL, Duration::ZERO);
        // Its outcome is of no interest: the caller has the error.
        let _ = self.run();
    }

    /// Runs until no process of the job is left and its output is delivered. Returns the panic
    /// of the output thread, if it had one.
    pub(crate) fn run(mut self) -> (Outcome, std::thread::Result<()>) {
        // A signal during the start may have left the job without any rank.
        self.turn();
        while !self.ranks.iter().all(RankProcess::is_gone) {
            self.wait(self.next_deadline());
            self.turn();
            self.reap();
            self.check_timeout();
            self.enforce_deadlines();
        }
        let elapsed = now().saturating_duration_since(self.started);
        self.finish_output();
        let output = match self.output.take() {
            Some(output) if self.output_ended => output.thread.join(),
            // Stuck in a write; it ends with the process, or when its reader reads on.
            _ => Ok(()),
        };
        (self.outcome(elapsed), output)
    }

    /// Tells every rank to end with `request`, and kills the rest when `grace` is over. Only the
    /// first end of a job counts; later ones change nothing.
    fn end(&mut self, end: JobEnd, request: Signal, grace: Duration) {
        if self.ending.is_some() {
            return;
        }
        let now = now();
        tracing::debug!(?end, ?request, ?grace, "job ends");
        self.broadcast(request);
        self.ending = Some(Ending {
            end,
            signalled_at: matches!(end, JobEnd::Interrupted { .. }).then_some(now),
            term_at: (request != Signal::TERM).then_some(now + grace * 2 / 3),
            kill_at: now + grace,
            killed_count: None,
        });
    }

    /// A stopped process acts on a signal only when it is continued.
    fn broadcast(&self, signal: Signal) {
        for rank in &self.ranks {
            rank.signal(signal);
        }
        for rank in &self.ranks {
            rank.signal(Signal::CONT);
        }
    }

    /// Sleeps until something happens or a deadline passes; copies input if there is some.
    fn wait(&mut self, deadline: Option<Instant>) {
        let timeout = deadline.map(|at| timespec(at.saturating_duration_since(now())));
        let mut fds = vec![PollFd::new(&self.orders, PollFlags::IN)];
        if let Some(signals) = &self.signals {
            fds.push(PollFd::new(signals, PollFlags::IN));
        }
        let input = self.input.as_ref().and_then(InputPump::poll_for);
        let input_index = input.map(|(fd, flags)| {
            fds.push(PollFd::from_borrowed_fd(fd, flags));
            fds.len() - 1
        });
        let pidfds = self.ranks.iter().filter_map(RankProcess::pidfd);
        fds.extend(pidfds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // An interrupted poll found nothing; the loop comes back.
        let found = poll(&mut fds, timeout.as_ref()).is_ok();
        let has_input = found && input_index.is_some_and(|i| !fds[i].revents().is_empty());
        if let Some(input) = self.input.as_mut().filter(|_| has_input) {
            input.pump();
        }
        self.input.take_if(|input| input.is_finished());
    }

    fn next_deadline(&self) -> Option<Instant> {
        let job = match &self.ending {
            None => self.timeout_at(),
            Some(Ending { killed_count: Some(_), kill_at, .. }) => Some(*kill_at + VANISH),
            Some(Ending { term_at: Some(term_at), .. }) => Some(*term_at),
            Some(ending) => Some(ending.kill_at),
        };
        let needs_looking = self.ranks.iter().any(RankProcess::needs_looking);
        let look = needs_looking.then(|| now() + LOOK_EVERY);
        let foreground = self.input.is_some().then(|| now() + FOREGROUND_EVERY);
        [job, look, foreground].into_iter().flatten().min()
    }

    /// Does what others ask for: the owner, the output thread, whoever sends signals.
    fn turn(&mut self) {
        self.orders.silence();
        // The supervisor's own output thread holds a sender, so this cannot be disconnected
        // while it matters; a job without one ends by itself or by its owner.
        while let Ok(Some(order)) = self.orders.take() {
            match order {
                Order::Kill => {
                    self.end(JobEnd::Stopped, Signal::KILL, Duration::ZERO);
                    self.kill_soon();
                }
                Order::OutputEnded => {
                    self.output_ended = true;
                    // Before the ranks have ended this is a panic: nobody listens any more.
                    if !self.ranks.iter().all(RankProcess::is_gone) {
                        self.end(JobEnd::Stopped, Signal::TERM, self.limits.grace);
                    }
                }
                Order::Stop => self.end(JobEnd::Stopped, Signal::TERM, self.limits.grace),
            }
        }
        for signal in self.signals.as_ref().map(SignalWatch::take).unwrap_or_default() {
            self.handle_signal(signal);
        }
    }

    fn handle_signal(&mut self, signal: Signal) {
        tracing::debug!(?signal, "launcher got a signal");
        if ends_job(signal) {
            let now = now();
            match &mut self.ending {
                None => {
                    let end = JobEnd::Interrupted { signal: signal.as_raw() };
                    self.end(end, signal, self.limits.interrupt_grace);
                }
                Some(Ending { signalled_at: Some(at), .. }) if now < *at + REPEAT_AFTER => {}
                Some(ending) => {
                    ending.signalled_at = Some(now);
                    self.kill_soon();
                }
            }
            return;
        }
        if signal == Signal::TSTP {
            for rank in &self.ranks {
                rank.signal(Signal::STOP);
            }
            // The launcher stops too, so that the shell gives the prompt back.
            let _ = kill_process(getpid(), Signal::STOP);
            return;
        }
        for rank in &self.ranks {
            if signal == Signal::CONT { rank.signal(signal) } else { rank.signal_leader(signal) }
        }
    }

    fn kill_soon(&mut self) {
        if let Some(ending) = &mut self.ending {
            ending.kill_at = ending.kill_at.min(now());
            ending.term_at = None;
        }
    }

    /// Finds ranks that have ended. The first that failed ends the job.
    fn reap(&mut self) {
        let (now, started, grace) = (now(), self.started, self.limits.grace);
        let reap = |rank: &mut RankProcess| rank.reap(now, started, grace);
        let exits: Vec<RankExit> = self.ranks.iter_mut().filter_map(reap).collect();
        for exit in &exits {
            tracing::debug!(?exit, "rank ended");
            if let Some(output) = &self.output {
                output.notices.send(Notice::Exited(*exit));
            }
        }
        if let Some(first) = first_failure(&exits) {
            self.end(JobEnd::Failed(first), Signal::TERM, grace);
        }
    }

    fn check_timeout(&mut self) {
        if self.timeout_at().is_some_and(|at| now() >= at) {
            self.end(JobEnd::TimedOut, Signal::TERM, self.limits.grace);
        }
    }

    /// None without a limit, and for one too far away to be represented.
    fn timeout_at(&self) -> Option<Instant> {
        let timeout = self.limits.timeout.filter(|_| self.ending.is_none())?;
        self.started.checked_add(timeout)
    }

    fn enforce_deadlines(&mut self) {
        let now = now();
        let kill_by = self.ending.as_ref().map(|ending| ending.kill_at);
        for rank in &mut self.ranks {
            rank.tend_strays(now, kill_by);
        }
        let Some(ending) = &mut self.ending else { return };
        if ending.killed_count.is_none() && now >= ending.kill_at {
            let running = self.ranks.iter().filter(|rank| rank.is_running());
            ending.killed_count =
                Some(running.map(|rank| rank.signal(Signal::KILL)).count() as u32);
        } else if ending.killed_count.is_some() && now >= ending.kill_at + VANISH {
            for rank in &mut self.ranks {
                rank.give_up(now, self.started);
            }
        } else if ending.term_at.is_some_and(|at| now >= at) {
            ending.term_at = None;
            self.broadcast(Signal::TERM);
        }
    }

    /// Waits until the output is delivered: without limit if the job ended by itself, since its
    /// reader may take its time, and not long once somebody wants it to end.
    fn finish_output(&mut self) {
        self.input = None;
        let Some(output) = &self.output else {
            self.output_ended = true;
            return;
        };
        output.notices.send(Notice::Finish);
        let mut give_up_at = None;
        while !self.output_ended {
            if self.must_hurry() {
                let give_up_at = *give_up_at.get_or_insert_with(|| now() + OUTPUT_HOLD);
                if now() >= give_up_at {
                    break;
                }
            }
            self.wait(give_up_at.or_else(|| self.timeout_at()));
            self.turn();
            self.check_timeout();
        }
    }

    /// Whether somebody wants the job to end, as opposed to the ranks having ended it.
    fn must_hurry(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| {
            ending.signalled_at.is_some() || !matches!(ending.end, JobEnd::Failed(_))
        })
    }

    fn outcome(&self, elapsed: Duration) -> Outcome {
        let ending = self.ending.as_ref();
        Outcome {
            end: ending.map_or(JobEnd::Finished, |ending| ending.end),
            ranks: self.ranks.iter().filter_map(RankProcess::exit).collect(),
            elapsed,
            killed_count: ending.and_then(|ending| ending.killed_count).unwrap_or(0),
            output_complete: self.output_ended,
        }
    }
}

/// The failure among ranks that were found ended together, by the rule of [`JobEnd::Failed`].
fn first_failure(exits: &[RankExit]) -> Option<RankExit> {
    let failed = exits.iter().filter(|exit| !exit.status.is_success());
    failed.min_by_key(|exit| (matches!(exit.status, RankStatus::Code(_)), exit.rank)).copied()
}

fn timespec(duration: Duration) -> Timespec {
    // Durations beyond the kernel's range are as good as a day: the loop comes back.
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: 86_400, tv_nsec: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_found_with_exits_is_the_first_failure() {
        let exit = |rank, status| RankExit { rank, pid: 1, status, after: Duration::ZERO };
        let crash = RankStatus::Signal { signal: 9, core_dumped: false };
        let exits = [
            exit(0, RankStatus::Code(0)),
            exit(1, RankStatus::Code(4)),
            exit(2, RankStatus::Code(3)),
            exit(3, crash),
        ];
        assert_eq!(first_failure(&exits).unwrap().rank, 3);
        assert_eq!(first_failure(&exits[..3]).unwrap().rank, 1);
        assert_eq!(first_failure(&exits[..1]), None);
    }
}

//! A rank's control thread: one socket around `syncline_proto::membership::Member`.

use super::framed::Framed;
use super::inbox::Inbox;
use crate::error::{Error, ErrorKind, Result};
use crate::time::now;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use syncline_proto::fault::Fault;
use syncline_proto::id::Rank;
use syncline_proto::machine::Machine;
use syncline_proto::membership::{Member, MemberInput, MemberOutput, Pace};
use syncline_proto::time::Instant;

const HUB: Token = Token(0);
const WAKER: Token = Token(1);

/// How long the last words may take to leave a full socket.
const LAST_WORDS_TIME: Duration = Duration::from_secs(1);

/// How long after a deadline the hub may take to say who missed it.
const HUB_WORD_TIME: Duration = Duration::from_millis(700);

/// This rank's hold on the control plane.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    rank: Rank,
    inbox: Arc<Inbox>,
    commands: Sender<MemberInput>,
    is_over: Arc<AtomicBool>,
    waker: Arc<Waker>,
    calls: Arc<AtomicU64>,
    next_round: AtomicU32,
}

impl ControlPlane {
    /// Starts the thread on a stream that the hub has let in.
    pub(crate) fn start(rank: Rank, stream: std::net::TcpStream, pace: Pace) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        let poll = Poll::new()?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut stream, HUB, interest)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (commands, orders) = channel();
        let inbox = Arc::new(Inbox::default());
        let calls = Arc::new(AtomicU64::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = Thread {
            poll,
            framed: Some(Framed::new(stream)),
            member: Member::new(rank, pace, now()),
            orders,
            inbox: Arc::clone(&inbox),
            calls: Arc::clone(&calls),
            is_over: Arc::clone(&is_over),
            _waker: Arc::clone(&waker),
        };
        std::thread::Builder::new().name("syncline-member".into()).spawn(move || thread.run())?;
        Ok(Self { rank, inbox, commands, is_over, waker, calls, next_round: AtomicU32::new(0) })
    }

    /// What was heard.
    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Counts a collective call as begun.
    pub(crate) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Every rank's bytes, by rank. All ranks call this the same number of times.
    ///
    /// # Errors
    /// The job's fault, or [`ErrorKind::Timeout`].
    pub(crate) fn gather(
        &self,
        what: &str,
        bytes: Vec<u8>,
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>> {
        let round = self.next_round.fetch_add(1, Ordering::Relaxed);
        self.command(MemberInput::Publish { round, bytes });
        // The hub's word, which names who is missing, comes just after the deadline.
        self.inbox.wait_gathered(round, deadline + HUB_WORD_TIME).map_err(|fault| match fault {
            Some(fault) => Error::from_fault(self.rank, None, fault).context(what),
            None => Error::new(ErrorKind::Timeout, "a rank did not come in time").context(what),
        })
    }

    /// Announces a fault to all ranks.
    pub(crate) fn report(&self, fault: &Fault) {
        self.command(MemberInput::Report(fault.clone()));
    }

    /// Says goodbye.
    pub(crate) fn leave(&self, panicking: bool) {
        self.command(MemberInput::Leave { panicking });
    }

    fn command(&self, input: MemberInput) {
        // A thread that is gone has put its fault into the inbox.
        let _ = self.commands.send(input);
        let _ = self.waker.wake();
    }

    /// Hangs up, as soon as what was said has left: the hub waits for it when the job ends.
    pub(crate) fn close(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = self.waker.wake();
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.close();
    }
}

struct Thread {
    poll: Poll,
    framed: Option<Framed>,
    member: Member,
    orders: Receiver<MemberInput>,
    inbox: Arc<Inbox>,
    calls: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    /// A waker that is dropped takes with it what it has just said.
    _waker: Arc<Waker>,
}

impl Thread {
    /// Until the hub is gone, or the communicator and all it had to say.
    fn run(mut self) {
        let mut events = Events::with_capacity(8);
        let mut over_at = None;
        loop {
            // Looked at before the orders, so that none that came earlier is left.
            let is_over = self.is_over.load(Ordering::SeqCst);
            self.take_orders();
            self.member.handle_input(now(), MemberInput::Calls(self.calls.load(Ordering::Relaxed)));
            self.listen();
            self.member.handle_timeout(now());
            self.act();
            let Some(framed) = &mut self.framed else { return };
            if let Err(error) = framed.flush() {
                self.lose(&error);
            }
            if is_over {
                let until = *over_at.get_or_insert_with(|| now() + LAST_WORDS_TIME);
                let is_flushed = self.framed.as_ref().is_none_or(Framed::is_flushed);
                if is_flushed || now() >= until {
                    return;
                }
            }
            let wake_at = self.member.poll_timeout().into_iter().chain(over_at).min();
            let wait = wake_at.map(|at| at.since(now()));
            match self.poll.poll(&mut events, Some(wait.unwrap_or(Duration::from_secs(1)))) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return self.lose(&e),
                _ => {}
            }
        }
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            self.member.handle_input(now(), order);
        }
    }

    fn listen(&mut self) {
        let Some(framed) = &mut self.framed else { return };
        let mut messages = Vec::new();
        let end = framed.read(&mut messages);
        for message in messages {
            self.member.handle_input(now(), MemberInput::Message(message));
        }
        if let Err(error) = end {
            self.lose(&error);
        }
    }

    fn lose(&mut self, error: &io::Error) {
        self.framed = None;
        let detail = error.to_string();
        self.member.handle_input(now(), MemberInput::HubClosed { detail });
        self.act();
    }

    fn act(&mut self) {
        while let Some(output) = self.member.poll_output() {
            match output {
                MemberOutput::AllLeft => self.inbox.put_all_left(),
                MemberOutput::Confirmed => self.inbox.put_confirmed(),
                MemberOutput::Fault(fault) => self.inbox.put_fault(fault),
                MemberOutput::Gathered { round, blobs } => self.inbox.put_gathered(round, blobs),
                MemberOutput::Left(rank) => self.inbox.put_left(rank),
                MemberOutput::Send(message) => {
                    if let Some(framed) = &mut self.framed
                        && let Err(error) = framed.queue(&message)
                    {
                        tracing::warn!("control message not sent: {error}");
                    }
                }
                MemberOutput::Table(table) => self.inbox.put_table(table),
            }
        }
    }
}

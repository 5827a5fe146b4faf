//! The hub's thread: sockets around `syncline_proto::membership::Hub`.

use super::framed::Framed;
use super::handshake::{Hello, Purpose, admit};
use crate::config::JobSecret;
use crate::time::now;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use syncline_proto::id::Rank;
use syncline_proto::machine::Machine;
use syncline_proto::membership::{Hub, HubInput, HubOutput, Pace};
use syncline_proto::time::Instant;

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);
/// Strangers being listened to at once; more wait in the backlog.
const HANDSHAKES_MAX: u32 = 64;
/// How long one stranger may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// How long the last messages may take to leave after the job's end.
const CLOSING_TIME: Duration = Duration::from_secs(1);

/// The hub of this job, running until every rank has left or is gone.
#[derive(Debug)]
pub(crate) struct HubThread {
    thread: Option<JoinHandle<()>>,
}

impl HubThread {
    /// Starts on `listener`.
    pub(crate) fn start(
        listener: std::net::TcpListener,
        world_size: u32,
        secret: JobSecret,
        agreement: String,
        pace: Pace,
        join_deadline: Instant,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (sender, joined) = channel();
        let desk = Desk {
            secret,
            agreement,
            taken: Arc::new(Mutex::new(vec![false; world_size as usize])),
            busy: Arc::new(AtomicU32::new(0)),
            sender,
            waker,
        };
        let server = Server {
            poll,
            listener,
            hub: Hub::new(world_size, pace, now(), join_deadline),
            members: BTreeMap::new(),
            desk,
            joined,
            closing: None,
        };
        let thread =
            std::thread::Builder::new().name("syncline-hub".into()).spawn(move || server.run())?;
        Ok(Self { thread: Some(thread) })
    }

    /// Waits for the thread, which ends by itself soon after the last rank has left.
    pub(crate) fn join(&mut self, deadline: Instant) {
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() && now() < deadline {
            std::thread::park_timeout(Duration::from_millis(2));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

struct Server {
    poll: Poll,
    listener: TcpListener,
    hub: Hub,
    members: BTreeMap<Rank, Framed>,
    desk: Desk,
    joined: Receiver<(Rank, TcpStream)>,
    closing: Option<Instant>,
}

impl Server {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while self.closing.is_none_or(|deadline| now() < deadline && !self.members.is_empty()) {
            let wake_at = self.hub.poll_timeout().into_iter().chain(self.closing).min();
            let wait = wake_at.map_or(Duration::from_secs(1), |at| at.since(now()));
            match self.poll.poll(&mut events, Some(wait)) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return,
                _ => {}
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => self.seat(),
                    Token(rank) => self.listen_to(Rank::try_from(rank).unwrap_or(Rank::MAX)),
                }
            }
            self.hub.handle_timeout(now());
            self.speak();
        }
    }

    fn accept(&mut self) {
        while self.desk.busy.load(Ordering::Relaxed) < HANDSHAKES_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => self.desk.receive(stream.into()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // The stranger gave up, or descriptors ran out: the next event tries again.
                Err(_) => return,
            }
        }
    }

    /// Gives the ranks that were let in their seats.
    fn seat(&mut self) {
        while let Ok((rank, mut stream)) = self.joined.try_recv() {
            let token = Token(rank as usize);
            let interest = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(&mut stream, token, interest).is_err() {
                continue;
            }
            self.members.insert(rank, Framed::new(stream));
            self.hub.handle_input(now(), HubInput::Joined { rank });
            self.listen_to(rank);
        }
        self.accept();
    }

    fn listen_to(&mut self, rank: Rank) {
        let Some(framed) = self.members.get_mut(&rank) else { return };
        let mut messages = Vec::new();
        let end = framed.read(&mut messages).and_then(|()| framed.flush());
        for message in messages {
            self.hub.handle_input(now(), HubInput::Message { rank, message });
        }
        if let Err(error) = end {
            self.close(rank, &error);
        }
    }

    fn close(&mut self, rank: Rank, error: &io::Error) {
        if let Some(mut framed) = self.members.remove(&rank) {
            let _ = self.poll.registry().deregister(&mut framed.stream);
            self.hub.handle_input(now(), HubInput::Closed { rank, detail: error.to_string() });
        }
    }

    fn speak(&mut self) {
        while let Some(output) = self.hub.poll_output() {
            match output {
                HubOutput::Close => self.closing = Some(now() + CLOSING_TIME),
                HubOutput::Send { rank, message } => {
                    let Some(framed) = self.members.get_mut(&rank) else { continue };
                    if let Err(error) = framed.queue(&message).and_then(|()| framed.flush()) {
                        self.close(rank, &error);
                    }
                }
            }
        }
    }
}

/// Where strangers prove who they are, each on a thread of its own.
#[derive(Clone)]
struct Desk {
    secret: JobSecret,
    agreement: String,
    taken: Arc<Mutex<Vec<bool>>>,
    busy: Arc<AtomicU32>,
    sender: Sender<(Rank, TcpStream)>,
    waker: Arc<Waker>,
}

impl Desk {
    fn receive(&self, stream: std::net::TcpStream) {
        let desk = self.clone();
        desk.busy.fetch_add(1, Ordering::Relaxed);
        let spawned = std::thread::Builder::new().name("syncline-admit".into()).spawn(move || {
            if let Some(member) = desk.admit(stream) {
                let _ = desk.sender.send(member);
            }
            desk.busy.fetch_sub(1, Ordering::Relaxed);
            let _ = desk.waker.wake();
        });
        if spawned.is_err() {
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn admit(&self, mut stream: std::net::TcpStream) -> Option<(Rank, TcpStream)> {
        stream.set_nonblocking(false).ok()?;
        stream.set_nodelay(true).ok()?;
        let deadline = now() + HANDSHAKE_TIME;
        let admitted = admit(&mut stream, &self.secret, deadline, |hello| self.judge(hello));
        let hello = admitted.inspect_err(|e| tracing::debug!("connection not let in: {e}")).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some((hello.rank, TcpStream::from_std(stream)))
    }

    fn judge(&self, hello: &Hello) -> Result<(), String> {
        if hello.purpose != Purpose::Control {
            return Err("this port is the rendezvous".into());
        }
        if hello.agreement != self.agreement {
            let (ours, theirs) = (&self.agreement, &hello.agreement);
            return Err(format!(
                "settings differ: rank 0 has {ours}; rank {} has {theirs}",
                hello.rank
            ));
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(hello.rank as usize) {
            None => Err(format!("rank {} does not lie in the world", hello.rank)),
            Some(true) => Err(format!("rank {} has joined already", hello.rank)),
            Some(seat) => {
                *seat = true;
                Ok(())
            }
        }
    }
}

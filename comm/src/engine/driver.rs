//! Who drives the engine: the thread that waits, else a background thread.
//!
//! A hand-off between threads costs tens of microseconds, so the waiting thread takes the engine
//! and steps it itself. The background thread steps only while started operations are in flight
//! and nobody waits. Whoever sleeps inside the engine holds its lock; others ring its bell to get
//! it.

use super::slice::Short;
use super::wait::{Pause, Spinning, Wait};
use super::{Counters, Done, Engine, Launch, Outcome};
use crate::bell;
use crate::time::now;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::Duration;
use syncline_proto::fault::Fault;
use syncline_proto::time::Instant;

/// Looks that take some microseconds.
const LOOKS: u32 = 200;

/// How a waiting thread waits before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Patience {
    /// Looks at a lane for a call that may end at once, before it counts as in flight.
    pub(crate) looks: u32,
    /// Most time spent spinning: what a sleep that ends at once costs, more or less.
    pub(crate) spin_max: Duration,
    /// Then fruitless steps with a yield after each.
    pub(crate) yields: u32,
}

impl Patience {
    /// For so many ranks on this host: spinning pays only while everybody has a core.
    pub(crate) fn for_local_ranks(ranks: u32) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        if ranks as usize <= cores {
            Self { looks: LOOKS, spin_max: Duration::from_micros(200), yields: 8 }
        } else {
            Self { looks: 1, spin_max: Duration::ZERO, yields: 40 }
        }
    }
}

/// The engine, and whose turn it is.
#[derive(Debug)]
pub(crate) struct Driver {
    engine: Mutex<Engine>,
    bell: Arc<OwnedFd>,
    patience: Patience,
    spinning: Spinning,
    /// Threads that want the lock while somebody may sleep with it.
    knocking: AtomicU32,
    /// Threads waiting for an operation's end.
    waiting: AtomicU32,
    /// Told when an operation may have ended, for waiters that do not drive.
    ended: Condvar,
    ended_lock: Mutex<()>,
    /// The background thread, once there is one.
    background: Mutex<Option<Thread>>,
    closing: AtomicBool,
}

impl Driver {
    pub(crate) fn new(engine: Engine, patience: Patience) -> Arc<Self> {
        Arc::new(Self {
            bell: Arc::clone(engine.sleeper.bell()),
            engine: Mutex::new(engine),
            patience,
            spinning: Spinning::new(patience.spin_max),
            knocking: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            ended: Condvar::new(),
            ended_lock: Mutex::new(()),
            background: Mutex::new(None),
            closing: AtomicBool::new(false),
        })
    }

    /// The engine, as soon as whoever has it lets go.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        match self.engine.try_lock() {
            Ok(engine) => return engine,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        self.knocking.fetch_add(1, Ordering::SeqCst);
        bell::ring(&*self.bell);
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        self.knocking.fetch_sub(1, Ordering::SeqCst);
        engine
    }

    /// Carries out an operation whose launch is made under the lock, so that its sequence number
    /// and its posting are one act.
    pub(crate) fn run(&self, make: impl FnOnce(&mut Engine) -> Launch) -> Outcome {
        // From here to the end of the wait the caller's memory is lent: leave only when home.
        // Declared before the lock, so that unwinding lets the lock go first.
        let _home = CancelOnPanic(self);
        let mut engine = self.lock();
        let launch = make(&mut engine);
        let is_wanted = self.knocking.load(Ordering::Relaxed) > 0;
        let looks = if is_wanted { 0 } else { self.patience.looks };
        let done = match engine.run(launch, looks) {
            Ok(outcome) => return outcome,
            Err(done) => done,
        };
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.drive(engine, &[&done]);
        self.wait_for_end(&[&done]);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.hand_over();
        done.take()
    }

    /// Starts an operation and returns; a background thread carries it on.
    pub(crate) fn start(self: &Arc<Self>, make: impl FnOnce(&mut Engine) -> Launch) -> Arc<Done> {
        let done = {
            let mut engine = self.lock();
            let launch = make(&mut engine);
            let done = engine.start(launch);
            engine.step();
            done
        };
        if !done.is_over() {
            self.wake_background();
        }
        done
    }

    /// Waits until one of `ends` is over.
    pub(crate) fn wait_any(&self, ends: &[&Arc<Done>]) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if self.knocking.load(Ordering::SeqCst) == 0 {
            bell::ring(&*self.bell);
        }
        self.wait_for_end(ends);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.hand_over();
    }

    /// The first fault, if the job has met one.
    pub(crate) fn fault(&self) -> Option<Arc<Fault>> {
        self.lock().fault().cloned()
    }

    /// What this rank has moved.
    pub(crate) fn counters(&self) -> Counters {
        self.lock().counters()
    }

    /// Steps until all that was sent has left this process, or the deadline. Whether it has.
    pub(crate) fn flush(&self, deadline: Instant) -> bool {
        let mut engine = self.lock();
        loop {
            if engine.fault().is_some() {
                return false;
            }
            if engine.is_idle() && engine.is_flushed() {
                return true;
            }
            if now() >= deadline {
                return false;
            }
            if !engine.step() {
                std::thread::yield_now();
            }
        }
    }

    /// The background thread ends as soon as it looks.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        bell::ring(&*self.bell);
        if let Some(thread) = &*self.background.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }

    /// Drives until one of `ends` is over or somebody else wants the engine.
    fn drive(&self, mut engine: MutexGuard<'_, Engine>, ends: &[&Arc<Done>]) {
        let mut wait = Wait::default();
        // From its first sleep on, so that waits that end soon do not pay for it.
        let mut short = None;
        while !ends.iter().any(|done| done.is_over()) {
            if self.knocking.load(Ordering::Relaxed) > 0 {
                break;
            }
            if engine.step() {
                self.spinning.learn(std::mem::take(&mut wait));
                continue;
            }
            match wait.next(self.spinning.limit(), self.patience.yields) {
                Pause::Spin => std::hint::spin_loop(),
                Pause::Yield => std::thread::yield_now(),
                Pause::Sleep => {
                    short.get_or_insert_with(Short::new);
                    engine.sleep();
                }
            }
        }
        drop(engine);
        if self.waiting.load(Ordering::SeqCst) > 1 {
            let _guard = self.ended_lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.ended.notify_all();
        }
    }

    fn wait_for_end(&self, ends: &[&Arc<Done>]) {
        while !ends.iter().any(|done| done.is_over()) {
            if self.knocking.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
                continue;
            }
            match self.engine.try_lock() {
                Ok(engine) => self.drive(engine, ends),
                Err(TryLockError::Poisoned(poisoned)) => self.drive(poisoned.into_inner(), ends),
                Err(TryLockError::WouldBlock) => {
                    // Another thread drives, and tells when it stops; the limit is for the case
                    // that it told just before we listened.
                    let guard = self.ended_lock.lock().unwrap_or_else(PoisonError::into_inner);
                    if !ends.iter().any(|done| done.is_over()) {
                        let _ = self.ended.wait_timeout(guard, Duration::from_micros(500));
                    }
                }
            }
        }
    }

    /// This thread stops waiting: started operations are the background thread's again.
    fn hand_over(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return;
        }
        if let Some(thread) = &*self.background.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }

    fn wake_background(self: &Arc<Self>) {
        let mut background = self.background.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = &*background {
            thread.unpark();
            return;
        }
        let driver = Arc::clone(self);
        let spawned = std::thread::Builder::new()
            .name("syncline-progress".into())
            .spawn(move || driver.carry_on());
        match spawned {
            Ok(handle) => *background = Some(handle.thread().clone()),
            // Progress then happens only while somebody waits.
            Err(error) => tracing::warn!("no background progress: {error}"),
        }
    }

    /// The background thread.
    fn carry_on(&self) {
        let _short = Short::new();
        while !self.closing.load(Ordering::SeqCst) {
            if self.waiting.load(Ordering::SeqCst) > 0 || self.knocking.load(Ordering::SeqCst) > 0 {
                std::thread::park_timeout(Duration::from_millis(1));
                continue;
            }
            let mut engine = match self.engine.try_lock() {
                Ok(engine) => engine,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    std::thread::park_timeout(Duration::from_micros(200));
                    continue;
                }
            };
            if engine.is_idle() {
                drop(engine);
                std::thread::park();
                continue;
            }
            let mut fruitless = 0;
            while self.waiting.load(Ordering::Relaxed) == 0
                && self.knocking.load(Ordering::Relaxed) == 0
                && !engine.is_idle()
                && !self.closing.load(Ordering::Relaxed)
            {
                if engine.step() {
                    fruitless = 0;
                } else if fruitless < 2 {
                    // The trainer computes on these cores: hardly spin.
                    fruitless += 1;
                    std::thread::yield_now();
                } else {
                    engine.sleep();
                }
            }
        }
    }
}

/// A bug that unwinds out of a blocking call must not leave its memory with the engine.
struct CancelOnPanic<'a>(&'a Driver);

impl Drop for CancelOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let fault = Fault::new(
                syncline_proto::fault::FaultKind::Aborted,
                self.0.lock().rank,
                "the communication engine panicked",
            );
            self.0.lock().fail(Arc::new(fault), true);
        }
    }
}

//! First cause: what ends the job, and in whose words.
//!
//! A broken data connection is only a suspicion at first: the process behind it may have died of
//! another rank's fault, and the hub saw the ends in order. So it waits [`GRACE`] for the hub's
//! word. A rank that left in good order is a fault only once a call is blocked on it.

use crate::control::ControlPlane;
use crate::transport::PeerFailure;
use std::sync::Arc;
use std::time::Duration;
use syncline_proto::fault::{Fault, FaultKind};
use syncline_proto::id::Rank;
use syncline_proto::membership::verdict;
use syncline_proto::time::Instant;

/// How long the hub may take to say what a broken connection means.
const GRACE: Duration = Duration::from_millis(500);
/// How long data of a rank that has left may still be on its way.
const LEFT_GRACE: Duration = Duration::from_millis(1000);

/// How long a call may take to spread its fault before it returns.
const CONFIRM_TIME: Duration = Duration::from_millis(500);

/// Watches for the job's first fault.
#[derive(Debug)]
pub(super) struct Watch {
    rank: Rank,
    control: Option<Arc<ControlPlane>>,
    fault: Option<Arc<Fault>>,
    suspicion: Option<(Instant, PeerFailure)>,
    left: Vec<(Rank, Instant)>,
}

impl Watch {
    pub(super) fn new(rank: Rank, control: Option<Arc<ControlPlane>>) -> Self {
        Self { rank, control, fault: None, suspicion: None, left: Vec::new() }
    }

    pub(super) fn fault(&self) -> Option<&Arc<Fault>> {
        self.fault.as_ref()
    }

    pub(super) fn count_call(&self) {
        if let Some(control) = &self.control {
            control.count_call();
        }
    }

    /// Whether the control plane has said something new. The answer stays yes until
    /// [`Watch::tick`].
    pub(super) fn has_news(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control.inbox().has_news())
    }

    /// A data connection broke. A fault at once if it is the peer's doing.
    pub(super) fn peer_failed(&mut self, now: Instant, failure: PeerFailure) -> Option<Fault> {
        if !failure.is_end {
            let PeerFailure { peer, detail, .. } = failure;
            return Some(Fault::new(FaultKind::Protocol, self.rank, detail).with_culprit(peer));
        }
        if self.suspicion.is_none() && !self.left.iter().any(|(rank, _)| *rank == failure.peer) {
            self.suspicion = Some((now + GRACE, failure));
        }
        None
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let suspicion = self.suspicion.as_ref().map(|(at, _)| *at);
        let left = self.left.iter().map(|(_, at)| *at + LEFT_GRACE);
        let pending = if self.fault.is_some() { None } else { suspicion };
        // A rank that left long ago needs no alarm: every tick looks at it.
        let now = crate::time::now();
        pending.into_iter().chain(left.filter(|at| *at > now)).min()
    }

    /// A fault that is due, and whether other ranks must be told.
    pub(super) fn tick(
        &mut self,
        now: Instant,
        blocked_on: impl FnOnce() -> Vec<Rank>,
    ) -> Option<(Arc<Fault>, bool)> {
        if self.fault.is_some() {
            return None;
        }
        if let Some(control) = &self.control {
            let inbox = control.inbox();
            if inbox.take_news() {
                self.left = inbox.left();
                if let Some(fault) = inbox.fault() {
                    return Some((fault, false));
                }
            }
        }
        let left = &self.left;
        self.suspicion.take_if(|(_, failure)| left.iter().any(|(rank, _)| *rank == failure.peer));
        if let Some((_, failure)) = self.suspicion.take_if(|(at, _)| *at <= now) {
            let fault = Fault::new(FaultKind::PeerLost, self.rank, failure.detail);
            return Some((Arc::new(fault.with_culprit(failure.peer)), true));
        }
        let mut overdue = self.left.iter().filter(|(_, at)| *at + LEFT_GRACE <= now).peekable();
        overdue.peek()?;
        let blocked_on = blocked_on();
        let (rank, _) = overdue.find(|(rank, _)| blocked_on.contains(rank))?;
        let detail = "it has left the job in good order, and a call waits for it";
        let fault = Fault::new(FaultKind::PeerLost, self.rank, detail).with_culprit(*rank);
        Some((Arc::new(fault), true))
    }

    /// Records the first fault; `None` if there was one already. A deadline that passed is told
    /// with who is behind.
    pub(super) fn fail(&mut self, fault: Arc<Fault>, announce: bool) -> Option<Arc<Fault>> {
        if self.fault.is_some() {
            return None;
        }
        let fault = self.with_verdict(fault);
        if announce && let Some(control) = &self.control {
            control.report(&fault);
            // This process may end as soon as its call returns, and with it the news (and, on
            // rank 0, the hub).
            control.inbox().wait_confirmed(crate::time::now() + CONFIRM_TIME);
        }
        self.fault = Some(Arc::clone(&fault));
        Some(fault)
    }

    fn with_verdict(&self, fault: Arc<Fault>) -> Arc<Fault> {
        let Some(control) = &self.control else { return fault };
        if fault.kind != FaultKind::Timeout || fault.detected_by != self.rank {
            return fault;
        }
        let behind = verdict(&control.inbox().table(), self.rank);
        if behind.is_empty() {
            return fault;
        }
        let mut fault = (*fault).clone();
        fault.detail = format!("{}; {behind}", fault.detail);
        Arc::new(fault)
    }
}

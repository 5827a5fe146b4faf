//! What the member thread has heard, where the engine and bootstrap find it.

use crate::time::now;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use syncline_proto::fault::Fault;
use syncline_proto::id::Rank;
use syncline_proto::membership::Standing;
use syncline_proto::time::Instant;

#[derive(Debug, Default)]
struct Heard {
    fault: Option<Arc<Fault>>,
    confirmed: bool,
    gathered: BTreeMap<u32, Vec<Vec<u8>>>,
    left: Vec<(Rank, Instant)>,
    all_left: bool,
    table: Vec<Standing>,
    table_at: Option<Instant>,
}

/// Written by the member thread, read by everybody else.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    heard: Mutex<Heard>,
    changed: Condvar,
    /// Something the engine must look at came since it last looked.
    news: AtomicBool,
    /// Wakes the engine out of its sleep.
    bell: OnceLock<Arc<OwnedFd>>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: impl FnOnce(&mut Heard)) {
        change(&mut self.lock());
        self.news.store(true, Ordering::Release);
        self.changed.notify_all();
        if let Some(bell) = self.bell.get() {
            crate::bell::ring(bell);
        }
    }

    pub(super) fn put_fault(&self, fault: Fault) {
        self.tell(|heard| {
            heard.fault.get_or_insert_with(|| Arc::new(fault));
        });
    }

    pub(super) fn put_confirmed(&self) {
        self.tell(|heard| heard.confirmed = true);
    }

    pub(super) fn put_gathered(&self, round: u32, blobs: Vec<Vec<u8>>) {
        self.tell(|heard| {
            heard.gathered.insert(round, blobs);
        });
    }

    pub(super) fn put_left(&self, rank: Rank) {
        self.tell(|heard| heard.left.push((rank, now())));
    }

    pub(super) fn put_all_left(&self) {
        self.tell(|heard| heard.all_left = true);
    }

    pub(super) fn put_table(&self, table: Vec<Standing>) {
        let mut heard = self.lock();
        heard.table = table;
        heard.table_at = Some(now());
    }

    /// From now on news ring this bell.
    pub(crate) fn set_bell(&self, bell: Arc<OwnedFd>) {
        let _ = self.bell.set(bell);
    }

    /// Whether there is news.
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// Whether there is news; asking takes it.
    pub(crate) fn take_news(&self) -> bool {
        self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::Acquire)
    }

    /// The job's first fault.
    pub(crate) fn fault(&self) -> Option<Arc<Fault>> {
        self.lock().fault.clone()
    }

    /// Ranks that left in good order, and when this rank heard of it.
    pub(crate) fn left(&self) -> Vec<(Rank, Instant)> {
        self.lock().left.clone()
    }

    /// What the hub knew of everybody lately.
    /// Silence since then is the hub's, and so rank 0's.
    pub(crate) fn table(&self) -> Vec<Standing> {
        let heard = self.lock();
        let mut table = heard.table.clone();
        if let (Some(hub), Some(at)) = (table.first_mut(), heard.table_at) {
            let silence = u32::try_from(now().since(at).as_millis()).unwrap_or(u32::MAX);
            hub.age_ms = hub.age_ms.max(silence);
        }
        table
    }

    /// Waits until all have left, or a fault, or the deadline. Whether all have.
    pub(crate) fn wait_all_left(&self, deadline: Instant) -> bool {
        self.wait(deadline, |heard| (heard.all_left || heard.fault.is_some()).then_some(()));
        self.lock().all_left
    }

    /// Waits until the hub has told everybody of the fault, or the deadline.
    pub(crate) fn wait_confirmed(&self, deadline: Instant) {
        self.wait(deadline, |heard| heard.confirmed.then_some(()));
    }

    /// Waits for a gather round. `Err(None)` is the deadline.
    pub(super) fn wait_gathered(
        &self,
        round: u32,
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>, Option<Arc<Fault>>> {
        let found = self.wait(deadline, |heard| match heard.gathered.remove(&round) {
            Some(blobs) => Some(Ok(blobs)),
            None => heard.fault.clone().map(|fault| Err(Some(fault))),
        });
        found.unwrap_or(Err(None))
    }

    fn wait<T>(
        &self,
        deadline: Instant,
        mut look: impl FnMut(&mut Heard) -> Option<T>,
    ) -> Option<T> {
        let mut heard = self.lock();
        loop {
            if let Some(found) = look(&mut heard) {
                return Some(found);
            }
            let left = deadline.since(now());
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(heard, left.min(Duration::from_secs(1)));
            heard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

//! SSP and DSSP at a shard: who leads by too much is answered later.
//!
//! Owns the wait for the slowest; who may go on is [`crate::policy::dssp`]'s. Never holds back a
//! gradient: all are applied at once. Built by [`super::build`].
//!
//! SSP: every shard keeps the bound by its own count of pushes. So a reply of any shard to the
//! c-th push of a worker has at least c - s pushes of everybody in it.
//!
//! DSSP: times of arrival differ between shards, and so would the controller's grants. The shard of
//! rank 0 alone has the controller; the others keep its upper bound s_U, as SSP would. A worker
//! waits for all replies, so it goes on when the controller lets it; and a reply of any shard to
//! its c-th push has at least c - s_U pushes of everybody in it. The parameters of the other shards
//! are as old as the wait for the first one is long.

use std::time::Duration;

use super::{Keeper, Order};
use crate::error::Result;
use crate::policy::dssp::{Dssp, Verdict};

/// Holds replies by the lead of their workers.
#[derive(Debug)]
pub(super) struct Lead {
    policy: Dssp,
    /// What to start again from.
    start: Dssp,
}

impl Lead {
    pub(super) fn new(workers: usize, lower: u64, r_max: u64) -> Self {
        let start = Dssp::new(workers, lower, r_max);
        Self { policy: start.clone(), start }
    }
}

impl Keeper for Lead {
    fn push(&mut self, worker: usize, now: Duration, orders: &mut Vec<Order>) -> Result<()> {
        let pushed = self.policy.push(worker, now)?;
        orders.push(Order::Apply(worker));
        if pushed.verdict == Verdict::Proceed {
            orders.push(Order::Reply(worker));
        }
        orders.extend(pushed.released.into_iter().map(Order::Reply));
        Ok(())
    }

    fn done(&mut self, worker: usize, _: Duration, orders: &mut Vec<Order>) -> Result<()> {
        orders.extend(self.policy.remove(worker)?.into_iter().map(Order::Reply));
        Ok(())
    }

    fn reopen(&mut self) {
        self.policy.clone_from(&self.start);
    }
}

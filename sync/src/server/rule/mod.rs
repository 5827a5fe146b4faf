//! What a shard does with a push: when it is applied, and when it is answered.
//!
//! Owns the decisions, as orders to the shard. Never holds a gradient, sends, or reads a clock: a
//! time comes with each event. Called by the shard, once for each push and each worker that is
//! done, and when a time that the rule named has come.
//!
//! | rule | applied | answered |
//! |---|---|---|
//! | ASP | at once | at once |
//! | SSP, DSSP | at once | when the slowest is near enough, with the parameters of then |
//! | R2SP | at its turn | at its turn |
//! | GBA | with the others of its group | at once |
//!
//! Nobody waits for ever. Under SSP and DSSP the slowest worker that is not done is never held,
//! since its lead is 0: so long as workers push or are done, the slowest moves on, and with it all
//! others. Under R2SP the next in turn is answered when its push is there and the gap is over.
//! Under ASP and GBA nobody is held. This is true of each shard alone, and of all together: a push
//! of the worker that is slowest of all gets its reply from each shard.

mod group;
mod lead;
mod split;
mod turns;

use std::fmt::Debug;
use std::time::Duration;

use super::config::Rule;
use crate::error::Result;
use crate::policy::batch::Batch;

/// What a shard has to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// Apply this worker's push, as one update.
    Apply(usize),
    /// End a group: divide the sum of what was gathered, and apply it as one update. Without a
    /// divisor nothing in it counts, and the parameters stay.
    Close {
        /// Above 0.
        divisor: Option<f64>,
    },
    /// Add this worker's gradient to the sum of its group.
    Gather {
        /// Whose.
        worker: usize,
        /// Times this; 0 to leave it out.
        weight: f64,
    },
    /// Send this worker the parameters as they are now.
    Reply(usize),
}

/// One rule at one shard.
pub trait Keeper: Debug + Send {
    /// A push of a worker that has no other unanswered and is not done.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if it may not push.
    fn push(&mut self, worker: usize, now: Duration, orders: &mut Vec<Order>) -> Result<()>;

    /// A worker pushes no more until [`Self::reopen`].
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if there is no such worker.
    fn done(&mut self, worker: usize, now: Duration, orders: &mut Vec<Order>) -> Result<()>;

    /// The next push of a worker tells how long each of its samples took.
    fn note_speed(&mut self, _worker: usize, _sample_ns: u32) {}

    /// What a worker that is answered now takes next, if the rule has a say in that.
    fn batch(&self, _worker: usize) -> Option<Batch> {
        None
    }

    /// When to call [`Self::tick`], if the shard is to do something then.
    fn due(&self) -> Option<Duration> {
        None
    }

    /// It is `now`.
    fn tick(&mut self, _now: Duration, _orders: &mut Vec<Order>) {}

    /// All workers were done; all may push again.
    fn reopen(&mut self);
}

/// The keeper of `rule` on the shard of `server`, for this many workers, each of which takes
/// `batch` samples where it is left to the rule to divide them otherwise.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) if the settings cannot work.
pub fn build(
    rule: Rule,
    server: u32,
    workers: usize,
    batch: Option<u32>,
) -> Result<Box<dyn Keeper>> {
    // What takes times into account is decided by one shard: workers wait for all replies anyway.
    let is_first = server == 0;
    Ok(match rule {
        Rule::Asp => Box::new(AtOnce),
        Rule::Ssp(ssp) => Box::new(lead::Lead::new(workers, ssp.staleness, 0)),
        Rule::Dssp(dssp) if is_first => Box::new(lead::Lead::new(workers, dssp.lower, dssp.r_max)),
        Rule::Dssp(dssp) => Box::new(lead::Lead::new(workers, dssp.upper(), 0)),
        Rule::R2sp(r2sp) if is_first => {
            let split = split::Split::new(r2sp.batches, workers, batch)?;
            Box::new(turns::Turns::new(workers, Some(r2sp.gap), split))
        }
        Rule::R2sp(_) => Box::new(turns::Turns::new(workers, None, None)),
        Rule::Gba(gba) => Box::new(group::Group::new(workers, gba.policy(workers))?),
    })
}

/// ASP.
#[derive(Debug)]
struct AtOnce;

impl Keeper for AtOnce {
    fn push(&mut self, worker: usize, _: Duration, orders: &mut Vec<Order>) -> Result<()> {
        orders.extend([Order::Apply(worker), Order::Reply(worker)]);
        Ok(())
    }

    fn done(&mut self, _: usize, _: Duration, _: &mut Vec<Order>) -> Result<()> {
        Ok(())
    }

    fn reopen(&mut self) {}
}

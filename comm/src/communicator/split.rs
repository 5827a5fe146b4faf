//! Making communicators from communicators.

use super::call::Sequences;
use super::{Communicator, Inner};
use crate::error::Result;
use crate::transport::Class;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use syncline_proto::collective::topology::Topology;
use syncline_proto::id::{CommId, Rank};

/// Color of a rank that wants no communicator.
const NO_COLOR: u64 = u64::MAX;
/// Lane of a communicator that has none.
const NO_LANE: u64 = u64::MAX;

impl Communicator {
    /// A communicator for each color, of the ranks that gave it, ordered by key and then by rank
    /// here; `None` for a rank that gave no color. A collective call.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Self>> {
        self.split_as(color, key, self.0.class)
    }

    /// The same ranks again, with a sequence of their own; messages of
    /// [`Class::Background`] give way to urgent ones. A collective call.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn duplicate(&self, class: Class) -> Result<Self> {
        let made = self.split_as(Some(0), 0, class)?;
        Ok(made.expect("a rank that gives a color gets a communicator"))
    }

    fn split_as(&self, color: Option<u32>, key: u32, class: Class) -> Result<Option<Self>> {
        let inner = &self.0;
        let size = self.world_size() as usize;
        let next = inner.job.next_comm.load(Ordering::SeqCst);
        let mine = [color.map_or(NO_COLOR, u64::from), key.into(), next.into()];
        let mut all = vec![0_u64; 3 * size];
        self.all_gather(&mine, &mut all)?;
        let rows: Vec<(u64, u64, u64)> =
            all.as_chunks::<3>().0.iter().map(|row| (row[0], row[1], row[2])).collect();

        // Numbers: above any that a member has used, one per color in order.
        let mut colors: Vec<u64> = rows.iter().map(|r| r.0).filter(|c| *c != NO_COLOR).collect();
        colors.sort_unstable();
        colors.dedup();
        let base = rows.iter().map(|row| row.2).max().unwrap_or(1);
        let id = |index: usize| u32::try_from(base + index as u64).expect("2^32 communicators");
        inner.job.reserve_comms(id(colors.len()));

        let group = color.map(|color| group_of(&rows, u64::from(color)));
        let mut lane = NO_LANE;
        if let Some(group) = &group {
            let host = inner.topology.hosts()[inner.rank as usize];
            let here = group.iter().all(|r| inner.topology.hosts()[*r as usize] == host);
            let leads = group[0] == inner.rank;
            let may = here && leads && group.len() > 1 && inner.job.config.pacing.is_none();
            if may && let Some(segment) = &inner.job.segment {
                lane = segment.claim_lane().map_or(NO_LANE, u64::from);
            }
        }
        let mut lanes = vec![NO_LANE; size];
        self.all_gather(&[lane], &mut lanes)?;

        let Some((group, color)) = group.zip(color) else { return Ok(None) };
        let index = colors.binary_search(&u64::from(color)).expect("its own color is among them");
        let rank = group.iter().zip(0..).find(|(r, _)| **r == inner.rank).map_or(0, |(_, i)| i);
        let hosts = group.iter().map(|r| inner.topology.hosts()[*r as usize]).collect();
        let made = Inner {
            job: Arc::clone(&inner.job),
            comm: CommId(id(index)),
            members: group.iter().map(|r| inner.members[*r as usize]).collect(),
            rank,
            class,
            topology: Topology::new(hosts),
            lane: u32::try_from(lanes[group[0] as usize]).ok(),
            timeout: inner.timeout,
            sequences: Mutex::new(Sequences::default()),
        };
        made.open_lane()?;
        Ok(Some(Self(Arc::new(made))))
    }
}

/// Ranks of a color, in the new order.
fn group_of(rows: &[(u64, u64, u64)], color: u64) -> Vec<Rank> {
    let mut group: Vec<(u64, Rank)> =
        rows.iter().zip(0..).filter(|(row, _)| row.0 == color).map(|(row, r)| (row.1, r)).collect();
    group.sort_unstable();
    group.into_iter().map(|(_, rank)| rank).collect()
}

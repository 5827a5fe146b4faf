//! Making communicators from communicators.

use super::{Communicator, Inner};
use crate::error::Result;
use crate::transport::Class;
use crate::transport::shm::LANES;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use syncline_proto::collective::topology::Topology;
use syncline_proto::id::{CommId, Rank};

/// Color of a rank that wants no communicator.
const NO_COLOR: u64 = u64::MAX;

impl Communicator {
    /// A communicator for each color, of the ranks that gave it, ordered by key and then by rank
    /// here; `None` for a rank that gave no color. The grade of determinism is this handle's. A
    /// collective call.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Self>> {
        self.split_as(color, key, self.inner.class)
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
        let inner = &self.inner;
        let next_comm = inner.job.next_comm.load(Ordering::SeqCst);
        let next_lane = inner.job.next_lane.load(Ordering::SeqCst);
        let mine =
            [color.map_or(NO_COLOR, u64::from), key.into(), next_comm.into(), next_lane.into()];
        let mut all = vec![0_u64; mine.len() * self.world_size() as usize];
        self.all_gather(&mine, &mut all)?;
        let rows = all.as_chunks::<4>().0;

        // Numbers: above any that a member has used, one per color in order.
        let mut colors: Vec<u64> = rows.iter().map(|r| r[0]).filter(|c| *c != NO_COLOR).collect();
        colors.sort_unstable();
        colors.dedup();
        let base = rows.iter().map(|row| row[2]).max().unwrap_or(1);
        let id = |index: usize| u32::try_from(base + index as u64).expect("2^32 communicators");
        inner.job.reserve_comms(id(colors.len()));
        let lane = self.lane_for(color, &colors, rows);

        let Some(color) = color else { return Ok(None) };
        let group = group_of(rows, u64::from(color));
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
            lane,
            timeout: inner.timeout,
            next_collective: AtomicU64::new(0),
            next_messages: Mutex::default(),
        };
        made.open_lane();
        Ok(Some(Self { inner: Arc::new(made), determinism: self.determinism }))
    }

    /// The lane of this rank's new group, counted alike by all ranks of the host. Only a
    /// communicator with all ranks of the host can know which lanes are taken, so groups of
    /// others go by messages.
    fn lane_for(&self, color: Option<u32>, colors: &[u64], rows: &[[u64; 4]]) -> Option<u32> {
        let inner = &self.inner;
        let hosts = inner.topology.hosts();
        let host = hosts[inner.rank as usize];
        let here = || hosts.iter().zip(rows).filter(|(h, _)| **h == host).map(|(_, row)| row);
        let world = &inner.job.topology;
        let world_host = world.hosts()[inner.job.rank() as usize];
        let all_here = world.hosts().iter().filter(|h| **h == world_host).count();
        if !inner.job.may_use_lanes() || here().count() != all_here {
            return None;
        }
        let mut next = here().map(|row| row[3]).max().unwrap_or(0);
        let mut found = None;
        for group in colors {
            let size = rows.iter().filter(|row| row[0] == *group).count();
            let inside = here().filter(|row| row[0] == *group).count();
            if size < 2 || inside != size || next >= u64::from(LANES) {
                continue;
            }
            if color.map(u64::from) == Some(*group) {
                found = u32::try_from(next).ok();
            }
            next += 1;
        }
        inner.job.next_lane.fetch_max(u32::try_from(next).unwrap_or(LANES), Ordering::SeqCst);
        found
    }
}

/// Ranks of a color, in the new order.
fn group_of(rows: &[[u64; 4]], color: u64) -> Vec<Rank> {
    let mut group: Vec<(u64, Rank)> = rows
        .iter()
        .zip(0..)
        .filter(|(row, _)| row[0] == color)
        .map(|(row, r)| (row[1], r))
        .collect();
    group.sort_unstable();
    group.into_iter().map(|(_, rank)| rank).collect()
}

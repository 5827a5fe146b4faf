//! Collectives that wait for their last rank.
//!
//! Owns each rank's part until all are there. Never computes how long anything takes. Called by the
//! driver.

use std::collections::BTreeMap;

use super::error::SimulationError;
use super::lanes::Lane;
use crate::model::ReduceId;

/// Names a collective, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// Each rank's so-many-th.
    Collect(u64),
    /// Each rank's so-many-th.
    Gather(u64),
    Reduce(ReduceId),
}

/// What a rank brings.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Floats(Vec<f32>),
    Nothing,
    Words(Vec<u64>),
}

impl Part {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Floats(values) => values.len(),
            Self::Nothing => 0,
            Self::Words(words) => words.len(),
        }
    }
}

/// A collective at which not all have arrived.
#[derive(Debug)]
struct Meeting {
    lane: Lane,
    /// Elements of everybody's part.
    len: usize,
    parts: Vec<Option<Part>>,
    missing: usize,
}

/// All collectives that are not over.
#[derive(Debug)]
pub(super) struct Meetings {
    ranks: usize,
    open: BTreeMap<Key, Meeting>,
}

impl Meetings {
    pub(super) fn new(ranks: usize) -> Self {
        Self { ranks, open: BTreeMap::new() }
    }

    /// A rank arrives. Some length if it was the last one.
    ///
    /// # Errors
    /// [`SimulationError::Mismatch`] if its part, or its haste, is none that the others brought.
    pub(super) fn join(
        &mut self,
        key: Key,
        lane: Lane,
        rank: u32,
        part: Part,
    ) -> Result<Option<usize>, SimulationError> {
        let len = part.len();
        let ranks = self.ranks;
        let meeting = self.open.entry(key).or_insert_with(|| Meeting {
            lane,
            len,
            parts: vec![None; ranks],
            missing: ranks,
        });
        let mismatch = |reason| Err(SimulationError::Mismatch { rank, reason });
        if meeting.len != len {
            return mismatch(format!("{len} elements of {key:?}, the others {}", meeting.len));
        }
        if meeting.lane != lane {
            return mismatch(format!("{key:?} is {lane:?}, for the others {:?}", meeting.lane));
        }
        if meeting.parts[rank as usize].replace(part).is_some() {
            return mismatch(format!("{key:?} a second time"));
        }
        meeting.missing -= 1;
        Ok((meeting.missing == 0).then_some(len))
    }

    /// All parts in order of ranks, when the collective is over.
    pub(super) fn take(&mut self, key: Key) -> Vec<Part> {
        let meeting = self.open.remove(&key);
        meeting.into_iter().flat_map(|meeting| meeting.parts).flatten().collect()
    }

    /// Who has not arrived.
    pub(super) fn absent(&self, key: Key) -> Vec<u32> {
        let parts = self.open.get(&key).map(|meeting| meeting.parts.as_slice()).unwrap_or_default();
        (0_u32..).zip(parts).filter(|(_, part)| part.is_none()).map(|(rank, _)| rank).collect()
    }
}

/// The average of all parts: summed in order of ranks, then divided.
pub(super) fn average(parts: Vec<Part>) -> Vec<f32> {
    let count = parts.len() as f32;
    let mut sum: Option<Vec<f32>> = None;
    for part in parts {
        let Part::Floats(values) = part else { continue };
        match &mut sum {
            None => sum = Some(values),
            Some(sum) => sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
        }
    }
    let mut sum = sum.unwrap_or_default();
    sum.iter_mut().for_each(|value| *value /= count);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_completes_it_and_who_is_missing_is_known() {
        let mut meetings = Meetings::new(3);
        let key = Key::Reduce(7);
        let join = |meetings: &mut Meetings, rank: u32, values: &[f32]| {
            meetings.join(key, Lane::Urgent, rank, Part::Floats(values.to_vec()))
        };
        assert_eq!(join(&mut meetings, 2, &[1.0, 3.0]).unwrap(), None);
        assert_eq!(meetings.absent(key), [0, 1]);
        assert!(join(&mut meetings, 2, &[1.0, 3.0]).unwrap_err().to_string().contains("second"));
        assert!(join(&mut meetings, 1, &[1.0]).unwrap_err().to_string().contains("1 elements"));
        let other = meetings.join(key, Lane::Background, 1, Part::Floats(vec![0.0; 2]));
        assert!(other.unwrap_err().to_string().contains("Background"));
        assert_eq!(join(&mut meetings, 0, &[0.0, 1.0]).unwrap(), None);
        assert_eq!(join(&mut meetings, 1, &[2.0, 2.0]).unwrap(), Some(2));
        assert_eq!(average(meetings.take(key)), [1.0, 2.0]);
    }
}

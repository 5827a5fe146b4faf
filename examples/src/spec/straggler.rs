//! A rank that is made slow on purpose: `3:30ms:100-400`. Owns the form and which steps it means;
//! the sleeping is `worker`'s.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::parse_latency;

/// Lets one rank sleep in each step of a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Straggler {
    /// Who.
    pub rank: u32,
    /// How long, in each step.
    pub delay: Duration,
    /// First and last step, both slow, counted from 0 over the whole run; none for all.
    pub steps: Option<(u64, u64)>,
}

impl Straggler {
    /// What `rank` sleeps in `step`.
    pub fn delay_at(&self, rank: u32, step: u64) -> Duration {
        let is_slow = self.steps.is_none_or(|(from, to)| (from..=to).contains(&step));
        if rank == self.rank && is_slow { self.delay } else { Duration::ZERO }
    }
}

impl FromStr for Straggler {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("cannot read {text:?}: write RANK:TIME or RANK:TIME:FROM-TO");
        let mut parts = text.split(':');
        let (Some(rank), Some(delay)) = (parts.next(), parts.next()) else { return Err(form()) };
        let rank = rank.parse().map_err(|_| form())?;
        let delay = parse_latency(delay).map_err(|error| error.to_string())?;
        let steps = match (parts.next(), parts.next()) {
            (None, _) => None,
            (Some(steps), None) => Some(parse_steps(steps).ok_or_else(form)?),
            _ => return Err(form()),
        };
        Ok(Self { rank, delay, steps })
    }
}

fn parse_steps(text: &str) -> Option<(u64, u64)> {
    let (from, to) = text.split_once('-')?;
    let (from, to) = (from.parse().ok()?, to.parse().ok()?);
    (from <= to).then_some((from, to))
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?}", self.rank, self.delay)?;
        self.steps.map_or(Ok(()), |(from, to)| write!(f, ":{from}-{to}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straggler_is_slow_in_its_steps_and_no_other() {
        let some: Straggler = "3:30ms:100-400".parse().unwrap();
        let slow = Duration::from_millis(30);
        let found = [99, 100, 400, 401].map(|step| some.delay_at(3, step));
        assert_eq!(found, [Duration::ZERO, slow, slow, Duration::ZERO]);
        assert_eq!(some.delay_at(2, 200), Duration::ZERO);
        let always: Straggler = "0:1.5ms".parse().unwrap();
        assert_eq!(always.delay_at(0, u64::MAX), Duration::from_micros(1500));
        assert_eq!([some.to_string(), always.to_string()], ["3:30ms:100-400", "0:1.5ms"]);
    }

    #[test]
    fn other_forms_are_refused() {
        for text in ["", "3", "x:1ms", "-1:1ms", "1:1ms:", "1:1ms:5", "1:1ms:5-4", "1:1ms:1-2:3"] {
            let error = text.parse::<Straggler>().unwrap_err();
            assert!(error.contains("RANK:TIME:FROM-TO"), "{text}: {error}");
        }
        assert!("1:30".parse::<Straggler>().unwrap_err().contains("200us"));
        assert!("1:11s".parse::<Straggler>().unwrap_err().contains("10s"));
    }
}

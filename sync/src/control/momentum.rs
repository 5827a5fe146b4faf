//! The text form of [`Momentum`], and when it changes next.
//!
//! Owns both; the shares are [`crate::policy::configuration`]'s. Called by trainers.

use crate::error::{Error, Result};
use crate::policy::configuration::Momentum;

/// Reads `keep`, `zero`, `scaled`, `delayed:UPDATES`, `ramp:UPDATES` or `double:UPDATES`: what
/// becomes of the momentum when ranks begin to run apart. The last two add 1/n of it, or double it,
/// from 1/n on, each so many updates.
///
/// # Errors
/// [`Error::Config`] with the forms that there are.
pub fn parse(text: &str) -> Result<Momentum> {
    let updates = |count: &str| count.parse::<u64>().ok().filter(|updates| *updates > 0);
    let known = match text.split_once(':') {
        None => match text {
            "keep" => Some(Momentum::Keep),
            "zero" => Some(Momentum::Zero),
            "scaled" => Some(Momentum::Scaled),
            _ => None,
        },
        Some((name, count)) => updates(count).and_then(|every| match name {
            "delayed" => Some(Momentum::Delayed { updates: every }),
            "ramp" => Some(Momentum::RampLinear { every }),
            "double" => Some(Momentum::RampMultiplicative { every }),
            _ => None,
        }),
    };
    known.ok_or_else(|| Error::Config {
        reason: format!(
            "no course of the momentum '{text}'; keep, zero, scaled, delayed:UPDATES, \
             ramp:UPDATES, double:UPDATES"
        ),
    })
}

/// The number of updates since the switch at which the share of the momentum changes next, after
/// `updates` of them; none if it does not change any more.
pub fn next_change(momentum: Momentum, workers: u32, updates: u64) -> Option<u64> {
    if momentum.share(workers, updates) >= 1.0 {
        return None;
    }
    match momentum {
        Momentum::Keep | Momentum::Zero | Momentum::Scaled => None,
        Momentum::Delayed { updates } => Some(updates),
        Momentum::RampLinear { every } | Momentum::RampMultiplicative { every } => {
            let every = every.max(1);
            Some((updates / every + 1).saturating_mul(every))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_no_other() {
        assert_eq!(parse("keep").unwrap(), Momentum::Keep);
        assert_eq!(parse("zero").unwrap(), Momentum::Zero);
        assert_eq!(parse("scaled").unwrap(), Momentum::Scaled);
        assert_eq!(parse("delayed:4000").unwrap(), Momentum::Delayed { updates: 4000 });
        assert_eq!(parse("ramp:2000").unwrap(), Momentum::RampLinear { every: 2000 });
        assert_eq!(parse("double:6400").unwrap(), Momentum::RampMultiplicative { every: 6400 });
        for text in ["", "kept", "ramp", "ramp:", "ramp:0", "ramp:-1", "keep:1", "ramp:1:2"] {
            assert!(parse(text).unwrap_err().to_string().contains("delayed:UPDATES"), "{text}");
        }
    }

    /// Between two changes the share is the same, and at each it differs.
    #[test]
    fn changes_are_where_the_share_changes() {
        for text in ["delayed:5", "ramp:3", "double:4"] {
            let momentum = parse(text).unwrap();
            let mut updates = 0;
            let mut changes = 0;
            while let Some(next) = next_change(momentum, 6, updates) {
                let share = momentum.share(6, updates);
                assert!((updates..next).all(|at| momentum.share(6, at) == share), "{text}");
                assert!(momentum.share(6, next) > share, "{text} at {next}");
                (updates, changes) = (next, changes + 1);
            }
            assert_eq!(momentum.share(6, updates), 1.0);
            assert_eq!(
                changes,
                [("delayed:5", 1), ("ramp:3", 5), ("double:4", 3)]
                    .into_iter()
                    .find(|(name, _)| *name == text)
                    .unwrap()
                    .1
            );
        }
        for text in ["keep", "zero", "scaled"] {
            assert_eq!(next_change(parse(text).unwrap(), 4, 0), None);
        }
        assert_eq!(next_change(Momentum::RampLinear { every: 3 }, 1, 0), None);
    }
}

//! How a run's sync model and ranks may change while it trains: what no model's name says. Owns the
//! settings and their words; what they do is `syncline::control`'s. Used by `options` and
//! `session`.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What to do about ranks that are slow under BSP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StragglerPolicyKind {
    /// Nothing
    #[default]
    None,
    /// ASP until they are as fast as the others
    Greedy,
    /// BSP without them until they are as fast as the others
    Elastic,
}

impl StragglerPolicyKind {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Greedy => "greedy",
            Self::Elastic => "elastic",
        }
    }
}

/// Settings of changes while a run trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steering {
    /// What becomes of the momentum under ASP, in the words of the library.
    pub momentum: String,
    /// What to do about slow ranks.
    pub stragglers: StragglerPolicyKind,
    /// Whether to go back to an earlier state, and on under BSP, when training diverges.
    pub guards: bool,
    /// Steps from one measurement of all ranks to the next.
    pub window: u32,
}

impl Default for Steering {
    fn default() -> Self {
        let stragglers = StragglerPolicyKind::None;
        Self { momentum: "keep".to_owned(), stragglers, guards: false, window: 20 }
    }
}

impl Steering {
    /// What differs from the defaults, in words.
    pub(super) fn unusual(&self) -> Vec<String> {
        let usual = Self::default();
        let mut parts = Vec::new();
        if self.momentum != usual.momentum {
            parts.push(format!("momentum {} under ASP", self.momentum));
        }
        if self.stragglers != usual.stragglers {
            parts.push(format!("{} about stragglers", self.stragglers.name()));
        }
        if self.guards {
            parts.push("guarded against divergence".to_owned());
        }
        if self.window != usual.window {
            parts.push(format!("windows of {} steps", self.window));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unusual_is_said() {
        assert!(Steering::default().unusual().is_empty());
        let steering = Steering {
            momentum: "zero".to_owned(),
            stragglers: StragglerPolicyKind::Elastic,
            guards: true,
            window: 5,
        };
        let words = "momentum zero under ASP, elastic about stragglers, guarded against \
                     divergence, windows of 5 steps";
        assert_eq!(steering.unusual().join(", "), words);
        for kind in StragglerPolicyKind::value_variants() {
            assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.name());
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}

//! A planned course: which sync model a job runs under, by shares of its samples.
//!
//! Owns the text form and the arithmetic from shares to samples. Never switches anything. Called by
//! trainers and by the [`Controller`](super::Controller).
//!
//! ```text
//! plan   PHASE { + PHASE }        bsp:12.5%+asp
//! phase  MODEL                    the last phase, to the end of the job
//!        MODEL:SHARE%             any phase before it, for so much of all samples
//! ```

use std::fmt;
use std::str::FromStr;

use crate::config::ModelKind;
use crate::error::{Error, Result};
use crate::policy::configuration::Workload;

/// Phases that a plan has at most.
const MOST_PHASES: usize = 16;

/// The phases of a job, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    phases: Vec<Phase>,
}

/// One phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// The model's name, as it was written.
    pub name: String,
    /// The model.
    pub model: ModelKind,
    /// Its share of all samples, above 0 and below 1; none for the last phase.
    pub share: Option<f64>,
}

impl Plan {
    /// The phases in order.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// Index of the phase in force after `samples` of `total` samples of all ranks.
    ///
    /// A phase ends with the first step at whose end its samples are reached, so that all ranks
    /// that count alike switch at the same step.
    pub fn index_at(&self, samples: u64, total: u64) -> usize {
        (0..self.phases.len() - 1)
            .find(|index| samples < self.end_of(*index, total))
            .unwrap_or(self.phases.len() - 1)
    }

    /// Samples of all ranks until the phase in force ends; none in the last one.
    pub fn samples_left(&self, samples: u64, total: u64) -> Option<u64> {
        let index = self.index_at(samples, total);
        (index + 1 < self.phases.len()).then(|| self.end_of(index, total) - samples)
    }

    /// Samples of all ranks at the end of a phase.
    fn end_of(&self, index: usize, total: u64) -> u64 {
        let shares = self.phases[..=index].iter().filter_map(|phase| phase.share);
        let workload = Workload { total_samples: total };
        workload.quota(shares.sum::<f64>().min(1.0)).unwrap_or(total)
    }
}

impl FromStr for Plan {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('+').collect();
        if parts.len() > MOST_PHASES {
            return refuse(format!("a plan has at most {MOST_PHASES} phases, not {}", parts.len()));
        }
        let last = parts.len() - 1;
        let phases = parts
            .iter()
            .enumerate()
            .map(|(index, part)| phase(part, index == last))
            .collect::<Result<Vec<Phase>>>()?;
        let sum: f64 = phases.iter().filter_map(|phase| phase.share).sum();
        if sum >= 1.0 {
            let percent = 100.0 * sum;
            return refuse(format!(
                "the phases of '{text}' before the last take {percent} % of the samples: none is \
                 left"
            ));
        }
        Ok(Self { phases })
    }
}

fn phase(text: &str, is_last: bool) -> Result<Phase> {
    let share = text.rsplit_once(':').and_then(|(name, share)| {
        let share = share.strip_suffix('%')?;
        Some((name, share))
    });
    match (share, is_last) {
        (None, true) => Ok(Phase { name: text.to_owned(), model: text.parse()?, share: None }),
        (Some((name, share)), false) => {
            let percent = share.parse::<f64>().ok().filter(|p| *p > 0.0 && *p < 100.0);
            let Some(percent) = percent else {
                return refuse(format!(
                    "the share of '{text}' is a number above 0 and below 100, as in bsp:12.5%"
                ));
            };
            let model = name.parse()?;
            Ok(Phase { name: name.to_owned(), model, share: Some(percent / 100.0) })
        }
        (None, false) => {
            let _: ModelKind = text.parse()?;
            refuse(format!("'{text}' needs its share of the samples, as in {text}:12.5%"))
        }
        (Some((name, _)), true) => refuse(format!(
            "'{text}' is the last phase, which has what is left: write {name} alone"
        )),
    }
}

fn refuse<T>(reason: String) -> Result<T> {
    Err(Error::Config { reason })
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, phase) in self.phases.iter().enumerate() {
            let plus = if index == 0 { "" } else { "+" };
            write!(f, "{plus}{}", phase.name)?;
            if let Some(share) = phase.share {
                // To a billionth, which hides that 0.07 in binary is not 7 hundredths.
                write!(f, ":{}%", (1e11 * share).round() / 1e9)?;
            }
        }
        Ok(())
    }
}

/// Whether ranks under this model may make different numbers of steps, none waiting for another.
pub fn runs_apart(model: &ModelKind) -> bool {
    model.server().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        text.parse().unwrap()
    }

    #[test]
    fn phases_end_where_their_shares_of_the_samples_do() {
        assert_eq!(plan("bsp:7%+asp").to_string(), "bsp:7%+asp");
        let plan = plan("bsp:12.5%+osp:25%+asp");
        assert_eq!(plan.to_string(), "bsp:12.5%+osp:25%+asp");
        let names: Vec<&str> = plan.phases().iter().map(|phase| phase.model.name()).collect();
        assert_eq!(names, ["bsp", "osp", "asp"]);
        let at = |samples| (plan.index_at(samples, 800), plan.samples_left(samples, 800));
        assert_eq!(at(0), (0, Some(100)));
        assert_eq!(at(99), (0, Some(1)));
        assert_eq!(at(100), (1, Some(200)));
        assert_eq!(at(299), (1, Some(1)));
        assert_eq!(at(300), (2, None));
        assert_eq!(at(u64::MAX), (2, None));
    }

    #[test]
    fn a_phase_alone_is_a_plan() {
        let plan = plan("osp");
        assert_eq!((plan.index_at(0, 10), plan.samples_left(0, 10)), (0, None));
        assert_eq!((plan.index_at(10, 10), plan.to_string().as_str()), (0, "osp"));
    }

    #[test]
    fn a_phase_too_short_for_a_sample_is_none() {
        let plan = plan("bsp:1%+asp");
        assert_eq!((plan.index_at(0, 10), plan.samples_left(0, 10)), (1, None));
    }

    #[test]
    fn other_forms_are_refused_with_a_reason() {
        for (text, reason) in [
            ("", "no sync model ''"),
            ("bps:10%+asp", "no sync model 'bps'"),
            ("bsp+asp", "'bsp' needs its share of the samples, as in bsp:12.5%"),
            ("bsp:10%", "is the last phase"),
            ("bsp:10%+asp:90%", "is the last phase"),
            ("bsp:0%+asp", "above 0 and below 100"),
            ("bsp:100%+asp", "above 0 and below 100"),
            ("bsp:nan%+asp", "above 0 and below 100"),
            ("bsp:-1%+asp", "above 0 and below 100"),
            ("bsp:60%+osp:40%+asp", "none is left"),
            ("bsp:10%+", "no sync model ''"),
        ] {
            let error = text.parse::<Plan>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let many = "bsp:1%+".repeat(16) + "asp";
        assert!(many.parse::<Plan>().unwrap_err().to_string().contains("at most 16"));
    }
}

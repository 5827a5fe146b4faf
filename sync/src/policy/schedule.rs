//! Learning-rate schedules, indexed by samples.
//!
//! Owns the shapes of a rate over a job and their spelling on command lines. Never counts steps: a
//! step of n ranks takes in n times the samples of a step of one, so a schedule by samples does
//! not jump when the batch per update changes at a switch. Called by trainers before each step.

use std::fmt;
use std::str::FromStr;

use super::require;
use crate::error::{Error, Result};

/// A learning rate over a job.
///
/// As text, the rate relative to `base`:
///
/// | text | is |
/// |---|---|
/// | `constant` | 1 throughout |
/// | `step:0.1@32000,48000` | times 0.1 from sample 32000 on, and again from 48000 on |
/// | `cosine:total=100000` | half a cosine from 1 to 0 at 100000 samples |
///
/// and, after any of these but `constant`: `warmup=5000` is a straight line up to 1 at sample
/// 5000, `start=0.1` where it begins (else 0). `final=0.01` is where a cosine ends (else 0).
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The rate that the shape is relative to.
    pub base: f32,
    warmup: Warmup,
    shape: Shape,
}

/// A straight line from a share of the rate to all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Warmup {
    /// Samples until the whole rate is reached; 0 for no warm-up.
    pub samples: u64,
    /// Share of the rate at sample 0, from 0 to 1.
    pub start: f64,
}

/// How the rate falls.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// It does not.
    Constant,
    /// Half a cosine, from 1 at the end of the warm-up.
    Cosine {
        /// Samples at which it ends; more than the warm-up.
        total: u64,
        /// Share of the rate at the end and after it, from 0 to 1.
        last: f64,
    },
    /// A factor at each mark.
    Step {
        /// Greater than 0 and finite.
        factor: f64,
        /// Samples, ascending.
        marks: Vec<u64>,
    },
}

impl Schedule {
    /// A rate that starts with `warmup` and then has this shape.
    ///
    /// # Errors
    /// [`Error::Config`] if a share is not in 0..=1, a factor not positive, marks do not ascend, or
    /// a cosine ends before it starts.
    pub fn new(base: f32, warmup: Warmup, shape: Shape) -> Result<Self> {
        require(base.is_finite() && base >= 0.0, "the base rate is not negative", base)?;
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        require(is_share(warmup.start), "start lies in 0..=1", warmup.start)?;
        match &shape {
            Shape::Constant => {}
            Shape::Cosine { total, last } => {
                require(is_share(*last), "final lies in 0..=1", last)?;
                require(*total > warmup.samples, "total is more than the warm-up", total)?;
            }
            Shape::Step { factor, marks } => {
                let is_factor = factor.is_finite() && *factor > 0.0;
                require(is_factor, "the factor is greater than 0", factor)?;
                let ascend = marks.windows(2).all(|pair| pair[0] < pair[1]);
                require(ascend, "marks ascend", format!("{marks:?}"))?;
            }
        }
        Ok(Self { base, warmup, shape })
    }

    /// The same shape around another rate.
    #[must_use]
    pub fn with_base(self, base: f32) -> Self {
        Self { base, ..self }
    }

    /// The rate of a step that starts when `samples` have been taken in by all ranks together.
    pub fn rate(&self, samples: u64) -> f32 {
        (f64::from(self.base) * self.warmup.share(samples) * self.share(samples)) as f32
    }

    /// What the shape makes of the rate at this sample, without the warm-up.
    fn share(&self, samples: u64) -> f64 {
        match &self.shape {
            Shape::Constant => 1.0,
            Shape::Cosine { total, last } => {
                let (gone, length) = (
                    samples.saturating_sub(self.warmup.samples),
                    total - self.warmup.samples, // above 0 by `new`
                );
                let progress = (gone as f64 / length as f64).min(1.0);
                last + (1.0 - last) * 0.5 * (1.0 + cosine_of_half_turns(progress))
            }
            Shape::Step { factor, marks } => {
                let passed = marks.iter().filter(|mark| samples >= **mark).count();
                (0..passed).fold(1.0, |share, _| share * factor)
            }
        }
    }
}

impl Warmup {
    fn share(&self, samples: u64) -> f64 {
        if samples >= self.samples {
            return 1.0;
        }
        self.start + (1.0 - self.start) * (samples as f64 / self.samples as f64)
    }
}

/// cos(pi x) for x from 0 to 1, by the series of the sine. The standard library's cosine may round
/// differently on another machine; these sums and products do not.
fn cosine_of_half_turns(x: f64) -> f64 {
    let angle = std::f64::consts::PI * (0.5 - x);
    let square = angle * angle;
    let (mut term, mut sum) = (angle, angle);
    for index in 1..12 {
        term *= -square / f64::from((2 * index) * (2 * index + 1));
        sum += term;
    }
    sum.clamp(-1.0, 1.0)
}

impl FromStr for Schedule {
    type Err = Error;

    /// The schedule with that text and a base of 1.
    fn from_str(text: &str) -> Result<Self> {
        let unknown = |item: &str| Error::Config {
            reason: format!("schedule '{text}': '{item}' is not understood"),
        };
        let (name, items) = text.split_once(':').unwrap_or((text, ""));
        let mut warmup = Warmup::default();
        let (mut total, mut last, mut factor, mut marks) = (None, None, None, Vec::new());
        for item in items.split(',').filter(|item| !item.is_empty()) {
            let number = |text: &str| text.parse::<u64>().map_err(|_| unknown(item));
            let share = |text: &str| text.parse::<f64>().map_err(|_| unknown(item));
            match (name, item.split_once('=')) {
                ("step" | "cosine", Some(("warmup", value))) => warmup.samples = number(value)?,
                ("step" | "cosine", Some(("start", value))) => warmup.start = share(value)?,
                ("cosine", Some(("total", value))) => total = Some(number(value)?),
                ("cosine", Some(("final", value))) => last = Some(share(value)?),
                ("step", None) => {
                    let mark = match item.split_once('@') {
                        Some((text, mark)) if factor.is_none() => {
                            factor = Some(share(text)?);
                            mark
                        }
                        _ => item,
                    };
                    marks.push(number(mark)?);
                }
                _ => return Err(unknown(item)),
            }
        }
        let shape = match (name, factor, total) {
            ("constant", ..) => Shape::Constant,
            ("step", Some(factor), _) => Shape::Step { factor, marks },
            ("cosine", _, Some(total)) => Shape::Cosine { total, last: last.unwrap_or(0.0) },
            ("step", ..) => return Err(unknown("step without a factor")),
            ("cosine", ..) => return Err(unknown("cosine without a total")),
            _ => return Err(unknown(name)),
        };
        Self::new(1.0, warmup, shape)
    }
}

impl fmt::Display for Schedule {
    /// The text that gives this schedule, but for its base.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shape {
            Shape::Constant => f.write_str("constant")?,
            Shape::Cosine { total, last } => write!(f, "cosine:total={total},final={last}")?,
            Shape::Step { factor, marks } => {
                let marks: Vec<String> = marks.iter().map(u64::to_string).collect();
                write!(f, "step:{factor}@{}", marks.join(","))?;
            }
        }
        if self.warmup.samples > 0 {
            write!(f, ",warmup={},start={}", self.warmup.samples, self.warmup.start)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str, samples: &[u64]) -> Vec<f32> {
        let schedule: Schedule = text.parse().unwrap();
        let schedule = schedule.with_base(0.5);
        samples.iter().map(|samples| schedule.rate(*samples)).collect()
    }

    #[test]
    fn shapes_by_hand() {
        assert_eq!(rates("constant", &[0, u64::MAX]), [0.5, 0.5]);
        let marks = [0, 31_999, 32_000, 47_999, 48_000];
        assert_eq!(rates("step:0.1@32000,48000", &marks), [0.5, 0.5, 0.05, 0.05, 0.005]);
        let cosine = rates("cosine:warmup=100,total=300", &[0, 50, 100, 200, 300, 999]);
        assert_eq!(cosine, [0.0, 0.25, 0.5, 0.25, 0.0, 0.0]);
        // A third of the way down a cosine is at three quarters.
        assert_eq!(rates("cosine:total=300,final=0.2", &[100, 300]), [0.4, 0.1]);
        let warm = rates("step:0.5@80,warmup=40,start=0.5", &[0, 20, 40, 80]);
        assert_eq!(warm, [0.25, 0.375, 0.5, 0.25]);
    }

    #[test]
    fn a_cosine_without_the_library_is_a_cosine() {
        for index in 0..=1000 {
            let x = f64::from(index) / 1000.0;
            let difference = cosine_of_half_turns(x) - (std::f64::consts::PI * x).cos();
            assert!(difference.abs() < 1e-15, "{x}: {difference}");
        }
    }

    #[test]
    fn a_cosine_never_rises_and_never_jumps() {
        let schedule: Schedule = "cosine:warmup=1000,total=9000".parse().unwrap();
        for samples in 1000..9100 {
            let fall = schedule.rate(samples) - schedule.rate(samples + 1);
            assert!((0.0..0.0003).contains(&fall), "{samples}: {fall}");
        }
    }

    #[test]
    fn text_goes_there_and_back() {
        for text in [
            "constant",
            "step:0.1@32000,48000",
            "step:0.5@8,warmup=4,start=0.25",
            "cosine:total=30,final=0.01,warmup=5,start=0",
        ] {
            let schedule: Schedule = text.parse().unwrap();
            assert_eq!(schedule.to_string(), text);
        }
        let short: Schedule = "cosine:warmup=5000,total=100000".parse().unwrap();
        assert_eq!(short.to_string().parse::<Schedule>().unwrap(), short);
    }

    #[test]
    fn bad_texts_are_named() {
        for (text, named) in [
            ("cosin:total=3", "total=3"),
            ("linear", "linear"),
            ("cosine:warmup=5", "without a total"),
            ("cosine:total=5,warmup=5", "total is more than the warm-up, not 5"),
            ("cosine:total=5,final=2", "final lies in 0..=1, not 2"),
            ("cosine:total=-5", "total=-5"),
            ("step:32000", "without a factor"),
            ("step:0.1@32000,0.1@48000", "0.1@48000"),
            ("step:0@5", "factor is greater than 0"),
            ("step:NaN@5", "factor is greater than 0"),
            ("step:0.1@5,4", "[5, 4]"),
            ("step:0.1@5,start=1.5", "start lies in 0..=1"),
            ("constant:warmup=5", "warmup=5"),
        ] {
            let error = text.parse::<Schedule>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
        let base = Schedule::new(f32::NAN, Warmup::default(), Shape::Constant).unwrap_err();
        assert!(base.to_string().contains("base rate"), "{base}");
    }
}

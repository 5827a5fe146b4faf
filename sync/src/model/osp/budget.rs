//! How many bytes of gradient OSP may defer: the tuning of S(G^u).
//!
//! Owns the upper limit U_max, from what the link carries while the ranks compute, and the rules
//! that choose a budget below it. Pure: what was observed goes in, a decision with its reason comes
//! out. Never measures and never talks to a rank: the model lets all ranks agree on one
//! [`Observation`] first, so that all decide alike. Called by the model, once
//! per epoch; rules that decide after each window of steps are in [`super::window`].
//!
//! The rules are in our reading of arXiv 2306.16926, whose formulas we could not read; each
//! doubtful part is a variant here: [`UmaxModel`], [`BudgetRule`].

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use super::window::{Aimd, WindowRule, WindowSeen, Windowed};

/// How long the overlapped stage takes for U bytes, and so how many hide behind one computation.
///
/// `b` is the bandwidth of a rank's (or the server's) link in one direction, `T` the computation's
/// time, `p` the loss rate, `N` the number of ranks that train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UmaxModel {
    /// One server, full duplex, push and pull of different layers overlap: b T (1-p) / N.
    ServerPipelined,
    /// One server, all pushes before all pulls: b T (1-p) / (2N).
    ServerPushThenPull,
    /// One server, pipelined, loss as retransmitted bytes: b T / (N (1+p)).
    ServerRetransmitting,
    /// A ring, or a server sharded over the ranks: b T (1-p) N / (2 (N-1)).
    Sharded,
}

impl UmaxModel {
    /// Bytes that hide; infinite where nothing has to be moved.
    pub fn bytes(self, bandwidth: f64, compute: Duration, loss_rate: f64, world_size: u32) -> f64 {
        // A server may be on another rank than the only worker.
        if world_size <= 1 && self == Self::Sharded {
            return f64::INFINITY;
        }
        let moved = bandwidth * compute.as_secs_f64();
        let ranks = f64::from(world_size);
        match self {
            Self::ServerPipelined => moved * (1.0 - loss_rate) / ranks,
            Self::ServerPushThenPull => moved * (1.0 - loss_rate) / (2.0 * ranks),
            Self::ServerRetransmitting => moved / (ranks * (1.0 + loss_rate)),
            Self::Sharded => moved * (1.0 - loss_rate) * ranks / (2.0 * (ranks - 1.0)),
        }
    }
}

/// How the budget follows the training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BudgetRule {
    /// This share of all bytes, whatever is measured: for studies.
    Fixed {
        /// From 0, which is BSP, to 1.
        share: f64,
        /// Epochs before it, in which nothing is deferred.
        warmup_epochs: u64,
    },
    /// Nothing in the first epoch; then U_max times the part of the first epoch's loss that is
    /// gone. It falls only if U_max falls, or to a half when the loss rises.
    LossDriven {
        /// Weight of the past in the mean of the losses, from 0 to below 1.
        smoothing: f64,
        /// A rise by this share above the mean of the losses halves the budget.
        rise: f64,
    },
    /// Every so many steps, by the noise that deferring adds, by the wait for ICS, or by both.
    Windowed(WindowRule),
}

/// What sets U_max, beside what is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceiling {
    /// Which formula.
    pub umax: UmaxModel,
    /// Largest share of all bytes, from 0 to 1: above it, OSP nears ASP.
    pub cap: f64,
    /// Share of packets lost that `bandwidth` does not know of yet. 0 for a measured bandwidth.
    pub loss_rate: f64,
}

/// What one epoch has shown, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// Mean training loss over all ranks; not finite if it was so for any step of any rank.
    pub mean_loss: f64,
    /// Time of one forward and backward pass.
    pub compute: Duration,
    /// Bytes per second and direction of a rank's link, if anything was moved.
    pub bandwidth: Option<f64>,
    /// Ranks that train.
    pub world_size: u32,
    /// S(G), bytes of all gradients of one rank.
    pub total_bytes: u64,
}

/// What kept the budget from being larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// The largest share allowed.
    Cap,
    /// The first epoch or epochs, in which nothing is deferred.
    FirstEpoch,
    /// The first window, which has not shown the noise yet.
    FirstWindow,
    /// A share that was asked for.
    Fixed,
    /// What the link moves during one computation.
    Hide,
    /// The loss, which has not fallen far yet.
    Loss,
    /// The loss, which has risen.
    LossRose,
    /// The model, which never defers.
    Model,
    /// The noise that deferring adds.
    Noise,
    /// A loss that is not a number.
    NotFinite,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cap => "cap",
            Self::FirstEpoch => "first epoch",
            Self::FirstWindow => "first window",
            Self::Fixed => "fixed",
            Self::Hide => "hide",
            Self::Loss => "loss",
            Self::LossRose => "loss rose",
            Self::Model => "model",
            Self::Noise => "noise",
            Self::NotFinite => "not finite",
        })
    }
}

/// A budget and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// S(G^u): bytes of gradient that may be deferred in each step.
    pub bytes: u64,
    /// What kept it from being larger.
    pub limit: Limit,
    /// The same in words, with the numbers.
    pub reason: Cow<'static, str>,
}

impl Decision {
    pub(crate) fn new(bytes: u64, limit: Limit, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { bytes, limit, reason: reason.into() }
    }

    /// The decision of models that never defer.
    pub(crate) fn never() -> Self {
        Self::new(0, Limit::Model, "this model defers nothing")
    }
}

/// Chooses the budget, once at the start, once after each epoch, and after each window if the
/// policy wants any.
pub trait BudgetPolicy: Send + fmt::Debug {
    /// The budget of the first epoch, of `total_bytes` of gradients.
    fn begin(&mut self, total_bytes: u64) -> Decision;

    /// The budget of the next epoch, after one that was `seen`.
    fn decide(&mut self, seen: &Observation) -> Decision;

    /// Steps of a window, for policies that decide after each; at least 1.
    fn window(&self) -> Option<u64> {
        None
    }

    /// The budget after a window that was `seen`.
    ///
    /// # Panics
    /// If the policy has no windows.
    fn decide_window(&mut self, seen: &WindowSeen) -> Decision {
        unreachable!("no window was asked for: {seen:?}")
    }
}

impl BudgetRule {
    /// This share of all bytes from the first step that has a bitmap, the second of all.
    pub fn fixed(share: f64) -> Self {
        Self::Fixed { share, warmup_epochs: 0 }
    }

    /// By the noise that deferring adds, with the `bound` of [`WindowRule`].
    pub fn noise(bound: f64, window: u64) -> Self {
        Self::Windowed(WindowRule { window, bound, hide: None })
    }

    /// The smaller of what the noise allows, as [`Self::noise`], and of what is seen to hide.
    pub fn adaptive(bound: f64, window: u64) -> Self {
        Self::Windowed(WindowRule { window, bound, hide: Some(Aimd::default()) })
    }

    /// The policy that follows this rule.
    pub fn policy(self, ceiling: Ceiling) -> Box<dyn BudgetPolicy> {
        match self {
            Self::Fixed { share, warmup_epochs } => {
                Box::new(Fixed { share, warmup_epochs, epochs: 0 })
            }
            Self::LossDriven { smoothing, rise } => {
                Box::new(LossDriven { smoothing, rise, ceiling, state: LossState::default() })
            }
            Self::Windowed(rule) => Box::new(Windowed::new(rule, ceiling)),
        }
    }
}

/// U_max in bytes, and what sets it.
pub fn upper_limit(ceiling: &Ceiling, seen: &Observation) -> Decision {
    let cap = ceiling.cap * seen.total_bytes as f64;
    let hidden = seen.bandwidth.map(|bandwidth| {
        ceiling.umax.bytes(bandwidth, seen.compute, ceiling.loss_rate, seen.world_size)
    });
    let share = ceiling.cap * 100.0;
    match hidden {
        Some(hidden) if hidden < cap => {
            let compute_ms = seen.compute.as_secs_f64() * 1e3;
            let reason = format!(
                "{:.0} of {} bytes hide behind {compute_ms:.2} ms of computation",
                hidden, seen.total_bytes
            );
            Decision::new(hidden as u64, Limit::Hide, reason)
        }
        Some(_) => {
            let reason = format!("more would hide; the cap is {share:.0} % of all bytes");
            Decision::new(cap as u64, Limit::Cap, reason)
        }
        None => {
            let reason = format!("no bandwidth measured; the cap is {share:.0} % of all bytes");
            Decision::new(cap as u64, Limit::Cap, reason)
        }
    }
}

#[derive(Debug)]
struct Fixed {
    share: f64,
    warmup_epochs: u64,
    /// Epochs that are over.
    epochs: u64,
}

impl BudgetPolicy for Fixed {
    fn begin(&mut self, total_bytes: u64) -> Decision {
        if self.epochs < self.warmup_epochs {
            return Decision::new(0, Limit::FirstEpoch, "the first epochs defer nothing");
        }
        // Rounded up: a share of 1 must defer everything.
        let bytes = (self.share * total_bytes as f64).ceil() as u64;
        Decision::new(bytes, Limit::Fixed, format!("a share of {} was asked for", self.share))
    }

    fn decide(&mut self, seen: &Observation) -> Decision {
        self.epochs += 1;
        self.begin(seen.total_bytes)
    }
}

#[derive(Debug)]
struct LossDriven {
    smoothing: f64,
    rise: f64,
    ceiling: Ceiling,
    state: LossState,
}

impl BudgetPolicy for LossDriven {
    fn begin(&mut self, _total_bytes: u64) -> Decision {
        Decision::new(0, Limit::FirstEpoch, "the first epoch defers nothing")
    }

    fn decide(&mut self, seen: &Observation) -> Decision {
        let (state, decision) =
            loss_driven(self.state, seen, &self.ceiling, self.smoothing, self.rise);
        self.state = state;
        decision
    }
}

/// What the loss-driven rule remembers from epoch to epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossState {
    /// The first epoch's loss, and the mean of the losses since.
    pub losses: Option<(f64, f64)>,
    /// The budget in force.
    pub bytes: u64,
}

/// A part of the loss rule: a rise smaller than this share of the first epoch's loss is noise.
const RISE_FLOOR: f64 = 0.01;

/// The loss-driven rule: next state and decision from the last state and an epoch's observation.
pub fn loss_driven(
    state: LossState,
    seen: &Observation,
    ceiling: &Ceiling,
    smoothing: f64,
    rise: f64,
) -> (LossState, Decision) {
    if !seen.mean_loss.is_finite() {
        let reason = "the loss is not finite: nothing is deferred until it is";
        let decision = Decision::new(0, Limit::NotFinite, reason);
        return (LossState { bytes: 0, ..state }, decision);
    }
    let upper = upper_limit(ceiling, seen);
    let (first, before) = state.losses.unwrap_or((seen.mean_loss, seen.mean_loss));
    let mean = smoothing * before + (1.0 - smoothing) * seen.mean_loss;
    let next = |bytes| LossState { losses: Some((first, mean)), bytes };
    if seen.mean_loss > before * (1.0 + rise) + first.abs() * RISE_FLOOR {
        let bytes = (state.bytes / 2).min(upper.bytes);
        let reason = format!("loss rose from {before:.4} to {:.4}: half", seen.mean_loss);
        return (next(bytes), Decision::new(bytes, Limit::LossRose, reason));
    }
    let fallen = if first > 0.0 { (1.0 - mean / first).clamp(0.0, 1.0) } else { 0.0 };
    let wanted = (upper.bytes as f64 * fallen) as u64;
    let bytes = wanted.max(state.bytes).min(upper.bytes);
    // The loss is named where it takes more than a tenth away.
    let decision = if bytes as f64 > 0.9 * upper.bytes as f64 {
        Decision { bytes, ..upper }
    } else {
        let reason = format!(
            "loss is at {mean:.4} of first {first:.4}: {:.0} % of what may be deferred ({})",
            100.0 * bytes as f64 / upper.bytes.max(1) as f64,
            upper.reason
        );
        Decision::new(bytes, Limit::Loss, reason)
    };
    (next(bytes), decision)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CEILING: Ceiling = Ceiling { umax: UmaxModel::Sharded, cap: 0.8, loss_rate: 0.0 };

    /// ResNet-50 on 8 ranks, with a computation of 0.25 s.
    fn seen(mean_loss: f64, bandwidth: Option<f64>) -> Observation {
        let compute = Duration::from_millis(250);
        Observation { mean_loss, compute, bandwidth, world_size: 8, total_bytes: 102_000_000 }
    }

    #[test]
    fn the_worked_example_of_each_model() {
        let bytes = |umax: UmaxModel, loss_rate| {
            umax.bytes(1.25e9, Duration::from_millis(250), loss_rate, 8).round()
        };
        assert_eq!(bytes(UmaxModel::ServerPipelined, 0.0), 39_062_500.0);
        assert_eq!(bytes(UmaxModel::ServerPipelined, 0.5), 19_531_250.0);
        assert_eq!(bytes(UmaxModel::ServerPushThenPull, 0.0), 19_531_250.0);
        assert_eq!(bytes(UmaxModel::ServerRetransmitting, 0.25), 31_250_000.0);
        assert_eq!(bytes(UmaxModel::Sharded, 0.0), 178_571_429.0);
        let alone = UmaxModel::Sharded.bytes(1.0, Duration::from_millis(1), 0.0, 1);
        assert_eq!(alone, f64::INFINITY);
    }

    #[test]
    fn the_upper_limit_names_what_sets_it() {
        let fast = upper_limit(&CEILING, &seen(1.0, Some(1.25e9)));
        assert_eq!((fast.bytes, fast.limit), (81_600_000, Limit::Cap));
        let slow = upper_limit(&CEILING, &seen(1.0, Some(1.25e8)));
        assert_eq!((slow.bytes, slow.limit), (17_857_142, Limit::Hide));
        assert!(slow.reason.contains("17857143 of 102000000 bytes"), "{}", slow.reason);
        let unknown = upper_limit(&CEILING, &seen(1.0, None));
        assert_eq!((unknown.bytes, unknown.limit), (81_600_000, Limit::Cap));
    }

    /// Budgets in per cent of the upper limit, and what limited them, for these losses.
    fn run(losses: &[f64], smoothing: f64) -> Vec<(u64, Limit)> {
        let mut policy = BudgetRule::LossDriven { smoothing, rise: 0.1 }.policy(CEILING);
        assert_eq!(policy.begin(102_000_000).bytes, 0);
        let decide = |loss: &f64| {
            let decision = policy.decide(&seen(*loss, None));
            (decision.bytes * 100 / 81_600_000, decision.limit)
        };
        losses.iter().map(decide).collect()
    }

    #[test]
    fn the_budget_follows_the_loss() {
        let budgets = run(&[2.0, 1.0, 0.5, 0.1], 0.0);
        let expected = [(0, Limit::Loss), (50, Limit::Loss), (75, Limit::Loss), (95, Limit::Cap)];
        assert_eq!(budgets, expected);
        assert_eq!(run(&[2.0, 1.0], 0.5)[1], (25, Limit::Loss));
    }

    #[test]
    fn the_budget_does_not_follow_a_small_rise_and_halves_at_a_large_one() {
        let budgets = run(&[2.0, 1.0, 1.09, 1.5, 1.4, 0.5], 0.0);
        let shares: Vec<u64> = budgets.iter().map(|budget| budget.0).collect();
        assert_eq!(shares, [0, 50, 50, 25, 30, 75]);
        assert_eq!(budgets[3].1, Limit::LossRose);
    }

    #[test]
    fn noise_around_a_small_loss_does_not_halve_the_budget() {
        assert_eq!(run(&[2.0, 0.001, 0.002], 0.0)[2], (99, Limit::Cap));
    }

    #[test]
    fn a_loss_that_is_no_number_ends_deferring_until_it_is_one() {
        let budgets = run(&[2.0, 1.0, f64::NAN, 1.0], 0.0);
        assert_eq!(budgets[2..], [(0, Limit::NotFinite), (50, Limit::Loss)]);
    }

    #[test]
    fn a_falling_upper_limit_pulls_the_budget_down() {
        let rule = |state, bandwidth| loss_driven(state, &seen(0.5, bandwidth), &CEILING, 0.0, 0.1);
        let state = LossState { losses: Some((2.0, 0.5)), bytes: 60_000_000 };
        let (state, decision) = rule(state, Some(1.25e8));
        assert_eq!((decision.bytes, decision.limit), (17_857_142, Limit::Hide));
        assert_eq!(rule(state, None).1.bytes, 61_200_000);
    }

    #[test]
    fn a_fixed_share_ignores_what_is_seen() {
        let mut policy = BudgetRule::Fixed { share: 1.0, warmup_epochs: 2 }.policy(CEILING);
        assert_eq!(policy.begin(7).limit, Limit::FirstEpoch);
        assert_eq!(policy.decide(&seen(1.0, None)).bytes, 0);
        let decision = policy.decide(&seen(f64::NAN, Some(1.0)));
        assert_eq!((decision.bytes, decision.limit), (102_000_000, Limit::Fixed));
        assert_eq!(BudgetRule::fixed(0.5).policy(CEILING).begin(7).bytes, 4);
    }
}

//! Budgets that follow what a window of steps has shown: the spread of the ranks' gradients, and
//! the time that ranks waited for ICS.
//!
//! Owns the sums of a window, the words by which ranks agree on them, and two rules; a budget is
//! the smaller of theirs. Never reads a clock. Called by the model every so many steps.
//!
//! **Noise.** Until its ICS is merged, a rank computes with parameters that are off by
//! `e = -r (g_i - g)`, `g_i` its own gradient, `g` the average, `r` the learning rate. In a bound
//! on the convergence of SGD, this adds a term `c L^2 r^2 k s_U (1 - 1/N)` to the term `L r s / N`
//! of mini-batch noise, with `L` the curvature, `s` and `s_U` the variance of a rank's gradient in
//! all and in deferred coordinates, `k` the span. The ratio of the two is, but for `c`,
//! `L r k (N - 1) s_U / s`. `L` is not known. A loss `f` that is smooth and never negative has
//! `|grad f|^2 <= 2 L f`, so `s / (2 f)` stands in for it, and `s` cancels:
//!
//! ```text
//! ratio = k (N - 1) r s_U / (2 f)  <=  bound
//! ```
//!
//! All of this is seen while training: `(N - 1) s_U` is the sum over the ranks of `|g_i|^2`, less
//! `N |g|^2`, on deferred slices. Read the other way round: `r s_U / f` is the part of its loss that a
//! rank's own deviation takes away, to first order. `bound` stands for `epsilon / c`; it was chosen
//! by measurement (docs/osp.md), not derived. The rule is ours; it is for SGD, where a gradient times
//! the rate is a step.
//!
//! **Hiding.** Additive increase, multiplicative decrease (AIMD) on the time waited for ICS, of
//! the rank that waited least: the others may have waited for that rank, not for the link.

use crate::error::{Error, Result};

use super::budget::{BudgetPolicy, Ceiling, Decision, Limit, Observation};

/// Words that each rank contributes to an agreement on a window.
const WORDS: usize = 5;
/// Weight of the windows before in the means of noise and loss.
const PAST: f64 = 0.5;
/// How far the deferred share of the noise may lie from the deferred share of the bytes.
const DENSITY: std::ops::RangeInclusive<f64> = 0.25..=4.0;

/// How the hidden budget follows the measured wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aimd {
    /// Share of the computation's time that ICS may be waited for.
    pub tolerance: f64,
    /// What the budget is multiplied with where it was waited for longer.
    pub decrease: f64,
    /// Share of all bytes that is added where it was not; also the first budget.
    pub increase: f64,
}

impl Default for Aimd {
    fn default() -> Self {
        Self { tolerance: 0.02, decrease: 0.8, increase: 0.05 }
    }
}

/// A budget decided every `window` steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowRule {
    /// Steps of a window, at least 1.
    pub window: u64,
    /// Largest ratio of the noise that deferring adds to the noise there is, in the measure of
    /// [`self`](crate::model::osp::window); infinite for no such limit.
    pub bound: f64,
    /// How the budget follows the wait for ICS, if it does.
    pub hide: Option<Aimd>,
}

impl WindowRule {
    /// Whether the settings can work.
    ///
    /// # Errors
    /// [`Error::Config`] that names the first one that cannot.
    pub fn validate(&self) -> Result<()> {
        let require = |holds: bool, rule: &str, value: f64| {
            let reason = format!("{rule}, not {value}");
            if holds { Ok(()) } else { Err(Error::Config { reason }) }
        };
        require(self.window > 0, "a window has at least 1 step", self.window as f64)?;
        require(self.bound > 0.0, "the bound on noise is above 0", self.bound)?;
        if let Some(Aimd { tolerance, decrease, increase }) = self.hide {
            let is_share = |value: f64| (0.0..=1.0).contains(&value);
            require(is_share(tolerance), "the tolerance lies in 0..=1", tolerance)?;
            require(decrease > 0.0 && decrease < 1.0, "the decrease lies in 0..1", decrease)?;
            let holds = increase > 0.0 && is_share(increase);
            require(holds, "the increase lies above 0, up to 1", increase)?;
        }
        Ok(())
    }
}

/// The sums of one window on one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    pub(crate) steps: u64,
    compute_s: f64,
    ics_wait_s: f64,
    loss: f64,
    rate: f64,
    /// Sums of squares of what this rank gave to the reductions that ended: all, deferred.
    own: [f64; 2],
    /// The same of the averages.
    mean: [f64; 2],
    /// Elements of these reductions, each as often as there were gradients in it.
    elements: [f64; 2],
}

/// What one window has shown, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowSeen {
    /// Time waited for ICS, over that of the computation, of the rank that waited least.
    pub wait_share: f64,
    /// Mean loss of a step over all ranks.
    pub loss: f64,
    /// Mean learning rate.
    pub rate: f64,
    /// Variance of a rank's gradient, summed over all coordinates, of one step.
    pub noise: f64,
    /// Share of it in deferred coordinates.
    pub deferred_noise: f64,
    /// Share of deferred coordinates.
    pub deferred_share: f64,
    /// Ranks.
    pub world_size: u32,
    /// Steps that ICS spans.
    pub span: u64,
    /// S(G), bytes of all gradients of one rank.
    pub total_bytes: u64,
}

impl Window {
    /// Takes note of a step's computation.
    pub(crate) fn step(&mut self, compute_s: f64, loss: f32, rate: f32) {
        self.steps += 1;
        self.compute_s += compute_s;
        self.loss += f64::from(loss);
        self.rate += f64::from(rate);
    }

    /// Takes note of time waited for ICS.
    pub(crate) fn wait(&mut self, seconds: f64) {
        self.ics_wait_s += seconds;
    }

    /// Takes note of a reduction: sums of squares of this rank's part and of the average.
    pub(crate) fn reduced(&mut self, is_deferred: bool, own: f64, mean: f64, elements: u64) {
        for class in 0..=usize::from(is_deferred) {
            self.own[class] += own;
            self.mean[class] += mean;
            self.elements[class] += elements as f64;
        }
    }

    /// This rank's words for the agreement.
    pub(crate) fn words(&self) -> Vec<u64> {
        let words = [self.compute_s, self.ics_wait_s, self.loss, self.own[0], self.own[1]];
        words.map(f64::to_bits).to_vec()
    }

    /// What all ranks' words say. What is not in them, this rank shares with all others.
    pub(crate) fn agree(
        &self,
        words: &[u64],
        world_size: u32,
        span: u64,
        total_bytes: u64,
    ) -> WindowSeen {
        let each =
            |index: usize| words.chunks_exact(WORDS).map(move |rank| f64::from_bits(rank[index]));
        let (ranks, steps) = (f64::from(world_size), self.steps.max(1) as f64);
        let waits = each(0).zip(each(1)).map(|(compute, wait)| wait / compute.max(1e-9));
        // Not `f64::max(0.0)`, which would make a zero of what is not a number.
        let variance = |own: f64, mean: f64| {
            let sum = (own / ranks - mean) * ranks / (ranks - 1.0).max(1.0) / steps;
            if sum < 0.0 { 0.0 } else { sum }
        };
        let noise = variance(each(3).sum(), self.mean[0]);
        let deferred = variance(each(4).sum(), self.mean[1]);
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        WindowSeen {
            wait_share: waits.fold(f64::INFINITY, f64::min),
            loss: each(2).sum::<f64>() / ranks / steps,
            rate: self.rate / steps,
            noise,
            deferred_noise: share(deferred, noise),
            deferred_share: share(self.elements[1], self.elements[0]),
            world_size,
            span,
            total_bytes,
        }
    }
}

impl WindowSeen {
    /// The ratio of the module's doc if everything were deferred.
    pub fn ratio(&self) -> f64 {
        let others = f64::from(self.world_size.saturating_sub(1));
        self.span as f64 * others * self.rate * self.noise / (2.0 * self.loss)
    }
}

/// What the windowed rule remembers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windowed {
    rule: WindowRule,
    ceiling: Ceiling,
    /// Means of [`WindowSeen::ratio`] and of the noise per deferred byte, over that of all bytes.
    ratio: Option<f64>,
    density: f64,
    /// Bytes that are taken to hide.
    hidden: Option<f64>,
    /// The last decision's.
    bytes: u64,
    is_broken: bool,
}

impl Windowed {
    pub(crate) fn new(rule: WindowRule, ceiling: Ceiling) -> Self {
        let is_broken = false;
        Self { rule, ceiling, ratio: None, density: 1.0, hidden: None, bytes: 0, is_broken }
    }

    fn decision(&self, total_bytes: u64) -> Decision {
        let total = total_bytes as f64;
        let cap = self.ceiling.cap * total;
        let first = self.rule.hide.map_or(cap, |hide| hide.increase * total);
        let hidden = self.hidden.unwrap_or(first).min(cap);
        let noise = match self.ratio {
            _ if self.rule.bound.is_infinite() => f64::INFINITY,
            None => 0.0,
            // No ratio means no noise: no limit.
            Some(ratio) if ratio <= 0.0 => f64::INFINITY,
            Some(ratio) => self.rule.bound / ratio / self.density * total,
        };
        if noise < hidden {
            let Some(ratio) = self.ratio else {
                let reason = "no window is over that would show the noise";
                return Decision::new(0, Limit::FirstWindow, reason);
            };
            let reason = format!(
                "deferring everything adds {ratio:.3} of the noise there is, a deferred byte {:.2} \
                 of the mean, at most {} may be added",
                self.density, self.rule.bound
            );
            return Decision::new(noise as u64, Limit::Noise, reason);
        }
        if hidden < cap {
            let reason = format!("{hidden:.0} of {total_bytes} bytes are taken to hide");
            return Decision::new(hidden as u64, Limit::Hide, reason);
        }
        let reason = format!("the cap is {:.0} % of all bytes", 100.0 * self.ceiling.cap);
        Decision::new(cap as u64, Limit::Cap, reason)
    }

    fn follow_wait(&mut self, hide: Aimd, seen: &WindowSeen) {
        let total = seen.total_bytes as f64;
        let before = self.hidden.unwrap_or(hide.increase * total);
        let cap = self.ceiling.cap * total;
        let next = if seen.wait_share > hide.tolerance {
            before * hide.decrease
        } else if self.bytes as f64 >= before.floor() {
            before + hide.increase * total
        } else {
            // Less was tried, so nothing is known about more.
            before
        };
        self.hidden = Some(next.min(cap));
    }
}

impl BudgetPolicy for Windowed {
    fn begin(&mut self, total_bytes: u64) -> Decision {
        let decision = self.decision(total_bytes);
        self.bytes = decision.bytes;
        decision
    }

    /// An epoch's end changes nothing, unless the loss is no number.
    fn decide(&mut self, seen: &Observation) -> Decision {
        self.is_broken |= !seen.mean_loss.is_finite();
        if self.is_broken { self.refuse() } else { self.begin(seen.total_bytes) }
    }

    fn window(&self) -> Option<u64> {
        Some(self.rule.window)
    }

    fn decide_window(&mut self, seen: &WindowSeen) -> Decision {
        let ratio = seen.ratio();
        // A loss of 0 with no noise has no ratio, and no limit.
        let ratio = if seen.noise == 0.0 && seen.loss == 0.0 { 0.0 } else { ratio };
        let uses_noise = self.rule.bound.is_finite();
        let is_bad = !ratio.is_finite() || ratio < 0.0 || seen.deferred_noise.is_nan();
        self.is_broken = !seen.loss.is_finite() || !seen.wait_share.is_finite();
        if self.is_broken || (uses_noise && is_bad) {
            return self.refuse();
        }
        let mix = |before: f64, now: f64| PAST * before + (1.0 - PAST) * now;
        if uses_noise {
            self.ratio = Some(self.ratio.map_or(ratio, |before| mix(before, ratio)));
            if seen.deferred_share > 0.01 {
                let density = seen.deferred_noise / seen.deferred_share;
                let density = density.clamp(*DENSITY.start(), *DENSITY.end());
                self.density = mix(self.density, density);
            }
        }
        if let Some(hide) = self.rule.hide {
            self.follow_wait(hide, seen);
        }
        self.begin(seen.total_bytes)
    }
}

impl Windowed {
    fn refuse(&mut self) -> Decision {
        (self.ratio, self.bytes) = (None, 0);
        let reason = "loss or noise is not a positive number: nothing is deferred until it is";
        Decision::new(0, Limit::NotFinite, reason)
    }
}

//! What a simulation shows. Owns the sums over steps and ranks. Filled by the driver.

/// One step of one rank, over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepDone {
    /// Who.
    pub rank: u32,
    /// Which, counted from 0.
    pub step: u64,
    /// Virtual time at which the rank may go on, in seconds.
    pub now_s: f64,
    /// Time of its computation, in seconds.
    pub compute_s: f64,
    /// Time in which it was blocked, in seconds.
    pub exposed_s: f64,
    /// The rank's training loss in it.
    pub loss: f32,
}

/// One rank's measured steps. Times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankOutcome {
    /// How many.
    pub steps: u64,
    /// From the start of the first to the end of the last, what lies between them included.
    pub span_s: f64,
    /// Of that, computing.
    pub compute_s: f64,
    /// Of that, blocked.
    pub exposed_s: f64,
    /// Bytes of gradient in the layout's elements.
    pub bytes: u64,
    /// Of those, exchanged during the next step.
    pub deferred_bytes: u64,
    /// Sum of the steps' staleness.
    pub staleness: u64,
}

/// A simulation from its start to its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// By rank, of those that train.
    pub ranks: Vec<RankOutcome>,
    /// Virtual time at which the last rank had nothing left to do, in seconds.
    pub end_s: f64,
    /// Events that were simulated.
    pub events: u64,
}

impl Outcome {
    /// Steps per second of all ranks together: the sum of the ranks' own rates, which counts a
    /// slow rank for what it does while the others run.
    pub fn steps_per_s(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.steps as f64 / rank.span_s).sum()
    }

    /// Share of the ranks' time in which they were blocked, from 0 to 1.
    pub fn exposed_share(&self) -> f64 {
        self.share(|rank| rank.exposed_s)
    }

    /// Share of the ranks' time in which they computed, from 0 to 1.
    pub fn compute_share(&self) -> f64 {
        self.share(|rank| rank.compute_s)
    }

    /// Mean time from step to step, in seconds.
    pub fn step_s(&self) -> f64 {
        let span: f64 = self.ranks.iter().map(|rank| rank.span_s).sum();
        span / self.steps() as f64
    }

    /// Share of the gradients' bytes that were deferred, from 0 to 1.
    pub fn deferred_share(&self) -> f64 {
        let bytes: u64 = self.ranks.iter().map(|rank| rank.bytes).sum();
        let deferred: u64 = self.ranks.iter().map(|rank| rank.deferred_bytes).sum();
        deferred as f64 / bytes.max(1) as f64
    }

    /// Mean staleness of a step.
    pub fn staleness(&self) -> f64 {
        let staleness: u64 = self.ranks.iter().map(|rank| rank.staleness).sum();
        staleness as f64 / self.steps() as f64
    }

    fn steps(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.steps).sum::<u64>().max(1)
    }

    fn share(&self, part: impl Fn(&RankOutcome) -> f64) -> f64 {
        let span: f64 = self.ranks.iter().map(|rank| rank.span_s).sum();
        let part: f64 = self.ranks.iter().map(part).sum();
        if span > 0.0 { part / span } else { 0.0 }
    }
}

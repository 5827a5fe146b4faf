//! What steps cost, for Prometheus: counters and gauges that a scraper reads while training runs.
//!
//! Owns the metrics of one rank, and their names. Never measures: it takes in [`StepReport`]s.
//! Called by trainers after each step, and by [`MetricsServer`] when a scraper asks. Behind the
//! feature `prometheus`. Why these crates: `docs/adr/0005-metrics.md`.
//!
//! All have the label `rank`; all but the loss have `model`, so that a switch starts new series.
//!
//! | metric | type | is |
//! |---|---|---|
//! | `syncline_steps_total` | counter | steps |
//! | `syncline_bytes_total{stage}` | counter | bytes moved: `important` (waited for), `deferred` (behind) |
//! | `syncline_exposed_seconds_total{stage}` | counter | time blocked: `rs`, `ics`, `pull`, `check` |
//! | `syncline_compute_seconds_total` | counter | forward and backward passes |
//! | `syncline_deferred_share` | gauge | of the last step's bytes, 0 to 1 |
//! | `syncline_staleness_updates` | histogram | updates that a step's parameters lack at most |
//! | `syncline_loss` | gauge | training loss of the last step |

mod http;

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::report::StepReport;
pub use http::MetricsServer;

/// The media type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Upper bounds of the buckets of staleness.
const STALENESS_BOUNDS: [f64; 9] = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// Names and values of labels; the names are constants, so that the number of series is bounded.
type Labels<const N: usize> = [(&'static str, &'static str); N];
type Seconds = Counter<f64, AtomicU64>;
type Value = Gauge<f64, AtomicU64>;

/// The metrics of one rank. Shared by reference between the trainer and a server: all are atomic
/// or behind a lock that is held for the update or reading of one series.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    steps: Family<Labels<1>, Counter>,
    bytes: Family<Labels<2>, Counter>,
    exposed: Family<Labels<2>, Seconds>,
    compute: Family<Labels<1>, Seconds>,
    deferred_share: Family<Labels<1>, Value>,
    staleness: Family<Labels<1>, Histogram, fn() -> Histogram>,
    loss: Value,
}

impl Metrics {
    /// All at zero.
    pub fn new(rank: u32) -> Self {
        let rank = [("rank".into(), rank.to_string().into())];
        let histogram: fn() -> Histogram = || Histogram::new(STALENESS_BOUNDS);
        let mut metrics = Self {
            registry: Registry::with_prefix_and_labels("syncline", rank.into_iter()),
            steps: Family::default(),
            bytes: Family::default(),
            exposed: Family::default(),
            compute: Family::default(),
            deferred_share: Family::default(),
            staleness: Family::new_with_constructor(histogram),
            loss: Value::default(),
        };
        let registry = &mut metrics.registry;
        registry.register("steps", "Steps", metrics.steps.clone());
        let help = "Bytes moved, waited for or behind the next steps";
        registry.register("bytes", help, metrics.bytes.clone());
        let help = "Time in which the rank waited for communication";
        registry.register("exposed_seconds", help, metrics.exposed.clone());
        let help = "Time of forward and backward passes";
        registry.register("compute_seconds", help, metrics.compute.clone());
        let help = "Share of the last step's bytes that were deferred";
        registry.register("deferred_share", help, metrics.deferred_share.clone());
        let help = "Updates that the parameters of a step lack at most";
        registry.register("staleness_updates", help, metrics.staleness.clone());
        registry.register("loss", "Training loss of the last step", metrics.loss.clone());
        metrics
    }

    /// Takes in one step under the model of that name, with this training loss.
    pub fn observe(&self, model: &'static str, report: &StepReport, loss: f64) {
        let model = ("model", model);
        self.steps.get_or_create(&[model]).inc();
        let bytes = [("important", report.bytes_important), ("deferred", report.bytes_deferred)];
        for (stage, bytes) in bytes {
            self.bytes.get_or_create(&[model, ("stage", stage)]).inc_by(bytes);
        }
        for (stage, time) in [
            ("rs", report.rs),
            ("ics", report.ics_wait),
            ("pull", report.pull_wait),
            ("check", report.check_wait),
        ] {
            let seconds = time.as_secs_f64();
            self.exposed.get_or_create(&[model, ("stage", stage)]).inc_by(seconds);
        }
        self.compute.get_or_create(&[model]).inc_by(report.compute.as_secs_f64());
        self.deferred_share.get_or_create(&[model]).set(report.deferred_share);
        self.staleness.get_or_create(&[model]).observe(report.staleness as f64);
        self.loss.set(loss);
    }

    /// All of them in the text format of Prometheus, version 0.0.4.
    pub fn text(&self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry).expect("a string takes all");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::osp::budget::Limit;
    use std::time::Duration;

    fn report(staleness: u64) -> StepReport {
        let ms = Duration::from_millis;
        StepReport {
            step: 1,
            compute: ms(250),
            total: ms(20),
            exposed: ms(16),
            rs: ms(8),
            ics_wait: ms(4),
            pull_wait: ms(0),
            check_wait: ms(4),
            bytes_important: 60,
            bytes_overlapped: 0,
            bytes_deferred: 20,
            deferred_share: 0.25,
            staleness,
            limit: Limit::Cap,
        }
    }

    fn assert_lines(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line} in\n{text}");
        }
    }

    #[test]
    fn each_number_is_in_its_series() {
        let metrics = Metrics::new(3);
        metrics.observe("osp", &report(1), 0.5);
        metrics.observe("osp", &report(3), f64::NAN);
        metrics.observe("bsp", &report(0), 2.5);
        assert_lines(
            &metrics.text(),
            &[
                "# TYPE syncline_steps_total counter",
                "syncline_steps_total{rank=\"3\",model=\"osp\"} 2",
                "syncline_steps_total{rank=\"3\",model=\"bsp\"} 1",
                "syncline_bytes_total{rank=\"3\",model=\"osp\",stage=\"important\"} 120",
                "syncline_bytes_total{rank=\"3\",model=\"osp\",stage=\"deferred\"} 40",
                "syncline_exposed_seconds_total{rank=\"3\",model=\"osp\",stage=\"rs\"} 0.016",
                "syncline_exposed_seconds_total{rank=\"3\",model=\"bsp\",stage=\"check\"} 0.004",
                "syncline_compute_seconds_total{rank=\"3\",model=\"osp\"} 0.5",
                "syncline_deferred_share{rank=\"3\",model=\"osp\"} 0.25",
                "# TYPE syncline_staleness_updates histogram",
                "syncline_staleness_updates_bucket{rank=\"3\",model=\"osp\",le=\"2\"} 1",
                "syncline_staleness_updates_count{rank=\"3\",model=\"osp\"} 2",
                "syncline_loss{rank=\"3\"} 2.5",
            ],
        );
    }

    #[test]
    fn a_loss_that_is_no_number_is_shown_as_such() {
        let metrics = Metrics::new(0);
        metrics.observe("bsp", &report(0), f64::NAN);
        assert_lines(&metrics.text(), &["syncline_loss{rank=\"0\"} NaN"]);
    }
}

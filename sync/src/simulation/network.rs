//! What a collective takes on the simulated network.
//!
//! Owns the closed formulas. Never measures. Called by the driver, which passes bytes and ranks.
//!
//! S bytes over n ranks, link B, latency α (Hockney's model; Thakur and others, 2005):
//!
//! | all_reduce | seconds |
//! |---|---|
//! | ring | 2(n-1)/n S/B + 2(n-1) α |
//! | halving and doubling | 2(n-1)/n S/B + 2 log2(n) α |
//! | recursive doubling | log2(n) (S/B + α) |
//!
//! Where n is no power of two, n is the power of two below it in the last two, and 2 (S/B + α) is
//! added: the ranks that are too many give their part to others and get the result. The least of
//! the three is taken, as the library takes the algorithm that should be fastest. A direct exchange
//! is left out: on a switch that is never full it would cost 2 α for any n.

use std::time::Duration;

use super::error::SimulationError;

/// A link per rank into one switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// B: bytes per second of each direction of a rank's link; infinite for a link that costs
    /// nothing.
    pub bytes_per_s: f64,
    /// α: from the first byte's departure to its arrival.
    pub latency: Duration,
    /// Bytes that one element of the layout has on the wire: 4, or more where a small layout
    /// stands for a large model.
    pub element_bytes: f64,
}

impl Network {
    /// Seconds of an all_reduce of this many bytes on each of `ranks` ranks.
    pub fn all_reduce_s(&self, bytes: f64, ranks: u32) -> f64 {
        if ranks <= 1 {
            return 0.0;
        }
        let (wire, alpha) = (self.wire_s(bytes), self.latency.as_secs_f64());
        let others = f64::from(ranks - 1);
        let ring = 2.0 * others / f64::from(ranks) * wire + 2.0 * others * alpha;
        let levels = f64::from(ranks.ilog2());
        let core = f64::from(1_u32 << ranks.ilog2());
        let extra = if ranks.is_power_of_two() { 0.0 } else { 2.0 * (wire + alpha) };
        let halving = 2.0 * (core - 1.0) / core * wire + 2.0 * levels * alpha + extra;
        let doubling = levels * (wire + alpha) + extra;
        ring.min(halving).min(doubling)
    }

    /// Seconds of an all_gather after which each of `ranks` ranks has this many bytes: a ring, or
    /// recursive doubling.
    pub fn all_gather_s(&self, bytes: f64, ranks: u32) -> f64 {
        if ranks <= 1 {
            return 0.0;
        }
        let levels = f64::from(ranks.next_power_of_two().ilog2());
        let moved = self.wire_s(bytes) * f64::from(ranks - 1) / f64::from(ranks);
        moved + levels * self.latency.as_secs_f64()
    }

    /// Seconds that this many bytes take on a link.
    pub fn wire_s(&self, bytes: f64) -> f64 {
        bytes / self.bytes_per_s
    }

    /// Whether it can carry anything.
    ///
    /// # Errors
    /// [`SimulationError::Setting`] that names what cannot work.
    pub fn validate(&self) -> Result<(), SimulationError> {
        let is_above_zero = |value: f64| value > 0.0;
        let reason = if !is_above_zero(self.bytes_per_s) {
            format!("a link moves more than 0 bytes per second, not {}", self.bytes_per_s)
        } else if !is_above_zero(self.element_bytes) || self.element_bytes.is_infinite() {
            format!("an element has more than 0 bytes, finitely many, not {}", self.element_bytes)
        } else {
            return Ok(());
        };
        Err(SimulationError::Setting { reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(bytes_per_s: f64, latency_us: u64) -> Network {
        Network { bytes_per_s, latency: Duration::from_micros(latency_us), element_bytes: 4.0 }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs()
    }

    #[test]
    fn the_cheapest_algorithm_by_hand() {
        // 8e6 bytes at 1e9 per second are 8 ms.
        let free = network(1e9, 0);
        assert!(near(free.all_reduce_s(8e6, 8), 2.0 * 7.0 / 8.0 * 8e-3));
        assert!(near(free.all_reduce_s(8e6, 3), 2.0 * 2.0 / 3.0 * 8e-3), "a ring of three");
        let slow = network(1e9, 100);
        assert!(near(slow.all_reduce_s(8e6, 8), 14e-3 + 6e-4), "halving and doubling");
        assert!(near(slow.all_reduce_s(8.0, 8), 3.0 * (8e-9 + 1e-4)), "recursive doubling");
        // Six ranks: a ring of ten messages, or four that fold two more in.
        assert!(near(slow.all_reduce_s(8e6, 6), 2.0 * 5.0 / 6.0 * 8e-3 + 1e-3));
        assert!(near(slow.all_reduce_s(0.0, 6), 4e-4));
        assert!(near(slow.all_gather_s(8e6, 8), 7e-3 + 3e-4));
        assert!(near(slow.all_gather_s(0.0, 5), 3e-4));
    }

    #[test]
    fn alone_or_on_a_free_link_nothing_costs() {
        assert_eq!(network(1.0, 9).all_reduce_s(1e9, 1), 0.0);
        assert_eq!(network(1.0, 9).all_gather_s(1e9, 1), 0.0);
        assert_eq!(network(f64::INFINITY, 0).all_reduce_s(1e9, 1024), 0.0);
    }

    #[test]
    fn links_that_cannot_work_are_refused() {
        for bytes_per_s in [0.0, -1.0, f64::NAN] {
            assert!(network(bytes_per_s, 0).validate().is_err(), "{bytes_per_s}");
        }
        for element_bytes in [0.0, f64::NAN, f64::INFINITY] {
            let error = Network { element_bytes, ..network(1.0, 0) }.validate().unwrap_err();
            assert!(error.to_string().contains("element"), "{error}");
        }
        assert!(network(f64::INFINITY, 0).validate().is_ok());
    }
}

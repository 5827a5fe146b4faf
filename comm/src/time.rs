//! The one place that reads the clock.

use std::sync::OnceLock;
use syncline_proto::time::Instant;

/// Now, in nanoseconds since this process first asked.
#[expect(clippy::disallowed_methods, reason = "this is the one clock everybody else asks")]
pub(crate) fn now() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::ZERO + elapsed
}

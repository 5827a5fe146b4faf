//! Rates and durations as people write them: `100mbit`, `12.5MB/s`, `200us`.
//!
//! Owns their parsing and printing. Called by `options`, `spec`, `report` and `plot`.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a link may carry at most, or that it is not held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRate {
    /// Bytes per second in each direction; none means without limit. Never 0.
    pub bytes_per_s: Option<u64>,
}

/// Text that is no rate or no duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUnit {
    text: String,
    hint: &'static str,
}

impl fmt::Display for BadUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {:?}: {}", self.text, self.hint)
    }
}

impl Error for BadUnit {}

const RATE_HINT: &str = "write bits per second as 100mbit or 1gbit, bytes per second as 12.5MB/s \
                         or 10MiB/s, or none";
const RATE_AMBIGUOUS: &str = "this may mean bits or bytes: write mbit for bits, MB/s for bytes";
const RATE_RANGE: &str = "a rate lies between 1 kilobyte and 1 terabyte per second";
const LATENCY_HINT: &str = "write 500ns, 200us, 1.5ms or 1s";
const LATENCY_RANGE: &str = "a latency is at most 10s";

/// Bits per second of each unit; decimal, as network speeds are.
const BITS: [(&str, f64); 4] = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
/// Bytes per second of each unit.
const BYTES: [(&str, f64); 7] = [
    ("B", 1.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KiB", 1024.0),
    ("MiB", 1024.0 * 1024.0),
    ("GiB", 1024.0 * 1024.0 * 1024.0),
];

impl FromStr for LinkRate {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        let bad = |hint| BadUnit { text: text.to_owned(), hint };
        if text.eq_ignore_ascii_case("none") {
            return Ok(Self { bytes_per_s: None });
        }
        let (number, unit) = split(text).ok_or_else(|| bad(RATE_HINT))?;
        let per_second = unit.strip_suffix("/s").or_else(|| unit.strip_suffix("ps"));
        let lower = per_second.unwrap_or(unit).to_ascii_lowercase();
        // Bits need no "/s" to be understood; bytes do, or they would be an amount.
        let bits = BITS.iter().find(|(name, _)| *name == lower).map(|(_, bits)| bits / 8.0);
        let byte_unit = unit.strip_suffix("/s").map(|unit| if unit == "KB" { "kB" } else { unit });
        let bytes =
            BYTES.iter().find(|(name, _)| Some(*name) == byte_unit).map(|(_, bytes)| *bytes);
        let Some(factor) = bits.or(bytes) else {
            let ambiguous = ["bps", "kbps", "mbps", "gbps", "b/s", "kb/s", "mb/s", "gb/s"];
            let unit = unit.to_ascii_lowercase();
            let hint = if ambiguous.contains(&unit.as_str()) { RATE_AMBIGUOUS } else { RATE_HINT };
            return Err(bad(hint));
        };
        let bytes_per_s = number * factor;
        if !(1e3..=1e12).contains(&bytes_per_s) {
            return Err(bad(RATE_RANGE));
        }
        Ok(Self { bytes_per_s: Some(bytes_per_s.round() as u64) })
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(bytes_per_s) = self.bytes_per_s else { return write!(f, "unlimited") };
        let bits = bytes_per_s as f64 * 8.0;
        let (unit, name) = if bits >= 1e9 {
            (1e9, "Gbit/s")
        } else if bits >= 1e6 {
            (1e6, "Mbit/s")
        } else {
            (1e3, "kbit/s")
        };
        // As many digits as the number has, but at most three after the point.
        write!(f, "{} {name}", (bits / unit * 1e3).round() / 1e3)
    }
}

impl LinkRate {
    /// Megabits per second, if there is a limit.
    pub fn mbps(self) -> Option<f64> {
        self.bytes_per_s.map(|bytes| bytes as f64 * 8.0 / 1e6)
    }
}

/// Reads a latency, such as `200us`. `0` needs no unit.
///
/// # Errors
///
/// The text is no duration, or one of more than 10 seconds.
pub fn parse_latency(text: &str) -> Result<Duration, BadUnit> {
    let bad = |hint| BadUnit { text: text.to_owned(), hint };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (number, unit) = split(text).ok_or_else(|| bad(LATENCY_HINT))?;
    let ns = match unit {
        "ns" => number,
        "us" | "µs" => number * 1e3,
        "ms" => number * 1e6,
        "s" => number * 1e9,
        _ => return Err(bad(LATENCY_HINT)),
    };
    if ns > 10e9 {
        return Err(bad(LATENCY_RANGE));
    }
    Ok(Duration::from_nanos(ns.round() as u64))
}

/// A finite number that is not negative, and the text after it without blanks between.
fn split(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    number.is_finite().then(|| (number, text[end..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Result<Option<u64>, &'static str> {
        text.parse::<LinkRate>().map(|rate| rate.bytes_per_s).map_err(|error| error.hint)
    }

    #[test]
    fn rates_in_bits_and_bytes_are_read() {
        let cases = [
            ("100mbit", 12_500_000),
            ("100 Mbit/s", 12_500_000),
            ("100Mbitps", 12_500_000),
            ("1gbit", 125_000_000),
            ("2.5Gbit", 312_500_000),
            ("800kbit", 100_000),
            ("8000bit", 1000),
            ("12.5MB/s", 12_500_000),
            ("5KB/s", 5000),
            ("5kB/s", 5000),
            ("1MiB/s", 1_048_576),
            ("1GB/s", 1_000_000_000),
            ("2000B/s", 2000),
        ];
        for (text, bytes) in cases {
            assert_eq!(rate(text), Ok(Some(bytes)), "{text}");
        }
        assert_eq!(rate("none"), Ok(None));
    }

    #[test]
    fn text_that_is_no_rate_is_refused_with_a_hint() {
        for text in ["", "fast", "100", "mbit", "-1mbit", "1.2.3mbit", "1parsec", "10MB", "infmbit"]
        {
            assert_eq!(rate(text), Err(RATE_HINT), "{text}");
        }
        for text in ["100mbps", "100Mb/s", "1Gbps", "3 gb/s"] {
            assert_eq!(rate(text), Err(RATE_AMBIGUOUS), "{text}");
        }
        for text in ["0mbit", "10bit", "1e6gbit", "9999999gbit"] {
            assert!(matches!(rate(text), Err(RATE_RANGE | RATE_HINT)), "{text}");
        }
        let error = "10MB".parse::<LinkRate>().unwrap_err().to_string();
        assert!(error.starts_with("cannot read \"10MB\": write bits per second as 100mbit"));
    }

    #[test]
    fn rates_print_in_bits() {
        for (text, printed) in [
            ("100mbit", "100 Mbit/s"),
            ("1gbit", "1 Gbit/s"),
            ("12.5MB/s", "100 Mbit/s"),
            ("2.5gbit", "2.5 Gbit/s"),
            ("64kbit", "64 kbit/s"),
            ("none", "unlimited"),
        ] {
            assert_eq!(text.parse::<LinkRate>().unwrap().to_string(), printed);
        }
        assert_eq!("250mbit".parse::<LinkRate>().unwrap().mbps(), Some(250.0));
    }

    #[test]
    fn latencies_are_read_and_bad_ones_refused() {
        for (text, ns) in [
            ("0", 0),
            ("500ns", 500),
            ("200us", 200_000),
            ("1.5ms", 1_500_000),
            ("2 s", 2_000_000_000),
        ] {
            assert_eq!(parse_latency(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for text in ["", "5", "ms", "-1ms", "1h", "x"] {
            assert_eq!(parse_latency(text).unwrap_err().hint, LATENCY_HINT, "{text}");
        }
        assert_eq!(parse_latency("11s").unwrap_err().hint, LATENCY_RANGE);
    }
}

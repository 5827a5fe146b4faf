//! Settings of a job on this rank. The only reader of `SYNCLINE_*` variables.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `SYNCLINE_TRANSPORT` | `auto`, `shm` or `tcp` between ranks of one host | `auto` |
//! | `SYNCLINE_ALGORITHM` | force one algorithm where it applies (`ring`, `direct`, `node`, …) | by cost |
//! | `SYNCLINE_DETERMINISM` | `fast` or `canonical` bits of reductions ([`Determinism`]) | `fast` |
//! | `SYNCLINE_CALIBRATE` | `0`: links between hosts are not measured at the start | 1 |
//! | `SYNCLINE_TIMEOUT_S` | deadline of every call | 300 |
//! | `SYNCLINE_CONNECT_TIMEOUT_S` | deadline of joining | 60 |
//! | `SYNCLINE_PEER_TIMEOUT_S` | silence after which a rank is lost | 20 |
//! | `SYNCLINE_LINK_RATE` | pace this rank's sends: `100mbit`, `1gbit`, `12.5MB/s` | none |
//! | `SYNCLINE_LINK_LATENCY_US` | latency added to paced sends | 0 |
//! | `SYNCLINE_RAILS` | TCP connections per pair of ranks | 1 |
//! | `SYNCLINE_JOB_SECRET` | 64 hex digits, from the launcher | none |
//! | `SYNCLINE_PORT` | rendezvous port, instead of `MASTER_PORT` | none |

use crate::determinism::Determinism;
use crate::env::{Environment, Place};
use crate::error::{Error, ErrorKind, Result};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use syncline_proto::collective::Algorithm;

/// Which transport joins ranks of one host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum TransportChoice {
    /// Shared memory where it works, else TCP.
    #[default]
    Auto,
    /// Shared memory, or an error.
    Shm,
    /// TCP.
    Tcp,
}

impl TransportChoice {
    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

impl FromStr for TransportChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Auto, Self::Shm, Self::Tcp].into_iter().find(|t| t.name() == text).ok_or_else(|| {
            Error::new(ErrorKind::Config, format!("transport {text:?} is none of auto, shm, tcp"))
        })
    }
}

/// A rate in bytes per second, written as bits (`100mbit`, `1gbit`) or bytes (`12.5MB/s`).
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct LinkRate {
    /// Bytes per second, more than 0.
    pub bytes_per_s: f64,
}

impl FromStr for LinkRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            let text = format!("link rate {text:?} is not like 100mbit, 1gbit or 12.5MB/s");
            Error::new(ErrorKind::Config, text)
        };
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (number, unit) = lower.split_at(digits);
        let number: f64 = number.parse().map_err(|_| bad())?;
        let scale = match unit.trim() {
            "bit" | "bit/s" | "bps" => 0.125,
            "kbit" | "kbit/s" | "kbps" => 125.0,
            "mbit" | "mbit/s" | "mbps" => 125e3,
            "gbit" | "gbit/s" | "gbps" => 125e6,
            "b/s" => 1.0,
            "kb/s" => 1e3,
            "mb/s" => 1e6,
            "gb/s" => 1e9,
            _ => return Err(bad()),
        };
        let bytes_per_s = number * scale;
        if bytes_per_s.is_finite() && bytes_per_s >= 1.0 {
            Ok(Self { bytes_per_s })
        } else {
            Err(bad())
        }
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bytes_per_s * 8.0;
        match bits {
            _ if bits >= 1e9 => write!(f, "{}gbit", bits / 1e9),
            _ if bits >= 1e6 => write!(f, "{}mbit", bits / 1e6),
            _ => write!(f, "{}kbit", bits / 1e3),
        }
    }
}

/// A slow network, played on a fast one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pacing {
    /// What this rank may send, all peers together.
    pub rate: LinkRate,
    /// Added to each message.
    pub latency: Duration,
}

/// The job's shared secret: who does not know it is not let in.
#[derive(Clone, PartialEq, Eq)]
pub struct JobSecret(pub(crate) [u8; 32]);

impl JobSecret {
    /// From 64 hex digits.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for anything else; the text is not repeated.
    pub fn from_hex(text: &str) -> Result<Self> {
        let bad = || Error::new(ErrorKind::Config, "SYNCLINE_JOB_SECRET is not 64 hex digits");
        if text.len() != 64 || !text.is_ascii() {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }

    /// For jobs whose launcher gives none: keeps out accidents, not attackers.
    pub fn none() -> Self {
        Self([0; 32])
    }
}

impl fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobSecret(..)")
    }
}

/// Settings of a job on this rank.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which rank this is, and where to meet.
    pub place: Place,
    /// Who is let in.
    pub secret: JobSecret,
    /// Between ranks of one host.
    pub transport: TransportChoice,
    /// A slow network, played.
    pub pacing: Option<Pacing>,
    /// Use this algorithm wherever it applies.
    pub algorithm: Option<Algorithm>,
    /// Of calls by handles that were not given another grade. With [`Determinism::Canonical`], a
    /// call whose forced `algorithm` has other bits gets [`ErrorKind::InvalidArgument`].
    pub determinism: Determinism,
    /// Whether links between hosts are measured when the job starts, so that algorithms are
    /// chosen for them. Else they are taken for 10 Gbit/s.
    pub calibrates: bool,
    /// TCP connections per pair.
    pub rails: u32,
    /// Deadline of every call.
    pub timeout: Duration,
    /// Deadline of joining.
    pub connect_timeout: Duration,
    /// Silence after which a rank is lost.
    pub peer_timeout: Duration,
    /// Takes this rank for one of another host, by number, so that one host can play several. For
    /// tests.
    #[doc(hidden)]
    pub played_host: Option<u32>,
}

impl Config {
    /// From the launcher's and Syncline's variables.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] naming the variable.
    pub fn from_env() -> Result<Self> {
        Self::from_environment(&Environment::current())
    }

    /// The same, from given variables.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] naming the variable.
    pub fn from_environment(env: &Environment) -> Result<Self> {
        let seconds = |name: &str, default: f64| -> Result<Duration> {
            let value = env.parsed::<f64>(name)?.unwrap_or(default);
            Duration::try_from_secs_f64(value)
                .ok()
                .filter(|d| !d.is_zero())
                .ok_or_else(|| Error::new(ErrorKind::Config, format!("{name}={value} is no time")))
        };
        let algorithm = match env.text("SYNCLINE_ALGORITHM") {
            None | Some("auto") => None,
            Some(name) => {
                Some(Algorithm::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| {
                    let known: Vec<_> = Algorithm::ALL.iter().map(|a| a.name()).collect();
                    let known = known.join(", ");
                    let text = format!("SYNCLINE_ALGORITHM={name:?} is none of {known}");
                    Error::new(ErrorKind::Config, text)
                })?)
            }
        };
        let latency = env.parsed::<f64>("SYNCLINE_LINK_LATENCY_US")?.unwrap_or(0.0);
        let pacing = match env.text("SYNCLINE_LINK_RATE") {
            None | Some("none") => None,
            Some(text) => Some(Pacing {
                rate: text.parse()?,
                latency: Duration::try_from_secs_f64(latency / 1e6)
                    .map_err(|_| Error::new(ErrorKind::Config, "SYNCLINE_LINK_LATENCY_US"))?,
            }),
        };
        Self {
            place: Place::from_env(env)?,
            secret: match env.text("SYNCLINE_JOB_SECRET") {
                Some(text) => JobSecret::from_hex(text)?,
                None => JobSecret::none(),
            },
            transport: match env.text("SYNCLINE_TRANSPORT") {
                Some(text) => text.parse()?,
                None => TransportChoice::Auto,
            },
            pacing,
            algorithm,
            determinism: match env.text("SYNCLINE_DETERMINISM") {
                Some(text) => text.parse()?,
                None => Determinism::Fast,
            },
            calibrates: match env.text("SYNCLINE_CALIBRATE") {
                None | Some("1") => true,
                Some("0") => false,
                Some(text) => {
                    let text = format!("SYNCLINE_CALIBRATE={text:?} is neither 0 nor 1");
                    return Err(Error::new(ErrorKind::Config, text));
                }
            },
            rails: env.parsed("SYNCLINE_RAILS")?.unwrap_or(1),
            timeout: seconds("SYNCLINE_TIMEOUT_S", 300.0)?,
            connect_timeout: seconds("SYNCLINE_CONNECT_TIMEOUT_S", 60.0)?,
            peer_timeout: seconds("SYNCLINE_PEER_TIMEOUT_S", 20.0)?,
            played_host: None,
        }
        .checked()
    }

    /// A world of one, with defaults.
    pub fn alone() -> Self {
        Self {
            place: Place::alone(),
            secret: JobSecret::none(),
            transport: TransportChoice::Auto,
            pacing: None,
            algorithm: None,
            determinism: Determinism::Fast,
            calibrates: true,
            rails: 1,
            timeout: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(60),
            peer_timeout: Duration::from_secs(20),
            played_host: None,
        }
    }

    /// B08: settings that contradict each other are refused before anything starts.
    fn checked(self) -> Result<Self> {
        if !(1..=16).contains(&self.rails) {
            let text = format!("SYNCLINE_RAILS={} does not lie in 1..=16", self.rails);
            return Err(Error::new(ErrorKind::Config, text));
        }
        if self.peer_timeout < Duration::from_secs(1) {
            let text = "SYNCLINE_PEER_TIMEOUT_S is less than 1: beats come twice a second";
            return Err(Error::new(ErrorKind::Config, text));
        }
        Ok(self)
    }

    /// What all ranks must have alike, as text, to be compared when they meet.
    pub(crate) fn agreement(&self) -> String {
        format!(
            "world_size={} transport={} algorithm={} determinism={} calibrates={} rails={} \
             link_rate={}",
            self.place.world_size,
            self.transport.name(),
            self.algorithm.map_or("auto", Algorithm::name),
            self.determinism,
            self.calibrates,
            self.rails,
            self.pacing.map_or_else(|| "none".to_owned(), |p| p.rate.to_string()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Result<Config> {
        Config::from_environment(&Environment::from_pairs(pairs.iter().copied()))
    }

    #[test]
    fn rates_are_read_as_people_write_them() {
        for (text, bytes_per_s) in
            [("100mbit", 12.5e6), ("1gbit", 125e6), ("12.5MB/s", 12.5e6), ("2.5Gbps", 312.5e6)]
        {
            assert_eq!(text.parse::<LinkRate>().unwrap().bytes_per_s, bytes_per_s, "{text}");
        }
        for text in ["", "100", "mbit", "-1mbit", "0mbit", "1e9mbit", "nan", "10 apples"] {
            assert!(text.parse::<LinkRate>().is_err(), "{text}");
        }
        assert_eq!("100mbit".parse::<LinkRate>().unwrap().to_string(), "100mbit");
    }

    #[test]
    fn variables_are_read_and_bad_ones_named() {
        let good = config(&[
            ("SYNCLINE_TIMEOUT_S", "2.5"),
            ("SYNCLINE_TRANSPORT", "tcp"),
            ("SYNCLINE_ALGORITHM", "ring"),
            ("SYNCLINE_DETERMINISM", "canonical"),
            ("SYNCLINE_LINK_RATE", "1gbit"),
        ])
        .unwrap();
        assert_eq!(good.timeout, Duration::from_millis(2500));
        assert_eq!(good.algorithm, Some(Algorithm::Ring));
        assert_eq!(good.determinism, Determinism::Canonical);
        for (name, value) in [
            ("SYNCLINE_TIMEOUT_S", "0"),
            ("SYNCLINE_TIMEOUT_S", "-3"),
            ("SYNCLINE_TIMEOUT_S", "x"),
            ("SYNCLINE_TRANSPORT", "ib"),
            ("SYNCLINE_ALGORITHM", "best"),
            ("SYNCLINE_DETERMINISM", "exact"),
            ("SYNCLINE_RAILS", "0"),
            ("SYNCLINE_LINK_RATE", "fast"),
            ("SYNCLINE_JOB_SECRET", "abc"),
        ] {
            let error = config(&[(name, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{name}={value}");
        }
    }

    #[test]
    fn secrets_do_not_print() {
        let secret = JobSecret::from_hex(&"ab".repeat(32)).unwrap();
        assert_eq!(secret.0, [0xab; 32]);
        assert!(!format!("{secret:?}").contains("ab"));
    }
}

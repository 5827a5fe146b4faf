//! Reads which hosts a job may use and how many ranks each takes.
//!
//! Owns the two file forms (Open MPI's `host slots=N`, MPICH's `host:N`) and the `-H` list, and
//! the question whether a name means this host. Never resolves a name over the network. Called
//! by `command::run`; [`crate::placement`] turns the result into ranks.

use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The most slots one entry may claim.
pub const SLOTS_MAX: u32 = 65_536;

/// One host of a job. Entries that mean the same host are merged, so names are unique.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// As it was first written.
    pub name: String,
    /// Ranks it takes.
    pub slots: u32,
    /// Ranks it takes at most when oversubscribed (`max_slots=`), if limited.
    pub slots_max: Option<u32>,
    /// Whether it is the host this process runs on.
    pub is_local: bool,
    /// Where it was first named.
    pub origin: Origin,
}

/// Where an entry stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In a hostfile.
    File {
        /// The file, as it was given.
        path: PathBuf,
        /// Line number, from 1.
        line: u32,
    },
    /// In the list given with `-H`.
    List {
        /// Position in the list, from 1.
        entry: u32,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::List { entry } => write!(f, "-H entry {entry}"),
        }
    }
}

/// Why a hostfile or a host list cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum HostfileError {
    /// It names no host.
    Empty {
        /// The file, or `-H`.
        source_name: String,
    },
    /// An entry is malformed.
    Entry {
        /// Where.
        origin: Origin,
        /// What is wrong with it and what was expected.
        problem: String,
    },
    /// The file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl fmt::Display for HostfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { source_name } => write!(f, "{source_name} names no host"),
            Self::Entry { origin, problem } => write!(f, "{origin}: {problem}"),
            Self::Unreadable { path, source } => {
                write!(f, "cannot read hostfile {}: {source}", path.display())
            }
        }
    }
}

impl std::error::Error for HostfileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { source, .. } => Some(source),
            Self::Empty { .. } | Self::Entry { .. } => None,
        }
    }
}

/// Reads the hostfile at `path`: one host a line, `#` starts a comment, no slot count means 1.
///
/// # Errors
/// The file is unreadable, has a malformed line (named), or names no host.
pub fn read_hostfile(path: &Path) -> Result<Vec<Host>, HostfileError> {
    let text = fs::read_to_string(path)
        .map_err(|source| HostfileError::Unreadable { path: path.to_owned(), source })?;
    parse_hostfile(&text, path, &this_host())
}

/// Reads a list as `-H` takes it: `host` or `host:slots`, separated by commas.
///
/// # Errors
/// An entry is malformed (named by its position), or there is none.
pub fn parse_host_list(list: &str) -> Result<Vec<Host>, HostfileError> {
    let this_host = this_host();
    let mut hosts = Vec::new();
    for (entry, text) in (1..).zip(list.split(',')) {
        let origin = Origin::List { entry };
        let parsed = parse_entry(text.trim(), &origin)?;
        add_host(&mut hosts, parsed, origin, &this_host)?;
    }
    Ok(hosts)
}

/// This host's name, as the kernel has it.
pub fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn parse_hostfile(text: &str, path: &Path, this_host: &str) -> Result<Vec<Host>, HostfileError> {
    let mut hosts = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        let origin = Origin::File { path: path.to_owned(), line };
        let parsed = parse_entry(text, &origin)?;
        add_host(&mut hosts, parsed, origin, this_host)?;
    }
    if hosts.is_empty() {
        return Err(HostfileError::Empty { source_name: path.display().to_string() });
    }
    Ok(hosts)
}

/// One entry before it is merged with others of the same host.
struct Entry {
    name: String,
    slots: u32,
    slots_max: Option<u32>,
}

/// `host`, `host:N`, `host slots=N`, `host slots=N max_slots=M`.
fn parse_entry(text: &str, origin: &Origin) -> Result<Entry, HostfileError> {
    let wrong = |problem: String| HostfileError::Entry { origin: origin.clone(), problem };
    let mut words = text.split_whitespace();
    let Some(host) = words.next() else {
        return Err(wrong("expected a host name, found nothing".to_owned()));
    };
    let (name, colon_slots) = split_host(host);
    if name.is_empty() || name.contains(['=', ':']) && name.parse::<IpAddr>().is_err() {
        return Err(wrong(format!("expected a host name, found '{host}'")));
    }
    let mut slots = colon_slots.map(|n| slot_count("slots", n)).transpose().map_err(wrong)?;
    let mut slots_max = None;
    for word in words {
        let target = match word.split_once('=') {
            Some(("slots", _)) => &mut slots,
            Some(("max_slots" | "max-slots", _)) => &mut slots_max,
            _ => return Err(wrong(format!("expected slots=N or max_slots=N, found '{word}'"))),
        };
        let (key, number) = word.split_once('=').unwrap_or((word, ""));
        if target.replace(slot_count(key, number).map_err(wrong)?).is_some() {
            return Err(wrong(format!("{key} is given twice")));
        }
    }
    let slots = slots.unwrap_or(1);
    if let Some(limit) = slots_max.filter(|limit| *limit < slots) {
        return Err(wrong(format!("max_slots is {limit}, less than the {slots} slots")));
    }
    Ok(Entry { name: name.to_owned(), slots, slots_max })
}

/// Splits `host:N`. A bare IPv6 address keeps its colons; `[address]:N` gives it a count.
fn split_host(host: &str) -> (&str, Option<&str>) {
    if let Some((address, rest)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (address, rest.strip_prefix(':'));
    }
    if host.parse::<IpAddr>().is_ok() {
        return (host, None);
    }
    host.rsplit_once(':').map_or((host, None), |(name, slots)| (name, Some(slots)))
}

fn slot_count(key: &str, text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count @ 1..=SLOTS_MAX) => Ok(count),
        _ => Err(format!("{key} must be a whole number from 1 to {SLOTS_MAX}, found '{text}'")),
    }
}

/// Adds an entry, or its slots to the same host's earlier one. All of this host's names are one.
fn add_host(
    hosts: &mut Vec<Host>,
    entry: Entry,
    origin: Origin,
    this_host: &str,
) -> Result<(), HostfileError> {
    let Entry { name, slots, slots_max } = entry;
    let is_local = is_local(&name, this_host);
    let known = hosts.iter_mut().find(|h| h.name == name || (h.is_local && is_local));
    let Some(host) = known else {
        hosts.push(Host { name, slots, slots_max, is_local, origin });
        return Ok(());
    };
    host.slots = match host.slots.checked_add(slots) {
        Some(total @ ..=SLOTS_MAX) => total,
        _ => {
            let problem = format!("'{name}' has more than {SLOTS_MAX} slots in all");
            return Err(HostfileError::Entry { origin, problem });
        }
    };
    host.slots_max = host.slots_max.zip(slots_max).map(|(a, b)| a.saturating_add(b));
    Ok(())
}

/// Whether `name` means the host named `this_host`: by loopback, or by its name with or without
/// the domain. Nothing is resolved, so an alias from a name server counts as another host.
fn is_local(name: &str, this_host: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    if let Ok(address) = name.parse::<IpAddr>() {
        return address.is_loopback();
    }
    name.eq_ignore_ascii_case("localhost")
        || name.eq_ignore_ascii_case(this_host)
        // Two full names of different domains are different hosts.
        || (!(name.contains('.') && this_host.contains('.')) && short(name) == short(this_host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Host>, HostfileError> {
        parse_hostfile(text, Path::new("hosts.txt"), "node7.example.org")
    }

    fn slots(hosts: &[Host]) -> Vec<(&str, u32)> {
        hosts.iter().map(|h| (h.name.as_str(), h.slots)).collect()
    }

    #[test]
    fn both_forms_comments_and_line_ends_are_read() {
        let text = "# cluster\nlocalhost slots=4 # here\r\n\n other:2\n  third\nfe80::1\n\
                    [fe80::2]:3\nx slots=2 max_slots=5\n";
        let hosts = parse(text).unwrap();
        assert_eq!(
            slots(&hosts),
            [
                ("localhost", 4),
                ("other", 2),
                ("third", 1),
                ("fe80::1", 1),
                ("fe80::2", 3),
                ("x", 2)
            ]
        );
        assert_eq!(hosts[5].slots_max, Some(5));
        assert_eq!(hosts[1].origin.to_string(), "hosts.txt:4");
    }

    #[test]
    fn one_host_under_several_names_is_one() {
        let hosts = parse("localhost:1\n127.0.0.1:2\nnode7:3\nNODE7.example.org:4\n::1\n").unwrap();
        assert_eq!(slots(&hosts), [("localhost", 11)]);
        assert!(hosts[0].is_local);
        let hosts = parse("a:1\nb\na slots=2\n").unwrap();
        assert_eq!(slots(&hosts), [("a", 3), ("b", 1)]);
    }

    #[test]
    fn other_domains_are_other_hosts() {
        assert!(is_local("node7", "node7.example.org"));
        assert!(is_local("node7.example.org", "node7"));
        assert!(!is_local("node7.other.net", "node7.example.org"));
        assert!(!is_local("node70", "node7"));
        assert!(!is_local("10.0.0.1", "node7"));
    }

    #[test]
    fn errors_name_the_line_and_the_problem() {
        let cases = [
            (
                "ok\nhost slots=x",
                "hosts.txt:2: slots must be a whole number from 1 to 65536, found 'x'",
            ),
            (
                "host slots=0",
                "hosts.txt:1: slots must be a whole number from 1 to 65536, found '0'",
            ),
            ("host:", "hosts.txt:1: slots must be a whole number from 1 to 65536, found ''"),
            ("host 4", "hosts.txt:1: expected slots=N or max_slots=N, found '4'"),
            ("slots=4", "hosts.txt:1: expected a host name, found 'slots=4'"),
            (":4", "hosts.txt:1: expected a host name, found ':4'"),
            ("h:2 slots=3", "hosts.txt:1: slots is given twice"),
            ("h slots=3 max_slots=2", "hosts.txt:1: max_slots is 2, less than the 3 slots"),
            ("h:65536\nh", "hosts.txt:2: 'h' has more than 65536 slots in all"),
            ("# nothing\n\n", "hosts.txt names no host"),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).unwrap_err().to_string(), expected, "for {text:?}");
        }
    }

    #[test]
    fn lists_count_repeated_names_and_name_bad_entries() {
        let hosts = parse_host_list("localhost,localhost:2, other:3").unwrap();
        assert_eq!(slots(&hosts), [("localhost", 3), ("other", 3)]);
        let error = parse_host_list("a,,b").unwrap_err().to_string();
        assert_eq!(error, "-H entry 2: expected a host name, found nothing");
    }
}

//! The variables a launcher gives to a rank: names, values, and where the values come from.
//!
//! Owns the writing side of the contract; `syncline_comm::env` reads it. Never reads a variable
//! itself. Called by [`crate::Job`] when it starts, and by `run` to refuse reserved names.

use std::fmt::Write;
use std::io;
use std::net::TcpListener;

/// Number of this process in the job, from 0.
pub const RANK: &str = "RANK";
/// Number of processes in the job.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// Number of this process among those on its host, from 0.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// Number of the job's processes on this host.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// Where rank 0 listens for the rendezvous.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// TCP port of the rendezvous.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// 32 random bytes in hexadecimal, the same for every rank, new for every job.
pub const JOB_SECRET: &str = "SYNCLINE_JOB_SECRET";
/// `1` in a process that this launcher started.
pub const LAUNCHER: &str = "SYNCLINE_LAUNCHER";

/// Every name above: a user's `--env` may not set them.
pub const RESERVED: [&str; 8] = [
    RANK,
    WORLD_SIZE,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    MASTER_ADDR,
    MASTER_PORT,
    JOB_SECRET,
    LAUNCHER,
];

/// What all ranks of one job share.
pub(crate) struct JobVariables {
    pub(crate) world_size: u32,
    pub(crate) master_addr: String,
    pub(crate) master_port: u16,
    pub(crate) secret: String,
}

impl JobVariables {
    /// The full set for `rank`. All ranks are on this host, so local and global numbers agree.
    pub(crate) fn for_rank(&self, rank: u32) -> [(&'static str, String); 8] {
        let world_size = self.world_size.to_string();
        [
            (RANK, rank.to_string()),
            (WORLD_SIZE, world_size.clone()),
            (LOCAL_RANK, rank.to_string()),
            (LOCAL_WORLD_SIZE, world_size),
            (MASTER_ADDR, self.master_addr.clone()),
            (MASTER_PORT, self.master_port.to_string()),
            (JOB_SECRET, self.secret.clone()),
            (LAUNCHER, "1".to_owned()),
        ]
    }
}

/// A fresh job secret: 64 hexadecimal digits.
///
/// # Errors
/// The system's random source failed.
pub(crate) fn new_secret() -> Result<String, getrandom::Error> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

/// A port of `addr` that was free a moment ago. It is not held: rank 0 has to bind it, and
/// another process could take it first. The kernel hands out its automatic ports spread over a
/// wide range, which makes that rare; the rendezvous reports it when it happens.
///
/// # Errors
/// `addr` is no address of this host, or has no free port.
pub(crate) fn free_port(addr: &str) -> io::Result<u16> {
    Ok(TcpListener::bind((addr, 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_and_new_each_time() {
        let (first, second) = (new_secret().unwrap(), new_secret().unwrap());
        assert_eq!(first.len(), 64);
        assert!(first.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(first, second);
    }

    #[test]
    fn every_variable_set_is_reserved() {
        let job = JobVariables {
            world_size: 3,
            master_addr: "127.0.0.1".to_owned(),
            master_port: 9,
            secret: "s".to_owned(),
        };
        let names: Vec<_> = job.for_rank(2).iter().map(|(name, _)| *name).collect();
        assert_eq!(names, RESERVED);
    }

    #[test]
    fn a_free_port_can_be_bound() {
        let port = free_port("127.0.0.1").unwrap();
        TcpListener::bind(("127.0.0.1", port)).unwrap();
    }
}

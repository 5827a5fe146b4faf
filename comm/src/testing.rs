//! Ranks as threads of one process, over the real transports. For tests only.

use crate::config::{Config, JobSecret, TransportChoice};
use crate::env::Place;
use crate::{Communicator, Result};
use std::net::TcpListener;
use std::time::Duration;

/// Runs `body` on `world_size` ranks, each a thread, and returns what each returned, by rank.
///
/// # Panics
/// If a rank cannot join, or its body panics.
pub fn threads<T: Send>(
    world_size: u32,
    adjust: impl Fn(&mut Config) + Sync,
    body: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    try_threads(world_size, adjust, |world| body(world.expect("joined")))
}

/// The same, but a rank that cannot join is the body's to judge.
///
/// # Panics
/// If a body panics.
pub fn try_threads<T: Send>(
    world_size: u32,
    adjust: impl Fn(&mut Config) + Sync,
    body: impl Fn(Result<Communicator>) -> T + Sync,
) -> Vec<T> {
    let port = free_port();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let (adjust, body) = (&adjust, &body);
                scope.spawn(move || {
                    let mut config = config(rank, world_size, port);
                    adjust(&mut config);
                    body(Communicator::connect(config))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("the rank's body panicked")).collect()
    })
}

/// Settings of one rank of a job on this host.
pub fn config(rank: u32, world_size: u32, port: u16) -> Config {
    Config {
        place: Place { rank, world_size, master_port: port, launcher: "test", ..Place::alone() },
        secret: JobSecret::from_hex(&"5a".repeat(32)).expect("hex"),
        transport: TransportChoice::Auto,
        timeout: Duration::from_secs(60),
        connect_timeout: Duration::from_secs(30),
        ..Config::alone()
    }
}

/// A port nobody uses at the moment.
///
/// # Panics
/// If this host has none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

//! Which ranks share a host: not a name, which may lie, but what the kernel says.

use std::os::fd::AsFd;

/// Equal on two ranks only if shared memory and loopback reach from one to the other: the boot of
/// the kernel, and the network and user namespaces. And only if both play the same host, if any.
pub(super) fn host_id(played: Option<u32>) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = |name: &str| {
        std::fs::read_link(format!("/proc/self/ns/{name}"))
            .map_or_else(|_| String::from("?"), |link| link.to_string_lossy().into_owned())
    };
    let played = played.map_or_else(String::new, |host| format!(" as {host}"));
    format!("{} {} {}{played}", boot.trim(), space("net"), space("user"))
}

/// For people only.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Asks for long queues; the system may give less.
pub(super) fn relisten(listener: &impl AsFd, backlog: i32) {
    let _ = rustix::net::listen(listener, backlog);
}

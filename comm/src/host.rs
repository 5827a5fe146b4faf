//! What this host can do for Syncline: the facts behind `syncline info`.

use crate::bootstrap::host::host_name;
use crate::transport::shm::{NodeSegment, Puller, ShmUnavailable};
use syncline_kernels::variant;

/// Facts about this host, as this process may use it.
#[derive(Clone, Debug)]
pub struct HostReport {
    lines: Vec<(&'static str, String)>,
    transports: Vec<(&'static str, String)>,
}

impl HostReport {
    /// Looks; takes milliseconds and leaves nothing behind.
    pub fn probe() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let kernel = rustix::system::uname();
        let lines = vec![
            ("name", host_name()),
            (
                "kernel",
                format!(
                    "{} {}",
                    kernel.sysname().to_string_lossy(),
                    kernel.release().to_string_lossy()
                ),
            ),
            ("cores", format!("{cores} usable by this process")),
            ("reduction kernels", format!("{:?}", variant()).to_lowercase()),
            ("open files", limit(rustix::process::Resource::Nofile)),
            ("locked memory", limit(rustix::process::Resource::Memlock)),
        ];
        let (shm, cross_memory) = shared_memory();
        let transports = vec![
            ("loopback", "yes: a rank to itself".to_owned()),
            ("shm", shm),
            ("process_vm_readv", cross_memory),
            ("tcp", "yes: between hosts, and where shared memory is refused".to_owned()),
            ("rdma", rdma()),
            ("nccl", "no: not in this build".to_owned()),
        ];
        Self { lines, transports }
    }

    /// Facts, by name.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        self.lines.clone()
    }

    /// Each transport: `yes` or `no`, and why.
    pub fn transports(&self) -> Vec<(&'static str, String)> {
        self.transports.clone()
    }
}

fn limit(resource: rustix::process::Resource) -> String {
    rustix::process::getrlimit(resource)
        .current
        .map_or_else(|| "unlimited".into(), |n| n.to_string())
}

/// Whether ranks of this host may share memory, and read one another's.
fn shared_memory() -> (String, String) {
    match NodeSegment::for_threads(2) {
        Ok(segments) => {
            let cross_memory = match Puller::probe(&segments[0], 1) {
                Some(_) => "yes, to a process of the same user: ranks of a job probe it per pair",
                None => "no: the kernel refuses it (a container, or yama)",
            };
            ("yes: between ranks of one host".into(), cross_memory.into())
        }
        Err(ShmUnavailable { reason }) => (format!("no: {reason}"), "no: no segment".into()),
    }
}

fn rdma() -> String {
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    match devices {
        0 => "no: this host has no RDMA device".into(),
        n => format!("no: {n} device(s) found, verbs are not in this build"),
    }
}

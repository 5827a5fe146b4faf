//! What this host can do for Syncline: the facts behind `syncline info`.

use crate::bootstrap::host::host_name;
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
        let transports = vec![
            ("loopback", "yes: a rank to itself".to_owned()),
            ("shm", String::new()),
            ("process_vm_readv", String::new()),
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
    rustix::process::getrlimit(resource).current.map_or("unlimited".into(), |n| n.to_string())
}

fn rdma() -> String {
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    match devices {
        0 => "no: this host has no RDMA device".into(),
        n => format!("no: {n} device(s) found, verbs are not in this build"),
    }
}

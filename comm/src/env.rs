//! The launcher's contract: which rank this process is, from whichever launcher started it.
//!
//! | launcher | rank and size | meeting place |
//! |---|---|---|
//! | `syncline run`, torchrun, by hand | `RANK`, `WORLD_SIZE` | `MASTER_ADDR`, `MASTER_PORT` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE` | `MASTER_*`, or derived on one host |
//! | MPICH, Intel MPI, `srun --mpi=pmi2` | `PMI_RANK`, `PMI_SIZE` | the same |
//! | Slurm `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` | `MASTER_*`, or derived |
//!
//! The first row that is complete wins, so mpirun or torchrun inside a Slurm job is understood.
//! Slurm's own variables count only inside a step: in a batch script outside `srun` they
//! describe tasks that nobody starts.

use crate::error::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::str::FromStr;

/// Environment variables, read once: the only place that does.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// This process's.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn current() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
                .collect(),
        )
    }

    /// For tests and for programs that start ranks as threads.
    pub fn from_pairs<K: Into<String>, V: Into<String>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        Self(pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }

    /// A variable that is set and not empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A variable parsed.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] naming variable and value.
    pub fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let bad = || Error::new(ErrorKind::Config, format!("{name}={text:?} cannot be understood"));
        text.trim().parse().map(Some).map_err(|_| bad())
    }
}

/// Where this process stands in its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// This process, `0..world_size`.
    pub rank: u32,
    /// Processes in the job.
    pub world_size: u32,
    /// This process among those of its host, where the launcher says so.
    pub local_rank: Option<u32>,
    /// Host name or address of rank 0.
    pub master_addr: String,
    /// Port of the rendezvous on rank 0.
    pub master_port: u16,
    /// Which launcher's variables were used.
    pub launcher: &'static str,
}

impl Place {
    /// From a launcher's variables; a process started by none is a world of one.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if variables contradict each other or the meeting place of a job of
    /// several hosts is not known.
    pub fn from_env(env: &Environment) -> Result<Self> {
        let place = Self::named(env, "RANK", "WORLD_SIZE", &["LOCAL_RANK"], "environment")?;
        let open_mpi = || {
            Self::named(
                env,
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                &["OMPI_COMM_WORLD_LOCAL_RANK"],
                "Open MPI",
            )
        };
        let pmi_local = ["MPI_LOCALRANKID", "SLURM_LOCALID"];
        let pmi = || Self::named(env, "PMI_RANK", "PMI_SIZE", &pmi_local, "PMI");
        let slurm = || -> Result<Option<Self>> {
            if env.text("SLURM_STEP_ID").is_none() {
                return Ok(None);
            }
            Self::named(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", &["SLURM_LOCALID"], "Slurm")
        };
        let found = match place {
            Some(place) => Some(place),
            None => match open_mpi()? {
                Some(place) => Some(place),
                None => match pmi()? {
                    Some(place) => Some(place),
                    None => slurm()?,
                },
            },
        };
        found.map_or_else(|| Ok(Self::alone()), |place| place.meeting(env))
    }

    /// A world of one.
    pub fn alone() -> Self {
        Self {
            rank: 0,
            world_size: 1,
            local_rank: Some(0),
            master_addr: "127.0.0.1".into(),
            master_port: 0,
            launcher: "none",
        }
    }

    fn named(
        env: &Environment,
        rank_name: &str,
        size_name: &str,
        local_names: &[&str],
        launcher: &'static str,
    ) -> Result<Option<Self>> {
        let (rank, size) = (env.parsed::<u32>(rank_name)?, env.parsed::<u32>(size_name)?);
        let config = |text: String| Err(Error::new(ErrorKind::Config, text));
        let (rank, world_size) = match (rank, size) {
            (Some(rank), Some(size)) => (rank, size),
            (None, None) => return Ok(None),
            (Some(_), None) => return config(format!("{rank_name} is set, {size_name} is not")),
            (None, Some(_)) => return config(format!("{size_name} is set, {rank_name} is not")),
        };
        if rank >= world_size {
            return config(format!(
                "{rank_name}={rank} does not lie in a world of {size_name}={world_size}"
            ));
        }
        let mut local_rank = None;
        for name in local_names {
            if local_rank.is_none() {
                local_rank = env.parsed(name)?;
            }
        }
        Ok(Some(Self { rank, world_size, local_rank, launcher, ..Self::alone() }))
    }

    /// Fills in where rank 0 is to be met.
    fn meeting(mut self, env: &Environment) -> Result<Self> {
        if self.world_size == 1 {
            return Ok(self);
        }
        let port = env.parsed::<u16>("MASTER_PORT")?;
        let address = env.text("MASTER_ADDR").map(str::to_owned);
        let derived = derived_meeting(env, self.launcher);
        self.master_addr = match address.or_else(|| derived.as_ref().map(|(host, _)| host.clone()))
        {
            Some(address) => address,
            None => {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!(
                        "{} ranks by {}, MASTER_ADDR is not set",
                        self.world_size, self.launcher
                    ),
                )
                .hint("set MASTER_ADDR and MASTER_PORT to an address and a free port of rank 0"));
            }
        };
        // torchrun's agent listens on MASTER_PORT itself, and ports near it serve its connections.
        let agent_listens = env.text("TORCHELASTIC_USE_AGENT_STORE") == Some("True");
        let run = env.text("TORCHELASTIC_RUN_ID").unwrap_or_default();
        let port =
            port.map(|p| if agent_listens { port_from(&format!("torchrun {run} {p}")) } else { p });
        self.master_port = env
            .parsed::<u16>("SYNCLINE_PORT")?
            .or(port)
            .or_else(|| derived.map(|(_, port)| port))
            .ok_or_else(|| {
                Error::new(ErrorKind::Config, "MASTER_ADDR is set, MASTER_PORT is not")
                    .hint("set MASTER_PORT to a free port of rank 0's host")
            })?;
        Ok(self)
    }
}

/// A meeting place all ranks can compute, where the launcher gives none.
fn derived_meeting(env: &Environment, launcher: &str) -> Option<(String, u16)> {
    let local = "127.0.0.1".to_owned();
    match launcher {
        // All ranks on this host: the namespace, unique per job, names the port.
        "Open MPI" => {
            let all_local =
                env.text("OMPI_COMM_WORLD_LOCAL_SIZE") == env.text("OMPI_COMM_WORLD_SIZE");
            let job = env.text("PMIX_NAMESPACE").or_else(|| env.text("OMPI_MCA_ess_base_jobid"))?;
            all_local.then(|| (local, port_from(job)))
        }
        // hydra's proxy is the parent of all its ranks.
        "PMI" => {
            let all_local = env.text("MPI_LOCALNRANKS") == env.text("PMI_SIZE");
            let job = format!("hydra-{}", std::os::unix::process::parent_id());
            all_local.then(|| (local, port_from(&job)))
        }
        "Slurm" => {
            let (job, step) = (env.text("SLURM_JOB_ID")?, env.text("SLURM_STEP_ID")?);
            let port = port_from(&format!("{job}.{step}"));
            let one_node =
                env.text("SLURM_STEP_NUM_NODES").or_else(|| env.text("SLURM_NNODES")) == Some("1");
            let host = if one_node {
                local
            } else {
                first_host(env.text("SLURM_STEP_NODELIST").or_else(|| env.text("SLURM_NODELIST"))?)
            };
            Some((host, port))
        }
        _ => None,
    }
}

/// First host of Slurm's short form: `n[3-5,9]` and `n3,n4` both start with `n3`.
fn first_host(list: &str) -> String {
    let end = list.find(',').unwrap_or(list.len());
    match list.find('[') {
        Some(open) if open < end => {
            let inner = &list[open + 1..];
            let first = inner.split([',', '-', ']']).next().unwrap_or_default();
            let suffix = inner.split_once(']').map_or("", |(_, rest)| rest);
            let suffix = suffix.split(',').next().unwrap_or_default();
            format!("{}{first}{suffix}", &list[..open])
        }
        _ => list[..end].to_owned(),
    }
}

/// A port outside the usual ephemeral range, spread by FNV-1a over the job's name.
fn port_from(job: &str) -> u16 {
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    20_000 + u16::try_from(hash % 12_000).expect("less than 12000")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(pairs: &[(&str, &str)]) -> Result<Place> {
        Place::from_env(&Environment::from_pairs(pairs.iter().copied()))
    }

    #[test]
    fn a_process_alone_is_a_world_of_one() {
        assert_eq!(place(&[]).unwrap(), Place::alone());
    }

    #[test]
    fn torchrun_and_by_hand() {
        let pairs = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "10.1.2.3"),
            ("MASTER_PORT", "29500"),
        ];
        let found = place(&pairs).unwrap();
        assert_eq!((found.rank, found.world_size, found.local_rank), (3, 4, Some(1)));
        assert_eq!((&*found.master_addr, found.master_port), ("10.1.2.3", 29500));
        let agent = [&pairs[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        let derived = place(&agent).unwrap().master_port;
        assert!((20_000..32_000).contains(&derived) && derived != 29500, "{derived}");
    }

    #[test]
    fn open_mpi_and_hydra_on_one_host_need_no_address() {
        let ompi = place(&[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "prterun-host-1@1"),
        ])
        .unwrap();
        assert_eq!((ompi.rank, ompi.local_rank, ompi.launcher), (1, Some(1), "Open MPI"));
        assert_eq!(ompi.master_addr, "127.0.0.1");
        let pmi = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
        assert!(place(&pmi).is_ok());
        let over_hosts = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "1")];
        let error = place(&over_hosts).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("MASTER_ADDR is not set"), "{error}");
    }

    #[test]
    fn slurm_counts_only_inside_a_step() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "7")];
        assert_eq!(place(&batch).unwrap().world_size, 1);
        let step = [
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_STEP_NODELIST", "n[3-4]"),
            ("SLURM_STEP_NUM_NODES", "2"),
        ];
        let found = place(&step).unwrap();
        assert_eq!((found.rank, found.world_size, &*found.master_addr), (1, 2, "n3"));
    }

    #[test]
    fn torchrun_inside_slurm_wins() {
        let pairs = [
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_STEP_ID", "0"),
            ("RANK", "2"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "1"),
        ];
        assert_eq!(place(&pairs).unwrap().rank, 2);
    }

    #[test]
    fn contradictions_are_named() {
        for (pairs, part) in [
            (&[("RANK", "4"), ("WORLD_SIZE", "4")][..], "RANK=4"),
            (&[("RANK", "0")][..], "WORLD_SIZE is not"),
            (&[("RANK", "x"), ("WORLD_SIZE", "4")][..], "RANK=\"x\""),
            (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")][..], "MASTER_PORT"),
        ] {
            let error = place(pairs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn slurm_host_lists() {
        for (list, first) in
            [("n1", "n1"), ("n1,n2", "n1"), ("n[07-09,12]", "n07"), ("a[1-2]b,c", "a1b")]
        {
            assert_eq!(first_host(list), first);
        }
    }
}

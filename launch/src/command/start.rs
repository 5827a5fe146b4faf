//! How ranks are started: the options that every command has which starts ranks.
//!
//! Owns the options and how they reach a [`Job`]. Called by `run`, `train`, `tune` and `perf`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use crate::Job;

/// Where ranks meet, and what starts them.
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// Address where rank 0 listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1",
          value_parser = NonEmptyStringValueParser::new())]
    master_addr: String,
    /// Port where rank 0 listens [default: a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    master_port: Option<u16>,
    /// Command that starts each rank, in which {rank} is the rank's number: words between spaces,
    /// put before the program. It must become the program (exec), not wait for it
    #[arg(long, value_name = "COMMAND", value_parser = NonEmptyStringValueParser::new())]
    wrap: Option<String>,
}

impl StartArgs {
    /// The command that starts each rank, if there is one.
    pub(crate) fn wrap(&self) -> Option<&str> {
        self.wrap.as_deref()
    }

    /// `job` with these settings.
    pub(crate) fn apply(&self, job: Job) -> Job {
        let mut job = job.master_addr(&self.master_addr);
        if let Some(port) = self.master_port {
            job = job.master_port(port);
        }
        match &self.wrap {
            Some(command) => job.wrap(command.split_whitespace()),
            None => job,
        }
    }
}

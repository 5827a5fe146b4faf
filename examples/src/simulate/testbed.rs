//! Defaults in the manner of testbeds that papers describe. Owns the numbers, and the words for
//! what is ours. Read by `plan`.

use std::time::Duration;

use clap::ValueEnum;

use crate::spec::Straggler;

/// A testbed by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Testbed {
    /// 8 workers, after the 9 nodes of OSP (arXiv 2306.16926)
    #[value(name = "osp9")]
    Osp9,
    /// 8 workers, one of them slow once, after scenario 1 of Sync-Switch (arXiv 2104.08364)
    SyncSwitchS1,
    /// 8 workers, two of them slow four times, after scenario 2 of Sync-Switch
    SyncSwitchS2,
}

/// What a testbed presets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Preset {
    pub(super) ranks: u32,
    pub(super) rate: &'static str,
    pub(super) bytes: u64,
    pub(super) compute: Duration,
    pub(super) batch: u32,
    pub(super) steps: u64,
    pub(super) stragglers: Vec<Straggler>,
    /// What is ours, and not the paper's.
    pub(super) note: &'static str,
}

const OSP9: &str = "\
osp9, after arXiv 2306.16926: the paper has 9 nodes, one of them a parameter server. Here are 8
ranks without a server: OSP and BSP reduce among themselves, ASP's server is sharded over the
ranks. Assumed, not the paper's: 10 Gbit/s, 102 MB of gradients (as many as ResNet-50 has), 250 ms
of computation, a batch of 64.";

const SYNC_SWITCH: &str = "\
sync-switch, after arXiv 2104.08364: 8 workers with as many servers, sharded over them. The paper
delays the network packets of a straggler, so that each step meets the delay several times; here
the straggler computes that much longer, once a step. Assumed, not the paper's: 10 Gbit/s, 1.9 MB
of gradients (as many as ResNet-32 has), 200 ms of computation, BSP by all_reduce, how long the
slow phases last (12 steps once, or 6 steps four times, of 48).";

impl Testbed {
    pub(super) fn preset(self) -> Preset {
        let slow = |rank, ms, from, to| Straggler {
            rank,
            delay: Duration::from_millis(ms),
            steps: Some((from, to)),
        };
        let sync_switch = |stragglers| Preset {
            ranks: 8,
            rate: "10gbit",
            bytes: 1_900_000,
            compute: Duration::from_millis(200),
            batch: 128,
            steps: 48,
            stragglers,
            note: SYNC_SWITCH,
        };
        match self {
            Self::Osp9 => Preset {
                ranks: 8,
                rate: "10gbit",
                bytes: 102_000_000,
                compute: Duration::from_millis(250),
                batch: 64,
                steps: 12,
                stragglers: Vec::new(),
                note: OSP9,
            },
            Self::SyncSwitchS1 => sync_switch(vec![slow(1, 10, 12, 23)]),
            Self::SyncSwitchS2 => {
                let phases = [6, 18, 30, 42].into_iter();
                let both =
                    phases.flat_map(|from| [1, 2].map(|rank| slow(rank, 30, from, from + 5)));
                sync_switch(both.collect())
            }
        }
    }
}

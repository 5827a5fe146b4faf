//! One run's result from the messages of its ranks. Used by `driver` alone.

use std::collections::BTreeMap;

use syncline::record::Decision;

use super::TrainError;
use crate::BoxError;
use crate::protocol::{Message, Summary};
use crate::report::{Run, percentile};
use crate::spec::RunSpec;

/// What has arrived of a run.
#[derive(Debug)]
pub(super) struct Gather<'a> {
    spec: &'a RunSpec,
    transport: String,
    parameter_bytes: u64,
    /// Accuracy and time by epoch.
    accuracies: BTreeMap<u32, (f64, f64)>,
    /// Loss and deferred share by epoch: after a rollback an epoch ends again.
    epochs: BTreeMap<u32, (f32, f64)>,
    decisions: Vec<Decision>,
    sync_times_us: Vec<f32>,
    done: BTreeMap<u32, Summary>,
    /// Epoch, step and learning rate of the first rank to say so.
    diverged: Option<(u32, u64, f32)>,
}

impl<'a> Gather<'a> {
    pub(super) fn new(spec: &'a RunSpec) -> Self {
        Self {
            spec,
            transport: String::new(),
            parameter_bytes: 0,
            accuracies: BTreeMap::new(),
            epochs: BTreeMap::new(),
            decisions: Vec::new(),
            sync_times_us: Vec::new(),
            done: BTreeMap::new(),
            diverged: None,
        }
    }

    /// What to call the failure of a run's ranks, after all that they have said.
    pub(super) fn failure(&self, title: &str, source: BoxError) -> TrainError {
        let run = title.to_owned();
        match self.diverged {
            Some((epoch, step, lr)) => TrainError::Diverged { run, epoch, step, lr, source },
            None => TrainError::Ranks { run, source },
        }
    }

    /// Takes in a message.
    pub(super) fn add(&mut self, rank: u32, message: Message) -> Result<(), TrainError> {
        let senseless = |reason: String| Err(TrainError::Message { rank, reason });
        if rank >= self.spec.ranks {
            return senseless(format!("a message, but there are only {} ranks", self.spec.ranks));
        }
        match message {
            Message::Accuracy { epoch, t_s, accuracy } => {
                if self.accuracies.insert(epoch, (t_s, accuracy)).is_some() {
                    return senseless(format!("the accuracy of epoch {epoch} a second time"));
                }
            }
            Message::Diverged { epoch, step, lr } => {
                self.diverged.get_or_insert((epoch, step, lr));
            }
            Message::Done(summary) => {
                if self.done.insert(rank, summary).is_some() {
                    return senseless("its result a second time".to_owned());
                }
            }
            Message::Decision(decision) if rank == 0 => self.decisions.push(decision),
            Message::Epoch { epoch, loss, deferred_pct, .. } if rank == 0 && loss.is_finite() => {
                self.epochs.insert(epoch, (loss, deferred_pct));
            }
            // Rank 0 may have sat out the epoch.
            Message::Epoch { epoch, loss, deferred_pct, .. } => {
                self.epochs.entry(epoch).or_insert((loss, deferred_pct));
            }
            Message::Started { parameter_bytes, transport, .. } if rank == 0 => {
                self.parameter_bytes = parameter_bytes;
                self.transport = transport;
            }
            Message::SyncTimes { us } => self.sync_times_us.extend(us),
            Message::Decision(_) | Message::Progress { .. } | Message::Started { .. } => {}
        }
        Ok(())
    }

    /// The result, if every rank has sent its own.
    pub(super) fn finish(mut self, title: &str) -> Result<Run, TrainError> {
        let missing: Vec<u32> =
            (0..self.spec.ranks).filter(|rank| !self.done.contains_key(rank)).collect();
        let of_rank_0 = self.done.get(&0);
        let accuracy = of_rank_0.and_then(|summary| summary.final_accuracy);
        let final_test_loss = of_rank_0.and_then(|summary| summary.final_test_loss);
        let (true, Some(final_accuracy)) = (missing.is_empty(), accuracy) else {
            let ranks = if missing.is_empty() { vec![0] } else { missing };
            return Err(TrainError::Unfinished { run: title.to_owned(), ranks });
        };
        let spec = self.spec;
        let mean = |value: fn(&Summary) -> f64| {
            self.done.values().map(value).sum::<f64>() / self.done.len() as f64
        };
        // Without one that only serves, which waits all the time.
        let mean_of_workers = |value: fn(&Summary) -> f64| {
            let workers = self.done.values().filter(|summary| summary.samples > 0);
            workers.clone().map(value).sum::<f64>() / workers.count() as f64
        };
        let wall_s = self.done.values().map(|summary| summary.wall_s).fold(0.0, f64::max);
        let samples: u64 = self.done.values().map(|summary| summary.samples).sum();
        let times = self.sync_times_us.iter().map(|us| f64::from(*us));
        let deferred = self.epochs.values().map(|(_, deferred_pct)| deferred_pct).sum::<f64>();
        let switch_s = self.done.values().map(|summary| summary.switch_s).fold(0.0, f64::max);
        Ok(Run {
            model: spec.model.clone(),
            samples_per_s: samples as f64 / wall_s,
            exposed_comm_pct: mean_of_workers(|summary| summary.exposed_s / summary.wall_s) * 100.0,
            bst_mean_ms: times.sum::<f64>() / self.sync_times_us.len().max(1) as f64 / 1e3,
            compute_mean_ms: mean_of_workers(|summary| summary.compute_s / summary.steps as f64)
                * 1e3,
            bytes_per_iteration: mean(|summary| summary.bytes_sent as f64 / summary.steps as f64),
            bst_p99_ms: f64::from(percentile(&mut self.sync_times_us, 99.0)) / 1e3,
            final_accuracy,
            final_test_loss,
            seed: spec.seed,
            ranks: spec.ranks,
            transport: self.transport,
            link_rate_mbps: spec.link_rate.mbps(),
            link_latency_us: spec.link_latency.as_secs_f64() * 1e6,
            epochs: spec.epochs,
            wall_s,
            accuracy_over_time: self.accuracies.into_values().collect(),
            deferred_pct: deferred / self.epochs.len().max(1) as f64,
            loss_per_epoch: self.epochs.into_values().map(|(loss, _)| loss).collect(),
            switch_ms: switch_s * 1e3,
            decisions: self.decisions,
            data: spec.data.name().to_owned(),
            net: spec.net.name().to_owned(),
            parameter_bytes: self.parameter_bytes,
            batch: spec.batch,
            lr: spec.lr,
            momentum: spec.momentum,
            setting: spec.setting(),
        })
    }
}

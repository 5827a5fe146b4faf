//! A rank's run log. Owns the file, and that trouble with it is told once and stops nothing.
//! Called by the loop of a rank.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use syncline::StepReport;
use syncline::record::{
    Accuracy, Decision, End, Epoch, LogError, Record, Run, RunLog, Step, StepContext, VERSION,
};

use crate::spec::RunSpec;

/// The log, or nothing where none was asked for or it could not be written.
#[derive(Debug)]
pub(super) struct Journal {
    rank: u32,
    log: Option<RunLog>,
}

impl Journal {
    /// Starts the log that `spec` asks for.
    pub(super) fn start(spec: &RunSpec, rank: u32) -> Self {
        let Some(dir) = &spec.log else { return Self { rank, log: None } };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let run = Run {
            version: VERSION,
            model: spec.model.name().to_owned(),
            rank,
            ranks: spec.ranks,
            setting: BTreeMap::from([
                ("seed".to_owned(), spec.seed.to_string()),
                ("setting".to_owned(), spec.setting()),
                ("learning rate".to_owned(), spec.lr.to_string()),
                ("momentum".to_owned(), spec.momentum.to_string()),
                ("epochs".to_owned(), spec.epochs.to_string()),
            ]),
            started_unix_s: since.as_secs(),
        };
        match RunLog::create(dir, run) {
            Ok(log) => Self { rank, log: Some(log) },
            Err(error) => {
                warn(rank, &error);
                Self { rank, log: None }
            }
        }
    }

    pub(super) fn step(
        &mut self,
        report: &StepReport,
        steps: u64,
        t: Duration,
        samples: u64,
        loss: f32,
        learning_rate: f32,
        model: impl FnOnce() -> String,
    ) {
        self.write(|| {
            let (loss, learning_rate) = (f64::from(loss), f64::from(learning_rate));
            let context = StepContext { t, samples, loss, learning_rate, model: model() };
            // A session over a part of the ranks counts its own steps.
            Record::Step(Step { step: steps, ..Step::of(report, context) })
        });
    }

    pub(super) fn epoch(&mut self, epoch: impl FnOnce() -> Epoch) {
        self.write(|| Record::Epoch(epoch()));
    }

    pub(super) fn decision(&mut self, decision: &Decision) {
        self.write(|| Record::Decision(decision.clone()));
    }

    /// `epoch` counts from 0.
    pub(super) fn accuracy(&mut self, epoch: u32, t_s: f64, samples: u64, accuracy: f64) {
        let epoch = u64::from(epoch) + 1;
        self.write(|| Record::Accuracy(Accuracy { epoch, t_s, samples, accuracy }));
    }

    pub(super) fn end(&mut self, steps: u64, samples: u64, wall: Duration, outcome: String) {
        if let Some(log) = self.log.take() {
            let end = End { steps, samples, wall_s: wall.as_secs_f64(), outcome };
            log.end(end).unwrap_or_else(|error| warn(self.rank, &error));
        }
    }

    fn write(&mut self, record: impl FnOnce() -> Record) {
        let Some(log) = &mut self.log else { return };
        if let Err(error) = log.write(&record()) {
            warn(self.rank, &error);
            self.log = None;
        }
    }
}

fn warn(rank: u32, error: &LogError) {
    eprintln!("rank {rank} trains on without a log: {error}");
}

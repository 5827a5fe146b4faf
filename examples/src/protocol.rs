//! What a rank tells its parent: one JSON object a line on standard output, first key `syncline`.
//!
//! Other lines on standard output are the rank's own words and no error. Owns the messages and
//! their text form. Sent by `worker`, read by `driver`.

use std::fmt;
use std::io::{self, Write};

use serde::{Deserialize, Deserializer, Serialize};
use syncline::record::Decision;

/// How every line of ours starts.
const MARK: &str = "{\"syncline\":";

/// One message. Times are seconds on the rank's training clock, which starts when all ranks are
/// ready and stands still while accuracy is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "syncline", rename_all = "snake_case")]
pub enum Message {
    /// Accuracy of the parameters as they were at the end of an epoch; sent after training, each
    /// epoch by one rank.
    Accuracy {
        /// Epoch, from 0.
        epoch: u32,
        /// When the epoch ended.
        t_s: f64,
        /// Share of the test images in their class, 0 to 1.
        accuracy: f64,
    },
    /// The loss is not a number any more; the rank's last message.
    Diverged {
        /// Epoch, from 0.
        epoch: u32,
        /// Step in it, from 0.
        step: u64,
        /// The learning rate of that step.
        lr: f32,
    },
    /// Something was decided while training; from rank 0 only.
    Decision(Decision),
    /// The rank has trained and measured; its last message.
    Done(Summary),
    /// An epoch has ended.
    Epoch {
        /// Epoch, from 0.
        epoch: u32,
        /// When it ended.
        t_s: f64,
        /// Mean training loss over all ranks; one that is not finite arrives as NaN.
        #[serde(deserialize_with = "or_nan")]
        loss: f32,
        /// Part of the gradients' bytes whose synchronisation was deferred, 0 to 100.
        deferred_pct: f64,
    },
    /// How far training is; from the first rank that trains, at most ten a second.
    Progress {
        /// Epoch, from 0.
        epoch: u32,
        /// Steps done in the whole run.
        step: u64,
        /// Now.
        t_s: f64,
        /// This rank's loss in the last step; one that is not finite arrives as NaN.
        #[serde(deserialize_with = "or_nan")]
        loss: f32,
    },
    /// All ranks are ready, and training starts.
    Started {
        /// Bytes of all parameters.
        parameter_bytes: u64,
        /// Number of tensors.
        tensors: usize,
        /// Steps in an epoch.
        steps_per_epoch: u64,
        /// What carries the bytes.
        transport: String,
    },
    /// Some of the batch synchronisation times, in the order of the steps.
    SyncTimes {
        /// Microseconds from the end of a step's gradients to the start of the next step.
        us: Vec<f32>,
    },
}

/// The totals of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Steps done.
    pub steps: u64,
    /// Images trained on.
    pub samples: u64,
    /// The training clock at the end.
    pub wall_s: f64,
    /// Spent on gradients.
    pub compute_s: f64,
    /// Spent waiting for communication while nothing else went on.
    pub exposed_s: f64,
    /// Bytes this rank sent.
    pub bytes_sent: u64,
    /// Spent on going from one sync model, group of ranks or state to another.
    pub switch_s: f64,
    /// Accuracy of the parameters that training ended with; from rank 0 only.
    pub final_accuracy: Option<f64>,
    /// Mean loss on the test items at the end, in nats; from rank 0 only, none if not finite.
    #[serde(default)]
    pub final_test_loss: Option<f64>,
}

/// A number, or NaN for what JSON writes in place of one that is not finite.
pub(crate) fn or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    Ok(Option::<f32>::deserialize(deserializer)?.unwrap_or(f32::NAN))
}

/// A line that starts as ours but is none of our messages.
#[derive(Debug)]
pub struct BadMessage {
    /// The line, or its beginning.
    pub line: String,
    /// What is wrong with it.
    pub source: serde_json::Error,
}

impl fmt::Display for BadMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a message of this version: {}: {}", self.line, self.source)
    }
}

impl std::error::Error for BadMessage {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl Message {
    /// The message as a line, without the line's end.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("no map with keys that are not strings, no failing type")
    }

    /// Reads a line; `None` for one that is none of ours.
    ///
    /// # Errors
    ///
    /// The line has our mark, but the rest is not what it should be.
    pub fn from_line(line: &str) -> Result<Option<Self>, BadMessage> {
        if !line.starts_with(MARK) {
            return Ok(None);
        }
        serde_json::from_str(line)
            .map(Some)
            .map_err(|source| BadMessage { line: line.chars().take(80).collect(), source })
    }

    /// Writes the message to standard output, for the parent to read at once.
    ///
    /// # Errors
    ///
    /// Nobody reads any more.
    pub fn print(&self) -> io::Result<()> {
        let mut line = self.to_line();
        line.push('\n');
        let mut output = io::stdout().lock();
        output.write_all(line.as_bytes())?;
        output.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use syncline::record::DecisionKind;

    use super::*;

    fn decision() -> Decision {
        Decision {
            t_s: 1.5,
            step: 40,
            samples: 640,
            kind: DecisionKind::Switch,
            from: "bsp".to_owned(),
            to: "asp".to_owned(),
            reason: "the plan".to_owned(),
            evidence: BTreeMap::from([("loss".to_owned(), f64::INFINITY)]),
            cost_ms: Some(2.5),
        }
    }

    #[test]
    fn a_loss_that_is_no_number_arrives_as_one() {
        for loss in [f32::NAN, f32::INFINITY] {
            let progress = Message::Progress { epoch: 0, step: 1, t_s: 0.5, loss };
            let epoch = Message::Epoch { epoch: 0, t_s: 0.5, loss, deferred_pct: 0.0 };
            for line in [progress.to_line(), epoch.to_line()] {
                let message = Message::from_line(&line).unwrap().unwrap();
                let (Message::Progress { loss, .. } | Message::Epoch { loss, .. }) = message else {
                    panic!("{message:?}")
                };
                assert!(loss.is_nan(), "{line}");
            }
        }
    }

    #[test]
    fn messages_survive_their_way_through_a_line() {
        let messages = [
            Message::Started {
                parameter_bytes: 1 << 40,
                tensors: 8,
                steps_per_epoch: 22,
                transport: "tcp, paced \"x\"\n".to_owned(),
            },
            Message::Progress { epoch: 1, step: 30, t_s: 0.25, loss: 1.5 },
            Message::Epoch { epoch: 1, t_s: 0.25, loss: 0.1, deferred_pct: 63.0 },
            Message::Diverged { epoch: 1, step: 9, lr: 0.5 },
            Message::SyncTimes { us: vec![1.5, 2.0, 1e6] },
            Message::Decision(decision()),
            Message::Accuracy { epoch: 2, t_s: 1.0 / 3.0, accuracy: 0.97 },
            Message::Done(Summary {
                steps: 66,
                samples: 1056,
                wall_s: 1.0,
                compute_s: 0.6,
                exposed_s: 0.4,
                bytes_sent: 99,
                switch_s: 0.25,
                final_accuracy: None,
                final_test_loss: Some(1.5),
            }),
        ];
        for message in messages {
            let line = message.to_line();
            assert!(line.starts_with(MARK) && !line.contains('\n'), "{line}");
            assert_eq!(Message::from_line(&line).unwrap(), Some(message));
        }
    }

    #[test]
    fn other_lines_pass_and_broken_ones_are_errors() {
        assert_eq!(Message::from_line("hello").unwrap(), None);
        assert_eq!(Message::from_line("{\"other\":1}").unwrap(), None);
        for line in ["{\"syncline\":\"progress\"}", "{\"syncline\":\"what\"}", "{\"syncline\":"] {
            let error = Message::from_line(line).unwrap_err();
            assert!(error.to_string().contains(line), "{error}");
        }
    }
}

//! A rank's side of the control plane.

use super::{ControlMessage, Pace, Standing};
use crate::fault::{Fault, FaultKind};
use crate::id::Rank;
use crate::machine::Machine;
use crate::time::Instant;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// What happens to a member.
#[derive(Debug)]
pub enum MemberInput {
    /// This rank has begun so many calls; told with the next beat.
    Calls(u64),
    /// The stream to the hub ended.
    HubClosed {
        /// Why, in words.
        detail: String,
    },
    /// This rank will make no further call.
    Leave {
        /// Whether it unwinds from a panic.
        panicking: bool,
    },
    /// The hub said something.
    Message(ControlMessage),
    /// This rank's part of a gather round.
    Publish {
        /// Counted from 0.
        round: u32,
        /// Its part.
        bytes: Vec<u8>,
    },
    /// This rank has met a fault.
    Report(Fault),
}

/// What a member wants done.
#[derive(Debug, PartialEq, Eq)]
pub enum MemberOutput {
    /// Every rank has left; nothing more will come.
    AllLeft,
    /// The hub has told everybody of the fault, this rank last.
    Confirmed,
    /// The job's first cause; comes once.
    Fault(Fault),
    /// A gather round is complete.
    Gathered {
        /// Which.
        round: u32,
        /// By rank.
        blobs: Vec<Vec<u8>>,
    },
    /// A rank has left in good order.
    Left(Rank),
    /// Tell the hub.
    Send(ControlMessage),
    /// What the hub knows of everybody.
    Table(Vec<Standing>),
}

/// Beats, listens, reports.
#[derive(Debug)]
pub struct Member {
    rank: Rank,
    pace: Pace,
    calls: u64,
    next_beat: Instant,
    hub_heard: Instant,
    has_left: bool,
    is_over: bool,
    fault: Option<Fault>,
    outputs: VecDeque<MemberOutput>,
}

impl Member {
    /// Rank `rank`, just let in by the hub.
    pub fn new(rank: Rank, pace: Pace, now: Instant) -> Self {
        Self {
            rank,
            pace,
            calls: 0,
            next_beat: now,
            hub_heard: now,
            has_left: false,
            is_over: false,
            fault: None,
            outputs: VecDeque::new(),
        }
    }

    /// The first fault this member knows of.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    fn fail(&mut self, fault: Fault) {
        if self.fault.is_none() {
            self.fault = Some(fault.clone());
            self.outputs.push_back(MemberOutput::Fault(fault));
        }
    }

    fn message(&mut self, message: ControlMessage) {
        match message {
            ControlMessage::AllLeft => {
                self.is_over = true;
                self.outputs.push_back(MemberOutput::AllLeft);
            }
            ControlMessage::Fault(fault) => {
                self.fail(fault);
                self.outputs.push_back(MemberOutput::Confirmed);
            }
            ControlMessage::Left { rank, .. } => {
                if rank != self.rank {
                    self.outputs.push_back(MemberOutput::Left(rank));
                }
            }
            ControlMessage::Round { round, blobs } => {
                self.outputs.push_back(MemberOutput::Gathered { round, blobs });
            }
            ControlMessage::Table(table) => self.outputs.push_back(MemberOutput::Table(table)),
            ControlMessage::Beat { .. } | ControlMessage::Blob { .. } => {
                let detail = "the hub sent a message only a member may send";
                let fault = Fault::new(FaultKind::Protocol, self.rank, detail).with_culprit(0);
                self.fail(fault);
            }
        }
    }

    fn hub_lost(&mut self, detail: String) {
        if !self.is_over {
            self.is_over = true;
            if !self.has_left {
                self.fail(Fault::new(FaultKind::PeerLost, self.rank, detail).with_culprit(0));
            }
        }
    }
}

impl Machine for Member {
    type Input = MemberInput;
    type Output = MemberOutput;

    fn handle_input(&mut self, now: Instant, input: MemberInput) {
        match input {
            MemberInput::Calls(calls) => self.calls = calls,
            MemberInput::HubClosed { detail } => {
                let detail = format!("its control connection, the job's hub, ended: {detail}");
                self.hub_lost(detail);
            }
            MemberInput::Leave { panicking } => {
                if !self.has_left {
                    self.has_left = true;
                    let rank = self.rank;
                    let message = ControlMessage::Left { rank, panicking };
                    self.outputs.push_back(MemberOutput::Send(message));
                }
            }
            MemberInput::Message(message) => {
                self.hub_heard = now;
                self.message(message);
            }
            MemberInput::Publish { round, bytes } => {
                let message = ControlMessage::Blob { round, bytes };
                self.outputs.push_back(MemberOutput::Send(message));
            }
            MemberInput::Report(fault) => {
                if self.fault.is_none() && !self.is_over {
                    let message = ControlMessage::Fault(fault.clone());
                    self.outputs.push_back(MemberOutput::Send(message));
                }
                self.fail(fault);
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.is_over {
            return;
        }
        if now >= self.next_beat {
            self.next_beat = now + self.pace.beat;
            let calls = self.calls;
            self.outputs.push_back(MemberOutput::Send(ControlMessage::Beat { calls }));
        }
        let silence = now.since(self.hub_heard);
        if silence > self.pace.silence {
            let ms = silence.as_millis();
            self.hub_lost(format!("the job's hub gave no sign of life for {ms} ms"));
        }
    }

    fn poll_output(&mut self) -> Option<MemberOutput> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (!self.is_over).then_some(self.next_beat)
    }
}

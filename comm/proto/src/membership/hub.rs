//! The hub: one per job, beside rank 0.

use super::{ControlMessage, Pace, Standing};
use crate::fault::{Fault, FaultKind};
use crate::id::Rank;
use crate::machine::Machine;
use crate::operations::RankList;
use crate::time::Instant;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// What happens to the hub.
#[derive(Debug)]
pub enum HubInput {
    /// A rank's stream ended.
    Closed {
        /// Whose.
        rank: Rank,
        /// Why, in words.
        detail: String,
    },
    /// A rank was let in.
    Joined {
        /// Who.
        rank: Rank,
    },
    /// A rank said something.
    Message {
        /// Who.
        rank: Rank,
        /// What.
        message: ControlMessage,
    },
}

/// What the hub wants done.
#[derive(Debug, PartialEq, Eq)]
pub enum HubOutput {
    /// Everybody has left or is lost: close.
    Close,
    /// Tell a rank.
    Send {
        /// Whom.
        rank: Rank,
        /// What.
        message: ControlMessage,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    present: bool,
    left: bool,
    calls: u64,
    heard: Instant,
}

/// Gathers, watches, spreads the first fault.
#[derive(Debug)]
pub struct Hub {
    pace: Pace,
    join_deadline: Instant,
    seats: Vec<Seat>,
    rounds: BTreeMap<u32, BTreeMap<Rank, Vec<u8>>>,
    fault: Option<Fault>,
    next_table: Instant,
    said_all_left: bool,
    outputs: VecDeque<HubOutput>,
}

impl Hub {
    /// For `world_size` ranks, which all must have joined by `join_deadline`.
    pub fn new(world_size: u32, pace: Pace, now: Instant, join_deadline: Instant) -> Self {
        Self {
            pace,
            join_deadline,
            seats: alloc::vec![Seat::default(); world_size as usize],
            rounds: BTreeMap::new(),
            fault: None,
            next_table: now + pace.beat,
            said_all_left: false,
            outputs: VecDeque::new(),
        }
    }

    /// Whether a rank may still join under this number.
    pub fn has_room(&self, rank: Rank) -> bool {
        self.seats.get(rank as usize).is_some_and(|seat| !seat.present && !seat.left)
    }

    /// The first fault.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    fn is_full(&self) -> bool {
        self.seats.iter().all(|seat| seat.present || seat.left)
    }

    fn send(&mut self, rank: Rank, message: ControlMessage) {
        self.outputs.push_back(HubOutput::Send { rank, message });
    }

    /// Rank 0 last: the hub lives in its process, which may end as soon as it hears of a fault.
    fn send_all(&mut self, message: &ControlMessage) {
        let ranks = Rank::try_from(self.seats.len()).expect("ranks are counted in 32 bits");
        for rank in (0..ranks).rev() {
            if self.seats[rank as usize].present {
                self.send(rank, message.clone());
            }
        }
    }

    fn fail(&mut self, fault: Fault) {
        if self.fault.is_none() {
            self.fault = Some(fault.clone());
            self.send_all(&ControlMessage::Fault(fault));
        }
    }

    fn message(&mut self, now: Instant, rank: Rank, message: ControlMessage) {
        let Some(seat) = self.seats.get_mut(rank as usize) else { return };
        seat.heard = now;
        match message {
            ControlMessage::Beat { calls } => seat.calls = calls,
            ControlMessage::Blob { round, bytes } => {
                let blobs = self.rounds.entry(round).or_default();
                blobs.insert(rank, bytes);
                if blobs.len() == self.seats.len() {
                    let blobs = self.rounds.remove(&round).unwrap_or_default();
                    let blobs = blobs.into_values().collect();
                    self.send_all(&ControlMessage::Round { round, blobs });
                }
            }
            ControlMessage::Fault(fault) => self.fail(fault),
            ControlMessage::Left { panicking, .. } => {
                seat.left = true;
                if panicking {
                    let detail = "its program panicked";
                    self.fail(Fault::new(FaultKind::PeerLost, rank, detail).with_culprit(rank));
                } else {
                    self.send_all(&ControlMessage::Left { rank, panicking });
                }
                self.close_when_empty();
            }
            // Only the hub says these.
            ControlMessage::AllLeft | ControlMessage::Round { .. } | ControlMessage::Table(_) => {
                let detail = "a message only the hub may send";
                self.fail(Fault::new(FaultKind::Protocol, 0, detail).with_culprit(rank));
            }
        }
    }

    fn closed(&mut self, rank: Rank, detail: &str) {
        let Some(seat) = self.seats.get_mut(rank as usize) else { return };
        let said_goodbye = seat.left;
        seat.present = false;
        seat.left = true;
        if !said_goodbye {
            let detail = format!("its control connection ended without goodbye: {detail}");
            self.fail(Fault::new(FaultKind::PeerLost, 0, detail).with_culprit(rank));
        }
        self.close_when_empty();
    }

    fn close_when_empty(&mut self) {
        if self.said_all_left || !self.seats.iter().all(|seat| seat.left) {
            return;
        }
        self.said_all_left = true;
        self.send_all(&ControlMessage::AllLeft);
        self.outputs.push_back(HubOutput::Close);
    }

    fn table(&self, now: Instant) -> Vec<Standing> {
        let standing = |seat: &Seat| Standing {
            calls: seat.calls,
            age_ms: u32::try_from(now.since(seat.heard).as_millis()).unwrap_or(u32::MAX),
            has_left: seat.left,
        };
        self.seats.iter().map(standing).collect()
    }
}

impl Machine for Hub {
    type Input = HubInput;
    type Output = HubOutput;

    fn handle_input(&mut self, now: Instant, input: HubInput) {
        match input {
            HubInput::Closed { rank, detail } => self.closed(rank, &detail),
            HubInput::Joined { rank } => {
                if let Some(seat) = self.seats.get_mut(rank as usize) {
                    *seat = Seat { present: true, heard: now, ..*seat };
                }
                if let Some(fault) = self.fault.clone() {
                    self.send(rank, ControlMessage::Fault(fault));
                }
            }
            HubInput::Message { rank, message } => self.message(now, rank, message),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        if !self.is_full() && now >= self.join_deadline {
            let absent = self.seats.iter().zip(0..).filter(|(s, _)| !s.present && !s.left);
            let absent: Vec<Rank> = absent.map(|(_, rank)| rank).collect();
            let fault = Fault {
                culprit: absent.first().copied(),
                ..Fault::new(FaultKind::Timeout, 0, format!("{} never joined", RankList(&absent)))
            };
            self.fail(fault);
            self.join_deadline = Instant(u64::MAX);
        }
        if now >= self.next_table {
            self.next_table = now + self.pace.beat;
            let silent = self.seats.iter().zip(0..).find(|(seat, _)| {
                seat.present && !seat.left && now.since(seat.heard) > self.pace.silence
            });
            if let Some((seat, rank)) = silent {
                let ms = now.since(seat.heard).as_millis();
                let detail = format!("no sign of life for {ms} ms: stopped, or cut off");
                self.fail(Fault::new(FaultKind::PeerLost, 0, detail).with_culprit(rank));
            }
            let table = self.table(now);
            self.send_all(&ControlMessage::Table(table));
        }
    }

    fn poll_output(&mut self) -> Option<HubOutput> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(if self.is_full() { self.next_table } else { self.next_table.min(self.join_deadline) })
    }
}

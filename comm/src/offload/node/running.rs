//! The call at the head of a lane: which of its stages can begin, and doing the next of each.
//!
//! Owns the counts of one call. Publishes through the lane; compares nothing and reports nothing,
//! its caller `mod.rs` does.

use super::NodeCall;
use super::lane::{Lane, Stage};
use super::shape::{Flow, Shape};
use super::stages::Stages;
use std::ops::Range;

/// A call that has begun.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) call: NodeCall,
    pub(super) shape: Shape,
    /// Its number on the lane.
    pub(super) number: u64,
    /// Its first chunk's number on the lane.
    pub(super) first: u64,
    /// Whether all members have come and agree.
    pub(super) is_checked: bool,
    /// Where this member is: the next chunk of each stage, counted on the lane.
    copied: u64,
    reduced: u64,
    drained: u64,
}

impl Running {
    pub(super) fn new(call: NodeCall, shape: Shape, number: u64, first: u64) -> Self {
        let (copied, reduced, drained) = (first, first, first);
        Self { call, shape, number, first, is_checked: false, copied, reduced, drained }
    }

    /// One past its last chunk.
    pub(super) fn end(&self) -> u64 {
        self.first + self.shape.chunks
    }

    pub(super) fn is_over(&self) -> bool {
        self.drained == self.end()
    }

    /// Bytes of a block that are through.
    pub(super) fn bytes_done(&self) -> u64 {
        let chunks = self.drained - self.first;
        chunks.saturating_mul(self.shape.slice as u64).min(self.shape.block as u64)
    }

    /// Whether all members have come to this call, as far as this member has itself.
    pub(super) fn all_have_come(&self, lane: &mut Lane) -> bool {
        self.copied > self.first && lane.all_reached(Stage::Copied, self.first + 1)
    }

    /// Whether the next chunk's staging is free. All members have drained chunks below `floor`.
    pub(super) fn can_copy(&self, lane: &mut Lane, floor: u64) -> bool {
        let next = self.copied;
        if self.shape.flow == Flow::Exchange {
            // The rest follow as the other's chunks are taken out.
            return next == self.first;
        }
        let is_free = |lane: &mut Lane| lane.all_reached(Stage::Drained, next - 1);
        next < self.end() && (next < floor + 2 || is_free(lane))
    }

    /// Whether the next part can be folded. Only once checked.
    pub(super) fn can_fold(&self, lane: &mut Lane) -> bool {
        self.shape.flow == Flow::FoldParts
            && self.reduced < self.copied
            && lane.all_reached(Stage::Copied, self.reduced + 1)
    }

    /// Whether the next chunk can be taken out. Only once checked.
    pub(super) fn can_drain(&self, lane: &mut Lane) -> bool {
        match self.shape.flow {
            Flow::FoldParts => {
                self.drained < self.reduced && lane.all_reached(Stage::Reduced, self.drained + 1)
            }
            Flow::Copy | Flow::Exchange | Flow::FoldBlocks | Flow::FoldWhole => {
                self.drained < self.copied && lane.all_reached(Stage::Copied, self.drained + 1)
            }
        }
    }

    /// The counts of all members that would let this member go on, by stage; `u64::MAX` where
    /// none would.
    pub(super) fn waits_for(&self) -> [u64; 3] {
        let end = self.end();
        let after = |next: u64| if next < end { next + 1 } else { u64::MAX };
        let is_freed = |next: u64| if next < end && next >= 2 { next - 1 } else { u64::MAX };
        match self.shape.flow {
            Flow::Exchange => [after(self.drained), u64::MAX, u64::MAX],
            Flow::FoldParts => [after(self.reduced), after(self.drained), is_freed(self.copied)],
            _ => [after(self.drained), u64::MAX, is_freed(self.copied)],
        }
    }

    pub(super) fn copy_next(&mut self, lane: &Lane) {
        let chunk = self.copied;
        self.stages(lane, chunk).copy_in();
        if chunk == self.first {
            lane.write_call(self.number, &self.call.call);
        }
        self.copied += 1;
        lane.publish(Stage::Copied, self.copied);
    }

    pub(super) fn fold_next(&mut self, lane: &Lane) {
        let chunk = self.reduced;
        self.stages(lane, chunk).fold();
        self.reduced += 1;
        lane.publish(Stage::Reduced, self.reduced);
    }

    pub(super) fn drain_next(&mut self, lane: &Lane) {
        let chunk = self.drained;
        if self.shape.flow == Flow::Exchange {
            return self.exchange_next(lane);
        }
        self.stages(lane, chunk).copy_out();
        self.drained += 1;
        // Of a single chunk, coming to the next call says the same, and costs nobody a line.
        if self.shape.chunks > 1 {
            lane.publish(Stage::Drained, self.drained);
        }
    }

    /// Takes out the other's chunk and puts in this member's next.
    fn exchange_next(&mut self, lane: &Lane) {
        let chunk = self.drained;
        let next = self.shape.range(chunk + 1 - self.first);
        self.stages(lane, chunk).exchange(next);
        self.drained += 1;
        if self.drained < self.end() {
            self.copied += 1;
            lane.publish(Stage::Copied, self.copied);
        } else if self.shape.chunks > 1 {
            // For calls of other flows, which look at it before they use their own staging.
            lane.publish(Stage::Drained, self.drained);
        }
    }

    /// Does a call of a single member.
    pub(super) fn finish_alone(&mut self) {
        super::stages::alone(&mut self.call);
        self.drained = self.end();
    }

    fn stages<'a>(&'a mut self, lane: &'a Lane, chunk: u64) -> Stages<'a> {
        let range: Range<usize> = self.shape.range(chunk - self.first);
        Stages { lane, call: &mut self.call, shape: &self.shape, chunk, range }
    }
}

//! What a member does with a chunk: copies in, folds, copies out.
//!
//! Owns the traffic between user memory and staging, kind by kind. Never waits and never
//! publishes: `mod.rs` calls a stage only when the counters allow it, which is what the `SAFETY`
//! arguments lean on. The invariant is that of `lane.rs`: a member touches only the staging that
//! the counters have handed to it.
//!
//! Reductions fold the members' contributions in member order, each element once, whatever the
//! size, the chunk or the flow, so that results do not depend on them.

use super::NodeCall;
use super::lane::Lane;
use super::shape::{EXCHANGE_BLOCK_BYTES, Flow, Shape};
use std::ops::Range;
use syncline_kernels::{
    MAX_SOURCES, ReduceOp, Stores, copy, finish_average_bytes, reduce_bytes, reduce_into_bytes,
    reduce_many_bytes,
};
use syncline_proto::call::CollectiveKind as Kind;

/// Bytes of a part folded at a time, before they are copied on: they stay in the first cache.
const FOLD_BYTES: usize = 8 << 10;
/// Bytes folded at a time, before they are divided: they stay in the second cache.
const AVERAGE_BYTES: usize = 64 << 10;
/// Results of at least this many bytes are copied out past the cache. Results of reductions never
/// are: their lines are in the cache, because the contribution was just read from them.
const STREAM_MIN_BYTES: usize = 8 << 20;

/// A call, its cut, and the lane it runs on.
pub(super) struct Stages<'a> {
    pub(super) lane: &'a Lane,
    pub(super) call: &'a mut NodeCall,
    pub(super) shape: &'a Shape,
    /// The chunk's number on the lane, which says where it is staged.
    pub(super) chunk: u64,
    /// What it holds of each block.
    pub(super) range: Range<usize>,
}

impl Stages<'_> {
    /// Puts this member's contribution to the chunk into its staging.
    ///
    /// The caller has seen that all members have drained the chunk two before, and has not
    /// published this one.
    pub(super) fn copy_in(&mut self) {
        let (me, size) = (self.lane.me(), self.lane.size());
        let len = self.range.len();
        if self.shape.flow == Flow::Exchange {
            // SAFETY: this member's to fill; all its chunks before are over. The only slice.
            let buffer = unsafe { self.lane.exchanged_mut(me, self.chunk, len) };
            return copy(buffer, self.sent(&self.range), Stores::Cached);
        }
        match self.call.kind {
            Kind::AllReduce | Kind::Reduce if self.shape.flow == Flow::FoldParts => {
                let own = self.shape.part(me, len);
                for part in [0..own.start, own.end..len] {
                    self.stage(part.clone(), self.range.start + part.start);
                }
            }
            Kind::AllReduce | Kind::Reduce => self.stage(0..len, self.range.start),
            Kind::Broadcast if me == self.call.root => self.stage(0..len, self.range.start),
            Kind::AllGather | Kind::Gather => {
                // In place, the block lies where it will be in the result.
                let in_place = self.call.input.is_empty() && !self.call.output.is_empty();
                let from = if in_place { self.in_block(me) } else { self.range.start };
                self.stage(0..len, from);
            }
            Kind::AllToAll | Kind::ReduceScatter => self.stage_rows(size),
            Kind::Scatter if me == self.call.root => self.stage_rows(size),
            Kind::Barrier | Kind::Broadcast | Kind::Scatter | Kind::SendRecv | Kind::Split => {}
        }
    }

    /// Folds this member's part of the chunk from everybody's data, into its staging and, where
    /// it wants the result, into its output.
    ///
    /// The caller has seen that all members have copied the chunk, and has not published its part.
    pub(super) fn fold(&mut self) {
        let own = self.shape.part(self.lane.me(), self.range.len());
        let mut start = own.start;
        while start < own.end {
            let block = start..own.end.min(start + FOLD_BYTES);
            start = block.end;
            let user = self.range.start + block.start..self.range.start + block.end;
            // SAFETY: this member's part of its own staging: nobody copies into it or reads it
            // between `copied` and this member's `reduced`, and this is the only slice of it.
            let result = unsafe { self.lane.staging_mut(self.chunk, block.clone()) };
            let data = source(self.call);
            self.fold_members(result, &block, Some(&data[user.clone()]));
            if self.wants_result() {
                copy(&mut self.call.output.bytes_mut()[user], result, Stores::Cached);
            }
        }
    }

    /// Takes what this member gets of the chunk out of everybody's staging.
    ///
    /// The caller has seen that all members have copied (and folded, if that is the flow) the
    /// chunk, and has not published that it has drained it.
    pub(super) fn copy_out(&mut self) {
        let (me, size) = (self.lane.me(), self.lane.size());
        let len = self.range.len();
        let others = || (0..size).filter(move |member| *member != me);
        match self.call.kind {
            Kind::AllReduce | Kind::Reduce if !self.wants_result() => {}
            Kind::AllReduce | Kind::Reduce if self.shape.flow == Flow::FoldParts => {
                for member in others() {
                    let part = self.shape.part(member, len);
                    let target = self.range.start + part.start;
                    self.unstage(member, part, target);
                }
            }
            Kind::AllReduce | Kind::Reduce => self.fold_whole(),
            Kind::Broadcast if me != self.call.root => {
                self.unstage(self.call.root, 0..len, self.range.start);
            }
            Kind::Broadcast if !self.call.input.is_empty() => {
                self.keep(self.range.clone(), self.range.start);
            }
            Kind::Gather if me != self.call.root => {}
            Kind::AllGather | Kind::Gather => {
                for member in others() {
                    self.unstage(member, 0..len, self.in_block(member));
                }
                if !self.call.input.is_empty() {
                    self.keep(self.range.clone(), self.in_block(me));
                }
            }
            Kind::AllToAll => {
                let row = self.shape.row(me, len);
                for member in others() {
                    self.unstage(member, row.clone(), self.in_block(member));
                }
                let own = self.in_block(me);
                self.keep(own..own + len, own);
            }
            Kind::Scatter if me == self.call.root => {
                let own = self.in_block(me);
                self.keep(own..own + len, self.range.start);
            }
            Kind::Scatter => {
                self.unstage(self.call.root, self.shape.row(me, len), self.range.start);
            }
            Kind::ReduceScatter => self.fold_block(),
            Kind::Barrier | Kind::Broadcast | Kind::SendRecv | Kind::Split => {}
        }
    }

    /// Takes the other's chunk out, and puts what this member sends of `next` (empty after the last
    /// chunk) where it lay.
    ///
    /// The caller has seen that both have put this chunk there, and has not published the next.
    pub(super) fn exchange(&mut self, next: Range<usize>) {
        let other = 1 - self.lane.me();
        let len = self.range.len();
        // SAFETY: the other's chunk, which is there, and which nobody touches before this member
        // publishes its next. The only slice of it.
        let buffer = unsafe { self.lane.exchanged_mut(other, self.chunk, len) };
        let mut start = 0;
        for block in buffer.chunks_mut(EXCHANGE_BLOCK_BYTES) {
            let range = self.range.start + start..self.range.start + start + block.len();
            self.receive(block, range);
            let ahead = next.start + start..next.end.min(next.start + start + block.len());
            if !ahead.is_empty() {
                copy(&mut block[..ahead.len()], self.sent(&ahead), Stores::Cached);
            }
            start += block.len();
        }
        if !self.call.input.is_empty() && matches!(self.call.kind, Kind::AllGather | Kind::AllToAll)
        {
            let own = self.in_block(self.lane.me());
            let from = if self.call.kind == Kind::AllGather { self.range.start } else { own };
            self.keep(from..from + len, own);
        }
    }

    /// What this member of two sends of a range of a block.
    fn sent(&self, range: &Range<usize>) -> &[u8] {
        let (me, block) = (self.lane.me() as usize, self.shape.block);
        let of = match self.call.kind {
            Kind::AllGather if self.call.input.is_empty() => me,
            Kind::AllToAll | Kind::ReduceScatter => 1 - me,
            _ => 0,
        };
        &source(self.call)[of * block + range.start..of * block + range.end]
    }

    /// Does with a range of the other's block what the kind wants.
    fn receive(&mut self, data: &[u8], range: Range<usize>) {
        let (me, block) = (self.lane.me() as usize, self.shape.block);
        let stores = self.stores();
        let NodeCall { input, output, kind, dtype, reduce_op, .. } = &mut *self.call;
        let op = reduce_op.unwrap_or(ReduceOp::Sum);
        let own = match kind {
            Kind::ReduceScatter => me * block,
            _ => 0,
        };
        let own = own + range.start..own + range.end;
        match kind {
            Kind::AllGather | Kind::AllToAll => {
                let other = (1 - me) * block;
                let place = other + range.start..other + range.end;
                return copy(&mut output.bytes_mut()[place], data, stores);
            }
            // Operands may be swapped: results of two are the same bits either way.
            _ if input.is_empty() => {
                reduce_bytes(*dtype, op, &mut output.bytes_mut()[range.clone()], data);
            }
            _ => {
                let target = &mut output.bytes_mut()[range.clone()];
                reduce_into_bytes(*dtype, op, target, &input.bytes()[own], data, Stores::Cached);
            }
        }
        if op == ReduceOp::Avg {
            finish_average_bytes(*dtype, &mut output.bytes_mut()[range], 2);
        }
    }

    /// All members' staging, folded into the output.
    fn fold_whole(&mut self) {
        let range = self.range.clone();
        let mut output = self.call.output.part(range.start, range.len());
        self.fold_members(output.bytes_mut(), &(0..range.len()), None);
    }

    /// This member's rows of all members' staging and its own block, folded into the output.
    fn fold_block(&mut self) {
        let me = self.lane.me();
        let range = self.range.clone();
        let mut output = self.call.output.part(range.start, range.len());
        let block = self.in_block(me);
        let own = &self.call.input.bytes()[block..block + range.len()];
        let row = self.shape.row(me, range.len());
        self.fold_members(output.bytes_mut(), &row, Some(own));
    }

    /// Folds `range` of everybody's staging into `target`, in member order; this member's own
    /// data is `own` if that is not in its staging.
    fn fold_members(&self, target: &mut [u8], range: &Range<usize>, own: Option<&[u8]>) {
        let (me, size) = (self.lane.me(), self.lane.size());
        let mut all: [&[u8]; MAX_SOURCES] = [&[]; MAX_SOURCES];
        let all = &mut all[..size as usize];
        for (member, source) in (0..size).zip(all.iter_mut()) {
            *source = match own {
                Some(own) if member == me => own,
                // SAFETY: copied by all, as the caller's caller has seen; given back only by
                // this member's `drained`, or for a part by its `reduced`, after this stage.
                _ => unsafe { self.lane.staging(member, self.chunk, range.clone()) },
            };
        }
        let dtype = self.call.dtype;
        match self.call.reduce_op.unwrap_or(ReduceOp::Sum) {
            ReduceOp::Avg => {
                let mut parts = [&[][..]; MAX_SOURCES];
                let parts = &mut parts[..size as usize];
                for (index, target) in target.chunks_mut(AVERAGE_BYTES).enumerate() {
                    let start = index * AVERAGE_BYTES;
                    for (part, source) in parts.iter_mut().zip(all.iter()) {
                        *part = &source[start..start + target.len()];
                    }
                    reduce_many_bytes(dtype, ReduceOp::Avg, target, parts, Stores::Cached);
                    finish_average_bytes(dtype, target, size);
                }
            }
            op => reduce_many_bytes(dtype, op, target, all, Stores::Cached),
        }
    }

    /// Copies bytes of the source from `from` on into this member's staging.
    fn stage(&self, to: Range<usize>, from: usize) {
        let data = &source(self.call)[from..from + to.len()];
        // SAFETY: drained by all and not published yet, as the caller of `copy_in` has seen; the
        // only slice of it.
        let staging = unsafe { self.lane.staging_mut(self.chunk, to) };
        copy(staging, data, Stores::Cached);
    }

    /// Copies the others' blocks' slices into their rows.
    fn stage_rows(&self, size: u32) {
        for member in (0..size).filter(|member| *member != self.lane.me()) {
            let row = self.shape.row(member, self.range.len());
            self.stage(row, self.in_block(member));
        }
    }

    /// Copies a range of a member's staging to the output.
    fn unstage(&mut self, member: u32, from: Range<usize>, to: usize) {
        let stores = self.stores();
        let output = &mut self.call.output.bytes_mut()[to..to + from.len()];
        // SAFETY: copied (and folded) by all, as the caller of `copy_out` has seen; given back
        // only by this member's `drained`, after this stage.
        let staging = unsafe { self.lane.staging(member, self.chunk, from) };
        copy(output, staging, stores);
    }

    /// Copies this member's own data from input to output.
    fn keep(&mut self, from: Range<usize>, to: usize) {
        let stores = self.stores();
        let NodeCall { input, output, .. } = &mut *self.call;
        copy(&mut output.bytes_mut()[to..to + from.len()], &input.bytes()[from], stores);
    }

    /// Where the chunk begins in memory that holds a block per member.
    fn in_block(&self, member: u32) -> usize {
        member as usize * self.shape.block + self.range.start
    }

    fn wants_result(&self) -> bool {
        self.call.kind == Kind::AllReduce || self.lane.me() == self.call.root
    }

    fn stores(&self) -> Stores {
        let is_copy = matches!(self.shape.flow, Flow::Copy | Flow::Exchange);
        let streams = is_copy && self.call.output.len() >= STREAM_MIN_BYTES;
        if streams { Stores::Streaming } else { Stores::Cached }
    }
}

/// What a member contributes: the input, or in place the output.
fn source(call: &NodeCall) -> &[u8] {
    if call.input.is_empty() { call.output.bytes() } else { call.input.bytes() }
}

/// Does a call of one member alone.
pub(super) fn alone(call: &mut NodeCall) {
    let NodeCall { input, output, .. } = call;
    if !input.is_empty() && !output.is_empty() {
        copy(output.bytes_mut(), input.bytes(), Stores::Cached);
    }
}

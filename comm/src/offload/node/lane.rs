//! A lane's memory: counters by which members hand staging buffers to each other.
//!
//! Owns every access to the segment that a node-local collective makes. Knows nothing of kinds.
//!
//! Members count chunks, over all calls of the lane. A member's three counters say how many
//! chunks it has copied into its staging, folded into its staging, and taken out of everybody's.
//! Chunk `g` lies in staging buffer `g % 2`.
//!
//! **Two members** that want the same of each other use one exchange buffer each instead, and swap
//! them with every chunk: member `m` puts chunk `g` into buffer `(m + g) % 2`, from which the other
//! takes it out, to put its own chunk `g + 1` there. So its lines are in the cache of who writes
//! them, and no line is fetched twice. A member puts chunk `g + 1` only after it has taken out
//! chunk `g`, which the other put after taking out chunk `g - 1`, the last in that buffer; chunks
//! of other flows between two such do not change this, as all come to them.
//!
//! Invariant of the `unsafe` here: staging is reached only through [`Lane::staging`] and
//! [`Lane::staging_mut`], exchange buffers through [`Lane::exchanged_mut`], whose callers hold the
//! right to that range by the counters: an exchange buffer as said above; of staging, a
//! member's own buffer `g % 2` is its own from the moment all members have drained chunk `g - 2`
//! until it publishes `copied`, and the part it folds until it publishes `reduced`; everybody may
//! read what is published until they publish `drained`. Publishing is a release, observing an
//! acquire, so each hand-over orders the accesses before it against those after. A peer that
//! breaks this rule can change bytes while they are read here, which makes wrong bytes: lengths
//! and addresses come from this process alone.

use super::LaneId;
use super::wake::{self, Counts, STAGES};
use crate::transport::shm::NodeSegment;
use crate::transport::shm::bell;
use crate::transport::shm::layout::{EXCHANGE_BYTES, PAD};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_proto::call::{Call, Fingerprint};
use syncline_proto::id::CommId;

/// Bits of a counter that count chunks; the rest is the lane's generation.
const COUNT_BITS: u32 = 48;

/// What a member counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Chunks that are in its staging.
    Copied,
    /// Chunks whose part it has folded.
    Reduced,
    /// Chunks it does not need any more, neither its own staging nor anybody's.
    Drained,
}

impl Stage {
    pub(super) const ALL: [Self; STAGES] = [Self::Copied, Self::Reduced, Self::Drained];
}

/// One member's view of a lane.
#[derive(Debug)]
pub(super) struct Lane {
    segment: Arc<NodeSegment>,
    /// What the lane's counters start from.
    base: u64,
    me: u32,
    members: Vec<Member>,
    /// Offset of the mask of sleeping members.
    sleepers: usize,
    /// Lowest count of all members when last looked, per stage.
    seen: [u64; STAGES],
}

/// Where a member's things lie in the segment.
#[derive(Debug)]
struct Member {
    local: u32,
    /// Counters, calls, what it sleeps for.
    block: usize,
    /// Both staging buffers, one after the other.
    staging: usize,
    /// An exchange buffer.
    exchange: usize,
}

impl Lane {
    /// Of these local ranks.
    ///
    /// # Panics
    /// If the lane or a member does not exist, or `me` is not this rank.
    pub(super) fn new(segment: Arc<NodeSegment>, id: LaneId, locals: &[u32], me: u32) -> Self {
        assert_eq!(locals[me as usize], segment.local_index(), "member {me} is this rank");
        let base = u64::from(id.generation) << COUNT_BITS;
        let layout = segment.layout();
        let sleepers = layout.lane_head(id.index);
        let member = |local: &u32| Member {
            local: *local,
            block: layout.lane_member(id.index, *local),
            staging: layout.staging(id.index, *local, 0),
            exchange: layout.exchange(id.index, *local),
        };
        let members = locals.iter().map(member).collect();
        let lane = Self { segment, base, me, members, sleepers, seen: [0; STAGES] };
        for stage in 0..STAGES {
            lane.until(me, stage).store(u64::MAX, Ordering::Relaxed);
            Counts::count(&lane, me, stage).store(base, Ordering::Release);
        }
        wake::finish_sleep(&lane, me);
        lane
    }

    pub(super) fn size(&self) -> u32 {
        u32::try_from(self.members.len()).expect("a segment has few ranks")
    }

    pub(super) fn me(&self) -> u32 {
        self.me
    }

    /// Bytes of a staging buffer.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.segment.layout().chunk_bytes
    }

    /// Tells everybody that this member's count is `count`, and wakes who slept for it.
    pub(super) fn publish(&self, stage: Stage, count: u64) {
        let ring = |member: u32| {
            bell::ring(self.segment.bell(self.members[member as usize].local));
        };
        wake::publish(self, self.me, stage as usize, self.base + count, ring);
    }

    /// Whether all members have counted up to `count`.
    #[inline]
    pub(super) fn all_reached(&mut self, stage: Stage, count: u64) -> bool {
        if self.seen[stage as usize] >= count {
            return true;
        }
        let lowest = (0..self.size()).map(|member| self.count(member, stage)).min().unwrap_or(0);
        self.seen[stage as usize] = lowest;
        lowest >= count
    }

    /// How far a member is.
    pub(super) fn count(&self, member: u32, stage: Stage) -> u64 {
        // Of a generation before: the member has not come yet.
        let count = Counts::count(self, member, stage as usize).load(Ordering::Acquire);
        count.saturating_sub(self.base)
    }

    /// Writes down this member's call number `number` of the lane, for others to read once
    /// `copied` is published.
    pub(super) fn write_call(&self, number: u64, call: &Call) {
        for (index, word) in encode(call).into_iter().enumerate() {
            self.call_word(self.me, number, index).store(word, Ordering::Relaxed);
        }
    }

    /// A member's call number `number`, which is there until it begins call `number + 2`; this
    /// member's is `mine`.
    pub(super) fn read_call(&self, member: u32, number: u64, mine: &Call) -> Call {
        let word = |i| self.call_word(member, number, i).load(Ordering::Relaxed);
        decode(std::array::from_fn(word), mine)
    }

    /// Whether a member's call is the one that this member wrote down.
    pub(super) fn is_same_call(&self, member: u32, number: u64) -> bool {
        (0..CALL_WORDS).all(|i| {
            let word = |of| self.call_word(of, number, i).load(Ordering::Relaxed);
            word(member) == word(self.me)
        })
    }

    /// Tells the others to ring when all have reached one of these counts (`u64::MAX`: never).
    /// Look again after it.
    pub(super) fn prepare_sleep(&self, until: [u64; STAGES]) {
        wake::prepare_sleep(self, self.me, until.map(|count| self.base.saturating_add(count)));
    }

    pub(super) fn finish_sleep(&self) {
        wake::finish_sleep(self, self.me);
    }

    /// What the others ring.
    #[cfg(test)]
    pub(super) fn own_bell(&self) -> &std::os::fd::OwnedFd {
        self.segment.bell(self.segment.local_index())
    }

    /// Part of a member's staging buffer for `chunk`, to read.
    ///
    /// # Safety
    /// The counters have handed the range to this member for reading, as the module's head says,
    /// and the slice is dropped before this member publishes the count that gives it back.
    pub(super) unsafe fn staging(&self, member: u32, chunk: u64, range: Range<usize>) -> &[u8] {
        let start = self.staging_start(member, chunk, &range);
        // SAFETY: inside the mapping, which lives as long as `self`; nobody writes it meanwhile
        // by the caller's argument.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    /// Part of this member's own staging buffer for `chunk`, to write.
    ///
    /// # Safety
    /// The range is this member's alone by the counters, as the module's head says; no other
    /// slice of it exists; this one is dropped before this member publishes it.
    #[expect(clippy::mut_from_ref, reason = "the memory is not part of `self`; see Safety")]
    pub(super) unsafe fn staging_mut(&self, chunk: u64, range: Range<usize>) -> &mut [u8] {
        let start = self.staging_start(self.me, chunk, &range);
        // SAFETY: inside the mapping, which lives as long as `self`; nobody else touches it
        // meanwhile by the caller's argument.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }

    /// Where member `from` of two puts `chunk` for the other to take out, which then puts its own
    /// next chunk there.
    ///
    /// # Safety
    /// This member is to put it there, and has taken out the chunk before; or it is to take it out
    /// and has seen that it is there, and has not published its next chunk. No other slice of it
    /// exists.
    #[expect(clippy::mut_from_ref, reason = "the memory is not part of `self`; see Safety")]
    pub(super) unsafe fn exchanged_mut(&self, from: u32, chunk: u64, len: usize) -> &mut [u8] {
        assert!(len <= EXCHANGE_BYTES && self.size() == 2, "{len} bytes of a chunk");
        let buffer = from ^ u32::from(!chunk.is_multiple_of(2));
        let offset = self.members[buffer as usize].exchange;
        let start = self.segment.mapping().bytes(offset, len).as_ptr();
        // SAFETY: inside the mapping, which lives as long as `self`; nobody else touches it
        // meanwhile by the caller's argument.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    fn staging_start(&self, member: u32, chunk: u64, range: &Range<usize>) -> *mut u8 {
        let chunk_bytes = self.chunk_bytes();
        assert!(range.start <= range.end && range.end <= chunk_bytes, "{range:?} of a chunk");
        let buffer = if chunk.is_multiple_of(2) { 0 } else { chunk_bytes };
        let offset = self.members[member as usize].staging + buffer;
        self.segment.mapping().bytes(offset + range.start, range.len()).as_ptr()
    }

    fn call_word(&self, member: u32, number: u64, index: usize) -> &AtomicU64 {
        let slot = usize::from(!number.is_multiple_of(2));
        self.word(member, 8 + (slot * CALL_WORDS + index) * 8)
    }

    #[inline]
    fn word(&self, member: u32, offset: usize) -> &AtomicU64 {
        self.segment.mapping().word(self.members[member as usize].block + offset)
    }
}

impl Counts for Lane {
    type Word = AtomicU64;

    #[inline]
    fn size(&self) -> u32 {
        Self::size(self)
    }

    #[inline]
    fn sleepers(&self) -> &AtomicU64 {
        self.segment.mapping().word(self.sleepers)
    }

    /// Copied chunks share their cache line with the call slots, which are read right after.
    #[inline]
    fn count(&self, member: u32, stage: usize) -> &AtomicU64 {
        self.word(member, [0, PAD, PAD + 8][stage])
    }

    #[inline]
    fn until(&self, member: u32, stage: usize) -> &AtomicU64 {
        self.word(member, 2 * PAD + stage * 8)
    }
}

/// Words of a call slot. Both slots and the count of copied chunks share a cache line.
const CALL_WORDS: usize = 3;

/// The sequence number is cut to 32 bits: members of a lane are never further apart.
fn encode(call: &Call) -> [u64; CALL_WORDS] {
    let fingerprint = call.fingerprint.encode();
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| fingerprint[at + i]));
    [u64::from(call.comm.0) << 32 | call.seq & SEQ_MASK, word(0), word(8)]
}

/// `near` is a call whose sequence number has the upper bits.
fn decode([name, low, high]: [u64; CALL_WORDS], near: &Call) -> Call {
    let mut fingerprint = [0; Fingerprint::BYTES];
    fingerprint[..8].copy_from_slice(&low.to_le_bytes());
    fingerprint[8..].copy_from_slice(&high.to_le_bytes());
    let comm = CommId(u32::try_from(name >> 32).expect("32 bits"));
    let seq = near.seq & !SEQ_MASK | name & SEQ_MASK;
    Call { comm, seq, fingerprint: Fingerprint::decode(fingerprint) }
}

const SEQ_MASK: u64 = u32::MAX as u64;

/// A lane's calls and counters fit a cache line.
const _: () = assert!(8 + 2 * CALL_WORDS * 8 <= PAD / 2);
/// Every member has a bit of the sleepers' mask.
const _: () = assert!(crate::transport::shm::MAX_LOCAL_SIZE <= u64::BITS);

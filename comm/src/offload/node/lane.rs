//! A lane's memory: counters by which members hand staging buffers to each other.
//!
//! Owns every access to the segment that a node-local collective makes. Knows nothing of kinds.
//!
//! Members count chunks, over all calls of the lane. A member's three counters say how many
//! chunks it has copied into its staging, folded into its staging, and taken out of everybody's.
//! Chunk `g` lies in staging buffer `g % 2`.
//!
//! Invariant of the `unsafe` here: staging is reached only through [`Lane::staging`] and
//! [`Lane::staging_mut`], whose callers hold the right to that range by the counters: a
//! member's own buffer `g % 2` is its own from the moment all members have drained chunk `g - 2`
//! until it publishes `copied`, and the part it folds until it publishes `reduced`; everybody may
//! read what is published until they publish `drained`. Publishing is a release, observing an
//! acquire, so each hand-over orders the accesses before it against those after. A peer that
//! breaks this rule can change bytes while they are read here, which makes wrong bytes: lengths
//! and addresses come from this process alone.

use super::LaneId;
use crate::transport::shm::NodeSegment;
use crate::transport::shm::bell;
use crate::transport::shm::layout::PAD;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
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
    pub(super) const ALL: [Self; 3] = [Self::Copied, Self::Reduced, Self::Drained];

    /// Offset in a member's block. `Copied` shares its cache line with the call slots, which are
    /// read right after it.
    fn offset(self) -> usize {
        match self {
            Self::Copied => 0,
            Self::Reduced => PAD,
            Self::Drained => PAD + 8,
        }
    }

    /// Offset of the count that a sleeper waits for.
    fn until_offset(self) -> usize {
        2 * PAD + self as usize * 8
    }
}

/// One member's view of a lane.
#[derive(Debug)]
pub(super) struct Lane {
    segment: Arc<NodeSegment>,
    index: u32,
    /// What the lane's counters start from.
    base: u64,
    /// Local ranks.
    members: Vec<u32>,
    me: u32,
    /// Lowest count of all members when last looked, per stage.
    seen: [u64; 3],
}

impl Lane {
    /// # Panics
    /// If the lane or a member does not exist, or `me` is not this rank.
    pub(super) fn new(segment: Arc<NodeSegment>, id: LaneId, members: Vec<u32>, me: u32) -> Self {
        assert_eq!(members[me as usize], segment.local_index(), "member {me} is this rank");
        let base = u64::from(id.generation) << COUNT_BITS;
        let lane = Self { segment, index: id.index, base, members, me, seen: [0; 3] };
        for stage in Stage::ALL {
            lane.until(me, stage).store(u64::MAX, Ordering::Relaxed);
            lane.counter(me, stage).store(base, Ordering::Release);
        }
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
        self.counter(self.me, stage).store(self.base + count, Ordering::Release);
        fence(Ordering::SeqCst);
        let sleepers = self.sleepers().load(Ordering::Relaxed);
        if sleepers != 0 {
            self.wake(stage, sleepers);
        }
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
        self.counter(member, stage).load(Ordering::Acquire).saturating_sub(self.base)
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
    pub(super) fn prepare_sleep(&self, until: [u64; 3]) {
        for (stage, count) in Stage::ALL.into_iter().zip(until) {
            let count = if count == u64::MAX { count } else { self.base + count };
            self.until(self.me, stage).store(count, Ordering::Relaxed);
        }
        self.sleepers().fetch_or(1 << self.me, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(super) fn finish_sleep(&self) {
        self.sleepers().fetch_and(!(1 << self.me), Ordering::SeqCst);
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

    fn staging_start(&self, member: u32, chunk: u64, range: &Range<usize>) -> *mut u8 {
        let chunk_bytes = self.chunk_bytes();
        assert!(range.start <= range.end && range.end <= chunk_bytes, "{range:?} of a chunk");
        let buffer = u32::from(!chunk.is_multiple_of(2));
        let local = self.members[member as usize];
        let offset = self.segment.layout().staging(self.index, local, buffer);
        self.segment.mapping().bytes(offset + range.start, range.len()).as_ptr()
    }

    /// Rings for every sleeper that waits for no more than all have reached.
    #[cold]
    fn wake(&self, stage: Stage, sleepers: u64) {
        for member in 0..self.size() {
            if member == self.me || sleepers & (1 << member) == 0 {
                continue;
            }
            let until = self.until(member, stage).load(Ordering::Relaxed);
            let reached = |of| self.counter(of, stage).load(Ordering::Acquire) >= until;
            if (0..self.size()).all(reached) {
                let before = self.sleepers().fetch_and(!(1 << member), Ordering::SeqCst);
                if before & (1 << member) != 0 {
                    bell::ring(self.segment.bell(self.members[member as usize]));
                }
            }
        }
    }

    fn counter(&self, member: u32, stage: Stage) -> &AtomicU64 {
        self.word(member, stage.offset())
    }

    fn until(&self, member: u32, stage: Stage) -> &AtomicU64 {
        self.word(member, stage.until_offset())
    }

    fn call_word(&self, member: u32, number: u64, index: usize) -> &AtomicU64 {
        let slot = usize::from(!number.is_multiple_of(2));
        self.word(member, 8 + (slot * CALL_WORDS + index) * 8)
    }

    #[inline]
    fn word(&self, member: u32, offset: usize) -> &AtomicU64 {
        let local = self.members[member as usize];
        let block = self.segment.layout().lane_member(self.index, local);
        self.segment.mapping().word(block + offset)
    }

    fn sleepers(&self) -> &AtomicU64 {
        self.segment.mapping().word(self.segment.layout().lane_head(self.index))
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

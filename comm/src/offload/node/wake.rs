//! Counts that only grow, and members that sleep until all have reached one.
//!
//! Owns the order of the accesses, on any words: the lane's are in shared memory, the model
//! checker has its own. Knows nothing of what is counted.
//!
//! A sleeper writes down the counts it waits for, sets its bit, fences, and looks once more before
//! it sleeps. Whoever raises its own count fences, reads the bits, and rings a sleeper when
//! all have reached what it waits for. Of the fences one comes last, and its thread sees what the
//! others wrote before theirs: the sleeper the counts, or a raiser the bit and all counts.

use super::Word;

/// Kinds of counts.
pub(super) const STAGES: usize = 3;

/// The words of a group of members.
pub(super) trait Counts {
    /// Their type.
    type Word: Word;

    /// How many members; at most 64.
    fn size(&self) -> u32;
    /// A bit for each sleeping member.
    fn sleepers(&self) -> &Self::Word;
    /// How far a member is. Written by it alone.
    fn count(&self, member: u32, stage: usize) -> &Self::Word;
    /// What a member waits for, `u64::MAX` for never. Written by it alone.
    fn until(&self, member: u32, stage: usize) -> &Self::Word;
}

/// Raises the count of `me` and calls `ring` for each sleeper that this wakes.
#[inline]
pub(super) fn publish<C: Counts>(
    counts: &C,
    me: u32,
    stage: usize,
    count: u64,
    ring: impl FnMut(u32),
) {
    counts.count(me, stage).publish(count);
    C::Word::fence();
    let sleepers = counts.sleepers().observe();
    if sleepers != 0 {
        wake(counts, me, stage, sleepers, ring);
    }
}

/// First half of falling asleep until all have reached one of `until`. Look once more after it.
pub(super) fn prepare_sleep<C: Counts>(counts: &C, me: u32, until: [u64; STAGES]) {
    for (stage, count) in until.into_iter().enumerate() {
        counts.until(me, stage).publish(count);
    }
    counts.sleepers().set_bits(1 << me);
    C::Word::fence();
}

/// Awake again, whoever did it.
pub(super) fn finish_sleep<C: Counts>(counts: &C, me: u32) {
    counts.sleepers().clear_bits(1 << me);
}

#[cold]
fn wake<C: Counts>(counts: &C, me: u32, stage: usize, sleepers: u64, mut ring: impl FnMut(u32)) {
    for member in (0..counts.size()).filter(|member| *member != me) {
        let bit = 1 << member;
        if sleepers & bit == 0 {
            continue;
        }
        let until = counts.until(member, stage).observe();
        let all_reached = (0..counts.size()).all(|of| counts.count(of, stage).observe() >= until);
        // Only one of several rings.
        if all_reached && counts.sleepers().clear_bits(bit) & bit != 0 {
            ring(member);
        }
    }
}

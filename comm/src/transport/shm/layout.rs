//! Where everything lies in a host's shared segment: sizes and offsets, no memory.
//!
//! Every rank computes the same layout from the same three numbers, which the leader chooses and
//! hands over in the handshake. Used by the segment, the rings and the node-local collectives.
//!
//! ```text
//! control block per rank | lane heads and member blocks | ring heads | staging | exchange | rings
//! ```
//!
//! Nothing two ranks write shares a pair of cache lines: processors fetch lines in pairs.

/// Node-local collective lanes of a segment; one communicator uses one.
pub const LANES: u32 = 16;
/// Most ranks of one host that share a segment.
pub const MAX_LOCAL_SIZE: u32 = 64;

/// Two cache lines, the unit of separation.
pub(crate) const PAD: usize = 128;
const PAGE: usize = 4096;

/// Bytes of a rank's control block: its sleeping flag, and the word that peers read to find out
/// whether they may read this process's memory.
const CONTROL_BYTES: usize = 2 * PAD;
/// Bytes of a member's block in a lane: counters, what it sleeps for, two call slots.
pub(crate) const MEMBER_BYTES: usize = 4 * PAD;
/// Bytes of a lane's head: the mask of sleeping members.
const LANE_HEAD_BYTES: usize = PAD;
/// Bytes of a ring's head: the producer's line pair, then the consumer's.
pub(crate) const RING_HEAD_BYTES: usize = 2 * PAD;

/// Capacity of one ring where memory is no concern, bytes.
const RING_BYTES: usize = 1 << 20;
/// All rings of a host together take no more than this where they can be that small, bytes.
const RINGS_TOTAL_BYTES: usize = 64 << 20;
/// No ring is smaller, bytes.
const RING_MIN_BYTES: usize = 64 << 10;
/// Staging a member fills before it tells the others, bytes.
const CHUNK_BYTES: usize = 512 << 10;
/// No chunk is smaller, bytes.
const CHUNK_MIN_BYTES: usize = 64 << 10;

/// Bytes of a buffer through which two members exchange: both of them, and what two ranks send and
/// receive meanwhile, stay in the second cache. Measured on Zen 3.
pub(crate) const EXCHANGE_BYTES: usize = 64 << 10;

/// The numbers that fix a segment's layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// Ranks of the host.
    pub(crate) local_size: u32,
    /// Capacity of a ring, a power of two.
    pub(crate) ring_bytes: usize,
    /// Bytes of one of a member's two staging buffers, a power of two.
    pub(crate) chunk_bytes: usize,
}

impl Layout {
    /// For `local_size` ranks on a host that can spare `budget` bytes; `None` if even the
    /// smallest layout is larger.
    ///
    /// # Panics
    /// If `local_size` is not in `1..=MAX_LOCAL_SIZE`.
    pub(crate) fn fit(local_size: u32, budget: u64) -> Option<Self> {
        assert!((1..=MAX_LOCAL_SIZE).contains(&local_size), "{local_size} ranks on one host");
        let pairs = (local_size * local_size) as usize;
        let mut layout = Self { local_size, ring_bytes: RING_BYTES, chunk_bytes: CHUNK_BYTES };
        while layout.ring_bytes > RING_MIN_BYTES && pairs * layout.ring_bytes > RINGS_TOTAL_BYTES {
            layout.ring_bytes /= 2;
        }
        while layout.total_bytes() as u64 > budget {
            let (ring, chunk) = (layout.ring_bytes, layout.chunk_bytes);
            if ring <= RING_MIN_BYTES && chunk <= CHUNK_MIN_BYTES {
                return None;
            }
            layout.ring_bytes = (ring / 2).max(RING_MIN_BYTES);
            layout.chunk_bytes = (chunk / 2).max(CHUNK_MIN_BYTES);
        }
        Some(layout)
    }

    /// From the numbers a peer sent; `None` unless they are possible.
    pub(crate) fn checked(local_size: u32, ring_bytes: u64, chunk_bytes: u64) -> Option<Self> {
        let possible = |bytes: u64, min: usize, max: usize| {
            let bytes = usize::try_from(bytes).ok()?;
            ((min..=max).contains(&bytes) && bytes.is_power_of_two()).then_some(bytes)
        };
        Some(Self {
            local_size: (1..=MAX_LOCAL_SIZE).contains(&local_size).then_some(local_size)?,
            ring_bytes: possible(ring_bytes, RING_MIN_BYTES, RING_BYTES)?,
            chunk_bytes: possible(chunk_bytes, CHUNK_MIN_BYTES, CHUNK_BYTES)?,
        })
    }

    /// Bytes of the whole segment.
    pub(crate) fn total_bytes(&self) -> usize {
        self.rings() + self.pairs() * self.ring_bytes
    }

    /// The sleeping flag of a rank.
    pub(crate) fn sleeping(&self, local: u32) -> usize {
        self.local(local) * CONTROL_BYTES
    }

    /// The address (first word) and value (second) of a rank's probe word.
    pub(crate) fn probe(&self, local: u32) -> usize {
        self.sleeping(local) + PAD
    }

    /// The mask of a lane's sleeping members.
    pub(crate) fn lane_head(&self, lane: u32) -> usize {
        assert!(lane < LANES, "lane {lane} of {LANES}");
        let lane_bytes = LANE_HEAD_BYTES + self.size() * MEMBER_BYTES;
        self.size() * CONTROL_BYTES + lane as usize * lane_bytes
    }

    /// A rank's block in a lane.
    pub(crate) fn lane_member(&self, lane: u32, local: u32) -> usize {
        self.lane_head(lane) + LANE_HEAD_BYTES + self.local(local) * MEMBER_BYTES
    }

    /// The head of the ring from one rank to another.
    pub(crate) fn ring_head(&self, from: u32, to: u32) -> usize {
        self.lane_head(LANES - 1)
            + LANE_HEAD_BYTES
            + self.size() * MEMBER_BYTES
            + self.pair(from, to) * RING_HEAD_BYTES
    }

    /// The bytes of the ring from one rank to another.
    pub(crate) fn ring(&self, from: u32, to: u32) -> usize {
        self.rings() + self.pair(from, to) * self.ring_bytes
    }

    /// One of a rank's two staging buffers in a lane.
    pub(crate) fn staging(&self, lane: u32, local: u32, buffer: u32) -> usize {
        assert!(lane < LANES && buffer < 2, "buffer {buffer} of lane {lane}");
        let member = lane as usize * self.size() + self.local(local);
        self.stagings() + (member * 2 + buffer as usize) * self.chunk_bytes
    }

    /// A rank's exchange buffer in a lane.
    pub(crate) fn exchange(&self, lane: u32, local: u32) -> usize {
        assert!(lane < LANES, "lane {lane} of {LANES}");
        let member = lane as usize * self.size() + self.local(local);
        self.exchanges() + member * EXCHANGE_BYTES
    }

    fn stagings(&self) -> usize {
        let heads_end = self.ring_head(0, 0) + self.pairs() * RING_HEAD_BYTES;
        heads_end.next_multiple_of(PAGE)
    }

    fn exchanges(&self) -> usize {
        self.stagings() + LANES as usize * self.size() * 2 * self.chunk_bytes
    }

    fn rings(&self) -> usize {
        self.exchanges() + LANES as usize * self.size() * EXCHANGE_BYTES
    }

    fn size(&self) -> usize {
        self.local_size as usize
    }

    fn pairs(&self) -> usize {
        self.size() * self.size()
    }

    fn pair(&self, from: u32, to: u32) -> usize {
        self.local(from) * self.size() + self.local(to)
    }

    fn local(&self, local: u32) -> usize {
        assert!(local < self.local_size, "local rank {local} of {}", self.local_size);
        local as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every region, as (offset, bytes).
    fn regions(layout: &Layout) -> Vec<(usize, usize)> {
        let mut regions = Vec::new();
        for local in 0..layout.local_size {
            regions.push((layout.sleeping(local), PAD));
            regions.push((layout.probe(local), PAD));
            for to in 0..layout.local_size {
                regions.push((layout.ring_head(local, to), RING_HEAD_BYTES));
                regions.push((layout.ring(local, to), layout.ring_bytes));
            }
            for lane in 0..LANES {
                regions.push((layout.lane_member(lane, local), MEMBER_BYTES));
                regions.push((layout.exchange(lane, local), EXCHANGE_BYTES));
                for buffer in 0..2 {
                    regions.push((layout.staging(lane, local, buffer), layout.chunk_bytes));
                }
            }
        }
        regions.extend((0..LANES).map(|lane| (layout.lane_head(lane), LANE_HEAD_BYTES)));
        regions.sort_unstable();
        regions
    }

    #[test]
    fn regions_are_apart_and_inside() {
        for local_size in [1, 2, 3, 8, 33, MAX_LOCAL_SIZE] {
            let layout = Layout::fit(local_size, u64::MAX).unwrap();
            let regions = regions(&layout);
            for pair in regions.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
                assert_eq!(pair[1].0 % PAD, 0);
            }
            let (start, bytes) = regions[regions.len() - 1];
            assert_eq!(start + bytes, layout.total_bytes());
        }
    }

    #[test]
    fn a_tight_budget_shrinks_the_layout_or_refuses() {
        let full = Layout::fit(8, u64::MAX).unwrap();
        assert_eq!((full.ring_bytes, full.chunk_bytes), (RING_BYTES, CHUNK_BYTES));
        let half = Layout::fit(8, full.total_bytes() as u64 / 2 + 100_000).unwrap();
        assert!(half.chunk_bytes < full.chunk_bytes);
        assert!(Layout::fit(8, 16 << 20).is_none());
        let smallest = Layout::fit(8, 40 << 20).unwrap();
        assert!(smallest.total_bytes() <= 40 << 20);
    }

    #[test]
    fn only_possible_numbers_are_taken() {
        let Layout { local_size, ring_bytes, chunk_bytes } = Layout::fit(4, u64::MAX).unwrap();
        let (ring, chunk) = (ring_bytes as u64, chunk_bytes as u64);
        assert!(Layout::checked(local_size, ring, chunk).is_some());
        assert!(Layout::checked(0, ring, chunk).is_none());
        assert!(Layout::checked(MAX_LOCAL_SIZE + 1, ring, chunk).is_none());
        assert!(Layout::checked(4, ring * 2, chunk).is_none());
        assert!(Layout::checked(4, ring - 1, chunk).is_none());
        assert!(Layout::checked(4, ring, 1 << 60).is_none());
    }
}

//! Fragments of a model: which parameters are exchanged together, and at which steps.
//!
//! Owns the cut and the turns. Never looks at a value. Called by [`super::Diloco`].

use crate::layout::{Layout, Slice};

/// Which parameters are a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentCut {
    /// Ranges of the flat space of nearly equal size, whatever tensors they fall in. Ours.
    Contiguous,
    /// Every P-th tensor of P fragments, as the paper strides layers. Fragments may differ in
    /// size, and there are no more of them than tensors.
    Strided,
}

/// Parameters that are exchanged together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    /// Not empty.
    pub(super) parts: Vec<Slice>,
    /// Its first turn: the number of steps finished then, from 1 to `every`.
    pub(super) first: u64,
    /// Steps finished when what this rank last took was sent.
    pub(super) taken_at: u64,
}

impl Fragment {
    /// Whether it is its turn, with `step` steps finished.
    pub(super) fn is_due(&self, step: u64, every: u64) -> bool {
        step >= self.first && (step - self.first).is_multiple_of(every)
    }
}

/// The fragments of all parameters that are not empty, at most `count`, with their turns spread
/// evenly over `every` steps.
pub(super) fn cut(layout: &Layout, cut: FragmentCut, count: u32, every: u64) -> Vec<Fragment> {
    let parts = |index: usize| -> Vec<Slice> {
        match cut {
            FragmentCut::Contiguous => layout.parts(layout.shard(index, count as usize)).collect(),
            FragmentCut::Strided => layout
                .parts(0..layout.len())
                .filter(|part| part.tensor % count as usize == index)
                .collect(),
        }
    };
    let fragments = (0..count).map(|index| Fragment {
        parts: parts(index as usize),
        first: turn(u64::from(index) + 1, count.into(), every),
        taken_at: 0,
    });
    fragments.filter(|fragment| !fragment.parts.is_empty()).collect()
}

/// `every * index / count`, without overflow.
fn turn(index: u64, count: u64, every: u64) -> u64 {
    every / count * index + every % count * index / count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Granularity, TensorSpec};

    fn layout(lens: &[usize]) -> Layout {
        let specs: Vec<_> = lens.iter().map(|len| TensorSpec::new("t", *len)).collect();
        Layout::new(&specs, Granularity::Tensors)
    }

    fn ranges(fragments: &[Fragment]) -> Vec<Vec<(usize, usize)>> {
        let parts = |fragment: &Fragment| {
            fragment.parts.iter().map(|part| (part.offset, part.len)).collect()
        };
        fragments.iter().map(parts).collect()
    }

    #[test]
    fn cuts_by_hand() {
        let layout = layout(&[4, 0, 2, 6]);
        let strided = cut(&layout, FragmentCut::Strided, 2, 8);
        assert_eq!(ranges(&strided), [vec![(0, 4), (4, 2)], vec![(6, 6)]]);
        let contiguous = cut(&layout, FragmentCut::Contiguous, 2, 8);
        assert_eq!(ranges(&contiguous), [vec![(0, 4), (4, 2)], vec![(6, 6)]]);
        let thirds = cut(&layout, FragmentCut::Contiguous, 3, 8);
        assert_eq!(ranges(&thirds), [vec![(0, 4)], vec![(4, 2), (6, 2)], vec![(8, 4)]]);
    }

    #[test]
    fn every_element_is_in_one_fragment_and_every_fragment_has_its_own_turn() {
        for lens in [&[1][..], &[4, 0, 2, 6], &[3, 1, 4, 1, 5, 9, 2, 6]] {
            let layout = layout(lens);
            for way in [FragmentCut::Contiguous, FragmentCut::Strided] {
                for count in 1..9_u32 {
                    for every in u64::from(count)..20 {
                        let fragments = cut(&layout, way, count, every);
                        let mut seen = vec![0; layout.len()];
                        let elements = fragments.iter().flat_map(|fragment| &fragment.parts);
                        elements.flat_map(Slice::flat).for_each(|index| seen[index] += 1);
                        assert!(seen.iter().all(|count| *count == 1));
                        for step in 1..=every {
                            let due = fragments.iter().filter(|part| part.is_due(step, every));
                            assert!(due.count() <= 1);
                        }
                        for fragment in fragments {
                            let due = |step: &u64| fragment.is_due(*step, every);
                            assert_eq!((1..=every).filter(due).count(), 1);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn huge_intervals_do_not_overflow() {
        assert_eq!(turn(4096, 4096, u64::MAX), u64::MAX);
    }
}

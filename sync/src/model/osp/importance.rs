//! PGP and the importance bitmap: which slices all ranks reduce before the next step, and which
//! during it.
//!
//! Owns the measure (|parameter x gradient|, a first-order estimate of what an update does to the
//! loss) and the choice under a byte budget. Never sees a rank's own gradient: only averaged ones,
//! which have the same bits everywhere, go in, so that every rank finds the same bitmap and none
//! has to be sent. The sums are made in a fixed order for that reason. Called by the model.
//!
//! ```text
//! score    3.1  0.2  1.7  0.9          ascending: 1 3 2 0
//! bytes     40   20   30   10          budget 35: take 1 (20), 3 (30), skip 2 and 0
//! bitmap     1    0    1    0          1 = important, goes into RS; 0 = deferred, goes into ICS
//! ```

use crate::layout::Layout;

/// How the products |w g| of a slice become one score, the paper's choice being unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Importance {
    /// Mean of |w g|: importance per byte, which is what a budget in bytes wants.
    Mean,
    /// Drawn anew for each bitmap: what any measure must beat.
    Random,
    /// Each slice in its turn, whatever it holds: as [`Self::Random`], for studies.
    RoundRobin,
    /// |sum of w g|.
    Signed,
    /// Sum of |w g|.
    Sum,
}

/// The importance bitmap (GIB): for each slice, whether it is important.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gib {
    important: Vec<bool>,
    deferred_bytes: u64,
}

impl Gib {
    /// A bitmap of `count` slices, all of them important.
    pub fn all_important(count: usize) -> Self {
        Self { important: vec![true; count], deferred_bytes: 0 }
    }

    /// Defers what matters least: slices in ascending order of score while they fit into `budget`
    /// bytes, passing over what does not fit. Equal scores go by index. A score that is infinite
    /// or not a number is never deferred, nor is a slice of a tensor with under `min_len` elements.
    ///
    /// # Panics
    /// If there is not one score per slice.
    pub fn select(layout: &Layout, scores: &[f32], min_len: usize, budget: u64) -> Self {
        Self::select_with(layout, scores, min_len, budget, |_| false)
    }

    /// As [`Self::select`], with slices that are deferred whatever their score: they come out of
    /// the budget first, and stay where it is too small.
    ///
    /// # Panics
    /// If there is not one score per slice.
    pub fn select_with(
        layout: &Layout,
        scores: &[f32],
        min_len: usize,
        budget: u64,
        is_held: impl Fn(usize) -> bool,
    ) -> Self {
        let slices = layout.slices();
        assert_eq!(slices.len(), scores.len(), "one score per slice");
        let may_wait = |index: &usize| {
            layout.tensors()[slices[*index].tensor].len >= min_len
                && scores[*index].is_finite()
                && !is_held(*index)
        };
        let mut order: Vec<usize> = (0..slices.len()).filter(may_wait).collect();
        order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]).then(a.cmp(b)));
        let mut gib = Self::all_important(slices.len());
        gib.hold(layout, &is_held);
        for index in order {
            let bytes = slices[index].bytes();
            if gib.deferred_bytes + bytes <= budget {
                gib.deferred_bytes += bytes;
                gib.important[index] = false;
            }
        }
        gib
    }

    /// Defers these slices too.
    pub(crate) fn hold(&mut self, layout: &Layout, is_held: impl Fn(usize) -> bool) {
        for (index, slice) in layout.slices().iter().enumerate() {
            if self.important[index] && is_held(index) {
                self.deferred_bytes += slice.bytes();
                self.important[index] = false;
            }
        }
    }

    /// Whether slice `index` is important.
    pub fn is_important(&self, index: usize) -> bool {
        self.important[index]
    }

    /// S(G^u): bytes of the slices that are not.
    pub fn deferred_bytes(&self) -> u64 {
        self.deferred_bytes
    }

    /// One flag per slice.
    pub fn flags(&self) -> &[bool] {
        &self.important
    }
}

/// Partial sums kept at a time: enough for the widest vectors, fixed so that the order of the
/// additions, and with it every bit of the score, is the same on every machine.
const LANES: usize = 16;

impl Importance {
    /// The score of a slice with these parameters and averaged gradients.
    ///
    /// [`Self::Random`] and [`Self::RoundRobin`] have none here; see [`random_score`] and
    /// [`turn_score`].
    ///
    /// # Panics
    /// If the lengths (elements) differ.
    pub fn score(self, parameters: &[f32], gradient: &[f32]) -> f32 {
        let sum = match self {
            Self::Mean | Self::Sum => sum_products(parameters, gradient, f32::abs),
            Self::Random | Self::RoundRobin => 0.0,
            Self::Signed => sum_products(parameters, gradient, |product| product).abs(),
        };
        match self {
            Self::Mean => sum / parameters.len().max(1) as f32,
            _ => sum,
        }
    }
}

/// Mean of the absolute values: the importance of a slice whose parameters are not known. In a
/// fixed order, as scores are.
pub(crate) fn mean_magnitude(gradient: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (whole, rest) = gradient.as_chunks::<LANES>();
    for chunk in whole {
        lanes.iter_mut().zip(chunk).for_each(|(lane, g)| *lane += g.abs());
    }
    let rest: f32 = rest.iter().map(|g| g.abs()).sum();
    (lanes.iter().sum::<f32>() + rest) / gradient.len().max(1) as f32
}

/// A number in 0..1 that `seed`, step and slice fix.
pub fn random_score(seed: u64, step: u64, slice: usize) -> f32 {
    let mut state = seed ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = mix(state) ^ slice as u64;
    (mix(state) >> 40) as f32 / (1_u64 << 24) as f32
}

/// A score that is highest for the slices just before `cursor` in the round of `count` slices: a
/// cursor that moves back by as many as were important gives each slice its turn.
///
/// # Panics
/// If `count` is 0.
pub fn turn_score(slice: usize, cursor: usize, count: usize) -> f32 {
    ((slice + count - cursor % count) % count) as f32
}

/// A bijection in which each bit of the input changes half of those of the output.
pub(crate) fn mix(mut state: u64) -> u64 {
    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

fn sum_products(a: &[f32], b: &[f32], each: impl Fn(f32) -> f32) -> f32 {
    assert_eq!(a.len(), b.len(), "one gradient per parameter");
    let mut lanes = [0.0_f32; LANES];
    let (whole_a, rest_a) = a.as_chunks::<LANES>();
    let (whole_b, rest_b) = b.as_chunks::<LANES>();
    for (a, b) in whole_a.iter().zip(whole_b) {
        for lane in 0..LANES {
            lanes[lane] += each(a[lane] * b[lane]);
        }
    }
    let rest: f32 = rest_a.iter().zip(rest_b).map(|(a, b)| each(a * b)).sum();
    lanes.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Granularity, TensorSpec};

    fn layout(lens: &[usize]) -> Layout {
        let specs: Vec<_> = lens.iter().map(|len| TensorSpec::new("t", *len)).collect();
        Layout::new(&specs, Granularity::Tensors)
    }

    #[test]
    fn scores_by_hand() {
        let (w, g) = ([1.0, -2.0, 3.0, 0.5], [2.0, 1.0, -1.0, 2.0]);
        assert_eq!(Importance::Sum.score(&w, &g), 8.0);
        assert_eq!(Importance::Mean.score(&w, &g), 2.0);
        assert_eq!(Importance::Signed.score(&w, &g), 2.0);
    }

    #[test]
    fn magnitudes_of_all_lengths_have_no_gap() {
        assert_eq!(mean_magnitude(&[]), 0.0);
        for len in 1..50_usize {
            let numbers: Vec<f32> = (0..len).map(|x| -(x as f32)).collect();
            let sum = (len * (len - 1) / 2) as f32;
            assert_eq!(mean_magnitude(&numbers), sum / len as f32);
        }
    }

    #[test]
    fn scores_of_all_lengths_have_no_gap() {
        for len in 0..50_usize {
            let ones = vec![1.0; len];
            let numbers: Vec<f32> = (0..len).map(|x| x as f32).collect();
            let expected = (len * len.saturating_sub(1) / 2) as f32;
            assert_eq!(Importance::Sum.score(&ones, &numbers), expected);
        }
    }

    #[test]
    fn the_least_important_that_fit_are_deferred() {
        let layout = layout(&[10, 5, 8, 2]);
        let select = |scores: &[f32], budget| Gib::select(&layout, scores, 0, budget);
        let gib = select(&[3.1, 0.2, 1.7, 0.9], 35);
        assert_eq!(gib.flags(), [true, false, true, false]);
        assert_eq!(gib.deferred_bytes(), 28);
        // The second in order does not fit; the third does.
        assert_eq!(select(&[0.2, 0.1, 3.0, 0.9], 28).flags(), [true, false, true, false]);
        assert_eq!(select(&[0.2, 0.1, 3.0, 0.9], 0), Gib::all_important(4));
        assert_eq!(select(&[1.0; 4], 60).flags(), [false, false, true, true]);
        assert_eq!(select(&[1.0; 4], 100).deferred_bytes(), 100);
    }

    #[test]
    fn small_tensors_and_scores_without_a_value_are_important() {
        let layout = layout(&[10, 5, 8]);
        let gib = Gib::select(&layout, &[f32::NAN, 1.0, f32::INFINITY], 0, 1000);
        assert_eq!(gib.flags(), [true, false, true]);
        let gib = Gib::select(&layout, &[1.0; 3], 8, 1000);
        assert_eq!(gib.flags(), [false, true, false]);
    }

    #[test]
    fn random_scores_are_spread_and_repeatable() {
        let mean = (0..1000).map(|slice| random_score(7, 3, slice)).sum::<f32>() / 1000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
        assert_eq!(random_score(7, 3, 5), random_score(7, 3, 5));
        assert_ne!(random_score(7, 3, 5), random_score(7, 4, 5));
        assert_ne!(random_score(7, 3, 5), random_score(8, 3, 5));
    }
}

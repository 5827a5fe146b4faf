//! Whether all replicas hold the same bits.
//!
//! Owns the fingerprint of a replica and the comparison of all ranks' fingerprints. Never repairs:
//! replicas that differ mean that a rank ran other code, other settings or broken memory, and no
//! later step would notice. Called by the models every so many steps.

use crate::error::Error;

use super::osp::importance::mix;

/// A hash that takes in words one after the other. Not against malice, only against accidents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    /// Of nothing but `start`.
    pub(crate) fn new(start: u64) -> Self {
        Self(mix(start))
    }

    /// Takes in one word.
    pub(crate) fn word(&mut self, word: u64) {
        self.0 = mix(self.0 ^ word);
    }

    /// Takes in text.
    pub(crate) fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        text.bytes().for_each(|byte| self.word(u64::from(byte)));
    }

    /// Takes in the bits of all of `data`.
    pub(crate) fn floats(&mut self, data: &[f32]) {
        // Several at a time: one multiplication after the other would take four times as long.
        let mut lanes = [1_u64, 2, 3, 4].map(|lane| mix(self.0 ^ lane));
        let absorb = |lane: &mut u64, value: &f32| {
            *lane = (lane.rotate_left(5) ^ u64::from(value.to_bits()))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        };
        let (whole, rest) = data.as_chunks::<4>();
        for chunk in whole {
            lanes.iter_mut().zip(chunk).for_each(|(lane, value)| absorb(lane, value));
        }
        lanes.iter_mut().zip(rest).for_each(|(lane, value)| absorb(lane, value));
        lanes.into_iter().for_each(|lane| self.word(lane));
        self.word(data.len() as u64);
    }

    /// The hash of all that was taken in.
    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

/// As [`disagreeing`], of the ranks but `except`, if that is one.
pub(crate) fn disagreeing_but(words: &[u64], except: Option<u32>) -> Vec<u32> {
    let Some(except) = except else { return disagreeing(words) };
    let mut others = words.to_vec();
    others.remove(except as usize);
    disagreeing(&others).into_iter().map(|rank| rank + u32::from(rank >= except)).collect()
}

/// An error that names the ranks whose fingerprint is not the most common one, if there are any.
/// Of equally common ones, that of the lowest rank counts as right.
pub(crate) fn compare(step: u64, fingerprints: &[u64]) -> Option<Error> {
    let ranks = disagreeing(fingerprints);
    (!ranks.is_empty()).then_some(Error::ReplicasDiffer { step, ranks })
}

/// The ranks whose word is not the most common one.
pub(crate) fn disagreeing(words: &[u64]) -> Vec<u32> {
    let votes = |word: &u64| words.iter().filter(|other| *other == word).count();
    // The last of equal maxima is taken, hence the reversal.
    let Some(common) = words.iter().rev().max_by_key(|word| votes(word)) else {
        return Vec::new();
    };
    (0..).zip(words).filter(|(_, word)| *word != common).map(|(rank, _)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flipped_bit_changes_the_fingerprint() {
        let of = |data: &[f32]| {
            let mut print = Fingerprint::new(3);
            print.floats(data);
            print.value()
        };
        let data: Vec<f32> = (0..11).map(|x| x as f32).collect();
        for at in 0..data.len() {
            for bit in [0, 12, 31] {
                let mut flipped = data.clone();
                flipped[at] = f32::from_bits(flipped[at].to_bits() ^ (1 << bit));
                assert_ne!(of(&flipped), of(&data), "{at} {bit}");
            }
        }
        let mut longer = data.clone();
        longer.push(0.0);
        assert_ne!(of(&longer), of(&data));
        assert_eq!(of(&data), of(&data.clone()));
    }

    #[test]
    fn the_minority_is_named() {
        assert!(disagreeing(&[]).is_empty());
        assert!(disagreeing(&[7, 7, 7]).is_empty());
        assert_eq!(disagreeing(&[7, 8, 7, 9]), [1, 3]);
        assert_eq!(disagreeing(&[8, 7, 7]), [0]);
        assert_eq!(disagreeing(&[8, 7]), [1]);
    }
}

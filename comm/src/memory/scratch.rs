//! Memory of an operation's own.

use super::LocalSlice;

/// So many operations' memory is kept for the next ones.
const SPARES_MAX: usize = 4;
/// And no more than this, bytes.
const SPARES_BYTES_MAX: usize = 64 << 20;
/// Memory so many times as large as what is needed stays for something larger.
const WASTE_MAX: usize = 4;

/// Aligned memory that moves without changing its address.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u128>);

/// Memory of operations that are over, for the next ones: of fresh memory every page costs a fault.
#[derive(Debug, Default)]
pub(crate) struct Spares(Vec<Scratch>);

impl Spares {
    /// At least `bytes`, with anything in it.
    pub(crate) fn take(&mut self, bytes: usize) -> Scratch {
        let words = bytes.div_ceil(size_of::<u128>());
        if words == 0 {
            return Scratch::default();
        }
        let fits = |spare: &Scratch| (words..=WASTE_MAX * words).contains(&spare.0.len());
        let fitting = self.0.iter().enumerate().filter(|(_, spare)| fits(spare));
        match fitting.min_by_key(|(_, spare)| spare.0.len()).map(|(index, _)| index) {
            Some(index) => self.0.swap_remove(index),
            None => Scratch(vec![0; words]),
        }
    }

    /// Takes memory back. Of too many the smallest goes, and what would be too much is not kept.
    pub(crate) fn give(&mut self, scratch: Scratch) {
        let kept: usize = self.0.iter().chain([&scratch]).map(|spare| spare.0.len()).sum();
        if scratch.0.is_empty() || kept * size_of::<u128>() > SPARES_BYTES_MAX {
            return;
        }
        self.0.push(scratch);
        if self.0.len() > SPARES_MAX {
            let sizes = self.0.iter().enumerate().map(|(index, spare)| (spare.0.len(), index));
            let (_, smallest) = sizes.min().expect("there are some");
            self.0.swap_remove(smallest);
        }
    }
}

impl Scratch {
    /// Lends all of it. The owner keeps `self` until the operation has ended and does not touch
    /// it meanwhile.
    pub(crate) fn lend(&mut self) -> LocalSlice {
        // SAFETY: the vector's memory stays where it is until `self` is dropped, which the
        // engine does after the slices (field order of `engine::Running`).
        unsafe { LocalSlice::new(self.0.as_mut_ptr().cast(), self.0.len() * size_of::<u128>()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_little_is_kept() {
        let mut spares = Spares::default();
        let mut first = spares.take(100);
        let address = first.lend().bytes().as_ptr();
        assert_eq!(first.lend().len(), 112);
        spares.give(first);
        spares.give(spares_of(1 << 20));
        let mut again = spares.take(90);
        assert_eq!(again.lend().bytes().as_ptr(), address, "the smallest that fits");
        assert!(spares.take(0).0.is_empty());
        assert_eq!(spares.take(1000).0.len() * 16, 1008, "1 MiB is left for more than that");
        spares.give(spares_of(SPARES_BYTES_MAX));
        assert_eq!(spares.0.len(), 1, "too much is not kept");
        for size in [1, 2, 3, 4, 5] {
            spares.give(spares_of(size << 10));
        }
        let kept: Vec<usize> = spares.0.iter().map(|spare| spare.0.len() * 16).collect();
        assert_eq!(kept.len(), SPARES_MAX);
        assert!(kept.contains(&(1 << 20)) && !kept.contains(&1024), "{kept:?}");
    }

    fn spares_of(bytes: usize) -> Scratch {
        Spares::default().take(bytes)
    }
}

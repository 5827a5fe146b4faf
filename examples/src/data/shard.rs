//! Which images a rank trains on in which step.
//!
//! Every epoch has its own permutation of the training set, the same on all ranks because `seed`
//! fixes it. Step `t` takes the next `ranks * batch` images of it, and rank `r` the `r`-th batch of
//! those; what is left at the end sits out this epoch. So all ranks take the same number of steps,
//! and no image is seen twice in an epoch. The same is true where ranks take unequal parts of a
//! step's images, which lie one after another. Called by `worker`.

use std::error::Error;
use std::fmt;

use syncline::Batch;

/// The plan of one rank. See the module's description.
#[derive(Clone, Debug)]
pub struct ShardPlan {
    train_len: usize,
    ranks: usize,
    rank: usize,
    batch: usize,
    seed: u64,
}

/// There are fewer training images than one step of all ranks takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewImages {
    /// Training images.
    pub train_len: usize,
    /// Ranks.
    pub ranks: usize,
    /// Images that each rank takes in a step.
    pub batch: usize,
}

impl fmt::Display for TooFewImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { train_len, ranks, batch } = self;
        let needed = ranks * batch;
        write!(f, "{ranks} ranks with a batch of {batch} each take {needed} images a step, ")?;
        write!(f, "but there are only {train_len} to train on: choose a smaller --batch")
    }
}

impl Error for TooFewImages {}

impl ShardPlan {
    /// The plan of `rank` among `ranks`.
    ///
    /// # Errors
    ///
    /// There are not enough images for one step.
    ///
    /// # Panics
    ///
    /// `rank` is not below `ranks`, or `batch` is 0.
    pub fn new(
        train_len: usize,
        ranks: u32,
        rank: u32,
        batch: usize,
        seed: u64,
    ) -> Result<Self, TooFewImages> {
        assert!(rank < ranks && batch > 0, "rank {rank} of {ranks}, batch {batch}");
        let (ranks, rank) = (ranks as usize, rank as usize);
        if ranks.checked_mul(batch).is_none_or(|images| images > train_len) {
            return Err(TooFewImages { train_len, ranks, batch });
        }
        Ok(Self { train_len, ranks, rank, batch, seed })
    }

    /// Steps that every rank takes in an epoch.
    pub fn steps(&self) -> usize {
        self.train_len / (self.ranks * self.batch)
    }

    /// The images of this rank in epoch `epoch`, step after step: `steps() * batch` indices into
    /// the training set.
    pub fn epoch(&self, epoch: u32) -> Vec<usize> {
        let order = self.order(epoch);
        let own = |step| self.part_of(&order, step, self.equal_part()).to_vec();
        (0..self.steps()).flat_map(own).collect()
    }

    /// This rank's part of a step's images where all parts are equal.
    pub fn equal_part(&self) -> Batch {
        let in_words = |images: usize| u32::try_from(images).unwrap_or(u32::MAX);
        Batch { start: in_words(self.rank * self.batch), samples: in_words(self.batch) }
    }

    /// A part of the images of step `step`, out of the epoch's `order`.
    ///
    /// # Panics
    ///
    /// The step has no such part.
    pub fn part_of<'a>(&self, order: &'a [usize], step: usize, part: Batch) -> &'a [usize] {
        let all = self.ranks * self.batch;
        let (start, samples) = (part.start as usize, part.samples as usize);
        &order[step * all..][..all][start..start + samples]
    }

    /// The order of all images in epoch `epoch`, the same on all ranks.
    pub fn order(&self, epoch: u32) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.train_len).collect();
        // Odd multipliers keep different (seed, epoch) pairs apart; fastrand mixes the rest.
        let mixed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let seed = mixed ^ u64::from(epoch + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_an_epoch_without_overlap_and_take_equal_steps() {
        for (train_len, ranks, batch) in [(1437, 4, 16), (64, 4, 16), (100, 3, 7), (5, 1, 5)] {
            let mut seen = vec![0; train_len];
            for rank in 0..ranks {
                let plan = ShardPlan::new(train_len, ranks, rank, batch, 1).unwrap();
                let own = plan.epoch(0);
                assert_eq!(own.len(), plan.steps() * batch);
                assert_eq!(plan.steps(), train_len / (ranks as usize * batch));
                own.iter().for_each(|index| seen[*index] += 1);
            }
            assert!(seen.iter().all(|count| *count <= 1));
            let used: usize = seen.iter().sum();
            assert!(train_len - used < ranks as usize * batch);
        }
    }

    #[test]
    fn one_rank_sees_what_many_see_together_in_the_same_order() {
        let whole = ShardPlan::new(96, 1, 0, 32, 5).unwrap().epoch(3);
        let parts: Vec<Vec<usize>> =
            (0..4).map(|rank| ShardPlan::new(96, 4, rank, 8, 5).unwrap().epoch(3)).collect();
        for step in 0..3 {
            let mut joined: Vec<usize> = Vec::new();
            parts.iter().for_each(|part| joined.extend(&part[step * 8..][..8]));
            assert_eq!(joined, whole[step * 32..][..32]);
        }
    }

    #[test]
    fn unequal_parts_are_of_the_same_images() {
        let plan = |rank| ShardPlan::new(100, 3, rank, 8, 5).unwrap();
        let order = plan(0).order(2);
        for step in 0..plan(0).steps() {
            let parts = Batch::parts(&[11, 12, 1]);
            let part = |part: &Batch| plan(0).part_of(&order, step, *part).to_vec();
            let unequal: Vec<usize> = parts.iter().flat_map(part).collect();
            let equal = (0..3).flat_map(|rank| plan(rank).epoch(2)[step * 8..][..8].to_vec());
            assert_eq!(unequal, equal.collect::<Vec<_>>());
        }
    }

    #[test]
    fn seed_and_epoch_fix_the_order() {
        let order = |seed, epoch| ShardPlan::new(50, 1, 0, 10, seed).unwrap().epoch(epoch);
        assert_eq!(order(1, 2), order(1, 2));
        assert_ne!(order(1, 2), order(1, 3));
        assert_ne!(order(1, 2), order(2, 2));
        assert_ne!(order(1, 2), order(2, 1));
    }

    #[test]
    fn a_step_larger_than_the_set_is_refused() {
        let error = ShardPlan::new(63, 4, 0, 16, 1).unwrap_err();
        assert_eq!(error, TooFewImages { train_len: 63, ranks: 4, batch: 16 });
        assert!(error.to_string().contains("take 64 images a step, but there are only 63"));
        assert!(ShardPlan::new(10, 4, 0, usize::MAX, 1).is_err());
    }
}

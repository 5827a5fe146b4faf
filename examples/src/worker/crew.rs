//! Which ranks train. Owns their count and their order. Called by the loop of a rank, and by the
//! simulation.

/// The ranks that train, seen from one rank: all but one that only serves, if there is one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crew {
    ranks: u32,
    rank: u32,
    server_only: Option<u32>,
}

impl Crew {
    pub(crate) fn new(ranks: u32, rank: u32, server_only: Option<u32>) -> Self {
        Self { ranks, rank, server_only }
    }

    /// The same ranks, seen from another.
    pub(crate) fn of(self, rank: u32) -> Self {
        Self { rank, ..self }
    }

    /// How many ranks train.
    pub(crate) fn workers(&self) -> u32 {
        self.ranks - u32::from(self.server_only.is_some())
    }

    /// Whether `rank` trains.
    pub(crate) fn has(&self, rank: u32) -> bool {
        self.server_only != Some(rank)
    }

    /// Whether this rank trains.
    pub(crate) fn trains(&self) -> bool {
        self.has(self.rank)
    }

    /// This rank's place among those that train; 0 for one that does not.
    pub(crate) fn place(&self) -> u32 {
        match self.server_only {
            Some(server) if server == self.rank => 0,
            Some(server) if server < self.rank => self.rank - 1,
            _ => self.rank,
        }
    }

    /// Whether this rank tells how far training is: the first that trains.
    pub(crate) fn reports(&self) -> bool {
        self.trains() && self.place() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_train_have_places_without_a_gap() {
        for server in [None, Some(0), Some(2), Some(3)] {
            let crews = (0..4).map(|rank| Crew::new(4, rank, server));
            let places: Vec<u32> = crews.filter(Crew::trains).map(|crew| crew.place()).collect();
            assert_eq!(places, (0..Crew::new(4, 0, server).workers()).collect::<Vec<_>>());
        }
        let reporters = (0..4).filter(|rank| Crew::new(4, *rank, Some(0)).reports());
        assert_eq!(reporters.collect::<Vec<_>>(), [1]);
    }
}

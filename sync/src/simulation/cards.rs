//! Messages between single ranks: one at a time out of a rank, one at a time into it.
//!
//! Owns when each direction of each link is free. Called by the driver, which hands messages over
//! in the order of the times at which they leave and get there.

/// Both directions of every rank's link.
#[derive(Debug)]
pub(super) struct Cards {
    out_free_s: Vec<f64>,
    in_free_s: Vec<f64>,
}

impl Cards {
    pub(super) fn new(ranks: usize) -> Self {
        Self { out_free_s: vec![0.0; ranks], in_free_s: vec![0.0; ranks] }
    }

    /// When the first byte of a message leaves that takes so long on the link.
    pub(super) fn send(&mut self, from: u32, seconds: f64, now: f64) -> f64 {
        let free = &mut self.out_free_s[from as usize];
        let start = free.max(now);
        *free = start + seconds;
        start
    }

    /// When the last byte of it is taken in, if the first gets there `now`.
    pub(super) fn receive(&mut self, to: u32, seconds: f64, now: f64) -> f64 {
        let free = &mut self.in_free_s[to as usize];
        *free = free.max(now) + seconds;
        *free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_for_the_link_of_either_end() {
        let mut cards = Cards::new(3);
        assert_eq!([cards.send(0, 2.0, 1.0), cards.send(0, 2.0, 1.0)], [1.0, 3.0]);
        assert_eq!(cards.send(1, 2.0, 1.0), 1.0, "another rank's link");
        assert_eq!([cards.receive(2, 2.0, 1.5), cards.receive(2, 2.0, 1.5)], [3.5, 5.5]);
        assert_eq!(cards.receive(2, 2.0, 9.0), 11.0);
        assert_eq!(cards.receive(0, 2.0, 1.0), 3.0, "in and out do not meet");
    }
}

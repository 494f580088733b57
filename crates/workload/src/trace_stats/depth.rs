//! Requests that are under way at once, of a trace that tells how long each took.

use super::counts::Counts;
use seekway_core::units::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most requests that are followed at once.
pub const DEPTH_MAX: usize = 1 << 16;

/// Depth and response times.
#[derive(Clone, Debug, Default)]
pub struct Depth {
    /// When those under way will be done, the first on top; where that is known in advance.
    ends: BinaryHeap<Reverse<u64>>,
    under_way: u64,
    at_arrival: Counts,
    response_us: Counts,
    total_ns: u128,
}

impl Depth {
    /// Counts a request that came at `at` and took `took`; times never decrease.
    pub fn add(&mut self, at: Nanos, took: Nanos) {
        while self.ends.peek().is_some_and(|end| end.0 <= at.get()) {
            self.ends.pop();
        }
        if self.ends.len() < DEPTH_MAX {
            self.ends.push(Reverse(at.get().saturating_add(took.get())));
        }
        self.at_arrival.add(self.ends.len() as u64);
        self.took(took);
    }

    /// A request comes; [`Depth::done`] says when it goes.
    pub fn issued(&mut self) {
        self.under_way += 1;
        self.at_arrival.add(self.under_way);
    }

    /// A request that was issued is done, after `took`.
    pub fn done(&mut self, took: Nanos) {
        self.under_way = self.under_way.saturating_sub(1);
        self.took(took);
    }

    fn took(&mut self, took: Nanos) {
        self.response_us.add(took.get().div_ceil(1000));
        self.total_ns += u128::from(took.get());
    }

    /// Number of requests under way when one comes, itself included: at most [`DEPTH_MAX`].
    pub fn at_arrival(&self) -> &Counts {
        &self.at_arrival
    }

    /// Response times in µs, rounded up.
    pub fn response_us(&self) -> &Counts {
        &self.response_us
    }

    /// Mean number under way over this time (Little's law).
    pub fn mean(&self, span: Nanos) -> Option<f64> {
        (span > Nanos::ZERO).then(|| self.total_ns as f64 / span.get() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_done_is_under_way_no_more() {
        let mut depth = Depth::default();
        // Until 10, 30, 20 and 40: at 20 the third is done, and the second is not.
        for (at, took) in [(0, 10), (5, 25), (9, 11), (20, 20)] {
            depth.add(Nanos::new(at), Nanos::new(took));
        }
        assert_eq!(depth.at_arrival().all().collect::<Vec<_>>(), [(1, 1), (2, 2), (3, 1)]);
        assert_eq!(depth.mean(Nanos::new(40)), Some(66.0 / 40.0));
        assert_eq!(depth.response_us().most_common(), Some((1, 4)));
    }

    #[test]
    fn those_issued_are_under_way_until_they_are_done() {
        let mut depth = Depth::default();
        (0..3).for_each(|_| depth.issued());
        depth.done(Nanos::new(5_000));
        depth.issued();
        assert_eq!(depth.at_arrival().all().collect::<Vec<_>>(), [(1, 1), (2, 1), (3, 2)]);
        assert_eq!(depth.response_us().all().collect::<Vec<_>>(), [(5, 1)]);
    }

    #[test]
    fn more_than_can_be_followed_count_as_that() {
        let mut depth = Depth::default();
        (0..DEPTH_MAX + 5).for_each(|_| depth.add(Nanos::ZERO, Nanos::from_secs(1)));
        assert_eq!(depth.ends.len(), DEPTH_MAX);
        assert_eq!(depth.at_arrival().max(), Some(DEPTH_MAX as u64));
    }
}

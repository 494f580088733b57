//! Random orders too long to be kept in memory.

use crate::generators::rng::split;

/// A random order of `0..n` that needs no memory: a Feistel network over the
/// next even number of bits, walked until it falls inside.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    key: u64,
}

impl Permutation {
    /// Of `0..n`; different keys make different orders.
    pub fn new(n: u64, key: u64) -> Self {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        Permutation { n, half_bits: bits.div_ceil(2).max(1), key }
    }

    /// The number at place `at` < n.
    pub fn at(&self, at: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let mut x = at;
        loop {
            let (mut left, mut right) = (x >> self.half_bits, x & mask);
            for round in 0..4 {
                let mixed = split(self.key ^ round, right) & mask;
                (left, right) = (right, left ^ mixed);
            }
            x = (left << self.half_bits) | right;
            if x < self.n {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_visits_each_once() {
        for n in [1u64, 2, 3, 100, 1024, 5000] {
            let order = Permutation::new(n, 99);
            let mut seen: Vec<u64> = (0..n).map(|i| order.at(i)).collect();
            let shuffled = seen.clone();
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
            assert!(n < 100 || shuffled != seen);
        }
    }
}

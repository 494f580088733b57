//! Random numbers that are the same for the same seed, one row of them for each step of a seed:
//! a step that is left out changes none of the others'.

use seekway_core::mix::{STEP, mix64};

/// xorshift64 (Marsaglia 2003) with the factor of xorshift64* (Vigna 2016).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of step `step` of a seed.
    pub fn new(seed: u64, step: u64) -> Random {
        // Neighbours have nothing in common.
        Random(mix64(seed.wrapping_mul(STEP) ^ step.wrapping_add(0x632B_E59B)) | 1)
    }

    /// Other numbers, with this state: they change none of these.
    pub fn apart(&self) -> Random {
        Random::new(self.0, 0)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }

    /// As [`Random::below`], for an index.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// True once in `n` times; never for 0.
    pub fn once_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    /// One of `all`, each equally likely; panics if there is none.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())]
    }
}

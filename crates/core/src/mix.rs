//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA
//! 2014): for hashes, keys and seeded draws.

/// Step of the state from draw to draw.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads the bits of a number over all of it (Stafford's mix 13).
#[inline]
pub fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The draw of this number from 0 on: neighbouring numbers give unrelated ones.
#[inline]
pub fn nth(number: u64) -> u64 {
    mix64(number.wrapping_mul(STEP))
}

/// The next draw of a state: the same seed, the same draws.
#[inline]
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    mix64(*state)
}

/// A stream of draws: the same seed, the same draws.
#[derive(Clone, Debug, Default)]
pub struct Draws(u64);

impl Draws {
    /// The draws of this seed.
    pub fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    /// A number in `0..bound`, each as likely as the others to one part in 2^64 / `bound`. A
    /// `bound` of zero gives zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(next(&mut self.0)) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_splitmix() {
        // The first outputs for seed 1234567, as published with the generator.
        let mut state = 1_234_567;
        let drawn = [(); 3].map(|()| next(&mut state));
        assert_eq!(
            drawn,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        let mut draws = Draws::new(1_234_567);
        assert_eq!((draws.below(0), draws.below(1)), (0, 0));
    }
}

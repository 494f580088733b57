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

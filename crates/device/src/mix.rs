//! Fixed sequences that look random.

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Number `number` of splitmix64 from 0 on: neighbouring numbers give unrelated ones.
pub(crate) fn mix(number: u64) -> u64 {
    output(number.wrapping_mul(STEP))
}

/// The next number of splitmix64: the same places in each run.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    output(*state)
}

fn output(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

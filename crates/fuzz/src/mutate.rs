//! Mutations of kept inputs, from a seed: the same seed gives the same inputs.

use crate::INPUT_BYTES_MAX;
use seekway_core::mix;

/// SplitMix64; the field is its state.
pub struct Random(pub u64);

impl Random {
    pub fn number(&mut self) -> u64 {
        mix::next(&mut self.0)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }
}

/// Numbers at which code changes its mind.
const EDGES: [u64; 12] =
    [0, 1, 7, 8, 16, 255, 512, 65_535, 65_536, u32::MAX as u64, i64::MAX as u64, u64::MAX];

/// One to eight changes to one of `inputs`, or random bytes if there is none.
pub fn mutate(random: &mut Random, inputs: &[Vec<u8>], words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = match inputs.len() {
        0 => (0..random.below(64)).map(|_| random.number() as u8).collect(),
        n => inputs[random.below(n)].clone(),
    };
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() + 1);
        match random.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.number() as u8,
            2 => bytes.insert(at, random.number() as u8),
            3 => {
                let end = (at + random.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + random.below(32)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            5 => overwrite(random, &mut bytes, at),
            6 if !inputs.is_empty() => {
                let other = &inputs[random.below(inputs.len())];
                let from = random.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            7 if !words.is_empty() => {
                let word = words[random.below(words.len())];
                bytes.splice(at..at, word.iter().copied());
            }
            _ => bytes.truncate(at.max(bytes.len() / 2)),
        }
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

/// An edge value of 1, 2, 4 or 8 bytes in either byte order.
fn overwrite(random: &mut Random, bytes: &mut [u8], at: usize) {
    let (value, width) = (EDGES[random.below(EDGES.len())], 1 << random.below(4));
    let little = value.to_le_bytes();
    let big = value.to_be_bytes();
    let is_big = random.below(2) == 1;
    let part = if is_big { &big[8 - width..] } else { &little[..width] };
    for (to, from) in bytes[at..].iter_mut().zip(part) {
        *to = *from;
    }
}

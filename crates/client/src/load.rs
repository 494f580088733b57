//! The load on a server: a closed loop of requests, and their offsets.

use std::time::Duration;

/// The result type of this crate: errors are words for the terminal.
pub type Result<T> = std::result::Result<T, String>;

/// A closed loop of reads or writes: `depth` outstanding, each answered by the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Bytes of one request, a multiple of 4096.
    pub block_bytes: u32,
    /// Requests outstanding, at least 1.
    pub depth: u16,
    /// Sequential offsets, wrapping at the end; otherwise uniformly random ones.
    pub sequential: bool,
    /// Writes instead of reads.
    pub write: bool,
}

impl Load {
    /// Reads of 4 KiB at random offsets, `depth` of them outstanding.
    pub const fn random(depth: u16) -> Load {
        Load { block_bytes: 4096, depth, sequential: false, write: false }
    }

    /// 128 KiB, one after the other.
    pub const fn sequential(depth: u16) -> Load {
        Load { block_bytes: 128 << 10, depth, sequential: true, write: false }
    }

    /// Bytes that the client shares with the server for its data.
    pub fn memory_bytes(&self) -> usize {
        self.block_bytes as usize * usize::from(self.depth)
    }

    /// For a row's name.
    pub fn name(&self) -> String {
        let order = if self.sequential { "sequential" } else { "random" };
        format!("{} KiB {order} depth {}", self.block_bytes >> 10, self.depth)
    }
}

/// Duration of a load.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Not counted, at first.
    pub warm_up: Duration,
    /// Time after the warm-up in which requests are counted.
    pub counted: Duration,
}

/// Offsets of requests, the same for every server.
pub struct Places {
    load: Load,
    blocks: u64,
    state: u64,
}

impl Places {
    /// Within the first `capacity_bytes`, which hold at least one block.
    pub fn new(load: Load, capacity_bytes: u64) -> Places {
        let blocks = (capacity_bytes / u64::from(load.block_bytes)).max(1);
        Places { load, blocks, state: 0 }
    }

    /// The byte offset of the next request.
    pub fn next(&mut self) -> u64 {
        let block = if self.load.sequential {
            self.state += 1;
            (self.state - 1) % self.blocks
        } else {
            // SplitMix64, and the high half of a product instead of a division.
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let word = mix(self.state);
            ((u128::from(word) * u128::from(self.blocks)) >> 64) as u64
        };
        block * u64::from(self.load.block_bytes)
    }
}

/// SplitMix64's finalizer (Steele, Lea, Flood 2014).
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_stay_within_the_capacity() {
        let capacity_bytes = 10 * 4096 + 100;
        for load in [Load::random(1), Load { block_bytes: 4096, ..Load::sequential(1) }] {
            let mut places = Places::new(load, capacity_bytes);
            let offsets: Vec<u64> = (0..100).map(|_| places.next()).collect();
            assert!(offsets.iter().all(|o| o % 4096 == 0 && o + 4096 <= capacity_bytes));
            assert!((0..10).all(|block| offsets.contains(&(block * 4096))), "{load:?}");
        }
    }
}

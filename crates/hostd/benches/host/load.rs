//! What is asked of a server, and what it gave: one load, one sample.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Everything here fails with words for whoever reads the terminal.
pub type Result<T> = std::result::Result<T, String>;

/// A closed loop of reads: `depth` outstanding, each answered by the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Bytes of one read, a multiple of 4096.
    pub block_bytes: u32,
    /// Reads outstanding, 1 to 64.
    pub depth: u16,
    /// One after the other, wrapping at the end; else uniformly random.
    pub sequential: bool,
}

impl Load {
    /// 4 KiB, random.
    pub const fn random(depth: u16) -> Load {
        Load { block_bytes: 4096, depth, sequential: false }
    }

    /// 128 KiB, one after the other.
    pub const fn sequential(depth: u16) -> Load {
        Load { block_bytes: 128 << 10, depth, sequential: true }
    }

    /// For a row's name.
    pub fn name(&self) -> String {
        let order = if self.sequential { "sequential" } else { "random" };
        format!("{} KiB {order} depth {}", self.block_bytes >> 10, self.depth)
    }
}

/// How long to load a server.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Not counted, at first.
    pub warm_up: Duration,
    /// Counted.
    pub counted: Duration,
}

/// What one load gave.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Reads a second.
    pub iops: f64,
    /// Bytes a second, in MiB.
    pub mib_per_s: f64,
    /// Half of the reads took no longer, microseconds.
    pub p50_us: f64,
    /// What a read took on average, microseconds.
    pub mean_us: f64,
    /// 99 of a hundred took no longer, microseconds.
    pub p99_us: f64,
    /// CPU time that the server used for one read, microseconds, all its
    /// threads. To the system's tick of 10 ms, and so to about 1 %.
    pub server_cpu_us: f64,
}

impl Sample {
    /// From latencies in nanoseconds, the time that they were counted over and
    /// the server's CPU time in it.
    pub fn new(load: &Load, latencies: &Histogram<u64>, wall: Duration, cpu: Duration) -> Sample {
        let reads = latencies.len() as f64;
        let iops = reads / wall.as_secs_f64();
        Sample {
            iops,
            mib_per_s: iops * f64::from(load.block_bytes) / f64::from(1 << 20),
            p50_us: latencies.value_at_quantile(0.5) as f64 / 1e3,
            mean_us: latencies.mean() / 1e3,
            p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3,
            server_cpu_us: cpu.as_secs_f64() * 1e6 / reads.max(1.0),
        }
    }
}

/// Places of reads, the same for every server.
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

    /// The byte offset of the next read.
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

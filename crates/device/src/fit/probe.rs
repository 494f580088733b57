//! Random single reads of a model: what calibration does to a real disk.

use super::Sample;
use crate::DeviceModel;
use crate::closed_loop::serve;
use seekway_core::mix::Draws;
use seekway_core::request::{Extent, Op};
use seekway_core::units::{Instant, Lba, Sectors};

/// Places for random reads: numbers from 0 to below `count`, all alike likely,
/// without an end. The same seed gives the same places (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Places {
    draws: Draws,
    count: u64,
}

impl Places {
    /// Of `count` places, at least 1.
    pub fn new(seed: u64, count: u64) -> Places {
        Places { draws: Draws::new(seed), count: count.max(1) }
    }
}

impl Iterator for Places {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        Some(self.draws.below(self.count))
    }
}

/// Reads `reads` times `sectors` sectors at random multiples of `sectors` over
/// the whole device, each when the one before is done, from time 0 of a device
/// at rest. Empty where the device is smaller than one read or `sectors` is 0.
///
/// Not for a device that another engine is using: completions are taken.
pub fn probe(device: &mut dyn DeviceModel, reads: usize, sectors: u64, seed: u64) -> Vec<Sample> {
    let capacity = device.profile().capacity.get();
    let blocks = capacity.checked_div(sectors).unwrap_or(0);
    if blocks == 0 {
        return Vec::new();
    }
    let (mut now, mut from) = (Instant::ZERO, None);
    let read = |block: u64| {
        let extent = Extent::new(Lba::new(block * sectors), Sectors::new(sectors))?;
        let done = serve(device, now, Op::Read, extent);
        let service_ns = done.since(now).get();
        now = done;
        Some(Sample { op: Op::Read, extent, service_ns, from: from.replace(extent.end().get()) })
    };
    Places::new(seed, blocks).take(reads).filter_map(read).collect()
}

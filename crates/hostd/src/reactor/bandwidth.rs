//! Bandwidth of the device's reads at best (BW_T in the VIO paper), which prefetchers share out:
//! the operator's figure, or else the measured one until more is seen.

use seekway_core::units::{Instant, Nanos};

/// Interval over which the device's reads are counted, to see whether it can do more than was
/// measured.
const WINDOW: Nanos = Nanos::from_millis(500);

/// Best known bandwidth.
#[derive(Default)]
pub struct Bandwidth {
    bytes_per_s: Option<u64>,
    /// The operator has said so: nothing else counts.
    given: bool,
    /// Since when `bytes` are counted.
    begin: Instant,
    bytes: u64,
    total_bytes: u64,
}

impl Bandwidth {
    /// As the operator says.
    pub fn given(bytes_per_s: u64) -> Bandwidth {
        Bandwidth { bytes_per_s: Some(bytes_per_s), given: true, ..Bandwidth::default() }
    }

    /// Takes a measured bandwidth. True when nothing was known before.
    pub fn measured(&mut self, bytes_per_s: u64) -> bool {
        let new = self.bytes_per_s.is_none();
        self.bytes_per_s.get_or_insert(bytes_per_s);
        new
    }

    /// Counts bytes read; `from_device` when no page cache can have had them. Returns the bandwidth
    /// if it is more than was known.
    pub fn read(&mut self, now: Instant, bytes: u64, from_device: bool) -> Option<u64> {
        self.total_bytes += bytes;
        self.bytes += if from_device { bytes } else { 0 };
        let span = now.since(self.begin);
        if span < WINDOW {
            return None;
        }
        let seen = (self.bytes as f64 / span.as_secs_f64()) as u64;
        (self.begin, self.bytes) = (now, 0);
        // A guest that reads little says nothing of a device that nobody knows.
        let more = !self.given && self.bytes_per_s.is_some_and(|known| seen > known);
        more.then(|| *self.bytes_per_s.insert(seen))
    }

    /// Bytes a second, if known.
    pub fn bytes_per_s(&self) -> Option<u64> {
        self.bytes_per_s
    }
    /// Bytes read in all, wherever they came from.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// 8 MiB every 100 ms for two seconds.
    fn after(mut bandwidth: Bandwidth, from_device: bool) -> Option<u64> {
        for n in 1..=20 {
            let now = Instant::from_nanos(n * 100_000_000);
            bandwidth.read(now, 8 * MIB, from_device);
        }
        assert_eq!(bandwidth.total_bytes(), 160 * MIB);
        bandwidth.bytes_per_s()
    }

    fn measured(bytes_per_s: u64) -> Bandwidth {
        let mut bandwidth = Bandwidth::default();
        assert!(bandwidth.measured(bytes_per_s) && !bandwidth.measured(2 * bytes_per_s));
        bandwidth
    }

    #[test]
    fn more_than_was_measured_counts_if_the_device_read_it() {
        assert_eq!(after(measured(MIB), true), Some(80 * MIB));
        assert_eq!(after(measured(100 * MIB), true), Some(100 * MIB));
        assert_eq!(after(measured(MIB), false), Some(MIB));
        assert_eq!(after(Bandwidth::default(), true), None);
    }

    #[test]
    fn what_the_operator_says_stands() {
        let mut bandwidth = Bandwidth::given(MIB);
        assert!(!bandwidth.measured(2 * MIB));
        assert_eq!(after(bandwidth, true), Some(MIB));
    }
}

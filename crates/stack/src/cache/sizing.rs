//! Size of a cache that nobody gave a size: a tenth of the memory that is available, less under
//! memory pressure.
//!
//! Pure: an engine reads the system and passes a [`Reading`], with the time: every [`LOOK`] (or
//! [`LOOK_OFTEN`] where nobody tells of pressure), and whenever the system says that tasks waited
//! for memory.
//!
//! - The *share* is a tenth of what would be available if the cache were not there. A
//!   cache that grows does not make its own share smaller.
//! - **Pressure** takes a quarter of the size, or all above the share, if that is more.
//! - A share that is an eighth below the size takes the size down to it, pressure or not.
//! - A share that is an eighth above the size lets it grow by an eighth for each look, but
//!   only when there was no pressure for [`CALM`].
//! - In between nothing changes: a host whose memory goes up and down a little does not
//!   make the cache throw data away and fetch it again.

use seekway_core::units::{Instant, Nanos};

/// The cache's share of the memory that is available, as a divisor.
pub const PART: u64 = 10;
/// Time between two looks at the memory.
pub const LOOK: Nanos = Nanos::from_secs(10);
/// As [`LOOK`], where the system does not tell of pressure.
pub const LOOK_OFTEN: Nanos = Nanos::from_secs(2);
/// Time after pressure for which the cache does not grow.
pub const CALM: Nanos = Nanos::from_secs(60);
/// Pressure takes a quarter (the divisor).
const SHRINK_PART: u64 = 4;
/// A calm look lets the cache grow by an eighth (the divisor); a share within an eighth of the size
/// changes nothing.
const GROW_PART: u64 = 8;
/// Where the system does not tell of pressure, less than a 32nd (the divisor) of all memory
/// available is pressure.
const SCARCE_PART: u64 = 32;

/// Bounds of an automatic size, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The size under lasting pressure.
    pub floor: u64,
    /// Never more than that.
    pub ceiling: u64,
}

impl Bounds {
    /// The smallest cache that is of use.
    pub const FLOOR: u64 = 16 << 20;
    /// More would be much to find in the host's memory unasked.
    pub const CEILING: u64 = 16 << 30;

    /// Bounds for a host, or a control group, with `total_bytes` of memory.
    pub fn of_memory(total_bytes: u64) -> Bounds {
        let ceiling = (total_bytes / PART).clamp(1, Bounds::CEILING);
        Bounds { floor: Bounds::FLOOR.min(ceiling), ceiling }
    }

    fn clamp(&self, bytes: u64) -> u64 {
        bytes.clamp(self.floor.min(self.ceiling), self.ceiling)
    }
}

/// The system's memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// There is in all.
    pub total: u64,
    /// Programs could have without swapping.
    pub available: u64,
    /// The cache itself has now.
    pub cached: u64,
}

impl Reading {
    /// The cache's share of the memory.
    pub fn share(&self) -> u64 {
        self.available.saturating_add(self.cached) / PART
    }

    fn is_scarce(&self) -> bool {
        self.available < self.total / SCARCE_PART
    }
}

/// The size of a cache that follows the host's memory.
#[derive(Clone, Debug)]
pub struct AutoSize {
    bounds: Bounds,
    bytes: u64,
    /// When there was pressure last.
    pressed: Option<Instant>,
    /// The system tells of pressure: readings alone do not count as such.
    is_told: bool,
}

impl AutoSize {
    /// The size at the start: the share. `is_told`: the system tells of pressure.
    pub fn new(bounds: Bounds, reading: &Reading, is_told: bool) -> AutoSize {
        AutoSize { bounds, bytes: bounds.clamp(reading.share()), pressed: None, is_told }
    }

    /// The size that the cache should have now, within the bounds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Time from one look to the next.
    pub fn look_after(&self) -> Nanos {
        if self.is_told { LOOK } else { LOOK_OFTEN }
    }

    /// Tasks waited for memory. The size from now on.
    pub fn pressure(&mut self, now: Instant, reading: &Reading) -> u64 {
        self.pressed = Some(now);
        let less = self.bytes - self.bytes.div_ceil(SHRINK_PART);
        self.bytes = self.bounds.clamp(less.min(reading.share()));
        self.bytes
    }

    /// Hears of a regular look at the memory, and returns the size from now on.
    pub fn look(&mut self, now: Instant, reading: &Reading) -> u64 {
        if !self.is_told && reading.is_scarce() {
            return self.pressure(now, reading);
        }
        let share = self.bounds.clamp(reading.share());
        let step = self.bytes / GROW_PART;
        let is_calm = self.pressed.is_none_or(|at| now.since(at) >= CALM);
        if share + step <= self.bytes {
            self.bytes = share;
        } else if share >= self.bytes + step && is_calm {
            // From a small size as well: a step is at least a mebibyte.
            self.bytes = share.min(self.bytes + step.max(1 << 20));
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Nanos::from_secs(seconds)
    }

    fn reading(available: u64, cached: u64) -> Reading {
        Reading { total: 64 * GIB, available, cached }
    }

    /// Sizes of a cache that uses all that it may, while `available` is left to others
    /// and it together.
    fn looks(size: &mut AutoSize, from: u64, count: u64, available: u64) -> Vec<u64> {
        let mut sizes = Vec::new();
        for n in 0..count {
            let cached = size.bytes().min(available);
            sizes.push(size.look(at(from + 10 * n), &reading(available - cached, cached)));
        }
        sizes
    }

    #[test]
    fn a_tenth_of_what_is_available_and_it_stays_there() {
        let bounds = Bounds::of_memory(64 * GIB);
        let mut size = AutoSize::new(bounds, &reading(40 * GIB, 0), true);
        assert_eq!(size.bytes(), 4 * GIB);
        assert!(looks(&mut size, 0, 50, 40 * GIB).iter().all(|&bytes| bytes == 4 * GIB));
        // A little more or less available changes nothing, much less does.
        assert!(looks(&mut size, 500, 9, 44 * GIB).iter().all(|&bytes| bytes == 4 * GIB));
        assert!(looks(&mut size, 600, 9, 36 * GIB).iter().all(|&bytes| bytes == 4 * GIB));
        assert_eq!(looks(&mut size, 700, 1, 20 * GIB), [2 * GIB]);
    }

    #[test]
    fn under_pressure_it_goes_to_its_floor_and_comes_back_slowly() {
        let bounds = Bounds::of_memory(64 * GIB);
        let mut size = AutoSize::new(bounds, &reading(40 * GIB, 0), true);
        for second in 0..25 {
            size.pressure(at(second), &reading(GIB, size.bytes()));
        }
        assert_eq!(size.bytes(), bounds.floor);
        // A minute of calm first; then an eighth for each look, up to the share.
        let calm = looks(&mut size, 30, 5, 40 * GIB);
        assert!(calm.iter().all(|&bytes| bytes == bounds.floor), "{calm:?}");
        let back = looks(&mut size, 24 + 60, 70, 40 * GIB);
        assert!(back.windows(2).all(|pair| pair[1] <= pair[0] + (pair[0] / 8).max(MIB)));
        assert_eq!(back.iter().position(|&bytes| bytes > bounds.floor), Some(0));
        assert!(*back.last().unwrap() > 3 * GIB, "{back:?}");
    }

    #[test]
    fn without_word_of_pressure_little_memory_is_pressure() {
        let bounds = Bounds::of_memory(64 * GIB);
        let little = reading(GIB, 3 * GIB);
        let mut deaf = AutoSize::new(bounds, &reading(40 * GIB, 0), false);
        deaf.look(at(0), &little);
        assert_eq!(deaf.pressed, Some(at(0)));
        let mut told = AutoSize::new(bounds, &reading(40 * GIB, 0), true);
        told.look(at(0), &little);
        assert_eq!(told.pressed, None);
    }

    /// One event of a size: pressure or a look, seconds later, with these readings.
    type Step = (bool, u64, u64, u64);

    fn step() -> impl Strategy<Value = Step> {
        (any::<bool>(), 0..100u64, 0..70 * GIB, 0..20 * GIB)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// The size keeps its bounds, whatever happens; never grows under pressure, nor soon after
        /// it, nor by more than a step.
        #[test]
        fn it_keeps_its_bounds(
            total in 1..(1u64 << 50),
            is_told in any::<bool>(),
            start in 0..70 * GIB,
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let bounds = Bounds::of_memory(total);
            let of = |available, cached| Reading { total, available, cached };
            let mut size = AutoSize::new(bounds, &of(start, 0), is_told);
            let (mut now, mut pressed) = (0, None);
            for (is_pressure, after, available, cached) in steps {
                let (before, reading) = (size.bytes(), of(available, cached));
                now += after;
                if is_pressure {
                    size.pressure(at(now), &reading);
                    pressed = Some(now);
                    prop_assert!(size.bytes() <= before);
                } else {
                    size.look(at(now), &reading);
                    prop_assert!(size.bytes() <= before + (before / 8).max(MIB));
                    if pressed.is_some_and(|then| now - then < 60) {
                        prop_assert!(size.bytes() <= before, "it grew soon after pressure");
                    }
                }
                prop_assert!((bounds.floor..=bounds.ceiling).contains(&size.bytes()));
                prop_assert!(bounds.ceiling <= total.max(10) / 10);
            }
        }

        /// Steady pressure brings it to its floor in as many steps as there are thirds between the
        /// two.
        #[test]
        fn steady_pressure_brings_it_to_its_floor(total in 1..(1u64 << 50), start in 0..(1u64 << 50)) {
            let bounds = Bounds::of_memory(total);
            let of = |cached| Reading { total, available: start, cached };
            let mut size = AutoSize::new(bounds, &of(0), true);
            let ratio = size.bytes() as f64 / bounds.floor as f64;
            let most = (ratio.ln() / (4.0f64 / 3.0).ln()).ceil() as u64 + 1;
            for second in 0..most {
                size.pressure(at(second), &of(size.bytes()));
            }
            prop_assert_eq!(size.bytes(), bounds.floor);
        }

        /// Memory that stays as it is brings it to a size where it stays.
        #[test]
        fn it_settles(available in 0..70 * GIB, bytes in 0..7 * GIB) {
            let bounds = Bounds::of_memory(64 * GIB);
            let mut size = AutoSize::new(bounds, &reading(bytes.saturating_mul(PART), 0), true);
            let settled = *looks(&mut size, 1000, 200, available).last().unwrap();
            prop_assert!(looks(&mut size, 5000, 20, available).iter().all(|&b| b == settled));
        }
    }
}

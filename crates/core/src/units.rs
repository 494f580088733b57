//! The quantities that policies reason with, each a type of its own, with arithmetic only where it
//! has meaning: `Lba + Sectors` is an offset on the disk, `Lba + Lba` does not compile.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A point in time: nanoseconds since the engine's own epoch (the start of a
/// simulation, the start of the daemon). Range 0 to 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nanos(u64);

/// A logical block address on the physical device, in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lba(u64);

/// A length or a distance on the device, in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Sectors(u64);

/// Bytes in a sector, everywhere in Seekway (as in the Linux block layer).
pub const SECTOR_BYTES: u64 = 512;

impl Instant {
    /// The engine's epoch: the earliest instant that there is.
    pub const ZERO: Instant = Instant(0);

    /// The instant that lies `ns` nanoseconds after the epoch.
    pub const fn from_nanos(ns: u64) -> Self {
        Instant(ns)
    }
    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
    /// The first of those that there are.
    #[inline]
    pub fn earliest<const N: usize>(of: [Option<Instant>; N]) -> Option<Instant> {
        of.into_iter().fold(None, |first: Option<Instant>, at| match (first, at) {
            (Some(first), Some(at)) => Some(first.min(at)),
            (first, at) => first.or(at),
        })
    }
    /// Time from `earlier` to `self`; zero when `earlier` is in fact later.
    pub const fn since(self, earlier: Instant) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
    /// Seconds since the epoch, for output only.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Nanos {
    /// No time at all.
    pub const ZERO: Nanos = Nanos(0);

    /// A span of `ns` nanoseconds.
    pub const fn new(ns: u64) -> Self {
        Nanos(ns)
    }
    /// A span of `us` microseconds (saturating).
    pub const fn from_micros(us: u64) -> Self {
        Nanos(us.saturating_mul(1_000))
    }
    /// A span of `ms` milliseconds (saturating).
    pub const fn from_millis(ms: u64) -> Self {
        Nanos(ms.saturating_mul(1_000_000))
    }
    /// A span of `s` seconds (saturating).
    pub const fn from_secs(s: u64) -> Self {
        Nanos(s.saturating_mul(1_000_000_000))
    }
    /// The span in nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }
    /// The span in milliseconds, for output only.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// The span in seconds, for output only.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// `self - other`, or zero.
    pub const fn saturating_sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
    /// `self · num / den` in 128-bit arithmetic, saturating; `den` of zero counts as one.
    pub const fn scaled(self, num: u64, den: u64) -> Nanos {
        if den <= 1 {
            return Nanos(self.0.saturating_mul(num));
        }
        // Most fit into 64 bits, where a division takes a fraction of the time.
        if let Some(product) = self.0.checked_mul(num) {
            return Nanos(product / den);
        }
        let wide = self.0 as u128 * num as u128 / den as u128;
        Nanos(if wide > u64::MAX as u128 { u64::MAX } else { wide as u64 })
    }
}

impl Lba {
    /// The first sector of the device.
    pub const ZERO: Lba = Lba(0);

    /// The sector with number `sector`.
    pub const fn new(sector: u64) -> Self {
        Lba(sector)
    }
    /// The sector's number, from 0 at the beginning of the device.
    pub const fn get(self) -> u64 {
        self.0
    }
    /// Distance between two offsets, in either direction.
    pub const fn distance(self, other: Lba) -> Sectors {
        Sectors(self.0.abs_diff(other.0))
    }
}

impl Sectors {
    /// A length of no sectors.
    pub const ZERO: Sectors = Sectors(0);

    /// A length of `n` sectors of 512 bytes.
    pub const fn new(n: u64) -> Self {
        Sectors(n)
    }
    /// Whole sectors that `bytes` bytes need (rounded up).
    pub const fn from_bytes(bytes: u64) -> Self {
        Sectors(bytes.div_ceil(SECTOR_BYTES))
    }
    /// The number of sectors.
    pub const fn get(self) -> u64 {
        self.0
    }
    /// The length in bytes (saturating).
    pub const fn bytes(self) -> u64 {
        self.0.saturating_mul(SECTOR_BYTES)
    }
}

impl Add<Nanos> for Instant {
    type Output = Instant;
    fn add(self, span: Nanos) -> Instant {
        Instant(self.0.saturating_add(span.0))
    }
}
impl Sub<Instant> for Instant {
    type Output = Nanos;
    /// Panics in debug builds when `earlier` is later than `self`: use [`Instant::since`]
    /// where the order is not known.
    fn sub(self, earlier: Instant) -> Nanos {
        debug_assert!(self >= earlier, "time ran backwards: {self} - {earlier}");
        self.since(earlier)
    }
}
impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}
impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        *self = *self + other;
    }
}
impl Add<Sectors> for Lba {
    type Output = Lba;
    fn add(self, length: Sectors) -> Lba {
        Lba(self.0.saturating_add(length.0))
    }
}
impl Add for Sectors {
    type Output = Sectors;
    fn add(self, other: Sectors) -> Sectors {
        Sectors(self.0.saturating_add(other.0))
    }
}
impl AddAssign for Sectors {
    fn add_assign(&mut self, other: Sectors) {
        *self = *self + other;
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}
impl fmt::Display for Nanos {
    /// The shortest exact spelling: `8ms`, `6700us`, `15ns`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "0ms"),
            n if n % 1_000_000_000 == 0 => write!(f, "{}s", n / 1_000_000_000),
            n if n % 1_000_000 == 0 => write!(f, "{}ms", n / 1_000_000),
            n if n % 1_000 == 0 => write!(f, "{}us", n / 1_000),
            n => write!(f, "{n}ns"),
        }
    }
}
impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for Sectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_and_keeps_its_meaning() {
        let t = Instant::from_nanos(5) + Nanos::from_millis(8);
        assert_eq!(t - Instant::from_nanos(5), Nanos::from_millis(8));
        assert_eq!(Instant::from_nanos(1).since(t), Nanos::ZERO);
        assert_eq!(Lba::new(10).distance(Lba::new(4)), Sectors::new(6));
        assert_eq!(Lba::new(u64::MAX) + Sectors::new(9), Lba::new(u64::MAX));
        assert_eq!(Sectors::from_bytes(513), Sectors::new(2));
        assert_eq!(Nanos::new(10).scaled(3, 2), Nanos::new(15));
    }

    #[test]
    fn spans_print_exactly() {
        assert_eq!(Nanos::from_micros(6_700).to_string(), "6700us");
        assert_eq!(Nanos::from_secs(5).to_string(), "5s");
        assert_eq!(Instant::from_nanos(1_500_000_000).to_string(), "1.500000000s");
    }
}

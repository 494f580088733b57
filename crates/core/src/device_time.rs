//! Device time: how much of the device each command has had.
//!
//! While several commands are on the device, they share the time that passes in
//! proportion to their sizes. With one command at a time that is its service
//! time. The time since the previous completion would charge whoever completes
//! first for all; equal shares would charge a command of 4 KiB as much as one of
//! 1 MiB, since both stay as long where the device has a queue.

use crate::units::{Instant, Nanos, Sectors};

/// Binary digits behind the point of a [`Reading`]: enough for sizes that sum up
/// to millions to share a nanosecond.
const FRACTION: u32 = 24;

/// A clock that shows the device time of a command of size 1. It runs at the
/// speed of time over the sum of the sizes of all commands on the device.
#[derive(Default)]
pub struct Clock {
    reading: Reading,
    read: Instant,
    commands: u32,
    /// Sum of their sizes.
    sizes: u64,
}

/// The largest size of a command: larger ones count as this.
const SIZE_MAX: u64 = 1 << 24;

/// The size of a command: of `len` on a device that serves several at once, 1 on
/// one with a head, whose time goes into positioning. A command costs the device
/// something whatever its length: 4 KiB on top, an assumption that lies between
/// the drives of our profiles (fairway's prototype ordered well by it).
#[inline]
pub fn size(len: Sectors, by_turns: bool) -> u64 {
    if by_turns { 1 } else { len.get().saturating_add(8).min(SIZE_MAX) }
}

/// `time / parts` with [`FRACTION`] binary digits behind the point.
#[inline]
pub fn fraction(time: Nanos, parts: u64) -> u128 {
    match time.get().checked_mul(1 << FRACTION) {
        // Divisions are slow, those of 128 bits slower; often the only part has all.
        Some(digits) if parts == 1 => u128::from(digits),
        Some(digits) => u128::from(digits / parts),
        None => (u128::from(time.get()) << FRACTION) / u128::from(parts),
    }
}

/// A reading of the clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Reading(u128);

impl Clock {
    /// A clock of an idle device.
    pub fn new() -> Self {
        Clock::default()
    }

    /// Commands on the device.
    #[inline]
    pub fn commands(&self) -> u32 {
        self.commands
    }

    /// A command of this size goes to the device; keep the reading until it is done.
    #[inline]
    pub fn enter(&mut self, now: Instant, size: u64) -> Reading {
        self.advance(now);
        self.commands += 1;
        self.sizes += size;
        self.reading
    }

    /// A command that entered at this very instant becomes larger by `more`.
    #[inline]
    pub fn grow(&mut self, more: u64) {
        self.sizes += more;
    }

    /// A command of this size that came at `entered` is done: what it has had of
    /// the device.
    #[inline]
    pub fn leave(&mut self, now: Instant, entered: Reading, size: u64) -> Nanos {
        self.advance(now);
        self.commands -= 1;
        self.sizes -= size;
        let had = ((self.reading.0 - entered.0) * u128::from(size)) >> FRACTION;
        Nanos::new(u64::try_from(had).unwrap_or(u64::MAX))
    }

    #[inline]
    fn advance(&mut self, now: Instant) {
        if self.sizes > 0 {
            self.reading.0 += fraction(now.since(self.read), self.sizes);
        }
        self.read = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_share_the_time_that_they_are_there_together() {
        let at = |us: u64| Instant::from_nanos(us * 1_000);
        let mut clock = Clock::new();
        let first = clock.enter(at(100), 1);
        // Alone for 100 µs, with another for 50, and idle time counts for nobody.
        let second = clock.enter(at(200), 1);
        assert_eq!(clock.leave(at(250), first, 1), Nanos::from_micros(125));
        assert_eq!(clock.leave(at(300), second, 1), Nanos::from_micros(75));
        let third = clock.enter(at(1_000), 1);
        assert_eq!(clock.leave(at(1_008), third, 1), Nanos::from_micros(8));
        assert_eq!(clock.commands(), 0);
    }

    #[test]
    fn a_larger_command_has_more_of_the_time() {
        let at = |us: u64| Instant::from_nanos(us * 1_000);
        let mut clock = Clock::new();
        let small = clock.enter(at(0), 10);
        let large = clock.enter(at(0), 20);
        clock.grow(10);
        // 10 and 30 of 40 for 80 µs, and the large one alone for 5.
        assert_eq!(clock.leave(at(80), small, 10), Nanos::from_micros(20));
        let had = clock.leave(at(85), large, 30).get();
        assert!((64_999..=65_000).contains(&had), "{had}");
        let huge = size(Sectors::new(u64::MAX), false);
        let entered = clock.enter(at(100), huge);
        let had = clock.leave(at(200), entered, huge).get();
        assert!((99_999..=100_000).contains(&had), "{had}");
    }
}

//! Device time: how much of the device each command has had.
//!
//! While N commands are on the device, each has 1/N of the time that passes.
//! With one command at a time that is its service time; with many on an SSD it
//! is what each has occupied, where the time since the previous completion
//! would charge a command of 4 KiB as much as one of 1 MiB.

use crate::units::{Instant, Nanos};

/// Binary digits behind the point of a [`Reading`]: enough for millions of
/// commands to share a nanosecond.
const FRACTION: u32 = 24;

/// A clock that runs at 1/N of the speed of time.
pub struct Clock {
    reading: Reading,
    read: Instant,
    commands: u32,
}

/// What the clock shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Reading(u128);

impl Clock {
    pub fn new() -> Self {
        Clock { reading: Reading(0), read: Instant::ZERO, commands: 0 }
    }

    /// Commands on the device.
    pub fn commands(&self) -> u32 {
        self.commands
    }

    /// A command goes to the device; keep the reading until it is done.
    pub fn enter(&mut self, now: Instant) -> Reading {
        self.advance(now);
        self.commands += 1;
        self.reading
    }

    /// A command that came at `entered` is done: what it has had of the device.
    pub fn leave(&mut self, now: Instant, entered: Reading) -> Nanos {
        self.advance(now);
        self.commands -= 1;
        let had = (self.reading.0 - entered.0) >> FRACTION;
        Nanos::new(u64::try_from(had).unwrap_or(u64::MAX))
    }

    fn advance(&mut self, now: Instant) {
        let passed = u128::from(now.since(self.read).get());
        if let Some(share) = (passed << FRACTION).checked_div(u128::from(self.commands)) {
            self.reading.0 += share;
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
        let first = clock.enter(at(100));
        // Alone for 100 µs, with another for 50, and idle time counts for nobody.
        let second = clock.enter(at(200));
        assert_eq!(clock.leave(at(250), first), Nanos::from_micros(125));
        assert_eq!(clock.leave(at(300), second), Nanos::from_micros(75));
        let third = clock.enter(at(1_000));
        assert_eq!(clock.leave(at(1_008), third), Nanos::from_micros(8));
        assert_eq!(clock.commands(), 0);
    }
}

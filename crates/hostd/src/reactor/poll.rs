//! How long a reactor looks for news before it sleeps. To be woken takes a thread some
//! microseconds, and looking takes a processor.

use seekway_policy::units::{Instant, Nanos};
use std::fmt;

/// The first time that is tried, and the longest.
const FIRST: Nanos = Nanos::from_micros(10);
const LONGEST: Nanos = Nanos::from_micros(200);
/// A thread that was without a processor for longer than this while it looked does not look again
/// for this pause. Looking uses up its share of the processor: others have it when news comes.
const DISPLACED: Nanos = Nanos::from_micros(50);
const PAUSE: Nanos = Nanos::from_millis(250);

/// A time, fixed or learnt.
///
/// What is learnt follows KVM's polling for a vCPU that halts (Documentation/virt/kvm/
/// halt-polling.rst, with its times on x86): it doubles while news comes soon after the reactor
/// went to sleep, and is 0 again when news did not come in the longest time. Unlike there, it is 0
/// for a while where other threads want the processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Poll {
    time: Nanos,
    is_learnt: bool,
    /// Until then it stays 0.
    paused: Instant,
}

impl Poll {
    /// Sleep at once.
    pub const OFF: Poll = Poll::fixed(Nanos::ZERO);
    /// Learn the time.
    pub const AUTO: Poll = Poll { is_learnt: true, ..Poll::OFF };

    /// Always look for so long.
    pub const fn fixed(time: Nanos) -> Poll {
        Poll { time, is_learnt: false, paused: Instant::ZERO }
    }

    /// How long to look now.
    pub fn time(&self) -> Nanos {
        self.time
    }

    /// There was nothing to do for so long, looking and sleeping. While it looked, the thread was
    /// without a processor for `displaced`.
    pub fn waited(&mut self, now: Instant, waited: Nanos, displaced: Nanos) {
        if !self.is_learnt {
            return;
        }
        if displaced > DISPLACED {
            self.paused = now + PAUSE;
        }
        self.time = match () {
            () if waited > LONGEST || now < self.paused => Nanos::ZERO,
            () if waited <= self.time => self.time,
            () => self.time.scaled(2, 1).max(FIRST).min(LONGEST),
        };
    }
}

/// As it is given: `auto`, or the time.
impl fmt::Display for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_learnt {
            true => f.write_str("auto"),
            false => self.time.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_as_long_as_news_comes_soon_and_not_at_all_when_it_does_not() {
        let us = Nanos::from_micros;
        let mut poll = Poll::AUTO;
        let mut after = |waited| {
            poll.waited(Instant::ZERO, waited, DISPLACED);
            poll.time()
        };
        assert_eq!([after(us(70)), after(us(70)), after(us(70))], [us(10), us(20), us(40)]);
        // Long enough for these, which come while it looks.
        assert_eq!([after(us(70)), after(us(70)), after(us(79))], [us(80); 3]);
        assert_eq!([after(us(150)), after(us(190)), after(us(200))], [us(160), us(200), us(200)]);
        assert_eq!([after(us(201)), after(us(1_000_000))], [us(0), us(0)]);
    }

    #[test]
    fn where_others_want_the_processor_it_pauses() {
        let (mut poll, soon) = (Poll::AUTO, Nanos::from_micros(5));
        let at = |us: u64| Instant::from_nanos(us * 1000);
        let mut after = |now, displaced| {
            poll.waited(now, soon, Nanos::from_micros(displaced));
            poll.time()
        };
        assert_eq!(after(at(0), 0), FIRST);
        assert_eq!([after(at(100), 51), after(at(250_000), 0)], [Nanos::ZERO; 2]);
        assert_eq!(after(at(250_100), 0), FIRST);
    }

    #[test]
    fn a_fixed_time_stays() {
        for (mut poll, time) in [(Poll::OFF, 0), (Poll::fixed(Nanos::from_micros(50)), 50)] {
            for waited in [1, 100, 1_000_000] {
                poll.waited(Instant::ZERO, Nanos::from_micros(waited), Nanos::from_secs(1));
                assert_eq!(poll.time(), Nanos::from_micros(time));
            }
        }
    }
}

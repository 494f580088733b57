//! Time for which a reactor looks for news before it sleeps. Waking a thread takes some
//! microseconds, and looking takes a processor.

use seekway_core::units::{Instant, Nanos};
use std::fmt;

/// The first time that is tried, and the longest: guests that take longer gain little.
const FIRST: Nanos = Nanos::from_micros(10);
const LONGEST: Nanos = Nanos::from_micros(50);
/// News that comes this soon while the reactor sleeps may come within [`LONGEST`] while it looks:
/// the rest is what it takes to wake a thread.
const SOON: Nanos = Nanos::from_micros(100);
/// Number of waits in a row that have to be that short before it looks. The number doubles each
/// time when news does not come within [`LONGEST`] then.
const WAITS: u32 = 16;
const WAITS_MAX: u32 = 1 << 14;
/// Number of short waits that pay for one that is longer than [`LONGEST`]: to look for that time
/// costs about as much as to be woken this number of times.
const HITS: u32 = 4;
/// A device none of whose commands takes less is slow: guests wait for it, and looking would cost
/// more than being woken. Judged by [`COMMANDS`] commands.
const SLOW: Nanos = Nanos::from_micros(50);
const COMMANDS: u32 = 64;
/// A thread that was without a processor for longer than this while it looked does not look again
/// for this pause. Looking uses up its share of the processor: others have it when news comes.
const DISPLACED: Nanos = Nanos::from_micros(50);
const PAUSE: Nanos = Nanos::from_millis(250);

/// A time, fixed or learnt.
///
/// What is learnt follows KVM's polling for a vCPU that halts (Documentation/virt/kvm/
/// halt-polling.rst): it doubles while news comes soon after the reactor went to sleep, and is 0
/// again when news did not come in the longest time more often than every fifth wait. Unlike there, it
/// is 0 while the device is slow, and for a while where other threads want the processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Poll {
    time: Nanos,
    is_learnt: bool,
    /// Waits in a row that were short enough, and how many have to be.
    short: u32,
    needed: u32,
    /// Commands since the device was judged, the quickest of them, and waits since the last one.
    commands: u32,
    quickest: Nanos,
    waits: u32,
    is_slow: bool,
    /// Time until which it stays 0.
    paused: Instant,
}

impl Poll {
    /// Sleep at once.
    pub const OFF: Poll = Poll::fixed(Nanos::ZERO);
    /// Learn the time.
    pub const AUTO: Poll = Poll { is_learnt: true, ..Poll::OFF };

    /// Always look for this time.
    pub const fn fixed(time: Nanos) -> Poll {
        Poll {
            time,
            is_learnt: false,
            short: 0,
            needed: WAITS,
            commands: 0,
            quickest: Nanos::new(u64::MAX),
            waits: 0,
            is_slow: false,
            paused: Instant::ZERO,
        }
    }

    /// Time for which to look now.
    pub fn time(&self) -> Nanos {
        self.time
    }

    /// Takes the time that a command was on the device.
    pub fn served(&mut self, took: Nanos) {
        if !self.is_learnt {
            return;
        }
        self.commands += 1;
        self.waits = 0;
        self.quickest = self.quickest.min(took);
        if self.commands >= COMMANDS {
            self.is_slow = self.quickest > SLOW;
            (self.commands, self.quickest) = (0, Nanos::new(u64::MAX));
        }
    }

    /// Takes the time without anything to do, looking and sleeping. While it looked, the thread was
    /// without a processor for `displaced`.
    pub fn waited(&mut self, now: Instant, waited: Nanos, displaced: Nanos) {
        if !self.is_learnt {
            return;
        }
        if displaced > DISPLACED {
            self.paused = now + PAUSE;
        }
        self.waits += 1;
        // Nobody waits for a device that does nothing.
        self.is_slow &= self.waits < COMMANDS;
        if self.is_slow || now < self.paused {
            (self.time, self.short) = (Nanos::ZERO, 0);
        } else if self.time == Nanos::ZERO {
            self.slept(waited);
        } else {
            self.looked(waited);
        }
    }

    fn slept(&mut self, waited: Nanos) {
        self.short = if waited > SOON { 0 } else { self.short + 1 };
        if self.short >= self.needed {
            (self.time, self.short) = (FIRST, 0);
        }
    }

    fn looked(&mut self, waited: Nanos) {
        if waited > LONGEST {
            if self.short >= HITS {
                self.short -= HITS;
            } else {
                (self.time, self.short) = (Nanos::ZERO, 0);
                self.needed = (2 * self.needed).min(WAITS_MAX);
            }
            return;
        }
        if waited > self.time {
            self.time = self.time.scaled(2, 1).min(LONGEST);
        }
        self.short += 1;
        if self.short >= self.needed {
            self.needed = (self.needed / 2).max(WAITS);
            self.short = self.needed;
        }
    }
}

/// Spelling of the option: `auto`, or the time.
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

    /// A poll after these waits, in microseconds: how long it would look after each.
    fn after(poll: &mut Poll, waits: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let waited = |us| {
            poll.waited(Instant::ZERO + PAUSE, Nanos::from_micros(us), DISPLACED);
            poll.time().get() / 1000
        };
        waits.into_iter().map(waited).collect()
    }

    #[test]
    fn it_looks_as_long_as_news_comes_soon_and_not_at_all_when_it_does_not() {
        let mut poll = Poll::AUTO;
        assert_eq!(after(&mut poll, [90; 16]), [&[0; 15][..], &[10]].concat());
        assert_eq!(after(&mut poll, [35, 35, 35]), [20, 40, 40]);
        assert_eq!(after(&mut poll, [45, 5, 50, 50]), [50; 4]);
        assert_eq!(after(&mut poll, [51, 1_000_000, 5]), [50, 0, 0]);
    }

    /// One wait in five may be long: the others pay for it. One in four may not.
    #[test]
    fn a_late_one_does_not_end_the_looking() {
        let looked = |short: usize| {
            let mut poll = Poll::AUTO;
            after(&mut poll, [20; 32]);
            let waits = (0..200).map(|n| if n % (short + 1) == 0 { 1000 } else { 20 });
            after(&mut poll, waits).iter().filter(|&&time| time > 0).count()
        };
        assert_eq!(looked(HITS as usize), 200);
        assert!(looked(HITS as usize - 1) < 150);
    }

    /// Woken after 90 µs, and after 60 when it looks: that is for nothing, and seldom.
    #[test]
    fn looking_that_finds_nothing_becomes_rare() {
        let mut poll = Poll::AUTO;
        let looks = (0..100_000).filter(|_| {
            let looks = poll.time() > Nanos::ZERO;
            after(&mut poll, [if looks { 60 } else { 90 }]);
            looks
        });
        assert!((5..=20).contains(&looks.count()));
        // And often again when it finds something.
        after(&mut poll, std::iter::repeat_n(20, 3 * WAITS_MAX as usize));
        after(&mut poll, [60]);
        assert_eq!(after(&mut poll, [20; 64])[63], 20);
    }

    #[test]
    fn nobody_looks_for_the_news_of_a_slow_device() {
        let (mut slow, mut quick) = (Poll::AUTO, Poll::AUTO);
        for n in 0..1000 {
            slow.served(Nanos::from_micros(51 + n % 7));
            quick.served(Nanos::from_micros(if n % 30 == 0 { 3 } else { 400 }));
            let times = [&mut slow, &mut quick].map(|poll| after(poll, [5, 20])[1]);
            assert!(n < 100 || times == [0, 20], "{times:?} after {n}");
        }
        // Then its cache answers.
        assert_eq!(after(&mut slow, [5; 100])[99], 10);
    }

    #[test]
    fn where_others_want_the_processor_it_pauses() {
        let mut poll = Poll::AUTO;
        let at = |us: u64| Instant::from_nanos(us * 1000);
        let mut waited = |now, displaced| {
            poll.waited(now, Nanos::from_micros(5), Nanos::from_micros(displaced));
            poll.time()
        };
        assert_eq!((0..16).map(|_| waited(at(0), 0)).last(), Some(FIRST));
        assert_eq!([waited(at(100), 51), waited(at(250_000), 0)], [Nanos::ZERO; 2]);
        assert_eq!((0..16).map(|_| waited(at(250_100), 0)).last(), Some(FIRST));
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

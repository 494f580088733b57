//! Do moves bring the guest more I/O than they cost?
//!
//! An agent's costs do not show in its own CPU time alone: programs in the guest's kernel slow down
//! each I/O, masks keep tasks from idle vCPUs, and a move may gain nothing because its I/O is heard
//! elsewhere. So the I/Os that the guest's disks complete are counted, with the agent at rest and
//! with moves. Moves go on if they bring a tenth more, and more than chance does; else the agent
//! rests. After a minute it looks again. At rest nobody is moved and no task is looked at; a trial
//! after that is compared with all of that time.

use seekway_core::units::{Instant, Nanos};

/// The shortest count, and that with less than [`IOS`] I/Os.
const SHORT: Nanos = Nanos::from_millis(500);
const LONG: Nanos = Nanos::from_secs(1);
/// I/Os of a count: a hundred vary by a tenth by chance.
const IOS: u64 = 100;
/// Time with moves before they are counted: slices and tasks become known, and before that the
/// detectors of waiting begin.
const LEARNS: Nanos = Nanos::from_secs(1);
/// Gain from which moves are worth it, in thousandths.
const WORTH: u64 = 1100;
/// Time after which that is looked at again.
const AGAIN: Nanos = Nanos::from_secs(60);

/// A rate of I/Os.
#[derive(Clone, Copy, Debug)]
struct Rate {
    ios: u64,
    span: Nanos,
}

impl Rate {
    /// Is it above the other by [`WORTH`], and by two deviations of counts by chance?
    fn is_worth(self, other: Rate) -> bool {
        let us = |span: Nanos| u128::from(span.get() / 1000);
        let (n, m) = (u128::from(self.ios), u128::from(other.ios));
        let (s, t) = (us(self.span), us(other.span));
        let more = (n * t).saturating_sub(m * s);
        let by_chance = n.saturating_mul(t * t).saturating_add(m.saturating_mul(s * s));
        (n * t).saturating_mul(1000) >= (m * s).saturating_mul(u128::from(WORTH))
            && more.saturating_mul(more) > by_chance.saturating_mul(4)
    }
}

#[derive(Clone, Copy, Default, Debug)]
enum Phase {
    /// Waits for the first count, from which the first comparison begins.
    #[default]
    Begins,
    /// Counts at rest.
    Without,
    /// Moves, and does not count yet.
    Learns {
        without: Rate,
    },
    /// Counts with moves.
    With {
        without: Rate,
    },
    Works,
    Rests,
}

/// The comparison, and its result.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Worth {
    phase: Phase,
    /// Beginning of the phase, and the guest's I/Os up to then.
    from: Instant,
    ios: u64,
    /// When the next count is wanted.
    count_at: Instant,
}

impl Worth {
    /// Are tasks moved now?
    pub fn works(&self) -> bool {
        !matches!(self.phase, Phase::Without | Phase::Rests)
    }

    /// When the next count is wanted.
    pub fn count_at(&self) -> Instant {
        self.count_at
    }

    /// When to wake for that. The first count comes with the next turn.
    pub fn wakes_at(&self) -> Option<Instant> {
        (!matches!(self.phase, Phase::Begins)).then_some(self.count_at)
    }

    /// vCPUs are shared again: a comparison that this cut short, or a result that is old, begins
    /// anew.
    pub fn resume(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Works | Phase::Rests) || self.count_at <= now {
            (self.phase, self.count_at) = (Phase::Begins, now);
        }
    }

    /// The guest's disks have completed `ios` I/Os up to now. Has the agent begun or ended to work?
    pub fn counted(&mut self, now: Instant, ios: u64) -> bool {
        if now < self.count_at {
            return false;
        }
        let rate = Rate { ios: ios.saturating_sub(self.ios), span: now.since(self.from) };
        let counts = matches!(self.phase, Phase::Without | Phase::With { .. });
        if counts && rate.ios < IOS && rate.span < LONG {
            self.count_at = self.from + LONG;
            return false;
        }
        let worked = self.works();
        self.phase = match self.phase {
            Phase::Begins | Phase::Works => Phase::Without,
            // Nobody does I/O.
            Phase::Without | Phase::Rests | Phase::With { .. } if rate.ios == 0 => Phase::Without,
            Phase::Without | Phase::Rests => Phase::Learns { without: rate },
            Phase::Learns { without } => Phase::With { without },
            Phase::With { without } if rate.is_worth(without) => Phase::Works,
            Phase::With { .. } => Phase::Rests,
        };
        let span = match self.phase {
            Phase::Begins | Phase::Without | Phase::With { .. } => SHORT,
            Phase::Learns { .. } => LEARNS,
            Phase::Works | Phase::Rests => AGAIN,
        };
        (self.from, self.ios, self.count_at) = (now, ios, now + span);
        worked != self.works()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    /// A guest whose I/Os come at one rate at rest and at another with moves.
    struct Guest {
        worth: Worth,
        now: Instant,
        ios: u64,
        rates: (u64, u64),
        moved: Nanos,
    }

    impl Guest {
        fn new(without: u64, with: u64) -> Guest {
            let (worth, now) = (Worth::default(), Instant::ZERO);
            Guest { worth, now, ios: 0, rates: (without, with), moved: Nanos::ZERO }
        }

        fn until(&mut self, ms_after: u64) -> &Worth {
            while self.now < Instant::ZERO + ms(ms_after) {
                self.worth.counted(self.now, self.ios / 1000);
                let works = self.worth.works();
                self.now = self.now + ms(1);
                self.ios += if works { self.rates.1 } else { self.rates.0 };
                self.moved += if works { ms(1) } else { Nanos::ZERO };
            }
            &self.worth
        }
    }

    #[test]
    fn moves_that_bring_more_go_on_but_for_a_look_a_minute() {
        let mut guest = Guest::new(1_000, 1_500);
        assert!(guest.until(2_100).works(), "it was at rest for half a second");
        guest.until(600_000);
        assert!(guest.moved > ms(590_000), "{}", guest.moved);
    }

    #[test]
    fn moves_that_bring_nothing_or_harm_end_for_a_minute() {
        for with in [1_000, 1_050, 800] {
            let mut guest = Guest::new(1_000, with);
            assert!(!guest.until(2_100).works(), "{with}");
            guest.until(600_000);
            assert!(guest.moved < ms(17_000), "{with}: {}", guest.moved);
        }
    }

    #[test]
    fn a_change_of_the_host_is_noticed_within_a_minute() {
        let mut guest = Guest::new(1_000, 900);
        guest.until(30_000);
        guest.rates = (1_000, 3_000);
        assert!(guest.until(66_000).works());
    }

    /// Forty I/Os against thirty are chance; ninety are not.
    #[test]
    fn few_ios_have_to_be_many_more() {
        let rate = |ios| Rate { ios, span: ms(1000) };
        assert!(!rate(40).is_worth(rate(30)) && rate(90).is_worth(rate(30)));
        assert!(rate(1_200).is_worth(rate(1_000)) && !rate(1_099).is_worth(rate(1_000)));
        let most = Rate { ios: u64::MAX, span: Nanos::new(u64::MAX) };
        assert!(!most.is_worth(most) && !rate(0).is_worth(rate(0)));
    }

    #[test]
    fn a_guest_without_io_is_left_alone() {
        let mut guest = Guest::new(0, 0);
        guest.until(30_000);
        assert!(guest.moved <= ms(1), "{}", guest.moved);
        guest.rates = (1_000, 2_000);
        assert!(guest.until(34_000).works());
    }
}

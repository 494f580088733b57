//! Time from the end of a stream's request to its next one, and the time for which the head is
//! worth holding for it.
//!
//! Source: anticipatory scheduling (Iyer, Druschel, SOSP 2001), which holds for the 95th percentile
//! of a process's think times and weighs it against the way back. A pause ends within three times
//! the mean in 95 of 100 cases if its end does not depend on how long it has lasted.

use crate::schedulers::vmcd::Mean;
use seekway_core::units::{Instant, Nanos};

/// Longest hold, in mean pauses.
const PATIENCE: u64 = 3;
/// Least hold: the time of a request through a guest that submits it at once.
const LEAST: Nanos = Nanos::from_micros(200);

#[derive(Default)]
pub struct Pause {
    /// When the request at the stream's end was done.
    since: Option<Instant>,
    /// A hold for the next one was in vain.
    in_vain: bool,
    /// Mean pause, of which one that a hold waited for in vain counts as twice the hold.
    mean: Mean,
    /// Mean of the pauses that were short enough for a hold.
    short: Mean,
}

impl Pause {
    /// The request at the stream's end is done.
    pub fn begin(&mut self, now: Instant) {
        (self.since, self.in_vain) = (Some(now), false);
    }

    /// The VM's stream goes on at once, or is another one: there is no pause.
    pub fn forget(&mut self) {
        self.since = None;
    }

    /// The stream's next request has come; no hold lasts longer than `stay`.
    pub fn end(&mut self, now: Instant, stay: Nanos) {
        let Some(since) = self.since.take() else { return };
        let pause = now.since(since);
        if !self.in_vain {
            self.mean.learn(pause.min(stay + stay));
        }
        if pause <= stay {
            self.short.learn(pause);
        }
    }

    /// Does the next one come often enough within `stay` for a hold to pay?
    pub fn is_worth(&self, stay: Nanos) -> bool {
        stay > Nanos::ZERO && self.mean.get().is_none_or(|mean| mean <= stay)
    }

    /// Until when the head is held, for `stay` at most; `None` if the pause has not begun, or a
    /// hold in it was in vain.
    pub fn until(&self, stay: Nanos) -> Option<Instant> {
        let patience = |mean: Nanos| stay.min(mean.scaled(PATIENCE, 1) + LEAST);
        let hold = self.short.get().map_or(stay, patience);
        self.since.filter(|_| !self.in_vain).map(|since| since + hold)
    }

    /// A hold of up to `stay` has ended in vain.
    pub fn was_in_vain(&mut self, stay: Nanos) {
        self.mean.learn(stay + stay);
        self.in_vain = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAY: Nanos = Nanos::from_millis(8);

    fn at_us(us: u64) -> Instant {
        Instant::ZERO + Nanos::from_micros(us)
    }

    /// A pause after this number of pauses of the same length, one in each second from the first
    /// on.
    fn after(pauses: u64, us: u64) -> Pause {
        let mut pause = Pause::default();
        for n in 0..pauses {
            pause.begin(at_us(n * 1_000_000));
            pause.end(at_us(n * 1_000_000 + us), STAY);
        }
        pause.begin(at_us(pauses * 1_000_000));
        pause
    }

    #[test]
    fn a_hold_lasts_for_three_times_the_mean_pause_and_no_longer_than_the_way_back_is_worth() {
        let held_us =
            |pause: Pause| pause.until(STAY).unwrap().since(at_us(20_000_000)).get() / 1_000;
        assert_eq!(
            [0, 100, 2_000, 4_000].map(|us| held_us(after(20, us))),
            [200, 500, 6_200, 8_000]
        );
        assert!(
            after(20, 7_000).is_worth(STAY) && !after(20, 7_000).is_worth(Nanos::from_millis(6))
        );
        assert!(!after(20, 9_000).is_worth(STAY), "a pause longer than any hold");
        assert!(!after(20, 0).is_worth(Nanos::ZERO), "holds are off");
    }

    #[test]
    fn who_comes_mostly_is_waited_for_and_who_comes_seldom_is_not() {
        // The share of pauses with a hold when the next request comes `come` times in four.
        let share_held = |come: u64| {
            let (mut pause, mut held) = (Pause::default(), 0);
            for n in 0..400 {
                let now = at_us(n * 1_000_000);
                pause.begin(now);
                let is_held = pause.is_worth(STAY);
                held += u64::from(is_held);
                if n % 4 < come {
                    pause.end(now + Nanos::from_micros(100), STAY);
                } else if is_held {
                    pause.was_in_vain(STAY);
                    assert_eq!(pause.until(STAY), None, "a second hold in the same pause");
                }
            }
            held as f64 / 400.0
        };
        let shares = [4, 3, 1].map(share_held);
        assert_eq!(shares[0], 1.0);
        assert!(shares[1] > 0.75 && shares[2] < 0.3, "{shares:?}");
    }
}

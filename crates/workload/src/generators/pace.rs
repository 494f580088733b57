//! When the requests of an open loop are due: at even intervals or as a
//! Poisson process, with what a slow disk has delayed made up for or dropped.

use crate::generators::rng::Rng;
use seekway_core::units::{Instant, Nanos};

/// The arrivals of one stream of requests.
#[derive(Clone, Debug)]
pub struct Pace {
    mean: Nanos,
    exponential: bool,
    drops: bool,
    due: Option<Instant>,
}

impl Pace {
    /// `per_second` requests at even intervals; late ones are made up for.
    /// `None` for zero: no pace is kept.
    pub fn even(per_second: u64) -> Option<Pace> {
        let mean = 1_000_000_000u64.checked_div(per_second).map(Nanos::new)?;
        Some(Pace { mean, exponential: false, drops: false, due: None })
    }
    /// Exponential intervals of the same mean instead of even ones.
    pub fn exponential(self, exponential: bool) -> Pace {
        Pace { exponential, ..self }
    }
    /// Requests that come while nobody can take them are lost.
    pub fn dropping(self, drops: bool) -> Pace {
        Pace { drops, ..self }
    }

    /// Take the next arrival: how long after `now` it is due, zero for a late
    /// one. The first is due at once.
    pub fn wait(&mut self, now: Instant, rng: &mut Rng) -> Nanos {
        let mut due = self.due.unwrap_or(now);
        while self.drops && due < now {
            due = due + self.interval(rng);
        }
        self.due = Some(due + self.interval(rng));
        due.since(now)
    }

    fn interval(&self, rng: &mut Rng) -> Nanos {
        if !self.exponential {
            return self.mean;
        }
        let span = -(1.0 - rng.unit()).ln() * self.mean.get() as f64;
        Nanos::new((span as u64).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrivals of two seconds when each request takes `busy`, one at a time.
    fn arrivals(mut pace: Pace, busy: Nanos) -> usize {
        let (mut now, mut rng, mut count) = (Instant::ZERO, Rng::new(5), 0);
        loop {
            now = now + pace.wait(now, &mut rng);
            if now >= Instant::ZERO + Nanos::from_secs(2) {
                return count;
            }
            count += 1;
            now = now + busy;
        }
    }

    #[test]
    fn the_rate_is_kept_and_what_is_late_made_up_for_or_dropped() {
        let pace = || Pace::even(1000).unwrap();
        assert!(Pace::even(0).is_none());
        assert_eq!(arrivals(pace(), Nanos::from_micros(10)), 2000);
        assert_eq!(arrivals(pace().dropping(true), Nanos::from_micros(10)), 2000);
        let poisson = arrivals(pace().exponential(true), Nanos::from_micros(10));
        assert!((1900..2100).contains(&poisson), "{poisson}"); // sd 45
        // A server of 1.5 ms is always late: with a backlog it never rests, ...
        assert_eq!(arrivals(pace(), Nanos::from_micros(1500)), 1334);
        // ... and without one it waits for the next even millisecond.
        assert_eq!(arrivals(pace().dropping(true), Nanos::from_micros(1500)), 1000);
    }
}

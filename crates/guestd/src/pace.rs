//! Times of the next looks. Looks cost more where there are more processes, and there may be more
//! news than a processor can follow: after each look there is a pause of ten times its duration.
//! Pure: time is an argument.

use std::time::{Duration, Instant};

/// Pauses are this many times as long as the work before them, so that looks at
/// all processes take at most an eleventh of one processor, and looks at new
/// ones another.
const PAUSE: u32 = 10;

/// Times of the looks at all processes, and at those in the kernel's events.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    /// The next look at all.
    scan: Instant,
    /// The earliest time of the next scan.
    scan_earliest: Instant,
    hear_earliest: Instant,
}

impl Pace {
    /// `interval`: from one look at all processes to the next, if that is long
    /// enough a pause. The first is due now.
    pub fn new(interval: Duration, now: Instant) -> Pace {
        Pace { interval, scan: now, scan_earliest: now, hear_earliest: now }
    }

    /// All have been looked at.
    pub fn scanned(&mut self, began: Instant, now: Instant) {
        let pause = now.saturating_duration_since(began) * PAUSE;
        self.scan_earliest = now + pause;
        self.scan = now + pause.max(self.interval);
    }

    /// New ones have been looked at.
    pub fn heard(&mut self, began: Instant, now: Instant) {
        self.hear_earliest = now + now.saturating_duration_since(began) * PAUSE;
    }

    /// The kernel could not tell of all: look at all as soon as may be.
    pub fn lost(&mut self) {
        self.scan = self.scan.min(self.scan_earliest);
    }

    /// May news be asked for?
    pub fn may_hear(&self, now: Instant) -> bool {
        now >= self.hear_earliest
    }

    /// Is it time for a look at all?
    pub fn scan_is_due(&self, now: Instant) -> bool {
        now >= self.scan
    }

    /// Until a look is due or news may be asked for again.
    pub fn wait(&self, now: Instant) -> Duration {
        let hear = Some(self.hear_earliest).filter(|at| *at > now);
        hear.map_or(self.scan, |at| at.min(self.scan)).saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Simulates ten seconds with this much news all the time; returns the times spent on both
    /// kinds.
    fn busy(scan_cost: Duration, hear_cost: Duration, lost: bool) -> [Duration; 2] {
        let start = Instant::now();
        let (mut now, mut pace) = (start, Pace::new(100 * MS, start));
        let [mut scanned, mut heard] = [Duration::ZERO; 2];
        while now < start + 10_000 * MS {
            let before = now;
            if pace.may_hear(now) {
                let began = now;
                now += hear_cost;
                heard += hear_cost;
                pace.heard(began, now);
                if lost {
                    pace.lost();
                }
            }
            if pace.scan_is_due(now) {
                let began = now;
                now += scan_cost;
                scanned += scan_cost;
                pace.scanned(began, now);
            }
            // News is there, and wakes at once.
            let wait = if pace.may_hear(now) { Duration::ZERO } else { pace.wait(now) };
            assert!(now + wait > before, "it stands still");
            now += wait;
        }
        [scanned, heard]
    }

    #[test]
    fn looks_take_a_tenth_however_long_one_takes_and_however_much_is_new() {
        for lost in [false, true] {
            for (scan, hear) in [(100, 5), (100, 50), (1, 20), (400, 1)] {
                let spent = busy(scan * MS, hear * MS, lost);
                let most = 1000 * MS + scan * MS;
                assert!(spent.iter().all(|s| *s <= most), "{scan} {hear} {lost}: {spent:?}");
                assert!(spent.iter().all(|s| *s > 80 * MS), "{scan} {hear} {lost}: {spent:?}");
            }
        }
    }

    #[test]
    fn short_looks_keep_to_the_interval_unless_news_is_lost() {
        let now = Instant::now();
        let mut pace = Pace::new(100 * MS, now);
        assert!(pace.scan_is_due(now));
        pace.scanned(now, now + MS);
        assert_eq!(pace.wait(now + MS), 100 * MS);
        pace.heard(now + 2 * MS, now + 3 * MS);
        assert!(!pace.may_hear(now + 12 * MS) && pace.may_hear(now + 13 * MS));
        assert_eq!(pace.wait(now + 3 * MS), 10 * MS);
        pace.lost();
        assert!(!pace.scan_is_due(now + 10 * MS) && pace.scan_is_due(now + 11 * MS));
    }
}

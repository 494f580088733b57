//! Two records: what became of proposals, judged when there is enough of it and forgotten in
//! time; and how far readers go on where they begin.

use super::plan::Outcome;
use seekway_core::units::{Instant, Nanos};

/// Sectors of proposals, used or wasted, after which they are judged.
const SAMPLE: u64 = 2048;
/// They were worth it when this share was used: what the paper finds with 0.60.
const USEFUL: f64 = 0.84;
/// Intervals after which nothing is left to forget.
const FORGOTTEN: u64 = 256;

/// Runs after which half of what is known of earlier ones is forgotten.
const RUNS: u32 = 64;
/// Runs that say how the next goes on.
const RUNS_MIN: u32 = 8;

/// Runs of a process's reads, or of all untagged ones of a VM, and how far they go on: its linear
/// share (the paper, 3.2) by runs, for one that has just begun and has no share of its own yet.
#[derive(Default)]
pub(super) struct Runs {
    begun: u32,
    /// Those of them that had a second read.
    gone_on: u32,
    /// Sectors after their first reads.
    sectors: u64,
}

impl Runs {
    pub fn begin(&mut self) {
        if self.begun >= RUNS {
            (self.begun, self.gone_on) = (self.begun / 2, self.gone_on / 2);
            self.sectors /= 2;
        }
        self.begun += 1;
    }

    /// Counts `sectors` by which a run has gone on; `is_second`: after its first read.
    pub fn go_on(&mut self, is_second: bool, sectors: u64) {
        self.gone_on += u32::from(is_second);
        self.sectors = self.sectors.saturating_add(sectors);
    }

    /// Sectors that one goes on for, on average, if more than `share` of them go on; else none.
    /// The last has just begun, and is not counted.
    pub fn further(&self, share: f64) -> u64 {
        let before = self.begun.saturating_sub(1);
        let do_go_on = before >= RUNS_MIN && f64::from(self.gone_on) > share * f64::from(before);
        if do_go_on { self.sectors / u64::from(before) } else { 0 }
    }
}

/// Outcome of proposals since they were last judged.
#[derive(Default)]
pub(super) struct Record {
    outcome: Outcome,
    /// When that was, or the end of the last interval that was told to be without.
    since: Instant,
}

impl Record {
    /// Were enough of the proposals of use? `None` until there are enough to tell.
    pub fn judge(&mut self, now: Instant, outcome: Outcome) -> Option<bool> {
        self.outcome += outcome;
        let Outcome { used, wasted } = self.outcome;
        if used + wasted < SAMPLE {
            return None;
        }
        *self = Record { outcome: Outcome::default(), since: now };
        Some(used as f64 >= USEFUL * (used + wasted) as f64)
    }

    /// Whole intervals that went by without a judgement, each told once.
    pub fn forget(&mut self, now: Instant, interval: Nanos) -> u64 {
        let idle = now.since(self.since);
        if idle < interval {
            return 0;
        }
        let count = idle.get() / interval.get();
        self.since = self.since + Nanos::new(count * interval.get());
        count.min(FORGOTTEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(with_second: u32, without: u32) -> Runs {
        let mut runs = Runs::default();
        for n in 0..with_second + without {
            runs.begin();
            if n < with_second {
                runs.go_on(true, 8);
                runs.go_on(false, 24);
            }
        }
        runs.begin();
        runs
    }

    #[test]
    fn runs_say_how_far_the_next_goes_on() {
        assert_eq!(runs(7, 0).further(0.6), 0, "too few");
        assert_eq!(runs(8, 0).further(0.6), 32);
        assert_eq!(runs(7, 3).further(0.6), 22);
        assert_eq!(runs(6, 4).further(0.6), 0, "not more than the share");
    }

    #[test]
    fn runs_of_long_ago_count_for_little() {
        let mut runs = runs(1000, 0);
        (0..100).for_each(|_| runs.begin());
        assert_eq!(runs.further(0.6), 0);
    }
}

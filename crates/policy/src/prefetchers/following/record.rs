//! The record of what became of proposals: judged when there is enough of it, and
//! forgotten in time.

use super::plan::Outcome;
use crate::units::{Instant, Nanos};

/// Proposals are judged when so many sectors of them were used or wasted.
const SAMPLE: u64 = 2048;
/// They were worth it when this share was used: what the paper finds with 0.60.
const USEFUL: f64 = 0.84;
/// Intervals after which nothing is left to forget.
const FORGOTTEN: u64 = 256;

/// What became of proposals since they were last judged.
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

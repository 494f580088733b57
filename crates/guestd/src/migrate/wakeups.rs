//! Reasons for monitors' wake-ups. Each wake-up costs, in an emulated guest more than its work.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Of one monitor, counted: in the order of [`WakeupsStatus`].
#[derive(Default, Debug)]
pub struct Wakeups([AtomicU64; 5]);

/// Counts of wake-ups for `status`. JSON keys stay.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct WakeupsStatus {
    /// Wake-ups for a beat, or for news of the vCPU.
    pub beats: u64,
    pub windows: u64,
    /// The policy had to decide, and no window ended.
    pub decisions: u64,
    /// Another thread woke it.
    pub woken: u64,
    /// Wake-ups to check that the lead still sees to windows and decisions, when it did.
    pub in_vain: u64,
}

impl Wakeups {
    /// Counts a wake-up: the monitor saw something of its vCPU; or its time had come, and this was
    /// due: a window, a decision; or it was woken.
    pub fn count(&self, seen: bool, in_time: bool, (window, decision): (bool, bool)) {
        let count = match (seen, in_time) {
            (true, _) => 0,
            (_, true) if window => 1,
            (_, true) if decision => 2,
            (_, false) => 3,
            (_, true) => 4,
        };
        self.0[count].fetch_add(1, Relaxed);
    }

    /// The counts since the monitor began, for `status`.
    pub fn status(&self) -> WakeupsStatus {
        let counts = self.0.each_ref().map(|count| count.load(Relaxed));
        let [beats, windows, decisions, woken, in_vain] = counts;
        WakeupsStatus { beats, windows, decisions, woken, in_vain }
    }
}

impl WakeupsStatus {
    /// Wake-ups of all causes together.
    pub fn sum(&self) -> u64 {
        self.beats + self.windows + self.decisions + self.woken + self.in_vain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wake_up_counts_once() {
        let wakeups = Wakeups::default();
        wakeups.count(true, true, (true, true));
        wakeups.count(false, true, (true, true));
        wakeups.count(false, true, (false, true));
        wakeups.count(false, true, (false, false));
        wakeups.count(false, false, (true, false));
        let once = WakeupsStatus { beats: 1, windows: 1, decisions: 1, woken: 1, in_vain: 1 };
        assert_eq!((wakeups.status(), once.sum()), (once, 5));
    }
}

//! Why monitors wake. Each wake-up costs, in an emulated guest more than what is done in it.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Of one monitor, counted.
#[derive(Default, Debug)]
pub struct Wakeups {
    beats: AtomicU64,
    windows: AtomicU64,
    decisions: AtomicU64,
    woken: AtomicU64,
    in_vain: AtomicU64,
}

/// The same for `status`. JSON keys stay.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct WakeupsStatus {
    /// It beat, or was told of its vCPU.
    pub beats: u64,
    pub windows: u64,
    /// The policy had to decide, and no window ended.
    pub decisions: u64,
    /// Another thread woke it.
    pub woken: u64,
    /// It looked whether the lead monitor still sees to windows and decisions, and it does.
    pub in_vain: u64,
}

impl Wakeups {
    /// It woke: it saw something of its vCPU; or its time had come, and this was due: a window,
    /// a decision; or it was woken.
    pub fn count(&self, seen: bool, in_time: bool, (window, decision): (bool, bool)) {
        let count = match (seen, in_time) {
            (true, _) => &self.beats,
            (_, true) if window => &self.windows,
            (_, true) if decision => &self.decisions,
            (_, true) => &self.in_vain,
            (_, false) => &self.woken,
        };
        count.fetch_add(1, Relaxed);
    }

    /// The counts since the monitor began, for `status`.
    pub fn status(&self) -> WakeupsStatus {
        let of = |count: &AtomicU64| count.load(Relaxed);
        WakeupsStatus {
            beats: of(&self.beats),
            windows: of(&self.windows),
            decisions: of(&self.decisions),
            woken: of(&self.woken),
            in_vain: of(&self.in_vain),
        }
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

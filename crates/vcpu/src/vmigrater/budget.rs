//! The agent's budget of CPU time.
//!
//! A move costs some microseconds on hardware, and 0.3 to 0.5 ms in an emulated guest. Its gain is
//! an I/O task's part of a slice; where moves are that costly, the guest's other tasks lose several
//! times that. So the agent has a share of the time for which the guest's vCPUs run. While it has
//! used more, it moves nobody and windows are longer. It can save or owe one second's share at
//! most.

use seekway_core::units::{Instant, Nanos};

/// Factor for the length of windows while the budget is overspent.
pub(super) const LONGER: u64 = 4;
/// Most of the budget that can be saved or owed.
const SAVED: Nanos = Nanos::from_secs(1);

/// The agent's share, and its balance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    /// In thousandths of the time for which vCPUs run.
    permille: u64,
    /// In nanoseconds of a vCPU; below 0 it owes them.
    left: i64,
    /// Time of the last report, and the agent's total use by then.
    last: Option<(Instant, Nanos)>,
}

impl Budget {
    pub fn new(permille: u64) -> Budget {
        Budget { permille, ..Budget::default() }
    }

    /// Reports the agent's total use `used`. In the time from the last report on, its `vcpus` were
    /// away for `away` together.
    pub fn spent(&mut self, now: Instant, used: Nanos, vcpus: usize, away: Nanos) {
        let Some((at, before)) = self.last.replace((now, used)) else { return };
        let ran = now.since(at).scaled(vcpus as u64, 1).saturating_sub(away);
        let signed = |span: Nanos| i64::try_from(span.get()).unwrap_or(i64::MAX);
        let most = signed(SAVED.scaled(self.permille, 1000));
        let earned = signed(ran.scaled(self.permille, 1000));
        let left = self.left.saturating_add(earned);
        self.left = left.saturating_sub(signed(used.saturating_sub(before))).clamp(-most, most);
    }

    /// Tells whether the budget has time to spend.
    pub fn allows(&self) -> bool {
        self.left >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    fn us(us: u64) -> Nanos {
        Nanos::from_micros(us)
    }

    #[test]
    fn what_is_over_the_share_is_owed() {
        let mut budget = Budget::new(50);
        // Use before the first report does not count.
        budget.spent(at(0), Nanos::from_secs(7), 2, Nanos::ZERO);
        assert!(budget.allows());
        // Two vCPUs ran for 15 of 20 ms together: 0.75 ms of them.
        budget.spent(at(10), Nanos::from_secs(7) + us(750), 2, us(5_000));
        assert!(budget.allows());
        budget.spent(at(20), Nanos::from_secs(7) + us(1_500) + us(1), 2, us(5_000));
        assert!(!budget.allows());
        budget.spent(at(30), Nanos::from_secs(7) + us(1_501), 2, us(5_000));
        assert!(budget.allows());
    }

    #[test]
    fn no_more_than_a_second_is_saved_or_owed() {
        let mut budget = Budget::new(100);
        budget.spent(at(0), Nanos::ZERO, 1, Nanos::ZERO);
        // A minute without use saves 0.1 s, which is used up within half a second.
        budget.spent(at(60_000), Nanos::ZERO, 1, Nanos::ZERO);
        budget.spent(at(60_500), us(150_001), 1, Nanos::ZERO);
        assert!(!budget.allows());
        // A minute of spending is paid for in a second.
        budget.spent(at(120_500), Nanos::from_secs(60), 1, Nanos::ZERO);
        budget.spent(at(121_499), Nanos::from_secs(60), 1, Nanos::ZERO);
        assert!(!budget.allows());
        budget.spent(at(121_500), Nanos::from_secs(60), 1, Nanos::ZERO);
        assert!(budget.allows());
    }
}

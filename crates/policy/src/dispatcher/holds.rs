//! How long the device stood idle on purpose, by cause, and whether it paid.

use crate::request::Request;
use crate::scheduler::HoldReason;
use crate::units::{Instant, Nanos};

/// Time withheld and what came of it. A *wait* begins when the policy holds
/// back queued work while the device is idle, and ends with the next dispatch.
/// It has *paid* when what is dispatched arrived during the wait and before
/// its time was over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HoldStats {
    /// Device time withheld by cause, indexed as [`HoldReason::ALL`].
    pub held: [Nanos; HoldReason::ALL.len()],
    /// Waits begun.
    pub tried: u64,
    /// Waits that paid.
    pub paid: u64,
}

/// The wait under way, if any.
#[derive(Default)]
pub(super) struct Holds {
    pub(super) stats: HoldStats,
    current: Option<Wait>,
}

struct Wait {
    began: Instant,
    /// Up to when `stats.held` has been counted.
    counted: Instant,
    until: Instant,
    why: HoldReason,
}

impl Holds {
    /// The policy holds an idle device.
    pub(super) fn hold(&mut self, now: Instant, until: Instant, why: HoldReason) {
        match &mut self.current {
            Some(wait) => {
                self.stats.held[wait.why as usize] += now.since(wait.counted);
                (wait.counted, wait.until, wait.why) = (now, until, why);
            }
            None => {
                self.stats.tried += 1;
                self.current = Some(Wait { began: now, counted: now, until, why });
            }
        }
    }

    /// The wait, if there was one, ends with this dispatch or with nothing.
    pub(super) fn end(&mut self, now: Instant, dispatched: Option<&Request>) {
        let Some(wait) = self.current.take() else { return };
        self.stats.held[wait.why as usize] += now.since(wait.counted);
        let paid = dispatched.is_some_and(|r| r.arrived > wait.began && now <= wait.until);
        self.stats.paid += paid as u64;
    }
}

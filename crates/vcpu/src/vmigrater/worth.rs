//! Do moves save more than the agent costs?
//!
//! A task that was moved would else be where it was moved from first. So moves save the time for
//! which that vCPU is away, less the time for which the task's own is. The agent's CPU time is less
//! than its cost: programs in the guest's kernel slow down each I/O, wake-ups interrupt, caches get
//! cold. Where wake-ups are dear, as in an emulated guest, it looks at tasks and hardly moves one:
//! it saves about what it takes, and guests lose a fifth of their I/O. On hardware it saves a
//! hundred times what it takes. So moves have to save four times the agent's time; else it rests
//! for a minute, and then tries again for two seconds.

use seekway_core::units::{Instant, Nanos};

/// Time with a task to move over which both are summed. A slow disk may keep a task waiting for a
/// second.
const SPAN: Nanos = Nanos::from_secs(2);
/// Least factor of the time saved over the agent's.
const TIMES: i64 = 4;
/// Time for which it rests.
const REST: Nanos = Nanos::from_secs(60);

/// The time that moves have saved and the agent has taken, and its rest.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Worth {
    /// In nanoseconds; below 0 tasks would have been better off where they were.
    saved: i64,
    taken: Nanos,
    span: Nanos,
    /// End of its rest.
    until: Option<Instant>,
}

impl Worth {
    pub fn rests(&self) -> bool {
        self.until.is_some()
    }

    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// A move has saved a task this time.
    pub fn saved(&mut self, time: i64) {
        self.saved = self.saved.saturating_add(time);
    }

    /// In the last `span`, with a task to move, the agent took `taken`. Does it rest now?
    pub fn spent(&mut self, now: Instant, span: Nanos, taken: Nanos) -> bool {
        (self.span, self.taken) = (self.span + span, self.taken + taken);
        if self.span < SPAN {
            return false;
        }
        let taken = i64::try_from(self.taken.get()).unwrap_or(i64::MAX);
        let is_worth = self.saved >= taken.saturating_mul(TIMES);
        *self = Worth { until: (!is_worth).then(|| now + REST), ..Worth::default() };
        !is_worth
    }

    /// Time has come to here. Has its rest ended?
    pub fn look(&mut self, now: Instant) -> bool {
        let ended = self.until.is_some_and(|until| until <= now);
        if ended {
            *self = Worth::default();
        }
        ended
    }
}

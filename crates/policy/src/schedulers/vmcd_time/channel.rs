//! What `vmcd-time` keeps of one VM.

use crate::schedulers::vmcd::{Mean, Pending};
use crate::units::{Instant, Nanos};

/// Device time over weight, with 24 binary digits behind the point.
pub type Virtual = u128;

/// Device time as it counts for a channel of that weight.
pub fn weighed(time: Nanos, weight: u64) -> Virtual {
    (u128::from(time.get()) << 24) / u128::from(weight)
}

/// One VM.
pub struct Channel {
    pub weight: u64,
    pub pending: Pending,
    /// Tells a VM from the one that had its number before.
    pub serial: u64,
    /// Device time used, over the weight.
    pub used: Virtual,
    /// Commands and requests on the device.
    pub commands: u32,
    pub in_flight: u32,
    /// What the commands on the device are expected to use.
    pub expected: Nanos,
    /// Mean device time of a command.
    pub cost: Mean,
    /// Mean time from a completion that left it without work to its next
    /// request; longer ones than twice the hold count as that.
    pub think: Mean,
    /// When the last of its requests was dispatched or done.
    pub last_service: Instant,
    /// When its last completion left it without work that somebody waited for.
    pub idle_since: Option<Instant>,
    /// For the metrics: all device time used, and the turns.
    pub device_time: Nanos,
    pub turns: u64,
}

impl Channel {
    pub fn new(now: Instant, weight: u64, serial: u64, used: Virtual) -> Self {
        Channel {
            weight,
            pending: Pending::default(),
            serial,
            used,
            commands: 0,
            in_flight: 0,
            expected: Nanos::ZERO,
            cost: Mean::default(),
            think: Mean::default(),
            last_service: now,
            idle_since: None,
            device_time: Nanos::ZERO,
            turns: 0,
        }
    }

    /// Where it stands among the others: the lowest is next.
    pub fn standing(&self) -> Virtual {
        self.used + weighed(self.expected, self.weight)
    }

    /// Nothing queued, nothing on the device.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.in_flight == 0
    }

    pub fn charge(&mut self, time: Nanos) {
        self.used += weighed(time, self.weight);
        self.device_time = self.device_time + time;
    }
}

//! State of one VM in `vmcd-time`.

use super::clock;
use crate::schedulers::vmcd::{Mean, Pending};
use seekway_core::units::{Instant, Nanos};

/// Device time over weight, with 24 binary digits behind the point.
pub type Virtual = u128;

/// Device time as it counts for a channel of that weight.
pub fn weighed(time: Nanos, weight: u64) -> Virtual {
    clock::fraction(time, weight)
}

/// Order of service, the lowest first: device time, when it was chosen, and its VM; without equals.
pub type Place = (Virtual, u64, u16);

/// A VM's pending requests, and the device time that it has used.
#[derive(Default)]
pub struct Channel {
    pub weight: u64,
    pub pending: Pending,
    /// Tells a VM from the one that had its number before.
    pub serial: u64,
    /// Device time used, over the weight.
    pub used: Virtual,
    /// Time that its turns have entitled it to, over the weight; at most `used` outside of a turn.
    /// The next turn is shorter by the difference.
    pub granted: Virtual,
    /// The turn, or the dispatch, that it was last chosen for: of equals, the
    /// one that was chosen longest ago is next.
    pub chosen: u64,
    /// Commands and requests on the device.
    pub commands: u32,
    pub in_flight: u32,
    /// Expected time of the commands on the device.
    pub expected: Nanos,
    /// Mean device time of a command, for each unit of its size ([`clock::size`]).
    ///
    /// [`clock::size`]: super::clock::size
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
        Channel { weight, serial, used, granted: used, last_service: now, ..Channel::default() }
    }

    /// Where it stands among the others. When the device serves one channel at a time, by whole
    /// turns, so that equal channels take turns in a fixed order; when it serves several, with
    /// the commands on the device.
    pub fn place(&self, by_turns: bool, vm: usize) -> Place {
        let reached = match by_turns {
            true => self.granted,
            false => self.used + weighed(self.expected, self.weight),
        };
        (reached, self.chosen, vm as u16)
    }

    /// A turn is over. One that used up its length grants that, and as many
    /// whole lengths as it has overrun; one that ended early what it used.
    pub fn grant(&mut self, length: Nanos) {
        let length = weighed(length, self.weight).max(1);
        let over = self.used.saturating_sub(self.granted);
        let turns = if over < length { 0 } else { over / length };
        self.granted = if turns == 0 { self.used } else { self.granted + turns * length };
    }

    /// A channel that wakes is behind the others by `lag` at most.
    pub fn wake(&mut self, reached: Virtual, lag: Nanos) {
        let least = reached.saturating_sub(weighed(lag, self.weight));
        self.granted = self.granted.max(least);
        self.used = self.used.max(self.granted);
    }

    /// Nothing queued, nothing on the device.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.in_flight == 0
    }

    pub fn charge(&mut self, time: Nanos) {
        self.used += weighed(time, self.weight);
        self.device_time += time;
    }
}

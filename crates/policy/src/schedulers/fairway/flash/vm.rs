//! Records of a VM, and of a request that is under way.

use super::light::Pauses;
use super::queue::Queue;
use crate::schedulers::fairway::price::Class;
use seekway_core::queues::Pool;
use seekway_core::request::Request;
use seekway_core::units::Instant;

/// A VM's record.
pub struct Vm {
    /// Tells a VM from the one that had its number before.
    pub serial: u64,
    pub queue: Queue,
    /// Its requests of this class may not go now.
    pub withheld: Option<Class>,
    /// Cost of its requests that are queued or in flight.
    pub outstanding: u64,
    pub in_flight: u32,
    /// Since when it has been active, without a [pause](super::PAUSE).
    pub awake_since: Instant,
    /// When its last request was done, and how long it pauses until the next.
    pub done: Instant,
    pub pauses: Pauses,
    /// When it was last found to have less than its share.
    pub behind_at: Option<Instant>,
}

impl Vm {
    /// Which of its requests goes next, of those that may go.
    pub fn head<'a>(&self, queued: &'a Pool) -> Option<&'a Request> {
        self.queue.head(queued, self.withheld)
    }
}

/// A request, or a prefetch, of which something is in flight.
pub struct Flight {
    pub serial: u64,
    /// Its parts that are in flight, or 1.
    pub parts: u32,
}

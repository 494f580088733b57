//! Commands on a device: that they lie inside it, and when they are done where that is known
//! as they come.

use seekway_policy::request::{Request, RequestId};
use seekway_policy::units::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A command past the end of a device of so many sectors is a programmer error and panics.
pub(crate) fn assert_inside(command: &Request, capacity: u64) {
    let extent = command.extent;
    let is_inside = extent.end().get() <= capacity;
    assert!(is_inside, "command {extent} ends past the device's {capacity} sectors");
}

/// By time of completion, then in the order in which they came.
pub(crate) struct InFlight {
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    queue_depth: u32,
    submitted: u64,
}

impl InFlight {
    pub(crate) fn new(queue_depth: u32) -> InFlight {
        InFlight {
            heap: BinaryHeap::with_capacity(queue_depth as usize),
            queue_depth,
            submitted: 0,
        }
    }

    /// A command that will be done at `done_ns`. More than the queue takes, and
    /// have not been popped, is a programmer error and panics.
    pub(crate) fn enter(&mut self, done_ns: u64, id: RequestId) {
        assert!(self.heap.len() < self.queue_depth as usize, "more commands than the queue takes");
        self.heap.push(Reverse((done_ns, self.submitted, id.slot())));
        self.submitted += 1;
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|&Reverse((done, ..))| Instant::from_nanos(done))
    }

    pub(crate) fn pop(&mut self, now: Instant) -> Option<RequestId> {
        let &Reverse((done, _, slot)) = self.heap.peek()?;
        if done > now.as_nanos() {
            return None;
        }
        self.heap.pop();
        Some(RequestId::new(slot as u32))
    }
}

//! The write buffer: units that were written and have not reached the flash, in
//! the order in which they came. A unit that is written again while it waits
//! stays where it is.

use crate::in_flight::Moved;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A unit in the buffer.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    /// `None` once it was discarded.
    pub unit: Option<u32>,
    /// Sectors of the unit that were written: [from, to).
    pub from: u32,
    pub to: u32,
    /// Where the rest of a unit that was written in part is on flash, to be
    /// read before the whole can be programmed.
    pub rest: Option<u32>,
    /// When its data was in the buffer.
    pub ready_ns: u64,
}

pub(super) struct Buffer {
    capacity: u32,
    queue: VecDeque<Pending>,
    /// Ticket of the first in the queue; they count up and wrap.
    first: u32,
    /// Being programmed: when that ends, how many units it frees, and the program's number.
    programming: BinaryHeap<Reverse<(u64, u32, u64)>>,
    /// Units in `programming`, which still take room in the buffer.
    leaving: u32,
}

/// Tickets are one bit short: the map needs one.
const TICKETS: u32 = 1 << 31;

impl Buffer {
    /// A buffer of `capacity` units, at least one.
    pub(super) fn new(capacity: u32) -> Buffer {
        Buffer {
            capacity,
            queue: VecDeque::with_capacity(capacity as usize),
            first: 0,
            programming: BinaryHeap::new(),
            leaving: 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.held() >= self.capacity
    }

    /// Units that take room.
    pub(super) fn held(&self) -> u32 {
        self.queue.len() as u32 + self.leaving
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Tells whether the queue is long enough that partly written units stop waiting for the rest.
    pub(super) fn is_pressed(&self) -> bool {
        self.queue.len() as u32 > self.capacity / 4
    }

    /// The ticket that [`Buffer::push`] gives next.
    pub(super) fn ticket(&self) -> u32 {
        (self.first + self.queue.len() as u32) % TICKETS
    }

    pub(super) fn push(&mut self, pending: Pending) {
        self.queue.push_back(pending);
    }

    /// The unit with this ticket, which is still in the queue.
    pub(super) fn get_mut(&mut self, ticket: u32) -> Option<&mut Pending> {
        let index = (ticket + TICKETS - self.first) % TICKETS;
        self.queue.get_mut(index as usize)
    }

    /// The first `count` units, or all that there are.
    pub(super) fn front(&self, count: usize) -> impl Iterator<Item = &Pending> {
        self.queue.iter().take(count)
    }

    /// Takes the first unit.
    pub(super) fn pop(&mut self) -> Option<Pending> {
        let pending = self.queue.pop_front()?;
        self.first = (self.first + 1) % TICKETS;
        Some(pending)
    }

    /// `units` that were taken are in the flash at `end_ns`, when program `job` ends.
    pub(super) fn program(&mut self, end_ns: u64, units: u32, job: u64) {
        self.leaving += units;
        self.programming.push(Reverse((end_ns, units, job)));
    }

    /// The next end of a program, and the program's number.
    pub(super) fn next_end(&self) -> Option<(u64, u64)> {
        self.programming.peek().map(|&Reverse((end, _, job))| (end, job))
    }

    /// Delays programs. Those whose room was given away already have left; the new owner of the
    /// room follows them.
    pub(super) fn follow(&mut self, moved: &[Moved]) {
        let mut programming = std::mem::take(&mut self.programming).into_vec();
        for Reverse((end_ns, _, job)) in &mut programming {
            if let Some(moved) = moved.iter().rfind(|moved| moved.job == *job) {
                *end_ns = moved.to_ns;
            }
        }
        self.programming = programming.into();
    }

    /// Frees the units that are in the flash at `now_ns`.
    pub(super) fn release(&mut self, now_ns: u64) {
        while let Some(&Reverse((end, units, _))) = self.programming.peek() {
            if end > now_ns {
                break;
            }
            self.leaving -= units;
            self.programming.pop();
        }
    }
}

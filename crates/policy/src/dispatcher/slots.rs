//! The table of all requests that a dispatcher knows, by the number in their id.

use super::{Arrival, OUTSTANDING_MAX};
use crate::request::{Request, RequestId};
use crate::units::Instant;
use std::ops::{Index, IndexMut};

/// Where a request stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free,
    /// In nobody's queue: behind a barrier, a barrier itself, or staged.
    Waiting,
    /// In the policy.
    Queued,
    /// In the background's queue.
    Background,
    /// On the device; `forced`: the policy still believes that it is queued.
    InFlight {
        forced: bool,
    },
    /// Done after being forced; the policy still believes that it is queued.
    Ghost,
}

pub(super) struct Slot {
    pub request: Request,
    pub state: State,
    /// Order of arrival, unique.
    pub serial: u64,
    pub dispatched: Instant,
    /// First of its command, by whose id the engine knows it.
    pub leads: bool,
    /// Next request of the same command.
    pub next: Option<RequestId>,
    /// The policy that it was handed to, counted by `Dispatcher::switch`.
    pub epoch: u32,
    /// Of the background class: no policy has seen it.
    pub background: bool,
}

/// Numbers are used again once their requests are done, so the table grows to
/// the most that were ever outstanding and no further.
#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<RequestId>,
    serial: u64,
}

impl Table {
    /// A slot for a request that arrives.
    pub fn allocate(&mut self, now: Instant, arrival: Arrival, epoch: u32) -> RequestId {
        let id = self.free.pop().unwrap_or(RequestId::new(self.slots.len() as u32));
        assert!(id.slot() < OUTSTANDING_MAX, "more than {OUTSTANDING_MAX} requests outstanding");
        let Arrival { vm, tag, op, sync, extent } = arrival;
        let request = Request { id, vm, tag, op, sync, extent, arrived: now };
        self.serial += 1;
        let (serial, state) = (self.serial, State::Waiting);
        let (dispatched, leads, next, background) = (now, false, None, false);
        let slot = Slot { request, state, serial, dispatched, leads, next, epoch, background };
        match self.slots.get_mut(id.slot()) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        id
    }

    /// The request is done with.
    pub fn release(&mut self, id: RequestId) {
        self[id].state = State::Free;
        self.free.push(id);
    }

    /// Slots that are not free.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
    /// All slots, free ones included.
    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }
    /// The slot of an id that may be anybody's invention.
    pub fn get(&self, id: RequestId) -> Option<&Slot> {
        self.slots.get(id.slot())
    }
}

impl Index<RequestId> for Table {
    type Output = Slot;
    fn index(&self, id: RequestId) -> &Slot {
        &self.slots[id.slot()]
    }
}
impl IndexMut<RequestId> for Table {
    fn index_mut(&mut self, id: RequestId) -> &mut Slot {
        &mut self.slots[id.slot()]
    }
}

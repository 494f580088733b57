//! The table of all requests that a dispatcher knows, by the number in their id.

use super::{Arrival, OUTSTANDING_MAX};
use seekway_core::queues::{ExpiryQueue, Links};
use seekway_core::request::{Extent, Request, RequestId, VmId};
use seekway_core::units::Instant;
use std::ops::{Index, IndexMut};

/// Where a request stands, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free,
    /// In nobody's queue: behind a barrier, a barrier itself, or staged.
    Waiting,
    /// In the policy: all of it, or what is left of it.
    Queued,
    /// In the background's queue.
    Background,
    /// Sent to the device and not completed.
    InFlight,
    /// All of its parts have left the policy, and some are not done.
    Parted,
}

/// A request, or a part of one that goes by itself.
pub(super) struct Slot {
    /// Of a part: the request that it is part of, with the extent of the part.
    pub request: Request,
    pub state: State,
    /// Order of arrival, unique among requests.
    pub serial: u64,
    pub dispatched: Instant,
    /// First of its command, by whose id the engine knows it.
    pub leads: bool,
    /// Next request of the same command.
    pub next: Option<RequestId>,
    /// The policy in charge has dispatched it, and expects its completion; of the background, it was
    /// told that the command which begins here has gone.
    pub known: bool,
    /// Of the first of a command: some request of the command is `known`.
    pub seen: bool,
    /// Of the background class: no policy has queued it.
    pub background: bool,
    /// A part: `request.id` is the id of the whole request, and not its own.
    pub part: bool,
    /// A part of it has gone: the dispatcher's table of splits has more.
    pub split: bool,
}

/// Numbers are used again once their requests are done, so the table grows to
/// the most that were ever outstanding and no further.
#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<RequestId>,
    serial: u64,
    /// Slots that are parts.
    parts: usize,
    /// The requests of each VM in order of arrival, parts left out.
    by_vm: Vec<ExpiryQueue>,
    links: Links,
}

impl Table {
    /// A slot for a request that arrives.
    pub fn allocate(&mut self, now: Instant, arrival: Arrival) -> RequestId {
        let id = self.next_free();
        // Parts take numbers too, so that a high one alone says nothing. The slot may
        // already be counted.
        let room = id.slot() < OUTSTANDING_MAX || self.len() <= OUTSTANDING_MAX;
        assert!(room, "more than {OUTSTANDING_MAX} requests outstanding");
        let Arrival { vm, tag, op, sync, extent } = arrival;
        self.serial += 1;
        let request = Request { id, vm, tag, op, sync, extent, arrived: now };
        self.occupy(id, request, self.serial, false);
        if vm.index() >= self.by_vm.len() {
            self.by_vm.resize_with(vm.index() + 1, ExpiryQueue::new);
        }
        self.by_vm[vm.index()].push(&mut self.links, id);
        id
    }

    /// A slot for a part of a request.
    pub fn allocate_part(&mut self, whole: RequestId, extent: Extent) -> RequestId {
        let id = self.next_free();
        let Slot { request, serial, .. } = self[whole];
        self.occupy(id, Request { extent, ..request }, serial, true);
        self.parts += 1;
        id
    }

    fn next_free(&mut self) -> RequestId {
        self.free.pop().unwrap_or(RequestId::new(self.slots.len() as u32))
    }

    fn occupy(&mut self, id: RequestId, request: Request, serial: u64, part: bool) {
        let slot = Slot {
            request,
            state: State::Waiting,
            serial,
            dispatched: request.arrived,
            leads: false,
            next: None,
            known: false,
            seen: false,
            background: false,
            part,
            split: false,
        };
        match self.slots.get_mut(id.slot()) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
    }

    /// The request is done with, or the part.
    pub fn release(&mut self, id: RequestId) {
        let slot = &mut self.slots[id.slot()];
        slot.state = State::Free;
        match slot.part {
            true => self.parts -= 1,
            false => self.by_vm[slot.request.vm.index()].remove(&mut self.links, id),
        }
        self.free.push(id);
    }

    /// Requests, parts not counted.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.parts
    }
    /// All requests, parts left out.
    pub fn requests(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.state != State::Free && !slot.part)
    }
    /// The requests of one VM in order of arrival, parts left out.
    pub fn of_vm(&self, vm: VmId) -> impl Iterator<Item = &Slot> {
        let queue = self.by_vm.get(vm.index()).into_iter();
        queue.flat_map(|queue| queue.iter(&self.links)).map(|id| &self[id])
    }
    /// Everything becomes unknown to the policy.
    pub fn forget(&mut self) {
        for slot in &mut self.slots {
            (slot.known, slot.seen) = (false, false);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::request::Op;
    use seekway_core::units::{Lba, Sectors};

    fn arrival(vm: u16) -> Arrival {
        let extent = Extent::new(Lba::ZERO, Sectors::new(8)).unwrap();
        Arrival { vm: VmId::new(vm), tag: None, op: Op::Read, sync: true, extent }
    }

    #[test]
    fn looking_for_a_vms_requests_sees_no_others_and_no_free_slots() {
        let mut table = Table::default();
        let many: Vec<_> = (0..1000).map(|_| table.allocate(Instant::ZERO, arrival(0))).collect();
        let one = table.allocate(Instant::ZERO, arrival(1));
        let part = table.allocate_part(one, arrival(1).extent);
        let count = |table: &Table, vm| table.of_vm(VmId::new(vm)).count();
        assert_eq!((count(&table, 0), count(&table, 1), count(&table, 2)), (1000, 1, 0));
        many.into_iter().skip(2).for_each(|id| table.release(id));
        assert_eq!((count(&table, 0), table.len()), (2, 3));
        table.release(part);
        table.release(one);
        assert_eq!((count(&table, 0), count(&table, 1), table.len()), (2, 0, 2));
    }
}

//! Requests that go in parts, where the policy wants a device command to be
//! short. A part has a slot and an id of its own, by which the engine knows its
//! command. The request keeps its slot, with its whole extent, until all of it
//! is done; while a rest is queued, that is what the policy has of it.

use super::Dispatcher;
use super::slots::State;
use seekway_core::request::{Completion, Extent, RequestId};
use seekway_core::units::{Instant, Nanos, Sectors};

/// A request of which a part has left the policy.
pub(super) struct Split {
    /// The extent that has not left the policy. `None`: nothing, or nothing that will ever be sent.
    left: Option<Extent>,
    /// Parts on the device, or staged.
    out: u32,
    /// Those that the policy in charge has dispatched.
    known: u32,
    /// When the first part was sent.
    dispatched: Option<Instant>,
    /// Sum over the parts.
    service: Nanos,
    /// All parts that are done went well, and none was dropped.
    ok: bool,
}

impl Split {
    fn new(whole: Extent) -> Self {
        let (left, service) = (Some(whole), Nanos::ZERO);
        Split { left, out: 0, known: 0, dispatched: None, service, ok: true }
    }
}

impl Dispatcher {
    /// The extent of a request that has not left the policy; all of it when nothing has.
    pub(super) fn left(&self, id: RequestId) -> Extent {
        let slot = &self.slots[id];
        let split = if slot.split { self.splits.get(id) } else { None };
        split.and_then(|split| split.left).unwrap_or(slot.request.extent)
    }

    /// The first `len` sectors of what is left of a queued request leave the
    /// policy: the part.
    #[cold]
    pub(super) fn cut(
        &mut self,
        now: Instant,
        id: RequestId,
        len: Sectors,
        known: bool,
    ) -> RequestId {
        let slot = &mut self.slots[id];
        if !std::mem::replace(&mut slot.split, true) {
            self.splits.insert(id, Split::new(slot.request.extent));
        }
        let split = self.splits.get_mut(id).expect("a split request is in the table");
        let left = split.left.expect("something is left of a queued request");
        let (part, rest) = left.split(len);
        split.left = rest;
        split.out += 1;
        split.known += u32::from(known);
        self.adjacency.remove(id);
        match rest {
            Some(rest) => self.adjacency.insert(slot.request.vm, id, rest.start()),
            None => {
                slot.state = State::Parted;
                self.by_age.remove(&mut self.links, id);
            }
        }
        if rest.is_none() {
            self.count_leaving(now, self.slots[id].request.vm);
        }
        let part = self.slots.allocate_part(id, part);
        self.slots[part].known = known;
        part
    }

    /// A part of this request is sent: is it the first?
    #[cold]
    pub(super) fn first_part_sent(&mut self, now: Instant, whole: RequestId) -> bool {
        let split = self.splits.get_mut(whole).expect("a part is of a split request");
        split.dispatched.replace(split.dispatched.unwrap_or(now)).is_none()
    }

    /// A part will have no further part in it: tell the policy if it knows it,
    /// and free the slot.
    pub(super) fn part_ends(&mut self, now: Instant, part: RequestId, end: Completion) {
        let whole = end.request.id;
        let split = self.splits.get_mut(whole).expect("a part is of a split request");
        split.out -= 1;
        split.service += end.service;
        split.ok &= end.ok;
        if self.slots[part].known {
            split.known -= 1;
            let last = split.known == 0 && self.slots[whole].state != State::Queued;
            self.scheduler.completed(now, &Completion { last, ..end });
        }
        self.slots.release(part);
    }

    /// A part is done: the completion of its request, if that is done by it.
    #[cold]
    pub(super) fn finish_part(
        &mut self,
        now: Instant,
        part: RequestId,
        end: Completion,
    ) -> Option<Completion> {
        let whole = end.request.id;
        self.part_ends(now, part, end);
        let split = self.splits.get(whole)?;
        if split.out > 0 || self.slots[whole].state != State::Parted {
            return None;
        }
        let split = self.splits.remove(whole)?;
        let request = self.slots[whole].request;
        let dispatched = split.dispatched.unwrap_or(end.dispatched);
        self.slots.release(whole);
        Some(Completion { request, dispatched, service: split.service, ok: split.ok, ..end })
    }

    /// The VM of a split request leaves, and the rest with it. True when parts
    /// are on the device: then the request fails when they are done. Otherwise
    /// it is no longer split.
    pub(super) fn drop_rest(&mut self, id: RequestId) -> bool {
        let Some(split) = self.splits.get_mut(id) else { return false };
        if split.out == 0 {
            self.splits.remove(id);
            return false;
        }
        split.ok &= split.left.take().is_none();
        self.slots[id].state = State::Parted;
        true
    }

    /// Another policy takes over: it knows none of the parts that are out.
    pub(super) fn forget_parts(&mut self) {
        for split in self.splits.values_mut() {
            split.known = 0;
        }
    }
}

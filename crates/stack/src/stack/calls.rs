//! Requests on their way through the stack: guests' calls, reads into the cache, and the
//! parts that they were cut into. One part is one request of the dispatcher.

use super::types::{IoError, Stages, Submit};
use crate::cache::FetchId;
use seekway_core::request::{Extent, RequestId};
use seekway_core::units::{Instant, Sectors};
use std::ops::{Index, IndexMut};

/// A guest's request, or a read into the cache, under way.
pub(super) struct Call {
    /// As the engine handed it in; the token says nothing for a read into the cache.
    pub request: Submit,
    /// Parts not yet done, fetches that it waits for, and one while it [rests](Call::rests).
    pub parts_left: u32,
    /// The read into the cache that this is.
    pub fetch: Option<FetchId>,
    /// Length at its end that has not gone to the dispatcher: it goes in pieces.
    pub unsent: Sectors,
    /// The error of the first part that was done and had failed.
    pub error: Option<IoError>,
    pub arrived: Instant,
    /// When it had passed its limits.
    pub entered: Instant,
    /// When the device got the first of it.
    pub dispatched: Option<Instant>,
    /// Is it among those whose next pieces may have to go?
    pub rests: bool,
    live: bool,
}

impl Call {
    /// The device got some of it, or of what it waits for. Of several times the first counts, and
    /// none before it came.
    pub fn was_dispatched(&mut self, at: Instant) {
        let at = at.max(self.entered);
        self.dispatched = Some(self.dispatched.map_or(at, |first| first.min(at)));
    }

    /// Where its time went, when it is done.
    pub fn stages(&self, now: Instant) -> Stages {
        let dispatched = self.dispatched.unwrap_or(now);
        Stages {
            limited: self.entered.since(self.arrived),
            queued: dispatched.since(self.entered),
            device: now.since(dispatched),
        }
    }
}

/// A part of a call: what the dispatcher knows as one request.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub call: u32,
    /// Where it lies on the VM's disk.
    pub extent: Extent,
    pub error: Option<IoError>,
}

/// All calls and parts.
#[derive(Default)]
pub(super) struct Calls {
    slots: Vec<Call>,
    free: Vec<u32>,
    /// Indexed by [`RequestId::slot`] of the dispatcher's request.
    parts: Vec<Part>,
}

impl Calls {
    /// Take a request in, without parts.
    pub fn insert(&mut self, now: Instant, request: Submit, fetch: Option<FetchId>) -> u32 {
        let call = Call {
            request,
            parts_left: 0,
            fetch,
            unsent: Sectors::ZERO,
            error: None,
            arrived: now,
            entered: now,
            dispatched: None,
            rests: false,
            live: true,
        };
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = call;
                index
            }
            None => {
                self.slots.push(call);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// The call has one part more.
    pub fn add_part(&mut self, id: RequestId, call: u32, extent: Extent) {
        let part = Part { call, extent, error: None };
        if id.slot() >= self.parts.len() {
            self.parts.resize(id.slot() + 1, part);
        }
        self.parts[id.slot()] = part;
        self[call].parts_left += 1;
    }

    /// The part that a request of the dispatcher is.
    pub fn part(&self, id: RequestId) -> &Part {
        &self.parts[id.slot()]
    }

    /// The part failed; an error that it had before stays.
    pub fn fail_part(&mut self, id: RequestId, error: IoError) {
        self.parts[id.slot()].error.get_or_insert(error);
    }

    /// A part is done. True when it was the call's last.
    pub fn part_done(&mut self, id: RequestId) -> bool {
        let Part { call, error, .. } = self.parts[id.slot()];
        let slot = &mut self[call];
        slot.error = slot.error.or(error);
        self.one_less(call)
    }

    /// The call waits for one thing less. True when it was the last.
    pub fn one_less(&mut self, call: u32) -> bool {
        let slot = &mut self[call];
        slot.parts_left -= 1;
        slot.parts_left == 0
    }

    /// The call is done with.
    pub fn remove(&mut self, call: u32) {
        let slot = &mut self[call];
        assert!(slot.live && slot.parts_left == 0, "call {call} ends while it is under way");
        slot.live = false;
        self.free.push(call);
    }

    /// Calls under way, reads into the cache included.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Guests' calls under way.
    pub fn guests(&self) -> impl Iterator<Item = &Call> {
        self.slots.iter().filter(|call| call.live && call.fetch.is_none())
    }
}

impl Index<u32> for Calls {
    type Output = Call;
    fn index(&self, call: u32) -> &Call {
        &self.slots[call as usize]
    }
}
impl IndexMut<u32> for Calls {
    fn index_mut(&mut self, call: u32) -> &mut Call {
        &mut self.slots[call as usize]
    }
}

//! Long requests go to the dispatcher in pieces, so that the device does other things in between: a
//! guest can ask for a gibibyte in one request. A few pieces of a read or write are there at once,
//! and the next one comes when one is done. Discards and write-zeroes go one piece after the other,
//! in longer pieces, since an image may have to write them.
//!
//! The dispatcher orders discards and write-zeroes among the requests of their VM: a bounded number
//! of each VM is there, the others wait here.

use super::{IoError, Stack, Stages, Submit};
use crate::cache::FetchId;
use seekway_core::request::{Extent, Op, RequestId, VmId};
use seekway_core::units::{Instant, Sectors};
use std::ops::{Index, IndexMut};

/// Discards and write-zeroes of one VM that the dispatcher has at once: it
/// compares each with all others, which a guest could make expensive for all.
const BARRIERS_MAX: u32 = 16;

/// The longest piece of a discard or write-zeroes: 16 MiB.
const BARRIER_PIECE_MAX: Sectors = Sectors::new(16 << 11);

/// Pieces of one read or write that the dispatcher has at once on a device without a head: 8 MiB,
/// so that a VM that is alone with one request at a time keeps a fast device busy. A device with a
/// head does one thing at a time.
const PIECES_AT_ONCE: u32 = 8;

/// Requests of its VM in the dispatcher from which on a request has one piece at a time: a guest
/// may ask for a gibibyte in each of thousands of requests.
const ALL_PIECES_MAX: usize = 64;

impl Stack {
    /// Discards and write-zeroes reach the dispatcher, as many as there is room
    /// for. A guest that cares for their order among its own requests waits for
    /// them (virtio 1.2, 5.2.6; NBD likewise), so that others may overtake. The
    /// cache hears of each when it goes, and looks for no more at one time than a
    /// VM may have it look for; one is always under way, whose end brings the next.
    pub(super) fn unpark(&mut self, now: Instant, vm: VmId) {
        if self.disk(vm).leaving {
            return self.abandon_parked(now, vm);
        }
        while let Some(Some(disk)) = self.disks.get_mut(vm.index())
            && disk.barriers < BARRIERS_MAX
            && (disk.barriers == 0 || disk.load.may_forget(now))
            && let Some(call) = disk.parked.pop_front()
        {
            disk.barriers += 1;
            let (len, unsent) = (self.calls[call].request.extent.len(), self.calls[call].unsent);
            if unsent == len {
                if disk.cached {
                    disk.load.forgot(now, len.bytes());
                }
                self.write_begins(now, call);
            }
            self.send_piece(now, call, BARRIER_PIECE_MAX);
        }
    }

    /// A read or write reaches the dispatcher, the first pieces of it where it goes in pieces.
    pub(super) fn arrive_data(&mut self, now: Instant, call: u32) {
        let whole = self.calls[call].request.extent;
        if whole.len() <= self.piece_max {
            return self.arrive_part(now, call, whole);
        }
        self.calls[call].unsent = whole.len();
        self.send_pieces(now, call);
    }

    /// The next pieces of a long read or write, as many as there may be at once. None after an
    /// error.
    fn send_pieces(&mut self, now: Instant, index: u32) {
        let has_head = self.profile().rotational();
        loop {
            let call = &self.calls[index];
            let (vm, parts, ended) = (call.request.vm, call.parts_left, call.error.is_some());
            if ended || call.unsent == Sectors::ZERO {
                return;
            }
            let has_many = self.disk(vm).load.requests >= ALL_PIECES_MAX;
            if parts >= if has_head || has_many { 1 } else { PIECES_AT_ONCE } {
                return;
            }
            self.send_piece(now, index, self.piece_max);
        }
    }

    /// A piece of a long call is done, and not all of the call has gone: look at it when all that
    /// is done is accounted for. It does not end before that.
    pub(super) fn rest(&mut self, index: u32) {
        let call = &mut self.calls[index];
        if call.request.op.is_data() && !std::mem::replace(&mut call.rests, true) {
            call.parts_left += 1;
            self.rests.push_back(index);
        }
    }

    /// The next pieces of reads and writes of which one is done.
    pub(super) fn send_rests(&mut self, now: Instant) {
        while let Some(index) = self.rests.pop_front() {
            self.calls[index].rests = false;
            let is_last = self.calls.one_less(index);
            self.send_pieces(now, index);
            if is_last && self.calls[index].parts_left == 0 {
                self.call_done(now, index);
            }
        }
    }

    /// Sends a call's next piece to the dispatcher: as much of the unsent rest as a piece may have.
    fn send_piece(&mut self, now: Instant, call: u32, most: Sectors) {
        let (whole, unsent) = (self.calls[call].request.extent, self.calls[call].unsent);
        let sent = Sectors::new(whole.len().get() - unsent.get());
        let len = most.min(unsent);
        let piece = Extent::new(whole.start() + sent, len).expect("a part of an extent");
        self.calls[call].unsent = Sectors::new(unsent.get() - len.get());
        self.arrive_part(now, call, piece);
    }

    /// A piece of a call, or all of it, is done. True when the rest of it has to go; that of a
    /// discard or write-zeroes then waits behind the VM's others.
    pub(super) fn goes_on(&mut self, index: u32) -> bool {
        let call = &self.calls[index];
        let more = call.error.is_none() && call.unsent > Sectors::ZERO;
        let (vm, op) = (call.request.vm, call.request.op);
        if matches!(op, Op::Discard | Op::WriteZeroes) {
            let disk = self.disk(vm);
            disk.barriers -= 1;
            if more {
                disk.parked.push_back(index);
            }
        } else if more {
            self.rest(index);
        }
        more
    }
}

// Requests on their way through the stack: guests' calls, reads into the cache, and the
// parts that they were cut into. One part is one request of the dispatcher.

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

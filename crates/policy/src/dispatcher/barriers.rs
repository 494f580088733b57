//! Order among requests that policies never see. A flush covers the writes
//! that completed before it was issued, so it needs to wait for nothing. A
//! discard or write-zeroes changes data: it waits for earlier requests of its
//! VM on the same sectors, and later ones wait for it.

use crate::request::{Op, Request, RequestId};
use std::collections::{BTreeSet, VecDeque};

/// A discard or write-zeroes that has arrived and not completed.
struct Barrier {
    request: Request,
    /// Order of arrival among all requests.
    serial: u64,
    /// Earlier overlapping requests that have not completed.
    waits_for: BTreeSet<RequestId>,
    /// Later overlapping reads and writes, in arrival order.
    blocked: Vec<RequestId>,
    dispatched: bool,
}

/// All barriers of a device, and the flushes that may go.
#[derive(Default)]
pub(super) struct Barriers {
    flushes: VecDeque<RequestId>,
    pending: Vec<Barrier>,
}

impl Barriers {
    /// Nothing to order: the common case, one comparison.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.flushes.is_empty()
    }

    /// Must this request, which arrived as number `serial`, wait for an earlier
    /// barrier? If so it is remembered.
    pub(super) fn blocks(&mut self, serial: u64, request: &Request) -> bool {
        let same = |b: &&mut Barrier| {
            b.serial < serial
                && b.request.vm == request.vm
                && b.request.extent.overlaps(request.extent)
        };
        match self.pending.iter_mut().rev().find(same) {
            Some(barrier) => {
                barrier.blocked.push(request.id);
                true
            }
            None => false,
        }
    }

    /// A flush arrives.
    pub(super) fn flush(&mut self, id: RequestId) {
        self.flushes.push_back(id);
    }

    /// A discard or write-zeroes arrives; `earlier` overlap it and are not done.
    pub(super) fn push(&mut self, request: Request, serial: u64, earlier: BTreeSet<RequestId>) {
        debug_assert!(matches!(request.op, Op::Discard | Op::WriteZeroes));
        let (waits_for, blocked) = (earlier, Vec::new());
        self.pending.push(Barrier { request, serial, waits_for, blocked, dispatched: false });
    }

    /// The next that may go to the device.
    pub(super) fn next(&mut self) -> Option<RequestId> {
        if let Some(id) = self.flushes.pop_front() {
            return Some(id);
        }
        let ready = self.pending.iter_mut().find(|b| !b.dispatched && b.waits_for.is_empty())?;
        ready.dispatched = true;
        Some(ready.request.id)
    }

    /// A request is done: who may go now that waited for it? Barriers find out
    /// through [`Barriers::next`]; blocked requests are handed back here.
    pub(super) fn done(&mut self, id: RequestId) -> Vec<RequestId> {
        for barrier in &mut self.pending {
            barrier.waits_for.remove(&id);
        }
        match self.pending.iter().position(|b| b.request.id == id) {
            Some(at) => self.pending.remove(at).blocked,
            None => Vec::new(),
        }
    }

    /// A VM leaves: forget what is queued of it. `gone` lists its requests that
    /// never reached the device, ascending.
    pub(super) fn detach(&mut self, gone: &[RequestId]) {
        let stays = |id: &RequestId| gone.binary_search(id).is_err();
        self.flushes.retain(stays);
        self.pending.retain(|b| stays(&b.request.id));
        for barrier in &mut self.pending {
            barrier.waits_for.retain(stays);
            barrier.blocked.retain(stays);
        }
    }
}

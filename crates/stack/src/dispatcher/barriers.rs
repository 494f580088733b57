//! Order among requests that policies never see. A flush covers the writes that completed before
//! it was issued, so it needs to wait for no request; but a VM has one on the device at a time, and
//! those that come meanwhile go together as its next one, which covers all of them: it begins
//! after they have come. VMs take turns. A discard or write-zeroes changes data: it waits for
//! earlier requests of its VM on the same sectors, and later ones wait for it.

use seekway_core::request::{Op, Request, RequestId, VmId};
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

impl Barrier {
    /// Does it wait for no other request?
    fn is_ready(&self) -> bool {
        !self.dispatched && self.waits_for.is_empty()
    }
}

/// The flushes of one VM.
#[derive(Default)]
struct Flushes {
    /// In order of arrival; the next command covers all of them.
    waiting: Vec<RequestId>,
    /// One is on the device.
    under_way: bool,
}

/// All barriers of a device.
#[derive(Default)]
pub(super) struct Barriers {
    /// Each VM's flushes, indexed by its number.
    flushes: Vec<Flushes>,
    /// VMs with flushes that wait and none on the device, the next one first.
    turns: VecDeque<VmId>,
    /// The flushes that go together, when [`Barriers::next`] has given one.
    together: Vec<RequestId>,
    pending: Vec<Barrier>,
}

impl Barriers {
    /// Nothing to order: the common case, one comparison.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.turns.is_empty()
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

    /// A flush arrives and waits for the next turn of its VM.
    pub(super) fn flush(&mut self, vm: VmId, id: RequestId) {
        if self.flushes.len() <= vm.index() {
            self.flushes.resize_with(vm.index() + 1, Flushes::default);
        }
        let flushes = &mut self.flushes[vm.index()];
        if flushes.waiting.is_empty() && !flushes.under_way {
            self.turns.push_back(vm);
        }
        flushes.waiting.push(id);
    }

    /// A command of flushes is done.
    pub(super) fn flushed(&mut self, vm: VmId) {
        let flushes = &mut self.flushes[vm.index()];
        flushes.under_way = false;
        if !flushes.waiting.is_empty() {
            self.turns.push_back(vm);
        }
    }

    /// The flushes that go with the one that [`Barriers::next`] gave last, it included.
    pub(super) fn together(&self) -> &[RequestId] {
        &self.together
    }

    /// A discard or write-zeroes arrives; `earlier` overlap it and are not done.
    pub(super) fn push(&mut self, request: Request, serial: u64, earlier: BTreeSet<RequestId>) {
        debug_assert!(matches!(request.op, Op::Discard | Op::WriteZeroes));
        let (waits_for, blocked) = (earlier, Vec::new());
        self.pending.push(Barrier { request, serial, waits_for, blocked, dispatched: false });
    }

    /// The next that may go to the device, of those whose VM may send one now. With a flush go all
    /// others of its VM that wait: [`Barriers::together`].
    pub(super) fn next(&mut self, may_go: impl Fn(VmId, RequestId) -> bool) -> Option<RequestId> {
        let flushes = &mut self.flushes;
        let is_next = |vm: &VmId| may_go(*vm, flushes[vm.index()].waiting[0]);
        if let Some(at) = self.turns.iter().position(is_next)
            && let Some(vm) = self.turns.remove(at)
        {
            let flushes = &mut flushes[vm.index()];
            flushes.under_way = true;
            self.together.clear();
            self.together.append(&mut flushes.waiting);
            return self.together.first().copied();
        }
        let ready = |b: &&mut Barrier| b.is_ready() && may_go(b.request.vm, b.request.id);
        let barrier = self.pending.iter_mut().find(ready)?;
        barrier.dispatched = true;
        Some(barrier.request.id)
    }

    /// The VMs with a barrier that waits for nothing but its VM's turn.
    pub(super) fn ready_vms(&self) -> impl Iterator<Item = VmId> + '_ {
        let pending = self.pending.iter().filter(|b| b.is_ready()).map(|b| b.request.vm);
        self.turns.iter().copied().chain(pending)
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
    pub(super) fn detach(&mut self, vm: VmId, gone: &[RequestId]) {
        let stays = |id: &RequestId| gone.binary_search(id).is_err();
        self.turns.retain(|of| *of != vm);
        if let Some(flushes) = self.flushes.get_mut(vm.index()) {
            flushes.waiting.clear();
        }
        self.pending.retain(|b| stays(&b.request.id));
        for barrier in &mut self.pending {
            barrier.waits_for.retain(stays);
            barrier.blocked.retain(stays);
        }
    }
}

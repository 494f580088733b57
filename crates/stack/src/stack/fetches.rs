//! Reads into the cache from their beginning to their end: as calls of no guest,
//! in the background or not, taken over by guests, taken back, and handed to
//! those who wait for them.

use super::Stack;
use super::types::Submit;
use crate::cache::FetchId;
use seekway_core::request::{Extent, Op, RequestId, VmId};
use seekway_core::units::{Instant, Sectors};

/// Prefetches go to the dispatcher in pieces of 32 KiB. Commands take as many as the policy allows:
/// few while a VM waits that is slowed down by long ones.
const PREFETCH_PIECE: Sectors = Sectors::new(64);

/// Execution of a fetch.
#[derive(Clone, Default)]
pub(super) struct UnderWay {
    call: Option<u32>,
    /// Those of its requests that arrived in the background and are not done.
    requests: Vec<RequestId>,
    /// One of its requests is done.
    begun: bool,
}

impl Stack {
    /// Read a new fetch's extent into its frames.
    pub(super) fn fetch_into(&mut self, now: Instant, id: FetchId, background: bool) {
        let Some(cache) = &mut self.cache else { return };
        let at = id.0 as usize;
        if at >= cache.under_way.len() {
            cache.under_way.resize_with(at + 1, UnderWay::default);
        }
        if cache.under_way[at].call.is_some() {
            return;
        }
        let fetch = cache.contents.fetch(id);
        let (vm, tag, extent) = (fetch.vm, fetch.tag, fetch.extent);
        let sync = !background;
        let request = Submit { vm, tag, op: Op::Read, sync, extent, token: 0 };
        let call = self.calls.insert(now, request, Some(id));
        cache.under_way[at] = UnderWay { call: Some(call), ..UnderWay::default() };
        self.disk(vm).fetches += 1;
        if !background {
            return self.arrive_part(now, call, extent);
        }
        let mut requests = std::mem::take(&mut self.background);
        let mut rest = Some(extent);
        while let Some(extent) = rest {
            let (piece, left) = extent.split(PREFETCH_PIECE);
            self.cut(call, piece, |stack, arrival| {
                let id = stack.dispatcher.arrive_background(now, arrival);
                requests.push(id);
                id
            });
            rest = left;
        }
        if let Some(cache) = &mut self.cache {
            cache.under_way[at].requests.extend_from_slice(&requests);
            cache.prefetches.push(id);
        }
        requests.clear();
        self.background = requests;
    }

    /// A request of a fetch has left the device.
    pub(super) fn fetch_left_device(&mut self, fetch: FetchId, request: RequestId) {
        if let Some(cache) = &mut self.cache {
            let fetch = &mut cache.under_way[fetch.0 as usize];
            fetch.requests.retain(|&r| r != request);
            fetch.begun = true;
        }
    }

    /// A guest waits for a fetch: what of it still waits in the background
    /// becomes demand.
    pub(super) fn promote(&mut self, now: Instant, id: FetchId) {
        if self.cache.as_ref().is_some_and(|cache| cache.contents.fetch(id).prefetch) {
            self.dispatcher.background_is_late();
        }
        if self.make_demand(now, id)
            && let Some(cache) = &mut self.cache
        {
            cache.contents.promoted(id);
        }
    }

    /// Makes the parts of a fetch that wait in the background demand. False when there are none.
    fn make_demand(&mut self, now: Instant, id: FetchId) -> bool {
        let parts = self.withdraw(id);
        if parts.is_empty() {
            return false;
        }
        for &(call, extent) in &parts {
            self.calls[call].request.sync = true;
            self.arrive_part(now, call, extent);
            self.calls.one_less(call);
        }
        if let Some(cache) = &mut self.cache {
            cache.prefetches.retain(|&other| other != id);
        }
        true
    }

    /// Take back what of a fetch waits in the background: call and extent of each
    /// part. The call still counts them.
    fn withdraw(&mut self, id: FetchId) -> Vec<(u32, Extent)> {
        let mut parts = Vec::new();
        let Some(cache) = &mut self.cache else { return parts };
        let Some(fetch) = cache.under_way.get_mut(id.0 as usize) else { return parts };
        fetch.requests.retain(|&request| {
            let taken = self.dispatcher.withdraw(request);
            if taken {
                let part = self.calls.part(request);
                parts.push((part.call, part.extent));
                let vm = self.calls[part.call].request.vm;
                if let Some(Some(disk)) = self.disks.get_mut(vm.index()) {
                    disk.load.requests -= 1;
                }
            }
            !taken
        });
        parts
    }

    /// Take back the prefetches of which nothing has left the background, and that
    /// nobody waits for. What the device has of others is worth its rest: a
    /// guest that comes meanwhile finds all of it under way.
    pub(super) fn drop_prefetches(&mut self, now: Instant) {
        let mut next = 0;
        while let Some(id) = self.cache.as_ref().and_then(|c| c.prefetches.get(next).copied()) {
            // What is dropped leaves its place to the one behind it.
            next += usize::from(!self.drop_prefetch(now, id));
        }
    }

    /// As [`Stack::drop_prefetches`], for one VM, which leaves: it waits for the rest of the others
    /// no longer than for demand.
    pub(super) fn end_prefetches(&mut self, now: Instant, vm: VmId) {
        let mut next = 0;
        while let Some(cache) = &self.cache
            && let Some(&id) = cache.prefetches.get(next)
        {
            let chosen = vm == cache.contents.fetch(id).vm;
            let stays = !chosen || !self.drop_prefetch(now, id) && !self.make_demand(now, id);
            next += usize::from(stays);
        }
    }

    /// Take a prefetch back if nothing of it has left the background and nobody
    /// waits for it; else false.
    fn drop_prefetch(&mut self, now: Instant, id: FetchId) -> bool {
        let Some(cache) = &mut self.cache else { return false };
        let UnderWay { requests, begun, .. } = &cache.under_way[id.0 as usize];
        let waits = !begun && requests.iter().all(|&r| self.dispatcher.waits_in_background(r));
        if !waits || !cache.contents.fetch(id).waiters.is_empty() {
            return false;
        }
        for (call, _) in self.withdraw(id) {
            self.calls.one_less(call);
        }
        self.forget_fetch(id);
        if let Some(cache) = &mut self.cache {
            cache.contents.dropped(now, id);
        }
        true
    }

    /// The call of a fetch is over: did it go well, and when did the device get the first of it?
    fn forget_fetch(&mut self, id: FetchId) -> (bool, Option<Instant>) {
        let cache = self.cache.as_mut().expect("it has a fetch");
        let under_way = std::mem::take(&mut cache.under_way[id.0 as usize]);
        let index = under_way.call.expect("a fetch is a call");
        cache.prefetches.retain(|&other| other != id);
        let call = &self.calls[index];
        let (vm, ok, dispatched) = (call.request.vm, call.error.is_none(), call.dispatched);
        self.calls.remove(index);
        self.disk(vm).fetches -= 1;
        (ok, dispatched)
    }

    /// Fetches whose calls are done end: guests that waited get their data.
    pub(super) fn end_fetches(&mut self, now: Instant) {
        while let Some(id) = self.cache.as_mut().and_then(|c| c.ended.pop_front()) {
            self.end_fetch(now, id);
        }
    }

    fn end_fetch(&mut self, now: Instant, id: FetchId) {
        let (ok, dispatched) = self.forget_fetch(id);
        let cache = self.cache.as_mut().expect("it has a fetch");
        let mut waiters = std::mem::take(&mut cache.waiters);
        waiters.extend_from_slice(&cache.contents.fetch(id).waiters);
        for waiter in waiters.iter().filter(|_| ok) {
            let token = self.calls[waiter.token as u32].request.token;
            self.copy_fetched(id, token, waiter.extent);
        }
        if let Some(cache) = &mut self.cache {
            cache.contents.fetched(now, id, ok);
            cache.waiting -= waiters.len();
        }
        for waiter in waiters.drain(..) {
            let call = waiter.token as u32;
            let vm = self.calls[call].request.vm;
            self.disk(vm).load.waited(waiter.extent.len().bytes());
            if let Some(at) = dispatched {
                self.calls[call].was_dispatched(at);
            }
            if !ok {
                // Each on its own: what is wrong may lie beside what it wants.
                self.arrive_part(now, call, waiter.extent);
            }
            if self.calls.one_less(call) {
                self.call_done(now, call);
            }
        }
        if let Some(cache) = &mut self.cache {
            cache.waiters = waiters;
        }
    }
}

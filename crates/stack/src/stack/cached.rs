//! The cache's stage: guests' reads are looked up first, what the cache has not is
//! read into frames by calls of no guest, and prefetches wait in the dispatcher's
//! background. The steps are those that [`crate::cache`] states.

use super::{Action, CUT_BELOW, CacheSpec, Copy, PIECES_MAX, Stack, Submit};
use crate::cache::{
    BLOCK_SECTORS, Config, Fetch, FetchId, Frame, HostCache, Piece, Usage, Waiter, blocks_of,
};
use crate::dispatcher::OUTSTANDING_MAX;
use seekway_core::prefetcher::{Prefetcher, Stream};
use seekway_core::request::{Extent, Op, ProcessTag, RequestId, VmId};
use seekway_core::units::{Instant, Lba, Sectors};
use std::collections::VecDeque;
use std::num::NonZeroU32;

/// Blocks of the longest read that is looked up (4 MiB). Longer ones go past the
/// cache: an engine that copies serves nobody else meanwhile.
pub(super) const LOOKED_UP_BLOCKS_MAX: u64 = 1 << 10;

/// Parts of all VMs' reads that wait for fetches; with more, reads go past the
/// cache. Each VM has a bound of its own ([`super::admit`]), which comes first.
const WAITING_MAX: usize = 1 << 18;

const _: () = assert!(
    CUT_BELOW + PIECES_MAX as usize + super::OUTSTANDING_LIMIT + WAITING_MAX
        < OUTSTANDING_MAX - LOOKED_UP_BLOCKS_MAX as usize
);

/// The cache of a stack.
pub(super) struct CacheStage {
    pub contents: HostCache,
    config: Config,
    /// Specification of the present prefetcher, for journals and status.
    spec: String,
    /// By number of the fetch.
    pub under_way: Vec<UnderWay>,
    /// Prefetches of which something is in the dispatcher's background: no more
    /// than it has room for.
    pub prefetches: Vec<FetchId>,
    /// Fetches whose calls are done.
    pub ended: VecDeque<FetchId>,
    /// Parts of guests' reads that wait for fetches.
    pub waiting: usize,
    /// Reused from read to read.
    pieces: Vec<Piece>,
    along: Vec<FetchId>,
    pub waiters: Vec<Waiter>,
}

impl CacheStage {
    /// A guest's read waits at its VM's limit.
    pub(super) fn held(&mut self, vm: VmId, len: Sectors) {
        self.contents.held(vm, len);
    }

    pub fn new(cache: CacheSpec) -> CacheStage {
        let CacheSpec { config, prefetcher, spec } = cache;
        CacheStage {
            contents: HostCache::with(config, prefetcher),
            config,
            spec,
            under_way: Vec::new(),
            prefetches: Vec::new(),
            ended: VecDeque::new(),
            waiting: 0,
            pieces: Vec::new(),
            along: Vec::new(),
            waiters: Vec::new(),
        }
    }

    /// Its configuration, and the prefetcher's specification as it is now.
    pub fn config(&self) -> (Config, String) {
        (self.config, self.spec.clone())
    }

    /// Reads into the cache under way.
    pub fn fetching(&self) -> usize {
        self.contents.fetching()
    }

    /// All requests of a fetch are done.
    pub fn has_ended(&mut self, id: FetchId) {
        self.ended.push_back(id);
    }

    /// Of a read's pieces that need the device, those behind the first
    /// [`PIECES_MAX`] become one that goes past the cache.
    fn join_rest(&mut self, now: Instant, read: Extent, pieces: &mut Vec<Piece>) {
        let start = |piece: &Piece| match *piece {
            Piece::Fetch(_, part) | Piece::Direct(part) => Some(part.start()),
            Piece::Cached(_) | Piece::Wait(..) => None,
        };
        let Some(rest) = pieces.iter().filter_map(start).nth(PIECES_MAX as usize) else { return };
        pieces.retain(|piece| {
            let goes = start(piece).is_some_and(|start| start >= rest);
            if let (true, Piece::Fetch(id, _)) = (goes, *piece) {
                // Not begun: nobody but this read waits for it.
                self.contents.fetched(now, id, false);
            }
            !goes
        });
        let len = Sectors::new(read.end().get() - rest.get());
        pieces.extend(Extent::new(rest, len).map(Piece::Direct));
    }
}

impl Stack {
    /// A guest's read is looked up in the cache. False, and nothing has happened,
    /// when it goes past it.
    pub(super) fn read_cached(&mut self, now: Instant, index: u32) -> bool {
        let request = self.calls[index].request;
        let (vm, extent) = (request.vm, request.extent);
        let Some(disk) = &mut self.disks[vm.index()] else { return false };
        let Some(cache) = self.cache.as_mut().filter(|_| disk.cached) else { return false };
        let long = extent.len().get() > LOOKED_UP_BLOCKS_MAX * BLOCK_SECTORS;
        if long || !disk.load.may_copy(now) {
            return false;
        }
        let full = cache.waiting >= WAITING_MAX || self.dispatcher.outstanding() >= CUT_BELOW;
        // What is all there waits for nothing.
        if (full || !disk.load.may_wait()) && !cache.contents.holds(vm, extent) {
            return false;
        }
        let mut pieces = std::mem::take(&mut cache.pieces);
        cache.contents.read(now, vm, request.tag, extent, index.into(), &mut pieces);
        cache.join_rest(now, extent, &mut pieces);
        let (mut waiting, mut commands) = (0, 0);
        for piece in &pieces {
            commands += u32::from(matches!(piece, Piece::Fetch(..) | Piece::Direct(_)));
            match *piece {
                Piece::Cached(part) => disk.load.copied(now, part.len().bytes()),
                Piece::Wait(_, part) | Piece::Fetch(_, part) => {
                    disk.load.waits(part.len().bytes());
                    waiting += 1;
                }
                Piece::Direct(_) => {}
            }
        }
        cache.waiting += waiting;
        let call = &mut self.calls[index];
        // One more, so that nothing ends it before all is said.
        call.parts_left += waiting as u32 + 1;
        self.clear_frames();
        self.act(Action::LookedUp { token: request.token, commands });
        for piece in pieces.drain(..) {
            match piece {
                Piece::Cached(part) => self.copy_cached(vm, request.token, part),
                Piece::Wait(id, _) => self.promote(now, id),
                Piece::Fetch(id, _) => self.fetch_into(now, id, false),
                Piece::Direct(part) => self.arrive_part(now, index, part),
            }
        }
        if let Some(cache) = &mut self.cache {
            cache.pieces = pieces;
        }
        if commands > 0 {
            self.read_along(now);
        }
        if self.calls.one_less(index) {
            self.call_done(now, index);
        }
        true
    }

    /// A read that was just looked up goes to the device. Where that has a head, and demand
    /// leaves the background no time, what its reader will want next goes along: to come back
    /// for it takes as long as to read a revolution's worth of it now.
    fn read_along(&mut self, now: Instant) {
        let Some(revolution) = self.dispatcher.profile().rotation else { return };
        if !self.dispatcher.is_crowded() {
            return;
        }
        let Some(cache) = &mut self.cache else { return };
        let Some(bytes_per_s) = cache.contents.bandwidth() else { return };
        let most = Sectors::from_bytes(revolution.scaled(bytes_per_s, 1_000_000_000).get());
        let mut along = std::mem::take(&mut cache.along);
        cache.contents.along(now, most, &mut along);
        for id in along.drain(..) {
            self.act(Action::Prefetching);
            self.fetch_into(now, id, false);
        }
        if let Some(cache) = &mut self.cache {
            cache.along = along;
        }
    }

    /// Nobody needs the frames of copies that have been carried out.
    fn clear_frames(&mut self) {
        if self.actions.is_empty() {
            self.frames.clear();
        }
    }

    /// Cached blocks go to a guest.
    fn copy_cached(&mut self, vm: VmId, token: u64, part: Extent) {
        let Some(cache) = &self.cache else { return };
        let first = self.frames.len() as u32;
        self.frames.extend(cache.contents.frames(vm, part));
        let frames = (first, self.frames.len() as u32 - first);
        self.act(Action::Copy(Copy { token, part, frames }));
    }

    /// A part of what a fetch has brought goes to a guest that waited for it.
    pub(super) fn copy_fetched(&mut self, id: FetchId, token: u64, part: Extent) {
        self.clear_frames();
        let Some(cache) = &self.cache else { return };
        let first = self.frames.len() as u32;
        let (wanted, _) = frames_of(cache.contents.fetch(id), part);
        self.frames.extend_from_slice(wanted);
        let frames = (first, wanted.len() as u32);
        self.act(Action::Copy(Copy { token, part, frames }));
    }

    /// Tell the cache of a call that changes data, before anything comes of it.
    pub(super) fn write_begins(&mut self, now: Instant, call: u32) {
        let request = &self.calls[call].request;
        let (vm, op, extent) = (request.vm, request.op, request.extent);
        let known = changes(op) && self.disk(vm).cached;
        if let Some(cache) = self.cache.as_mut().filter(|_| known) {
            cache.contents.write(now, vm, extent);
        }
    }

    /// Hears that a write is done, well or not. The cache is told also when the disk has left it
    /// meanwhile: it would take what it believes to be under way for the next disk of that number
    /// too.
    pub(super) fn write_ends(&mut self, vm: VmId, op: Op, extent: Extent) {
        if let Some(cache) = self.cache.as_mut().filter(|_| changes(op)) {
            cache.contents.written(vm, extent);
        }
    }

    /// Let prefetches wait for the device, as many as there is room for; where demand
    /// wants the device, take back those that wait. True when any has come.
    pub(super) fn read_ahead(&mut self, now: Instant) -> bool {
        if self.cache.is_none() {
            return false;
        }
        let as_demand = self.cache.as_ref().is_some_and(|c| c.contents.fetches_as_demand());
        if self.dispatcher.is_crowded() {
            self.drop_prefetches(now);
        }
        let mut any = false;
        loop {
            let room = match as_demand {
                true => CUT_BELOW.saturating_sub(self.dispatcher.outstanding()),
                false => self.dispatcher.background_room(),
            };
            let proposed = self.cache.as_mut().filter(|_| room > 0);
            let Some(id) = proposed.and_then(|cache| cache.contents.propose(now, room)) else {
                return any;
            };
            self.act(Action::Prefetching);
            self.fetch_into(now, id, !as_demand);
            any = true;
        }
    }

    /// A disk's share of the cache and its size, when it joins or when they have changed.
    pub(super) fn join_cache(&mut self, now: Instant, vm: VmId, weight: NonZeroU32, size: Sectors) {
        if let Some(cache) = &mut self.cache {
            cache.contents.attach(now, vm, weight, size);
        }
    }

    /// Forgets all that is cached of a disk: nobody knows what its image has now.
    pub(super) fn forget_cached(&mut self, now: Instant, vm: VmId, size: Sectors) {
        if let (Some(all), Some(cache)) = (Extent::new(Lba::ZERO, size), &mut self.cache) {
            cache.contents.write(now, vm, all);
            cache.contents.written(vm, all);
        }
    }

    /// The cache begins full of these parts of VMs' disks, as far as there is room: for
    /// simulations. Nothing without a cache.
    ///
    /// # Panics
    /// With a journal: a replay would not know of it.
    pub fn warm_cache(&mut self, now: Instant, wanted: &[(VmId, Vec<Extent>)]) {
        assert!(self.journal.is_none(), "a journal does not hold what a cache begins with");
        if let Some(cache) = &mut self.cache {
            cache.contents.warm(now, wanted);
        }
    }

    /// Sets the device's best rate of reads, in bytes a second (the paper's BW_T), for the
    /// prefetcher.
    pub fn set_bandwidth(&mut self, now: Instant, bytes_per_s: u64) {
        self.record(|j| j.bandwidth(now, bytes_per_s));
        if let Some(cache) = &mut self.cache {
            cache.contents.set_bandwidth(bytes_per_s);
        }
    }

    /// Another prefetcher; what is cached stays. What the old one has waiting is not
    /// made. False, and nothing happens, without a cache.
    pub fn switch_prefetcher(
        &mut self,
        now: Instant,
        spec: &str,
        prefetcher: Box<dyn Prefetcher>,
    ) -> bool {
        if self.cache.is_none() {
            return false;
        }
        self.record(|j| j.switch_prefetcher(now, spec));
        self.drop_prefetches(now);
        if let Some(cache) = &mut self.cache {
            cache.contents.replace(now, prefetcher);
            cache.spec = spec.into();
        }
        true
    }

    /// Lets the cache keep at most `bytes` from now on; no more than it was made for.
    /// [`Stack::trim_cache`] drops what is above that. False, and nothing happens, without a cache.
    pub fn resize_cache(&mut self, now: Instant, bytes: u64) -> bool {
        if self.cache.is_none() {
            return false;
        }
        self.record(|j| j.resize_cache(now, bytes));
        if let Some(cache) = &mut self.cache {
            cache.contents.resize(bytes);
        }
        true
    }

    /// Take back frames above the cache's size, `most` of them at most: they are
    /// appended to `bare`, and the engine gives their memory back. Only when every action
    /// was carried out: a copy of one of them could be among them. False when there is
    /// nothing more to take now.
    pub fn trim_cache(&mut self, now: Instant, most: usize, bare: &mut Vec<Frame>) -> bool {
        if !self.cache.as_ref().is_some_and(|cache| cache.contents.is_above_size()) {
            return false;
        }
        assert!(self.actions.is_empty(), "a copy of what is taken back may be under way");
        self.record(|j| j.trim_cache(now, most));
        let Some(cache) = &mut self.cache else { return false };
        let before = bare.len();
        cache.contents.trim(now, most, bare);
        bare.len() > before && cache.contents.is_above_size()
    }

    /// When the prefetcher wants to look at its streams.
    pub fn next_prefetch(&self) -> Option<Instant> {
        self.cache.as_ref().and_then(|cache| cache.contents.next_wake())
    }

    /// Is there a cache?
    pub fn has_cache(&self) -> bool {
        self.cache.is_some()
    }
    /// The prefetcher's specification; empty without a cache.
    pub fn prefetcher(&self) -> &str {
        self.cache.as_ref().map_or("", |cache| &cache.spec)
    }
    /// Bytes of data that the cache keeps at most.
    pub fn cache_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.contents.capacity_bytes())
    }
    /// Bytes of data that it could keep if [`Stack::resize_cache`] allows it.
    pub fn cache_room_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.contents.room_bytes())
    }
    /// Bytes of the engine's memory that the cache has.
    pub fn cache_backed_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.contents.backed_bytes())
    }
    /// Reads into the cache under way.
    pub fn fetching(&self) -> usize {
        self.cache.as_ref().map_or(0, CacheStage::fetching)
    }
    /// A read into the cache under way, which a [`super::Target`] names.
    ///
    /// # Panics
    /// Without a cache.
    pub fn fetch(&self, id: FetchId) -> &Fetch {
        self.cache.as_ref().expect("a fetch needs a cache").contents.fetch(id)
    }
    /// Bytes of a VM's disk that are cached, or on their way.
    pub fn resident_bytes(&self, vm: VmId) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.contents.resident_bytes(vm))
    }
    /// Gives the usage of the cache by each process of each VM, in a fixed order.
    pub fn cache_usage(&self, sink: &mut dyn FnMut(VmId, Option<ProcessTag>, &Usage)) {
        if let Some(cache) = &self.cache {
            cache.contents.usage(sink);
        }
    }
    /// The streams that the prefetcher follows; none without a cache.
    pub fn streams(&self, sink: &mut dyn FnMut(&Stream)) {
        if let Some(cache) = &self.cache {
            cache.contents.streams(sink);
        }
    }
    /// The prefetcher's own metrics.
    pub fn prefetcher_metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        if let Some(cache) = &self.cache {
            cache.contents.prefetcher_metrics(sink);
        }
    }
}

/// Does it change what the disk reads as?
fn changes(op: Op) -> bool {
    matches!(op, Op::Write | Op::Discard | Op::WriteZeroes)
}

/// The frames that a sub-range of a fetch's extent lies in, and the bytes to skip in the first.
pub fn frames_of(fetch: &Fetch, part: Extent) -> (&[Frame], usize) {
    let (begin, end) = blocks_of(part);
    let origin = fetch.extent.start().get() / BLOCK_SECTORS;
    let skip = (part.start().get() % BLOCK_SECTORS) * seekway_core::units::SECTOR_BYTES;
    (&fetch.frames[(begin - origin) as usize..(end - origin) as usize], skip as usize)
}

// Reads into the cache from their beginning to their end: as calls of no guest,
// in the background or not, taken over by guests, taken back, and handed to
// those who wait for them.

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

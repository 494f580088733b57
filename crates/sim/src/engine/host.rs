//! The host's side of a run: the cache between guests' reads and the
//! dispatcher, the prefetcher that fills it, and the time that both take on the
//! host. The cache's own text (`seekway_policy::cache`) states the steps.

use super::bandwidth;
use super::inlet::{Inlet, Owner};
use crate::metrics::{HostResult, ProcessUsage, VmHost};
use seekway_device::DeviceModel;
use seekway_policy::cache::{Config, FetchId, HostCache, Piece};
use seekway_policy::params::ParamError;
use seekway_policy::request::{Extent, Op, ProcessTag, RequestId, VmId};
use seekway_policy::units::{Instant, Nanos, Sectors};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::num::NonZeroU32;

/// What the cache and the prefetcher cost on the host, on one thread, as the
/// daemon has one for each device. Work there queues; the device's own reads do
/// not wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostCosts {
    /// A guest's read, wherever its data comes from: look-up, answer, notification.
    pub request: Nanos,
    /// A command to the device, demand's or a prefetch's: submission and completion.
    pub command: Nanos,
    /// Copy of what guests get of the cache, bytes a second.
    pub copy_bytes_per_s: u64,
    /// A read that cache and prefetcher are told of.
    pub event: Nanos,
    /// A poll of a prefetcher that asked to be woken (its interval).
    pub poll: Nanos,
    /// The same for each read since the last poll.
    pub poll_event: Nanos,
}

impl Default for HostCosts {
    /// Assumed, not measured: 5 µs for a request through a vring without its
    /// wake-ups, 3 µs for io_uring's share of an I/O, 8 GB/s for a copy between two places in memory by one core,
    /// 0.3 µs as the bound that the cache's bookkeeping has to keep at a million
    /// blocks, and 50 µs for a timer's wake-up and a pass over the streams.
    fn default() -> Self {
        HostCosts {
            request: Nanos::from_micros(5),
            command: Nanos::from_micros(3),
            copy_bytes_per_s: 8_000_000_000,
            event: Nanos::new(300),
            poll: Nanos::from_micros(50),
            poll_event: Nanos::new(300),
        }
    }
}

impl HostCosts {
    fn copy(&self, len: Sectors) -> Nanos {
        Nanos::new(len.bytes()).scaled(1_000_000_000, self.copy_bytes_per_s.max(1))
    }
}

/// A host cache for a run.
pub struct Host {
    /// The cache, empty and without VMs: the run attaches them.
    pub cache: HostCache,
    /// What it costs.
    pub costs: HostCosts,
    /// The prefetcher's specification, for the result.
    pub prefetch: String,
    /// What the cache was told that the device reads at best, bytes a second.
    pub bandwidth: u64,
}

impl Host {
    /// A cache with the prefetcher `prefetch` (see `seekway_policy::prefetchers`).
    /// Its bandwidth is measured on `like`, a new device like the one of the run.
    pub fn new(
        config: Config,
        prefetch: &str,
        costs: HostCosts,
        like: Box<dyn DeviceModel>,
    ) -> Result<Host, ParamError> {
        let mut cache = HostCache::new(config, prefetch)?;
        let bandwidth = bandwidth::measure(like);
        cache.set_bandwidth(bandwidth);
        Ok(Host { cache, costs, prefetch: prefetch.into(), bandwidth })
    }
}

/// Names a guest's read until it is answered. Dense and used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ReadId(u32);

/// A guest's read that came to the cache.
#[derive(Clone, Copy)]
pub(super) struct GuestRead {
    /// Whose request it is, and the source's token.
    pub(super) source: u32,
    pub(super) token: u64,
    pub(super) vm: VmId,
    pub(super) arrived: Instant,
    pub(super) bytes: u64,
    /// Direct pieces and waits that have not ended.
    pending: u32,
    /// When the host has done its part so far.
    ready: Instant,
}

impl GuestRead {
    /// Not begun yet.
    pub(super) fn new(source: u32, token: u64, vm: VmId, now: Instant, bytes: u64) -> Self {
        GuestRead { source, token, vm, arrived: now, bytes, pending: 0, ready: now }
    }
}

/// The one thread of the host, which is busy up to some time.
#[derive(Default)]
struct Thread {
    free: Instant,
    busy: Nanos,
}

impl Thread {
    /// Work that comes at `now`: when it is done.
    fn work(&mut self, now: Instant, cost: Nanos) -> Instant {
        self.free = self.free.max(now) + cost;
        self.busy += cost;
        self.free
    }
}

/// The cache in a run.
pub(super) struct HostSide {
    cache: HostCache,
    vms: u16,
    costs: HostCosts,
    prefetch: String,
    bandwidth: u64,
    thread: Thread,
    reads: Vec<Option<GuestRead>>,
    free: Vec<u32>,
    /// Reads that are done, by the time at which the guest has them.
    answers: BinaryHeap<Reverse<(Instant, u64, ReadId)>>,
    /// Answers so far: those of one instant keep their order.
    answered: u64,
    /// Fetches of the background class, with their requests.
    prefetches: BTreeMap<FetchId, RequestId>,
    /// Reads since the prefetcher was last polled, and the time that it had
    /// asked for then.
    events: u64,
    /// When it wants to be polled next.
    named: Option<Instant>,
    polled_for: Option<Instant>,
    polls: u64,
    pieces: Vec<Piece>,
}

impl HostSide {
    pub(super) fn new(host: Host) -> Self {
        let Host { cache, costs, prefetch, bandwidth } = host;
        HostSide {
            cache,
            vms: 0,
            costs,
            prefetch,
            bandwidth,
            thread: Thread::default(),
            reads: Vec::new(),
            free: Vec::new(),
            answers: BinaryHeap::new(),
            answered: 0,
            prefetches: BTreeMap::new(),
            events: 0,
            named: None,
            polled_for: None,
            polls: 0,
            pieces: Vec::new(),
        }
    }

    /// VMs come in the order of their numbers.
    pub(super) fn attach(&mut self, vm: VmId, weight: NonZeroU32, capacity: Sectors) {
        self.vms += 1;
        self.cache.attach(Instant::ZERO, vm, weight, capacity);
    }

    /// A guest reads `extent` of its disk.
    pub(super) fn read(
        &mut self,
        now: Instant,
        inlet: &mut Inlet,
        read: GuestRead,
        tag: Option<ProcessTag>,
        extent: Extent,
    ) {
        let vm = read.vm;
        let id = self.begin(read);
        let mut pieces = std::mem::take(&mut self.pieces);
        self.cache.read(now, vm, tag, extent, u64::from(id.0), &mut pieces);
        self.count_event();
        let mut cost = self.costs.event + self.costs.request;
        let mut pending = 0;
        for &piece in &pieces {
            pending += !matches!(piece, Piece::Cached(_)) as u32;
            match piece {
                Piece::Cached(part) => cost += self.costs.copy(part.len()),
                Piece::Wait(fetch, _) => self.promote(now, inlet, fetch, tag),
                Piece::Fetch(fetch, _) => {
                    let extent = self.cache.fetch(fetch).extent;
                    inlet.read(now, vm, tag, extent, Owner::Fetch(fetch));
                    cost += self.costs.command;
                }
                Piece::Direct(part) => {
                    inlet.read(now, vm, tag, part, Owner::Direct(id));
                    cost += self.costs.command;
                }
            }
        }
        pieces.clear();
        self.pieces = pieces;
        // A guest that only hits must not stop time, whatever the costs are.
        let ready = self.thread.work(now, cost.max(Nanos::new(1)));
        let read = self.reads[id.0 as usize].as_mut().expect("it has just begun");
        (read.pending, read.ready) = (pending, ready);
        if pending == 0 {
            self.answer_at(ready, id);
        }
    }

    fn begin(&mut self, read: GuestRead) -> ReadId {
        let slot = self.free.pop().unwrap_or(self.reads.len() as u32);
        if slot as usize == self.reads.len() {
            self.reads.push(None);
        }
        self.reads[slot as usize] = Some(read);
        ReadId(slot)
    }

    /// A prefetch that a guest waits for: if it still waits itself it becomes
    /// the guest's own read.
    fn promote(
        &mut self,
        now: Instant,
        inlet: &mut Inlet,
        fetch: FetchId,
        tag: Option<ProcessTag>,
    ) {
        let Some(&request) = self.prefetches.get(&fetch) else { return };
        if inlet.dispatcher.withdraw(now, request) {
            self.prefetches.remove(&fetch);
            let (vm, extent) = (self.cache.fetch(fetch).vm, self.cache.fetch(fetch).extent);
            inlet.read(now, vm, tag, extent, Owner::Fetch(fetch));
            self.cache.promoted(fetch);
        }
    }

    fn answer_at(&mut self, at: Instant, id: ReadId) {
        self.answers.push(Reverse((at, self.answered, id)));
        self.answered += 1;
    }

    /// One of the things that a read waits for has come; the host is done with it at `ready`.
    fn came(&mut self, id: ReadId, ready: Instant) {
        let read = self.reads[id.0 as usize].as_mut().expect("the read waits for it");
        read.pending -= 1;
        read.ready = read.ready.max(ready);
        if read.pending == 0 {
            let at = read.ready;
            self.answer_at(at, id);
        }
    }

    /// A direct piece of a read is done.
    pub(super) fn direct_done(&mut self, now: Instant, id: ReadId) {
        self.came(id, now);
    }

    /// A read into the cache is done.
    pub(super) fn fetch_done(&mut self, now: Instant, id: FetchId) {
        self.prefetches.remove(&id);
        for n in 0..self.cache.fetch(id).waiters.len() {
            let waiter = self.cache.fetch(id).waiters[n];
            let ready = self.thread.work(now, self.costs.copy(waiter.extent.len()));
            self.came(ReadId(waiter.token as u32), ready);
        }
        self.cache.fetched(now, id, true);
    }

    /// A read that its guest has by now.
    pub(super) fn pop_answer(&mut self, now: Instant) -> Option<GuestRead> {
        let &Reverse((at, _, id)) = self.answers.peek()?;
        if at > now {
            return None;
        }
        self.answers.pop();
        self.free.push(id.0);
        self.reads[id.0 as usize].take()
    }

    /// A guest changes `extent` of its disk.
    pub(super) fn write(&mut self, now: Instant, vm: VmId, op: Op, extent: Extent) {
        if changes(op) {
            self.cache.write(now, vm, extent);
        }
    }

    /// It is done.
    pub(super) fn written(&mut self, vm: VmId, op: Op, extent: Extent) {
        if changes(op) {
            self.cache.written(vm, extent);
        }
    }

    /// Take prefetches back where demand wants the device, else begin what there
    /// is room for. True when any has arrived at the dispatcher.
    pub(super) fn prefetch(&mut self, now: Instant, inlet: &mut Inlet) -> bool {
        // A poll looks at what was read whether or not there is room for what it finds.
        self.charge_poll(now);
        if inlet.dispatcher.is_crowded() {
            self.drop_waiting(now, inlet);
            return false;
        }
        let mut any = false;
        loop {
            let room = inlet.dispatcher.background_room();
            if room == 0 {
                return any;
            }
            let Some(id) = self.cache.propose(now, room) else { return any };
            let fetch = self.cache.fetch(id);
            let (vm, tag, extent) = (fetch.vm, fetch.tag, fetch.extent);
            let request = inlet.read_ahead(now, vm, tag, extent, Owner::Fetch(id));
            self.prefetches.insert(id, request);
            self.thread.work(now, self.costs.command);
            any = true;
        }
    }

    fn drop_waiting(&mut self, now: Instant, inlet: &mut Inlet) {
        let HostSide { prefetches, cache, .. } = self;
        prefetches.retain(|&id, &mut request| {
            let taken = inlet.dispatcher.withdraw(now, request);
            if taken {
                cache.dropped(now, id);
            }
            !taken
        });
    }

    /// What a poll looks at are the reads since its time was named.
    fn count_event(&mut self) {
        self.events += 1;
        let wake = self.cache.next_wake();
        if wake != self.named {
            (self.named, self.events) = (wake, 1);
        }
    }

    /// The time has come that the prefetcher had named: that is its poll.
    fn charge_poll(&mut self, now: Instant) {
        let wake = self.cache.next_wake().filter(|&at| at <= now);
        if wake.is_some() && wake != self.polled_for {
            let events = self.costs.poll_event.scaled(self.events, 1);
            self.thread.work(now, self.costs.poll + events);
            self.polls += 1;
            self.events = 0;
            self.polled_for = wake;
        }
    }

    /// When the next read is answered.
    pub(super) fn next_answer(&self) -> Option<Instant> {
        self.answers.peek().map(|Reverse((at, ..))| *at)
    }

    /// When the prefetcher is to be polled. One that is overdue waits for room
    /// in the background, which some event will make.
    pub(super) fn next_poll(&self, now: Instant) -> Option<Instant> {
        self.cache.next_wake().filter(|&at| at > now)
    }

    /// Guests' reads that have no answer yet: VM and arrival.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (usize, Instant)> {
        self.reads.iter().flatten().map(|r| (r.vm.index(), r.arrived))
    }

    /// What came of it so far, and each VM's part.
    pub(super) fn result(&self) -> (HostResult, Vec<VmHost>) {
        let mut result = HostResult {
            prefetch: self.prefetch.clone(),
            cache_bytes: self.cache.capacity_bytes(),
            bandwidth: self.bandwidth,
            usage: Default::default(),
            busy: self.thread.busy,
            polls: self.polls,
            metrics: Vec::new(),
        };
        let vm = |n: u16| {
            let resident_bytes = self.cache.resident_bytes(VmId::new(n));
            VmHost { resident_bytes, ..VmHost::default() }
        };
        let mut vms: Vec<VmHost> = (0..self.vms).map(vm).collect();
        self.cache.usage(&mut |vm, tag, usage| {
            result.usage += usage;
            vms[vm.index()].usage += usage;
            vms[vm.index()].processes.push(ProcessUsage { tag, usage: *usage });
        });
        self.cache.streams(&mut |s| vms[s.vm.index()].streams.push(*s));
        self.cache.prefetcher_metrics(&mut |name, value| result.metrics.push((name, value)));
        (result, vms)
    }
}

/// Does it change what the disk reads as?
fn changes(op: Op) -> bool {
    matches!(op, Op::Write | Op::Discard | Op::WriteZeroes)
}

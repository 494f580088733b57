//! The last stage of the [stack](crate::stack), one for each physical device. It holds
//! every invariant that no policy may break, coalesces adjacent dispatches
//! into one command, orders barriers, and measures what is the same for all
//! policies. The crate's documentation states the run loop.

mod commands;
mod holds;
mod merges;
mod vms;

use commands::{Answer, Load, Room, Split, Unit, fits, grow};
use holds::Holds;
pub use holds::{Cause, HoldStats, Withheld};
use merges::Merges;
use seekway_core::queues::{ExpiryQueue, Links, Slots};
use seekway_core::request::{Completion, Extent, Op, ProcessTag, Request, RequestId, VmId};
use seekway_core::scheduler::{DeviceProfile, Scheduler};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::collections::{BTreeSet, VecDeque};
use vms::{AttachedVm, Dues, Rivals, Slot, State, Table, Turn};

/// Commands that go by the policy's choice between two that are forced.
const FORCED_EVERY: u32 = 4;

/// Flushes, discards and write-zeroes in a row while reads and writes wait: a
/// guest that always has some would keep the others from the device.
const BARRIERS_IN_ROW: u32 = 16;

// Types that go into a dispatcher and come out of it, and its limits.

/// Requests that may be outstanding on one device. [`Dispatcher::arrive`]
/// panics beyond it: engines bound their queues well below.
pub const OUTSTANDING_MAX: usize = 1 << 22;

/// VMs on one device.
pub const VMS_MAX: usize = 4096;

/// The default of [`Config::coalesce`]: 512 KiB, Linux's usual limit
/// (`max_sectors_kb`).
pub const COALESCE_DEFAULT: Sectors = Sectors::new(1024);

/// The dispatcher's settings for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Commands that the device takes at once, at least 1.
    pub depth: u32,
    /// Longest command that adjacent requests are coalesced into; zero never
    /// coalesces. A single request longer than this still goes whole, unless the policy splits it.
    pub coalesce: Sectors,
    /// Requests are merged up to `coalesce` as they arrive, before the policy sees them, if it
    /// takes merged requests ([`Scheduler::merged`]).
    pub merge: bool,
    /// A request that has waited longer is dispatched whatever the policy says.
    pub hard_limit: Nanos,
    /// The tags of the device's own queue, where they are known.
    pub tags: Option<Tags>,
}

/// A device's own queue. A command takes a tag of it, a long one several; whoever sends one
/// while all are taken may have to sleep until another command is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tags {
    /// Number of tags.
    pub count: u32,
    /// The longest that one may be for; zero counts as one.
    pub sectors: Sectors,
}

impl Tags {
    /// Number of tags for us: three quarters. The others are for the host's own requests, and for
    /// schedulers of the kernel that keep writes from taking all.
    fn ours(self) -> u64 {
        (u64::from(self.count) / 4 * 3).max(1)
    }

    /// The longest command that our tags are enough for, in units of 4 KiB, at least one.
    pub fn command_max(self) -> Sectors {
        Sectors::new((self.ours().saturating_mul(self.sectors.get()) / 8 * 8).max(8))
    }
}

impl Default for Config {
    fn default() -> Self {
        let hard_limit = Nanos::from_secs(30);
        Config { depth: 1, coalesce: COALESCE_DEFAULT, merge: false, hard_limit, tags: None }
    }
}

/// A request as it reaches the dispatcher, already mapped to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The VM that sends it; it has to be attached before.
    pub vm: VmId,
    /// Which process inside the guest, if known.
    pub tag: Option<ProcessTag>,
    /// Operation; policies see reads and writes only.
    pub op: Op,
    /// Does somebody wait for it?
    pub sync: bool,
    /// The sectors of the device; says nothing for a flush.
    pub extent: Extent,
}

/// The engine's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this command to the device. Its extent covers all of
    /// [`Dispatcher::members`]. Its id is that of its
    /// first request, or one of its own when that is a part of a request; it is
    /// good until the command completes.
    Dispatch(Request),
    /// Poll again then, unless an input comes before.
    WakeAt(Instant),
    /// Poll again after the next input.
    Idle,
}

/// A command that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletedCommand {
    /// The VM of its requests.
    pub vm: VmId,
    /// The operation, the same for all of its requests.
    pub op: Op,
    /// When it was dispatched.
    pub dispatched: Instant,
    /// From the later of that and the device's previous completion.
    pub service: Nanos,
}

/// Counts of what has passed through a dispatcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Guests' requests dispatched, each once however many parts it went in.
    pub requests: u64,
    /// Commands that they were coalesced into or split into.
    pub commands: u64,
    /// Requests taken from the policy because of the hard limit.
    pub forced: u64,
    /// Requests of the background class dispatched, counted in neither of the first two.
    pub background: u64,
    /// Commands that they were coalesced into.
    pub background_commands: u64,
    /// Bytes that these read.
    pub background_bytes: u64,
    /// Requests of the background class taken back before they reached the device.
    pub withdrawn: u64,
}

/// The dispatcher of one device.
pub struct Dispatcher {
    scheduler: Box<dyn Scheduler>,
    profile: DeviceProfile,
    config: Config,
    slots: Table,
    /// Requests of which a part has gone.
    splits: Slots<Split>,
    /// The attached VMs by number.
    vms: Vec<Option<AttachedVm>>,
    /// Requests that the policy holds.
    queued: usize,
    /// Weights of the VMs that have some of them.
    waiting_weight: u64,
    /// All queued requests, oldest first.
    by_age: ExpiryQueue,
    links: Links,
    adjacency: Adjacency,
    merges: Merges,
    barriers: Barriers,
    dues: Dues,
    background: Background,
    /// When demand was last seen: an arrival or a completion.
    last_demand: Instant,
    /// Barriers dispatched since the last read or write that was.
    barriers_in_row: u32,
    /// Handed out by the policy as a continuation that was none.
    staged: Option<Unit>,
    load: Load,
    room: Room,
    last_completion: Instant,
    /// The policy's answer to [`Scheduler::wants_full`].
    wants_full: bool,
    /// Commands, and holds of an idle device, since the last forced command.
    since_forced: u32,
    holds: Holds,
    stats: Stats,
}

impl Dispatcher {
    /// A dispatcher for an idle device without VMs. `config.depth` of zero counts as one.
    pub fn new(mut scheduler: Box<dyn Scheduler>, profile: DeviceProfile, config: Config) -> Self {
        scheduler.takes_over(&profile);
        Dispatcher {
            wants_full: scheduler.wants_full(),
            room: Room::new(config.tags, profile.stripe),
            scheduler,
            profile,
            config: Config { depth: config.depth.max(1), ..config },
            slots: Table::default(),
            splits: Slots::new(),
            vms: Vec::new(),
            queued: 0,
            waiting_weight: 0,
            by_age: ExpiryQueue::new(),
            links: Links::new(),
            adjacency: Adjacency::default(),
            merges: Merges::default(),
            barriers: Barriers::default(),
            dues: Dues::default(),
            background: Background::default(),
            last_demand: Instant::ZERO,
            barriers_in_row: 0,
            staged: None,
            load: Load::default(),
            last_completion: Instant::ZERO,
            since_forced: FORCED_EVERY,
            holds: Holds::default(),
            stats: Stats::default(),
        }
    }

    /// A request of a guest. Panics when its VM is not attached or
    /// [`OUTSTANDING_MAX`] is exceeded. The id is good until the completion.
    pub fn arrive(&mut self, now: Instant, arrival: Arrival) -> RequestId {
        let Arrival { vm, tag, op, sync, extent } = arrival;
        assert!(self.is_attached(vm), "request of {vm:?}, which is not attached");
        let id = self.slots.allocate(now, arrival);
        self.last_demand = now;
        let request = Request { id, vm, tag, op, sync, extent, arrived: now };
        match op {
            Op::Flush => {
                self.merges.flush(vm, self.slots[id].serial);
                self.barriers.flush(vm, id);
            }
            Op::Discard | Op::WriteZeroes => self.push_barrier(request),
            Op::Read | Op::Write => {
                self.dues.wants(now, vm);
                let serial = self.slots[id].serial;
                if self.barriers.is_empty() || !self.barriers.blocks(serial, &request) {
                    self.admit(now, id);
                }
            }
        }
        id
    }

    /// The command that was dispatched as `id` is done: each request that is done
    /// by it is appended to `done`. A request that went in parts is done when all
    /// of them are. Panics when `id` is not a command in flight.
    pub fn complete(
        &mut self,
        now: Instant,
        id: RequestId,
        ok: bool,
        done: &mut Vec<Completion>,
    ) -> CompletedCommand {
        assert!(self.is_in_flight(id), "{id:?} is not a command in flight");
        let first = &self.slots[id];
        let (Request { vm, op, .. }, dispatched) = (first.request, first.dispatched);
        let mut service = now.since(dispatched.max(self.last_completion));
        let served = CompletedCommand { vm, op, dispatched, service };
        self.last_completion = now;
        self.load.commands -= 1;
        self.load.unseen -= u32::from(!first.seen);
        // The slots are free again by the time that the policy is told.
        let background = first.background.then_some((first.request, first.known));
        let (mut members, mut len) = (0, Sectors::ZERO);
        let mut next = Some(id);
        while let Some(member) = next {
            let slot = &self.slots[member];
            next = slot.next;
            let (request, dispatched) = (slot.request, slot.dispatched);
            let end = Completion { request, command: id, last: true, dispatched, service, ok };
            if let Some(leader) = slot.leader {
                self.merged_end(now, leader, &end);
            }
            service = Nanos::ZERO;
            members += 1;
            len += request.extent.len();
            self.finish(now, member, &end, done);
        }
        self.room.leave(op, len);
        match background {
            Some((request, known)) => {
                self.background_ends(now, request, len, known.then_some(dispatched));
            }
            None => {
                self.load.requests -= members;
                self.last_demand = now;
                self.account(now, &served);
            }
        }
        served
    }

    /// A command of demand is done: barriers are charged, and others' reads and writes pay for
    /// the next ones.
    fn account(&mut self, now: Instant, served: &CompletedCommand) {
        let CompletedCommand { vm, op, service, .. } = *served;
        let of = self.vms.get(vm.index()).and_then(Option::as_ref);
        let weight = of.map_or(1, AttachedVm::weight);
        if op.is_data() {
            let waits = of.is_some_and(|vm| vm.queued() > 0);
            let weights = self.waiting_weight + if waits { 0 } else { weight };
            self.dues.served(vm, service, weights);
            return self.dues.wants(now, vm);
        }
        if of.is_some() {
            self.dues.charge(vm, service, weight);
        }
        if op == Op::Flush {
            self.barriers.flushed(vm);
        }
    }

    /// The engine's next step. Poll until the answer is not a dispatch.
    pub fn poll(&mut self, now: Instant) -> Output {
        let output = self.poll_once(now);
        if let Output::Dispatch(command) = output {
            self.room.enter(command.op, command.extent.len());
            return output;
        }
        match (output, self.barrier_due(now)) {
            (Output::WakeAt(at), Some(due)) => Output::WakeAt(at.min(due)),
            (Output::Idle, Some(due)) => Output::WakeAt(due),
            _ => output,
        }
    }

    fn poll_once(&mut self, now: Instant) -> Output {
        if self.is_full() {
            if self.wants_full && self.queued > 0 {
                let view = self.load.view(&self.config, &self.profile);
                self.scheduler.full(now, &view);
            }
            return Output::Idle;
        }
        let turn = self.barriers_in_row < BARRIERS_IN_ROW;
        if turn && let Some(barrier) = self.next_barrier(now) {
            return self.dispatch(now, barrier);
        }
        if let Some(staged) = self.staged.take() {
            return self.dispatch(now, staged);
        }
        if let Some(id) = self.overdue(now) {
            let forced = self.force(now, id);
            let output = self.dispatch(now, forced);
            self.since_forced = 0;
            return output;
        }
        match self.ask(now) {
            Answer::Send(unit) => self.dispatch(now, unit),
            // The policy has had its chance.
            _ if !turn && let Some(barrier) = self.next_barrier(now) => self.dispatch(now, barrier),
            Answer::Hold { until, why } => {
                if self.load.commands == 0 {
                    self.holds.hold(now, until, why);
                    self.since_forced = self.since_forced.saturating_add(1);
                } else {
                    self.holds.end(now, None);
                }
                let limit = self.limit().filter(|&limit| now < limit);
                Output::WakeAt(limit.map_or(until, |limit| limit.min(until)))
            }
            Answer::Wait { until, why } => {
                self.holds.wait(now, why);
                let limit = self.limit().filter(|&limit| now < limit);
                limit.into_iter().chain(until).min().map_or(Output::Idle, Output::WakeAt)
            }
            Answer::Idle if self.background.is_empty() => Output::Idle,
            Answer::Idle => self.poll_background(now),
        }
    }

    /// The next barrier that may go.
    #[inline]
    fn next_barrier(&mut self, now: Instant) -> Option<Unit> {
        if self.barriers.is_empty() { None } else { self.first_barrier(now) }
    }

    fn first_barrier(&mut self, now: Instant) -> Option<Unit> {
        // Out of the way, to look at the rest meanwhile.
        let mut barriers = std::mem::take(&mut self.barriers);
        let may_go = |vm: VmId, id: RequestId| {
            let limit = self.slots[id].request.arrived + self.config.hard_limit;
            self.turn_of(now, vm) == Turn::Now || now > limit
        };
        let next = barriers.next(may_go);
        self.barriers = barriers;
        let id = next?;
        self.dues.goes(self.slots[id].request.vm);
        Some(Unit { id, most: Sectors::ZERO })
    }

    /// Is it a VM's turn to send a barrier?
    fn turn_of(&self, now: Instant, vm: VmId) -> Turn {
        let of = self.vms[vm.index()].as_ref();
        if of.is_some_and(AttachedVm::is_leaving) {
            return Turn::Now;
        }
        let rivals = Rivals {
            queued: self.queued > of.map_or(0, AttachedVm::queued),
            room: self.load.commands + 1 < self.config.depth,
            idle_since: self.last_completion,
        };
        self.dues.turn(now, vm, of.map_or(1, AttachedVm::weight), rivals)
    }

    /// When a barrier may go that waits for other VMs to be quiet, if there is room for it.
    fn barrier_due(&self, now: Instant) -> Option<Instant> {
        if self.barriers.is_empty() || self.is_full() {
            return None;
        }
        let due = |vm: VmId| match self.turn_of(now, vm) {
            Turn::At(at) => Some(at),
            Turn::Now | Turn::Later => None,
        };
        self.barriers.ready_vms().filter_map(due).min()
    }

    /// When the oldest request is past the hard limit.
    fn limit(&self) -> Option<Instant> {
        let oldest = &self.slots[self.by_age.head()?].request;
        Some(oldest.arrived + self.config.hard_limit + Nanos::new(1))
    }

    /// The oldest request when it is past the hard limit. Only every fifth
    /// command, so that an overloaded device does not degrade to a FIFO.
    fn overdue(&mut self, now: Instant) -> Option<RequestId> {
        self.by_age.head().filter(|_| {
            self.since_forced >= FORCED_EVERY && self.limit().is_some_and(|limit| limit <= now)
        })
    }

    /// Hand a request to the policy, or what is left of it.
    fn enqueue(&mut self, now: Instant, id: RequestId) {
        let slot = &mut self.slots[id];
        slot.state = State::Queued;
        let mut request = slot.request;
        if slot.split {
            request.extent = self.left(id);
        }
        self.count_queued(now, request.vm);
        self.by_age.push(&mut self.links, id);
        self.index(id, request.extent);
        self.scheduler.arrived(now, request);
    }

    /// A barrier is pending from its arrival on, behind earlier ones too: what
    /// comes later and overlaps finds it.
    fn push_barrier(&mut self, request: Request) {
        let serial = self.slots[request.id].serial;
        let earlier = |s: &&Slot| {
            s.state != State::Background
                && s.serial < serial
                && s.request.op != Op::Flush
                && s.request.extent.overlaps(request.extent)
        };
        let of_vm = self.slots.of_vm(request.vm);
        let waits_for = of_vm.filter(earlier).map(|s| s.request.id).collect();
        self.barriers.push(request, serial, waits_for);
    }

    /// A request of a command is done, or a part of one: tell the policy and the
    /// engine, let go what waited for it.
    #[inline]
    fn finish(
        &mut self,
        now: Instant,
        member: RequestId,
        end: &Completion,
        done: &mut Vec<Completion>,
    ) {
        let slot = &self.slots[member];
        if slot.part {
            let Some(whole) = self.finish_part(now, member, *end) else { return };
            done.push(whole);
        } else {
            if slot.known && !slot.background && slot.leader.is_none() {
                self.scheduler.completed(now, end);
            }
            self.slots.release(member);
            done.push(*end);
        }
        if self.barriers.is_empty() {
            return;
        }
        for freed in self.barriers.done(end.request.id) {
            let Slot { request, serial, .. } = self.slots[freed];
            if !self.barriers.blocks(serial, &request) {
                self.admit(now, freed);
            }
        }
    }

    /// The members of the command in flight that was dispatched as `id`,
    /// ascending and adjacent: requests, and parts of requests. Of a part, the id
    /// is that of the whole request and the extent is the part's; the extent of
    /// [`Dispatcher::request`] tells which part of it that is.
    pub fn members(&self, id: RequestId) -> impl Iterator<Item = &Request> + '_ {
        let mut at = Some(id);
        std::iter::from_fn(move || {
            let slot = &self.slots[at?];
            at = slot.next;
            Some(&slot.request)
        })
    }

    /// A request that has arrived and not completed, as it arrived.
    pub fn request(&self, id: RequestId) -> &Request {
        &self.slots[id].request
    }

    /// Is this a command on the device?
    pub fn is_in_flight(&self, id: RequestId) -> bool {
        let slot = self.slots.get(id);
        slot.is_some_and(|s| s.leads && s.state == State::InFlight)
    }
    /// The requests that have arrived and not completed, in no stated order.
    pub fn waiting(&self) -> impl Iterator<Item = &Request> {
        self.slots.requests().map(|s| &s.request)
    }
    /// Requests that have arrived and not completed.
    pub fn outstanding(&self) -> usize {
        self.slots.len()
    }
    /// Does the device hold all that it may?
    fn is_full(&self) -> bool {
        self.load.commands >= self.config.depth || self.room.is_full()
    }
    /// Commands on the device.
    pub fn in_flight(&self) -> u32 {
        self.load.commands
    }
    /// The sector after the last one dispatched.
    pub fn head(&self) -> Lba {
        self.load.head
    }
    /// The device's profile as policies see it.
    pub fn profile(&self) -> &DeviceProfile {
        &self.profile
    }
    /// Counts since the dispatcher was made.
    pub fn stats(&self) -> Stats {
        self.stats
    }
    /// Time withheld by cause.
    pub fn holds(&self) -> &HoldStats {
        &self.holds.stats
    }
    /// The policy's own metrics.
    pub fn policy_metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        self.scheduler.metrics(sink);
    }
    /// The policy's own metrics of each VM.
    pub fn vm_metrics(&self, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        self.scheduler.vm_metrics(sink);
    }
}

// Which queued request of a VM starts at a given sector? Asked after every
// dispatch, to know whether the policy has to be asked for a continuation.

/// Requests of one bucket that are looked at. Guests choose where requests
/// start, so they can put all of theirs into one bucket: what they lose is that
/// their own requests are coalesced. In an ordinary bucket there are one or two.
const PROBES_MAX: usize = 16;

/// Buckets of an empty table.
const BUCKETS_MIN: usize = 16;

/// Hash tables from first sector to queued requests, one for each VM, chained
/// through [`Links`]. No order shows: they answer yes or no.
#[derive(Default)]
struct Adjacency {
    /// By number of the VM.
    tables: Vec<HashTable>,
    links: Links,
    /// VM and first sector by slot, to compare and to grow without the requests.
    keys: Vec<(VmId, Lba)>,
}

/// The queued requests of one VM.
struct HashTable {
    /// Always a power of two.
    buckets: Vec<ExpiryQueue>,
    len: usize,
}

impl HashTable {
    fn new() -> Self {
        HashTable { buckets: vec![ExpiryQueue::new(); BUCKETS_MIN], len: 0 }
    }

    fn bucket(&self, start: Lba) -> usize {
        // Fibonacci hashing: sectors come in strides of powers of two.
        let hash = start.get().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> 32) as usize & (self.buckets.len() - 1)
    }

    fn grow(&mut self, links: &mut Links, keys: &[(VmId, Lba)]) {
        let queued: Vec<RequestId> =
            self.buckets.iter().flat_map(|b| b.iter(links).collect::<Vec<_>>()).collect();
        self.buckets = vec![ExpiryQueue::new(); self.buckets.len() * 2];
        for id in queued {
            let bucket = self.bucket(keys[id.slot()].1);
            self.buckets[bucket].push(links, id);
        }
    }
}

impl Adjacency {
    #[inline]
    fn insert(&mut self, vm: VmId, id: RequestId, start: Lba) {
        if vm.index() >= self.tables.len() {
            self.tables.resize_with(vm.index() + 1, HashTable::new);
        }
        let table = &mut self.tables[vm.index()];
        if table.len >= table.buckets.len() {
            table.grow(&mut self.links, &self.keys);
        }
        let slot = id.slot();
        if slot >= self.keys.len() {
            self.keys.resize(slot + 1, (vm, start));
        }
        self.keys[slot] = (vm, start);
        let bucket = table.bucket(start);
        table.buckets[bucket].push(&mut self.links, id);
        table.len += 1;
    }

    /// Take out a request that was inserted.
    #[inline]
    fn remove(&mut self, id: RequestId) {
        let (vm, start) = self.keys[id.slot()];
        let table = &mut self.tables[vm.index()];
        let bucket = table.bucket(start);
        table.buckets[bucket].remove(&mut self.links, id);
        table.len -= 1;
    }

    /// The queued requests of `vm` that start at `lba`, as far as the first
    /// [`PROBES_MAX`] of its bucket go.
    fn at(&self, vm: VmId, lba: Lba) -> impl Iterator<Item = RequestId> + '_ {
        self.probes(vm, lba).filter(move |id| self.keys[id.slot()].1 == lba)
    }

    fn probes(&self, vm: VmId, lba: Lba) -> impl Iterator<Item = RequestId> + '_ {
        let table = self.tables.get(vm.index()).into_iter();
        let chain = table.flat_map(move |t| t.buckets[t.bucket(lba)].iter(&self.links));
        chain.take(PROBES_MAX)
    }
}

// The background class: reads that nobody waits for yet (read-ahead into the
// host's cache). No policy queues them, so they are below demand under every
// policy alike: one goes only when the policy has nothing queued, when demand
// keeps its share of the device's places, and, on a device with a head, when
// it lies at the head or nobody has wanted the head for a while (as CFQ's
// idle class waits for a grace period: Linux block/cfq-iosched.c 2.6.13+,
// `CFQ_IDLE_GRACE`). What waits is taken back when demand wants the device
// (`Dispatcher::is_crowded`) or the very blocks (`Dispatcher::withdraw`).
//
// A policy is asked how much of a VM's may go beside what is in the device
// (`Scheduler::background_most`), and told what has
// gone, so that it may count in the VM's share.
//
// How much goes at once follows how late it comes, as in feedback-directed prefetching
// (Srinath and others, HPCA 2007): little while readers find all of it done, since demand
// waits behind it, and more when guests wait for it.

/// Time for which nobody has wanted the head before it leaves its place for the background: a
/// synchronous reader's think time and a seek fit into it.
const GRACE: Nanos = Nanos::from_millis(10);

/// Amounts of prefetches are counted in these sectors, 128 KiB.
const UNIT: u64 = 256;

/// Units outstanding on a device without a head.
const OUTSTANDING_SOLID: u64 = 64;

/// As [`OUTSTANDING_SOLID`], on a device with one: background reads that fit between two demands.
const OUTSTANDING_ROTATIONAL: u64 = 8;

/// Units on a device without a head while nobody waits for one.
const FEW: u64 = 4;

/// After this number that nobody had to wait for, one fewer may go at once.
const IN_TIME: u64 = 64;

/// The queues of the background class, one for each VM, served by turns.
#[derive(Default)]
struct Background {
    queues: Vec<VecDeque<RequestId>>,
    /// The VM whose turn is next.
    turn: usize,
    queued: usize,
    /// Sectors that are queued or on the device.
    outstanding: u64,
    /// Sectors on the device, and the commands that read them.
    in_flight: u64,
    commands: u64,
    /// Units that may be there beyond [`FEW`].
    more: u64,
    /// Sectors done since a guest last waited for some, or since `more` last changed.
    in_time: u64,
}

impl Background {
    fn push(&mut self, vm: VmId, id: RequestId, len: Sectors) {
        if self.queues.len() <= vm.index() {
            self.queues.resize_with(vm.index() + 1, VecDeque::new);
        }
        self.queues[vm.index()].push_back(id);
        self.queued += 1;
        self.outstanding += len.get();
    }

    /// Forget a queued one.
    fn remove(&mut self, vm: VmId, id: RequestId, len: Sectors) {
        let queue = &mut self.queues[vm.index()];
        let at = queue.iter().position(|&q| q == id).expect("a background request is queued");
        queue.remove(at);
        self.queued -= 1;
        self.outstanding -= len.get();
    }

    /// Does nothing wait?
    fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// The VM whose turn it is, of those with the least place.
    fn next_vm(&self, place: impl Fn(VmId) -> u128) -> Option<usize> {
        let count = self.queues.len();
        let vms = (0..count).map(|n| (self.turn + n) % count);
        vms.filter(|&vm| !self.queues[vm].is_empty()).min_by_key(|&vm| place(VmId::new(vm as u16)))
    }

    fn pop(&mut self, vm: usize) -> Option<RequestId> {
        let id = self.queues[vm].pop_front()?;
        self.queued -= 1;
        self.turn = vm + 1;
        Some(id)
    }

    /// A command of this length is done.
    fn completed(&mut self, len: Sectors) {
        self.in_flight -= len.get();
        self.commands -= 1;
        self.outstanding -= len.get();
        self.in_time += len.get();
        if self.in_time >= IN_TIME * UNIT {
            (self.more, self.in_time) = (self.more.saturating_sub(1), 0);
        }
    }
}

impl Dispatcher {
    /// A read of the background class. It has no deadline, is coalesced with its
    /// like only, and may be taken back while it waits. Panics as
    /// [`Dispatcher::arrive`] does, and for anything but a read.
    pub fn arrive_background(&mut self, now: Instant, arrival: Arrival) -> RequestId {
        assert!(self.is_attached(arrival.vm), "read of {:?}, which is not attached", arrival.vm);
        assert!(arrival.op == Op::Read, "the background reads");
        let id = self.slots.allocate(now, arrival);
        let slot = &mut self.slots[id];
        (slot.state, slot.background) = (State::Background, true);
        self.background.push(arrival.vm, id, arrival.extent.len());
        id
    }

    /// Take a background read back that has not reached the device: its id is
    /// free again. False, and nothing happens, when it has.
    pub fn withdraw(&mut self, id: RequestId) -> bool {
        if !self.waits_in_background(id) {
            return false;
        }
        let Request { vm, extent, .. } = self.slots[id].request;
        self.background.remove(vm, id, extent.len());
        self.slots.release(id);
        self.stats.withdrawn += 1;
        true
    }

    /// Does this background read wait, so that [`Dispatcher::withdraw`] would take it?
    pub fn waits_in_background(&self, id: RequestId) -> bool {
        self.slots.get(id).is_some_and(|s| s.state == State::Background)
    }

    /// Number of background reads of 128 KiB that may still arrive now: none while demand is
    /// [crowded](Dispatcher::is_crowded).
    pub fn background_room(&self) -> usize {
        let most = match self.profile.rotational() {
            true => OUTSTANDING_ROTATIONAL,
            false => OUTSTANDING_SOLID.max(self.background_most()),
        };
        match self.is_crowded() {
            true => 0,
            false => most.saturating_sub(self.background.outstanding.div_ceil(UNIT)) as usize,
        }
    }

    /// Does more demand wait for the device than fits into it, so that background reads ought to be
    /// dropped rather than wait behind it?
    pub fn is_crowded(&self) -> bool {
        self.queued > self.config.depth as usize
    }

    /// A guest waits for a background read: they come too late, and one more may go at once.
    pub fn background_is_late(&mut self) {
        let more_max = self.background_most().saturating_sub(FEW);
        let background = &mut self.background;
        (background.more, background.in_time) = ((background.more + 1).min(more_max), 0);
    }

    /// Units on the device at once, at most: enough to use its bandwidth, and few enough that
    /// demand that comes meanwhile does not wait for long behind them.
    fn background_most(&self) -> u64 {
        u64::from(self.config.depth / 8).max(1)
    }

    /// Most of them that may be in flight now.
    fn background_in_flight_max(&self) -> u64 {
        let most = self.background_most();
        match self.profile.rotational() {
            true => most,
            false => most.min(FEW + self.background.more),
        }
    }

    /// The policy has nothing: a background command, when one may go.
    fn poll_background(&mut self, now: Instant) -> Output {
        let place = |vm| self.scheduler.background_place(vm);
        let Some(vm) = self.background.next_vm(place) else { return Output::Idle };
        let room =
            (self.background_in_flight_max() * UNIT).saturating_sub(self.background.in_flight);
        if room == 0 || self.background.commands >= self.background_most() {
            return Output::Idle;
        }
        let first = self.background.queues[vm][0];
        let Request { vm: of, extent, .. } = self.slots[first].request;
        // A head that is in place reads on; elsewhere the bound stands.
        let room = if self.profile.rotational() { u64::MAX } else { room };
        let view = self.load.view(&self.config, &self.profile);
        let most = self.scheduler.background_most(now, of, extent.len(), &view);
        let goes = most > Sectors::ZERO;
        if self.profile.rotational() && !(goes && extent.start() == self.load.head) {
            if self.load.commands > 0 {
                return Output::Idle;
            }
            let free = self.last_demand + GRACE;
            if now < free {
                return Output::WakeAt(free);
            }
        }
        // Nobody else tells when an idle device may have some: it may have the first.
        match goes || self.load.commands == 0 {
            true => self.dispatch_background(now, vm, most.min(Sectors::new(room))),
            false => Output::Idle,
        }
    }

    /// Make a command of the VM's first background reads, as far as each
    /// continues the one before, and no longer than `most` but for the first.
    fn dispatch_background(&mut self, now: Instant, vm: usize, most: Sectors) -> Output {
        let first = self.background.pop(vm).expect("it was looked at");
        let mut command = self.slots[first].request;
        self.holds.end(now, Some(&command));
        self.slots[first].leads = true;
        self.slots[first].known = true;
        let (mut last, mut requests) = (first, 1);
        self.background_sent(now, first);
        while let Some(&id) = self.background.queues[vm].front()
            && let next = self.slots[id].request
            && fits(&command, &next, next.extent, self.config.coalesce.min(most))
        {
            self.background.pop(vm);
            grow(&mut command, next.extent);
            self.slots[last].next = Some(id);
            self.background_sent(now, id);
            (last, requests) = (id, requests + 1);
        }
        self.background.in_flight += command.extent.len().get();
        self.background.commands += 1;
        self.load.commands += 1;
        self.load.unseen += 1;
        self.stats.background_commands += 1;
        self.stats.background += requests;
        self.stats.background_bytes += command.extent.len().bytes();
        self.scheduler.background_sent(now, &command);
        Output::Dispatch(command)
    }

    /// A command that began with this request is done. `known`: when it was sent, if by the policy
    /// in charge.
    fn background_ends(
        &mut self,
        now: Instant,
        first: Request,
        len: Sectors,
        known: Option<Instant>,
    ) {
        self.background.completed(len);
        let extent = Extent::new(first.extent.start(), len);
        if let (Some(sent), Some(extent)) = (known, extent) {
            self.scheduler.background_completed(now, &Request { extent, ..first }, sent);
        }
    }

    fn background_sent(&mut self, now: Instant, id: RequestId) {
        let slot = &mut self.slots[id];
        (slot.state, slot.dispatched, slot.next) = (State::InFlight, now, None);
        self.load.head = slot.request.extent.end();
    }

    /// Is this request of the background class? True until its id is free again.
    pub fn is_background(&self, id: RequestId) -> bool {
        self.slots.get(id).is_some_and(|s| s.state != State::Free && s.background)
    }
    /// Requests of demand that the policy holds.
    pub fn queued(&self) -> usize {
        self.queued
    }
}

// Order among requests that policies never see. A flush covers the writes that completed before
// it was issued, so it needs to wait for no request; but a VM has one on the device at a time, and
// those that come meanwhile go together as its next one, which covers all of them: it begins
// after they have come. VMs take turns. A discard or write-zeroes changes data: it waits for
// earlier requests of its VM on the same sectors, and later ones wait for it.

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
struct Barriers {
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
    fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.turns.is_empty()
    }

    /// Must this request, which arrived as number `serial`, wait for an earlier
    /// barrier? If so it is remembered.
    fn blocks(&mut self, serial: u64, request: &Request) -> bool {
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
    fn flush(&mut self, vm: VmId, id: RequestId) {
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
    fn flushed(&mut self, vm: VmId) {
        let flushes = &mut self.flushes[vm.index()];
        flushes.under_way = false;
        if !flushes.waiting.is_empty() {
            self.turns.push_back(vm);
        }
    }

    /// The flushes that go with the one that [`Barriers::next`] gave last, it included.
    fn together(&self) -> &[RequestId] {
        &self.together
    }

    /// A discard or write-zeroes arrives; `earlier` overlap it and are not done.
    fn push(&mut self, request: Request, serial: u64, earlier: BTreeSet<RequestId>) {
        debug_assert!(matches!(request.op, Op::Discard | Op::WriteZeroes));
        let (waits_for, blocked) = (earlier, Vec::new());
        self.pending.push(Barrier { request, serial, waits_for, blocked, dispatched: false });
    }

    /// The next that may go to the device, of those whose VM may send one now. With a flush go all
    /// others of its VM that wait: [`Barriers::together`].
    fn next(&mut self, may_go: impl Fn(VmId, RequestId) -> bool) -> Option<RequestId> {
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
    fn ready_vms(&self) -> impl Iterator<Item = VmId> + '_ {
        let pending = self.pending.iter().filter(|b| b.is_ready()).map(|b| b.request.vm);
        self.turns.iter().copied().chain(pending)
    }

    /// A request is done: who may go now that waited for it? Barriers find out
    /// through [`Barriers::next`]; blocked requests are handed back here.
    fn done(&mut self, id: RequestId) -> Vec<RequestId> {
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
    fn detach(&mut self, vm: VmId, gone: &[RequestId]) {
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

#[cfg(test)]
mod adjacency_tests {
    use super::*;

    /// Sectors that fall into one bucket of a table with up to 2^16 of them.
    fn colliding(count: usize) -> Vec<Lba> {
        let bucket = |lba: u64| lba.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 & 0xffff;
        (0..).filter(|&lba| bucket(lba) == 7).take(count).map(Lba::new).collect()
    }

    #[test]
    fn a_guest_that_fills_one_bucket_makes_nothing_slow_and_hides_only_its_own() {
        let (hostile, other) = (VmId::new(0), VmId::new(1));
        let mut adjacency = Adjacency::default();
        let starts = colliding(1000);
        for (slot, &start) in starts.iter().enumerate() {
            adjacency.insert(hostile, RequestId::new(slot as u32), start);
        }
        let last = RequestId::new(5000);
        adjacency.insert(other, last, starts[999]);
        assert!(starts.iter().all(|&start| adjacency.probes(hostile, start).count() <= PROBES_MAX));
        assert!(adjacency.at(hostile, starts[999]).next().is_none());
        assert_eq!(adjacency.at(other, starts[999]).next(), Some(last));
        // All can be taken out all the same, and the first are found.
        (16..1000).for_each(|slot| adjacency.remove(RequestId::new(slot)));
        let found = (0..16).filter(|&n| adjacency.at(hostile, starts[n]).next().is_some());
        assert_eq!(found.count(), 16);
    }

    #[test]
    fn a_vm_that_has_nothing_queued_has_nothing_at_any_sector() {
        assert!(Adjacency::default().at(VmId::new(3), Lba::ZERO).next().is_none());
    }
}

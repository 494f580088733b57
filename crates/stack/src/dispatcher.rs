//! The last stage of the [stack](crate::stack), one for each physical device. It holds
//! every invariant that no policy may break, coalesces adjacent dispatches
//! into one command, orders barriers, and measures what is the same for all
//! policies. The crate's documentation states the run loop.

mod adjacency;
mod background;
mod barriers;
mod commands;
mod dues;
mod holds;
mod parts;
mod room;
mod slots;
mod types;
mod vms;

pub use holds::{Cause, HoldStats, Withheld};
pub use types::{
    Arrival, COALESCE_DEFAULT, CompletedCommand, Config, OUTSTANDING_MAX, Output, Stats, Tags,
    VMS_MAX,
};

use adjacency::Adjacency;
use background::Background;
use barriers::Barriers;
use commands::{Answer, Load, Unit};
use dues::{Dues, Rivals, Turn};
use holds::Holds;
use parts::Split;
use room::Room;
use seekway_core::queues::{ExpiryQueue, Links, Slots};
use seekway_core::request::{Completion, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{DeviceProfile, Scheduler};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use slots::{Slot, State, Table};
use vms::AttachedVm;

/// Commands that go by the policy's choice between two that are forced.
const FORCED_EVERY: u32 = 4;
/// Flushes, discards and write-zeroes in a row while reads and writes wait: a
/// guest that always has some would keep the others from the device.
const BARRIERS_IN_ROW: u32 = 16;

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
            Op::Flush => self.barriers.flush(vm, id),
            Op::Discard | Op::WriteZeroes => self.push_barrier(request),
            Op::Read | Op::Write => {
                self.dues.wants(now, vm);
                let serial = self.slots[id].serial;
                if self.barriers.is_empty() || !self.barriers.blocks(serial, &request) {
                    self.enqueue(now, id);
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
    fn next_barrier(&mut self, now: Instant) -> Option<Unit> {
        if self.barriers.is_empty() {
            return None;
        }
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
        self.adjacency.insert(request.vm, id, request.extent.start());
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
            if slot.known && !slot.background {
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
                self.enqueue(now, freed);
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

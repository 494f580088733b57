//! What both engines drive: one dispatcher for each physical device. It holds
//! every invariant that no policy may break, coalesces adjacent dispatches
//! into one command, orders barriers, and measures what is the same for all
//! policies. The crate's documentation states the run loop.

mod adjacency;
mod background;
mod barriers;
mod holds;
mod slots;
mod types;
mod vms;

pub use holds::HoldStats;
pub use types::{
    Arrival, COALESCE_DEFAULT, Config, HOLD_MAX, OUTSTANDING_MAX, Output, Stats, VMS_MAX,
};

use crate::queues::{ExpiryQueue, Links};
use crate::request::{Completion, Extent, Op, Request, RequestId, VmId};
use crate::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler};
use crate::units::{Instant, Lba, Nanos};
use adjacency::Adjacency;
use background::Background;
use barriers::Barriers;
use holds::Holds;
use slots::{Slot, State, Table};
use vms::Attached;

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
    /// The attached VMs by number.
    vms: Vec<Option<Attached>>,
    /// Requests that the policy holds, ghosts included.
    queued: usize,
    /// All queued requests, oldest first.
    by_age: ExpiryQueue,
    links: Links,
    adjacency: Adjacency,
    barriers: Barriers,
    background: Background,
    /// When demand was last seen: an arrival or a completion.
    last_demand: Instant,
    /// Barriers dispatched since the last read or write that was.
    barriers_in_row: u32,
    /// Handed out by the policy as a continuation that was none.
    staged: Option<RequestId>,
    head: Lba,
    in_flight_requests: u32,
    in_flight_commands: u32,
    last_completion: Instant,
    epoch: u32,
    /// Commands, and holds of an idle device, since the last forced command.
    since_forced: u32,
    holds: Holds,
    stats: Stats,
}

impl Dispatcher {
    /// A dispatcher for an idle device without VMs. `config.depth` of zero counts as one.
    pub fn new(scheduler: Box<dyn Scheduler>, profile: DeviceProfile, config: Config) -> Self {
        Dispatcher {
            scheduler,
            profile,
            config: Config { depth: config.depth.max(1), ..config },
            slots: Table::default(),
            vms: Vec::new(),
            queued: 0,
            by_age: ExpiryQueue::new(),
            links: Links::new(),
            adjacency: Adjacency::new(),
            barriers: Barriers::default(),
            background: Background::default(),
            last_demand: Instant::ZERO,
            barriers_in_row: 0,
            staged: None,
            head: Lba::ZERO,
            in_flight_requests: 0,
            in_flight_commands: 0,
            last_completion: Instant::ZERO,
            epoch: 0,
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
        let id = self.slots.allocate(now, arrival, self.epoch);
        self.last_demand = now;
        let request = Request { id, vm, tag, op, sync, extent, arrived: now };
        match op {
            Op::Flush => self.barriers.flush(id),
            Op::Discard | Op::WriteZeroes => self.push_barrier(request),
            Op::Read | Op::Write => {
                let serial = self.slots[id].serial;
                if self.barriers.is_empty() || !self.barriers.blocks(serial, &request) {
                    self.enqueue(now, id);
                }
            }
        }
        id
    }

    /// The command that was dispatched as `id` is done: each of its requests is
    /// appended to `done`. Panics when `id` is not a command in flight.
    pub fn complete(&mut self, now: Instant, id: RequestId, ok: bool, done: &mut Vec<Completion>) {
        assert!(self.is_in_flight(id), "{id:?} is not a command in flight");
        let first = &self.slots[id];
        let mut service = now.since(first.dispatched.max(self.last_completion));
        self.last_completion = now;
        self.in_flight_commands -= 1;
        let (background, before) = (first.background, done.len());
        let mut next = Some(id);
        while let Some(id) = next {
            let slot = &self.slots[id];
            next = slot.next;
            let (request, dispatched) = (slot.request, slot.dispatched);
            let completion = Completion { request, dispatched, service, ok };
            service = Nanos::ZERO;
            self.finish(now, &completion);
            done.push(completion);
        }
        let requests = done.len() - before;
        match background {
            true => self.background.completed(requests),
            false => {
                self.in_flight_requests -= requests as u32;
                self.last_demand = now;
            }
        }
        if let Some(last) = done.last() {
            self.bound_ghosts(now, last.request.vm);
        }
    }

    /// What shall the engine do now? Poll until the answer is not a dispatch.
    pub fn poll(&mut self, now: Instant) -> Output {
        if self.in_flight_commands >= self.config.depth {
            return Output::Idle;
        }
        let turn = self.barriers_in_row < BARRIERS_IN_ROW;
        if turn && let Some(id) = self.next_barrier() {
            return self.dispatch(now, id, false);
        }
        if let Some(id) = self.staged.take() {
            return self.dispatch(now, id, false);
        }
        if let Some(id) = self.overdue(now) {
            self.stats.forced += 1;
            return self.dispatch(now, id, true);
        }
        match self.ask(now) {
            Decision::Dispatch(id) => self.dispatch(now, id, false),
            // The policy has had its chance.
            _ if !turn && let Some(id) = self.next_barrier() => self.dispatch(now, id, false),
            Decision::Hold { until, why } => {
                if self.in_flight_commands == 0 {
                    self.holds.hold(now, until, why);
                    self.since_forced = self.since_forced.saturating_add(1);
                }
                let limit = self.limit().filter(|&limit| now < limit);
                Output::WakeAt(limit.map_or(until, |limit| limit.min(until)))
            }
            Decision::Idle => self.poll_background(now),
        }
    }

    /// The next barrier that may go.
    fn next_barrier(&mut self) -> Option<RequestId> {
        if self.barriers.is_empty() { None } else { self.barriers.next() }
    }

    /// Ask the policy, and hold it to the contract.
    fn ask(&mut self, now: Instant) -> Decision {
        while self.queued > 0 {
            let view = DeviceView {
                head: self.head,
                in_flight: self.in_flight_requests,
                profile: &self.profile,
            };
            let decision = self.scheduler.decide(now, &view);
            match decision {
                Decision::Dispatch(id) => {
                    if self.leaves_policy(now, id) {
                        return decision;
                    } // else it was forced out before: ask again
                }
                Decision::Hold { until, .. } => {
                    let bounded = now < until && until.since(now) <= HOLD_MAX;
                    assert!(bounded, "policy holds until {until} at {now}");
                    return decision;
                }
                Decision::Idle => panic!("policy idles with {} queued", self.queued),
            }
        }
        Decision::Idle
    }

    /// The policy lets go of a request. False when it had been forced out.
    fn leaves_policy(&mut self, now: Instant, id: RequestId) -> bool {
        let slot = &mut self.slots[id];
        self.queued -= 1;
        match slot.state {
            State::Queued => {
                slot.state = State::Waiting;
                self.by_age.remove(&mut self.links, id);
                let request = slot.request;
                self.adjacency.remove(&request);
                true
            }
            State::InFlight { forced: true } => {
                slot.state = State::InFlight { forced: false };
                false
            }
            State::Ghost => {
                let (request, dispatched) = (slot.request, slot.dispatched);
                let ghost = Completion { request, dispatched, service: Nanos::ZERO, ok: true };
                self.scheduler.completed(now, &ghost);
                self.slots.release(id);
                self.count_ghost(request.vm, -1);
                false
            }
            state => panic!("policy dispatched {id:?}, which is {state:?}"),
        }
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

    /// Make a command of `first` and what continues it.
    fn dispatch(&mut self, now: Instant, first: RequestId, forced: bool) -> Output {
        if forced {
            let request = self.slots[first].request;
            self.by_age.remove(&mut self.links, first);
            self.adjacency.remove(&request);
            self.since_forced = 0;
        } else {
            self.since_forced = self.since_forced.saturating_add(1);
        }
        let mut command = self.slots[first].request;
        match command.op.is_data() {
            true => self.barriers_in_row = 0,
            false => self.barriers_in_row = self.barriers_in_row.saturating_add(1),
        }
        self.holds.end(now, Some(&command));
        self.sent(now, first, forced);
        self.slots[first].leads = true;
        let mut last = first;
        while command.op.is_data()
            && self.continues(&command)
            && let Decision::Dispatch(id) = self.ask(now)
        {
            let next = self.slots[id].request;
            if !self.fits(&command, &next) {
                self.staged = Some(id);
                break;
            }
            self.grow(&mut command, id);
            self.slots[last].next = Some(id);
            self.sent(now, id, false);
            last = id;
        }
        self.in_flight_commands += 1;
        self.stats.commands += 1;
        Output::Dispatch(command)
    }

    /// Is some queued request a continuation of the command?
    fn continues(&self, command: &Request) -> bool {
        self.config.coalesce > command.extent.len()
            && self
                .adjacency
                .at(command.extent.end())
                .any(|id| self.fits(command, &self.slots[id].request))
    }

    /// May `next` be part of the command? Never across VMs: one VM's failure
    /// is not another's.
    fn fits(&self, command: &Request, next: &Request) -> bool {
        next.op == command.op
            && next.vm == command.vm
            && next.extent.start() == command.extent.end()
            && command.extent.len() + next.extent.len() <= self.config.coalesce
    }

    /// The command covers `next`, which fits, too.
    fn grow(&self, command: &mut Request, next: RequestId) {
        let len = command.extent.len() + self.slots[next].request.extent.len();
        command.extent = Extent::new(command.extent.start(), len).expect("adjacent extents");
    }

    fn sent(&mut self, now: Instant, id: RequestId, forced: bool) {
        let slot = &mut self.slots[id];
        slot.state = State::InFlight { forced };
        slot.dispatched = now;
        slot.next = None;
        if slot.request.op.is_data() {
            self.head = slot.request.extent.end();
        }
        self.in_flight_requests += 1;
        self.stats.requests += 1;
    }

    /// Hand a request to the policy.
    fn enqueue(&mut self, now: Instant, id: RequestId) {
        let slot = &mut self.slots[id];
        (slot.state, slot.epoch) = (State::Queued, self.epoch);
        let request = slot.request;
        self.queued += 1;
        self.by_age.push(&mut self.links, id);
        self.adjacency.insert(&request);
        self.scheduler.arrived(now, request);
    }

    /// A barrier is pending from its arrival on, behind earlier ones too: what
    /// comes later and overlaps finds it.
    fn push_barrier(&mut self, request: Request) {
        let serial = self.slots[request.id].serial;
        let earlier = |s: &&Slot| {
            !matches!(s.state, State::Free | State::Ghost | State::Background)
                && s.serial < serial
                && s.request.vm == request.vm
                && s.request.op != Op::Flush
                && s.request.extent.overlaps(request.extent)
        };
        let waits_for = self.slots.iter().filter(earlier).map(|s| s.request.id).collect();
        self.barriers.push(request, serial, waits_for);
    }

    /// One request is done: tell the policy, let go what waited for it.
    fn finish(&mut self, now: Instant, completion: &Completion) {
        let id = completion.request.id;
        let slot = &mut self.slots[id];
        if slot.state == (State::InFlight { forced: true }) {
            slot.state = State::Ghost;
            self.count_ghost(completion.request.vm, 1);
        } else {
            let known = !slot.background && slot.epoch == self.epoch;
            if completion.request.op.is_data() && known {
                self.scheduler.completed(now, completion);
            }
            self.slots.release(id);
        }
        if self.barriers.is_empty() {
            return;
        }
        for freed in self.barriers.done(id) {
            let Slot { request, serial, .. } = self.slots[freed];
            if !self.barriers.blocks(serial, &request) {
                self.enqueue(now, freed);
            }
        }
    }

    /// The requests of the command in flight that was dispatched as `id`,
    /// ascending and adjacent.
    pub fn members(&self, id: RequestId) -> impl Iterator<Item = &Request> + '_ {
        let mut at = Some(id);
        std::iter::from_fn(move || {
            let slot = &self.slots[at?];
            at = slot.next;
            Some(&slot.request)
        })
    }

    /// Is this a command on the device?
    pub fn is_in_flight(&self, id: RequestId) -> bool {
        let slot = self.slots.get(id);
        slot.is_some_and(|s| s.leads && matches!(s.state, State::InFlight { .. }))
    }
    /// The requests that have arrived and not completed, in no stated order.
    pub fn waiting(&self) -> impl Iterator<Item = &Request> {
        let waits = |s: &&slots::Slot| !matches!(s.state, State::Free | State::Ghost);
        self.slots.iter().filter(waits).map(|s| &s.request)
    }
    /// Requests that have arrived and not completed.
    pub fn outstanding(&self) -> usize {
        self.slots.len()
    }
    /// Commands on the device.
    pub fn in_flight(&self) -> u32 {
        self.in_flight_commands
    }
    /// The sector after the last one dispatched.
    pub fn head(&self) -> Lba {
        self.head
    }
    /// The device's profile as policies see it.
    pub fn profile(&self) -> &DeviceProfile {
        &self.profile
    }
    /// What has passed.
    pub fn stats(&self) -> Stats {
        self.stats
    }
    /// Time withheld by cause.
    pub fn holds(&self) -> HoldStats {
        self.holds.stats
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

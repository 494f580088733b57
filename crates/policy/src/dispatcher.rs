//! What both engines drive: one dispatcher for each physical device. It holds
//! every invariant that no policy may break, coalesces adjacent dispatches
//! into one command, orders barriers, and measures what is the same for all
//! policies. The crate's documentation states the run loop.

mod adjacency;
mod barriers;
mod holds;

pub use holds::HoldStats;

use crate::journal::Journal;
use crate::queues::{ExpiryQueue, Links};
use crate::request::{Completion, Extent, Op, ProcessTag, Request, RequestId, VmId};
use crate::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use crate::units::{Instant, Lba, Nanos, Sectors};
use adjacency::Adjacency;
use barriers::Barriers;
use holds::Holds;

/// Requests that may be outstanding on one device. [`Dispatcher::arrive`]
/// panics beyond it: engines bound their queues well below.
pub const OUTSTANDING_MAX: usize = 1 << 22;
/// VMs on one device.
pub const VMS_MAX: usize = 4096;
/// The longest that a policy may withhold work without being asked again.
pub const HOLD_MAX: Nanos = Nanos::from_secs(10);
/// The default of [`Config::coalesce`]: 512 KiB, Linux's usual limit
/// (`max_sectors_kb`).
pub const COALESCE_DEFAULT: Sectors = Sectors::new(1024);

/// How the dispatcher treats the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Commands that the device takes at once, at least 1.
    pub depth: u32,
    /// Longest command that adjacent requests are coalesced into; zero never
    /// coalesces. A single request longer than this still goes whole.
    pub coalesce: Sectors,
    /// A request that has waited longer is dispatched whatever the policy says.
    pub hard_limit: Nanos,
}

impl Default for Config {
    fn default() -> Self {
        Config { depth: 1, coalesce: COALESCE_DEFAULT, hard_limit: Nanos::from_secs(30) }
    }
}

/// A request as it reaches the dispatcher, already mapped to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Whose; attached before.
    pub vm: VmId,
    /// Which process inside the guest, if known.
    pub tag: Option<ProcessTag>,
    /// What.
    pub op: Op,
    /// Does somebody wait for it?
    pub sync: bool,
    /// Where.
    pub extent: Extent,
}

/// What an engine shall do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this command to the device. Its id is that of its first request,
    /// its extent covers all of [`Dispatcher::members`].
    Dispatch(Request),
    /// Poll again then, unless an input comes before.
    WakeAt(Instant),
    /// Poll again after the next input.
    Idle,
}

/// What has passed through a dispatcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Guests' requests dispatched.
    pub requests: u64,
    /// Commands that they were coalesced into.
    pub commands: u64,
    /// Requests dispatched against the policy because of the hard limit.
    pub forced: u64,
}

/// Where a request stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// In nobody's queue: behind a barrier, a barrier itself, or staged.
    Waiting,
    /// In the policy.
    Queued,
    /// On the device; `forced`: the policy still believes that it is queued.
    InFlight {
        forced: bool,
    },
    /// Done after being forced; the policy still believes that it is queued.
    Ghost,
}

struct Slot {
    request: Request,
    state: State,
    /// Order of arrival, unique.
    serial: u64,
    dispatched: Instant,
    /// First of its command, by whose id the engine knows it.
    leads: bool,
    /// Next request of the same command.
    next: Option<RequestId>,
    /// The policy that it was handed to, counted by [`Dispatcher::switch`].
    epoch: u32,
}

/// The dispatcher of one device.
pub struct Dispatcher {
    scheduler: Box<dyn Scheduler>,
    profile: DeviceProfile,
    config: Config,
    slots: Vec<Slot>,
    free: Vec<RequestId>,
    /// Specifications of the attached VMs by number.
    vms: Vec<Option<VmSpec>>,
    /// Requests that the policy holds, ghosts included.
    queued: usize,
    /// All queued requests, oldest first.
    by_age: ExpiryQueue,
    links: Links,
    adjacency: Adjacency,
    barriers: Barriers,
    /// Handed out by the policy as a continuation that was none.
    staged: Option<RequestId>,
    head: Lba,
    in_flight_requests: u32,
    in_flight_commands: u32,
    last_completion: Instant,
    serial: u64,
    epoch: u32,
    /// Commands since the last forced one.
    since_forced: u32,
    holds: Holds,
    stats: Stats,
    journal: Option<Journal>,
}

impl Dispatcher {
    /// A dispatcher for an idle device without VMs. `config.depth` of zero counts as one.
    pub fn new(scheduler: Box<dyn Scheduler>, profile: DeviceProfile, config: Config) -> Self {
        Dispatcher {
            scheduler,
            profile,
            config: Config { depth: config.depth.max(1), ..config },
            slots: Vec::new(),
            free: Vec::new(),
            vms: Vec::new(),
            queued: 0,
            by_age: ExpiryQueue::new(),
            links: Links::new(),
            adjacency: Adjacency::new(),
            barriers: Barriers::default(),
            staged: None,
            head: Lba::ZERO,
            in_flight_requests: 0,
            in_flight_commands: 0,
            last_completion: Instant::ZERO,
            serial: 0,
            epoch: 0,
            since_forced: 0,
            holds: Holds::default(),
            stats: Stats::default(),
            journal: None,
        }
    }

    /// A VM joins. Panics when it is attached already or its number is too large.
    pub fn attach(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        assert!(vm.index() < VMS_MAX, "{vm:?}: at most {VMS_MAX} VMs");
        if self.vms.len() <= vm.index() {
            self.vms.resize(vm.index() + 1, None);
        }
        assert!(self.vms[vm.index()].is_none(), "{vm:?} is attached already");
        self.record(|j| j.attach(now, vm, &spec));
        self.vms[vm.index()] = Some(spec.clone());
        self.scheduler.attach(now, vm, spec);
    }

    /// A VM leaves: its requests that have not reached the device, in order of
    /// arrival. What is in flight completes as usual.
    pub fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        self.record(|j| j.detach(now, vm));
        assert!(self.vms[vm.index()].take().is_some(), "{vm:?} is not attached");
        self.withdraw(now, vm);
        if let Some(id) = self.staged.take_if(|id| self.slots[id.slot()].request.vm == vm) {
            self.report_staged(now, id);
        }
        let of_vm = |s: &&Slot| s.state == State::Waiting && s.request.vm == vm;
        let mut gone: Vec<RequestId> =
            self.slots.iter().filter(of_vm).map(|s| s.request.id).collect();
        self.barriers.detach(&gone);
        gone.sort_by_key(|id| self.slots[id.slot()].serial);
        let requests = gone.iter().map(|id| self.slots[id.slot()].request).collect();
        for id in gone {
            self.release(id);
        }
        if self.queued == 0 {
            self.holds.end(now, None);
        }
        requests
    }

    /// Change a VM's weight or region while it runs. What the policy has
    /// learnt of the VM is lost, no request is.
    pub fn respec(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        assert!(self.vms[vm.index()].is_some(), "{vm:?} is not attached");
        self.record(|j| j.respec(now, vm, &spec));
        let requests = self.withdraw(now, vm);
        self.vms[vm.index()] = Some(spec.clone());
        self.scheduler.attach(now, vm, spec);
        for request in requests {
            self.enqueue(now, request.id);
        }
    }

    /// Change the policy while it runs: drain the old one, refeed the new one.
    /// `name` is what the journal notes. Requests in flight complete unseen by
    /// the new policy.
    pub fn switch(&mut self, now: Instant, name: &str, scheduler: Box<dyn Scheduler>) {
        self.record(|j| j.switch(now, name));
        let attached: Vec<(VmId, VmSpec)> = (0..self.vms.len())
            .filter_map(|n| Some((VmId::new(n as u16), self.vms[n].clone()?)))
            .collect();
        let mut requests: Vec<Request> = Vec::new();
        for (vm, _) in &attached {
            requests.extend(self.withdraw(now, *vm));
        }
        requests.sort_by_key(|r| self.slots[r.id.slot()].serial);
        self.scheduler = scheduler;
        self.epoch += 1;
        for (vm, spec) in attached {
            self.scheduler.attach(now, vm, spec);
        }
        for request in requests {
            self.enqueue(now, request.id);
        }
    }

    /// A request of a guest. Panics when its VM is not attached or
    /// [`OUTSTANDING_MAX`] is exceeded. The id is good until the completion.
    pub fn arrive(&mut self, now: Instant, arrival: Arrival) -> RequestId {
        let Arrival { vm, tag, op, sync, extent } = arrival;
        assert!(self.is_attached(vm), "request of {vm:?}, which is not attached");
        let id = self.allocate(now, arrival);
        self.record(|j| j.arrive(now, &arrival));
        let request = Request { id, vm, tag, op, sync, extent, arrived: now };
        match op {
            Op::Flush => self.barriers.flush(id),
            Op::Discard | Op::WriteZeroes => self.push_barrier(request),
            Op::Read | Op::Write => {
                let serial = self.serial;
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
        self.record(|j| j.complete(now, id, ok));
        assert!(self.is_in_flight(id), "{id:?} is not a command in flight");
        let first = &self.slots[id.slot()];
        let mut service = now.since(first.dispatched.max(self.last_completion));
        self.last_completion = now;
        self.in_flight_commands -= 1;
        let mut next = Some(id);
        while let Some(id) = next {
            let slot = &self.slots[id.slot()];
            next = slot.next;
            let (request, dispatched) = (slot.request, slot.dispatched);
            let completion = Completion { request, dispatched, service, ok };
            service = Nanos::ZERO;
            self.in_flight_requests -= 1;
            self.finish(now, &completion);
            done.push(completion);
        }
    }

    /// What shall the engine do now? Poll until the answer is not a dispatch.
    pub fn poll(&mut self, now: Instant) -> Output {
        let output = self.poll_unrecorded(now);
        self.record(|j| j.output(now, &output));
        output
    }

    fn poll_unrecorded(&mut self, now: Instant) -> Output {
        if self.in_flight_commands >= self.config.depth {
            return Output::Idle;
        }
        if !self.barriers.is_empty()
            && let Some(id) = self.barriers.next()
        {
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
            Decision::Hold { until, why } => {
                if self.in_flight_commands == 0 {
                    self.holds.hold(now, until, why);
                }
                Output::WakeAt(until)
            }
            Decision::Idle => Output::Idle,
        }
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
        let slot = &mut self.slots[id.slot()];
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
                self.release(id);
                false
            }
            state => panic!("policy dispatched {id:?}, which is {state:?}"),
        }
    }

    /// The oldest request when it is past the hard limit. Every fourth command
    /// at the most, so that an overloaded device does not degrade to a FIFO.
    fn overdue(&mut self, now: Instant) -> Option<RequestId> {
        let id = self.by_age.head()?;
        let age = now.since(self.slots[id.slot()].request.arrived);
        (age > self.config.hard_limit && self.since_forced >= 4).then_some(id)
    }

    /// Make a command of `first` and what continues it.
    fn dispatch(&mut self, now: Instant, first: RequestId, forced: bool) -> Output {
        if forced {
            let request = self.slots[first.slot()].request;
            self.by_age.remove(&mut self.links, first);
            self.adjacency.remove(&request);
            self.since_forced = 0;
        } else {
            self.since_forced = self.since_forced.saturating_add(1);
        }
        let mut command = self.slots[first.slot()].request;
        self.holds.end(now, Some(&command));
        self.sent(now, first, forced);
        self.slots[first.slot()].leads = true;
        let mut last = first;
        while command.op.is_data()
            && self.continues(&command)
            && let Decision::Dispatch(id) = self.ask(now)
        {
            let next = self.slots[id.slot()].request;
            if !self.fits(&command, &next) {
                self.staged = Some(id);
                break;
            }
            let len = command.extent.len() + next.extent.len();
            command.extent = Extent::new(command.extent.start(), len).expect("adjacent extents");
            self.slots[last.slot()].next = Some(id);
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
                .any(|id| self.fits(command, &self.slots[id.slot()].request))
    }

    /// May `next` be part of the command? Never across VMs: one VM's failure
    /// is not another's.
    fn fits(&self, command: &Request, next: &Request) -> bool {
        next.op == command.op
            && next.vm == command.vm
            && next.extent.start() == command.extent.end()
            && command.extent.len() + next.extent.len() <= self.config.coalesce
    }

    fn sent(&mut self, now: Instant, id: RequestId, forced: bool) {
        let slot = &mut self.slots[id.slot()];
        slot.state = State::InFlight { forced };
        slot.dispatched = now;
        slot.next = None;
        if slot.request.op.is_data() {
            self.head = slot.request.extent.end();
        }
        self.in_flight_requests += 1;
        self.stats.requests += 1;
    }

    fn allocate(&mut self, now: Instant, arrival: Arrival) -> RequestId {
        let id = self.free.pop().unwrap_or(RequestId::new(self.slots.len() as u32));
        assert!(id.slot() < OUTSTANDING_MAX, "more than {OUTSTANDING_MAX} requests outstanding");
        let Arrival { vm, tag, op, sync, extent } = arrival;
        let request = Request { id, vm, tag, op, sync, extent, arrived: now };
        self.serial += 1;
        let (serial, epoch) = (self.serial, self.epoch);
        let state = State::Waiting;
        let slot =
            Slot { request, state, serial, dispatched: now, leads: false, next: None, epoch };
        match self.slots.get_mut(id.slot()) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        id
    }

    fn release(&mut self, id: RequestId) {
        self.slots[id.slot()].state = State::Free;
        self.free.push(id);
    }

    /// Hand a request to the policy.
    fn enqueue(&mut self, now: Instant, id: RequestId) {
        let slot = &mut self.slots[id.slot()];
        (slot.state, slot.epoch) = (State::Queued, self.epoch);
        let request = slot.request;
        self.queued += 1;
        self.by_age.push(&mut self.links, id);
        self.adjacency.insert(&request);
        self.scheduler.arrived(now, request);
    }

    /// Take a VM's requests back from the policy, in order of arrival, without
    /// those that were forced out before.
    fn withdraw(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        let mut requests = self.scheduler.detach(now, vm);
        requests.retain(|r| match self.slots[r.id.slot()].state {
            State::Queued => true,
            State::Ghost => {
                self.queued -= 1;
                self.release(r.id);
                false
            }
            State::InFlight { forced: true } => {
                self.queued -= 1;
                // The policy no longer knows it: its completion is not for it.
                let slot = &mut self.slots[r.id.slot()];
                slot.state = State::InFlight { forced: false };
                slot.epoch = self.epoch.wrapping_sub(1);
                false
            }
            state => panic!("policy handed back {:?}, which is {state:?}", r.id),
        });
        for request in &requests {
            self.queued -= 1;
            self.by_age.remove(&mut self.links, request.id);
            self.adjacency.remove(request);
            self.slots[request.id.slot()].state = State::Waiting;
        }
        requests
    }

    /// The policy has dispatched this request, and it will never reach the
    /// device: its id may only be used again once the policy has heard the end.
    fn report_staged(&mut self, now: Instant, id: RequestId) {
        let slot = &self.slots[id.slot()];
        if slot.epoch == self.epoch {
            let (request, service) = (slot.request, Nanos::ZERO);
            let end = Completion { request, dispatched: now, service, ok: false };
            self.scheduler.completed(now, &end);
        }
    }

    /// A barrier is pending from its arrival on, behind earlier ones too: what
    /// comes later and overlaps finds it.
    fn push_barrier(&mut self, request: Request) {
        let serial = self.slots[request.id.slot()].serial;
        let earlier = |s: &&Slot| {
            !matches!(s.state, State::Free | State::Ghost)
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
        let slot = &mut self.slots[id.slot()];
        if slot.state == (State::InFlight { forced: true }) {
            slot.state = State::Ghost;
        } else {
            if completion.request.op.is_data() && slot.epoch == self.epoch {
                self.scheduler.completed(now, completion);
            }
            self.release(id);
        }
        if self.barriers.is_empty() {
            return;
        }
        for freed in self.barriers.done(id) {
            let Slot { request, serial, .. } = self.slots[freed.slot()];
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
            let slot = &self.slots[at?.slot()];
            at = slot.next;
            Some(&slot.request)
        })
    }

    /// May a VM of this number be attached?
    pub fn can_attach(&self, vm: VmId) -> bool {
        vm.index() < VMS_MAX && !self.is_attached(vm)
    }
    /// Is the VM attached?
    pub fn is_attached(&self, vm: VmId) -> bool {
        self.vms.get(vm.index()).is_some_and(Option::is_some)
    }
    /// Is this a command on the device?
    pub fn is_in_flight(&self, id: RequestId) -> bool {
        let slot = self.slots.get(id.slot());
        slot.is_some_and(|s| s.leads && matches!(s.state, State::InFlight { .. }))
    }
    /// Requests that have arrived and not completed.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
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

    /// Begin to note every input and output; `policy` is its specification.
    pub fn start_journal(&mut self, policy: &str) {
        self.journal = Some(Journal::new(policy, &self.profile, &self.config));
    }
    /// What has been noted since the last call, for the engine to write.
    pub fn take_journal(&mut self) -> String {
        self.journal.as_mut().map(Journal::take).unwrap_or_default()
    }
    fn record(&mut self, note: impl FnOnce(&mut Journal)) {
        if let Some(journal) = &mut self.journal {
            note(journal);
        }
    }
}

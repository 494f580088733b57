//! Fair shares of a device that works on several commands at once.
//!
//! *Who goes next* is for [`shares`](super::shares) to say, by what commands cost in bytes. Of a
//! write each byte counts twice. What of a VM goes next, its [`Queue`] says.
//!
//! *Depth.* While a *light* VM is active beside others, what is in the device stays within the
//! [governor](super::governor)'s bound, and else within three times that, so that a VM that comes
//! finds a short queue. Only where no other VM is attached there is no bound. A VM is light if what
//! it has outstanding costs at most [`LIGHT`], or if it has a target of latency, and stays so for a
//! while after its last request: see [`Lights`]. A target that is missed shrinks the bound of the
//! others.
//!
//! *Parts.* Nothing stops a command that has begun. So a long request goes in parts while other VMs
//! are attached, and in shorter ones while one of them is light.
//!
//! *Members.* Where the device is an array whose chunks are known, the next request of the VM goes
//! to the member that has least to do: see [`Members`].
//!
//! *Prefetches* are their VM's: they count in its share and in the bound, as a heavy VM's commands do.
//!
//! *Stalls.* A command that the device never completes must not keep others waiting. After
//! [`STALL`] without any progress, what is in the device no longer counts against the bound.

use super::cost::{Class, InFlight, Price};
use super::governor::Governor;
use super::shares::{Shares, Work};
use super::{cost, governor};
use crate::runs::Run;
use seekway_core::params::Params;
use seekway_core::queues::{ExpiryQueue, Links, Pool, Slots};
use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler, Stripe, VmSpec};
use seekway_core::units::{Instant, Nanos, Sectors};

/// The device's queue is kept short.
pub const DEPTH: &str = "depth";

/// Cause of a hold: the cost of a write is measured, so only reads go, or only writes.
pub const PRICE: &str = "price";

/// Most cost that a VM that wakes is behind the others, times its weight.
pub(super) const QUANTUM: u64 = 64 << 10;

/// A VM with no more than this outstanding is light: four commands of 4 KiB, or one of 28 KiB.
const LIGHT: u64 = 32 << 10;

/// A VM that was found to have less than its share counts as light for this time.
const BEHIND_FOR: Nanos = Nanos::from_millis(20);

/// A VM that has nothing outstanding for this time sleeps. When it wakes it is behind its share,
/// which says nothing until it has been awake for [`AWAKE`].
const PAUSE: Nanos = Nanos::from_millis(2);

const AWAKE: Nanos = Nanos::from_millis(5);

/// Factor of the bound for VMs that are busy while no VM is light.
const BUSY_TIMES: f64 = 3.0;

/// Multiple of the bound beside a light VM, for a VM with much outstanding that is behind its share.
/// Two such VMs may be behind each other by turns.
const BEHIND_TIMES: f64 = 1.5;

/// A device that takes and completes nothing for this time hangs: its commands no longer count.
const STALL: Nanos = Nanos::from_millis(100);

/// Oldest requests of a VM among which it sends the first one for the least busy member: this
/// number if no other VM is busy, an nth of it with n busy VMs. A VM whose turn comes seldom would
/// otherwise pass a request over for long.
const LOOKED: u32 = 64;

/// A target of latency does not make parts shorter than this.
const PART_LEAST: Sectors = Sectors::new(8);

pub struct Flash {
    /// Bounds the cost in the device, and cuts long requests into parts.
    governs: bool,
    /// The longest command while requests go in parts.
    part: Sectors,
    queued: Pool,
    links: Links,
    vms: Vec<Option<Vm>>,
    shares: Shares,
    flying: Slots<Flight>,
    /// VMs that have ever been attached, and those that are.
    attached: u64,
    here: u32,
    in_flight: InFlight,
    /// VMs with something outstanding.
    busy: u32,
    /// When a command last went or was done.
    progress: Instant,
    /// The part of `in_flight` that does not count, because it hung at `hung_since`.
    hung: InFlight,
    hung_since: Instant,
    lights: Lights,
    governor: Governor,
    price: Price,
    /// Requests wait for the bound.
    waits: bool,
    run: Run,
    parts: u64,
    members: Members,
}

impl Flash {
    pub fn new(params: &Params) -> Self {
        Flash {
            governs: params.number("isolation") > 0.0,
            part: Sectors::from_bytes(governor::PART_DEFAULT),
            queued: Pool::new(),
            links: Links::new(),
            vms: Vec::new(),
            shares: Shares::new(QUANTUM),
            flying: Slots::new(),
            attached: 0,
            here: 0,
            in_flight: InFlight::default(),
            busy: 0,
            progress: Instant::ZERO,
            hung: InFlight::default(),
            hung_since: Instant::ZERO,
            lights: Lights::default(),
            governor: Governor::new(params.number("isolation")),
            price: Price::new(params.number("write_price")),
            waits: false,
            run: Run::default(),
            parts: 0,
            members: Members::default(),
        }
    }

    fn vm(&self, vm: usize) -> Option<&Vm> {
        self.vms.get(vm)?.as_ref()
    }

    /// Note whether the VM has less than its share, before a request of it is counted.
    fn note_behind(&mut self, now: Instant, vm: usize, len: Sectors) {
        let is_behind = self.shares.is_behind(vm, cost::of_command(len));
        let Some(known) = self.vms[vm].as_mut() else { return };
        if known.outstanding == 0 && now.since(known.done) > PAUSE {
            (known.awake_since, known.behind_at) = (now, None);
            known.pauses.ended(now.since(known.done));
        }
        if is_behind && now.since(known.awake_since) > AWAKE {
            known.behind_at = Some(now);
        }
    }

    /// Did the VM have less than its share recently, though it asked for more?
    fn is_behind(&self, now: Instant, vm: usize) -> bool {
        let found = self.vm(vm).and_then(|known| known.behind_at);
        found.is_some_and(|at| now.since(at) <= BEHIND_FOR)
    }

    /// Note whether the VM is light, after it has sent something.
    fn note_light(&mut self, now: Instant, vm: usize) {
        self.shares.promises.targets.active(now, vm);
        if self.is_heavy(vm) && !self.is_behind(now, vm) {
            self.lights.forget(vm);
        } else if let Some(known) = self.vm(vm) {
            self.lights.note(now, vm, known.pauses);
        }
    }

    /// Has it much outstanding, and was promised nothing?
    fn is_heavy(&self, vm: usize) -> bool {
        self.vm(vm).is_some_and(|known| known.outstanding > LIGHT) && !self.shares.promises.has(vm)
    }

    /// Has it little outstanding, or less than its share?
    fn is_light(&self, now: Instant, vm: usize) -> bool {
        self.vm(vm).is_some_and(|known| known.outstanding <= LIGHT) || self.is_behind(now, vm)
    }

    /// Say what the VM sends next.
    fn place(&mut self, now: Instant, vm: usize) {
        let withheld = self.price.withheld().filter(|_| self.is_heavy(vm));
        let Some(known) = &mut self.vms[vm] else { return };
        known.withheld = withheld;
        let work = known.head(&self.queued).map(|head| Work {
            cost: cost::of_command(head.extent.len().min(self.part)),
            arrived: head.arrived,
        });
        self.shares.set_work(now, vm, work);
    }

    /// Another class of requests may go. `is_clean`: only reads went until now.
    fn place_all(&mut self, now: Instant, is_clean: bool) {
        (0..self.vms.len()).for_each(|vm| self.place(now, vm));
        self.governor.settle(now, is_clean);
    }

    /// The VM whose next request continues the last command.
    fn continuation(&self, now: Instant) -> Option<usize> {
        let vm = self.run.vm()?.index();
        let head = self.vm(vm)?.head(&self.queued)?;
        self.run.continues_within(head, self.most(now, vm)).then_some(vm)
    }

    /// Longest command of this VM now.
    fn most(&self, now: Instant, vm: usize) -> Sectors {
        if !self.governs || self.here < 2 {
            return Sectors::new(u64::MAX);
        }
        if !self.lights.has_other(now, vm) {
            // A VM that comes now waits for what is in the device.
            return self.part.max(governor::PART_LONGEST);
        }
        match self.shares.promises.targets.squeeze(now, vm) {
            1.0 => self.part,
            squeeze => {
                let part = (self.part.get() as f64 * squeeze.sqrt()) as u64;
                Sectors::new(part).max(PART_LEAST)
            }
        }
    }

    /// Which of this VM's requests goes next: its head, but beside others on an array the first for
    /// the member that has least to do. A VM with a promise is late by its oldest request, so that
    /// one goes.
    fn next(&self, vm: usize) -> Request {
        let known = self.vm(vm).expect("a VM with work");
        let head = *known.head(&self.queued).expect("a VM with work has a request");
        if !self.waits || !self.members.are_known() || self.shares.promises.has(vm) {
            return head;
        }
        let looked = (LOOKED / self.busy.max(1)).max(1) as usize;
        let ids = known.queue.of(head.op).iter(&self.links).take(looked);
        let requests = ids.filter_map(|id| self.queued.get(id));
        *self.members.idlest(requests).unwrap_or(&head)
    }

    /// Send this request of the VM, at most `most` of it.
    fn send(
        &mut self,
        now: Instant,
        vm: usize,
        request: Request,
        most: Sectors,
        continues: bool,
    ) -> Decision {
        let is_heavy = self.is_heavy(vm);
        let known = self.vms[vm].as_mut().expect("a VM with work");
        let id = request.id;
        let (extent, rest) = request.extent.split(most);
        let whole_cost = cost::of_command(extent.len());
        // A request in parts costs its VM what it would whole: the parts are for the others.
        let is_more = continues || rest.is_some();
        let charged = if is_more { cost::of_more(extent.len()) } else { whole_cost };
        if is_heavy {
            self.price.sends(request.op, charged);
        }
        let charged = cost::in_shares(request.op, charged, self.price.times());
        known.queue.charge(request.op, charged);
        self.progress = now;
        // What is left was counted whole, with the cost of one command.
        known.outstanding += if rest.is_some() { cost::of_command(Sectors::ZERO) } else { 0 };
        self.in_device(vm, id, request.op, extent);
        if !continues {
            self.run.end();
        }
        self.run.extend(&Request { extent, ..request });
        let decision = match rest {
            Some(rest) => {
                self.parts += 1;
                self.queued.shorten(id, rest);
                Decision::DispatchPart { id, len: extent.len() }
            }
            None => {
                let known = self.vms[vm].as_mut().expect("a VM with work");
                known.queue.class(request.op).remove(&mut self.links, id);
                self.queued.take(id);
                Decision::Dispatch(id)
            }
        };
        let requests = u64::from(rest.is_none());
        self.shares.charge(now, vm, charged, requests, extent.len());
        self.place(now, vm);
        decision
    }

    /// Has a VM with a promise work? In a trial others' commands fill the device.
    fn has_promises_to_keep(&self) -> bool {
        let is_busy = |vm: usize| self.vm(vm).is_some_and(|known| known.outstanding > 0);
        (0..self.vms.len()).any(|vm| is_busy(vm) && self.shares.promises.has(vm))
    }

    /// Begin a trial of the price, or end one that shows nothing, if it is time. What to answer if
    /// all that is queued is withheld.
    fn try_price(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        if self.governor.is_steady() && self.price.is_due(now) {
            if self.has_promises_to_keep() {
                self.price.postpone(now);
            } else {
                self.price.begin(now);
                self.place_all(now, false);
            }
        }
        let Some(until) = self.price.until() else { return Decision::Idle };
        if now >= until || device.commands == 0 && self.shares.first(now).is_none() {
            self.price.give_up();
            self.place_all(now, false);
            return Decision::Idle;
        }
        Decision::Wait { until: Some(until), why: PRICE }
    }

    /// May a command of this VM go now, beside what is in the device? `is_light`: its VM has little
    /// outstanding.
    fn may_go(&mut self, now: Instant, vm: usize, op: Op, cost: u64, is_light: bool) -> bool {
        if !self.governs || self.here < 2 {
            self.waits = false;
            return true;
        }
        let others_are_light = self.lights.has_other(now, vm);
        let is_pressed = self.shares.promises.targets.presses(now, vm);
        self.governor.busy(self.busy, is_pressed);
        if self.price.withheld().is_some() {
            return true;
        }
        let splits = self.lights.has_other(now, usize::MAX);
        self.governor.probe(now, splits);
        self.part = Sectors::from_bytes(self.governor.part_bytes());
        if !std::mem::replace(&mut self.waits, true) {
            self.governor.resume(now);
        }
        let times = match others_are_light {
            true if !is_light => 1.0,
            true if self.is_heavy(vm) => BEHIND_TIMES,
            _ => BUSY_TIMES,
        };
        let squeeze = self.shares.promises.targets.squeeze(now, vm);
        let InFlight { all, writes } = self.in_flight.less(self.hung);
        self.governor.allows(all, cost, times * squeeze)
            && (op != Op::Write || self.governor.allows_write(writes, cost))
    }

    /// A command of this VM is in the device, by the id of its first request.
    fn in_device(&mut self, vm: usize, id: RequestId, op: Op, extent: Extent) -> u64 {
        let cost = cost::of_command(extent.len());
        self.in_flight = self.in_flight.plus(InFlight::of(op, cost));
        self.members.sent(extent, cost);
        let known = self.vms[vm].as_mut().expect("a command of a VM that is attached");
        known.in_flight += 1;
        match self.flying.get_mut(id) {
            Some(flight) => flight.parts += 1,
            None => self.flying.insert(id, Flight { serial: known.serial, parts: 1 }),
        }
        cost
    }

    /// A command is done. Is its VM still the one that sent it? `None`: nothing is known of it.
    fn left_device(&mut self, now: Instant, command: &Request, sent: Instant) -> Option<bool> {
        self.run.end();
        let flight = self.flying.get_mut(command.id)?;
        let serial = flight.serial;
        flight.parts -= 1;
        if flight.parts == 0 {
            self.flying.remove(command.id);
        }
        let cost = cost::of_command(command.extent.len());
        let freed = InFlight::of(command.op, cost);
        self.in_flight = self.in_flight.less(freed);
        self.members.done(command.extent, cost);
        self.progress = now;
        if sent < self.hung_since {
            self.hung = self.hung.less(freed);
        }
        // What went at the very instant of the stall is in `hung`, and not before it.
        self.hung = self.hung.min(self.in_flight);
        if let Some(withheld) = self.price.withheld() {
            if self.price.completed(now, command.op, cost) {
                self.place_all(now, withheld == Class::Writes);
            }
        } else if self.waits {
            if self.is_heavy(command.vm.index()) {
                self.governor.heavy();
            }
            self.governor.completed(now, command.op == Op::Write, cost, sent);
        }
        let known = self.vms.get_mut(command.vm.index()).and_then(Option::as_mut);
        let Some(known) = known.filter(|known| known.serial == serial) else {
            return Some(false);
        };
        known.in_flight -= 1;
        known.outstanding -= cost;
        known.done = now;
        self.busy -= u32::from(known.in_flight == 0 && known.queue.is_empty());
        Some(true)
    }

    /// Nothing has gone or come back for too long: what is in the device may never be done.
    fn stalled(&mut self, now: Instant) {
        (self.hung, self.hung_since) = (self.in_flight, now);
        self.governor.stalled(now);
    }
}

impl Scheduler for Flash {
    fn attach(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        if self.vms.len() <= vm.index() {
            self.vms.resize_with(vm.index() + 1, || None);
        }
        self.attached += 1;
        self.here += 1;
        self.shares.attach(vm.index(), &spec);
        self.vms[vm.index()] = Some(Vm {
            serial: self.attached,
            queue: Queue::default(),
            withheld: None,
            outstanding: 0,
            in_flight: 0,
            awake_since: now,
            done: now,
            pauses: Pauses::default(),
            behind_at: None,
        });
    }

    fn detach(&mut self, _now: Instant, vm: VmId) -> Vec<Request> {
        let Some(known) = self.vms.get_mut(vm.index()).and_then(Option::take) else {
            return Vec::new();
        };
        self.here -= 1;
        self.lights.forget(vm.index());
        self.shares.detach(vm.index());
        self.busy -= u32::from(known.in_flight > 0 || !known.queue.is_empty());
        self.run.end();
        self.queued.take_vm(vm)
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.run.end();
        let (vm, id) = (request.vm.index(), request.id);
        self.note_behind(now, vm, request.extent.len());
        let known = self.vms[vm].as_mut().expect("a request of a VM that is not attached");
        if self.busy == 0 {
            self.governor.resume_after(now, now.since(self.progress));
        }
        self.busy += u32::from(known.queue.is_empty() && known.in_flight == 0);
        known.queue.class(request.op).push(&mut self.links, id);
        known.outstanding += cost::of_command(request.extent.len());
        self.queued.insert(request);
        self.note_light(now, vm);
        if self.price.withheld().is_some() && self.shares.promises.has(vm) {
            self.price.give_up();
            self.place_all(now, false);
        }
        self.place(now, vm);
    }

    fn withdraw(&mut self, now: Instant, id: RequestId) {
        self.run.end();
        let request = self.queued.take(id);
        let vm = request.vm.index();
        let known = self.vms[vm].as_mut().expect("a queued request has a VM");
        known.queue.class(request.op).remove(&mut self.links, id);
        known.outstanding -= cost::of_command(request.extent.len());
        self.busy -= u32::from(known.in_flight == 0 && known.queue.is_empty());
        self.place(now, vm);
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        let request = &completion.request;
        let Some(is_its_vms) = self.left_device(now, request, completion.dispatched) else {
            return;
        };
        let vm = request.vm.index();
        let Some(known) = self.vms.get(vm).and_then(Option::as_ref).filter(|_| is_its_vms) else {
            return;
        };
        let cost = cost::of_command(request.extent.len());
        if self.waits && known.outstanding + cost <= LIGHT {
            let took = now.since(request.arrived);
            self.governor.answered(request.op == Op::Write, cost, took);
        }
        self.shares.promises.targets.completed(now, completion);
    }

    fn background_most(
        &mut self,
        now: Instant,
        vm: VmId,
        len: Sectors,
        _device: &DeviceView<'_>,
    ) -> Sectors {
        let most = self.most(now, vm.index());
        let cost = cost::of_command(len.min(most));
        let goes = self.may_go(now, vm.index(), Op::Read, cost, false);
        if goes { most } else { Sectors::ZERO }
    }

    fn background_place(&self, vm: VmId) -> u128 {
        self.shares.tag(vm.index())
    }

    fn background_sent(&mut self, now: Instant, command: &Request) {
        let vm = command.vm.index();
        let known = self.vms[vm].as_ref().expect("a prefetch of a VM that is attached");
        self.busy += u32::from(known.queue.is_empty() && known.in_flight == 0);
        let cost = self.in_device(vm, command.id, command.op, command.extent);
        self.vms[vm].as_mut().expect("it is attached").outstanding += cost;
        self.progress = now;
        self.shares.charge_background(now, vm, cost, command.extent.len());
    }

    fn background_completed(&mut self, now: Instant, command: &Request, sent: Instant) {
        self.left_device(now, command, sent);
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        let nothing = self.try_price(now, device);
        let Some(vm) = self.shares.first(now) else {
            return if self.queued.is_empty() { Decision::Idle } else { nothing };
        };
        if let Some(vm) = self.continuation(now) {
            let head = *self.vm(vm).and_then(|v| v.head(&self.queued)).expect("it continues");
            return self.send(now, vm, head, Sectors::new(u64::MAX), true);
        }
        self.members.set(device.profile.stripe);
        let (next, most) = (self.next(vm), self.most(now, vm));
        let cost = cost::of_command(next.extent.len().min(most));
        let is_light = self.is_light(now, vm);
        if !self.may_go(now, vm, next.op, cost, is_light) && device.commands > 0 {
            let until = self.progress + STALL;
            if now < until {
                return Decision::Wait { until: Some(until), why: DEPTH };
            }
            self.stalled(now);
        }
        self.send(now, vm, next, most, false)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("bound_bytes", self.governor.bound().unwrap_or(0.0));
        sink("rate_bytes_per_s", self.governor.rate() * 1e9);
        sink(
            "delay_us",
            if self.governor.delay().is_finite() { self.governor.delay() / 1e3 } else { 0.0 },
        );
        sink("in_flight_bytes", self.in_flight.all as f64);
        sink("part_bytes", self.part.bytes() as f64);
        sink("parts", self.parts as f64);
        sink("write_price", self.price.times());
        self.shares.promises.metrics(sink);
    }

    fn vm_metrics(&self, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        self.shares.vms().for_each(|vm| self.shares.promises.vm_metrics(vm, sink));
    }
}

// Load of an array's members.
//
// The governor's bound is what keeps the whole device busy. Requests at random places fill one
// member and leave another idle: then a light VM waits for the one, and the other does nothing. So
// the next request is one for the member that has least to do, and of equal ones the oldest. A
// request that is passed over goes when its member has run dry, or when all that are looked at are
// for this member. Another VM may keep that member busy: then it may be long, up to the
// dispatcher's hard limit. Linux's md chooses in the same way between the mirrors of RAID 1
// (`read_balance`), where a request may go to either.

/// Cost in flight by member; nothing while the stripe is not known.
#[derive(Default)]
pub struct Members {
    stripe: Option<Stripe>,
    in_flight: Vec<u64>,
}

impl Members {
    /// The device is such an array, or none.
    pub fn set(&mut self, stripe: Option<Stripe>) {
        if self.stripe != stripe {
            self.stripe = stripe;
            self.in_flight = vec![0; stripe.map_or(0, |stripe| stripe.members() as usize)];
        }
    }

    pub fn are_known(&self) -> bool {
        self.stripe.is_some()
    }

    /// Load of the member on which a command begins. It may reach others: they do not count.
    fn of(&mut self, extent: Extent) -> Option<&mut u64> {
        let member = self.stripe?.member(extent.start());
        self.in_flight.get_mut(member)
    }

    pub fn sent(&mut self, extent: Extent, cost: u64) {
        if let Some(in_flight) = self.of(extent) {
            *in_flight += cost;
        }
    }

    /// Commands that went before the stripe was known count as nothing.
    pub fn done(&mut self, extent: Extent, cost: u64) {
        if let Some(in_flight) = self.of(extent) {
            *in_flight = in_flight.saturating_sub(cost);
        }
    }

    /// The first of these requests among those for the member that has least to do.
    pub fn idlest<'a>(&self, requests: impl Iterator<Item = &'a Request>) -> Option<&'a Request> {
        let stripe = self.stripe?;
        requests.min_by_key(|request| self.in_flight[stripe.member(request.extent.start())])
    }
}

// Records of a VM, and of a request that is under way.

/// A VM's record.
pub struct Vm {
    /// Tells a VM from the one that had its number before.
    pub serial: u64,
    pub queue: Queue,
    /// Its requests of this class may not go now.
    pub withheld: Option<Class>,
    /// Cost of its requests that are queued or in flight.
    pub outstanding: u64,
    pub in_flight: u32,
    /// Since when it has been active, without a [pause](PAUSE).
    pub awake_since: Instant,
    /// When its last request was done, and how long it pauses until the next.
    pub done: Instant,
    pub pauses: Pauses,
    /// When it was last found to have less than its share.
    pub behind_at: Option<Instant>,
}

impl Vm {
    /// Which of its requests goes next, of those that may go.
    pub fn head<'a>(&self, queued: &'a Pool) -> Option<&'a Request> {
        self.queue.head(queued, self.withheld)
    }
}

/// A request, or a prefetch, of which something is in flight.
pub struct Flight {
    pub serial: u64,
    /// Its parts that are in flight, or 1.
    pub parts: u32,
}

// A VM's queue on flash: which of its reads and writes goes next.

/// So few writes of a VM do not keep its reads waiting for long: all go by age.
const FEW: usize = 4;

/// A VM's queue: its reads by age, and all else by age. When it has both, and more than a [`FEW`]
/// writes, both have the same cost: a read does not wait for all that the guest's write-back has
/// sent before it (Linux's kyber and deadline favour reads more), and a write that somebody waits
/// for does not wait for all reads.
#[derive(Default)]
pub struct Queue {
    reads: ExpiryQueue,
    writes: ExpiryQueue,
    /// The cost that writes may have before the next read, from -[`QUANTUM`] to [`QUANTUM`].
    credit: i64,
}

impl Queue {
    /// Its reads, or all else.
    pub fn class(&mut self, op: Op) -> &mut ExpiryQueue {
        if op == Op::Read { &mut self.reads } else { &mut self.writes }
    }
    /// As [`Queue::class`], to look at.
    pub fn of(&self, op: Op) -> &ExpiryQueue {
        if op == Op::Read { &self.reads } else { &self.writes }
    }
    /// The next request, of any class but the one that is withheld: by age while writes are few,
    /// else by credit.
    pub fn head<'a>(&self, queued: &'a Pool, withheld: Option<Class>) -> Option<&'a Request> {
        let first = |class: &ExpiryQueue| queued.get(class.head()?);
        let read = first(&self.reads).filter(|_| withheld != Some(Class::Reads));
        let write = first(&self.writes).filter(|_| withheld != Some(Class::Writes));
        match (read, write) {
            (Some(read), Some(write)) if self.writes.len() <= FEW => {
                Some(if write.arrived < read.arrived { write } else { read })
            }
            (Some(_), Some(write)) if self.credit > 0 => Some(write),
            (read, write) => read.or(write),
        }
    }
    /// Is neither a read nor anything else queued?
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
    /// Charges a command of this cost that goes, before its request is taken out.
    pub fn charge(&mut self, op: Op, cost: u64) {
        if !self.reads.is_empty() && !self.writes.is_empty() {
            let cost = cost.min(QUANTUM) as i64;
            let credit = self.credit + if op == Op::Read { cost } else { -cost };
            self.credit = credit.clamp(-(QUANTUM as i64), QUANTUM as i64);
        }
    }
}

// Which VMs count as light now, so that others keep the device's queue short for them.
//
// A VM is light for some time after each of its requests came. How long depends on its own pauses: a
// VM that has come back after a second is expected within two. Linux's BFQ decides by a VM's own
// think time in the same way whether to wait for it (`bfq_update_io_thinktime`).

/// A VM counts as light for at least this time after its last request.
const LEAST: Nanos = Nanos::from_millis(100);

/// Nobody waits for a VM whose pauses are longer: others would be held back for good, for a request
/// that seldom comes.
const PAUSE_MAX: Nanos = Nanos::from_secs(5);

/// A VM is expected for this multiple of its pause.
const TIMES: u64 = 2;

/// The longest pause of a VM between its requests of late. Each later pause takes a quarter off, so
/// that an exception is forgotten. A new VM is expected to come back: if it does not, others have
/// lost a little once.
#[derive(Clone, Copy)]
pub struct Pauses(Nanos);

impl Default for Pauses {
    fn default() -> Self {
        Pauses(PAUSE_MAX.scaled(1, TIMES))
    }
}

impl Pauses {
    /// Hears of the pause between the end of the VM's last request and the next one's arrival.
    pub fn ended(&mut self, pause: Nanos) {
        if pause > LEAST {
            self.0 = pause.max(self.0.scaled(3, 4));
        }
    }

    /// Time within which the VM is expected back after its last request.
    fn patience(self) -> Nanos {
        if self.0 > PAUSE_MAX { LEAST } else { self.0.scaled(TIMES, 1).max(LEAST) }
    }
}

/// A VM, and until when it counts as light.
type Entry = (usize, Instant);

/// Until when each VM counts as light.
#[derive(Default)]
pub struct Lights {
    /// By VM; zero: not at all.
    until: Vec<Instant>,
    /// The two that are light for longest, which tell whether there is one beside any VM.
    longest: [Option<Entry>; 2],
}

impl Lights {
    /// The VM has sent something while it had little outstanding.
    pub fn note(&mut self, now: Instant, vm: usize, pauses: Pauses) {
        if self.until.len() <= vm {
            self.until.resize(vm + 1, Instant::ZERO);
        }
        let until = now + pauses.patience();
        let is_sooner = until < self.until[vm];
        self.until[vm] = until;
        if is_sooner {
            return self.look();
        }
        let known = self.longest.iter_mut().flatten().find(|(light, _)| *light == vm);
        if let Some(entry) = known {
            entry.1 = until;
        } else if self.longest[1].is_none_or(|(_, at)| at < until) {
            self.longest[1] = Some((vm, until));
        }
        if self.longest[0].map(|(_, at)| at) < self.longest[1].map(|(_, at)| at) {
            self.longest.swap(0, 1);
        }
    }

    /// The VM is not light, or has left.
    pub fn forget(&mut self, vm: usize) {
        if self.until.get(vm).is_some_and(|&until| until > Instant::ZERO) {
            self.until[vm] = Instant::ZERO;
            if self.longest.iter().flatten().any(|&(light, _)| light == vm) {
                self.look();
            }
        }
    }

    /// Look through all VMs for the two that are light for longest.
    fn look(&mut self) {
        self.longest = [None; 2];
        for (vm, &until) in self.until.iter().enumerate().filter(|(_, at)| **at > Instant::ZERO) {
            let [first, second] = &mut self.longest;
            if first.is_none_or(|(_, at)| at < until) {
                (*second, *first) = (*first, Some((vm, until)));
            } else if second.is_none_or(|(_, at)| at < until) {
                *second = Some((vm, until));
            }
        }
    }

    /// Is a VM other than this one light?
    pub fn has_other(&self, now: Instant, vm: usize) -> bool {
        self.longest.iter().flatten().any(|&(light, until)| light != vm && now <= until)
    }
}

#[cfg(test)]
mod members_tests {
    use super::*;
    use crate::schedulers;
    use seekway_core::request::{Completion, Op, RequestId, VmId};
    use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, VmSpec};
    use seekway_core::units::{Instant, Lba, Nanos, Sectors};
    use std::collections::BTreeSet;

    fn read(id: u32, vm: u16, chunk: u64) -> Request {
        let extent = Extent::new(Lba::new(128 * chunk), Sectors::new(8)).unwrap();
        let (id, vm, arrived) = (RequestId::new(id), VmId::new(vm), Instant::ZERO);
        Request { id, vm, tag: None, op: Op::Read, sync: true, extent, arrived }
    }

    /// Of 5,000 reads.
    struct Found {
        /// Number of the second VM's.
        of_second: u32,
        /// Time of all, over that with both drives at work.
        took: f64,
        /// Number of the first VM's that went after a younger one.
        overtaken: u32,
    }

    /// Two drives that take 100 µs for a read, and two VMs that read at random places, one with 64
    /// reads outstanding, promised `first`, and one with a single one.
    fn of_5000(stripe: Option<Stripe>, first: VmSpec) -> Found {
        let mut policy = schedulers::build("fairway").unwrap();
        let profile = DeviceProfile::unknown(Sectors::new(1 << 20), false);
        let profile = DeviceProfile { stripe, ..profile };
        let (mut now, mut random) = (Instant::ZERO, 1_u64);
        let mut place = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            random >> 52
        };
        let vm_of = |id: u32| u16::from(id == 64);
        policy.attach(now, VmId::new(0), first);
        policy.attach(now, VmId::new(1), VmSpec::default());
        let mut chunks: Vec<u64> = (0..65).map(|_| place()).collect();
        (0..65).for_each(|id| policy.arrived(now, read(id, vm_of(id), chunks[id as usize])));
        let (mut free, mut under_way) = ([now; 2], BTreeSet::new());
        let (mut done, mut of_second) = (0, 0);
        let (mut arrived, mut last, mut overtaken) = ([now; 65], now, 0);
        while done < 5_000 {
            let commands = under_way.len() as u32;
            let view = DeviceView { depth: 128, commands, ..DeviceView::idle(Lba::ZERO, &profile) };
            if let Decision::Dispatch(id) = policy.decide(now, &view) {
                if id.slot() < 64 {
                    overtaken += u32::from(arrived[id.slot()] < last);
                    last = last.max(arrived[id.slot()]);
                }
                let drive = &mut free[chunks[id.slot()] as usize % 2];
                *drive = now.max(*drive) + Nanos::from_micros(100);
                under_way.insert((*drive, id.slot() as u32, now));
                continue;
            }
            let (at, id, dispatched) = under_way.pop_first().expect("something is under way");
            now = at;
            let request = read(id, vm_of(id), chunks[id as usize]);
            let completion = Completion::alone(request, dispatched, Nanos::from_micros(100));
            policy.completed(now, &completion);
            done += 1;
            of_second += u32::from(vm_of(id));
            (chunks[id as usize], arrived[id as usize]) = (place(), now);
            policy
                .arrived(now, Request { arrived: now, ..read(id, vm_of(id), chunks[id as usize]) });
        }
        Found { of_second, took: now.as_secs_f64() / (100e-6 * 5_000.0 / 2.0), overtaken }
    }

    #[test]
    fn a_quiet_vm_waits_less_and_the_drives_do_as_much() {
        let stripe = Stripe::new(2, Sectors::new(128));
        let [known, unknown] = [stripe, None].map(|stripe| of_5000(stripe, VmSpec::default()));
        let reads = (known.of_second, unknown.of_second);
        assert!(f64::from(reads.0) > 1.2 * f64::from(reads.1), "{reads:?} reads");
        assert!(known.took < 1.05 * unknown.took, "{} and {}", known.took, unknown.took);
        assert!(known.overtaken > 100 && unknown.overtaken == 0, "{}", known.overtaken);
    }

    /// Else what its oldest request brings it goes to another.
    #[test]
    fn a_vm_with_a_promise_sends_its_oldest_request() {
        let latency = Some(Nanos::from_millis(5));
        let spec = VmSpec { latency, ..VmSpec::default() };
        assert_eq!(of_5000(Stripe::new(2, Sectors::new(128)), spec).overtaken, 0);
    }

    #[test]
    fn what_is_done_is_no_longer_counted_and_nothing_goes_below_zero() {
        let mut members = Members::default();
        let (first, second) = (read(0, 0, 0), read(1, 0, 1));
        members.done(first.extent, 8192);
        assert!(members.idlest([&first].into_iter()).is_none() && !members.are_known());
        members.set(Stripe::new(2, Sectors::new(128)));
        members.done(first.extent, 8192);
        members.sent(first.extent, 8192);
        let idlest = |members: &Members| members.idlest([&first, &second].into_iter()).unwrap().id;
        assert_eq!(idlest(&members), second.id);
        members.done(first.extent, 8192);
        assert_eq!(idlest(&members), first.id);
    }
}

#[cfg(test)]
mod queue_tests {
    use super::*;
    use crate::schedulers::fairway::cost;
    use seekway_core::queues::Links;
    use seekway_core::request::{Extent, RequestId, VmId};
    use seekway_core::units::{Instant, Lba, Sectors};

    /// A VM's queue, to which requests came one after another.
    fn queue(ops: &[Op]) -> (Queue, Pool, Links) {
        let (mut queue, mut queued, mut links) = (Queue::default(), Pool::new(), Links::new());
        for (n, &op) in ops.iter().enumerate() {
            let extent = Extent::new(Lba::new(n as u64 * 16), Sectors::new(8)).unwrap();
            let (id, arrived) = (RequestId::new(n as u32), Instant::from_nanos(n as u64));
            let request =
                Request { id, vm: VmId::new(0), tag: None, op, sync: true, extent, arrived };
            queue.class(op).push(&mut links, id);
            queued.insert(request);
        }
        (queue, queued, links)
    }

    /// In which order they go.
    fn order(ops: &[Op]) -> Vec<u32> {
        let (mut queue, mut queued, mut links) = queue(ops);
        std::iter::from_fn(|| {
            let Request { id, op, extent, .. } = *queue.head(&queued, None)?;
            queue.charge(op, cost::in_shares(op, cost::of_command(extent.len()), 2.0));
            queue.class(op).remove(&mut links, id);
            queued.take(id);
            Some(id.slot() as u32)
        })
        .collect()
    }

    #[test]
    fn reads_and_a_few_writes_go_by_age() {
        use Op::{Read, Write};
        let ops = [Write, Read, Write, Write, Read, Read, Write];
        assert_eq!(order(&ops), (0..7).collect::<Vec<_>>());
    }

    #[test]
    fn beside_many_writes_a_vms_reads_have_as_much_cost() {
        let ops = [vec![Op::Write; 40], vec![Op::Read; 40]].concat();
        let order = order(&ops);
        // A write costs two reads.
        let reads = order[..30].iter().filter(|&&n| n >= 40).count();
        assert!((19..=21).contains(&reads), "{order:?}");
        let is_sorted = |of: &dyn Fn(&u32) -> bool| {
            order.iter().filter(|n| of(n)).collect::<Vec<_>>().is_sorted()
        };
        assert!(is_sorted(&|&n| n < 40) && is_sorted(&|&n| n >= 40), "{order:?}");
    }
}

#[cfg(test)]
mod light_tests {
    use super::*;
    use std::collections::BTreeMap;

    fn at_ms(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    fn pauses(ms: &[u64]) -> Pauses {
        let mut pauses = Pauses::default();
        ms.iter().for_each(|&ms| pauses.ended(Nanos::from_millis(ms)));
        pauses
    }

    #[test]
    fn a_vm_is_expected_for_twice_its_own_pause() {
        let patience_ms = |ms: &[u64]| pauses(ms).patience().get() / 1_000_000;
        assert_eq!(patience_ms(&[]), 5_000, "a VM of which nothing is known");
        assert_eq!(patience_ms(&[1, 50, 100]), 5_000, "pauses that are short anyway");
        assert_eq!(patience_ms(&[1_000; 9]), 2_000);
        assert_eq!(patience_ms(&[101; 20]), 202);
        // The short ones of a burst do not hide the pause before it.
        assert_eq!(patience_ms(&[1_900, 1, 1, 1, 1, 1, 1, 1, 1]), 3_800);
        assert_eq!(patience_ms(&[4_000, 200]), 6_000, "an exception is forgotten bit by bit");
        assert_eq!(patience_ms(&[60_000]), 100, "a VM that is hardly ever there");
    }

    #[test]
    fn the_two_longest_tell_of_all() {
        let mut rng = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = |below: u64| {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            rng % below
        };
        let (mut lights, mut naive) = (Lights::default(), BTreeMap::new());
        for step in 0..20_000 {
            let (now, vm) = (at_ms(step * 20), draw(6) as usize);
            if draw(3) > 0 {
                let pauses = pauses(&[draw(1_500)]);
                lights.note(now, vm, pauses);
                naive.insert(vm, now + pauses.patience());
            } else {
                lights.forget(vm);
                naive.remove(&vm);
            }
            for vm in 0..7 {
                let expected = naive.iter().any(|(&light, &until)| light != vm && now <= until);
                assert_eq!(lights.has_other(now, vm), expected, "step {step}, beside {vm}");
            }
        }
    }
}

//! Fair shares of a device that works on several commands at once.
//!
//! *Who goes next* is for [`shares`](super::shares) to say, by what commands cost in bytes. Of a
//! write each byte counts twice. What of a VM goes next, its [`Queue`] says.
//!
//! *Depth.* While a *light* VM is active beside others, what is in the device stays within the
//! [governor](super::governor)'s bound, and else within three times that, so that a VM that comes
//! finds a short queue. Only where no other VM is attached there is no bound. A VM is light if what
//! it has outstanding costs at most [`LIGHT`], or if it has a target of latency, and stays so for a
//! while after its last request: see [`light`]. A target that is missed shrinks the bound of the
//! others.
//!
//! *Parts.* Nothing stops a command that has begun. So a long request goes in parts while other VMs
//! are attached, and in shorter ones while one of them is light.
//!
//! *Members.* Where the device is an array whose chunks are known, the next request of the VM goes
//! to the member that has least to do: see [`members`].
//!
//! *Prefetches* are their VM's: they count in its share and in the bound, as a heavy VM's commands do.
//!
//! *Stalls.* A command that the device never completes must not keep others waiting. After
//! [`STALL`] without any progress, what is in the device no longer counts against the bound.

mod light;
mod members;
mod queue;
mod vm;

use super::cost::{self, InFlight};
use super::governor::{self, Governor};
use super::price::{Class, Price};
use super::shares::{Shares, Work};
use crate::schedulers::merge::Run;
use light::{Lights, Pauses};
use members::Members;
use queue::Queue;
use seekway_core::params::Params;
use seekway_core::queues::{Links, Pool, Slots};
use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Nanos, Sectors};
use vm::{Flight, Vm};

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
    /// When the trial of the price began: what those VMs had outstanding whose requests may go.
    asked: u64,
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
            asked: 0,
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
        self.asked = 0;
        for vm in 0..self.vms.len() {
            self.place(now, vm);
            let goes = self.vm(vm).filter(|known| known.head(&self.queued).is_some());
            self.asked += goes.map_or(0, |known| known.outstanding);
        }
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
            let is_busy = self.governor.bound().is_none_or(|b| self.in_flight.all as f64 >= b)
                || 2 * self.in_flight.all >= self.asked;
            if self.price.completed(now, command.op, cost, is_busy) {
                self.place_all(now, withheld == Class::Writes);
            }
        } else if self.waits {
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
            self.governor.resume(now);
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
        if self.lights.is_noted(vm) {
            self.lights.note(now, vm, known.pauses);
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
        let is_withheld = self.price.withheld() == Some(Class::Reads);
        let goes = !is_withheld && self.may_go(now, vm.index(), Op::Read, cost, false);
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

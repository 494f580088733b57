//! Fair shares of a disk with a head: one sweep over all VMs that are not too far ahead.
//!
//! *Shares.* Each VM is charged the device time of its commands, over its weight ([`Tags`]). A VM
//! that is more than [`WINDOW`] of its own device time ahead of the active VM that has had least is
//! *spent*: it waits until it no longer is.
//!
//! *Even charges.* A command after another VM's is charged what such commands cost on average, and
//! the rest bit by bit ([`super::head_vm::Owed`]): its place in the sweep is not its VM's doing.
//!
//! *Sweep.* Of all VMs that are not spent, the request goes next that lies next above the head,
//! and if there is none the lowest (C-SCAN), of another VM than the last if there is one. One that
//! has waited too long goes before its VM's others.
//!
//! *Slices.* A VM with several requests keeps the head for [`SLICE`] and sends them in the order of
//! the sweep: the way from VM to VM is paid once for all of them (CFQ's slices; Argon's
//! quanta: Wachs et al., FAST 2007). It is spent then until the others have caught up. A single
//! request of another VM ends the slice after [`SHORT_TURN`], and so does a target of latency.
//!
//! *Waking.* A VM that wakes is behind the others by 10 ms at most: what asks for little goes next.
//!
//! *Streams.* A request that begins where the last one ended goes first, until the stream has had
//! [`TURN`] of the device. If it is not there yet, the disk is held for it ([`super::head_vm::Pause`]),
//! for `stay` or half of what it costs to come back. While a VM waits with a single request a stream has
//! [`SHORT_TURN`], half as long again for each VM beyond two: on disks slower by the number of VMs
//! they would wait as long, and a stream among many would else pay for the way back and get no
//! further.
//!
//! *Promises.* A request that is due for a target of latency goes first while its VM is not spent,
//! and then one of the VM whose reservation is furthest behind ([`super::promises`]).
//!
//! *Short queues.* If only spent VMs have requests, because a VM that has had less is between two
//! requests, the disk is held for that one, for `hold` at most. All holds are charged to the VM
//! that is waited for.

#[cfg(test)]
mod tests;

use super::head_vm::{FEW, Vm};
use super::promises::Promises;
use crate::runs::Run;
use crate::schedulers::fairway::promises::Reserves;
use seekway_core::device_time::{Clock, Reading};
use seekway_core::means::Mean;
use seekway_core::params::Params;
use seekway_core::queues::{KeyedHeap, LbaQueue, Links, Pool, Slots};
use seekway_core::request::{Completion, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Group, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos};

/// The disk is held for a stream's next request.
pub const STREAM: &str = "stream";

/// The disk is held for the next request of a VM that has had less than others.
pub const SHARE: &str = "share";

/// A VM whose lead is longer is spent: about the time of one command, so that the sweep has the
/// requests of several VMs to choose from.
const WINDOW: Nanos = Nanos::from_millis(10);

/// Cost of a command in the reservations: all cost much the same on a disk.
const COMMAND: u64 = 1 << 20;

/// Time for which a stream keeps the head: CFQ's slice.
const TURN: Nanos = Nanos::from_millis(100);

/// As [`TURN`], while a VM waits with a single request.
const SHORT_TURN: Nanos = Nanos::from_millis(10);

/// Time for which a VM with several requests keeps the head: with 25 and 50 ms the mean regret in
/// the arena is higher.
const SLICE: Nanos = Nanos::from_millis(35);

/// The slices of all VMs with work fit into this.
const ROUND: Nanos = Nanos::from_millis(500);

/// A request that has waited this many times its VM's mean goes before the VM's others.
const OLDEST: f64 = 0.5;

/// As [`OLDEST`], in a VM alone: a sweep takes twice the mean. It does not come to all requests: reads
/// and writes take the head from each other, and each goes on where the other left it.
const OLDEST_ALONE: f64 = 2.0;

/// Time that the disk waits for a command that it does not complete.
const STALL: Nanos = Nanos::from_secs(1);

/// A request on the disk.
struct Flight {
    serial: u64,
    /// The command, of its first request.
    command: Option<Command>,
}

/// A command on the disk.
#[derive(Clone, Copy)]
struct Command {
    entered: Reading,
    /// Charge when it went.
    charged: Nanos,
    /// The command before was another VM's.
    switches: bool,
    /// Time of the head's way by the device's profile, if it switches.
    way: Option<Nanos>,
}

/// The stream, or the single request, at which the head stands.
struct Dwell {
    vm: usize,
    /// Where it goes on.
    end: Lba,
    /// Requests that continued it.
    run: u32,
}

/// Work is withheld for a VM.
struct Hold {
    vm: usize,
    since: Instant,
    until: Instant,
}

pub struct Head {
    stay: Nanos,
    hold: Nanos,
    /// A VM that waits with its only request.
    single: Option<usize>,
    last_vm: usize,
    /// Of commands after another VM's: how long the head is on its way, and what they cost.
    way: Mean,
    switch: Mean,
    queued: Pool,
    links: Links,
    vms: Vec<Option<Vm>>,
    tags: Tags,
    promises: Promises,
    /// The spent VMs, by the least tag at which they are served again.
    spent: KeyedHeap<u128>,
    /// A request of each VM that has some and is not spent.
    sweep: LbaQueue,
    /// Where the head is, or will be.
    at: Lba,
    flying: Slots<Flight>,
    /// Commands of prefetches on the disk: whose, by its serial, and since when.
    prefetches: Slots<(u64, Reading)>,
    clock: Clock,
    run: Run,
    dwell: Option<Dwell>,
    holding: Option<Hold>,
    /// The last hold for a VM with a short queue was in vain; nothing has happened since.
    in_vain: bool,
    attached: u64,
    holds: u64,
    streams: u64,
}

impl Head {
    pub fn new(params: &Params) -> Self {
        Head {
            stay: params.duration("stay").min(STALL),
            hold: params.duration("hold").min(STALL),
            single: None,
            last_vm: usize::MAX,
            way: Mean::default(),
            switch: Mean::default(),
            queued: Pool::new(),
            links: Links::new(),
            vms: Vec::new(),
            tags: Tags::default(),
            promises: Promises::default(),
            spent: KeyedHeap::default(),
            sweep: LbaQueue::new(),
            at: Lba::ZERO,
            flying: Slots::new(),
            prefetches: Slots::new(),
            clock: Clock::new(),
            run: Run::default(),
            dwell: None,
            holding: None,
            in_vain: false,
            attached: 0,
            holds: 0,
            streams: 0,
        }
    }

    fn vm(&self, vm: usize) -> Option<&Vm> {
        self.vms.get(vm)?.as_ref()
    }

    /// Keep what a VM was promised true, after its queue has changed.
    fn promise(&mut self, now: Instant, vm: usize) {
        if !self.promises.has(vm) {
            return;
        }
        let Some(known) = self.vms[vm].as_ref() else { return };
        let heads = known.heads().filter_map(|id| self.queued.get(id));
        let arrived = heads.map(|head| head.arrived).min();
        self.promises.set_work(now, vm, arrived);
    }

    /// Keep a VM's place in the sweep true.
    fn place(&mut self, vm: usize) {
        let Some(known) = self.vms[vm].as_mut() else { return };
        let next = if known.spent { None } else { known.next(&self.queued, self.at) };
        let next = next.and_then(|id| self.queued.get(id)).copied();
        if known.placed != next {
            if let Some(before) = std::mem::replace(&mut known.placed, next) {
                self.sweep.remove(&before);
            }
            if let Some(next) = next {
                self.sweep.insert(&next);
            }
        }
    }

    /// Set a VM aside that is too far ahead, if it is.
    fn spend(&mut self, vm: usize) -> bool {
        let level = self.tags.level_at(vm, WINDOW);
        let is_ahead = level > self.tags.least();
        if is_ahead && let Some(known) = self.vms[vm].as_mut() {
            known.spent = true;
            self.spent.set(vm as u32, Some(level));
            self.place(vm);
        }
        is_ahead
    }

    /// The VM's tag has changed.
    fn retag(&mut self, vm: usize) {
        if self.spent.get(vm as u32).is_some() {
            let level = self.tags.level_at(vm, WINDOW);
            self.spent.set(vm as u32, Some(level));
        }
    }

    /// Serve those again that are no longer too far ahead.
    fn release(&mut self) {
        let least = self.tags.least();
        while let Some((level, vm)) = self.spent.first()
            && level <= least
        {
            self.release_one(vm as usize);
        }
    }

    fn release_one(&mut self, vm: usize) {
        self.spent.set(vm as u32, None);
        if let Some(known) = self.vms[vm].as_mut() {
            known.spent = false;
            self.place(vm);
        }
    }

    /// A hold lasts no longer; the time until now was its VM's.
    fn end_hold(&mut self, now: Instant) {
        if let Some(Hold { vm, since, until }) = self.holding.take() {
            self.tags.charge(vm, now.min(until).since(since));
            self.retag(vm);
        }
    }

    fn hold(&mut self, now: Instant, vm: usize, until: Instant, why: &'static str) -> Decision {
        self.holds += 1;
        self.holding = Some(Hold { vm, since: now, until });
        Decision::Hold { until, why }
    }

    fn dispatch(&mut self, now: Instant, device: &DeviceView<'_>, id: RequestId) -> Decision {
        let request = self.queued.take(id);
        let leads = !self.run.extend(&request);
        let vm = request.vm.index();
        let known = self.vms[vm].as_mut().expect("a queued request has a VM");
        let (start, end) = (request.extent.start(), request.extent.end());
        self.at = end;
        let run = known.take(now, &mut self.links, &request);
        if known.stream_end != start {
            known.stream_had = Nanos::ZERO;
        }
        known.stream_end = end;
        known.stream_pause.forget();
        known.in_flight += 1;
        known.last_service = now;
        let serial = known.serial;
        // Where the sweep comes from is nobody's fault: a command after another VM's is charged
        // what such commands cost on average, and what its VM's own cost beside that.
        if self.last_vm != vm {
            known.slice_had = Nanos::ZERO;
        }
        let switches = self.last_vm != vm;
        let mean = if switches { self.switch.get() } else { known.cost.get() };
        let charged = match switches {
            true => known.owed.charge(mean.unwrap_or(Nanos::ZERO)),
            false => mean.unwrap_or(Nanos::ZERO),
        };
        let way = device.profile.positioning(device.head.distance(start)).filter(|_| switches);
        self.last_vm = vm;
        self.single = self.single.filter(|&single| single != vm);
        let command =
            leads.then(|| Command { entered: self.clock.enter(now, 1), charged, switches, way });
        if leads {
            self.tags.charge(vm, charged);
        }
        self.flying.insert(id, Flight { serial, command });
        match &mut self.dwell {
            Some(dwell) if dwell.vm == vm && dwell.end == start => {
                (dwell.end, dwell.run) = (end, run);
                self.streams += 1;
            }
            dwell => *dwell = Some(Dwell { vm, end, run }),
        }
        self.in_vain = false;
        self.place(vm);
        self.promises.reserves.charge(now, vm, 1, request.extent.len(), COMMAND);
        self.promise(now, vm);
        Decision::Dispatch(id)
    }
}

impl Scheduler for Head {
    fn attach(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        if self.vms.len() <= vm.index() {
            self.vms.resize_with(vm.index() + 1, || None);
        }
        self.attached += 1;
        self.vms[vm.index()] = Some(Vm::new(now, self.attached));
        self.tags.attach(vm.index(), u64::from(spec.weight.get()), spec.group);
        self.promises.attach(vm.index(), &spec);
    }

    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        self.end_hold(now);
        self.run.end();
        let leaving = self.queued.take_vm(vm);
        let index = vm.index();
        self.tags.detach(index);
        self.promises.detach(index);
        self.single = self.single.filter(|&single| single != index);
        self.spent.set(index as u32, None);
        if let Some(placed) = self.vms[index].take().and_then(|known| known.placed) {
            self.sweep.remove(&placed);
        }
        if self.dwell.as_ref().is_some_and(|dwell| dwell.vm == index) {
            self.dwell = None;
        }
        leaving
    }

    fn withdraw(&mut self, now: Instant, id: RequestId) {
        self.end_hold(now);
        self.run.end();
        let request = self.queued.take(id);
        let vm = request.vm.index();
        let Some(known) = self.vms[vm].as_mut() else { return };
        known.withdraw(&mut self.links, &request);
        let idle = known.is_idle();
        self.place(vm);
        self.promise(now, vm);
        if idle {
            self.tags.set_active(vm, false);
        }
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.end_hold(now);
        self.run.end();
        self.in_vain = false;
        let vm = request.vm.index();
        self.queued.insert(request);
        let known = self.vms[vm].as_mut().expect("a request of a VM that is not attached");
        if let Some(since) = known.idle_since.take() {
            known.think.learn(now.since(since).min(self.hold + self.hold));
        }
        if request.extent.start() == known.stream_end {
            known.stream_pause.end(now, self.stay);
        }
        if known.is_idle() && request.extent.start() != known.stream_end {
            self.single = Some(vm);
        } else if self.single == Some(vm) {
            self.single = None;
        }
        known.insert(&mut self.links, &request);
        let goes_first = known.goes_before_placed(&request, self.at);
        self.tags.set_active(vm, true);
        if goes_first {
            self.place(vm);
        }
        self.promise(now, vm);
        self.promises.targets.active(now, vm);
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.end_hold(now);
        self.run.end();
        self.in_vain = false;
        let request = &completion.request;
        let Some(flight) = self.flying.remove(request.id) else { return };
        let had = flight.command.map(|c| (self.clock.leave(now, c.entered, 1), c));
        let vm = request.vm.index();
        let Some(known) = self.vms.get_mut(vm).and_then(Option::as_mut) else { return };
        if known.serial != flight.serial {
            return; // Of a VM that has left.
        }
        known.in_flight -= 1;
        known.last_service = now;
        let targets = &mut self.promises.targets;
        if targets.has(vm) {
            targets.completed(now, completion);
            self.tags.set_boost(vm, targets.boost(vm));
        }
        if let Some((real, command)) = had {
            let mut had = real;
            if let Some(way) = command.way {
                self.way.learn(way);
                had = (had + self.way.get().unwrap_or(way)).saturating_sub(way);
            }
            known.cost.learn(real);
            if command.switches && self.switch.get().is_some() {
                known.owed.settle(had, command.charged);
            } else {
                self.tags.charge(vm, had.saturating_sub(command.charged));
                self.tags.give_back(vm, command.charged.saturating_sub(had));
            }
            if command.switches {
                self.switch.learn(had);
            }
            known.had(request, real);
        }
        if request.extent.end() == known.stream_end {
            known.stream_pause.begin(now);
        }
        let idle = known.is_idle();
        known.idle_since = (idle && request.sync).then_some(now);
        if idle && !request.sync {
            self.tags.set_active(vm, false);
        }
        self.retag(vm);
    }

    fn background_sent(&mut self, now: Instant, command: &Request) {
        self.end_hold(now);
        let vm = command.vm.index();
        // It uses the disk: what others have meanwhile is measured against it.
        self.tags.set_active(vm, true);
        let serial = self.vm(vm).map_or(0, |known| known.serial);
        self.prefetches.insert(command.id, (serial, self.clock.enter(now, 1)));
    }

    fn background_completed(&mut self, now: Instant, command: &Request, _sent: Instant) {
        let Some((serial, entered)) = self.prefetches.remove(command.id) else { return };
        let had = self.clock.leave(now, entered, 1);
        let vm = command.vm.index();
        if self.vm(vm).is_some_and(|known| known.serial == serial) {
            self.tags.charge(vm, had);
            self.retag(vm);
        }
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        self.at = device.head;
        if let Some(id) = self.continuation() {
            return self.dispatch(now, device, id);
        }
        self.in_vain |= self.holding.as_ref().is_some_and(|hold| hold.until <= now);
        self.end_hold(now);
        self.release();
        if let Some(id) = self.promised(now) {
            return self.dispatch(now, device, id);
        }
        if let Some(decision) = self.dwell(now, device) {
            return decision;
        }
        match self.go_on(now) {
            Some(id) => self.dispatch(now, device, id),
            None => self.sweep(now, device),
        }
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("holds", self.holds as f64);
        sink("stream_requests", self.streams as f64);
        sink("active_vms", self.tags.active() as f64);
        self.promises.metrics(sink);
    }

    fn vm_metrics(&self, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        for (vm, known) in self.vms.iter().enumerate() {
            let Some(known) = known else { continue };
            self.promises.vm_metrics(vm, sink);
            let vm = VmId::new(vm as u16);
            sink("queued", vm, known.len() as f64);
            sink("device_time_ms", vm, known.device_time.as_millis_f64());
        }
    }
}

// Which request goes next on a disk with a head, or who is waited for.

impl Head {
    /// The request that a promise wants to go now.
    fn promised(&mut self, now: Instant) -> Option<RequestId> {
        let Head { tags, vms, promises, .. } = self;
        let waits = |vm: &Option<Vm>| vm.as_ref().is_some_and(|vm| vm.heads().next().is_some());
        let is_others_turn = |reserves: &Reserves| {
            let mut others = vms.iter().enumerate().filter(|(vm, _)| !reserves.has(*vm));
            reserves.leaves(COMMAND) && others.any(|(_, vm)| waits(vm))
        };
        let vm = promises.next(now, |vm| !tags.is_ahead(vm, WINDOW), is_others_turn)?;
        let heads = self.vm(vm)?.heads().filter_map(|id| self.queued.get(id));
        Some(heads.min_by_key(|head| head.arrived)?.id)
    }

    /// The request that continues the last dispatch, if no input came since.
    fn continuation(&self) -> Option<RequestId> {
        let vm = self.run.vm()?.index();
        let id = self.vm(vm)?.following(self.dwell.as_ref()?.end)?;
        self.run.continues(self.queued.get(id)?).then_some(id)
    }

    /// Time for which a stream keeps the head: less while a VM waits that has a single request.
    fn turn(&self) -> Nanos {
        let active = self.tags.active().max(2) as u64;
        match self.single {
            Some(_) => TURN.min(SHORT_TURN.scaled(active, 2)),
            None => TURN,
        }
    }

    /// Longest hold of the head for a stream's next request: half of what it costs to come back
    /// from another VM, so that a hold that pays brings more than one in vain costs.
    fn stream_hold_max(&self) -> Nanos {
        self.switch.get().map_or(self.stay, |back| self.stay.min(back.scaled(1, 2)))
    }

    /// The next of the common sweep.
    fn next(&self, head: Lba) -> Option<RequestId> {
        self.sweep.at_or_after(head).or_else(|| self.sweep.first()).map(|(_, id)| id)
    }

    /// Goes on at the head: the next request of a stream, or a hold for it.
    fn dwell(&mut self, now: Instant, device: &DeviceView<'_>) -> Option<Decision> {
        let dwell = self.dwell.as_ref()?;
        let (vm, end) = (dwell.vm, dwell.end);
        let turn = self.turn();
        let known = self.vms.get(vm)?.as_ref()?;
        if self.tags.is_ahead(vm, turn) {
            self.dwell = None;
            return None;
        }
        let following = known.following(end);
        if known.stream_had >= turn {
            self.dwell = None;
            let known = self.vms[vm].as_mut()?;
            known.stream_had = Nanos::ZERO;
            // If the stream's next request is the oldest, it passes nobody.
            if known.heads().any(|id| Some(id) != following) {
                known.skip(end);
            }
            self.place(vm);
            return None;
        }
        if let Some(id) = following {
            return Some(self.dispatch(now, device, id));
        }
        let longest = self.stream_hold_max();
        if dwell.run == 0 || !known.stream_pause.is_worth(longest) {
            return None;
        }
        if known.in_flight > 0 {
            let until = known.last_service + STALL;
            return (now < until).then_some(Decision::Wait { until: Some(until), why: STREAM });
        }
        let until = known.stream_pause.until(longest)?;
        if now < until {
            return Some(self.hold(now, vm, until, STREAM));
        }
        self.vms[vm].as_mut()?.stream_pause.was_in_vain(longest);
        self.dwell = None;
        None
    }

    /// Time for which a VM with several requests keeps the head, by its weight: slices of all
    /// active VMs fit into [`ROUND`], and a VM with a single request waits for [`SHORT_TURN`] of
    /// one at most. None while another VM's target of latency presses.
    fn slice(&self, now: Instant, vm: usize) -> Nanos {
        if self.promises.targets.presses(now, vm) {
            return Nanos::ZERO;
        }
        let mean = SLICE.min(ROUND.scaled(1, self.tags.active().max(1) as u64));
        // No longer than a stream's turn: the bound of others' waits counts on it.
        let slice = self.tags.by_part(vm, mean).min(TURN);
        match self.single.is_some_and(|single| single != vm) {
            true => slice.min(SHORT_TURN),
            false => slice,
        }
    }

    /// The next request of the VM whose slice it is, in the order of its own sweep; `None` when
    /// the slice is over.
    fn go_on(&mut self, now: Instant) -> Option<RequestId> {
        let vm = self.last_vm;
        let slice = self.slice(now, vm);
        let known = self.vms.get(vm)?.as_ref()?;
        let is_over = known.slice_had >= slice || self.tags.is_ahead(vm, slice);
        if is_over || known.is_empty() {
            return None;
        }
        if known.spent {
            self.release_one(vm);
        }
        let overdue = self.overdue(now, vm);
        overdue.or_else(|| self.vms[vm].as_mut()?.next(&self.queued, self.at))
    }

    /// Is the VM's next request expected, and until when is it worth waiting for?
    fn expected_until(&self, vm: usize) -> Option<Instant> {
        let known = self.vm(vm)?;
        if known.in_flight > 0 {
            return Some(known.last_service + STALL);
        }
        let is_late = known.think.get().is_some_and(|think| think > self.hold);
        known.idle_since.filter(|_| !is_late && !self.in_vain).map(|since| since + self.hold)
    }

    /// The VM that has had least, if it has requests or some are expected of it. Others that
    /// have had as little and from which nothing is expected are no longer active.
    fn least(&mut self, now: Instant) -> Option<(usize, Option<Instant>)> {
        loop {
            let vm = self.tags.first()?;
            if !self.vm(vm)?.is_empty() {
                return Some((vm, None));
            }
            match self.expected_until(vm).filter(|&until| now < until) {
                Some(until) => return Some((vm, Some(until))),
                None => {
                    self.tags.set_active(vm, false);
                }
            }
        }
    }

    /// The next of the common sweep; or a hold for a VM that has had less than all that could go.
    fn sweep(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        loop {
            let least = self.least(now);
            self.release();
            let Some(id) = self.next(device.head) else {
                let (vm, until) = least.expect("a VM with work is active");
                let until =
                    until.expect("a VM with work that has not had its part is in the sweep");
                if self.vm(vm).is_some_and(|known| known.in_flight > 0) {
                    return Decision::Wait { until: Some(until), why: SHARE };
                }
                return self.hold(now, vm, until, SHARE);
            };
            let vm = self.queued.get(id).expect("the sweep holds queued requests").vm.index();
            if !self.spend(vm) {
                let id = self.overdue(now, vm).unwrap_or(id);
                return self.dispatch(now, device, id);
            }
        }
    }

    /// The VM's oldest request, if it has waited too long.
    fn overdue(&mut self, now: Instant, vm: usize) -> Option<RequestId> {
        let (oldest, queued, mean) = self.vms.get_mut(vm)?.as_mut()?.oldest(&self.queued)?;
        let waited = now.since(self.queued.get(oldest)?.arrived).get() as f64;
        let is_overdue = |most| waited > most * mean.get() as f64;
        let goes = match self.tags.active() {
            ..2 => is_overdue(OLDEST_ALONE),
            _ => queued <= FEW || is_overdue(OLDEST),
        };
        goes.then_some(oldest)
    }
}

// Shares of device time by weight.
//
// Source: start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996), with a window instead of an
// order: the caller may serve any VM that is not too far ahead.
//
// A VM's tag is the device time that it has used, over its weight. Its *lead* is how far that
// is ahead of the least tag of the active VMs, as device time of its own. A VM that becomes
// active starts at the least tag, at which the others were when last one was active.
//
// A VM of a group has the part of the group's weight that its own is of those of the active VMs
// of the group.

/// Binary digits behind the point of a tag: a tag grows with any weight.
const FRACTION: u32 = 24;

/// A VM that becomes active may have had less than the others by this much. 70 ms (with slices as
/// long) bring an idle VM a shorter wait, and the arena's disks a higher regret.
const LAG: Nanos = Nanos::from_millis(10);

struct Share {
    weight: u64,
    group: Option<usize>,
    /// Factor of its weight.
    boost: f64,
    tag: u128,
    active: bool,
}

/// A group with a weight.
#[derive(Clone, Copy, Default)]
struct GroupShare {
    weight: u64,
    /// The weights of its active VMs.
    active: u64,
}

impl Share {
    fn weighed(&self, time: Nanos, groups: &[GroupShare]) -> u128 {
        let Some(group) = self.group.map(|group| groups[group]) else {
            return match time.get().checked_mul(1 << FRACTION) {
                // Divisions of 128 bits are slow.
                Some(digits) if self.boost == 1.0 => u128::from(digits / self.weight),
                _ => {
                    (u128::from(time.get()) << FRACTION) / (self.weight as f64 * self.boost) as u128
                }
            };
        };
        let weight = group.weight as f64 * self.weight as f64 * self.boost;
        let part = weight / group.active.max(self.weight) as f64;
        ((u128::from(time.get()) << FRACTION) as f64 / part) as u128
    }
}

#[derive(Default)]
pub struct Tags {
    shares: Vec<Option<Share>>,
    groups: Vec<GroupShare>,
    /// The active VMs by tag.
    active: KeyedHeap<u128>,
    count: usize,
    /// The weights of the active VMs without a group and of the groups with one.
    weights: u64,
    /// The highest that the least tag has been.
    reached: u128,
}

impl Tags {
    pub fn attach(&mut self, vm: usize, weight: u64, group: Option<Group>) {
        let group = group.map(|Group { number, weight }| {
            let number = usize::from(number);
            if self.groups.len() <= number {
                self.groups.resize(number + 1, GroupShare::default());
            }
            let group = &mut self.groups[number];
            let before = std::mem::replace(&mut group.weight, u64::from(weight.get()));
            if group.active > 0 {
                self.weights = self.weights - before + group.weight;
            }
            number
        });
        if self.shares.len() <= vm {
            self.shares.resize_with(vm + 1, || None);
        }
        self.shares[vm] =
            Some(Share { weight, group, boost: 1.0, tag: self.reached, active: false });
    }

    pub fn detach(&mut self, vm: usize) {
        self.set_active(vm, false);
        self.shares[vm] = None;
    }

    /// Does the VM have work, or is its next request expected at once?
    pub fn set_active(&mut self, vm: usize, active: bool) {
        let Some(share) = self.shares.get_mut(vm).and_then(Option::as_mut) else { return };
        if share.active == active {
            return;
        }
        share.active = active;
        if active {
            let lag = share.weighed(LAG, &self.groups);
            share.tag = share.tag.max(self.reached.saturating_sub(lag));
            self.count += 1;
        } else {
            self.count -= 1;
        }
        let change = |sum: &mut u64, by: u64| *sum = if active { *sum + by } else { *sum - by };
        match share.group.map(|group| &mut self.groups[group]) {
            None => change(&mut self.weights, share.weight),
            Some(group) => {
                let was_active = group.active > 0;
                change(&mut group.active, share.weight);
                if was_active != (group.active > 0) {
                    change(&mut self.weights, group.weight);
                }
            }
        }
        self.active.set(vm as u32, active.then_some(share.tag));
        self.reach();
    }

    /// `time` by the VM's part of the device: as much for a VM that has the mean part of the
    /// active ones, more or less for another.
    pub fn by_part(&self, vm: usize, time: Nanos) -> Nanos {
        let Some(share) = self.shares.get(vm).and_then(Option::as_ref) else { return time };
        let (weight, of) = match share.group.map(|group| self.groups[group]) {
            None => (share.weight, self.weights),
            Some(group) => (
                group.weight.saturating_mul(share.weight),
                self.weights.saturating_mul(group.active),
            ),
        };
        time.scaled(weight.saturating_mul(self.count as u64), of.max(1))
    }

    /// Sets the factor of the VM's weight from now on.
    pub fn set_boost(&mut self, vm: usize, boost: f64) {
        if let Some(share) = self.shares.get_mut(vm).and_then(Option::as_mut) {
            share.boost = boost;
        }
    }

    /// Number of active VMs.
    pub fn active(&self) -> usize {
        self.count
    }

    /// Charges device time that the VM has used, or is going to use.
    pub fn charge(&mut self, vm: usize, time: Nanos) {
        self.change(vm, |tag, time| tag + time, time);
    }

    /// A part of what it was charged was not used.
    pub fn give_back(&mut self, vm: usize, time: Nanos) {
        self.change(vm, u128::saturating_sub, time);
    }

    fn change(&mut self, vm: usize, change: impl FnOnce(u128, u128) -> u128, time: Nanos) {
        let Some(share) = self.shares.get_mut(vm).and_then(Option::as_mut) else { return };
        share.tag = change(share.tag, share.weighed(time, &self.groups));
        if share.active {
            self.active.set(vm as u32, Some(share.tag));
            self.reach();
        }
    }

    fn reach(&mut self) {
        if let Some((least, _)) = self.active.first() {
            self.reached = self.reached.max(least);
        }
    }

    /// The active VM that has had least.
    pub fn first(&self) -> Option<usize> {
        self.active.first().map(|(_, vm)| vm as usize)
    }

    /// The least tag of the active VMs.
    pub fn least(&self) -> u128 {
        self.active.first().map_or(self.reached, |(tag, _)| tag)
    }

    /// Is the VM ahead of who has had least by more than `time` of its own device time?
    pub fn is_ahead(&self, vm: usize, time: Nanos) -> bool {
        self.level_at(vm, time) > self.least()
    }

    /// Least tag at which the VM's lead is no longer than `time`.
    pub fn level_at(&self, vm: usize, time: Nanos) -> u128 {
        let share = self.shares.get(vm).and_then(Option::as_ref);
        share.map_or(0, |share| share.tag.saturating_sub(share.weighed(time, &self.groups)))
    }
}

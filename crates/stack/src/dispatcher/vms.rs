//! VMs join, leave and change; policies are changed under them. What the
//! policy has queued is taken back and fed again, and nothing is lost.

use super::{Arrival, Dispatcher, OUTSTANDING_MAX, VMS_MAX};
use seekway_core::queues::{ExpiryQueue, Links};
use seekway_core::request::{Completion, Extent, Request, RequestId, VmId};
use seekway_core::scheduler::{Scheduler, VmSpec};
use seekway_core::units::{Instant, Nanos};
use std::ops::{Index, IndexMut};

/// A VM that is attached.
pub(super) struct AttachedVm {
    spec: VmSpec,
    /// Its requests that the policy holds.
    queued: usize,
    /// Since when it has had some.
    queued_since: Instant,
    /// Time in which it had some, up to `queued_since`.
    queued_time: Nanos,
    /// Is it about to leave? Then it owes nothing.
    is_leaving: bool,
}

impl AttachedVm {
    pub fn weight(&self) -> u64 {
        self.spec.weight.get().into()
    }
    /// Its requests that the policy holds.
    pub fn queued(&self) -> usize {
        self.queued
    }
    /// Is it about to leave?
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    fn new(spec: VmSpec, queued_time: Nanos) -> AttachedVm {
        let (queued_since, is_leaving) = (Instant::ZERO, false);
        AttachedVm { spec, queued: 0, queued_since, queued_time, is_leaving }
    }

    fn queued_time(&self, at: Instant) -> Nanos {
        match self.queued {
            0 => self.queued_time,
            _ => self.queued_time + at.since(self.queued_since),
        }
    }
}

impl Dispatcher {
    /// A VM joins. Panics when it is attached already or its number is too large.
    pub fn attach(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        assert!(vm.index() < VMS_MAX, "{vm:?}: at most {VMS_MAX} VMs");
        if self.vms.len() <= vm.index() {
            self.vms.resize_with(vm.index() + 1, || None);
        }
        assert!(self.vms[vm.index()].is_none(), "{vm:?} is attached already");
        self.vms[vm.index()] = Some(AttachedVm::new(spec.clone(), Nanos::ZERO));
        self.scheduler.attach(now, vm, spec);
    }

    /// A VM leaves: its requests that have not reached the device, in order of
    /// arrival. What is in flight completes as usual. A request that has gone in
    /// part is handed back whole if no part is in flight. Otherwise the rest is
    /// dropped, and the request completes, as failed, when its parts are done.
    pub fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        assert!(self.is_attached(vm), "{vm:?} is not attached");
        self.take_back(now, vm);
        self.vms[vm.index()] = None;
        if let Some(unit) = self.staged.take_if(|unit| self.slots[unit.id].request.vm == vm) {
            self.drop_staged(now, unit.id);
        }
        let of_vm = |s: &&Slot| s.request.vm == vm && s.state != State::InFlight;
        let mut gone: Vec<RequestId> =
            self.slots.requests().filter(of_vm).map(|s| s.request.id).collect();
        gone.retain(|&id| !self.slots[id].split || !self.drop_rest(id));
        self.barriers.detach(vm, &gone);
        self.dues.forget(vm);
        gone.sort_by_key(|&id| self.slots[id].serial);
        let requests = gone.iter().map(|&id| self.slots[id].request).collect();
        for id in gone {
            if self.slots[id].state == State::Background {
                self.background.remove(vm, id, self.slots[id].request.extent.len());
            }
            self.slots.release(id);
        }
        if self.queued == 0 {
            self.holds.end(now, None);
        }
        requests
    }

    /// A VM is about to leave: its barriers wait for no turn any more.
    pub fn leave(&mut self, vm: VmId) {
        if let Some(vm) = self.vms.get_mut(vm.index()).and_then(Option::as_mut) {
            vm.is_leaving = true;
        }
    }

    /// Change a VM's weight or region while it runs. What the policy has
    /// learnt of the VM is lost, no request is.
    pub fn respec(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        assert!(self.is_attached(vm), "{vm:?} is not attached");
        let requests = self.take_back(now, vm);
        let queued_time = self.queued_time(now, vm);
        let is_leaving = self.vms[vm.index()].as_ref().is_some_and(AttachedVm::is_leaving);
        let respecified = AttachedVm::new(spec.clone(), queued_time);
        self.vms[vm.index()] = Some(AttachedVm { is_leaving, ..respecified });
        self.scheduler.attach(now, vm, spec);
        for id in requests {
            self.admit(now, id);
        }
        // The hard limit looks at the first only.
        let mut ages: Vec<RequestId> = self.by_age.iter(&self.links).collect();
        ages.sort_by_key(|&id| self.slots[id].serial);
        self.by_age = ExpiryQueue::new();
        for id in ages {
            self.by_age.push(&mut self.links, id);
        }
    }

    /// Change the policy while it runs: drain the old one, refeed the new one.
    /// Requests in flight complete unseen by the new policy.
    pub fn switch(&mut self, now: Instant, mut scheduler: Box<dyn Scheduler>) {
        let attached: Vec<(VmId, VmSpec)> = (0..self.vms.len())
            .filter_map(|n| Some((VmId::new(n as u16), self.vms[n].as_ref()?.spec.clone())))
            .collect();
        let mut requests: Vec<RequestId> = Vec::new();
        for (vm, _) in &attached {
            requests.extend(self.take_back(now, *vm));
        }
        requests.sort_by_key(|&id| self.slots[id].serial);
        scheduler.takes_over(&self.profile);
        self.wants_full = scheduler.wants_full();
        self.scheduler = scheduler;
        self.slots.forget();
        self.forget_parts();
        self.load.unseen = self.load.commands;
        for (vm, spec) in attached {
            self.scheduler.attach(now, vm, spec);
        }
        for id in requests {
            self.admit(now, id);
        }
    }

    /// Take a VM's requests back from the policy, in order of arrival.
    fn take_back(&mut self, now: Instant, vm: VmId) -> Vec<RequestId> {
        let mut taken = Vec::new();
        for Request { id, .. } in self.scheduler.detach(now, vm) {
            let state = self.slots[id].state;
            assert!(state == State::Queued, "policy handed back {id:?}, which is {state:?}");
            self.slots[id].state = State::Waiting;
            self.by_age.remove(&mut self.links, id);
            self.unindex(id);
            self.count_leaving(now, vm);
            taken.extend(self.part_merged(id));
        }
        if self.config.merge {
            taken.sort_by_key(|&id| self.slots[id].serial);
        }
        taken
    }

    /// Drops a staged request, which will never reach the device. If the policy has dispatched it,
    /// it hears of the end: only then may the id be used again.
    fn drop_staged(&mut self, now: Instant, id: RequestId) {
        let slot = &self.slots[id];
        let (request, service) = (slot.request, Nanos::ZERO);
        let end = Completion { command: id, ok: false, ..Completion::alone(request, now, service) };
        if slot.part {
            self.part_ends(now, id, end);
        } else if let Some(leader) = slot.leader {
            self.merged_end(now, leader, &end);
        } else if slot.known {
            self.scheduler.completed(now, &end);
        }
    }

    /// The policy holds one more request of this VM.
    pub(super) fn count_queued(&mut self, now: Instant, vm: VmId) {
        self.queued += 1;
        if let Some(vm) = &mut self.vms[vm.index()] {
            vm.queued += 1;
            if vm.queued == 1 {
                vm.queued_since = now;
                self.waiting_weight += vm.weight();
            }
        }
    }

    /// Counts one request less of a VM.
    pub(super) fn count_leaving(&mut self, now: Instant, vm: VmId) {
        self.queued -= 1;
        if let Some(vm) = &mut self.vms[vm.index()] {
            vm.queued -= 1;
            if vm.queued == 0 {
                vm.queued_time += now.since(vm.queued_since);
                self.waiting_weight -= vm.weight();
            }
        }
    }

    /// Time until `at` in which the policy held a read or a write of this VM, since it was
    /// attached; `at` is not before the last call that changed anything.
    pub fn queued_time(&self, at: Instant, vm: VmId) -> Nanos {
        let of = self.vms.get(vm.index()).and_then(Option::as_ref);
        of.map_or(Nanos::ZERO, |vm| vm.queued_time(at))
    }

    /// May a VM of this number be attached?
    pub fn can_attach(&self, vm: VmId) -> bool {
        vm.index() < VMS_MAX && !self.is_attached(vm)
    }
    /// May a request of this VM arrive?
    pub fn has_room(&self, vm: VmId) -> bool {
        self.is_attached(vm) && self.slots.len() < OUTSTANDING_MAX
    }
    /// Is the VM attached?
    pub fn is_attached(&self, vm: VmId) -> bool {
        self.vms.get(vm.index()).is_some_and(Option::is_some)
    }
}

// Device time that flushes, discards and write-zeroes take is charged to their VM. No policy sees
// them, so a VM that always has one would otherwise keep the device from all others.
//
// A virtual clock advances with the device time of reads and writes, divided by the weights of
// the VMs that want some. What a VM's barrier took puts the VM's next one off until the clock has
// advanced by as much per unit of weight: while others want the device, a VM's barriers take no
// more of it than its weight gives it.
//
// What nobody else wants is free. When no other VM has a request queued, a barrier goes at once
// if the device has room for others beside it. If it would have the device to itself, it waits
// for a VM that was served a moment ago (`GRACE`) and may be about to ask for more, but no
// longer than what is owed.

/// For how long a VM that was just served may think before its next request without losing its
/// turn to others' barriers.
const GRACE: Nanos = Nanos::from_millis(1);

/// Parts of a nanosecond per unit of weight that the clock counts in.
const SCALE: u128 = 1 << 10;

/// Debts of VMs for their barriers.
#[derive(Default)]
pub(super) struct Dues {
    clock: u64,
    /// By VM number: the clock at which nothing is owed.
    paid_at: Vec<u64>,
    /// The VM that last had a read or write arrive or complete, and when; and the last other one.
    recent: [Option<(VmId, Instant)>; 2],
}

/// Work for the device other than a VM's barrier.
#[derive(Clone, Copy)]
pub(super) struct Rivals {
    /// Another VM has reads or writes queued.
    pub queued: bool,
    /// The device has room for one of them beside the barrier.
    pub room: bool,
    /// When the device was last busy, if it is not now.
    pub idle_since: Instant,
}

/// May a VM's barrier go?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    Now,
    /// Then, unless another VM wants the device before.
    At(Instant),
    /// When others have been served.
    Later,
}

impl Dues {
    /// A read or write of this VM has arrived or completed.
    pub fn wants(&mut self, now: Instant, vm: VmId) {
        if !matches!(self.recent[0], Some((last, _)) if last == vm) {
            self.recent[1] = self.recent[0];
        }
        self.recent[0] = Some((vm, now));
    }

    /// A command of reads or writes took `service` while VMs of these `weights` together wanted
    /// the device. It does not pay for barriers of its own VM.
    pub fn served(&mut self, vm: VmId, service: Nanos, weights: u64) {
        let step = scaled(service, weights);
        if let Some(paid_at) = self.paid_at.get_mut(vm.index()).filter(|at| **at > self.clock) {
            *paid_at = paid_at.saturating_add(step);
        }
        self.clock = self.clock.saturating_add(step);
    }

    /// A barrier of this VM took `service`.
    pub fn charge(&mut self, vm: VmId, service: Nanos, weight: u64) {
        let paid_at = self.paid_at(vm);
        *paid_at = paid_at.saturating_add(scaled(service, weight));
    }

    /// A barrier of this VM goes: what is owed still, nobody wanted.
    pub fn goes(&mut self, vm: VmId) {
        let clock = self.clock;
        *self.paid_at(vm) = clock;
    }

    fn paid_at(&mut self, vm: VmId) -> &mut u64 {
        if self.paid_at.len() <= vm.index() {
            self.paid_at.resize(vm.index() + 1, 0);
        }
        &mut self.paid_at[vm.index()]
    }

    /// The VM leaves: the next one of its number owes nothing.
    pub fn forget(&mut self, vm: VmId) {
        if let Some(paid_at) = self.paid_at.get_mut(vm.index()) {
            *paid_at = 0;
        }
    }

    /// May a barrier of this VM, of this `weight`, go?
    pub fn turn(&self, now: Instant, vm: VmId, weight: u64, rivals: Rivals) -> Turn {
        let owed = match self.paid_at.get(vm.index()) {
            Some(&at) if at > self.clock => {
                u128::from(at - self.clock) * u128::from(weight) / SCALE
            }
            _ => return Turn::Now,
        };
        if rivals.queued {
            return Turn::Later;
        }
        let other = self.recent.iter().flatten().find(|(of, _)| *of != vm);
        let Some(&(_, last)) = other.filter(|_| !rivals.room) else { return Turn::Now };
        let owed = Nanos::new(u64::try_from(owed).unwrap_or(u64::MAX));
        let free = (last + GRACE).min(rivals.idle_since + owed);
        if now < free { Turn::At(free) } else { Turn::Now }
    }
}

fn scaled(service: Nanos, weights: u64) -> u64 {
    let units = u128::from(service.get()) * SCALE / u128::from(weights.max(1));
    u64::try_from(units).unwrap_or(u64::MAX)
}

// The table of all requests that a dispatcher knows, by the number in their id.

/// Where a request stands, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free,
    /// In nobody's queue: behind a barrier, a barrier itself, or staged.
    Waiting,
    /// In the policy: all of it, or what is left of it.
    Queued,
    /// In the policy as a part of the request with which it is merged.
    Merged,
    /// In the background's queue.
    Background,
    /// Sent to the device and not completed.
    InFlight,
    /// All of its parts have left the policy, and some are not done.
    Parted,
}

/// A request, or a part of one that goes by itself.
pub(super) struct Slot {
    /// Of a part: the request that it is part of, with the extent of the part.
    pub request: Request,
    pub state: State,
    /// Order of arrival, unique among requests.
    pub serial: u64,
    pub dispatched: Instant,
    /// First of its command, by whose id the engine knows it.
    pub leads: bool,
    /// Next request of the same command.
    pub next: Option<RequestId>,
    /// The policy in charge has dispatched it, and expects its completion; of the background, it was
    /// told that the command which begins here has gone.
    pub known: bool,
    /// Of the first of a command: some request of the command is `known`.
    pub seen: bool,
    /// Of the background class: no policy has queued it.
    pub background: bool,
    /// A part: `request.id` is the id of the whole request, and not its own.
    pub part: bool,
    /// The request by whose id the policy knows it and those with which it is merged.
    pub leader: Option<RequestId>,
    /// A part of it has gone: the dispatcher's table of splits has more.
    pub split: bool,
}

/// Numbers are used again once their requests are done, so the table grows to
/// the most that were ever outstanding and no further.
#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<RequestId>,
    serial: u64,
    /// Slots that are parts.
    parts: usize,
    /// The requests of each VM in order of arrival, parts left out.
    by_vm: Vec<ExpiryQueue>,
    links: Links,
}

impl Table {
    /// A slot for a request that arrives.
    pub fn allocate(&mut self, now: Instant, arrival: Arrival) -> RequestId {
        let id = self.next_free();
        // Parts take numbers too, so that a high one alone says nothing. The slot may
        // already be counted.
        let room = id.slot() < OUTSTANDING_MAX || self.len() <= OUTSTANDING_MAX;
        assert!(room, "more than {OUTSTANDING_MAX} requests outstanding");
        let Arrival { vm, tag, op, sync, extent } = arrival;
        self.serial += 1;
        let request = Request { id, vm, tag, op, sync, extent, arrived: now };
        self.occupy(id, request, self.serial, false);
        if vm.index() >= self.by_vm.len() {
            self.by_vm.resize_with(vm.index() + 1, ExpiryQueue::new);
        }
        self.by_vm[vm.index()].push(&mut self.links, id);
        id
    }

    /// A slot for a part of a request.
    pub fn allocate_part(&mut self, whole: RequestId, extent: Extent) -> RequestId {
        let id = self.next_free();
        let Slot { request, serial, .. } = self[whole];
        self.occupy(id, Request { extent, ..request }, serial, true);
        self.parts += 1;
        id
    }

    fn next_free(&mut self) -> RequestId {
        self.free.pop().unwrap_or(RequestId::new(self.slots.len() as u32))
    }

    fn occupy(&mut self, id: RequestId, request: Request, serial: u64, part: bool) {
        let slot = Slot {
            request,
            state: State::Waiting,
            serial,
            dispatched: request.arrived,
            leads: false,
            next: None,
            known: false,
            seen: false,
            background: false,
            part,
            leader: None,
            split: false,
        };
        match self.slots.get_mut(id.slot()) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
    }

    /// The request is done with, or the part.
    pub fn release(&mut self, id: RequestId) {
        let slot = &mut self.slots[id.slot()];
        slot.state = State::Free;
        match slot.part {
            true => self.parts -= 1,
            false => self.by_vm[slot.request.vm.index()].remove(&mut self.links, id),
        }
        self.free.push(id);
    }

    /// Requests, parts not counted.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.parts
    }
    /// All requests, parts left out.
    pub fn requests(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.state != State::Free && !slot.part)
    }
    /// The requests of one VM in order of arrival, parts left out.
    pub fn of_vm(&self, vm: VmId) -> impl Iterator<Item = &Slot> {
        let queue = self.by_vm.get(vm.index()).into_iter();
        queue.flat_map(|queue| queue.iter(&self.links)).map(|id| &self[id])
    }
    /// Everything becomes unknown to the policy.
    pub fn forget(&mut self) {
        for slot in &mut self.slots {
            (slot.known, slot.seen) = (false, false);
        }
    }
    /// The slot of an id that may be anybody's invention.
    pub fn get(&self, id: RequestId) -> Option<&Slot> {
        self.slots.get(id.slot())
    }
}

impl Index<RequestId> for Table {
    type Output = Slot;
    fn index(&self, id: RequestId) -> &Slot {
        &self.slots[id.slot()]
    }
}

impl IndexMut<RequestId> for Table {
    fn index_mut(&mut self, id: RequestId) -> &mut Slot {
        &mut self.slots[id.slot()]
    }
}

#[cfg(test)]
mod slots_tests {
    use super::*;
    use seekway_core::request::Op;
    use seekway_core::units::{Lba, Sectors};

    fn arrival(vm: u16) -> Arrival {
        let extent = Extent::new(Lba::ZERO, Sectors::new(8)).unwrap();
        Arrival { vm: VmId::new(vm), tag: None, op: Op::Read, sync: true, extent }
    }

    #[test]
    fn looking_for_a_vms_requests_sees_no_others_and_no_free_slots() {
        let mut table = Table::default();
        let many: Vec<_> = (0..1000).map(|_| table.allocate(Instant::ZERO, arrival(0))).collect();
        let one = table.allocate(Instant::ZERO, arrival(1));
        let part = table.allocate_part(one, arrival(1).extent);
        let count = |table: &Table, vm| table.of_vm(VmId::new(vm)).count();
        assert_eq!((count(&table, 0), count(&table, 1), count(&table, 2)), (1000, 1, 0));
        many.into_iter().skip(2).for_each(|id| table.release(id));
        assert_eq!((count(&table, 0), table.len()), (2, 3));
        table.release(part);
        table.release(one);
        assert_eq!((count(&table, 0), count(&table, 1), table.len()), (2, 0, 2));
    }
}

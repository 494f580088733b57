//! VMs join, leave and change; policies are changed under them. What the
//! policy has queued is taken back and fed again, and nothing is lost.

use super::slots::{Slot, State};
use super::{Dispatcher, OUTSTANDING_MAX, VMS_MAX};
use seekway_core::queues::ExpiryQueue;
use seekway_core::request::{Completion, Request, RequestId, VmId};
use seekway_core::scheduler::{Scheduler, VmSpec};
use seekway_core::units::{Instant, Nanos};

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
        for request in requests {
            self.enqueue(now, request.id);
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
        let mut requests: Vec<Request> = Vec::new();
        for (vm, _) in &attached {
            requests.extend(self.take_back(now, *vm));
        }
        requests.sort_by_key(|r| self.slots[r.id].serial);
        scheduler.takes_over(&self.profile);
        self.wants_full = scheduler.wants_full();
        self.scheduler = scheduler;
        self.slots.forget();
        self.forget_parts();
        self.load.unseen = self.load.commands;
        for (vm, spec) in attached {
            self.scheduler.attach(now, vm, spec);
        }
        for request in requests {
            self.enqueue(now, request.id);
        }
    }

    /// Take a VM's requests back from the policy, in order of arrival.
    fn take_back(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        let requests = self.scheduler.detach(now, vm);
        for &Request { id, .. } in &requests {
            let state = self.slots[id].state;
            assert!(state == State::Queued, "policy handed back {id:?}, which is {state:?}");
            self.slots[id].state = State::Waiting;
            self.by_age.remove(&mut self.links, id);
            self.adjacency.remove(id);
        }
        for _ in &requests {
            self.count_leaving(now, vm);
        }
        requests
    }

    /// Drops a staged request, which will never reach the device. If the policy has dispatched it,
    /// it hears of the end: only then may the id be used again.
    fn drop_staged(&mut self, now: Instant, id: RequestId) {
        let slot = &self.slots[id];
        let (request, service) = (slot.request, Nanos::ZERO);
        let end = Completion { command: id, ok: false, ..Completion::alone(request, now, service) };
        if slot.part {
            self.part_ends(now, id, end);
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

//! VMs join, leave and change; policies are changed under them. What the
//! policy has queued is taken back and fed again, and nothing is lost.

use super::slots::{Slot, State};
use super::{Dispatcher, OUTSTANDING_MAX, VMS_MAX};
use crate::queues::ExpiryQueue;
use crate::request::{Completion, Request, RequestId, VmId};
use crate::scheduler::{Scheduler, VmSpec};
use crate::units::{Instant, Nanos};

/// Ghosts that the policy may hold of one VM.
const GHOSTS_MAX: u32 = 256;

/// A VM that is attached.
pub(super) struct Attached {
    spec: VmSpec,
    /// Its requests that are done, and which the policy believes to be queued.
    pub ghosts: u32,
}

impl Dispatcher {
    /// A VM joins. Panics when it is attached already or its number is too large.
    pub fn attach(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        assert!(vm.index() < VMS_MAX, "{vm:?}: at most {VMS_MAX} VMs");
        if self.vms.len() <= vm.index() {
            self.vms.resize_with(vm.index() + 1, || None);
        }
        assert!(self.vms[vm.index()].is_none(), "{vm:?} is attached already");
        self.vms[vm.index()] = Some(Attached { spec: spec.clone(), ghosts: 0 });
        self.scheduler.attach(now, vm, spec);
    }

    /// A VM leaves: its requests that have not reached the device, in order of
    /// arrival. What is in flight completes as usual.
    pub fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        assert!(self.is_attached(vm), "{vm:?} is not attached");
        self.take_back(now, vm);
        self.vms[vm.index()] = None;
        if let Some(id) = self.staged.take_if(|id| self.slots[*id].request.vm == vm) {
            self.report_staged(now, id);
        }
        let left = |s: &Slot| matches!(s.state, State::Waiting | State::Background);
        let of_vm = |s: &&Slot| left(s) && s.request.vm == vm;
        let mut gone: Vec<RequestId> =
            self.slots.iter().filter(of_vm).map(|s| s.request.id).collect();
        self.barriers.detach(&gone);
        gone.sort_by_key(|&id| self.slots[id].serial);
        let requests = gone.iter().map(|&id| self.slots[id].request).collect();
        for id in gone {
            if self.slots[id].state == State::Background {
                self.background.remove(vm, id);
            }
            self.slots.release(id);
        }
        if self.queued == 0 {
            self.holds.end(now, None);
        }
        requests
    }

    /// Change a VM's weight or region while it runs. What the policy has
    /// learnt of the VM is lost, no request is.
    pub fn respec(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        assert!(self.is_attached(vm), "{vm:?} is not attached");
        self.refeed(now, vm, spec);
    }

    /// Take all that the policy has of a VM, and hand it back as if the VM were new.
    fn refeed(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        let requests = self.take_back(now, vm);
        self.vms[vm.index()] = Some(Attached { spec: spec.clone(), ghosts: 0 });
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

    /// A policy that never comes round to a VM's distant requests keeps their
    /// ghosts when they were forced: too many, and it starts afresh with the VM.
    pub(super) fn bound_ghosts(&mut self, now: Instant, vm: VmId) {
        if let Some(Some(attached)) = self.vms.get(vm.index())
            && attached.ghosts >= GHOSTS_MAX
        {
            let spec = attached.spec.clone();
            self.refeed(now, vm, spec);
        }
    }

    /// The policy has one ghost more or less.
    pub(super) fn count_ghost(&mut self, vm: VmId, change: i32) {
        if let Some(Some(attached)) = self.vms.get_mut(vm.index()) {
            attached.ghosts = attached.ghosts.saturating_add_signed(change);
        }
    }

    /// Change the policy while it runs: drain the old one, refeed the new one.
    /// `name` is what the journal notes. Requests in flight complete unseen by
    /// the new policy.
    pub fn switch(&mut self, now: Instant, name: &str, scheduler: Box<dyn Scheduler>) {
        let attached: Vec<(VmId, VmSpec)> = (0..self.vms.len())
            .filter_map(|n| Some((VmId::new(n as u16), self.vms[n].as_ref()?.spec.clone())))
            .collect();
        let mut requests: Vec<Request> = Vec::new();
        for (vm, _) in &attached {
            requests.extend(self.take_back(now, *vm));
        }
        requests.sort_by_key(|r| self.slots[r.id].serial);
        self.scheduler = scheduler;
        self.epoch += 1;
        for (vm, spec) in attached {
            self.scheduler.attach(now, vm, spec);
        }
        for request in requests {
            self.enqueue(now, request.id);
        }
    }

    /// Take a VM's requests back from the policy, in order of arrival, without
    /// those that were forced out before.
    fn take_back(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        let mut requests = self.scheduler.detach(now, vm);
        requests.retain(|r| match self.slots[r.id].state {
            State::Queued => true,
            State::Ghost => {
                self.queued -= 1;
                self.slots.release(r.id);
                false
            }
            State::InFlight { forced: true } => {
                self.queued -= 1;
                // The policy no longer knows it: its completion is not for it.
                let slot = &mut self.slots[r.id];
                slot.state = State::InFlight { forced: false };
                slot.epoch = self.epoch.wrapping_sub(1);
                false
            }
            state => panic!("policy handed back {:?}, which is {state:?}", r.id),
        });
        if let Some(Some(attached)) = self.vms.get_mut(vm.index()) {
            attached.ghosts = 0;
        }
        for request in &requests {
            self.queued -= 1;
            self.by_age.remove(&mut self.links, request.id);
            self.adjacency.remove(request);
            self.slots[request.id].state = State::Waiting;
        }
        requests
    }

    /// The policy has dispatched this request, and it will never reach the
    /// device: its id may only be used again once the policy has heard the end.
    fn report_staged(&mut self, now: Instant, id: RequestId) {
        let slot = &self.slots[id];
        if slot.epoch == self.epoch {
            let (request, service) = (slot.request, Nanos::ZERO);
            let end = Completion { request, dispatched: now, service, ok: false };
            self.scheduler.completed(now, &end);
        }
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

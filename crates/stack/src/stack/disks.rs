//! Disks of VMs join, leave and change while the stack runs.

use super::limit::{DiskLimits, GroupName, Limits};
use super::load::Load;
use super::{ABANDONED, DiskSpec, Map, Stack, Submit};
use seekway_core::request::VmId;
use seekway_core::scheduler::{Group, Reserve, Scheduler, VmSpec};
use seekway_core::units::{Instant, Nanos, Sectors};
use std::collections::VecDeque;
use std::num::NonZeroU32;

/// The disk of a VM.
pub(super) struct Disk {
    pub spec: DiskSpec,
    /// The cache knows it: reads are looked up there, and writes told.
    pub cached: bool,
    pub load: Load,
    /// Guests' requests under way.
    pub outstanding: u32,
    /// Reads into the cache under way.
    pub fetches: u32,
    /// Discards and write-zeroes that the dispatcher has.
    pub barriers: u32,
    /// Those that wait for room there, by call.
    pub parked: VecDeque<u32>,
    /// Is it about to leave?
    pub leaving: bool,
    /// Its reservation and target, and its group by number.
    pub reserve: Reserve,
    pub latency: Option<Nanos>,
    pub group: Option<u16>,
}

/// A group of disks, as policies see it.
pub(super) struct NamedGroup {
    name: GroupName,
    weight: Option<NonZeroU32>,
}

impl Disk {
    /// The VM as policies are told of it.
    fn vm_spec(&self, groups: &[NamedGroup]) -> VmSpec {
        let group = |number: u16| {
            let weight = groups[usize::from(number)].weight?;
            Some(Group { number, weight })
        };
        VmSpec {
            weight: self.spec.weight,
            group: self.group.and_then(group),
            reserve: self.reserve,
            latency: self.latency,
            region: self.spec.map.region(),
        }
    }
}

impl Stack {
    /// May a disk join under this number?
    pub fn can_attach(&self, vm: VmId) -> bool {
        self.dispatcher.can_attach(vm)
    }

    /// A VM's disk joins.
    ///
    /// # Panics
    /// When the number is taken or too large ([`Stack::can_attach`]).
    pub fn attach(&mut self, now: Instant, vm: VmId, spec: DiskSpec) {
        self.record(|j| j.attach(now, vm, &spec));
        if self.disks.len() <= vm.index() {
            self.disks.resize_with(vm.index() + 1, || None);
        }
        let cached = spec.cached && self.cache.is_some();
        let (weight, capacity) = (spec.weight, spec.capacity);
        let disk = Disk {
            spec,
            cached,
            load: Load::default(),
            outstanding: 0,
            fetches: 0,
            barriers: 0,
            parked: VecDeque::new(),
            leaving: false,
            reserve: Reserve::default(),
            latency: None,
            group: None,
        };
        self.dispatcher.attach(now, vm, disk.vm_spec(&self.groups));
        self.disks[vm.index()] = Some(disk);
        if cached {
            self.join_cache(now, vm, weight, capacity);
        }
    }

    /// A disk is about to leave: its limits are lifted, nothing is read ahead for it, and nothing
    /// of it stays in the cache. Discards and write-zeroes end, as [`ABANDONED`], with the piece that
    /// is under way. All else goes on, until [`Stack::is_busy`] is false.
    ///
    /// # Panics
    /// When it is not attached.
    pub fn leave(&mut self, now: Instant, vm: VmId) {
        self.record(|j| j.leave(now, vm));
        self.limiter.set_disk(now, vm, &Limits::default(), None);
        self.dispatcher.leave(vm);
        let disk = self.disk(vm);
        disk.leaving = true;
        if std::mem::take(&mut disk.cached) {
            self.end_prefetches(now, vm);
            if let Some(cache) = &mut self.cache {
                cache.contents.detach(now, vm);
            }
        }
        self.abandon_parked(now, vm);
    }

    /// Discards and write-zeroes of a disk that leaves begin no more, nor go on.
    pub(super) fn abandon_parked(&mut self, now: Instant, vm: VmId) {
        while let Some(index) = self.disk(vm).parked.pop_front() {
            let call = &mut self.calls[index];
            call.error = Some(ABANDONED);
            let Submit { op, extent, .. } = call.request;
            // The cache has not heard of one that has not begun.
            if call.unsent < extent.len() {
                self.write_ends(vm, op, extent);
            }
            self.end_call(now, index);
        }
    }

    /// Has this disk requests or reads into the cache under way?
    pub fn is_busy(&self, vm: VmId) -> bool {
        let disk = self.disks.get(vm.index()).and_then(Option::as_ref);
        disk.is_some_and(|disk| disk.outstanding > 0 || disk.fetches > 0)
    }

    /// Is a disk attached under this number?
    pub fn is_attached(&self, vm: VmId) -> bool {
        self.disks.get(vm.index()).is_some_and(Option::is_some)
    }

    /// Are this disk's reads looked up in the cache?
    pub fn is_cached(&self, vm: VmId) -> bool {
        let disk = self.disks.get(vm.index()).and_then(Option::as_ref);
        disk.is_some_and(|disk| disk.cached)
    }

    /// The disk leaves.
    ///
    /// # Panics
    /// When it is not attached, or busy.
    pub fn detach(&mut self, now: Instant, vm: VmId) {
        assert!(!self.is_busy(vm), "{vm:?} is detached with requests under way");
        if self.is_cached(vm) {
            self.leave(now, vm);
        }
        self.record(|j| j.detach(now, vm));
        self.limiter.remove(now, vm, &mut Vec::new());
        self.dispatcher.detach(now, vm);
        self.disks[vm.index()] = None;
    }

    /// Another share from now on.
    ///
    /// # Panics
    /// When the disk is not attached.
    pub fn set_weight(&mut self, now: Instant, vm: VmId, weight: NonZeroU32) {
        self.record(|j| j.set_weight(now, vm, weight));
        let disk = self.disk(vm);
        disk.spec.weight = weight;
        let (cached, capacity) = (disk.cached, disk.spec.capacity);
        if cached {
            self.join_cache(now, vm, weight, capacity);
        }
        self.respec(now, vm);
    }

    /// Tell the policy of a disk anew.
    fn respec(&mut self, now: Instant, vm: VmId) {
        let disk = self.disks[vm.index()].as_ref().expect("an attached disk");
        let spec = disk.vm_spec(&self.groups);
        self.dispatcher.respec(now, vm, spec);
    }

    /// Rate limits of a disk, its own and those of a group, its reservation and its target of
    /// latency from now on. What waits goes on waiting, for the new ones. A weight among them
    /// says nothing: see [`Stack::set_weight`].
    ///
    /// # Panics
    /// When the disk is not attached.
    pub fn set_limits(&mut self, now: Instant, vm: VmId, limits: &DiskLimits) {
        assert!(self.is_attached(vm), "{vm:?} is not attached");
        self.record(|j| j.set_limits(now, vm, limits));
        self.limiter.set_disk(now, vm, &limits.limits, limits.group.as_ref());
        let group = limits.group.as_ref().map(|name| self.group_number(name));
        let Limits { reserve, latency, .. } = limits.limits;
        let disk = self.disk(vm);
        let before = (disk.reserve, disk.latency, disk.group);
        (disk.reserve, disk.latency, disk.group) = (reserve, latency, group);
        if before != (reserve, latency, group) {
            self.respec(now, vm);
        }
    }

    /// The number of a group, which is known from now on.
    fn group_number(&mut self, name: &GroupName) -> u16 {
        let known = self.groups.iter().position(|group| group.name == *name);
        let number = known.unwrap_or_else(|| {
            self.groups.push(NamedGroup { name: name.clone(), weight: None });
            self.groups.len() - 1
        });
        u16::try_from(number).expect("at most 65,536 groups")
    }

    /// Rate limits and the weight of a group of disks from now on.
    ///
    /// # Panics
    /// When there are more than 65,536 groups.
    pub fn set_group(&mut self, now: Instant, name: &GroupName, limits: &Limits) {
        self.record(|j| j.set_group(now, name, limits));
        self.limiter.set_group(now, name, limits);
        let number = self.group_number(name);
        let weight = &mut self.groups[usize::from(number)].weight;
        if std::mem::replace(weight, limits.weight) == limits.weight {
            return;
        }
        for vm in 0..self.disks.len() {
            if self.disks[vm].as_ref().is_some_and(|disk| disk.group == Some(number)) {
                self.respec(now, VmId::new(vm as u16));
            }
        }
    }

    /// Requests of a disk that wait for its limits, and for how long it has had some that did.
    pub fn limited(&self, now: Instant, vm: VmId) -> (usize, Nanos) {
        (self.limiter.waiting(vm), self.limiter.waited(now, vm))
    }

    /// Time until `at` in which reads or writes of a disk, or those of its cache, waited for their
    /// turn at the device, since it was attached; `at` is not before the last call that changed
    /// anything.
    pub fn queued_time(&self, at: Instant, vm: VmId) -> Nanos {
        self.dispatcher.queued_time(at, vm)
    }

    /// The disk has another size, and lies there now, or where it did. What was cached of it is
    /// forgotten: nobody knows what its image had in between.
    ///
    /// # Panics
    /// When the disk is not attached.
    pub fn resize(&mut self, now: Instant, vm: VmId, capacity: Sectors, map: Option<Map>) {
        if let Some(mut journal) = self.journal.take() {
            journal.resize(now, vm, capacity, map.as_ref().unwrap_or(self.map(vm)));
            self.journal = Some(journal);
        }
        let disk = self.disk(vm);
        let before = std::mem::replace(&mut disk.spec.capacity, capacity);
        let (cached, weight) = (disk.cached, disk.spec.weight);
        if cached {
            self.forget_cached(now, vm, before);
            self.join_cache(now, vm, weight, capacity);
        }
        if let Some(map) = map {
            self.replace_map(now, vm, map);
        }
    }

    /// The disk lies elsewhere than was known.
    ///
    /// # Panics
    /// When the disk is not attached.
    pub fn remap(&mut self, now: Instant, vm: VmId, map: Map) {
        self.record(|j| j.remap(now, vm, &map));
        self.replace_map(now, vm, map);
    }

    /// A policy forgets what it has learnt of a VM that is told to it anew: only when it moves.
    fn replace_map(&mut self, now: Instant, vm: VmId, map: Map) {
        let disk = self.disk(vm);
        let moved = map.region() != disk.spec.map.region();
        disk.spec.map = map;
        if moved {
            self.respec(now, vm);
        }
    }

    /// Where a disk lies.
    ///
    /// # Panics
    /// When it is not attached.
    pub fn map(&self, vm: VmId) -> &Map {
        let disk = self.disks.get(vm.index()).and_then(Option::as_ref);
        &disk.unwrap_or_else(|| panic!("{vm:?} is not attached")).spec.map
    }

    /// Another policy, or the same with other parameters; nothing queued is lost. `spec` is
    /// what the journal notes.
    pub fn switch(&mut self, now: Instant, spec: &str, scheduler: Box<dyn Scheduler>) {
        self.record(|j| j.switch(now, spec));
        self.dispatcher.switch(now, scheduler);
    }
}

//! Messages from other threads: ports and disks come and go, settings change,
//! somebody asks for the status.

use super::Reactor;
use super::cache::disk_caches;
use super::core::Core;
use super::disks::{DiskState, Freeze, Room};
use super::intervals::UseMeter;
use super::message::{Disk, DiskStatus, Message, Status, judge};
use super::ring::FILES_MAX;
use crate::port::{DiskId, Port, PortId};
use seekway_core::prefetcher::Prefetcher;
use seekway_core::request::VmId;
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_policy::schedulers;
use seekway_stack::stack::limit::{DiskLimits, GroupName, Limits};
use seekway_stack::stack::{DiskSpec, Map};
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::sync::mpsc::SyncSender;

/// Messages that are handled in one turn.
pub(super) const MESSAGES_MAX: usize = 64;
/// After this long the file system is asked again where an image lies; twice as
/// long each time, since a policy forgets what it knows of a VM that moves.
const REMAP_AFTER: Nanos = Nanos::from_secs(2);
/// The longest pause between two times.
const REMAP_AFTER_MAX: Nanos = Nanos::from_secs(300);

impl Reactor {
    /// Handle what has been sent, some of it in the next turn if it is much.
    pub(super) fn messages(&mut self) {
        for _ in 0..MESSAGES_MAX {
            match self.mailbox.try_recv() {
                Ok(message) => self.message(message),
                Err(_) => {
                    self.mail = false;
                    return;
                }
            }
        }
    }

    fn message(&mut self, message: Message) {
        let core = &mut self.core;
        match message {
            Message::OpenPort(port, reply) => self.open_port(port, &reply),
            Message::ToPort(id, message) => {
                if core.ports.is_live(id)
                    && let Some(port) = &mut self.ports[usize::from(id.index)]
                {
                    port.message(message, core);
                    core.ports.mark(id.index);
                }
            }
            Message::ClosePort(id) => core.ports.close(id),
            Message::AttachDisk(disk, reply) => _ = reply.send(core.attach_disk(*disk)),
            Message::LeaveDisk(id) => core.leave_disk(id),
            Message::DetachDisk(id, reply) => core.detach_disk(id, reply),
            Message::Freeze(id, time, reply) => core.freeze(id, time, reply),
            Message::Thaw(id, reply) => _ = reply.send(core.thaw(id)),
            Message::Resize(id, shrink, reply) => _ = reply.send(core.resize(id, shrink)),
            Message::LostWrites(id) => {
                if let Some(disk) = core.disks.get_mut(id) {
                    disk.image.sync_failed(libc::EIO);
                }
            }
            Message::SetWeight(id, weight, reply) => _ = reply.send(core.set_weight(id, weight)),
            Message::SetLimits(id, limits, reply) => _ = reply.send(core.set_limits(id, &limits)),
            Message::SetGroup(name, limits, reply) => {
                core.set_group(&name, &limits);
                let _ = reply.send(());
            }
            Message::SetPolicy(spec, reply) => _ = reply.send(core.set_policy(spec)),
            Message::SetPrefetcher(spec, prefetcher, reply) => {
                let _ = reply.send(core.set_prefetcher(&spec, prefetcher));
            }
            Message::ResizeCache(bytes, reply) => {
                core.stack.resize_cache(core.now, bytes);
                let _ = reply.send(());
            }
            Message::CacheMemory(reply) => _ = reply.send(core.stack.cache_backed_bytes()),
            Message::Runs(id, token, runs) => self.runs(id, token, runs),
            Message::Remapped(id, map) => core.remapped(id, map),
            Message::Status(reply) => _ = reply.send(core.status()),
            Message::Slow(over, reply) => _ = reply.send(core.slow.over(over)),
            Message::Shutdown => {
                self.shutdown = true;
                let disks = 0..core.disks.0.len();
                disks.for_each(|number| core.leave_disk(DiskId(number as u16)));
            }
        }
    }

    /// A port has its answer about runs of data, and one job less.
    fn runs(&mut self, id: PortId, token: u64, runs: Vec<(u64, bool)>) {
        self.core.ports.slot(id).jobs -= 1;
        if let Some(port) = &mut self.ports[usize::from(id.index)] {
            port.runs(token, runs, &mut self.core);
            self.core.ports.mark(id.index);
        }
    }

    /// Take a port in. Refused (dropped, and the sender with it) while its disk
    /// is not there or leaves, or the reactor ends.
    pub(super) fn open_port(&mut self, mut port: Box<dyn Port>, reply: &SyncSender<PortId>) {
        let disk = port.disk();
        let serves = self.core.disks.get(disk).is_some_and(|d| d.leaving.is_none());
        if !serves || self.shutdown {
            return;
        }
        let Some(id) = self.core.ports.allocate(disk) else { return };
        port.open(id, &mut self.core);
        let index = usize::from(id.index);
        if index >= self.ports.len() {
            self.ports.resize_with(index + 1, || None);
        }
        self.ports[index] = Some(port);
        self.core.ports.mark(id.index);
        let _ = reply.send(id);
    }
}

impl Core {
    pub(super) fn attach_disk(&mut self, disk: Disk) -> Result<DiskId, String> {
        let Disk {
            name,
            image,
            weight,
            limits: limits_per_s,
            lba,
            map,
            fault,
            cached,
            bandwidth_bytes_per_s,
        } = disk;
        let free = |n: &usize| {
            let vm = VmId::new(*n as u16);
            self.disks.0.get(*n).is_none_or(Option::is_none) && self.stack.can_attach(vm)
        };
        let number = (0..usize::from(FILES_MAX)).find(free);
        let number = number.ok_or(format!("{name}: this device has {FILES_MAX} disks already"))?;
        let limits = *image.limits();
        // An emulated device knows nothing of where the file system put the image.
        let mapped = map.filter(|_| self.throttle.is_none() && lba.is_none());
        let ours = self.throttle.is_some() || lba.is_some() || image.device_capacity().is_none();
        let (map, placed, unmapped) = match mapped {
            Some(map) => (map, None, false),
            None => {
                let start = self.disks.place(&self.room(), &name, lba, limits.capacity_bytes)?;
                let map = Map::linear(start, Sectors::from_bytes(limits.capacity_bytes));
                (map, ours.then_some(start), !ours)
            }
        };
        let fd = image.file().as_raw_fd();
        self.ring.register_file(number as u16, Some(fd)).map_err(|e| format!("{name}: {e}"))?;
        let state = DiskState {
            name,
            image,
            limits,
            weight,
            limits_per_s,
            placed,
            unmapped,
            map_stale: false,
            map_due: self.now + REMAP_AFTER,
            remap_after: REMAP_AFTER,
            mapping: false,
            status_thread: Default::default(),
            syncs: Default::default(),
            edges: Default::default(),
            fault,
            outstanding: 0,
            pieces: 0,
            held: Default::default(),
            frozen: None,
            leaving: None,
            detaching: None,
            ops: Default::default(),
            meter: UseMeter::default(),
        };
        let capacity = Sectors::from_bytes(limits.capacity_bytes);
        let spec = DiskSpec { weight, capacity, map, cached };
        let vm = VmId::new(number as u16);
        self.stack.attach(self.now, vm, spec);
        if !state.limits_per_s.is_none() {
            self.stack.set_limits(self.now, vm, &state.limits_per_s);
        }
        if number >= self.disks.0.len() {
            self.disks.0.resize_with(number + 1, || None);
        }
        let id = DiskId(number as u16);
        // It is the device's, whether or not this disk is cached.
        if let (Some(memory), Some(bytes_per_s)) = (&mut self.memory, bandwidth_bytes_per_s) {
            memory.measured(self.now, &mut self.stack, bytes_per_s);
        }
        self.disks.0[number] = Some(state);
        self.share_jobs();
        Ok(id)
    }

    /// Part of the device on which disks may be placed.
    fn room(&self) -> Room {
        let emulated = self.throttle.is_some();
        Room { capacity: self.stack.profile().capacity, emulated }
    }

    fn detach_disk(&mut self, id: DiskId, reply: SyncSender<Result<(), String>>) {
        match self.disks.get_mut(id) {
            Some(disk) if disk.detaching.is_none() => disk.detaching = Some(reply),
            _ => {
                let _ = reply.send(Err(format!("there is no disk number {}", id.0)));
                return;
            }
        }
        self.leave_disk(id);
        self.detaches += 1;
    }

    /// A disk is about to leave, or the reactor to end: [`Message::LeaveDisk`].
    fn leave_disk(&mut self, id: DiskId) {
        let Some(disk) = self.disks.get_mut(id).filter(|disk| disk.leaving.is_none()) else {
            return;
        };
        disk.leaving = Some(self.now);
        let open: Vec<PortId> = self.ports.of_disk(id).collect();
        open.into_iter().for_each(|port| self.ports.close(port));
        self.stack.leave(self.now, id.vm());
        self.news = true;
    }

    /// Close the images. The kernel keeps what is registered with a ring for a while after the
    /// ring's end: its device would stay claimed, and its file system could not be unmounted.
    pub(super) fn close_disks(&mut self) {
        for (number, disk) in (0..).zip(&mut self.disks.0) {
            if disk.take().is_some() {
                // What fails here ends with the ring.
                let _ = self.ring.register_file(number, None);
            }
        }
    }

    /// Let go of the disks that are being detached and have nothing under way.
    pub(super) fn finish_detaching(&mut self) {
        if self.detaches == 0 {
            return;
        }
        for number in 0..self.disks.0.len() {
            let vm = VmId::new(number as u16);
            let ends = |d: &mut DiskState| {
                let has_ports = || self.ports.of_disk(DiskId(number as u16)).next().is_some();
                let is_busy = || d.mapping || self.stack.is_busy(vm) || has_ports();
                d.detaching.is_some() && !is_busy()
            };
            let Some(mut disk) = self.disks.0[number].take_if(ends) else { continue };
            self.detaches -= 1;
            self.frozen -= usize::from(disk.frozen.take().is_some());
            // Its number may be another disk's soon, which must not wait for its requests.
            self.ports.turns.resume();
            self.slow.forget(DiskId(number as u16));
            self.share_jobs();
            self.stack.detach(self.now, vm);
            let result = self.ring.register_file(number as u16, None);
            let reply = disk.detaching.take();
            // Closes the image and lets go of its lock.
            drop(disk);
            if let Some(reply) = reply {
                let _ = reply.send(result.map_err(|e| e.to_string()));
            }
        }
    }

    fn resize(&mut self, id: DiskId, shrink: bool) -> Result<u64, String> {
        let disk = self.disks.find(id)?;
        let capacity_bytes = disk.image.refresh(shrink).map_err(|e| e.to_string())?;
        let (name, placed) = (disk.name.clone(), disk.placed);
        if let Some(start) = placed {
            // What is refused here keeps its old limits.
            let room = self.room();
            self.disks.check_place(&room, &name, start.get(), capacity_bytes, Some(id))?;
        }
        let disk = self.disks.get_mut(id).expect("looked at above");
        let is_other_size = disk.limits.capacity_bytes != capacity_bytes;
        disk.limits = *disk.image.limits();
        let (vm, size) = (id.vm(), Sectors::from_bytes(capacity_bytes));
        let map = match placed {
            Some(start) => Some(Map::linear(start, Sectors::from_bytes(capacity_bytes))),
            None => {
                (disk.map_stale, self.stale) = (true, true);
                if is_other_size {
                    // With the same size the map can wait: a VMM may hand its image over at will.
                    disk.map_due = self.now;
                }
                None // Nor is it copied: that takes milliseconds for an image in many pieces.
            }
        };
        self.stack.resize(self.now, vm, size, map);
        Ok(capacity_bytes)
    }

    fn set_weight(&mut self, id: DiskId, weight: NonZeroU32) -> Result<(), String> {
        self.disks.find(id)?.weight = weight;
        self.stack.set_weight(self.now, id.vm(), weight);
        Ok(())
    }

    /// A disk's rate limits from now on.
    pub(super) fn set_limits(&mut self, id: DiskId, limits: &DiskLimits) -> Result<(), String> {
        self.disks.find(id)?.limits_per_s = limits.clone();
        self.stack.set_limits(self.now, id.vm(), limits);
        Ok(())
    }

    /// Rate limits of a group from now on.
    pub(super) fn set_group(&mut self, name: &GroupName, limits: &Limits) {
        self.stack.set_group(self.now, name, limits);
    }

    /// Another prefetcher. What the old one has waiting is not made.
    fn set_prefetcher(
        &mut self,
        spec: &str,
        prefetcher: Box<dyn Prefetcher>,
    ) -> Result<(), String> {
        match self.stack.switch_prefetcher(self.now, spec, prefetcher) {
            true => Ok(()),
            false => Err("it has no cache to read ahead into".into()),
        }
    }

    /// Give back some of the memory that the cache may not have any more. Only when nothing that
    /// the stack has decided is left to be carried out.
    pub(super) fn trim_cache(&mut self) {
        if let Some(memory) = &mut self.memory {
            self.news |= memory.trim(self.now, &mut self.stack);
        }
    }

    fn set_policy(&mut self, spec: String) -> Result<(), String> {
        let scheduler = schedulers::build(&spec).map_err(|e| e.to_string())?;
        self.stack.switch(self.now, &spec, scheduler);
        self.policy = spec;
        Ok(())
    }

    /// Ask the file system again, by a thread, about images that have been
    /// written where the map knows nothing.
    pub(super) fn remap_stale(&mut self) {
        if !self.stale {
            return;
        }
        self.stale = false;
        for number in 0..self.disks.0.len() {
            let now = self.now;
            let Some(disk) = &mut self.disks.0[number] else { continue };
            if !disk.map_stale || disk.placed.is_some() {
                continue;
            }
            if disk.mapping || now < disk.map_due {
                self.stale = true;
                continue;
            }
            disk.map_stale = false;
            disk.map_due = now + disk.remap_after;
            disk.remap_after = REMAP_AFTER_MAX.min(disk.remap_after + disk.remap_after);
            let Ok(mapper) = disk.image.mapper() else { continue };
            let handle = self.handle.clone();
            let ask = move || {
                let map = mapper.map();
                // Its file, and the image's lock with it, is let go before anybody
                // can believe that the image is closed.
                drop(mapper);
                handle.send(Message::Remapped(DiskId(number as u16), map));
            };
            disk.mapping = std::thread::Builder::new().name("remap".into()).spawn(ask).is_ok();
        }
    }

    fn remapped(&mut self, id: DiskId, map: Option<Map>) {
        let now = self.now;
        let Some(disk) = self.disks.get_mut(id) else { return };
        disk.mapping = false;
        let Some(map) = map else { return };
        disk.unmapped = false;
        self.stack.remap(now, id.vm(), map);
    }

    fn status(&self) -> Status {
        let mut policy_metrics = Vec::new();
        self.stack.policy_metrics(&mut |name, value| policy_metrics.push((name, value)));
        let ports = self.ports.count_by_disk(self.disks.0.len());
        let status = |(n, disk): (usize, &Option<DiskState>)| {
            Some(disk.as_ref()?.status(DiskId(n as u16), ports[n]))
        };
        let mut disks: Vec<DiskStatus> =
            self.disks.0.iter().enumerate().filter_map(status).collect();
        self.stack.vm_metrics(&mut |name, vm, value| {
            if let Some(disk) = disks.iter_mut().find(|d| usize::from(d.id.0) == vm.index()) {
                disk.policy_metrics.push((name, value));
            }
        });
        let mut caches = disk_caches(&self.stack);
        for disk in &mut disks {
            let vm = disk.id.vm();
            (disk.limited, disk.limited_time) = self.stack.limited(self.now, vm);
            disk.queued_time = self.stack.queued_time(self.now, vm);
            let is_cached = self.stack.is_cached(disk.id.vm());
            disk.cache = is_cached.then(|| caches.remove(&disk.id).unwrap_or_default());
        }
        Status {
            now: self.now,
            policy: self.policy.clone(),
            depth: self.depth,
            in_flight: self.stack.in_flight(),
            outstanding: self.stack.outstanding(),
            stats: self.stack.stats(),
            holds: self.stack.holds().clone(),
            regions: self.regions,
            policy_metrics,
            throttle: self.throttle.as_ref().map(|t| t.report()),
            model_now: self.throttle.as_ref().map(|t| t.model_time(self.now)),
            served: self.done_commands,
            cache: self.memory.as_ref().map(|memory| memory.status(&self.stack)),
            fairness: judge(&mut disks),
            disks,
        }
    }
}

// A disk is frozen for a while: what is under way ends, and what its guests ask for from then on
// waits in their rings and sockets. Somebody takes a snapshot of its image meanwhile.

impl Core {
    /// Takes no requests of a disk for `time`, and answers when none is under way. The reply's
    /// sender is dropped when the disk takes requests again.
    pub(super) fn freeze(
        &mut self,
        id: DiskId,
        time: Nanos,
        reply: SyncSender<Result<(), String>>,
    ) {
        let until = self.now + time;
        let refused = match self.disks.get_mut(id) {
            Some(DiskState { frozen: Some(_), .. }) => "is frozen already",
            Some(disk) if disk.detaching.is_none() => {
                disk.frozen = Some(Freeze { until, reply, is_told: false });
                self.frozen += 1;
                return;
            }
            _ => "is being detached",
        };
        let _ = reply.send(Err(refused.into()));
    }

    /// Take requests of a frozen disk again; an error if it is not frozen.
    pub(super) fn thaw(&mut self, id: DiskId) -> Result<(), String> {
        let frozen = self.disks.get_mut(id).and_then(|disk| disk.frozen.take());
        let frozen = frozen.ok_or("is not frozen: nobody froze it, or its time was over")?;
        if !frozen.is_told {
            let _ = frozen.reply.send(Err("was thawed before it was frozen".into()));
        }
        self.frozen -= 1;
        self.ports.turns.resume();
        self.news = true;
        Ok(())
    }

    /// Tells the waiting clients that nothing is under way any more, and thaws disks whose time is
    /// over. Returns the time to look again.
    pub(super) fn look_at_frozen(&mut self) -> Option<Instant> {
        if self.frozen == 0 {
            return None;
        }
        let mut over = Vec::new();
        let disks = self.disks.0.iter_mut().enumerate();
        for (number, disk) in disks.filter_map(|(n, disk)| Some((n, disk.as_mut()?))) {
            let Some(freeze) = &mut disk.frozen else { continue };
            if disk.outstanding == 0 && !freeze.is_told {
                freeze.is_told = true;
                let _ = freeze.reply.send(Ok(()));
            }
            if self.now >= freeze.until {
                over.push(DiskId(number as u16));
                if !freeze.is_told {
                    freeze.is_told = true;
                    let left = disk.outstanding;
                    let _ = freeze.reply.send(Err(format!("{left} requests did not end in time")));
                }
            }
        }
        over.into_iter().for_each(|id| _ = self.thaw(id));
        self.disks.0.iter().flatten().filter_map(|disk| Some(disk.frozen.as_ref()?.until)).min()
    }
}

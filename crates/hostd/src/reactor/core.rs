//! What ports may call, and the books of the reactor: jobs, commands, ports.

use super::Handle;
use super::cached::{Cached, FETCHED_BLOCKS_MAX, WAITING_MAX};
use super::commands::Ios;
use super::disks::DiskState;
use super::jobs::{Jobs, buffers_len};
use super::lately::Intervals;
use super::message::Served;
use super::ports::Ports;
use super::ring::{Cqe, Ring, Source};
use crate::images::Limits;
use crate::port::{DiskId, Errno, Job, PortId};
use crate::throttle::Throttle;
use io_uring::squeue;
use seekway_policy::dispatcher::Withheld;
use seekway_policy::dispatcher::{Arrival, Dispatcher, OUTSTANDING_MAX, Output};
use seekway_policy::request::{Completion, Extent, Op, RequestId, VmId};
use seekway_policy::units::{Instant, Lba, Sectors};
use std::collections::VecDeque;

/// Jobs outstanding on one device.
const JOBS_MAX: usize = 1 << 18;
/// With so many pieces outstanding, jobs go whole: the dispatcher takes no more
/// than [`OUTSTANDING_MAX`].
pub(super) const CUT_BELOW: usize = OUTSTANDING_MAX / 2;
const _: () = assert!(
    CUT_BELOW + PIECES_MAX as usize + JOBS_MAX + WAITING_MAX + FETCHED_BLOCKS_MAX
        <= OUTSTANDING_MAX
);
/// Pieces that one job is cut into. What is left goes with the last: places
/// only guide policies.
pub(super) const PIECES_MAX: u32 = 256;
/// Discards and write-zeroes of one disk that the dispatcher has at once: it
/// compares each with all others, which a guest could make expensive for all.
const BARRIERS_MAX: u32 = 16;

/// What ports may ask of the reactor, and all of the reactor but the ports.
pub struct Core {
    pub(super) now: Instant,
    epoch: std::time::Instant,
    pub(super) ring: Ring,
    pub(super) dispatcher: Dispatcher,
    pub(super) policy: String,
    pub(super) depth: u32,
    pub(super) throttle: Option<Throttle>,
    pub(super) disks: Disks,
    pub(super) jobs: Jobs,
    pub(super) ios: Ios,
    /// The cache, when there is one.
    pub(super) cached: Option<Cached>,
    /// I/Os under way for each command, by its id's slot.
    ios_left: Vec<u32>,
    /// What faults have made of I/Os that never reach the kernel.
    pub(super) injected: Vec<(u32, i32)>,
    /// Members of the command that is being started.
    pub(super) scratch: Vec<RequestId>,
    done: Vec<Completion>,
    /// A job has come since the dispatcher was polled.
    pub(super) news: bool,
    /// Jobs that are done and not yet handed to their ports.
    ready: VecDeque<(PortId, u64, Result<(), Errno>)>,
    pub(super) ports: Ports,
    /// Whose request was dispatched last, and the time withheld up to then.
    served: Option<DiskId>,
    held: Withheld,
    /// Commands that are done.
    pub(super) done_commands: Served,
    intervals: Intervals,
    /// Disks that shall leave.
    pub(super) detaches: usize,
    /// Some disk's map may be stale.
    pub(super) stale: bool,
    /// For threads that answer later.
    pub(super) handle: Handle,
}

/// The disks by number.
#[derive(Default)]
pub struct Disks(pub(super) Vec<Option<DiskState>>);

impl Disks {
    /// The disk, if there is one of that number.
    pub fn get(&self, id: DiskId) -> Option<&DiskState> {
        self.0.get(usize::from(id.0))?.as_ref()
    }
    /// The same, to change.
    pub fn get_mut(&mut self, id: DiskId) -> Option<&mut DiskState> {
        self.0.get_mut(usize::from(id.0))?.as_mut()
    }
    /// Limits of a disk that is there.
    pub fn limits(&self, id: DiskId) -> &Limits {
        &self.get(id).expect("a port's disk stays until the port has ended").limits
    }
}

impl Core {
    pub(super) fn new(
        dispatcher: Dispatcher,
        policy: String,
        depth: u32,
        throttle: Option<Throttle>,
        cached: Option<Cached>,
        handle: Handle,
    ) -> Result<Core, String> {
        let mut ring = Ring::new().map_err(|e| {
            format!("io_uring: {e} (is it switched off? see /proc/sys/kernel/io_uring_disabled)")
        })?;
        ring.watch_mailbox(handle.wake());
        Ok(Core {
            now: Instant::ZERO,
            epoch: std::time::Instant::now(),
            ring,
            dispatcher,
            policy,
            depth,
            throttle,
            disks: Disks::default(),
            jobs: Jobs::default(),
            ios: Ios::default(),
            cached,
            ios_left: Vec::new(),
            injected: Vec::new(),
            scratch: Vec::new(),
            done: Vec::new(),
            news: false,
            ready: VecDeque::new(),
            ports: Ports::default(),
            served: None,
            held: Default::default(),
            done_commands: Served::default(),
            intervals: Intervals::new(),
            detaches: 0,
            stale: false,
            handle,
        })
    }

    /// The time of this turn of the loop, since the reactor's start.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Limits of a disk as they are now (a resize changes the capacity).
    pub fn limits(&self, disk: DiskId) -> &Limits {
        self.disks.limits(disk)
    }

    /// Hand in a job. `buffers` are where the data goes to or comes from, `len`
    /// bytes together, none for other operations; they stay valid until
    /// [`crate::port::Port::done`]. Fails, without a `done` to come, for what
    /// the disk cannot do: `EINVAL` (range, alignment), `EPERM` (read-only),
    /// `EBUSY` (too much outstanding: only ports without a bound of their own
    /// see it).
    pub fn submit(&mut self, job: &Job, buffers: &[libc::iovec]) -> Result<(), Errno> {
        let limits = self.disks.limits(job.disk);
        check(job, buffers, limits)?;
        let fetching = self.cached.as_ref().map_or(0, Cached::fetching);
        if self.jobs.len() - fetching >= JOBS_MAX {
            return Err(Errno(libc::EBUSY));
        }
        let index = self.jobs.insert(job, buffers, self.now);
        self.ports.slot(job.port).jobs += 1;
        let disk = self.disks.get_mut(job.disk).expect("its limits were looked at");
        disk.begin(self.now);
        let writes = matches!(job.op, Op::Write | Op::WriteZeroes);
        if writes && (disk.unmapped || disk.map.has_hole(job.offset, job.len)) {
            (disk.map_stale, self.stale) = (true, true);
        }
        let cached = disk.cached;
        self.news = true;
        match job.op {
            Op::Read if cached && self.read_cached(index) => {}
            Op::Read | Op::Write | Op::Flush => {
                self.write_begins(job);
                self.arrive(index);
            }
            Op::Discard | Op::WriteZeroes => {
                disk_of(&mut self.disks, job.disk).parked.push_back(index);
                self.unpark(job.disk);
            }
        }
        Ok(())
    }

    /// Discards and write-zeroes reach the dispatcher, as many as there is room
    /// for. A guest that cares for their order among its own requests waits for
    /// them (virtio 1.2, 5.2.6; NBD likewise), so that others may overtake. The
    /// cache hears of each when it goes, and looks for no more in a turn than a
    /// disk may have it look for; one is always under way, whose end brings the next.
    fn unpark(&mut self, id: DiskId) {
        let now = self.now;
        while let Some(disk) = self.disks.get_mut(id)
            && disk.barriers < BARRIERS_MAX
            && (disk.barriers == 0 || disk.load.may_forget(now))
            && let Some(index) = disk.parked.pop_front()
        {
            disk.barriers += 1;
            let job = self.jobs[index].job;
            if disk.cached {
                disk.load.forgot(now, job.len);
            }
            self.write_begins(&job);
            self.arrive(index);
        }
    }

    /// The whole job reaches the dispatcher.
    fn arrive(&mut self, index: u32) {
        let job = self.jobs[index].job;
        if job.op != Op::Flush {
            return self.arrive_part(index, 0, job.len);
        }
        let nowhere = Extent::new(Lba::ZERO, Sectors::new(1)).expect("one sector");
        let id = self.dispatcher.arrive(self.now, arrival(&job, nowhere));
        self.jobs.add_part(id, index, 0, 0);
        disk_of(&mut self.disks, job.disk).load.requests += 1;
    }

    /// `len` bytes of a job, from byte `start` of it, reach the dispatcher in the
    /// pieces in which they lie on the device.
    pub(super) fn arrive_part(&mut self, index: u32, start: u64, len: u64) {
        self.in_pieces(index, start, len, &mut |core, arrival| {
            core.dispatcher.arrive(core.now, arrival)
        });
    }

    /// Cut a range of a job into pieces, and let `arrive` name each a request.
    pub(super) fn in_pieces(
        &mut self,
        index: u32,
        start: u64,
        len: u64,
        arrive: &mut dyn FnMut(&mut Core, Arrival) -> RequestId,
    ) {
        let job = self.jobs[index].job;
        let load = &disk_of(&mut self.disks, job.disk).load;
        let may_cut = load.may_cut() && self.dispatcher.outstanding() < CUT_BELOW;
        let pieces_max = if may_cut { PIECES_MAX } else { 1 };
        let (mut at, end, mut pieces) = (start, start + len, 0);
        while at < end {
            let disk = self.disks.get(job.disk).expect("a disk stays while it has jobs");
            let left = end - at;
            let mut extent = disk.map.piece(job.offset + at, left);
            pieces += 1;
            if pieces == pieces_max {
                let len = Sectors::new(left / 512);
                extent = Extent::new(extent.start(), len).unwrap_or(extent);
            }
            let len = extent.len().bytes().min(left);
            let id = arrive(self, arrival(&job, extent));
            self.jobs.add_part(id, index, at, len);
            disk_of(&mut self.disks, job.disk).load.requests += 1;
            at += len;
        }
    }

    /// Push an SQE of this port; its CQE comes back as
    /// [`crate::port::Port::event`] with `tag` (24 bits).
    ///
    /// # Safety
    /// What the entry points to stays valid until its (last) CQE.
    pub unsafe fn push(&mut self, port: PortId, tag: u32, entry: squeue::Entry) {
        self.ports.slot(port).sqes += 1;
        // SAFETY: the caller's promise.
        unsafe { self.ring.push(Source::Port(port, tag), entry) };
    }

    /// Cancel the SQE that this port pushed under `tag`; its CQE comes all the same.
    pub fn cancel(&mut self, port: PortId, tag: u32) {
        self.ring.cancel(port, tag);
    }

    /// Runs of data and of holes in `offset..offset+len` (for NBD's block status):
    /// pairs of length and "is a hole", at most `max`, covering a prefix of the range.
    pub fn block_status(
        &self,
        disk: DiskId,
        offset: u64,
        len: u64,
        max: usize,
    ) -> Vec<(u64, bool)> {
        let disk = self.disks.get(disk).expect("a port's disk stays until the port has ended");
        disk.image.runs(offset, len, max)
    }

    // What follows is the loop's.

    /// Look at the clock.
    pub(super) fn tick(&mut self) -> Instant {
        self.now = Instant::from_nanos(self.epoch.elapsed().as_nanos() as u64);
        self.now
    }

    /// Close the books of an interval that has ended. Called before anything of
    /// this turn is counted.
    pub(super) fn end_interval(&mut self) {
        let disks = self.disks.0.iter_mut().flatten().map(|disk| &mut disk.lately);
        self.intervals.tick(self.now, disks);
    }

    pub(super) fn completions(&mut self, out: &mut Vec<Cqe>) {
        self.ring.completions(out);
    }

    /// Watch for messages (again: a multishot poll may end).
    pub(super) fn watch_mailbox(&mut self) {
        self.ring.watch_mailbox(self.handle.wake());
    }

    pub(super) fn peek(&mut self) -> bool {
        self.ring.peek()
    }

    pub(super) fn submit_and_wait(&mut self, wake: Option<Instant>) {
        // The clock has gone on since the turn began.
        let timeout = wake.map(|at| at.since(self.tick()).get());
        self.ring.submit_and_wait(timeout);
    }

    /// Poll the dispatcher until it has nothing to dispatch. When to do so
    /// again if nothing happens.
    pub(super) fn pump(&mut self) -> Option<Instant> {
        self.news = false;
        let wake = loop {
            match self.dispatcher.poll(self.now) {
                Output::Dispatch(command) => {
                    self.attribute_held();
                    self.served = Some(DiskId(command.vm.index() as u16));
                    self.start(&command);
                }
                Output::WakeAt(at) => break Some(at),
                Output::Idle => break None,
            }
        };
        self.attribute_held();
        let throttled = self.throttle.as_ref().and_then(|t| t.next());
        [wake, throttled].into_iter().flatten().min()
    }

    /// What was withheld since the last look is the disk's that was served last.
    fn attribute_held(&mut self) {
        let held = &self.dispatcher.holds().held;
        if *held == self.held {
            return;
        }
        if let Some(disk) = self.served.and_then(|id| self.disks.get_mut(id)) {
            for (why, cause) in held.since(&self.held) {
                disk.held.add(why, cause);
            }
        }
        self.held.clone_from(held);
    }

    pub(super) fn set_ios_left(&mut self, command: RequestId, left: u32) {
        if command.slot() >= self.ios_left.len() {
            self.ios_left.resize(command.slot() + 1, 0);
        }
        self.ios_left[command.slot()] = left;
    }
    pub(super) fn add_io(&mut self, command: RequestId) {
        self.ios_left[command.slot()] += 1;
    }
    /// True when it was the command's last.
    pub(super) fn end_io(&mut self, command: RequestId) -> bool {
        self.ios_left[command.slot()] -= 1;
        self.ios_left[command.slot()] == 0
    }

    /// The image is done with a command; the modelled device may not be.
    pub(super) fn command_done(&mut self, command: RequestId) {
        let is_data = self.dispatcher.members(command).next().is_some_and(|r| r.op.is_data());
        match &mut self.throttle {
            Some(throttle) if is_data => throttle.arrived(self.now, command),
            _ => self.complete(command),
        }
    }

    /// Commands that the throttle lets go.
    pub(super) fn release_throttled(&mut self) {
        while let Some(command) = self.throttle.as_mut().and_then(|t| t.pop(self.now)) {
            self.complete(command);
        }
    }

    /// A command is done: so are the requests in it.
    fn complete(&mut self, command: RequestId) {
        let mut done = std::mem::take(&mut self.done);
        let failed = |r: RequestId| self.jobs.part(r).error.is_some();
        let ok = !self.dispatcher.members(command).any(|r| failed(r.id));
        self.dispatcher.complete(self.now, command, ok, &mut done);
        let disk = done.first().map(|c| DiskId(c.request.vm.index() as u16));
        self.count_command(done.first());
        for completion in done.drain(..) {
            let id = completion.request.id;
            let job = self.jobs.part(id).job;
            let slot = &self.jobs[job];
            let disk = disk_of(&mut self.disks, slot.job.disk);
            disk.load.requests -= 1;
            if let Some(cached) = &mut self.cached {
                let from_device = self.throttle.is_some() || disk.image.reads_device();
                cached.left_device(self.now, &completion, slot.fetch, from_device);
            }
            if self.jobs.part_done(id) {
                self.job_done(job);
            }
        }
        self.done = done;
        // Not before all are accounted for: what arrives takes over their ids.
        if let Some(disk) = disk {
            self.unpark(disk);
        }
        self.end_fetches();
    }

    /// A command is done of which this is the first request: it has the device
    /// time of all.
    fn count_command(&mut self, first: Option<&Completion>) {
        let Some(first) = first.filter(|c| c.request.op.is_data()) else { return };
        self.done_commands.commands += 1;
        self.done_commands.service += first.service;
        self.done_commands.service_from_dispatch += self.now.since(first.dispatched);
        if let Some(disk) = self.disks.get_mut(DiskId(first.request.vm.index() as u16)) {
            disk.lately.add(first.service, 0);
        }
    }

    /// Nothing of a job is left to do.
    pub(super) fn job_done(&mut self, index: u32) {
        let slot = &self.jobs[index];
        if let (Some(id), Some(cached)) = (slot.fetch, &mut self.cached) {
            return cached.has_ended(id);
        }
        let (job, error, response) = (slot.job, slot.error, self.now.since(slot.arrived));
        self.jobs.remove(index);
        self.write_ends(&job);
        let disk = disk_of(&mut self.disks, job.disk);
        disk.count(self.now, &job, error.is_none(), response);
        disk.barriers -= u32::from(matches!(job.op, Op::Discard | Op::WriteZeroes));
        self.ports.slot(job.port).jobs -= 1;
        self.ready.push_back((job.port, job.token, error.map_or(Ok(()), Err)));
    }

    /// Jobs that are ready to be handed to their ports.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }
    pub(super) fn next_ready(&mut self) -> Option<(PortId, u64, Result<(), Errno>)> {
        self.ready.pop_front()
    }
    /// Is there something to do without waiting?
    pub(super) fn has_ready(&self) -> bool {
        self.news || !self.ready.is_empty() || !self.injected.is_empty() || self.ports.have_news()
    }

    /// Is nothing under way, and no port open?
    pub(super) fn is_drained(&self) -> bool {
        self.jobs.len() == 0 && self.ports_of(None).is_empty()
    }

    pub(super) fn take_journal(&mut self) -> String {
        self.dispatcher.take_journal()
    }
    pub(super) fn stop_journal(&mut self) {
        self.dispatcher.stop_journal();
    }
}

/// The disk of a job, which stays as long as the job.
pub(super) fn disk_of(disks: &mut Disks, id: DiskId) -> &mut DiskState {
    disks.get_mut(id).expect("a disk stays while it has jobs")
}

/// A job's arrival at a place on the device.
fn arrival(job: &Job, extent: Extent) -> Arrival {
    Arrival { vm: VmId::new(job.disk.0), tag: job.tag, op: job.op, sync: true, extent }
}

/// Is this a job that the disk can do?
fn check(job: &Job, buffers: &[libc::iovec], limits: &Limits) -> Result<(), Errno> {
    if limits.read_only && !matches!(job.op, Op::Read | Op::Flush) {
        return Err(Errno(libc::EPERM));
    }
    if job.op == Op::Flush {
        return Ok(());
    }
    let align = u64::from(limits.align_bytes);
    let aligned = job.len > 0 && job.len.is_multiple_of(align) && job.offset.is_multiple_of(align);
    let end = job.offset.checked_add(job.len);
    let inside = end.is_some_and(|end| end <= limits.capacity_bytes);
    let fits = !job.op.is_data() || buffers_len(buffers) == job.len;
    // One I/O's length travels in 32 bits.
    let short = !job.op.is_data() || job.len <= 1 << 30;
    match aligned && inside && fits && short {
        true => Ok(()),
        false => Err(Errno(libc::EINVAL)),
    }
}

//! The state of a reactor, all but the ports themselves, and what ports may ask of it.

use super::cache::CacheMemory;
use super::disks::{Ask, Disks};
use super::intervals::IntervalClock;
use super::io::{Commands, Ios, Unsent};
use super::jobs::{Jobs, SlowLog, buffers_len, extent_of};
use super::message::{Handle, REGIONS, Served};
use super::poll::Poll;
use super::ring::{Backend, Source};
use super::turns::Ports;
use crate::images::Limits;
use crate::port::{DiskId, Errno, Job, PortContext, PortId};
use crate::throttle::Throttle;
use io_uring::squeue;
use seekway_core::ioprio;
use seekway_core::request::{Op, RequestId};
use seekway_core::units::{Instant, Nanos};
use seekway_stack::dispatcher::Withheld;
use seekway_stack::stack::{Member, OUTSTANDING_DEFAULT, Refused, Stack, Submit, Urgency, is_sync};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::RawFd;
use std::time::Duration;

/// Jobs of one disk for which its ports take requests.
const JOBS_TAKEN_MAX: usize = 1 << 14;
/// Pieces of memory that those jobs may have, but for the last one's: 16 bytes each.
const PIECES_TAKEN_MAX: usize = 1 << 18;

/// The state of a reactor, all but the ports themselves.
pub struct Core {
    pub(super) now: Instant,
    pub(super) ring: Box<dyn Backend>,
    pub(super) stack: Stack,
    pub(super) policy: String,
    pub(super) depth: u32,
    pub(super) throttle: Option<Throttle>,
    /// Time for which to look for news.
    pub(super) poll: Poll,
    pub(super) disks: Disks,
    pub(super) jobs: Jobs,
    pub(super) ios: Ios,
    pub(super) commands: Commands,
    /// The cache's memory, when there is a cache.
    pub(super) memory: Option<CacheMemory>,
    /// Jobs that each disk may have outstanding: its part of what the stack takes.
    pub(super) jobs_max: usize,
    /// I/Os that never reach the kernel, and why.
    pub(super) unsent: VecDeque<(u32, Unsent)>,
    /// Failed I/Os that wait for the mark of their image, each with its error and its deadline.
    pub(super) marking: VecDeque<(u32, Errno, Instant)>,
    /// Longest wait of such an I/O: a file system may hang.
    pub(super) mark_patience: Nanos,
    /// Commands that are not begun, because their disk leaves.
    pub(super) abandoned: VecDeque<RequestId>,
    /// Members of the command that is being started.
    pub(super) scratch: Vec<Member>,
    /// A job has come since the dispatcher was polled.
    pub(super) news: bool,
    /// Jobs that are done and not yet handed to their ports.
    pub(super) ready: VecDeque<(PortId, u64, Result<(), Errno>)>,
    pub(super) ports: Ports,
    /// The disk of the last dispatched request, and the time withheld up to then.
    pub(super) served: Option<DiskId>,
    pub(super) held: Withheld,
    /// Commands that are done.
    pub(super) done_commands: Served,
    /// Reads and writes that were sent, by the part of the device where they began.
    pub(super) regions: [u64; REGIONS],
    intervals: IntervalClock,
    /// The last slow requests.
    pub(super) slow: SlowLog,
    /// Disks that take no requests for a while.
    pub(super) frozen: usize,
    /// Disks that are being detached.
    pub(super) detaches: usize,
    /// Some disk's map may be stale.
    pub(super) stale: bool,
    /// For threads that answer later.
    pub(super) handle: Handle,
    /// Events, for the parity test.
    #[cfg(test)]
    pub(super) log: Vec<super::tests::parity::Event>,
}

impl Core {
    pub(super) fn new(
        stack: Stack,
        policy: String,
        depth: u32,
        throttle: Option<Throttle>,
        memory: Option<CacheMemory>,
        handle: Handle,
        mut ring: Box<dyn Backend>,
    ) -> Core {
        ring.watch_mailbox(handle.wake());
        Core {
            now: Instant::ZERO,
            ring,
            stack,
            policy,
            depth,
            throttle,
            poll: Poll::OFF,
            disks: Disks::default(),
            jobs: Jobs::default(),
            ios: Ios::default(),
            commands: Commands::default(),
            memory,
            jobs_max: OUTSTANDING_DEFAULT,
            unsent: VecDeque::new(),
            marking: VecDeque::new(),
            mark_patience: Nanos::from_secs(2),
            abandoned: VecDeque::new(),
            scratch: Vec::new(),
            news: false,
            ready: VecDeque::new(),
            ports: Ports::default(),
            served: None,
            held: Withheld::default(),
            done_commands: Served::default(),
            regions: [0; REGIONS],
            intervals: IntervalClock::new(),
            slow: SlowLog::default(),
            frozen: 0,
            detaches: 0,
            stale: false,
            handle,
            #[cfg(test)]
            log: Vec::new(),
        }
    }

    /// Look at the clock.
    pub(super) fn tick(&mut self) -> Instant {
        self.now = self.ring.now();
        self.now
    }

    /// End the interval whose time is over. Called before anything of this turn is counted.
    pub(super) fn end_interval(&mut self) {
        let disks = (0..).zip(&mut self.disks.0);
        let meters = disks.filter_map(|(n, disk)| Some((DiskId(n), &mut disk.as_mut()?.meter)));
        let queued = |id: DiskId, at| self.stack.queued_time(at, id.vm());
        self.intervals.tick(self.now, meters, queued);
    }

    /// Watch for messages (again: a multishot poll may end).
    pub(super) fn watch_mailbox(&mut self) {
        self.ring.watch_mailbox(self.handle.wake());
    }

    pub(super) fn submit_and_wait(&mut self, wake: Option<Instant>) {
        // The clock has gone on since the turn began.
        let timeout = wake.map(|at| at.since(self.tick()).get());
        self.ring.submit_and_wait(timeout);
    }

    /// The end of a sync may have been dropped, and with it an error that nobody is told again.
    pub(super) fn suspect_syncs(&mut self) {
        for disk in self.disks.0.iter_mut().flatten() {
            if disk.syncs.are_under_way() {
                disk.image.sync_failed(libc::EIO);
            }
        }
    }

    /// The next job to be handed to its port, which may end once it has it.
    pub(super) fn next_ready(&mut self) -> Option<(PortId, u64, Result<(), Errno>)> {
        let ready = self.ready.pop_front()?;
        self.ports.slot(ready.0).jobs -= 1;
        Some(ready)
    }
    #[cfg(test)]
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || !self.abandoned.is_empty()
    }
    /// Is there something to do without waiting?
    pub(super) fn has_ready(&self) -> bool {
        let has_unsent = !self.unsent.is_empty() || !self.abandoned.is_empty();
        self.news || !self.ready.is_empty() || has_unsent || self.ports.have_news()
    }

    /// Divide what the stack takes among the disks, so that none keeps another one out.
    pub(super) fn share_jobs(&mut self) {
        self.jobs_max = OUTSTANDING_DEFAULT / self.disks.0.iter().flatten().count().max(1);
    }

    /// Is nothing under way, and no port open?
    pub(super) fn is_drained(&self) -> bool {
        self.stack.is_idle() && self.ports.all().next().is_none()
    }
}

impl PortContext for Core {
    fn now(&self) -> Instant {
        self.now
    }

    fn limits(&self, disk: DiskId) -> &Limits {
        self.disks.limits(disk)
    }

    fn submit(&mut self, job: &Job, buffers: &[libc::iovec]) -> Result<(), Errno> {
        check(job, buffers, self.disks.limits(job.disk))?;
        if self.disks.of_job(job.disk).outstanding as usize >= self.jobs_max {
            return Err(Errno(libc::EBUSY));
        }
        let token = self.jobs.insert(job, buffers, self.now);
        let (vm, extent) = (job.disk.vm(), extent_of(job));
        let urgency = Urgency { fua: job.fua, write_through: false, priority: job.priority };
        let request = Submit {
            vm,
            tag: ioprio::tag(job.priority),
            op: job.op,
            sync: is_sync(job.op, urgency),
            extent,
            token: token.into(),
        };
        if let Err(refused) = self.stack.submit(self.now, request) {
            self.jobs.remove(token);
            return Err(Errno(match refused {
                Refused::Full => libc::EBUSY,
                Refused::Range => libc::EINVAL,
            }));
        }
        self.news = true;
        self.ports.slot(job.port).jobs += 1;
        let disk = self.disks.of_job(job.disk);
        disk.begin(self.now, buffers.len());
        let writes = matches!(job.op, Op::Write | Op::WriteZeroes);
        if writes && (disk.unmapped || self.stack.map(vm).has_hole(extent)) {
            (disk.map_stale, self.stale) = (true, true);
        }
        Ok(())
    }

    fn copies_reads(&self, disk: DiskId) -> bool {
        self.memory.is_some() && self.stack.is_cached(disk.vm())
    }

    fn has_room(&self, disk: DiskId) -> bool {
        // The ports of a disk that is not there have nothing to hand in.
        self.disks.get(disk).is_none_or(|disk| {
            disk.frozen.is_none()
                && (disk.outstanding as usize) < self.jobs_max.min(JOBS_TAKEN_MAX)
                && disk.pieces < PIECES_TAKEN_MAX
                && self.stack.has_room()
        })
    }

    fn wait_turn(&mut self, port: PortId) {
        self.ports.wait_turn(port);
    }

    unsafe fn push(&mut self, port: PortId, tag: u32, entry: squeue::Entry) {
        self.ports.slot(port).sqes += 1;
        // SAFETY: the caller's promise.
        unsafe { self.ring.push(Source::Port(port, tag), entry) };
    }

    unsafe fn send(
        &mut self,
        socket: RawFd,
        message: *const libc::msghdr,
        is_measured: bool,
    ) -> (i32, Duration) {
        let before = is_measured.then(|| self.ring.busy());
        // SAFETY: the caller's promise.
        let result = unsafe { self.ring.send(socket, message) };
        (result, before.map_or(Duration::ZERO, |before| self.ring.busy().saturating_sub(before)))
    }

    fn cancel(&mut self, port: PortId, tag: u32) {
        self.ring.cancel(port, tag);
    }

    fn close(&mut self, port: PortId) {
        self.ports.close(port);
    }

    fn block_status(&mut self, port: PortId, token: u64, range: Range<u64>, max: usize) {
        let slot = self.ports.slot(port);
        slot.jobs += 1;
        let disk = slot.disk.and_then(|disk| self.disks.get_mut(disk));
        let disk = disk.expect("a port's disk stays until the port has ended");
        disk.status_thread.ask(&disk.image, &self.handle, Ask { port, token, range, max });
    }
}

/// Is this a job that the disk can do?
fn check(job: &Job, buffers: &[libc::iovec], limits: &Limits) -> Result<(), Errno> {
    if limits.read_only && !matches!(job.op, Op::Read | Op::Flush) {
        return Err(Errno(libc::EPERM));
    }
    if job.op == Op::Flush {
        return Ok(());
    }
    let end = job.offset.checked_add(job.len);
    let inside = end.is_some_and(|end| end <= limits.served_bytes());
    let fits = !job.op.is_data() || buffers_len(buffers) == job.len;
    // One I/O's length travels in 32 bits.
    let short = !job.op.is_data() || job.len <= 1 << 30;
    match job.len > 0 && inside && fits && short {
        true => Ok(()),
        false => Err(Errno(libc::EINVAL)),
    }
}

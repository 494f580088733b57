//! What ports may call, and what the reactor does with what the stack says.

use super::Handle;
use super::cache::{CacheMemory, extent_of};
use super::commands::{Commands, Ios};
use super::disks::{Disks, disk_of};
use super::jobs::{Jobs, buffers_len};
use super::lately::Intervals;
use super::message::Served;
use super::ports::Ports;
use super::ring::{Backend, Cqe, Source};
use crate::images::Limits;
use crate::port::{DiskId, Errno, Job, PortId};
use crate::throttle::Throttle;
use io_uring::squeue;
use seekway_policy::dispatcher::{self, Withheld};
use seekway_policy::ioprio;
use seekway_policy::request::{Op, Request, RequestId, VmId};
use seekway_policy::stack::{
    Action, Done, IoError, Member, Refused, Stack, Submit, Urgency, Wake, is_sync,
};
use seekway_policy::units::Instant;
use std::collections::VecDeque;

/// What ports may ask of the reactor, and all of the reactor but the ports.
pub struct Core {
    pub(super) now: Instant,
    pub(super) ring: Box<dyn Backend>,
    pub(super) stack: Stack,
    pub(super) policy: String,
    pub(super) depth: u32,
    pub(super) throttle: Option<Throttle>,
    pub(super) disks: Disks,
    pub(super) jobs: Jobs,
    pub(super) ios: Ios,
    pub(super) commands: Commands,
    /// The cache's memory, when there is a cache.
    pub(super) memory: Option<CacheMemory>,
    /// What faults have made of I/Os that never reach the kernel.
    pub(super) injected: VecDeque<(u32, i32)>,
    /// Members of the command that is being started.
    pub(super) scratch: Vec<Member>,
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
    /// What has been done, for the parity test.
    #[cfg(test)]
    pub(super) log: Vec<super::parity::Event>,
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
            disks: Disks::default(),
            jobs: Jobs::default(),
            ios: Ios::default(),
            commands: Commands::default(),
            memory,
            injected: VecDeque::new(),
            scratch: Vec::new(),
            news: false,
            ready: VecDeque::new(),
            ports: Ports::default(),
            served: None,
            held: Withheld::default(),
            done_commands: Served::default(),
            intervals: Intervals::new(),
            detaches: 0,
            stale: false,
            handle,
            #[cfg(test)]
            log: Vec::new(),
        }
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
        check(job, buffers, self.disks.limits(job.disk))?;
        let token = self.jobs.insert(job, buffers, self.now);
        let (vm, extent) = (VmId::new(job.disk.0), extent_of(job));
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
        let disk = disk_of(&mut self.disks, job.disk);
        disk.begin(self.now);
        let writes = matches!(job.op, Op::Write | Op::WriteZeroes);
        if writes && (disk.unmapped || self.stack.map(vm).has_hole(extent)) {
            (disk.map_stale, self.stale) = (true, true);
        }
        Ok(())
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
        self.now = self.ring.now();
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

    /// Poll the stack until it has nothing to do. When to do so again if nothing happens.
    pub(super) fn pump(&mut self) -> Wake {
        self.news = false;
        let mut wake = loop {
            match self.stack.poll(self.now) {
                Action::Wait(wake) => break wake,
                action => self.act(action),
            }
        };
        self.attribute_held();
        let throttled = self.throttle.as_ref().and_then(|t| t.next());
        wake.demand = wake.demand.into_iter().chain(throttled).min();
        wake
    }

    /// Carry out what the stack has decided, without asking it for more commands.
    pub(super) fn settle(&mut self) {
        while let Some(action) = self.stack.take() {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        #[cfg(test)]
        self.log_action(action);
        match action {
            Action::Issue(command) => {
                self.attribute_held();
                self.served = Some(DiskId(command.vm.index() as u16));
                self.start(&command);
            }
            Action::Copy(copy) => self.copy(&copy),
            Action::Done(done) => self.job_done(&done),
            // Their cost is the processor's own here; the simulator charges it.
            Action::LookedUp { .. } | Action::Prefetching | Action::Wait(_) => {}
        }
    }

    /// What was withheld since the last look is the disk's that was served last.
    fn attribute_held(&mut self) {
        let held = &self.stack.holds().held;
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

    /// The image is done with a command; the modelled device may not be.
    pub(super) fn command_done(&mut self, command: &Request) {
        match &mut self.throttle {
            Some(throttle) if command.op.is_data() => throttle.arrived(self.now, command.id),
            _ => self.complete(command.id),
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
        let failed = self.commands.take_failed(command);
        let served = self.stack.io_done(self.now, command, &failed);
        #[cfg(test)]
        self.log.push(super::parity::Event::Completed);
        self.count_command(&served);
        self.count_bandwidth();
        self.settle();
    }

    /// What the device reads a second may be more than was known.
    fn count_bandwidth(&mut self) {
        let Some(memory) = &mut self.memory else { return };
        let mut bandwidth = None;
        for finished in self.stack.finished() {
            let completion = &finished.completion;
            let disk = DiskId(completion.request.vm.index() as u16);
            let reads_device = self.disks.get(disk).is_some_and(|d| d.image.reads_device());
            let from_device = self.throttle.is_some() || reads_device;
            bandwidth = memory.left_device(self.now, completion, from_device).or(bandwidth);
        }
        if let Some(bytes_per_s) = bandwidth {
            self.stack.set_bandwidth(self.now, bytes_per_s);
        }
    }

    fn count_command(&mut self, command: &dispatcher::Served) {
        if !command.op.is_data() {
            return;
        }
        self.done_commands.commands += 1;
        self.done_commands.service += command.service;
        self.done_commands.service_from_dispatch += self.now.since(command.dispatched);
        if let Some(disk) = self.disks.get_mut(DiskId(command.vm.index() as u16)) {
            disk.lately.add(command.service, 0);
        }
    }

    /// Nothing of a job is left to do.
    fn job_done(&mut self, done: &Done) {
        let token = done.token as u32;
        let slot = &self.jobs[token];
        let (job, response) = (slot.job, self.now.since(slot.arrived));
        self.jobs.remove(token);
        disk_of(&mut self.disks, job.disk).count(self.now, &job, done.result.is_ok(), response);
        self.ports.slot(job.port).jobs -= 1;
        let result = done.result.map_err(|IoError(errno)| Errno(errno));
        self.ready.push_back((job.port, job.token, result));
    }

    /// Jobs that are ready to be handed to their ports.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }
    pub(super) fn next_ready(&mut self) -> Option<(PortId, u64, Result<(), Errno>)> {
        self.ready.pop_front()
    }
    #[cfg(test)]
    pub(super) fn has_injected(&self) -> bool {
        !self.injected.is_empty()
    }
    /// Is there something to do without waiting?
    pub(super) fn has_ready(&self) -> bool {
        self.news || !self.ready.is_empty() || !self.injected.is_empty() || self.ports.have_news()
    }

    /// Is nothing under way, and no port open?
    pub(super) fn is_drained(&self) -> bool {
        self.stack.is_idle() && self.ports_of(None).is_empty()
    }

    pub(super) fn take_journal(&mut self) -> String {
        self.stack.take_journal()
    }
    pub(super) fn stop_journal(&mut self) {
        self.stack.stop_journal();
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

//! From what the stack decides to I/O on images and back: what a command's members need is
//! gathered into as few SQEs as their places in the files allow, continued when it comes up
//! short, bounced when memory is misaligned, and tried one member at a time when it fails, so
//! that each request gets its own answer. What begins or ends inside a block is written by reading
//! the block before, one at a time ([`super::edges`]).

use super::core::Core;
use super::io::{
    Bounce, IOVECS_MAX, Io, Kind, PUNCH, Step, Unsent, ZERO, is_aligned, is_scattered, kind_of,
};
use super::jobs::{SlowRequest, bytes_of, slice_buffers};
use crate::images::Image;
use crate::images::fault::Injected;
use crate::port::{DiskId, Errno};
use crate::sigbus;
use seekway_core::request::{Op, Request, RequestId};
use seekway_core::units::SECTOR_BYTES;
use seekway_stack::dispatcher;
use seekway_stack::stack::{ABANDONED, Action, Copy, Done, IoError, Member, Target, Wake};
use std::ops::Range;

/// Number of times that an I/O is handed in again which the kernel does not take now.
const RETRIES_MAX: u32 = 1000;

/// The request that the members of one I/O make together.
#[derive(Default)]
struct CombinedIo {
    /// Byte offset in the image.
    offset: u64,
    /// Bytes of all members together.
    len: u64,
    /// Zeroes may be written by deallocating.
    unmap: bool,
    /// A member has to be durable when it is done (FUA).
    durable: bool,
}

impl Core {
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
            Action::Issue(command) if !self.may_begin(&command) => {
                self.commands.begin(command.id);
                self.abandoned.push_back(command.id);
            }
            Action::Issue(command) => {
                self.attribute_held();
                self.served = Some(DiskId::of(command.vm));
                self.count_region(&command);
                self.start(&command);
            }
            Action::Copy(copy) => self.copy(&copy),
            Action::Done(done) => self.job_done(&done),
            // Their cost is the processor's own here; the simulator charges it.
            Action::LookedUp { .. } | Action::Prefetching | Action::Wait(_) => {}
        }
    }

    /// May a command go to the device? Not when its disk leaves.
    fn may_begin(&self, command: &Request) -> bool {
        let disk = self.disks.get(DiskId::of(command.vm));
        disk.is_none_or(|disk| disk.may_begin(self.now, command.op))
    }

    /// End the commands that were not begun.
    fn end_abandoned(&mut self) {
        while let Some(command) = self.abandoned.pop_front() {
            let members: Vec<RequestId> = self.stack.members(command).map(|m| m.id).collect();
            for member in members {
                self.commands.fail(command, member, ABANDONED);
            }
            self.complete(command);
        }
    }

    /// Where the head goes.
    fn count_region(&mut self, command: &Request) {
        if command.op.is_data() {
            let regions = self.regions.len() as u128;
            let capacity = u128::from(self.stack.profile().capacity.get().max(1));
            let region = u128::from(command.extent.start().get()) * regions / capacity;
            self.regions[region.min(regions - 1) as usize] += 1;
        }
    }

    /// Copy cached data to a guest.
    fn copy(&mut self, copy: &Copy) {
        let Some(memory) = &mut self.memory else { return };
        let slot = &self.jobs[copy.token as u32];
        let (start, len) = bytes_of(&slot.job, copy.part);
        let frames = self.stack.frames(copy).iter().copied();
        memory.copy(frames, slot.job.offset + start, &slot.buffers, start, len);
    }

    /// Charges time withheld since the last look to the disk that was served last.
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
    fn command_done(&mut self, command: &Request) {
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
        self.log.push(super::tests::parity::Event::Completed);
        self.count_command(&served);
        self.count_bandwidth();
        self.settle();
    }

    /// Raises the device's bandwidth if it read faster than was known.
    fn count_bandwidth(&mut self) {
        let Some(memory) = &mut self.memory else { return };
        let mut bandwidth = None;
        for completion in self.stack.finished() {
            let disk = DiskId::of(completion.request.vm);
            let reads_device = self.disks.get(disk).is_some_and(|d| d.image.reads_device());
            let from_device = self.throttle.is_some() || reads_device;
            bandwidth = memory.left_device(self.now, completion, from_device).or(bandwidth);
        }
        if let Some(bytes_per_s) = bandwidth {
            self.stack.set_bandwidth(self.now, bytes_per_s);
        }
    }

    fn count_command(&mut self, command: &dispatcher::CompletedCommand) {
        if command.op.is_data() {
            let took = self.now.since(command.dispatched);
            self.poll.served(took);
            self.done_commands.commands += 1;
            self.done_commands.service += command.service;
            self.done_commands.service_from_dispatch += took;
        } else if self.throttle.is_some() {
            // A modelled device knows reads and writes only.
            return;
        }
        if let Some(disk) = self.disks.get_mut(DiskId::of(command.vm)) {
            disk.meter.add(command.service, 0);
        }
    }

    /// Nothing of a job is left to do.
    fn job_done(&mut self, done: &Done) {
        let token = done.token as u32;
        let slot = &self.jobs[token];
        let job = slot.job;
        let disk = self.disks.of_job(job.disk);
        let (op, response) = disk.count(self.now, slot, done.result.is_ok());
        self.slow.note(SlowRequest {
            disk: job.disk,
            op,
            offset_bytes: job.offset,
            len_bytes: job.len,
            ok: done.result.is_ok(),
            done: self.now,
            response,
            stages: done.stages,
        });
        self.jobs.remove(token);
        let result = done.result.map_err(|IoError(errno)| Errno(errno));
        self.ready.push_back((job.port, job.token, result));
    }

    /// Carry out a command.
    fn start(&mut self, command: &Request) {
        if command.op.is_data()
            && let Some(throttle) = &mut self.throttle
        {
            throttle.submit(self.now, command);
        }
        let mut members = std::mem::take(&mut self.scratch);
        members.extend(self.stack.members(command.id));
        self.commands.begin(command.id);
        match members[..] {
            [only] => self.start_io(command, &[only]),
            // One covers them all.
            _ if command.op == Op::Flush => self.start_io(command, &members),
            _ => self.start_runs(command, &members),
        }
        members.clear();
        self.scratch = members;
    }

    /// One I/O for each run of members that are neighbours in the image too.
    fn start_runs(&mut self, command: &Request, members: &[Member]) {
        let (mut from, mut iovecs, mut end) = (0, 0, None);
        for (at, member) in members.iter().enumerate() {
            let (begin, len) = self.bytes_of(member);
            let more = match member.target {
                Target::Guest { token } => self.jobs[token as u32].buffers.len(),
                Target::Cache(id) => self.stack.fetch(id).frames.len(),
            };
            if at > from && (end != Some(begin) || iovecs + more > IOVECS_MAX) {
                self.start_io(command, &members[from..at]);
                (from, iovecs) = (at, 0);
            }
            iovecs += more;
            end = Some(begin + len);
        }
        self.start_io(command, &members[from..]);
    }

    /// One I/O for these members, which are neighbours in the image.
    fn start_io(&mut self, command: &Request, members: &[Member]) {
        let disk = DiskId::of(command.vm);
        let index = self.ios.insert(command, disk);
        let mut buffers = std::mem::take(&mut self.ios[index].buffers);
        let CombinedIo { offset, len, unmap, durable } = self.gather(members, &mut buffers);
        let image = self.disks.get(disk).map(|d| &d.image);
        let unmap = unmap && image.is_some_and(Image::punches_zeroes);
        let dsync = durable && image.is_some_and(Image::keeps_dsync);
        let align = self.disks.limits(disk).align_bytes.into();
        let io = &mut self.ios[index];
        io.members.extend_from_slice(members);
        (io.buffers, io.offset, io.len, io.durable) = (buffers, offset, len, durable);
        (io.kind, io.discard) = (kind_of(command.op, unmap, dsync), command.op == Op::Discard);
        io.prepare(align);
        let is_nothing = io.discard && io.len == 0;
        self.commands.add_io(command.id);
        match self.bounce_if_misaligned(index) {
            _ if is_nothing => self.unsent.push_back((index, Unsent::Nothing)),
            true => self.begin_io(index),
            false => self.unsent.push_back((index, Unsent::Refused(libc::ENOMEM))),
        }
    }

    /// Hand an I/O to the kernel for the first time, unless it has to wait for another write to
    /// the same block.
    fn begin_io(&mut self, index: u32) {
        let Core { ios, disks, .. } = self;
        let io = &ios[index];
        let (span, claims) = (io.span.clone(), io.has_edges());
        let disk = disks.of_job(io.disk);
        let edges = &mut disk.edges;
        if span.is_empty() || !claims && edges.is_empty() {
            return self.begin_now(index);
        }
        if !edges.admits(index, &span, claims) {
            return;
        }
        if claims {
            if !std::mem::replace(&mut edges.is_told, true) {
                disk.image.warn_of_edges();
            }
            let before = ios.writes_to(io.disk, &span);
            if !edges.claim(index, span, before) {
                return;
            }
        }
        self.begin_now(index);
    }

    fn begin_now(&mut self, index: u32) {
        self.ios[index].has_begun = true;
        self.submit_io(index);
    }

    /// A write has ended: those begin that have waited for it.
    fn write_ended(&mut self, disk: DiskId, index: u32, span: &Range<u64>) {
        let Some(state) = self.disks.get_mut(disk).filter(|disk| !disk.edges.is_empty()) else {
            return;
        };
        let mut ready = Vec::new();
        state.edges.end(index, span, |io| ready.push(io));
        ready.into_iter().for_each(|io| self.begin_now(io));
        while let Some(state) = self.disks.get_mut(disk)
            && let Some(io) = state.edges.next(|io| {
                let io = &self.ios[io];
                (io.span.clone(), io.has_edges())
            })
        {
            self.begin_io(io);
        }
    }

    /// Where in the image a member is: byte offset and length. A request may begin and end inside a
    /// sector, which no other has in the same command.
    fn bytes_of(&self, member: &Member) -> (u64, u64) {
        match member.target {
            Target::Guest { token } => {
                let job = &self.jobs[token as u32].job;
                if job.op == Op::Flush {
                    return (0, 0);
                }
                let (start, len) = bytes_of(job, member.part);
                (job.offset + start, len)
            }
            Target::Cache(_) => {
                (member.part.start().get() * SECTOR_BYTES, member.part.len().bytes())
            }
        }
    }

    /// Append the memory of members, neighbours in the image, to `buffers`.
    fn gather(&mut self, members: &[Member], buffers: &mut Vec<libc::iovec>) -> CombinedIo {
        let mut gathered = CombinedIo::default();
        for (n, member) in members.iter().enumerate() {
            let (offset, bytes) = self.bytes_of(member);
            match member.target {
                Target::Guest { token } => {
                    let slot = &self.jobs[token as u32];
                    let job = &slot.job;
                    gathered.durable |= job.fua;
                    gathered.unmap = job.unmap;
                    if job.op.is_data() && bytes == job.len {
                        buffers.extend_from_slice(&slot.buffers);
                    } else if job.op.is_data() {
                        slice_buffers(&slot.buffers, offset - job.offset, bytes, buffers);
                    }
                }
                Target::Cache(id) => {
                    let memory = self.memory.as_mut().expect("a cache has memory");
                    memory.iovecs(&self.stack, id, member.part, buffers);
                }
            };
            if n == 0 {
                gathered.offset = offset;
            }
            gathered.len += bytes;
        }
        gathered
    }

    /// Direct I/O needs aligned memory, and of a list of buffers each a multiple
    /// of the block, or the kernel refuses it; and memory in small pieces would take more of the
    /// device's queue than is known of. False when there is no other memory to be had.
    fn bounce_if_misaligned(&mut self, index: u32) -> bool {
        let io = &mut self.ios[index];
        let limits = self.disks.limits(io.disk);
        let is_direct = limits.memory_align_bytes > 1;
        let is_scattered = is_direct && is_scattered(&io.buffers, io.len);
        let is_aligned = io.buffers.iter().all(|b| is_aligned(b, limits));
        if is_aligned && !is_scattered && !io.is_inside() {
            return true;
        }
        io.bounce = Bounce::new(io.bounced_len(), limits.memory_align_bytes as usize);
        io.bounce.is_some()
    }

    /// Hand an I/O to the kernel, or to the fault that is injected.
    fn submit_io(&mut self, index: u32) {
        let io = &mut self.ios[index];
        let disk = self.disks.of_job(io.disk);
        if io.is_durable()
            && let Some(errno) = disk.image.lost_writes()
        {
            return self.unsent.push_back((index, Unsent::Refused(errno)));
        }
        let Step { kind, offset, len } = io.step();
        let op = match kind {
            Kind::Read => Op::Read,
            Kind::Write { .. } => Op::Write,
            Kind::Sync => Op::Flush,
            Kind::Allocate { .. } | Kind::Zeroes => Op::WriteZeroes,
        };
        let injected = disk.fault.as_mut().and_then(|fault| fault.inject(op, offset, len));
        io.fill_bounce();
        if sigbus::is_lost(&io.buffers) {
            // There are zeroes where the guest's data was.
            return self.unsent.push_back((index, Unsent::Refused(libc::EFAULT)));
        }
        let mut short = None;
        match injected {
            Some(Injected::Errno(errno)) => {
                return self.unsent.push_back((index, Unsent::Fault(errno)));
            }
            // The block at an edge is read and written whole.
            Some(Injected::Short(bytes)) if !io.is_at_edge() => short = Some(bytes),
            Some(Injected::Short(_)) | None => {}
        }
        io.in_memory = disk.image.is_in_memory();
        if io.kind == Kind::Sync {
            disk.syncs.begin(index);
        }
        // SAFETY: the I/O stays in its slot, the jobs' ports keep the buffers.
        unsafe { self.ring.start(index, io, short) };
    }

    /// An I/O has ended with `result`, bytes or a negative errno.
    pub(super) fn io_done(&mut self, index: u32, result: i32) {
        let disk = self.ios[index].disk;
        self.go_on(index, result);
        self.release_syncs(disk);
    }

    /// Do what follows this result.
    fn go_on(&mut self, index: u32, result: i32) {
        let io = &mut self.ios[index];
        let disk = self.disks.of_job(io.disk);
        if let (true, Some(errno)) = (io.is_durable(), disk.image.lost_writes()) {
            // Another failed while this one was under way, and has the error of both.
            return self.io_failed(index, Errno(errno));
        }
        if result < 0 {
            return self.io_refused(index, -result);
        }
        if io.is_at_edge() {
            return self.edge_done(index, result as u64);
        }
        let done = io.progress(result as u64, disk.limits.align_bytes.into());
        if let (Kind::Read, Some(bounce)) = (io.kind, &io.bounce) {
            bounce.copy(&io.buffers, io.skip(), done, true);
        }
        let capacity_bytes = disk.limits.capacity_bytes;
        match io.kind {
            Kind::Read if done < io.len && io.offset + done >= capacity_bytes => {
                // The last sector of an image that does not end with one.
                io.advance(done);
                io.zero_rest();
                self.io_ended(index);
            }
            Kind::Read | Kind::Write { .. } | Kind::Zeroes if done < io.len => {
                if result == 0 || done == 0 && io.retries >= RETRIES_MAX {
                    // The end of the file, though inside the image: it has shrunk.
                    return self.io_refused(index, libc::EIO);
                }
                io.retries += u32::from(done == 0);
                if io.kind == Kind::Zeroes && disk.leaving.is_some() {
                    return self.io_failed(index, Errno(ABANDONED.0));
                }
                self.step_done(index, done);
            }
            Kind::Allocate { .. } if done < io.len => self.step_done(index, done),
            _ => self.all_done(index),
        }
    }

    /// Goes on with an I/O of which `done` bytes are done.
    fn step_done(&mut self, index: u32, done: u64) {
        self.ios[index].advance(done);
        self.submit_io(index);
    }

    /// `result` bytes of a block at an I/O's edge are read, or written.
    fn edge_done(&mut self, index: u32, result: u64) {
        let io = &mut self.ios[index];
        if result < io.step().len {
            if result == 0 || io.retries >= RETRIES_MAX {
                return self.io_refused(index, libc::EIO);
            }
            io.retries += 1;
            return self.submit_io(index);
        }
        let done = io.edge_len();
        if !std::mem::replace(&mut io.is_filled, false) {
            io.is_filled = true;
            return self.submit_io(index);
        }
        if done < io.len {
            return self.step_done(index, done);
        }
        self.all_done(index);
    }

    /// All that an I/O was to do is done: a sync may have to follow.
    fn all_done(&mut self, index: u32) {
        let io = &mut self.ios[index];
        let disk = self.disks.of_job(io.disk);
        match () {
            () if io.durable && !io.syncs() => {
                io.become_sync();
                self.submit_io(index);
            }
            () if io.kind == Kind::Sync && disk.syncs.hold(index) => {}
            () => self.io_ended(index),
        }
    }

    /// The kernel has ended an I/O with this errno: try again, another way, or give it up.
    fn io_refused(&mut self, index: u32, errno: i32) {
        let io = &mut self.ios[index];
        let disk = self.disks.of_job(io.disk);
        // A file in memory is not written back; it says so when it would have to wait.
        let may_retry = !io.syncs() || disk.image.is_in_memory();
        let is_again = matches!(errno, libc::EAGAIN | libc::EINTR);
        if is_again && may_retry && io.retries < RETRIES_MAX {
            io.retries += 1;
            return self.submit_io(index);
        }
        if let (Kind::Allocate { mode }, libc::EOPNOTSUPP) = (io.kind, errno) {
            if io.discard {
                // Advice that the file system does not take.
                return self.io_ended(index);
            }
            io.kind = match mode == PUNCH {
                // It may still know how to zero without deallocating.
                true => Kind::Allocate { mode: ZERO },
                false => Kind::Zeroes,
            };
            return self.submit_io(index);
        }
        // SAFETY: the jobs' ports keep the buffers until the I/O has ended.
        let is_of_guest = || errno == libc::EFAULT && unsafe { sigbus::are_missing(&io.buffers) };
        if io.may_lose(errno) && !is_of_guest() {
            disk.image.sync_failed(errno);
        }
        self.io_failed(index, Errno(errno));
    }

    /// End the syncs that went well and waited for others, as these have ended.
    fn release_syncs(&mut self, id: DiskId) {
        while let Some(disk) = self.disks.get_mut(id) {
            let lost = disk.image.lost_writes();
            let Some(index) = disk.syncs.release(lost.is_some()) else { return };
            match lost {
                Some(errno) => self.io_failed(index, Errno(errno)),
                None => self.io_ended(index),
            }
        }
    }

    /// An I/O failed. If its image is being marked as one that lost writes, the failure is told after
    /// that.
    fn io_failed(&mut self, index: u32, error: Errno) {
        let io = &self.ios[index];
        if io.is_durable() && self.disks.of_job(io.disk).image.is_being_marked() {
            let until = self.now + self.mark_patience;
            return self.marking.push_back((index, error, until));
        }
        self.io_has_failed(index, error);
    }

    /// Tells the failures whose images are marked, or whose deadline is over.
    fn end_marked(&mut self) {
        for _ in 0..self.marking.len() {
            let Some((index, error, until)) = self.marking.pop_front() else { return };
            let disk = self.ios[index].disk;
            if self.now < until && self.disks.of_job(disk).image.is_being_marked() {
                self.marking.push_back((index, error, until));
            } else {
                self.io_has_failed(index, error);
                self.release_syncs(disk);
            }
        }
    }

    /// Tries the members of a failed I/O one at a time, or tells the failure.
    fn io_has_failed(&mut self, index: u32, error: Errno) {
        let io = &self.ios[index];
        let command = io.command;
        if command.op == Op::Flush {
            // Not each again: the kernel reports what was lost once, and the next would go well.
            for member in &io.members {
                self.commands.fail(command.id, member.id, IoError(error.0));
            }
        } else if io.members.len() > 1 {
            let members = io.members.clone();
            for member in members {
                self.start_io(&command, &[member]);
            }
        } else {
            let id = io.members[0].id;
            self.commands.fail(command.id, id, IoError(error.0));
        }
        self.io_ended(index);
    }

    /// An I/O is over; the command is when its last one is.
    fn io_ended(&mut self, index: u32) {
        let Io { command, disk, has_begun, .. } = self.ios[index];
        if let Some(disk) = self.disks.get_mut(disk) {
            disk.syncs.end(index);
        }
        let span = self.ios[index].span.clone();
        self.ios.remove(index);
        if has_begun && !span.is_empty() {
            self.write_ended(disk, index, &span);
        }
        if self.commands.end_io(command.id) {
            self.command_done(&command);
        }
    }

    /// End the I/Os and the commands that did not reach the kernel.
    pub(super) fn end_unsent(&mut self) {
        self.end_abandoned();
        self.end_marked();
        while let Some((index, why)) = self.unsent.pop_front() {
            match why {
                Unsent::Fault(errno) => self.io_done(index, -errno),
                Unsent::Nothing => self.io_ended(index),
                Unsent::Refused(errno) => {
                    let disk = self.ios[index].disk;
                    self.io_failed(index, Errno(errno));
                    self.release_syncs(disk);
                }
            }
        }
    }
}

//! Commands of the dispatcher as I/O on images: what a command's members need
//! is gathered into as few SQEs as their places in the files allow, continued
//! when it comes up short, bounced when memory is misaligned, and tried one
//! member at a time when it fails, so that each request gets its own answer.

use super::cache::bytes_of;
use super::core::Core;
use super::jobs::{buffers_len, slice_buffers};
use super::ring::file;
use crate::images::Limits;
use crate::images::fault::Injected;
use crate::port::{DiskId, Errno};
use io_uring::{opcode, squeue, types};
use seekway_policy::request::{Op, Request, RequestId};
use seekway_policy::stack::{IoError, Member, Target};
use seekway_policy::units::SECTOR_BYTES;
use std::alloc::{Layout, alloc, dealloc};

/// Buffers that one SQE takes (`IOV_MAX`).
const IOVECS_MAX: usize = 1024;
/// An I/O that the kernel will not take now is handed in again so often.
const RETRIES_MAX: u32 = 1000;
/// What one bounce buffer holds: with at most so many for each command on the
/// device, misaligned guests cannot exhaust the host's memory.
const BOUNCE_BYTES_MAX: u64 = 256 << 10;
/// Zeroes are written by so many bytes at a time where the file system cannot.
const ZEROES_BYTES: usize = 1 << 16;

/// What an I/O does to the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write {
        durable: bool,
    },
    Sync,
    /// `fallocate` with this mode; `durable` calls for a sync behind it.
    Allocate {
        mode: i32,
        durable: bool,
    },
    /// Zeroes by writing them.
    Zeroes {
        durable: bool,
    },
}

/// One I/O on an image, for some members of a command.
pub struct Io {
    pub command: Request,
    pub disk: DiskId,
    pub kind: Kind,
    /// The guest wants its data forgotten: it is no error when that cannot be.
    pub discard: bool,
    /// Byte offset in the image, and bytes, of what is still to do.
    pub offset: u64,
    pub len: u64,
    /// The guest's memory of what is still to do.
    pub buffers: Vec<libc::iovec>,
    /// What it is for. Kept when the slot is free, for the next I/O.
    pub members: Vec<Member>,
    pub bounce: Option<Bounce>,
    /// The image lies in memory (tmpfs).
    pub in_memory: bool,
    /// What the SQE names when that is not `buffers`.
    single: [libc::iovec; 1],
    pub retries: u32,
}

/// What the members of one I/O ask for together.
#[derive(Default)]
struct Gathered {
    /// Byte offset in the image.
    offset: u64,
    /// Bytes.
    len: u64,
    /// Zeroes may be written by deallocating.
    unmap: bool,
    /// A member has to be durable when it is done (FUA).
    durable: bool,
}

/// An aligned buffer through which data goes whose memory is not, piece by piece.
pub struct Bounce {
    at: *mut u8,
    layout: Layout,
}

// SAFETY: a bounce buffer is owned, and the reactor's thread alone uses it.
unsafe impl Send for Bounce {}

impl Bounce {
    /// A buffer for `len` bytes, or for a piece of them.
    fn new(len: u64, align: usize) -> Option<Bounce> {
        let size = len.clamp(1, BOUNCE_BYTES_MAX) as usize;
        let layout = Layout::from_size_align(size, align.max(512)).ok()?;
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc(layout) };
        (!at.is_null()).then_some(Bounce { at, layout })
    }

    fn len(&self) -> u64 {
        self.layout.size() as u64
    }

    /// Copy the first `len` bytes between the guest's memory and the buffer.
    fn copy(&self, guest: &[libc::iovec], len: u64, to_guest: bool) {
        let (mut at, mut left) = (self.at, len.min(self.len()) as usize);
        for part in guest {
            let (memory, take) = (part.iov_base.cast::<u8>(), part.iov_len.min(left));
            // SAFETY: `left` keeps within the buffer, and the port keeps the
            // guest's memory until the job is done.
            unsafe {
                match to_guest {
                    true => std::ptr::copy_nonoverlapping(at, memory, take),
                    false => std::ptr::copy_nonoverlapping(memory, at, take),
                }
                at = at.add(take);
            }
            left -= take;
        }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at, self.layout) };
    }
}

/// A page of zeroes to write from.
#[repr(align(4096))]
pub struct Zeroes([u8; ZEROES_BYTES]);
pub static ZEROES: Zeroes = Zeroes([0; ZEROES_BYTES]);

impl Core {
    /// Carry out a command.
    pub(super) fn start(&mut self, command: &Request) {
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
            _ => self.start_runs(command, &members),
        }
        members.clear();
        self.scratch = members;
    }

    /// One I/O for each run of members that are neighbours in the image too.
    fn start_runs(&mut self, command: &Request, members: &[Member]) {
        let (mut from, mut iovecs, mut end) = (0, 0, None);
        for (at, member) in members.iter().enumerate() {
            let begin = member.part.start();
            let more = match member.target {
                Target::Guest { token } => self.jobs[token as u32].buffers.len(),
                Target::Cache(id) => self.stack.fetch(id).frames.len(),
            };
            if at > from && (end != Some(begin) || iovecs + more > IOVECS_MAX) {
                self.start_io(command, &members[from..at]);
                (from, iovecs) = (at, 0);
            }
            iovecs += more;
            end = Some(member.part.end());
        }
        self.start_io(command, &members[from..]);
    }

    /// One I/O for these members, which are neighbours in the image.
    fn start_io(&mut self, command: &Request, members: &[Member]) {
        let disk = DiskId(command.vm.index() as u16);
        let index = self.ios.insert(command, disk);
        let mut buffers = std::mem::take(&mut self.ios[index].buffers);
        let Gathered { offset, len, unmap, durable } = self.gather(members, &mut buffers);
        let io = &mut self.ios[index];
        io.members.extend_from_slice(members);
        (io.buffers, io.offset, io.len) = (buffers, offset, len);
        (io.kind, io.discard) = (kind_of(command.op, unmap, durable), command.op == Op::Discard);
        self.commands.add_io(command.id);
        match self.bounce_if_misaligned(index) {
            true => self.submit_io(index),
            false => self.injected.push_back((index, -libc::ENOMEM)),
        }
    }

    /// Append the memory of members, neighbours in the image, to `buffers`.
    fn gather(&mut self, members: &[Member], buffers: &mut Vec<libc::iovec>) -> Gathered {
        let mut gathered = Gathered::default();
        for (n, member) in members.iter().enumerate() {
            let (offset, bytes) = match member.target {
                Target::Guest { token } => {
                    let slot = &self.jobs[token as u32];
                    let job = &slot.job;
                    gathered.durable |= job.fua;
                    gathered.unmap = job.unmap;
                    let (start, bytes) = match job.op {
                        Op::Flush => (0, 0),
                        _ => bytes_of(job, member.part),
                    };
                    if job.op.is_data() && bytes == job.len {
                        buffers.extend_from_slice(&slot.buffers);
                    } else if job.op.is_data() {
                        slice_buffers(&slot.buffers, start, bytes, buffers);
                    }
                    (job.offset + start, bytes)
                }
                Target::Cache(id) => {
                    let memory = self.memory.as_mut().expect("a cache has memory");
                    memory.iovecs(&self.stack, id, member.part, buffers);
                    (member.part.start().get() * SECTOR_BYTES, member.part.len().bytes())
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
    /// of the block, or the kernel refuses it. False when there is none to be had.
    fn bounce_if_misaligned(&mut self, index: u32) -> bool {
        let io = &mut self.ios[index];
        let limits = self.disks.limits(io.disk);
        if io.buffers.iter().all(|b| is_aligned(b, limits)) {
            return true;
        }
        io.bounce = Bounce::new(io.len, limits.memory_align_bytes as usize);
        io.bounce.is_some()
    }

    /// Hand an I/O to the kernel, or to the fault that is injected.
    fn submit_io(&mut self, index: u32) {
        let io = &mut self.ios[index];
        let disk = self.disks.get_mut(io.disk).expect("a disk stays while it has I/O");
        if io.is_durable()
            && let Some(errno) = disk.image.lost_writes()
        {
            return self.injected.push_back((index, -errno));
        }
        let injected = disk.fault.as_mut().and_then(|fault| match io.kind {
            Kind::Read => fault.inject(Op::Read, io.offset, io.len),
            Kind::Write { .. } => fault.inject(Op::Write, io.offset, io.len),
            Kind::Sync => fault.inject(Op::Flush, io.offset, io.len),
            Kind::Allocate { .. } | Kind::Zeroes { .. } => {
                fault.inject(Op::WriteZeroes, io.offset, io.len)
            }
        });
        let mut short = None;
        match injected {
            Some(Injected::Errno(errno)) => return self.injected.push_back((index, -errno)),
            Some(Injected::Short(bytes)) => short = Some(bytes),
            None => {}
        }
        io.in_memory = disk.image.is_in_memory();
        // SAFETY: the I/O stays in its slot, the jobs' ports keep the buffers.
        unsafe { self.ring.start(index, io, short) };
    }

    /// An I/O has ended with `result`, bytes or a negative errno.
    pub(super) fn io_done(&mut self, index: u32, result: i32) {
        let io = &mut self.ios[index];
        if matches!(result.wrapping_neg(), libc::EAGAIN | libc::EINTR) && io.retries < RETRIES_MAX {
            io.retries += 1;
            return self.submit_io(index);
        }
        if result < 0 {
            if io.is_durable() {
                let disk = self.disks.get_mut(io.disk).expect("a disk stays while it has I/O");
                disk.image.sync_failed(-result);
            }
            return self.io_failed(index, Errno(-result));
        }
        if let (Kind::Read, Some(bounce)) = (io.kind, &io.bounce) {
            bounce.copy(&io.buffers, result as u64, true);
        }
        match io.kind {
            Kind::Read | Kind::Write { .. } | Kind::Zeroes { .. } if (result as u64) < io.len => {
                if result == 0 {
                    // The end of the file, though inside the image: it has shrunk.
                    return self.io_failed(index, Errno(libc::EIO));
                }
                io.advance(result as u64);
                self.submit_io(index);
            }
            Kind::Allocate { durable: true, .. } => {
                io.kind = Kind::Sync;
                self.submit_io(index);
            }
            _ => self.io_ended(index),
        }
    }

    /// An I/O failed: try another way, one member at a time, or say so.
    fn io_failed(&mut self, index: u32, error: Errno) {
        let io = &mut self.ios[index];
        if let (Kind::Allocate { mode, durable }, libc::EOPNOTSUPP) = (io.kind, error.0) {
            if io.discard {
                // Advice that the file system does not take.
                return self.io_ended(index);
            }
            io.kind = match mode == PUNCH {
                // It may still know how to zero without deallocating.
                true => Kind::Allocate { mode: ZERO, durable },
                false => Kind::Zeroes { durable },
            };
            return self.submit_io(index);
        }
        let command = io.command;
        if io.members.len() > 1 {
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
        let command = self.ios[index].command;
        self.ios.remove(index);
        if self.commands.end_io(command.id) {
            self.command_done(&command);
        }
    }

    /// What faults made of I/Os.
    pub(super) fn fail_injected(&mut self) {
        while let Some((index, result)) = self.injected.pop_front() {
            self.io_done(index, result);
        }
    }
}

/// Can the kernel take this buffer of several as it is? Memory of alignment 1
/// goes through the page cache, which takes everything.
fn is_aligned(buffer: &libc::iovec, limits: &Limits) -> bool {
    let memory = limits.memory_align_bytes as usize;
    let block = if memory > 1 { limits.align_bytes as usize } else { 1 };
    (buffer.iov_base as usize).is_multiple_of(memory)
        && buffer.iov_len.is_multiple_of(block.max(memory))
}

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

fn kind_of(op: Op, unmap: bool, durable: bool) -> Kind {
    match op {
        Op::Read => Kind::Read,
        Op::Write => Kind::Write { durable },
        Op::Flush => Kind::Sync,
        Op::Discard => Kind::Allocate { mode: PUNCH, durable: false },
        Op::WriteZeroes if unmap => Kind::Allocate { mode: PUNCH, durable },
        Op::WriteZeroes => Kind::Allocate { mode: ZERO, durable },
    }
}

impl Io {
    /// Is it done only when the data are on the device?
    fn is_durable(&self) -> bool {
        match self.kind {
            Kind::Sync => true,
            Kind::Write { durable } | Kind::Zeroes { durable } => durable,
            // A sync follows.
            Kind::Allocate { .. } | Kind::Read => false,
        }
    }

    /// The SQE of what is still to do, or of the first `short` bytes of it.
    pub fn entry(&mut self, short: Option<u32>) -> squeue::Entry {
        let fd = file(self.disk.0);
        let (offset, dsync) = (self.offset, |durable| if durable { libc::RWF_DSYNC } else { 0 });
        match self.kind {
            Kind::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Kind::Allocate { mode, .. } => {
                opcode::Fallocate::new(fd, self.len).offset(offset).mode(mode).build()
            }
            Kind::Zeroes { durable } => {
                let len = (ZEROES_BYTES as u64).min(self.len) as u32;
                let flags = dsync(durable);
                opcode::Write::new(fd, ZEROES.0.as_ptr(), len)
                    .offset(offset)
                    .rw_flags(flags)
                    .build()
            }
            Kind::Read => match self.target(short) {
                [one] => {
                    let (at, len) = (one.iov_base.cast(), one.iov_len as u32);
                    opcode::Read::new(fd, at, len).offset(offset).build()
                }
                all => {
                    let count = all.len().min(IOVECS_MAX) as u32;
                    opcode::Readv::new(fd, all.as_ptr(), count).offset(offset).build()
                }
            },
            Kind::Write { durable } => {
                if let Some(bounce) = &self.bounce {
                    bounce.copy(&self.buffers, self.len, false);
                }
                let flags = dsync(durable);
                match self.target(short) {
                    [one] => {
                        let (at, len) = (one.iov_base.cast_const().cast(), one.iov_len as u32);
                        opcode::Write::new(fd, at, len).offset(offset).rw_flags(flags).build()
                    }
                    all => {
                        let (at, count) = (all.as_ptr(), all.len().min(IOVECS_MAX) as u32);
                        opcode::Writev::new(fd, at, count).offset(offset).rw_flags(flags).build()
                    }
                }
            }
        }
    }

    /// The memory that the next SQE names: the guest's, or the bounce buffer;
    /// the first `short` bytes of its first piece when a fault makes it short.
    pub fn target(&mut self, short: Option<u32>) -> &[libc::iovec] {
        let first = match &self.bounce {
            Some(bounce) => {
                let iov_len = bounce.len().min(self.len) as usize;
                libc::iovec { iov_base: bounce.at.cast(), iov_len }
            }
            None if short.is_none() => return &self.buffers,
            None => self.buffers[0],
        };
        let iov_len = first.iov_len.min(short.map_or(usize::MAX, |s| s as usize));
        self.single = [libc::iovec { iov_len, ..first }];
        &self.single
    }

    /// The first `done` bytes are done.
    fn advance(&mut self, done: u64) {
        self.offset += done;
        self.len -= done;
        if !self.buffers.is_empty() {
            let mut rest = Vec::with_capacity(self.buffers.len());
            slice_buffers(&self.buffers, done, self.len, &mut rest);
            debug_assert_eq!(buffers_len(&rest), self.len);
            self.buffers = rest;
        }
    }
}

/// Commands on the device, by slot of their id.
#[derive(Default)]
pub struct Commands(Vec<Command>);

/// How far a command is.
#[derive(Default)]
struct Command {
    /// Its I/Os under way.
    ios_left: u32,
    /// Its members that failed.
    failed: Vec<(RequestId, IoError)>,
}

impl Commands {
    fn begin(&mut self, command: RequestId) {
        if command.slot() >= self.0.len() {
            self.0.resize_with(command.slot() + 1, Command::default);
        }
        self.0[command.slot()].ios_left = 0;
    }
    fn add_io(&mut self, command: RequestId) {
        self.0[command.slot()].ios_left += 1;
    }
    /// True when it was the command's last.
    fn end_io(&mut self, command: RequestId) -> bool {
        let command = &mut self.0[command.slot()];
        command.ios_left -= 1;
        command.ios_left == 0
    }
    fn fail(&mut self, command: RequestId, member: RequestId, error: IoError) {
        self.0[command.slot()].failed.push((member, error));
    }
    /// The members that failed; the command is done.
    pub(super) fn take_failed(&mut self, command: RequestId) -> Vec<(RequestId, IoError)> {
        std::mem::take(&mut self.0[command.slot()].failed)
    }
}

/// All I/Os under way.
#[derive(Default)]
pub struct Ios {
    slots: Vec<Io>,
    free: Vec<u32>,
}

// SAFETY: the buffers' addresses are used by the reactor's thread alone.
unsafe impl Send for Ios {}

impl Ios {
    fn insert(&mut self, command: &Request, disk: DiskId) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Io {
                command: *command,
                disk,
                kind: Kind::Sync,
                discard: false,
                offset: 0,
                len: 0,
                buffers: Vec::new(),
                members: Vec::new(),
                bounce: None,
                in_memory: false,
                single: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }],
                retries: 0,
            });
            self.slots.len() as u32 - 1
        });
        let io = &mut self.slots[index as usize];
        (io.command, io.disk, io.retries, io.bounce) = (*command, disk, 0, None);
        io.buffers.clear();
        io.members.clear();
        index
    }

    fn remove(&mut self, index: u32) {
        self[index].bounce = None;
        self.free.push(index);
    }
}

impl std::ops::Index<u32> for Ios {
    type Output = Io;
    fn index(&self, index: u32) -> &Io {
        &self.slots[index as usize]
    }
}
impl std::ops::IndexMut<u32> for Ios {
    fn index_mut(&mut self, index: u32) -> &mut Io {
        &mut self.slots[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_blocks_bounce_before_direct_io() {
        // As NVMe says: memory may begin at any word.
        let limits = |memory_align_bytes| Limits {
            capacity_bytes: 1 << 20,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            align_bytes: 512,
            memory_align_bytes,
            read_only: false,
            rotational: false,
        };
        let iovec = |at: usize, iov_len| libc::iovec { iov_base: at as *mut _, iov_len };
        for (at, len, memory, expected) in [
            (4, 512, 4, true),
            (2, 512, 4, false),
            (4096, 256, 4, false),
            (4096, 512, 512, true),
            (4100, 512, 512, false),
            (3, 100, 1, true),
        ] {
            let aligned = is_aligned(&iovec(at, len), &limits(memory));
            assert_eq!(aligned, expected, "{at}+{len}, memory {memory}");
        }
    }
}

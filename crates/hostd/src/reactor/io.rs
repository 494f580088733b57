//! An I/O on an image: what it does, its memory (bounced where the guest's is misaligned), the
//! SQE of what is still to do, and the tables of I/Os and commands under way.
//!
//! Where an I/O begins or ends inside a block, what direct I/O reads is more than was asked for,
//! and what it writes is a block that was read and changed before.

use super::edges;
use super::jobs::{buffers_len, slice_buffers};
use crate::images::{Limits, SEGMENT_BYTES};
use crate::port::DiskId;
use io_uring::{opcode, squeue, types};
use seekway_core::request::{Op, Request, RequestId};
use seekway_stack::stack::{IoError, Member};
use std::alloc::{Layout, alloc, dealloc};
use std::ops::Range;

/// Buffers that one SQE takes (`IOV_MAX`).
pub const IOVECS_MAX: usize = 1024;
/// Most bytes of one bounce buffer: each command on the device has a limited number of them, so
/// that misaligned guests cannot exhaust the host's memory.
const BOUNCE_BYTES_MAX: u64 = 256 << 10;
/// Pages that one tag of any device's queue has room for (`max_segments` of Linux's drivers).
const ONE_TAG_PAGES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// Bytes of zeroes that are written at a time where the file system cannot zero a range.
const ZEROES_BYTES: usize = 1 << 16;

/// Operation of an I/O on the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    /// `dsync`: with RWF_DSYNC, by which it is durable when it ends.
    Write {
        dsync: bool,
    },
    Sync,
    /// `fallocate` with this mode.
    Allocate {
        mode: i32,
    },
    /// Zeroes by writing them.
    Zeroes,
}

/// Why an I/O ends without the kernel; the errno is positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsent {
    /// A fault stands for the kernel's answer.
    Fault(i32),
    /// The I/O cannot begin: nothing was done.
    Refused(i32),
    /// Nothing is to be done.
    Nothing,
}

/// Operation of an I/O's next SQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub kind: Kind,
    /// Byte offset in the image, and bytes.
    pub offset: u64,
    pub len: u64,
}

/// One I/O on an image, for some members of a command.
pub struct Io {
    pub command: Request,
    pub disk: DiskId,
    pub kind: Kind,
    /// The guest wants its data forgotten: it is no error when that cannot be.
    pub discard: bool,
    /// Its changes are on the device when it is done (FUA).
    pub durable: bool,
    /// Byte offset in the image, and bytes, of what is still to do.
    pub offset: u64,
    pub len: u64,
    /// The guest's memory of what is still to do.
    pub buffers: Vec<libc::iovec>,
    /// Members that it serves. Kept when the slot is free, for the next I/O.
    pub members: Vec<Member>,
    pub bounce: Option<Bounce>,
    /// The bytes of a block less one, if it begins or ends inside a block; else 0.
    inside: u64,
    /// The block at its edge has been read.
    pub is_filled: bool,
    /// The bytes that it may write; none for another I/O.
    pub span: Range<u64>,
    /// The I/O writes, and has been handed to the kernel.
    pub has_begun: bool,
    /// The image lies in memory (tmpfs).
    pub in_memory: bool,
    /// The buffer that the SQE names when that is not `buffers`.
    single: [libc::iovec; 1],
    pub retries: u32,
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
    pub fn new(len: u64, align: usize) -> Option<Bounce> {
        let size = len.clamp(1, BOUNCE_BYTES_MAX) as usize;
        let layout = Layout::from_size_align(size, align.max(512)).ok()?;
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc(layout) };
        (!at.is_null()).then_some(Bounce { at, layout })
    }

    fn len(&self) -> u64 {
        self.layout.size() as u64
    }

    /// Copy the first `len` bytes of the guest's memory from or to the buffer, in which they lie
    /// behind `skip` others.
    pub fn copy(&self, guest: &[libc::iovec], skip: u64, len: u64, to_guest: bool) {
        let skip = skip.min(self.len());
        // SAFETY: inside the buffer, or at its end.
        let mut at = unsafe { self.at.add(skip as usize) };
        let mut left = len.min(self.len() - skip) as usize;
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

    /// Zero `len` bytes behind the first `skip`.
    fn zero(&self, skip: u64, len: u64) {
        let skip = skip.min(self.len());
        let len = len.min(self.len() - skip) as usize;
        // SAFETY: inside the buffer.
        unsafe { self.at.add(skip as usize).write_bytes(0, len) };
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

impl Io {
    /// Is it done only when the data are on the device? Then an error of it may mean that data is
    /// lost which was acknowledged before.
    pub fn is_durable(&self) -> bool {
        self.durable || self.kind == Kind::Sync
    }

    /// Does the kernel sync, or the device flush its cache, in this call? An error of that comes
    /// once: the same call would go well the next time.
    pub fn syncs(&self) -> bool {
        matches!(self.kind, Kind::Write { dsync: true } | Kind::Sync) && !self.is_filling()
    }

    /// Turn it into the sync that follows.
    pub fn become_sync(&mut self) {
        self.kind = Kind::Sync;
        self.buffers.clear();
        self.bounce = None;
    }

    /// Make it ready: `align` is what offsets and lengths have to be multiples of. What it does must
    /// be known.
    pub fn prepare(&mut self, align: u64) {
        let (from, to) = (self.offset, self.offset + self.len);
        self.inside = if (from | to) & (align - 1) == 0 { 0 } else { align - 1 };
        if self.discard && self.inside != 0 {
            // What is not a whole block keeps its data.
            self.offset = from.next_multiple_of(align);
            self.len = (to & !self.inside).saturating_sub(self.offset);
            self.inside = 0;
        }
        self.is_filled = false;
        self.has_begun = false;
        self.span = match self.kind {
            Kind::Read | Kind::Sync => 0..0,
            _ if self.discard => self.offset..self.offset + self.len,
            _ => from & !self.inside..(to + self.inside) & !self.inside,
        };
    }

    /// Does it change parts of blocks?
    pub fn has_edges(&self) -> bool {
        self.inside != 0 && !self.span.is_empty()
    }

    /// Does it begin or end inside a block?
    pub fn is_inside(&self) -> bool {
        self.inside != 0
    }

    /// Bytes for which it needs a bounce buffer.
    pub fn bounced_len(&self) -> u64 {
        match self.inside {
            0 => self.len,
            inside => self.len.saturating_add(2 * (inside + 1)) & !inside,
        }
    }

    /// Bytes that the block where the next step begins has before it.
    pub fn skip(&self) -> u64 {
        self.offset & self.inside
    }

    /// Is the next step part of a block, which is read and written whole?
    pub fn is_at_edge(&self) -> bool {
        self.has_edges() && self.kind != Kind::Sync && (self.skip() != 0 || self.len <= self.inside)
    }

    /// Is the block at its edge still to be read?
    pub fn is_filling(&self) -> bool {
        self.is_at_edge() && !self.is_filled
    }

    /// Bytes of what was asked for that the block at its edge has.
    pub fn edge_len(&self) -> u64 {
        (self.inside + 1 - self.skip()).min(self.len)
    }

    /// Operation of the next SQE.
    pub fn step(&self) -> Step {
        let Io { kind, offset, len, inside, .. } = *self;
        if inside == 0 || kind == Kind::Sync {
            return Step { kind, offset, len };
        }
        let begin = offset & !inside;
        if self.is_at_edge() {
            let dsync = self.syncs();
            let kind = if self.is_filled { Kind::Write { dsync } } else { Kind::Read };
            return Step { kind, offset: begin, len: inside + 1 };
        }
        let most = self.bounce.as_ref().map_or(u64::MAX, Bounce::len) & !inside;
        match kind {
            Kind::Read => {
                let len = ((offset + len + inside) & !inside) - begin;
                Step { kind, offset: begin, len: len.min(most) }
            }
            Kind::Write { .. } => Step { kind, offset, len: (len & !inside).min(most) },
            _ => Step { kind, offset, len: len & !inside },
        }
    }

    /// May it mean that acknowledged data is lost if the step under way fails with this errno? A
    /// write or an allocation for which there is no room, or no right, has not begun.
    pub fn may_lose(&self, errno: i32) -> bool {
        let is_refusal = matches!(errno, libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EPERM);
        match self.kind {
            Kind::Sync => true,
            _ => self.durable && !self.is_filling() && !is_refusal,
        }
    }

    /// Copy what is to be written to the bounce buffer, if there is one.
    pub fn fill_bounce(&self) {
        let Some(bounce) = &self.bounce else { return };
        match self.kind {
            _ if self.is_filling() => {}
            Kind::Write { .. } if self.is_at_edge() => {
                bounce.copy(&self.buffers, self.skip(), self.edge_len(), false);
            }
            Kind::Write { .. } => bounce.copy(&self.buffers, 0, self.len, false),
            _ if self.is_at_edge() => bounce.zero(self.skip(), self.edge_len()),
            _ => {}
        }
    }

    /// The SQE of what is still to do, or of the first `short` bytes of it.
    pub fn entry(&mut self, short: Option<u32>) -> squeue::Entry {
        // The registered file of the disk.
        let fd = types::Fixed(u32::from(self.disk.0));
        let Step { kind, offset, len } = self.step();
        match kind {
            Kind::Sync => {
                // A flush has no span: zeroes stand for all of the file.
                let Range { start, end } = self.span;
                let (at, len) = u32::try_from(end - start).map_or((0, 0), |len| (start, len));
                let flags = types::FsyncFlags::DATASYNC;
                opcode::Fsync::new(fd).offset(at).len(len).flags(flags).build()
            }
            Kind::Allocate { mode } => {
                opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()
            }
            Kind::Zeroes => {
                let len = (ZEROES_BYTES as u64).min(len) as u32;
                opcode::Write::new(fd, ZEROES.0.as_ptr(), len).offset(offset).build()
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
            Kind::Write { dsync } => {
                let flags = if dsync { libc::RWF_DSYNC } else { 0 };
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
                let iov_len = bounce.len().min(self.step().len) as usize;
                libc::iovec { iov_base: bounce.at.cast(), iov_len }
            }
            None if short.is_none() => return &self.buffers,
            None => self.buffers[0],
        };
        let iov_len = first.iov_len.min(short.map_or(usize::MAX, |s| s as usize));
        self.single = [libc::iovec { iov_len, ..first }];
        &self.single
    }

    /// Bytes of what was asked for that the next step, of which `result` bytes are done, has done.
    /// What came up short inside a block of `align` bytes is done again from its beginning.
    pub fn progress(&self, result: u64, align: u64) -> u64 {
        match self.kind {
            Kind::Read if self.is_inside() => result.saturating_sub(self.skip()).min(self.len),
            Kind::Allocate { .. } => self.step().len,
            _ if result < self.len => result & !(align - 1),
            _ => result,
        }
    }

    /// The image ends in what is still to be read: zeroes lie behind it.
    pub fn zero_rest(&mut self) {
        for buffer in &self.buffers {
            // SAFETY: the port keeps the guest's memory until the job is done.
            unsafe { buffer.iov_base.cast::<u8>().write_bytes(0, buffer.iov_len) };
        }
        (self.offset, self.len) = (self.offset + self.len, 0);
    }

    /// The first `done` bytes are done.
    pub fn advance(&mut self, done: u64) {
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

/// Can the kernel take this buffer of several as it is? Memory of alignment 1
/// goes through the page cache, which takes everything.
pub fn is_aligned(buffer: &libc::iovec, limits: &Limits) -> bool {
    let memory = limits.memory_align_bytes as usize;
    let block = if memory > 1 { limits.align_bytes as usize } else { 1 };
    (buffer.iov_base as usize).is_multiple_of(memory)
        && buffer.iov_len.is_multiple_of(block.max(memory))
}

/// Does memory lie in more and smaller pieces than a tag of the device is reckoned for
/// ([`crate::images::Image::tags`])? A command of few pages fits into one in any case.
pub fn is_scattered(buffers: &[libc::iovec], len: u64) -> bool {
    if buffers.len() <= ONE_TAG_PAGES {
        return false;
    }
    let pages =
        |b: &libc::iovec| (b.iov_base as usize % PAGE_BYTES + b.iov_len).div_ceil(PAGE_BYTES);
    buffers.iter().map(pages).sum::<usize>() as u64 > len / SEGMENT_BYTES + 2
}

/// `fallocate` modes: deallocate the range, which then reads as zeroes.
pub const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
/// Zero the range and keep it allocated.
pub const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

/// Operation on the image; `unmap` allows a write-zeroes to deallocate, `dsync` is for writes.
pub fn kind_of(op: Op, unmap: bool, dsync: bool) -> Kind {
    match op {
        Op::Read => Kind::Read,
        Op::Write => Kind::Write { dsync },
        Op::Flush => Kind::Sync,
        Op::Discard => Kind::Allocate { mode: PUNCH },
        Op::WriteZeroes if unmap => Kind::Allocate { mode: PUNCH },
        Op::WriteZeroes => Kind::Allocate { mode: ZERO },
    }
}

/// Commands on the device, by slot of their id.
#[derive(Default)]
pub struct Commands(Vec<Command>);

/// Progress of a command.
#[derive(Default)]
struct Command {
    /// Its I/Os under way.
    ios_left: u32,
    /// Its members that failed.
    failed: Vec<(RequestId, IoError)>,
}

impl Commands {
    /// A command begins, without I/Os.
    pub fn begin(&mut self, command: RequestId) {
        if command.slot() >= self.0.len() {
            self.0.resize_with(command.slot() + 1, Command::default);
        }
        self.0[command.slot()].ios_left = 0;
    }
    /// The command has one I/O more under way.
    pub fn add_io(&mut self, command: RequestId) {
        self.0[command.slot()].ios_left += 1;
    }
    /// One of its I/Os is over. True when it was the command's last.
    pub fn end_io(&mut self, command: RequestId) -> bool {
        let command = &mut self.0[command.slot()];
        command.ios_left -= 1;
        command.ios_left == 0
    }
    /// A member of the command failed.
    pub fn fail(&mut self, command: RequestId, member: RequestId, error: IoError) {
        self.0[command.slot()].failed.push((member, error));
    }
    /// The members that failed; the command is done.
    pub fn take_failed(&mut self, command: RequestId) -> Vec<(RequestId, IoError)> {
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
    /// A free slot for an I/O of `command`: its index. The caller says what it does.
    pub fn insert(&mut self, command: &Request, disk: DiskId) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Io {
                command: *command,
                disk,
                kind: Kind::Sync,
                discard: false,
                durable: false,
                offset: 0,
                len: 0,
                buffers: Vec::new(),
                members: Vec::new(),
                bounce: None,
                inside: 0,
                is_filled: false,
                span: 0..0,
                has_begun: false,
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

    /// Free the slot of an I/O that is over.
    pub fn remove(&mut self, index: u32) {
        let io = &mut self[index];
        (io.bounce, io.has_begun) = (None, false);
        self.free.push(index);
    }

    /// Writes of a disk to these bytes that are under way.
    pub fn writes_to(&self, disk: DiskId, span: &Range<u64>) -> u32 {
        let is_one = |io: &&Io| io.has_begun && io.disk == disk && edges::overlap(&io.span, span);
        self.slots.iter().filter(is_one).count() as u32
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
    use crate::reactor::tests::LIMITS;

    /// A guest may spread a command of 512 KiB over 1,024 pages.
    #[test]
    fn memory_in_many_small_pieces_is_scattered() {
        let buffers = |count: usize, step: usize, len: usize, at: usize| -> Vec<libc::iovec> {
            let base = |n| (at + n * step) as *mut _;
            (0..count).map(|n| libc::iovec { iov_base: base(n), iov_len: len }).collect()
        };
        for (count, step, len, at, expected) in [
            (1024, 4096, 512, 0, true),
            (65, 4096, 512, 0, true),
            (64, 4096, 512, 0, false),
            // As guests' page caches have it, and a program's memory that begins inside a page.
            (256, 8192, 4096, 0, false),
            (256, 8192, 4096, 512, false),
            (1, 0, 1 << 20, 512, false),
            (1024, 8192, 1024, 0, true),
        ] {
            let all = buffers(count, step, len, at);
            let scattered = is_scattered(&all, buffers_len(&all));
            assert_eq!(scattered, expected, "{count} of {len} every {step} from {at}");
        }
    }

    #[test]
    fn pieces_of_blocks_bounce_before_direct_io() {
        // As NVMe says: memory may begin at any word.
        let limits = |memory_align_bytes| Limits { memory_align_bytes, ..LIMITS };
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

//! The kernel that a simulated reactor runs on: its ring, its clock, its images. I/O on images
//! takes as long as the seed says, ends in any order, comes up short and fails; eventfds and
//! sockets are real, and looked at when the reactor asks for completions.

use super::content::Content;
use super::random::Random;
use crate::death;
use crate::reactor::io::{Io, Kind};
use crate::reactor::ring::{Backend, Cqe, Source};
use io_uring::squeue;
use libc::{c_void, iovec};
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_stack::dispatcher::Tags;
use seekway_testing::disk::SECTOR_BYTES;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::mem::{size_of, transmute_copy};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

/// Operations, as linux/io_uring.h numbers them.
const POLL_ADD: u8 = 6;
const SENDMSG: u8 = 9;
const RECVMSG: u8 = 10;
const TIMEOUT: u8 = 11;
const RECV: u8 = 27;

/// The tags of a device's queue. Whoever sends I/O while there is none would sleep.
pub const TAGS: Tags = Tags { count: 16, sectors: Sectors::new(256) };
/// The longest I/O that the device is given.
const PIECE_BYTES: usize = 1 << 20;

/// Frequency of faults: once in this number of times; 0 for never.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    pub fails: u64,
    pub short: u64,
    /// I/O fails with EAGAIN or EINTR.
    pub again: u64,
    /// A multishot poll ends.
    pub disarms: u64,
    /// The file system can neither punch holes nor zero ranges.
    pub no_holes: bool,
    /// I/O on an image hangs.
    pub hangs: u64,
    /// A socket takes a part of what is sent at once, or nothing, or breaks.
    pub sends: u64,
}

/// A file or device.
pub struct File {
    /// Its number, by which descriptors are matched.
    inode: u64,
    pub content: Content,
    /// The file goes through the page cache.
    buffered: bool,
    /// Its file system looks at RWF_DSYNC. A FUSE server need not.
    keeps_dsync: bool,
    /// I/O begins and ends between blocks of this number of bytes.
    block: usize,
    /// A sync of it has failed since it was opened.
    pub has_failed_sync: bool,
}

/// I/O on an image that is under way.
struct Transfer {
    index: u32,
    file: usize,
    kind: Kind,
    /// The transfer is durable, or a sync follows.
    durable: bool,
    offset: usize,
    len: usize,
    buffers: Vec<iovec>,
    /// Data to write, as it was when the I/O began; less where it was taken away.
    data: Vec<u8>,
    hangs: bool,
    /// Result of an I/O that is done, while the reactor has not been told.
    result: Option<i32>,
}

/// A wait for an event.
enum Wait {
    Poll(RawFd),
    Receive(RawFd, *mut c_void, usize),
    ReceiveMessage(RawFd, *mut libc::msghdr),
    Send(RawFd, *const libc::msghdr),
    Until(Instant),
}

/// The fields of a `struct io_uring_sqe` that are needed here.
#[derive(Clone, Copy)]
#[repr(C)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    offset: u64,
    address: u64,
    len: u32,
    op_flags: u32,
    rest: [u64; 4],
}

/// A simulated kernel: its clock, its files, and what the reactor waits for.
pub struct Kernel {
    pub now: Instant,
    pub faults: Faults,
    pub files: Vec<File>,
    /// Tags of its device's queue.
    pub tags: Option<Tags>,
    random: Random,
    /// Random numbers for faults of sockets: they change nothing of the rest.
    of_sockets: Random,
    registered: Vec<Option<usize>>,
    transfers: Vec<Transfer>,
    waits: Vec<(Source, Wait)>,
    done: VecDeque<Cqe>,
    /// Images of a process that was killed, and the number of turns for which they stay open.
    lingering: Vec<(std::fs::File, u64)>,
    /// The reactor sleeps until then, or until something happens.
    wake: Option<Instant>,
}

impl Kernel {
    pub fn new(random: Random, faults: Faults) -> Kernel {
        Kernel {
            now: Instant::ZERO,
            faults,
            files: Vec::new(),
            tags: None,
            of_sockets: random.apart(),
            random,
            registered: Vec::new(),
            transfers: Vec::new(),
            waits: Vec::new(),
            done: VecDeque::new(),
            lingering: Vec::new(),
            wake: None,
        }
    }

    /// Keeps this image open, and locked, by a process that is being killed, for `turns`.
    pub fn linger(&mut self, image: std::fs::File, turns: u64) {
        self.lingering.push((image, turns));
    }

    /// Does a process that was killed still have an image?
    pub fn lingers(&self) -> bool {
        !self.lingering.is_empty()
    }

    /// A turn of the world: what lingers does so for one less.
    pub fn let_go(&mut self) {
        self.lingering.retain_mut(|(_, turns)| {
            *turns = turns.saturating_sub(1);
            *turns > 0
        });
    }

    /// A file of zeroes that is known by its inode.
    pub fn add_file(
        &mut self,
        inode: u64,
        bytes: usize,
        buffered: bool,
        keeps_dsync: bool,
        block: usize,
    ) {
        let (content, has_failed_sync) = (Content::new(bytes), false);
        self.files.push(File { inode, content, buffered, keeps_dsync, block, has_failed_sync });
    }

    /// Some I/O ends, if one is under way.
    pub fn finish_one(&mut self) -> bool {
        let moving: Vec<usize> =
            (0..self.transfers.len()).filter(|&at| !self.transfers[at].hangs).collect();
        if moving.is_empty() {
            return false;
        }
        let at = self.random.one_of(&moving);
        let transfer = self.transfers.swap_remove(at);
        let result = transfer.result.unwrap_or_else(|| self.carry_out(&transfer));
        // A thread of the kernel's that has the error of a sync may be slower than another whose
        // sync went well because of that.
        let is_lost = result < 0 && self.files[transfer.file].content.is_lost();
        if is_lost && transfer.result.is_none() && self.random.once_in(2) {
            self.transfers.push(Transfer { result: Some(result), ..transfer });
            return true;
        }
        self.done.push_back(Cqe { source: Source::Io(transfer.index), result, more: false });
        true
    }

    /// Tags of the device's queue that I/O under way has.
    fn tags_taken(&self, tags: Tags) -> usize {
        let of_tag = tags.sectors.bytes() as usize;
        let moves = |t: &&Transfer| matches!(t.kind, Kind::Read | Kind::Write { .. });
        self.transfers.iter().filter(moves).map(|t| t.len.div_ceil(of_tag)).sum()
    }

    /// Lets I/O that hangs go on.
    pub fn release(&mut self) {
        self.transfers.iter_mut().for_each(|transfer| transfer.hangs = false);
    }

    /// Nothing goes wrong any more.
    pub fn heal(&mut self) {
        self.faults = Faults::default();
        self.release();
    }

    /// When the reactor wakes if nothing happens.
    pub fn next_wake(&self) -> Option<Instant> {
        let timers = self.waits.iter().filter_map(|(_, wait)| match wait {
            Wait::Until(at) => Some(*at),
            _ => None,
        });
        timers.chain(self.wake).min()
    }

    /// Lets this time pass.
    pub fn pass(&mut self, time: Nanos) {
        self.now = self.now + time;
    }

    /// The process is killed. Of what it has under way the device does some, in part or not at all.
    pub fn kill(&mut self) {
        while !self.transfers.is_empty() {
            let at = self.random.index(self.transfers.len());
            let mut transfer = self.transfers.swap_remove(at);
            if transfer.result.is_some() {
                continue;
            }
            let sectors = (transfer.len / SECTOR_BYTES) as u64;
            transfer.len = self.random.below(sectors + 1) as usize * SECTOR_BYTES;
            if transfer.len > 0 || matches!(transfer.kind, Kind::Sync) && self.random.once_in(2) {
                let faults = std::mem::take(&mut self.faults);
                self.carry_out(&transfer);
                self.faults = faults;
            }
        }
        self.registered.clear();
        self.waits.clear();
        self.done.clear();
        self.wake = None;
        // Its clock begins anew.
        self.now = Instant::ZERO;
    }

    /// The power fails: the process dies, and files lose what is not durable.
    pub fn power_fails(&mut self) {
        self.kill();
        self.lingering.clear();
        for file in &mut self.files {
            file.content.power_fails(&mut self.random);
        }
    }

    /// Send some of a message, at least a byte, or fail.
    fn send_badly(&mut self, socket: RawFd, message: &libc::msghdr) -> i32 {
        let random = &mut self.of_sockets;
        match random.below(8) {
            // The client hears of it when the socket is closed.
            0 => -libc::ECONNRESET,
            1..4 => -libc::EAGAIN,
            _ => {
                // SAFETY: a message and its pieces.
                let pieces =
                    unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) };
                let all: usize = pieces.iter().map(|piece| piece.iov_len).sum();
                let mut left = 1 + random.index(all);
                let mut fewer = pieces.to_vec();
                for piece in &mut fewer {
                    piece.iov_len = piece.iov_len.min(left);
                    left -= piece.iov_len;
                }
                let short = libc::msghdr { msg_iov: fewer.as_mut_ptr(), ..*message };
                send_at_once(socket, &short)
            }
        }
    }

    fn carry_out(&mut self, transfer: &Transfer) -> i32 {
        let Transfer { offset, len, kind, .. } = *transfer;
        let Kernel { random, faults, .. } = self;
        let file = &mut self.files[transfer.file];
        let syncs = matches!(kind, Kind::Sync | Kind::Write { dsync: true });
        if random.once_in(faults.again) {
            file.has_failed_sync |= syncs;
            // Of a sync that is what an earlier write-back met.
            if syncs && file.buffered {
                file.content.lose_cached();
            }
            return -random.one_of(&[libc::EAGAIN, libc::EINTR]);
        }
        if matches!(kind, Kind::Allocate { .. }) && faults.no_holes {
            return -libc::EOPNOTSUPP;
        }
        let fails = random.once_in(faults.fails);
        // All of a range is deallocated, or it fails.
        let whole = matches!(kind, Kind::Allocate { .. } | Kind::Sync);
        let mut done = len;
        if (fails || !whole && random.once_in(faults.short)) && len > 0 {
            done = random.index(len.div_ceil(SECTOR_BYTES) + 1) * SECTOR_BYTES;
            // Zero bytes would be the file's end.
            done = if fails { done } else { done.max(SECTOR_BYTES) };
            done = done.min(len);
        }
        match kind {
            Kind::Read => {
                let bytes = &file.content.bytes()[offset..offset + done];
                if copy_out(bytes, &transfer.buffers) < done {
                    return -libc::EFAULT;
                }
            }
            Kind::Write { .. } if transfer.data.len() < len => return -libc::EFAULT,
            Kind::Write { dsync } => {
                let durable = dsync && file.keeps_dsync && !fails;
                file.content.write(offset, &transfer.data[..done], durable);
            }
            Kind::Allocate { .. } | Kind::Zeroes => {
                file.content.write(offset, &vec![0; done], false)
            }
            Kind::Sync if fails => {}
            Kind::Sync => file.content.sync(),
        }
        if !fails {
            return if whole { 0 } else { done as i32 };
        }
        // What there is no room for has not begun. Of a sync it is what an earlier write-back met.
        let errno = random.one_of(&[libc::EIO, libc::ENOSPC]);
        file.has_failed_sync |= match errno {
            libc::ENOSPC => kind == Kind::Sync,
            _ => syncs || transfer.durable,
        };
        if syncs && file.buffered {
            file.content.lose_cached();
        }
        -errno
    }

    /// Look at eventfds, sockets and the clock.
    fn look(&mut self) {
        let mut at = 0;
        while at < self.waits.len() {
            let (source, wait) = &self.waits[at];
            let (source, result) = (*source, wait.outcome(self.now));
            let Some(result) = result else {
                at += 1;
                continue;
            };
            let multishot = matches!(self.waits[at].1, Wait::Poll(_));
            let more = multishot && !self.random.once_in(self.faults.disarms);
            if more {
                at += 1;
            } else {
                self.waits.swap_remove(at);
            }
            self.done.push_back(Cqe { source, result, more });
        }
    }
}

impl Wait {
    /// Result of a wait, if it is over. An eventfd's counter is taken: each write is one event.
    fn outcome(&self, now: Instant) -> Option<i32> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let result = match *self {
            Wait::Until(at) => return (at <= now).then_some(-libc::ETIME),
            Wait::Poll(fd) => {
                let mut counter = 0u64;
                // SAFETY: eight bytes, and the eventfds of the simulation never block.
                unsafe { libc::read(fd, (&raw mut counter).cast(), size_of::<u64>()) }
            }
            // SAFETY: whoever pushed it keeps the memory until the completion, here and below.
            Wait::Receive(fd, to, len) => unsafe { libc::recv(fd, to, len, flags) },
            // SAFETY: as above.
            Wait::ReceiveMessage(fd, message) => unsafe { libc::recvmsg(fd, message, flags) },
            // SAFETY: as above.
            Wait::Send(fd, message) => unsafe { libc::sendmsg(fd, message, flags) },
        };
        if result >= 0 {
            return Some(result as i32);
        }
        match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
            libc::EAGAIN => None,
            errno => Some(-errno),
        }
    }
}

fn send_at_once(socket: RawFd, message: &libc::msghdr) -> i32 {
    let wait = Wait::Send(socket, &raw const *message);
    wait.outcome(Instant::ZERO).unwrap_or(-libc::EAGAIN)
}

/// The bytes of an I/O's buffers, as far as they are there: memory that was taken away ends them.
fn gather(buffers: &[iovec], len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    let to = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
    // SAFETY: an I/O's buffers live until its completion; what is missing is not touched.
    let there = unsafe { move_bytes(libc::process_vm_readv, to, buffers) };
    bytes.truncate(there);
    bytes
}

/// Put bytes into an I/O's buffers. Returns how many there was memory for.
fn copy_out(bytes: &[u8], buffers: &[iovec]) -> usize {
    let from = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: as above, and nothing is written to `bytes`.
    unsafe { move_bytes(libc::process_vm_writev, from, buffers) }
}

type Mover = unsafe extern "C" fn(
    libc::pid_t,
    *const iovec,
    libc::c_ulong,
    *const iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Have the kernel move bytes between a place of ours and an I/O's buffers: it stops at memory that
/// was taken away, where an access of this process would have SIGBUS.
///
/// # Safety
/// The buffers are of this process.
unsafe fn move_bytes(mover: Mover, ours: iovec, buffers: &[iovec]) -> usize {
    let count = buffers.len() as libc::c_ulong;
    // SAFETY: the caller's word; the kernel looks at each address.
    let moved = unsafe { mover(libc::getpid(), &raw const ours, 1, buffers.as_ptr(), count, 0) };
    let error = io::Error::last_os_error();
    assert!(moved >= 0 || error.raw_os_error() == Some(libc::EFAULT), "moving bytes: {error}");
    moved.max(0) as usize
}

fn inode(fd: RawFd) -> u64 {
    // SAFETY: zeroes are a `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for a `stat`.
    assert_eq!(unsafe { libc::fstat(fd, &raw mut stat) }, 0, "{}", io::Error::last_os_error());
    stat.st_ino
}

/// The ring of one process.
pub struct Ring(pub Rc<RefCell<Kernel>>);

impl Backend for Ring {
    fn now(&mut self) -> Instant {
        self.0.borrow().now
    }

    /// The simulated thread always has the processor. Real processor time would make two runs of a
    /// seed differ.
    fn busy(&self) -> Duration {
        Duration::from_nanos(self.0.borrow().now.as_nanos())
    }

    fn register_file(&mut self, index: u16, fd: Option<RawFd>) -> io::Result<()> {
        let kernel = &mut *self.0.borrow_mut();
        let index = usize::from(index);
        if index >= kernel.registered.len() {
            kernel.registered.resize(index + 1, None);
        }
        kernel.registered[index] = fd.map(|fd| {
            let inode = inode(fd);
            kernel.files.iter().position(|file| file.inode == inode).expect("an image of ours")
        });
        Ok(())
    }

    unsafe fn start(&mut self, index: u32, io: &mut Io, short: Option<u32>) {
        death::point();
        let kernel = &mut *self.0.borrow_mut();
        let file = kernel.registered[usize::from(io.disk.0)].expect("the disk is attached");
        let step = io.step();
        let (kind, offset) = (step.kind, step.offset as usize);
        let has_data = matches!(kind, Kind::Read | Kind::Write { .. });
        let buffers = if has_data { io.target(short).to_vec() } else { Vec::new() };
        let len = match kind {
            Kind::Read | Kind::Write { .. } => buffers.iter().map(|b| b.iov_len).sum(),
            Kind::Zeroes => (step.len as usize).min(64 << 10),
            Kind::Allocate { .. } => step.len as usize,
            Kind::Sync => 0,
        };
        assert!(!has_data || len <= PIECE_BYTES, "an I/O of {len} bytes");
        let block = kernel.files[file].block;
        let is_whole = offset.is_multiple_of(block) && len.is_multiple_of(block);
        assert!(is_whole || kind == Kind::Sync, "{step:?} on blocks of {block}");
        let is_write = matches!(kind, Kind::Write { .. });
        let data = if is_write { gather(&buffers, len) } else { Vec::new() };
        let hangs = kernel.random.once_in(kernel.faults.hangs);
        kernel.transfers.push(Transfer {
            index,
            file,
            kind,
            durable: io.durable,
            offset,
            len,
            buffers,
            data,
            hangs,
            result: None,
        });
        if let Some(tags) = kernel.tags {
            let taken = kernel.tags_taken(tags);
            assert!(taken <= tags.count as usize, "the reactor waits for one of {tags:?}");
        }
    }

    unsafe fn send(&mut self, socket: RawFd, message: *const libc::msghdr) -> i32 {
        death::point();
        let kernel = &mut *self.0.borrow_mut();
        // SAFETY: the caller's promise.
        let message = unsafe { &*message };
        match kernel.of_sockets.once_in(kernel.faults.sends) {
            true => kernel.send_badly(socket, message),
            false => send_at_once(socket, message),
        }
    }

    unsafe fn push(&mut self, source: Source, entry: squeue::Entry) {
        death::point();
        const { assert!(size_of::<squeue::Entry>() == size_of::<Sqe>()) };
        // SAFETY: an entry is the kernel's structure, all of whose bits are numbers.
        let sqe: Sqe = unsafe { transmute_copy(&entry) };
        let kernel = &mut *self.0.borrow_mut();
        let wait = match sqe.opcode {
            POLL_ADD => Wait::Poll(sqe.fd),
            RECV => Wait::Receive(sqe.fd, sqe.address as *mut c_void, sqe.len as usize),
            RECVMSG => Wait::ReceiveMessage(sqe.fd, sqe.address as *mut libc::msghdr),
            SENDMSG => Wait::Send(sqe.fd, sqe.address as *const libc::msghdr),
            TIMEOUT => {
                // SAFETY: the entry's time lives until its completion.
                let [s, ns] = unsafe { *(sqe.address as *const [u64; 2]) };
                Wait::Until(kernel.now + Nanos::new(s * 1_000_000_000 + ns))
            }
            other => panic!("operation {other} is not simulated"),
        };
        kernel.waits.push((source, wait));
    }

    fn completions(&mut self, out: &mut Vec<Cqe>) {
        let mut kernel = self.0.borrow_mut();
        kernel.look();
        kernel.wake = None;
        out.extend(kernel.done.drain(..));
    }

    fn peek(&mut self) -> bool {
        let mut kernel = self.0.borrow_mut();
        kernel.look();
        !kernel.done.is_empty()
    }

    fn submit_and_wait(&mut self, timeout_ns: Option<u64>) {
        let mut kernel = self.0.borrow_mut();
        kernel.wake = timeout_ns.map(|ns| kernel.now + Nanos::new(ns));
    }

    fn cancel(&mut self, port: crate::port::PortId, tag: u32) {
        let mut kernel = self.0.borrow_mut();
        let cancelled = Source::Port(port, tag);
        let at = kernel.waits.iter().position(|(source, _)| *source == cancelled);
        if let Some(at) = at {
            let (source, _) = kernel.waits.swap_remove(at);
            kernel.done.push_back(Cqe { source, result: -libc::ECANCELED, more: false });
        }
        kernel.done.push_back(Cqe { source: Source::Cancel, result: 0, more: false });
    }
}

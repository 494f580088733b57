//! The io_uring of a reactor: what an SQE's `user_data` says, submission that
//! never fails for want of room, and waiting with a deadline.

use super::io::Io;
use crate::port::PortId;
use crate::sandbox;
use crate::toll;
use io_uring::register::Restriction;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use seekway_core::units::Instant;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;
use vmm_sys_util::eventfd::EventFd;

/// Entries of the submission queue; more are submitted in between.
const ENTRIES: u32 = 512;
/// Entries of the completion queue; the kernel keeps what exceeds it.
const COMPLETIONS: u32 = 4096;
/// SQEs that are worth a system call while there are more to come. The kernel
/// plugs the device for a submission of more than two (`IO_PLUG_THRESHOLD`): the
/// first would then wait until the last is prepared.
const SUBMIT_AT: usize = 2;
/// Time for which the kernel's thread looks for SQEs before it sleeps: the shortest that it takes.
const LOOK_MS: u32 = 1;
/// A longer I/O on an image in memory goes to a worker thread: several are then
/// copied at once, which is worth more than the thread costs.
const COPY_BYTES_MAX: u64 = 32 << 10;
/// Files that may be registered: disks of one reactor.
pub const FILES_MAX: u16 = 1024;
/// Operations that reactors and ports push. Nothing else goes through the ring, which no filter of
/// system calls looks into: nothing that opens a file or a socket.
const OPERATIONS: [(u8, &str); 12] = [
    (opcode::Read::CODE, "Read"),
    (opcode::Readv::CODE, "Readv"),
    (opcode::Write::CODE, "Write"),
    (opcode::Writev::CODE, "Writev"),
    (opcode::Fsync::CODE, "Fsync"),
    (opcode::Fallocate::CODE, "Fallocate"),
    (opcode::PollAdd::CODE, "PollAdd"),
    (opcode::Recv::CODE, "Recv"),
    (opcode::RecvMsg::CODE, "RecvMsg"),
    (opcode::SendMsg::CODE, "SendMsg"),
    (opcode::Timeout::CODE, "Timeout"),
    (opcode::AsyncCancel::CODE, "AsyncCancel"),
];
/// The one registration allowed once the ring is in use: other files
/// (`IORING_REGISTER_FILES_UPDATE`).
const REGISTER_FILES_UPDATE: u8 = 6;

/// Owner of a CQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// An I/O on an image, by its index.
    Io(u32),
    /// A port's SQE and its tag.
    Port(PortId, u32),
    /// Somebody has sent a message.
    Mailbox,
    /// The answer to a cancellation; says nothing.
    Cancel,
}

const IO: u64 = 0;
const PORT: u64 = 1;
const MAILBOX: u64 = 2;
const CANCEL: u64 = 3;
/// There are completions of images' I/O.
const IMAGES: u64 = 4;

impl Source {
    /// kind:8, then the index:32, or port:16 generation:16 tag:24.
    fn to_user_data(self) -> u64 {
        match self {
            Source::Io(index) => IO << 56 | u64::from(index),
            Source::Port(PortId { index, generation }, tag) => {
                PORT << 56
                    | u64::from(index) << 40
                    | u64::from(generation) << 24
                    | u64::from(tag & 0xff_ffff)
            }
            Source::Mailbox => MAILBOX << 56,
            Source::Cancel => CANCEL << 56,
        }
    }

    fn from_user_data(data: u64) -> Source {
        match data >> 56 {
            IO => Source::Io(data as u32),
            PORT => {
                let (index, generation) = ((data >> 40) as u16, (data >> 24) as u16);
                Source::Port(PortId { index, generation }, data as u32 & 0xff_ffff)
            }
            MAILBOX => Source::Mailbox,
            _ => Source::Cancel,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    pub source: Source,
    /// Bytes, or a negative errno.
    pub result: i32,
    /// The SQE stays armed.
    pub more: bool,
}

/// The system below a reactor: the kernel's ring and clock, or a model of both.
pub trait Backend {
    /// The time since the backend was made.
    fn now(&mut self) -> Instant;

    /// Processor time of this thread. Only differences count.
    fn busy(&self) -> Duration {
        toll::busy()
    }

    /// Register a file under an index below [`FILES_MAX`]; `None` takes it out.
    fn register_file(&mut self, index: u16, fd: Option<RawFd>) -> std::io::Result<()>;

    /// Begin an I/O on an image, or its first `short` bytes; its completion says `index`.
    ///
    /// # Safety
    /// The I/O and its buffers live until its completion.
    unsafe fn start(&mut self, index: u32, io: &mut Io, short: Option<u32>);

    /// Push an SQE.
    ///
    /// # Safety
    /// The memory that it points to lives until its last CQE.
    unsafe fn push(&mut self, source: Source, entry: squeue::Entry);

    /// Send a message as far as the socket takes it without waiting. Returns bytes or a negative
    /// errno.
    ///
    /// # Safety
    /// The memory that the message points to is valid.
    unsafe fn send(&mut self, socket: RawFd, message: *const libc::msghdr) -> i32 {
        // SAFETY: the caller's promise.
        let sent =
            unsafe { libc::sendmsg(socket, message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        match sent {
            0.. => sent as i32,
            _ => -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        }
    }

    /// Move the completions that are there to `out`.
    fn completions(&mut self, out: &mut Vec<Cqe>);

    /// Has a completion been dropped, for want of memory? Nobody knows which: what it belongs to
    /// never ends.
    fn has_lost_completions(&self) -> bool {
        false
    }

    /// Submit, and let the kernel finish what it has, without waiting. Are
    /// there completions?
    fn peek(&mut self) -> bool;

    /// Submit, and wait for a completion for at most `timeout_ns`.
    fn submit_and_wait(&mut self, timeout_ns: Option<u64>);

    /// Watch an eventfd; each write to it gives a CQE, so nobody need read it.
    fn watch_mailbox(&mut self, wake: &EventFd) {
        let fd = io_uring::types::Fd(wake.as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(Source::Mailbox, entry) };
    }

    /// Cancel a port's SQE.
    fn cancel(&mut self, port: PortId, tag: u32) {
        let entry = opcode::AsyncCancel::new(Source::Port(port, tag).to_user_data()).build();
        // SAFETY: the entry points to nothing.
        unsafe { self.push(Source::Cancel, entry) };
    }
}

/// Thread that submits I/O on images, and copies their data if it is in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Submitter {
    /// The ring's own thread.
    Own,
    /// A thread of the kernel's beside it (`IORING_SETUP_SQPOLL`, io_uring_setup(2)).
    Kernel,
}

/// The kernel's ring and clock.
pub struct Ring {
    ring: IoUring,
    /// Images' I/O has a ring of its own if the kernel's thread submits it. What ports push stays
    /// with ours: how long it takes to wake a peer is measured here.
    images: Option<IoUring>,
    /// `ring` waits for completions of `images`.
    watches: bool,
    has_lost: bool,
    epoch: std::time::Instant,
}

impl Ring {
    /// A ring of this thread, which alone may use it.
    pub fn new(submitter: Submitter) -> std::io::Result<Ring> {
        let builder = || {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(COMPLETIONS).setup_r_disabled();
            builder
        };
        let ring = builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES);
        // Kernels before 6.1 do not know these.
        let ring = ring.or_else(|_| builder().build(ENTRIES))?;
        let images = match submitter {
            Submitter::Own => None,
            Submitter::Kernel => Some(builder().setup_sqpoll(LOOK_MS).build(ENTRIES)?),
        };
        let files = images.as_ref().unwrap_or(&ring);
        files.submitter().register_files_sparse(u32::from(FILES_MAX))?;
        let mut rings = std::iter::once(&ring).chain(&images);
        if sandbox::is_on() {
            let restricted = rings.clone().try_for_each(restrict);
            sandbox::note_ring(restricted.map_err(|e| e.to_string()));
        }
        rings.try_for_each(|ring| ring.submitter().register_enable_rings())?;
        let epoch = std::time::Instant::now();
        Ok(Ring { ring, images, watches: false, has_lost: false, epoch })
    }

    /// Wake the kernel's thread if it sleeps. Is a completion of images' I/O there?
    fn look_at_images(&mut self) -> bool {
        let Some(images) = &mut self.images else { return false };
        // What did not fit into the completion queue is moved there when it is asked for.
        let overflows = images.submission().cq_overflow();
        let _ = if overflows { images.submit_and_wait(1) } else { images.submit() };
        !images.completion().is_empty()
    }

    /// Let a completion of images' I/O end the next sleep. If one is there already, the sleep ends
    /// at once.
    fn watch_images(&mut self) {
        let Some(images) = self.images.as_ref().filter(|_| !self.watches) else { return };
        let fd = io_uring::types::Fd(images.as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
        // SAFETY: the entry points to nothing.
        unsafe { push_to(&mut self.ring, &entry.user_data(IMAGES << 56)) };
        self.watches = true;
    }

    /// Hand the kernel what is there if it is [`SUBMIT_AT`] SQEs or more.
    fn submit_some(&mut self) {
        if self.ring.submission().len() >= SUBMIT_AT {
            // What it does not take now goes with what comes next.
            let _ = self.ring.submit();
        }
    }
}

/// Make a ring as reactors do, and give it up. The names of the operations that the kernel lacks.
///
/// # Errors
/// The kernel's error of a ring.
pub fn try_out() -> std::io::Result<Vec<&'static str>> {
    Ring::new(Submitter::Own)?;
    let (ring, mut probe) = (IoUring::new(1)?, io_uring::Probe::new());
    ring.submitter().register_probe(&mut probe)?;
    let lacking = OPERATIONS.iter().filter(|(code, _)| !probe.is_supported(*code));
    Ok(lacking.map(|(_, name)| *name).collect())
}

/// Push an SQE, once the submission queue has room for it.
///
/// # Safety
/// The memory that it points to lives until its last CQE.
unsafe fn push_to(ring: &mut IoUring, entry: &squeue::Entry) {
    // SAFETY: the caller's promise.
    while unsafe { ring.submission().push(entry) }.is_err() {
        // Full: hand the kernel what is there. It takes it or says why not,
        // and "busy" passes when completions are read, which we cannot do
        // here; the kernel then keeps them aside and takes the SQEs.
        let _ = ring.submit();
        if ring.params().is_setup_sqpoll() {
            let _ = ring.submitter().squeue_wait();
        }
    }
}

/// Let the ring take what reactors push, and nothing else.
fn restrict(ring: &IoUring) -> std::io::Result<()> {
    let mut allowed: Vec<Restriction> =
        OPERATIONS.map(|(code, _)| Restriction::sqe_op(code)).into();
    allowed.push(Restriction::register_op(REGISTER_FILES_UPDATE));
    let flags = squeue::Flags::FIXED_FILE | squeue::Flags::ASYNC;
    allowed.push(Restriction::sqe_flags_allowed(flags.bits()));
    ring.submitter().register_restrictions(&mut allowed)
}

impl Backend for Ring {
    fn now(&mut self) -> Instant {
        Instant::from_nanos(self.epoch.elapsed().as_nanos() as u64)
    }

    fn register_file(&mut self, index: u16, fd: Option<RawFd>) -> std::io::Result<()> {
        let fds = [fd.unwrap_or(-1)];
        let files = self.images.as_ref().unwrap_or(&self.ring);
        files.submitter().register_files_update(u32::from(index), &fds).map(|_| ())
    }

    unsafe fn start(&mut self, index: u32, io: &mut Io, short: Option<u32>) {
        let mut entry = io.entry(short);
        if io.in_memory && io.len > COPY_BYTES_MAX {
            entry = entry.flags(squeue::Flags::ASYNC);
        }
        // SAFETY: the caller's promise.
        unsafe { self.push(Source::Io(index), entry) };
        if self.images.is_some() {
            self.look_at_images();
        } else if !io.in_memory {
            self.submit_some();
        }
    }

    unsafe fn push(&mut self, source: Source, entry: squeue::Entry) {
        let ring = match (&mut self.images, source) {
            (Some(images), Source::Io(_)) => images,
            _ => &mut self.ring,
        };
        // SAFETY: the caller's promise.
        unsafe { push_to(ring, &entry.user_data(source.to_user_data())) };
    }

    fn completions(&mut self, out: &mut Vec<Cqe>) {
        let rings = [Some(&mut self.ring), self.images.as_mut()];
        for cqe in rings.into_iter().flatten().flat_map(|ring| ring.completion()) {
            if cqe.user_data() == IMAGES << 56 {
                self.watches = false;
                continue;
            }
            out.push(Cqe {
                source: Source::from_user_data(cqe.user_data()),
                result: cqe.result(),
                more: cqueue::more(cqe.flags()),
            });
        }
        let rings = [Some(&mut self.ring), self.images.as_mut()];
        self.has_lost |= rings.into_iter().flatten().any(|r| r.completion().overflow() > 0);
    }

    fn has_lost_completions(&self) -> bool {
        self.has_lost
    }

    fn peek(&mut self) -> bool {
        let has_images = self.look_at_images();
        let to_submit = self.ring.submission().len() as u32;
        const GETEVENTS: u32 = 1;
        // SAFETY: no argument is passed.
        let _ =
            unsafe { self.ring.submitter().enter::<libc::sigset_t>(to_submit, 0, GETEVENTS, None) };
        has_images || !self.ring.completion().is_empty()
    }

    fn submit_and_wait(&mut self, timeout_ns: Option<u64>) {
        if self.look_at_images() {
            self.peek();
            return;
        }
        self.watch_images();
        let result = match timeout_ns {
            None => self.ring.submit_and_wait(1),
            Some(ns) => {
                let time =
                    Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32);
                let args = SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &args)
            }
        };
        if let Err(e) = result {
            self.has_lost |= tells_of_loss(&e);
        }
    }
}

/// Does this error of a wait say that completions were dropped (EBADR)? Panics for one that does
/// not pass.
fn tells_of_loss(error: &std::io::Error) -> bool {
    let passes = [libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN];
    let errno = error.raw_os_error().unwrap_or(0);
    assert!(errno == libc::EBADR || passes.contains(&errno), "io_uring_enter: {error}");
    errno == libc::EBADR
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests that a reactor that was taken over could still make to the kernel.
    #[test]
    fn a_ring_opens_no_files_and_no_sockets() {
        opens_nothing(Ring::new(Submitter::Own).unwrap(), Source::Cancel);
        for source in [Source::Cancel, Source::Io(0)] {
            opens_nothing(Ring::new(Submitter::Kernel).unwrap(), source);
        }
    }

    fn opens_nothing(mut ring: Ring, source: Source) {
        let path = c"/etc/passwd".as_ptr();
        let dir = io_uring::types::Fd(libc::AT_FDCWD);
        let fd = io_uring::types::Fd(0);
        let buffers = std::ptr::null_mut();
        for (entry, allowed) in [
            (opcode::Timeout::new(&Timespec::new()).build(), true),
            (opcode::OpenAt::new(dir, path).build(), false),
            (opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(), false),
            (opcode::UnlinkAt::new(dir, path).build(), false),
            (opcode::Connect::new(fd, std::ptr::null(), 0).build(), false),
            (opcode::Accept::new(fd, buffers, std::ptr::null_mut()).build(), false),
        ] {
            // SAFETY: the path lives for ever; nothing else is pointed to.
            unsafe { ring.push(source, entry) };
            let mut answers = Vec::new();
            while answers.is_empty() {
                ring.submit_and_wait(None);
                ring.completions(&mut answers);
            }
            let results: Vec<i32> = answers.iter().map(|cqe| cqe.result).collect();
            assert_eq!(results, [if allowed { -libc::ETIME } else { -libc::EACCES }]);
        }
        // Nothing else can be registered, and the restrictions cannot be taken away.
        let refused = |done: std::io::Result<()>| {
            assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EACCES));
        };
        for ring in std::iter::once(&ring.ring).chain(&ring.images) {
            refused(ring.submitter().register_eventfd(0));
            refused(ring.submitter().register_personality().map(drop));
        }
        ring.register_file(0, None).unwrap();
    }

    /// Twice what both queues hold is pushed before any completion is read.
    #[test]
    fn more_than_the_queues_hold_comes_back_once_each() {
        let ready = EventFd::new(0).unwrap();
        ready.write(1).unwrap();
        let fd = io_uring::types::Fd(ready.as_raw_fd());
        for submitter in [Submitter::Own, Submitter::Kernel] {
            let mut ring = Ring::new(submitter).unwrap();
            let all = 2 * (ENTRIES + COMPLETIONS);
            for index in 0..all {
                let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
                // SAFETY: the entry points to nothing.
                unsafe { ring.push(Source::Io(index), entry) };
            }
            let (mut answers, mut seen) = (Vec::new(), vec![0; all as usize]);
            while seen.contains(&0) {
                ring.submit_and_wait(None);
                ring.completions(&mut answers);
                for cqe in answers.drain(..) {
                    let Source::Io(index) = cqe.source else { panic!("{cqe:?}") };
                    seen[index as usize] += 1;
                }
            }
            assert!(seen.iter().all(|times| *times == 1), "{submitter:?}");
        }
    }

    #[test]
    fn a_wait_may_tell_that_completions_were_dropped() {
        let tells = |errno| tells_of_loss(&std::io::Error::from_raw_os_error(errno));
        assert!(tells(libc::EBADR));
        assert!(![libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN].into_iter().any(tells));
    }

    #[test]
    fn user_data_comes_back() {
        let port = PortId { index: 65_535, generation: 65_535 };
        for source in [
            Source::Io(u32::MAX),
            Source::Port(port, 0xff_ffff),
            Source::Port(PortId { index: 1, generation: 2 }, 3),
            Source::Mailbox,
            Source::Cancel,
        ] {
            assert_eq!(Source::from_user_data(source.to_user_data()), source);
        }
    }
}

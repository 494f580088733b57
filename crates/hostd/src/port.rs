//! The contract between a front end's data path and the reactor. A [`Port`] is one stream of one
//! guest's requests (a vring, an NBD connection). The reactor calls the port; within a call the
//! port calls the reactor's [`PortContext`], which calls no port: so no call re-enters.
//!
//! 1. [`Port::open`] once: arm the SQEs that watch the peer ([`PortContext::push`]).
//! 2. [`Port::event`] for every CQE of an SQE that the port pushed. When it says
//!    that there are requests, the port asks for its turn
//!    ([`PortContext::wait_turn`]): its peer decides how much there is to do.
//! 3. In its turn, [`Port::take`], it takes requests ([`PortContext::submit`])
//!    as long as its [`Budget`] lasts and the disk has room ([`PortContext::has_room`]).
//!    All disks have a turn before one has its second.
//! 4. [`Port::done`] for every job submitted, exactly once, in any order.
//! 5. [`Port::flush`] after a batch of the three above (and of [`Port::runs`]), once: notify the guest,
//!    send replies. Never called without one of them before.
//! 6. [`Port::message`] for what the front end's thread sent to it.
//! 7. A port ends by [`PortContext::close`] (itself) or by `Message::ClosePort` (its
//!    front end). The reactor then calls [`Port::closing`], in which the port
//!    stops taking requests and makes its SQEs end ([`PortContext::cancel`]); when no
//!    job and no SQE of it is left, [`Port::closed`] is the last call.
//!
//! Memory that an SQE or a job points to belongs to the port until that CQE or
//! `done`; this is why a port is not dropped before both have ended.

use crate::images::Limits;
use io_uring::squeue;
use seekway_core::request::{Op, VmId};
use seekway_core::units::Instant;
use std::any::Any;
use std::ops::Range;
use std::os::fd::RawFd;
use std::time::Duration;

/// A disk that is served: its number among those of its reactor, dense, and
/// the number of its VM in the dispatcher.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskId(pub u16);

impl DiskId {
    /// The disk of a VM of the stack's.
    pub fn of(vm: VmId) -> DiskId {
        DiskId(vm.index() as u16)
    }

    /// Its VM in the stack.
    pub fn vm(self) -> VmId {
        VmId::new(self.0)
    }
}

/// A port's number in its reactor. Reused after [`Port::closed`]; the
/// generation tells the two apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId {
    /// Index of the slot.
    pub index: u16,
    /// Number of times that the slot has been reused, modulo 2^16.
    pub generation: u16,
}

/// A guest's request for the reactor to schedule and carry out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// The disk whose image the request is for.
    pub disk: DiskId,
    /// The port that is told when it is done.
    pub port: PortId,
    /// The port's own name for it, handed back by [`Port::done`].
    pub token: u64,
    pub op: Op,
    /// Byte offset in the image, any one; says nothing for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush, else at least one.
    pub len: u64,
    /// The I/O priority in the request's header, which may name a process inside the guest
    /// ([`seekway_core::ioprio`]); 0 where the wire has none.
    pub priority: u32,
    /// Durable before it is done (writes, write-zeroes).
    pub fua: bool,
    /// Write-zeroes may deallocate the range instead of writing to it.
    pub unmap: bool,
}

/// Extra cost of a discard, a write-zeroes and a write with edges ([`has_edges`]) to a turn's
/// [`Budget`]: each is compared with all requests of its disk that are under way.
const ORDERED_WORK: u32 = 1024;
/// Bytes copied for one unit of a turn's [`Budget`].
pub const COPIED_BYTES: u64 = 128;

/// Do these bytes begin or end inside a block of `align` bytes
/// ([`crate::images::Limits::align_bytes`])? To write them takes a read.
pub fn has_edges(offset: u64, len: u64, align: u32) -> bool {
    (offset | len) & u64::from(align.max(1) - 1) != 0
}

/// The work that the ports of one disk may do in one turn of the reactor.
#[derive(Debug)]
pub struct Budget {
    left: u32,
    /// The part of it that copies took.
    copies: u32,
}

impl Budget {
    /// A budget of `work` units, each of about ten nanoseconds.
    pub fn new(work: u32) -> Budget {
        Budget { left: work, copies: 0 }
    }

    /// A turn's work. The unit is about ten nanoseconds: a descriptor read.
    pub const WORK: u32 = 8192;
    /// Work of a turn beside a disk that has little to do: a request of its guest that comes now
    /// waits until the turn is over.
    pub const WORK_BESIDE_QUIET: u32 = 8 * Budget::REQUEST_WORK;
    /// Cost of handing a request in, or of refusing it.
    pub const REQUEST_WORK: u32 = 32;

    /// Charges this work. Work beyond the budget is not charged later.
    pub fn spend(&mut self, work: u32) {
        self.left = self.left.saturating_sub(work);
    }

    /// Charges the extra cost of a request that is compared with all others of its disk, whose
    /// blocks have `align` bytes.
    pub fn spend_on_order(&mut self, op: Op, offset: u64, len: u64, align: u32) {
        let is_ordered = matches!(op, Op::Discard | Op::WriteZeroes);
        if is_ordered || op == Op::Write && has_edges(offset, len, align) {
            self.spend(ORDERED_WORK);
        }
    }

    /// A read from the cache copies `len` bytes: what that takes beyond the request itself.
    pub fn spend_on_copy(&mut self, len: u64) {
        let work = (len / COPIED_BYTES).min(Budget::WORK.into()) as u32;
        let work = work.saturating_sub(Budget::REQUEST_WORK).min(self.left);
        self.copies += work;
        self.spend(work);
    }

    /// Work of copies: a disk with a few long reads is a quiet one all the same.
    pub fn copies(&self) -> u32 {
        self.copies
    }

    /// The remaining work.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Is the turn over?
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(Budget::WORK)
    }
}

/// Why a request failed: an errno, positive (`EIO`, `ENOSPC`, `EINVAL`,
/// `EPERM`, `ENOTSUP`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// Requests of a port to its reactor, from within a call of the reactor's.
pub trait PortContext {
    /// The time of this turn of the loop, since the reactor's start.
    fn now(&self) -> Instant;

    /// Limits of a disk as they are now (a resize changes the capacity).
    fn limits(&self, disk: DiskId) -> &Limits;

    /// Hand in a job. `buffers` are where the data goes to or comes from, `len`
    /// bytes together, none for other operations; they stay valid until
    /// [`Port::done`].
    ///
    /// # Errors
    /// No `done` comes for what is refused: `EINVAL` (range), `EPERM` (the disk is
    /// read-only), `EBUSY` (too much outstanding: ports that first ask whether there is room do not
    /// see it).
    fn submit(&mut self, job: &Job, buffers: &[libc::iovec]) -> Result<(), Errno>;

    /// Reads of this disk may come from the host's cache: they are copied by the reactor.
    fn copies_reads(&self, disk: DiskId) -> bool;

    /// May a job of this disk be handed in? If not, leave requests where they are and return from
    /// [`Port::take`]: it is called again when jobs are done.
    fn has_room(&self, disk: DiskId) -> bool;

    /// Call [`Port::take`] when it is this port's turn. Asking twice is asking once.
    fn wait_turn(&mut self, port: PortId);

    /// Push an SQE of this port; its CQE comes back as [`Port::event`] with `tag` (24 bits).
    ///
    /// # Safety
    /// The memory that the entry points to stays valid until its (last) CQE.
    unsafe fn push(&mut self, port: PortId, tag: u32, entry: squeue::Entry);

    /// Send a message as far as the socket takes it without waiting, now and without a CQE. Returns
    /// bytes or a negative errno, and, if it `is_measured`, the processor time that this took.
    ///
    /// # Safety
    /// The memory that the message points to is valid.
    unsafe fn send(
        &mut self,
        socket: RawFd,
        message: *const libc::msghdr,
        is_measured: bool,
    ) -> (i32, Duration);

    /// Cancel the SQE that this port pushed under `tag`; its CQE comes all the same.
    fn cancel(&mut self, port: PortId, tag: u32);

    /// Begin to close this port (step 7 of the module's text). Closing twice is closing once.
    fn close(&mut self, port: PortId);

    /// Ask which parts of `range` of the port's disk hold data (for NBD's block status), for at
    /// most `max` runs. The answer comes by [`Port::runs`], exactly once, as for a job: a thread
    /// of the disk asks the file system, which may take its time.
    fn block_status(&mut self, port: PortId, token: u64, range: Range<u64>, max: usize);
}

/// One stream of requests of one guest. The module's text says who calls what when.
pub trait Port: Send {
    /// The disk that it serves.
    fn disk(&self) -> DiskId;

    /// The reactor has taken the port in under this number.
    fn open(&mut self, id: PortId, context: &mut dyn PortContext);

    /// A CQE of an SQE that this port pushed under `tag`. `more`: a multishot
    /// SQE that stays armed.
    fn event(&mut self, _tag: u32, _result: i32, _more: bool, _context: &mut dyn PortContext) {}

    /// Takes requests in the port's turn. True when there may be more, for which it gets another
    /// turn.
    fn take(&mut self, _budget: &mut Budget, _context: &mut dyn PortContext) -> bool {
        false
    }

    /// A job is done: all of its bytes, or the first error.
    fn done(&mut self, token: u64, result: Result<(), Errno>, context: &mut dyn PortContext);

    /// The answer to [`PortContext::block_status`]: runs of data and of holes, length in bytes and
    /// "is a hole", covering a prefix of the range.
    fn runs(&mut self, _token: u64, _runs: Vec<(u64, bool)>, _context: &mut dyn PortContext) {}

    /// A batch of events and completions is over: notify the peer.
    fn flush(&mut self, _context: &mut dyn PortContext) {}

    /// Something from the front end's own thread.
    fn message(&mut self, _message: Box<dyn Any + Send>, _context: &mut dyn PortContext) {}

    /// Take no more requests, end what is armed.
    fn closing(&mut self, _context: &mut dyn PortContext) {}

    /// Nothing of the port is left in the reactor.
    fn closed(self: Box<Self>) {}

    /// For adaptive polling: look for requests without an event, and ask for a turn. True when
    /// there were some.
    fn poll(&mut self, _context: &mut dyn PortContext) -> bool {
        false
    }
}

//! What a front end's data path is to the reactor: a [`Port`], one stream of
//! one guest's requests (a vring, an NBD connection). The reactor calls the
//! port; the port calls [`Core`] and never the other way round within a call,
//! so no call re-enters.
//!
//! 1. [`Port::open`] once: arm the SQEs that watch the peer ([`Core::push`]).
//! 2. [`Port::event`] for every CQE of an SQE that the port pushed. Requests
//!    that it finds go to [`Core::submit`].
//! 3. [`Port::done`] for every job submitted, exactly once, in any order.
//! 4. [`Port::flush`] after a batch of the two above, once: notify the guest,
//!    send replies. Never called without one of them before.
//! 5. [`Port::message`] for what the front end's thread sent to it.
//! 6. A port ends by [`Core::close`] (itself) or by `Message::ClosePort` (its
//!    front end). The reactor then calls [`Port::closing`], in which the port
//!    stops taking requests and makes its SQEs end ([`Core::cancel`]); when no
//!    job and no SQE of it is left, [`Port::closed`] is the last call.
//!
//! Memory that an SQE or a job points to belongs to the port until that CQE or
//! `done`; this is why a port is not dropped before both have ended.

use crate::reactor::Core;
use seekway_policy::request::Op;
use std::any::Any;

/// A disk that is served: its number among those of its reactor, dense, and
/// the number of its VM in the dispatcher.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskId(pub u16);

/// A port's number in its reactor. Reused after [`Port::closed`]; the
/// generation tells the two apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId {
    /// Index of the slot.
    pub index: u16,
    /// How often the slot has been reused, modulo 2^16.
    pub generation: u16,
}

/// A guest's request for the reactor to schedule and carry out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// On which disk.
    pub disk: DiskId,
    /// Whom to tell.
    pub port: PortId,
    /// The port's own name for it, handed back by [`Port::done`].
    pub token: u64,
    /// What.
    pub op: Op,
    /// Byte offset in the image; says nothing for a flush. A multiple of the
    /// image's block alignment ([`crate::images::Limits::align_bytes`]).
    pub offset: u64,
    /// Bytes; 0 for a flush, else a multiple of the alignment and at least one.
    pub len: u64,
    /// The I/O priority in the request's header, which may name a process inside the guest
    /// ([`seekway_policy::ioprio`]); 0 where the wire has none.
    pub priority: u32,
    /// Durable before it is done (writes, write-zeroes).
    pub fua: bool,
    /// Write-zeroes may deallocate.
    pub unmap: bool,
}

/// Why a request failed: an errno, positive (`EIO`, `ENOSPC`, `EINVAL`,
/// `EPERM`, `ENOTSUP`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// One stream of requests of one guest. See the module's text for who calls
/// what when.
pub trait Port: Send {
    /// The disk that it serves.
    fn disk(&self) -> DiskId;

    /// The reactor has taken the port in under this number.
    fn open(&mut self, id: PortId, core: &mut Core);

    /// A CQE of an SQE that this port pushed under `tag`. `more`: a multishot
    /// SQE that stays armed.
    fn event(&mut self, tag: u32, result: i32, more: bool, core: &mut Core);

    /// A job is done: all of its bytes, or the first error.
    fn done(&mut self, token: u64, result: Result<(), Errno>, core: &mut Core);

    /// A batch of events and completions is over: notify the peer.
    fn flush(&mut self, core: &mut Core);

    /// Something from the front end's own thread.
    fn message(&mut self, message: Box<dyn Any + Send>, core: &mut Core);

    /// Take no more requests, end what is armed.
    fn closing(&mut self, core: &mut Core);

    /// Nothing of the port is left in the reactor.
    fn closed(self: Box<Self>);

    /// For adaptive polling: look for requests without an event. True when
    /// there were some.
    fn poll(&mut self, _core: &mut Core) -> bool {
        false
    }
}

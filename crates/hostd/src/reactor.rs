//! The reactor of one physical device: a thread that owns the ring, the
//! dispatcher, the throttle and all ports.

mod message;

pub use message::{Disk, DiskStatus, Handle, Message, OpKind, OpStatus, Status};

use crate::images::Limits;
use crate::port::{DiskId, Errno, Job, PortId};
use io_uring::squeue;
use seekway_policy::units::Instant;

/// What ports may ask of the reactor.
pub struct Core {}

impl Core {
    /// The time of this turn of the loop.
    pub fn now(&self) -> Instant {
        todo!()
    }
    /// Limits of a disk as they are now (a resize changes the capacity).
    pub fn limits(&self, _disk: DiskId) -> &Limits {
        todo!()
    }
    /// Hand in a job. `buffers` are where the data goes to or comes from, `len`
    /// bytes together, none for other operations; they stay valid until
    /// [`crate::port::Port::done`]. Fails, without a `done` to come, for what the
    /// disk cannot do: `EINVAL` (range, alignment), `EPERM` (read-only),
    /// `ENOTSUP`, `EBUSY` (too much outstanding: only ports without a bound of
    /// their own see it).
    pub fn submit(&mut self, _job: &Job, _buffers: &[libc::iovec]) -> Result<(), Errno> {
        todo!()
    }
    /// Push an SQE of this port; its CQE comes back as [`crate::port::Port::event`] with `tag`
    /// (24 bits). Whatever it points to must live until then.
    ///
    /// # Safety
    /// What the entry points to stays valid until its (last) CQE.
    pub unsafe fn push(&mut self, _port: PortId, _tag: u32, _entry: squeue::Entry) {
        todo!()
    }
    /// Cancel the SQE that this port pushed under `tag`; its CQE comes all the same.
    pub fn cancel(&mut self, _port: PortId, _tag: u32) {
        todo!()
    }
    /// Begin to close this port (see [`crate::port`], step 6).
    pub fn close(&mut self, _port: PortId) {
        todo!()
    }
    /// Runs of data and of holes in `offset..offset+len` (for NBD's block status):
    /// pairs of length and "is a hole", at most `max`, covering a prefix of the range.
    pub fn block_status(
        &self,
        _disk: DiskId,
        _offset: u64,
        _len: u64,
        _max: usize,
    ) -> Vec<(u64, bool)> {
        todo!()
    }
}

/// What a reactor is started with.
pub struct Setup {
    /// For the thread's name and messages.
    pub name: String,
    /// The policy's specification.
    pub policy: String,
    /// Commands at once; `None` for 1 when emulated without command queueing,
    /// else what the device is good for.
    pub depth: Option<u32>,
    /// Longest command that adjacent requests are coalesced into.
    pub coalesce: seekway_policy::units::Sectors,
    /// A request that has waited longer goes whatever the policy says.
    pub hard_limit: seekway_policy::units::Nanos,
    /// Emulate another device.
    pub throttle: Option<crate::throttle::Throttle>,
    /// Size and kind of the real device, for policies.
    pub profile: seekway_policy::scheduler::DeviceProfile,
    /// Poll rings for up to this long before sleeping; `None` never polls.
    pub poll: Option<std::time::Duration>,
    /// Where to write the journal of every input and output.
    pub journal: Option<std::fs::File>,
}

/// Start a reactor's thread.
pub fn spawn(_setup: Setup) -> Result<(Handle, std::thread::JoinHandle<()>), String> {
    todo!()
}

//! How vCPUs are seen to be taken away and given back: behind one trait, the best
//! that this guest has is chosen, and `status` names it.

use seekway_policy::units::Instant;
use seekway_policy::vcpu::{Sign, VcpuId};
use std::io;

/// A sign of a vCPU with the time (CLOCK_MONOTONIC) at which it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// When.
    pub at: Instant,
    /// Of which.
    pub vcpu: VcpuId,
    /// What.
    pub sign: Sign,
}

/// A way of seeing preemption.
pub trait Preemption: Send + Sync {
    /// `heartbeat`, `steal-bpf`, `stat`: as `status` names it.
    fn name(&self) -> &'static str;

    /// Does it tell of edges by itself? Otherwise its monitors beat as the policy asks.
    fn exact(&self) -> bool;

    /// What the thread that is pinned to this vCPU waits on. Called once for each.
    ///
    /// # Errors
    /// Whatever keeps it from watching.
    fn monitor(&self, vcpu: VcpuId) -> io::Result<Box<dyn Monitor>>;
}

/// The part of one vCPU's thread.
pub trait Monitor: Send {
    /// Sleep until something is seen, or until `until`, or until a beat is due at `beat`;
    /// and append what was seen, of whichever vCPU. `None` and `None`: until something is
    /// seen or the waker wakes it. An exact one beats never.
    ///
    /// # Errors
    /// It can see nothing more.
    fn wait(
        &mut self,
        until: Option<Instant>,
        beat: Option<Instant>,
        seen: &mut Vec<Seen>,
    ) -> io::Result<()>;

    /// Wakes [`Monitor::wait`] from another thread.
    fn waker(&self) -> io::Result<Waker>;
}

/// An eventfd that a monitor waits on too.
#[derive(Debug)]
pub struct Waker(std::os::fd::OwnedFd);

//! Detects vCPUs that are taken away and given back: with BPF by edges, which KVM's steal time or
//! the guest's own ticks tell; without BPF by heartbeats.

#[cfg(feature = "bpf")]
pub mod bpf;
pub mod heartbeat;
pub mod thread;

use super::clock;
use crate::kernel::{self, checked};
use seekway_core::units::Instant;
pub use seekway_vcpu::agent::Seen;
use seekway_vcpu::{Urgent, VcpuId};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A detector of preemption.
pub trait Preemption: Send + Sync {
    /// The kernel's alarms, with the edges that wake nobody, if it tells edges by itself. Otherwise
    /// monitors beat as the policy asks, and set timers.
    fn alarms(&self) -> Option<Arc<dyn Alarms>> {
        None
    }

    /// Makes the object on which the thread that is pinned to this vCPU waits. Called once for
    /// each.
    ///
    /// # Errors
    /// Anything that keeps it from watching.
    fn monitor(&self, vcpu: VcpuId) -> io::Result<Box<dyn Monitor>>;
}

/// Reasons to wake a monitor, as programs in the kernel know them. Any thread may change them for
/// any vCPU, at the price of a store in memory.
pub trait Alarms: Send + Sync {
    /// Wakes this vCPU's monitor once this time has come and the vCPU switches tasks or has a
    /// timer; while it is busy, that is within a tick. `None`: not for the time.
    fn set_alarm(&self, vcpu: VcpuId, at: Option<Instant>);

    /// These edges of this vCPU wake the monitor of the vCPU that sees them. All do at first.
    fn set_urgent(&self, vcpu: VcpuId, urgent: Urgent);
}

/// The part of one vCPU's thread.
pub trait Monitor: Send {
    /// Sleeps until news of a vCPU, `until`, or a beat that is due at `beat`; appends the news.
    /// `None` and `None`: until news comes or the waker wakes it. With alarms it never beats.
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

/// Until that time, or until one of these can be read; at once if the time has come.
fn sleep<const N: usize>(fds: [RawFd; N], end: Option<Instant>) -> io::Result<()> {
    let left = end.map(|end| Duration::from_nanos(end.since(clock::now()).get()));
    kernel::wait_for_input(fds, left).map(drop)
}

/// An eventfd that a monitor waits on too. Several wake-ups before it has looked count as one.
#[derive(Debug)]
pub struct Waker(File);

impl Waker {
    /// A new one.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new() -> io::Result<Waker> {
        // SAFETY: eventfd takes no pointers, and the descriptor it gives is ours.
        unsafe {
            let fd = checked(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?;
            Ok(Waker(File::from_raw_fd(fd)))
        }
    }

    /// Another handle on the same.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn try_clone(&self) -> io::Result<Waker> {
        Ok(Waker(self.0.try_clone()?))
    }

    /// Wakes the waiting thread, now or when it waits next.
    pub fn wake(&self) {
        // It fails only when the counter is full: then the waiting thread wakes anyway.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// Takes the pending wake-ups; true if there were any.
    pub fn take(&self) -> bool {
        (&self.0).read(&mut [0; 8]).is_ok_and(|n| n == 8)
    }

    /// To be polled for input.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_are_kept_and_taken_together() {
        let waker = Waker::new().unwrap();
        assert!(!waker.take());
        waker.wake();
        waker.try_clone().unwrap().wake();
        assert!(waker.take());
        assert!(!waker.take());
    }
}

//! Each task's time spent waiting for I/O: counted by BPF programs, or read from `/proc`.

#[cfg(feature = "bpf")]
pub mod bpf;
mod estimate;
pub mod proc;
mod search;
mod thread;

use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{LastIo, VcpuId};
use std::io;

/// A thread's activity after the last look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadLoad {
    pub tid: i32,
    pub pid: i32,
    /// Where it ran last.
    pub vcpu: VcpuId,
    /// Time for which it waited for I/O, block to wake-up.
    pub waited: Nanos,
    /// Time for which it ran; zero if that is not known.
    pub ran: Nanos,
    /// I/Os of this thread that ended since the last look.
    pub ios: u32,
    /// Time that these took together.
    pub io_time: Nanos,
    /// The last I/O that ended, in this window or before; `None` if that is not known.
    pub last: Option<LastIo>,
}

impl ThreadLoad {
    /// Adds the thread's load of the following window.
    pub fn add(&mut self, later: &ThreadLoad) {
        *self = ThreadLoad {
            waited: self.waited + later.waited,
            ran: self.ran + later.ran,
            ios: self.ios.saturating_add(later.ios),
            io_time: self.io_time + later.io_time,
            ..later.clone()
        };
    }
}

/// A detector of waits for I/O.
pub trait Loads: Send {
    /// `loads` become the threads that did I/O since the last call, in ascending order of
    /// `tid`: none of the kernel's, none of this process. `now` is CLOCK_MONOTONIC. Bounded
    /// in number and time, however many threads there are.
    ///
    /// # Errors
    /// It can see nothing more.
    fn window(&mut self, now: Instant, loads: &mut Vec<ThreadLoad>) -> io::Result<()>;

    /// Called with true when windows are not needed for a while, and with false before the next
    /// one, which is empty. May take long. By default nothing costs meanwhile.
    ///
    /// # Errors
    /// It can see nothing more.
    fn rest(&mut self, _rests: bool) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub mod tests;

//! `seekway-guest migrate`: keeps I/O-bound tasks on vCPUs that run. `seekway_vcpu`
//! decides; here are the detectors, the threads, and the changes of masks.
//!
//! ```text
//!  preemption (a monitor thread on each vCPU) ─▶ coordinator: policy::vcpu ─▶ workers ─▶ affinity
//!  loads (a reader of tasks' waits) ───────────────┘        └─▶ status
//! ```
//!
//! One monitor is pinned to each vCPU: a thread sees that its vCPU was away because it could
//! not run. A thread that holds the coordinator's lock may lose its vCPU, and keeps the lock until
//! that is back. So no thread waits for the lock: a thread that does not get it leaves its news
//! for the next turn.

mod agent;
mod ask;
#[cfg(feature = "bpf")]
pub mod bpf;
pub mod clock;
mod coordinator;
mod detectors;
mod inheritance;
pub mod loads;
mod mask_history;
mod monitors;
pub mod preemption;
mod probe;
mod records;
mod restore;
mod selection;
mod shared;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod wakeups;
mod workers;

pub use agent::migrate;
pub use ask::status;
pub use probe::probe;
pub use restore::put_back;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for a lock. A thread that panicked with it has said so, and left nothing half done.
fn waited_for<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds since the kernel started (CLOCK_BOOTTIME), as the start times of threads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct BootTime(pub u64);

impl BootTime {
    /// Reads CLOCK_BOOTTIME, which also counts while the guest is suspended.
    pub fn now() -> BootTime {
        BootTime(clock::read(libc::CLOCK_BOOTTIME))
    }
}

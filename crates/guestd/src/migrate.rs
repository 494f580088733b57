//! `seekway-guest migrate`: keeps I/O-bound tasks on vCPUs that run. The decisions
//! are those of `seekway_policy::vcpu`; here is what sees and what does.
//!
//! ```text
//!  preemption (a monitor thread on each vCPU) ─▶ brain: policy::vcpu ─▶ workers ─▶ affinity
//!  loads (a reader of tasks' waits) ───────────────┘        └─▶ status
//! ```
//!
//! Threads are pinned one to each vCPU, because what runs nowhere else can neither see nor
//! do anything while its vCPU is away. Whoever holds the brain's lock may lose its vCPU
//! with it: nobody waits for that lock, and who does not get it leaves what it saw to the next.

mod agent;
mod ask;
mod book;
#[cfg(feature = "bpf")]
pub mod bpf;
mod brain;
pub mod clock;
#[cfg(test)]
mod costs;
mod given;
mod lineage;
pub mod loads;
mod monitors;
pub mod preemption;
mod probe;
mod records;
mod restore;
mod selection;
mod shared;
mod status;
mod wakeups;
pub mod ways;
mod workers;

pub use agent::migrate;
pub use ask::status;
pub use probe::probe;
pub use restore::put_back;

/// Nanoseconds since the kernel started (CLOCK_BOOTTIME), as the start times of threads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct BootTime(pub u64);

impl BootTime {
    /// Now.
    pub fn now() -> BootTime {
        BootTime(clock::read(libc::CLOCK_BOOTTIME))
    }
}

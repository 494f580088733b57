//! Work of the host cache and its prefetcher in a run.

use seekway_core::prefetcher::Stream;
use seekway_core::request::ProcessTag;
use seekway_core::units::Nanos;
use seekway_stack::cache::Usage;

#[derive(Clone, PartialEq, Debug)]
pub struct HostResult {
    pub prefetch: String,
    /// Size of the cache.
    pub cache_bytes: u64,
    /// The device's highest read rate, bytes a second: measured before the run.
    pub bandwidth: u64,
    /// Sectors and counts, summed over the VMs.
    pub usage: Usage,
    /// Time for which the host's thread was busy.
    pub busy: Nanos,
    /// Times that the prefetcher was polled because it had asked to be.
    pub polls: u64,
    /// The prefetcher's own figures.
    pub metrics: Vec<(&'static str, f64)>,
}

impl HostResult {
    /// Subtracts the counts of `before`. The prefetcher's figures stay.
    pub(crate) fn forget(&mut self, before: &HostResult) {
        self.usage = self.usage.since(&before.usage);
        self.busy = self.busy.saturating_sub(before.busy);
        self.polls -= before.polls;
    }
}

#[derive(Clone, PartialEq, Default, Debug)]
pub struct VmHost {
    /// Sectors and counts of all its processes.
    pub usage: Usage,
    /// Of each process, by tag; those of the untagged ones first.
    pub processes: Vec<ProcessUsage>,
    /// Streams that the prefetcher followed when the run ended.
    pub streams: Vec<Stream>,
    /// Bytes in the cache when the run ended.
    pub resident_bytes: u64,
}

impl VmHost {
    /// Subtracts the counts of `before`. Streams and residents are the end's.
    pub(crate) fn forget(&mut self, before: &VmHost) {
        self.usage = self.usage.since(&before.usage);
        for process in &mut self.processes {
            let known = before.processes.iter().find(|b| b.tag == process.tag);
            process.usage = known.map_or(process.usage, |b| process.usage.since(&b.usage));
        }
    }
}

/// Of one process of a VM.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ProcessUsage {
    /// Its tag; `None` for all that is untagged.
    pub tag: Option<ProcessTag>,
    /// Its reads, and the sectors that were cached, missed or prefetched for it.
    pub usage: Usage,
}

//! State of caches, as JSON: of the whole, of each disk and of each process of its guest. The keys
//! stay.

use crate::reactor::{CacheStatus, DiskCache, ProcessCache};
use seekway_stack::cache::Usage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of a sector, the unit in which the cache counts.
const SECTOR: u64 = seekway_core::units::SECTOR_BYTES;

/// The cache of a device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CacheReport {
    /// Its size follows the host's memory.
    #[serde(default)]
    pub auto: bool,
    /// Bytes of data at most.
    pub capacity_bytes: u64,
    /// Bytes of data at most if `ctl cache` makes it as large as it can be while the daemon runs.
    #[serde(default)]
    pub room_bytes: u64,
    /// Bytes of memory that it has.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Bytes of data there, or on their way.
    pub resident_bytes: u64,
    pub prefetcher: String,
    /// Bandwidth of the device's reads at best; absent until it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Reads into the cache under way.
    pub fetching: u64,
    /// Bytes that the device has read, into the cache and past it.
    pub device_read_bytes: u64,
    /// Requests of prefetches that went to the device.
    pub background: u64,
    /// Commands that they were coalesced into.
    pub background_commands: u64,
    /// Bytes that these read.
    #[serde(default)]
    pub background_bytes: u64,
    /// Requests of prefetches taken back before.
    pub withdrawn: u64,
    /// Figures of the prefetcher's own.
    pub prefetcher_metrics: BTreeMap<String, f64>,
}

/// A disk's share of the cache.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiskCacheReport {
    /// Bytes of its data there, or on their way.
    pub resident_bytes: u64,
    /// Use by its guest.
    #[serde(flatten)]
    pub usage: UsageReport,
    /// Streams of its reads that the prefetcher follows.
    pub streams: u32,
    /// Those of them that are prefetched for.
    pub armed: u32,
    /// Use by each process of the guest that is told apart.
    pub processes: Vec<ProcessReport>,
}

/// Use of the cache by a process inside a guest.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessReport {
    /// As the agent in the guest tagged it; absent for all that is not tagged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<u16>,
    #[serde(flatten)]
    pub usage: UsageReport,
    /// Streams of its reads that the prefetcher follows.
    pub streams: u32,
    /// Those of them that are prefetched for.
    pub armed: u32,
    /// The highest aggressiveness S among them; absent without streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_max: Option<f64>,
}

/// Use of a cache, from the attach of the disk on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsageReport {
    /// Reads.
    pub reads: u64,
    /// Bytes that they asked for.
    pub read_bytes: u64,
    /// Of them, found in the cache.
    pub hit_bytes: u64,
    /// Of them, found being prefetched.
    pub late_bytes: u64,
    /// Of them, read from the device for them.
    pub missed_bytes: u64,
    /// Bytes whose prefetch began.
    pub prefetched_bytes: u64,
    /// Of them, read by the guest since.
    pub used_bytes: u64,
    /// Of them, gone from the cache without.
    pub wasted_bytes: u64,
    /// Of them, never fetched: demand wanted the device.
    pub dropped_bytes: u64,
    /// Prefetches that a guest's read took over while they waited.
    pub promoted: u64,
    /// Prefetched and used, of all that was used; 0 to 1.
    pub accuracy: f64,
    /// Prefetched and unused, of all that was used or prefetched; 0 to 1.
    pub cost: f64,
}

/// Metrics by name. JSON knows no infinities: those are left out.
pub(super) fn finite(metrics: &[(&'static str, f64)]) -> BTreeMap<String, f64> {
    let finite = metrics.iter().filter(|(_, value)| value.is_finite());
    finite.map(|(key, value)| ((*key).to_string(), *value)).collect()
}

/// The report on a cache that these disks share.
pub(super) fn cache_report<'a>(
    auto: bool,
    status: &CacheStatus,
    disks: impl Iterator<Item = &'a DiskCache>,
    stats: &seekway_stack::dispatcher::Stats,
) -> CacheReport {
    CacheReport {
        auto,
        capacity_bytes: status.capacity_bytes,
        room_bytes: status.room_bytes,
        memory_bytes: status.memory_bytes,
        resident_bytes: disks.map(|d| d.resident_bytes).sum(),
        prefetcher: status.prefetcher.clone(),
        bandwidth_bytes_per_s: status.bandwidth_bytes_per_s,
        fetching: status.fetching as u64,
        device_read_bytes: status.device_read_bytes,
        background: stats.background,
        background_commands: stats.background_commands,
        background_bytes: stats.background_bytes,
        withdrawn: stats.withdrawn,
        prefetcher_metrics: finite(&status.prefetcher_metrics),
    }
}

/// The report on a disk's part.
pub(super) fn disk_report(disk: &DiskCache) -> DiskCacheReport {
    let (streams, armed) = disk.streams();
    DiskCacheReport {
        resident_bytes: disk.resident_bytes,
        usage: usage(&disk.usage),
        streams,
        armed,
        processes: disk.processes.iter().map(process).collect(),
    }
}

fn process(process: &ProcessCache) -> ProcessReport {
    ProcessReport {
        tag: process.tag.map(|tag| tag.get()),
        usage: usage(&process.usage),
        streams: process.streams,
        armed: process.armed,
        scale_max: process.scale_max.filter(|s| s.is_finite()),
    }
}

fn usage(usage: &Usage) -> UsageReport {
    UsageReport {
        reads: usage.reads,
        read_bytes: usage.read * SECTOR,
        hit_bytes: usage.cached * SECTOR,
        late_bytes: usage.late * SECTOR,
        missed_bytes: usage.missed * SECTOR,
        prefetched_bytes: usage.prefetched * SECTOR,
        used_bytes: usage.used * SECTOR,
        wasted_bytes: usage.wasted * SECTOR,
        dropped_bytes: usage.dropped * SECTOR,
        promoted: usage.promoted,
        accuracy: usage.accuracy(),
        cost: usage.cost(),
    }
}

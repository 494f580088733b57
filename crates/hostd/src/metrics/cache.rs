//! Metrics of caches: of devices and of disks. Those of the processes inside
//! guests are in the status only: their number is guests' to choose.

use super::Value::{Count, Gauge, Whole};
use super::{Metric, Samples, Value, known, metrics, one};
use crate::reactor::{CacheStatus, DiskCache, DiskStatus, Status};
use seekway_core::units::SECTOR_BYTES;
use seekway_stack::cache::Usage;

/// A value of a label, and the part of a disk's use that it stands for.
type Part = (&'static str, fn(&Usage) -> u64);

/// Bytes of reads by how the cache had them: the label `found`, and its part.
const FOUND: [Part; 3] = [("hit", |u| u.cached), ("late", |u| u.late), ("missed", |u| u.missed)];
/// Prefetched bytes by what came of them: the label `fate`, and its part.
const FATES: [Part; 3] =
    [("used", |u| u.used), ("wasted", |u| u.wasted), ("dropped", |u| u.dropped)];

/// A device without a cache has no sample.
pub(super) static DEVICES: &[Metric<Status>] = metrics! {
    /// The prefetcher
    "seekway_cache" => |s| {
        let of = |c: &CacheStatus| (vec![("prefetcher", c.prefetcher.clone())], Value::Info);
        s.cache.iter().map(of).collect()
    };
    /// Data that the cache holds at most
    "seekway_cache_capacity_bytes" => |s| one(s.cache.as_ref().map(|c| Whole(c.capacity_bytes)));
    /// Memory that the cache has
    "seekway_cache_memory_bytes" => |s| one(s.cache.as_ref().map(|c| Whole(c.memory_bytes)));
    /// Bandwidth of the device's reads at best
    "seekway_cache_bandwidth_bytes" => |s| {
        one(s.cache.as_ref().and_then(|c| c.bandwidth_bytes_per_s).map(Whole))
    };
    /// Bytes that the device has read, into the cache and past it
    "seekway_device_read_bytes" => |s| one(s.cache.as_ref().map(|c| Count(c.device_read_bytes)));
    /// Requests of prefetches dispatched
    "seekway_device_background" => |s| one(s.cache.as_ref().map(|_| Count(s.stats.background)));
    /// Bytes that these read
    "seekway_device_background_bytes" => |s| {
        one(s.cache.as_ref().map(|_| Count(s.stats.background_bytes)))
    };
    /// Requests of prefetches taken back before
    "seekway_device_withdrawn" => |s| one(s.cache.as_ref().map(|_| Count(s.stats.withdrawn)));
    /// Figures of the prefetcher's own
    "seekway_prefetcher" => |s| s.cache.iter().flat_map(|c| known(&c.prefetcher_metrics)).collect();
};

/// Of each disk that has a part of a cache.
pub(super) static DISKS: &[Metric<DiskStatus>] = metrics! {
    /// Data in the cache
    "seekway_cache_resident_bytes" => |d| of(d, |c| one(Whole(c.resident_bytes)));
    /// Bytes of reads, by how the cache had them
    "seekway_cache_read_bytes" => |d| of(d, |c| parts("found", &FOUND, &c.usage));
    /// Bytes whose prefetch began
    "seekway_prefetched_bytes" => |d| of(d, |c| one(Count(c.usage.prefetched * SECTOR_BYTES)));
    /// Prefetched bytes, by what came of them
    "seekway_prefetch_fate_bytes" => |d| of(d, |c| parts("fate", &FATES, &c.usage));
    /// Prefetches that a read took over while they waited
    "seekway_prefetch_promoted" => |d| of(d, |c| one(Count(c.usage.promoted)));
    /// Prefetched and used, of all that was used
    "seekway_prefetch_accuracy" => |d| of(d, |c| one(Gauge(c.usage.accuracy())));
    /// Prefetched and unused, of all that was used or prefetched
    "seekway_prefetch_cost" => |d| of(d, |c| one(Gauge(c.usage.cost())));
    /// Streams that the prefetcher follows
    "seekway_prefetch_streams" => |d| of(d, |c| one(Whole(c.streams().0.into())));
    /// Streams that are prefetched for
    "seekway_prefetch_armed" => |d| of(d, |c| one(Whole(c.streams().1.into())));
};

fn of(disk: &DiskStatus, samples: fn(&DiskCache) -> Samples<'static>) -> Samples<'static> {
    disk.cache.as_ref().map(samples).unwrap_or_default()
}

/// Sectors of several parts as bytes, each with its label.
fn parts(label: &'static str, parts: &[Part], usage: &Usage) -> Samples<'static> {
    let of = |(name, part): &Part| {
        (vec![(label, (*name).to_string())], Count(part(usage) * SECTOR_BYTES))
    };
    parts.iter().map(of).collect()
}

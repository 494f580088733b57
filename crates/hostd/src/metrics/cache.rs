//! Metrics of caches: of devices and of disks. Those of the processes inside
//! guests are in the status only: their number is guests' to choose.

use super::Value::{Count, Gauge, Whole};
use super::{Samples, Scrape, Value, known, one};
use crate::reactor::{CacheStatus, DiskCache, Status};
use prometheus_client::encoding::DescriptorEncoder;
use seekway_policy::cache::Usage;
use seekway_policy::units::SECTOR_BYTES;
use std::fmt;

/// A value of a label, and the part of a disk's use that it stands for.
type Part = (&'static str, fn(&Usage) -> u64);

/// Bytes of reads by how the cache had them: the label `found`, and its part.
const FOUND: [Part; 3] = [("hit", |u| u.cached), ("late", |u| u.late), ("missed", |u| u.missed)];
/// Prefetched bytes by what came of them: the label `fate`, and its part.
const FATES: [Part; 3] =
    [("used", |u| u.used), ("wasted", |u| u.wasted), ("dropped", |u| u.dropped)];

impl Scrape {
    /// Those that there are: a device without a cache has no sample.
    pub(super) fn caches(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.device_caches(e)?;
        self.disk_caches(e)
    }

    fn device_caches(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let whole = |s: &Status, of: fn(&CacheStatus) -> Option<u64>| {
            one(s.cache.as_ref().and_then(of).map(Whole))
        };
        let count = |s: &Status, of: u64| one(s.cache.as_ref().map(|_| Count(of)));
        self.by_device(e, "seekway_cache", "The prefetcher", |s| {
            let of = |prefetcher: &String| (vec![("prefetcher", prefetcher.clone())], Value::Info);
            s.cache.iter().map(|c| of(&c.prefetcher)).collect()
        })?;
        let help = "Data that the cache holds at most";
        let of = |s: &Status| whole(s, |c| Some(c.capacity_bytes));
        self.by_device(e, "seekway_cache_capacity_bytes", help, of)?;
        let help = "Memory that the cache has";
        let of = |s: &Status| whole(s, |c| Some(c.memory_bytes));
        self.by_device(e, "seekway_cache_memory_bytes", help, of)?;
        let help = "What the device reads a second at best";
        let of = |s: &Status| whole(s, |c| c.bandwidth_bytes_per_s);
        self.by_device(e, "seekway_cache_bandwidth_bytes", help, of)?;
        let help = "Bytes that the device has read, into the cache and past it";
        let of = |s: &Status| one(s.cache.as_ref().map(|c| Count(c.device_read_bytes)));
        self.by_device(e, "seekway_device_read_bytes", help, of)?;
        let help = "Requests of prefetches dispatched";
        self.by_device(e, "seekway_device_background", help, |s| count(s, s.stats.background))?;
        let help = "Bytes that these read";
        let of = |s: &Status| count(s, s.stats.background_bytes);
        self.by_device(e, "seekway_device_background_bytes", help, of)?;
        let help = "Requests of prefetches taken back before";
        self.by_device(e, "seekway_device_withdrawn", help, |s| count(s, s.stats.withdrawn))?;
        self.by_device(e, "seekway_prefetcher", "What the prefetcher alone knows", |s| {
            s.cache.iter().flat_map(|c| known(&c.prefetcher_metrics)).collect()
        })
    }

    fn disk_caches(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Data in the cache";
        self.by_cache(e, "seekway_cache_resident_bytes", help, |c| one(Whole(c.resident_bytes)))?;
        let help = "Bytes of reads, by how the cache had them";
        self.by_cache(e, "seekway_cache_read_bytes", help, |c| parts("found", &FOUND, &c.usage))?;
        let help = "Bytes whose prefetch began";
        let of = |c: &DiskCache| one(Count(c.usage.prefetched * SECTOR_BYTES));
        self.by_cache(e, "seekway_prefetched_bytes", help, of)?;
        let help = "Prefetched bytes, by what came of them";
        self.by_cache(e, "seekway_prefetch_fate_bytes", help, |c| parts("fate", &FATES, &c.usage))?;
        let help = "Prefetches that a read took over while they waited";
        self.by_cache(e, "seekway_prefetch_promoted", help, |c| one(Count(c.usage.promoted)))?;
        let help = "Prefetched and used, of all that was used";
        self.by_cache(e, "seekway_prefetch_accuracy", help, |c| one(Gauge(c.usage.accuracy())))?;
        let help = "Prefetched and unused, of all that was used or prefetched";
        self.by_cache(e, "seekway_prefetch_cost", help, |c| one(Gauge(c.usage.cost())))?;
        let help = "Streams that the prefetcher follows";
        self.by_cache(e, "seekway_prefetch_streams", help, |c| one(Whole(c.streams().0.into())))?;
        let help = "Streams that are prefetched for";
        self.by_cache(e, "seekway_prefetch_armed", help, |c| one(Whole(c.streams().1.into())))
    }

    /// A metric of each disk that has a part of a cache.
    fn by_cache(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        samples: impl Fn(&DiskCache) -> Samples<'static>,
    ) -> fmt::Result {
        self.by_disk(encoder, name, help, |disk| disk.cache.iter().flat_map(&samples).collect())
    }
}

/// Sectors of several parts as bytes, each with its label.
fn parts(label: &'static str, parts: &[Part], usage: &Usage) -> Samples<'static> {
    let of = |(name, part): &Part| {
        (vec![(label, (*name).to_string())], Count(part(usage) * SECTOR_BYTES))
    };
    parts.iter().map(of).collect()
}

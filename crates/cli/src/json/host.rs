//! The keys of a run with a host cache; absent from one without.

use seekway_core::prefetcher::Stream as Followed;
use seekway_core::units::Sectors;
use seekway_sim::RunResult;
use seekway_sim::metrics::VmHost;
use seekway_stack::cache::Usage as Counts;
use serde::Serialize;
use std::collections::BTreeMap;

/// Use of the cache and of the prefetcher.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Usage {
    /// Guests' reads.
    pub reads: u64,
    /// Of what they asked for, in bytes: found in the cache.
    pub hit_share: f64,
    /// Of the same: found being prefetched.
    pub late_share: f64,
    /// Prefetched and used, of all that was used (the VIO paper's accuracy).
    pub accuracy: f64,
    /// Prefetched and unused, of all that was used or prefetched (its cost).
    pub cost: f64,
    pub prefetched_mib: f64,
    /// Prefetched, and gone from the cache unused.
    pub wasted_mib: f64,
    /// Prefetches that demand pushed out before they reached the device.
    pub dropped_mib: f64,
    /// Prefetches that a guest's read took over while they waited.
    pub promoted: u64,
}

/// The host cache of a run.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Host {
    pub cache_mib: f64,
    /// Throughput of the device at best, measured before the run.
    pub device_mib_s: f64,
    #[serde(flatten)]
    pub usage: Usage,
    /// Commands of the background class.
    pub background_commands: u64,
    /// Time for which the host's thread was busy.
    pub host_busy_s: f64,
    /// Times that the prefetcher woke of its own accord.
    pub polls: u64,
    pub prefetch_metrics: BTreeMap<&'static str, f64>,
}

/// Use of the cache by a VM.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VmCache {
    #[serde(flatten)]
    pub usage: Usage,
    /// Of it in the cache when the run ended.
    pub resident_mib: f64,
    pub processes: Vec<Process>,
    /// As the run ended.
    pub streams: Vec<Stream>,
}

/// Use of the cache by a process of a VM.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Process {
    /// `null` for all that is untagged.
    pub tag: Option<u16>,
    #[serde(flatten)]
    pub usage: Usage,
}

/// A stream of reads as the prefetcher saw it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stream {
    pub tag: Option<u16>,
    pub armed: bool,
    /// Share of its blocks that followed its pattern.
    pub linear: f64,
    /// Aggressiveness S.
    pub scale: f64,
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Usage {
    pub fn new(u: &Counts) -> Usage {
        let share = |part: u64| part as f64 / u.read.max(1) as f64;
        let sectors = |n: u64| mib(Sectors::new(n).bytes());
        Usage {
            reads: u.reads,
            hit_share: share(u.cached),
            late_share: share(u.late),
            accuracy: u.accuracy(),
            cost: u.cost(),
            prefetched_mib: sectors(u.prefetched),
            wasted_mib: sectors(u.wasted),
            dropped_mib: sectors(u.dropped),
            promoted: u.promoted,
        }
    }
}

impl Host {
    pub fn new(result: &RunResult) -> Option<Host> {
        let host = result.host.as_ref()?;
        Some(Host {
            cache_mib: mib(host.cache_bytes),
            device_mib_s: mib(host.bandwidth),
            usage: Usage::new(&host.usage),
            background_commands: result.stats.background_commands,
            host_busy_s: host.busy.as_secs_f64(),
            polls: host.polls,
            prefetch_metrics: host.metrics.iter().copied().collect(),
        })
    }
}

impl VmCache {
    pub fn new(host: &VmHost) -> VmCache {
        let stream = |s: &Followed| Stream {
            tag: s.tag.map(|t| t.get()),
            armed: s.armed,
            linear: s.linear,
            scale: s.scale,
        };
        let process = |p: &seekway_sim::metrics::ProcessUsage| Process {
            tag: p.tag.map(|t| t.get()),
            usage: Usage::new(&p.usage),
        };
        VmCache {
            usage: Usage::new(&host.usage),
            resident_mib: mib(host.resident_bytes),
            processes: host.processes.iter().map(process).collect(),
            streams: host.streams.iter().map(stream).collect(),
        }
    }
}

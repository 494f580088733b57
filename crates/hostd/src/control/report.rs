//! State of the whole daemon, as JSON. The keys stay.

use super::counts::{Counts, class_of_ns};
use crate::config::DiskConfig;
use crate::host::{FailedDisk, Host, Pending};
use crate::reactor::{
    CacheStatus, DiskCache, DiskStatus, INTERVAL, OpKind, OpStatus, ProcessCache, Status,
};
use crate::sandbox::{self, Measures, Restriction};
use seekway_core::units::{Instant, Nanos};
use seekway_stack::cache::Usage;
use seekway_stack::dispatcher::Withheld;
use seekway_stack::stack::limit::DiskLimits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostReport {
    pub version: String,
    pub process: u32,
    /// Seconds since it was started.
    pub uptime_s: f64,
    /// Where it can be reached: kind and address.
    pub sockets: Vec<(String, String)>,
    /// Its confinement.
    #[serde(default)]
    pub sandbox: SandboxReport,
    /// Groups of disks: name and limits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, String>,
    /// One for each device.
    pub devices: Vec<DeviceReport>,
    /// Devices that do not answer: their reactors wait for disks that may hang.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<String>,
    /// Disks that are being attached, detached or resized.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<PendingReport>,
    /// Disks of the configuration that are not served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedReport>,
}

/// A disk that is being attached, detached or resized.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PendingReport {
    pub disk: String,
    /// `attach`, `detach` or `resize`.
    pub change: String,
    /// Absent while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Seconds since it was asked for.
    pub time_s: f64,
}

/// A disk of the configuration whose image could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FailedReport {
    pub name: String,
    pub path: String,
    #[serde(default)]
    pub read_only: bool,
    /// The disk was to come from another daemon.
    #[serde(default)]
    pub incoming: bool,
    /// Why, when it was last tried.
    pub error: String,
    /// The daemon tries it again by itself.
    #[serde(default)]
    pub retried: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceReport {
    pub name: String,
    /// Seconds that it has been served for: when this was so.
    pub time_s: f64,
    pub policy: String,
    /// Commands that it takes at once.
    pub depth: u32,
    /// Commands on it.
    pub in_flight: u32,
    /// Requests that have arrived and not completed.
    pub outstanding: u64,
    /// Requests dispatched.
    pub requests: u64,
    /// Commands that they were coalesced into.
    pub commands: u64,
    /// Requests dispatched against the policy because of the hard limit.
    pub forced: u64,
    /// Time withheld, in milliseconds, by cause; causes with none are left out.
    pub held_ms: BTreeMap<String, f64>,
    /// Waits begun.
    pub waits_tried: u64,
    /// Waits that paid.
    pub waits_paid: u64,
    /// Reads and writes that the device has done.
    pub served: ServedReport,
    /// Fairness in the last whole interval.
    pub fairness: FairnessReport,
    /// Commands by the 64th of the device where they began: its number and how many.
    #[serde(default)]
    pub regions: Counts,
    /// Figures of the policy's own.
    pub policy_metrics: BTreeMap<String, f64>,
    /// When another device is emulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulated: Option<EmulationReport>,
    /// The cache, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheReport>,
    /// Where the journal is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<String>,
    pub disks: Vec<DiskReport>,
}

/// Commands of reads and writes that are done, since the start.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ServedReport {
    pub commands: u64,
    /// Their time on the device, together: each from the later of its dispatch and
    /// the completion before it.
    pub service_ms: f64,
    /// Their time on the device, together, each from its own dispatch.
    pub service_from_dispatch_ms: f64,
}

/// Fairness among a device's disks in the last whole interval; docs/serve.md says
/// which disks count.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FairnessReport {
    pub interval_s: f64,
    /// Disks that had a request outstanding for half of it.
    pub busy_disks: usize,
    /// Jain's index of what they got of their shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jain: Option<f64>,
    /// Device time of the worst disk over its max-min share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_min_share: Option<f64>,
    /// VMCD's φ for equal demands, of the bandwidths in MiB/s of the disks that would have taken
    /// more than their shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phi_mib_s: Option<f64>,
}

/// The emulation of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EmulationReport {
    pub profile: String,
    /// The factor on all times now.
    pub k: f64,
    /// Commands done.
    pub commands: u64,
    /// Commands whose real completion came after the model's.
    pub late: u64,
    /// By how much, together.
    pub late_by_ms: f64,
    /// Delay that timers and the daemon's other work added to the model's times, together.
    pub overslept_ms: f64,
    /// Mean service time from the later of dispatch and previous completion, as
    /// guests saw it; absent while there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_mean_ms: Option<f64>,
    /// Mean service time in the model's time, without k.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_service_mean_ms: Option<f64>,
    /// Seconds that have passed in the model's time, k times slower than the real.
    pub model_time_s: f64,
    /// Service times of the commands done, together, in the model's time: each from
    /// the later of its dispatch and the completion before it.
    pub model_service_ms: f64,
    /// Service times in the model's time, each from its own dispatch.
    pub model_service_from_dispatch_ms: f64,
    /// Figures of the model's own.
    pub model_metrics: BTreeMap<String, f64>,
    /// Changes of k, the latest last: seconds since the start, k, why.
    pub changes: Vec<(f64, f64, String)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiskReport {
    pub name: String,
    pub path: String,
    /// Where it can be reached: kind and address.
    pub sockets: Vec<(String, String)>,
    pub weight: u32,
    pub capacity_bytes: u64,
    /// Logical block size that guests see; 0 from an older daemon.
    #[serde(default)]
    pub block_bytes: u32,
    /// The serial number that its guest sees; empty from an older daemon.
    #[serde(default)]
    pub serial: String,
    /// Writes are refused.
    pub read_only: bool,
    /// I/O goes past the host's page cache (O_DIRECT).
    #[serde(default)]
    pub direct: bool,
    /// Another daemon has the image: the guest has migrated there, or is to come from there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// Warnings about the image for the operator, one sentence each; seldom any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Vrings and connections that are open.
    pub ports: u32,
    /// Requests that have arrived and not completed.
    pub outstanding: u32,
    /// Seconds until it takes requests again: `ctl freeze`. Absent while it takes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_s: Option<f64>,
    /// Its rate limits and its group, as `ctl limit` takes them; `none` without.
    #[serde(default = "none")]
    pub limits: String,
    /// Requests of those outstanding that wait for its limits or its group's now.
    #[serde(default)]
    pub limited: u64,
    /// Time in which some did.
    #[serde(default)]
    pub limited_ms: f64,
    /// Time in which reads or writes waited for their turn at the device.
    #[serde(default)]
    pub queued_ms: f64,
    /// Received fraction of its share of the device in the last whole interval: 1 is all of it, 0
    /// is a disk that starves. Absent where it asked for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Device time withheld while it was served last, in milliseconds, by cause.
    pub held_ms: BTreeMap<String, f64>,
    /// Device time of its commands, flushes and discards included.
    pub device_time_ms: f64,
    /// Figures that the policy has for this disk.
    pub policy_metrics: BTreeMap<String, f64>,
    /// Its use of the device's cache; absent where there is none, or not for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<DiskCacheReport>,
    /// By operation: read, write, flush, discard.
    pub ops: BTreeMap<String, OpReport>,
    /// Number of reads and writes by response time: `[c, n]` are `n` that took from 2^(c/4) to
    /// 2^((c+1)/4) µs.
    #[serde(default)]
    pub responses: Counts,
}

fn none() -> String {
    DiskLimits::default().to_string()
}

/// Work done by one operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OpReport {
    /// Requests done.
    pub requests: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// From arrival to completion; absent while there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

/// A distribution of times, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Latency {
    /// Arithmetic mean.
    pub mean_ms: f64,
    /// Half are below.
    pub p50_ms: f64,
    /// 99 % are below.
    pub p99_ms: f64,
    pub max_ms: f64,
}

pub fn report(host: &Host) -> HostReport {
    let (devices, silent) = host.ask_statuses();
    let auto = host.is_cache_auto();
    HostReport {
        version: env!("CARGO_PKG_VERSION").into(),
        process: std::process::id(),
        uptime_s: host.started.elapsed().as_secs_f64(),
        sockets: owned(host.addresses(None)),
        sandbox: sandbox_report(),
        groups: host.groups().into_iter().map(|(n, l)| (n.to_string(), l.to_string())).collect(),
        devices: devices
            .iter()
            .map(|(device, status)| DeviceReport {
                journal: device.journal.as_ref().map(|p| p.display().to_string()),
                disks: disk_reports(host, status),
                ..device_report(&device.name, status, auto)
            })
            .collect(),
        silent,
        pending: host.pending().into_iter().map(pending_report).collect(),
        failed: host.failed().into_iter().map(failed_report).collect(),
    }
}

fn pending_report(pending: Pending) -> PendingReport {
    PendingReport {
        disk: pending.disk,
        change: pending.change.name().into(),
        device: pending.device.map(|device| device.name.clone()),
        time_s: pending.since.elapsed().as_secs_f64(),
    }
}

fn failed_report(failed: FailedDisk) -> FailedReport {
    let FailedDisk { config, error, is_retried: retried, .. } = failed;
    // Whoever asks may have another working directory.
    let path = std::path::absolute(&config.path).unwrap_or(config.path);
    let path = path.display().to_string();
    let DiskConfig { name, read_only, incoming, .. } = config;
    FailedReport { name, path, read_only, incoming, error, retried }
}

fn owned(pairs: Vec<(&'static str, String)>) -> Vec<(String, String)> {
    pairs.into_iter().map(|(kind, address)| (kind.to_string(), address)).collect()
}

fn device_report(name: &str, status: &Status, auto_cache: bool) -> DeviceReport {
    let mean = |sum: Nanos, n: u64| (n > 0).then(|| sum.as_millis_f64() / n as f64);
    let emulated = status.throttle.as_ref().map(|t| EmulationReport {
        profile: t.profile.clone(),
        k: t.k,
        commands: t.commands,
        late: t.late,
        late_by_ms: t.late_by.as_millis_f64(),
        overslept_ms: t.overslept.as_millis_f64(),
        service_mean_ms: mean(t.service, t.commands),
        model_service_mean_ms: mean(t.model_service, t.commands),
        model_time_s: status.model_now.map_or(0.0, Instant::as_secs_f64),
        model_service_ms: t.model_service.as_millis_f64(),
        model_service_from_dispatch_ms: t.model_service_from_dispatch.as_millis_f64(),
        model_metrics: finite(&t.model_metrics),
        changes: t
            .changes
            .iter()
            .map(|(at, k, why)| (at.as_secs_f64(), *k, (*why).into()))
            .collect(),
    });
    let fair = status.fairness;
    DeviceReport {
        name: name.to_string(),
        time_s: status.now.as_secs_f64(),
        policy: status.policy.clone(),
        depth: status.depth,
        in_flight: status.in_flight,
        outstanding: status.outstanding as u64,
        requests: status.stats.requests,
        commands: status.stats.commands,
        forced: status.stats.forced,
        held_ms: held_ms(&status.holds.held),
        waits_tried: status.holds.tried,
        waits_paid: status.holds.paid,
        served: ServedReport {
            commands: status.served.commands,
            service_ms: status.served.service.as_millis_f64(),
            service_from_dispatch_ms: status.served.service_from_dispatch.as_millis_f64(),
        },
        fairness: FairnessReport {
            interval_s: INTERVAL.as_secs_f64(),
            busy_disks: fair.busy_disks,
            jain: fair.jain,
            max_min_share: fair.max_min_share,
            phi_mib_s: fair.phi_mib_s,
        },
        regions: (0..).zip(status.regions).filter(|(_, count)| *count > 0).collect(),
        policy_metrics: finite(&status.policy_metrics),
        emulated,
        cache: status.cache.as_ref().map(|cache| {
            let disks = status.disks.iter().filter_map(|d| d.cache.as_ref());
            cache_report(auto_cache, cache, disks, &status.stats)
        }),
        journal: None,
        disks: Vec::new(),
    }
}

fn held_ms(held: &Withheld) -> BTreeMap<String, f64> {
    let some = held.iter().filter(|(_, cause)| cause.time > Nanos::ZERO);
    some.map(|(why, cause)| (why.to_string(), cause.time.as_millis_f64())).collect()
}

fn disk_reports(host: &Host, status: &Status) -> Vec<DiskReport> {
    status.disks.iter().filter_map(|disk| disk_report(host, disk, status.now)).collect()
}

/// `None` for a disk that has gone since its reactor was asked.
fn disk_report(host: &Host, status: &DiskStatus, now: Instant) -> Option<DiskReport> {
    let disk = host.disk(&status.name).ok()?;
    let op = |kind: OpKind| (kind.name().to_string(), op_report(&status.ops[kind as usize]));
    Some(DiskReport {
        name: status.name.clone(),
        path: disk.config.path.display().to_string(),
        sockets: owned(host.addresses(Some(&disk))),
        weight: status.weight,
        capacity_bytes: status.capacity_bytes,
        block_bytes: disk.limits().logical_block_bytes,
        serial: disk.config.serial_number(),
        read_only: disk.limits().read_only,
        direct: disk.is_direct,
        elsewhere: disk.is_elsewhere(),
        warnings: disk.warnings.all(),
        ports: status.ports,
        outstanding: status.outstanding,
        frozen_s: status.frozen_until.map(|until| until.max(now).since(now).as_secs_f64()),
        limits: status.limits.to_string(),
        limited: status.limited as u64,
        limited_ms: status.limited_time.as_millis_f64(),
        queued_ms: status.queued_time.as_millis_f64(),
        share: status.share.filter(|share| share.is_finite()),
        held_ms: held_ms(&status.held),
        device_time_ms: status.device_time.as_millis_f64(),
        policy_metrics: finite(&status.policy_metrics),
        cache: status.cache.as_ref().map(disk_cache_report),
        ops: OpKind::ALL.into_iter().map(op).collect(),
        responses: sums(recorded(status).map(|(ns, count)| (class_of_ns(ns), count))),
    })
}

/// Response times of a disk's reads and writes: nanoseconds, and the number of requests.
fn recorded(disk: &DiskStatus) -> impl Iterator<Item = (u64, u64)> {
    let of = |kind: OpKind| disk.ops[kind as usize].latency_ns.iter_recorded();
    let steps = [OpKind::Read, OpKind::Write].into_iter().flat_map(of);
    steps.map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
}

/// Adds up the counts of each key.
fn sums<K: Ord>(counted: impl Iterator<Item = (K, u64)>) -> Vec<(K, u64)> {
    let mut sums = BTreeMap::new();
    counted.for_each(|(key, count)| *sums.entry(key).or_insert(0) += count);
    sums.into_iter().collect()
}

/// Response times from the start on: the difference of two such lists is the distribution of the
/// time between them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ResponsesReport {
    /// One for each device.
    pub devices: Vec<DeviceResponses>,
}

/// Times from arrival to completion of reads and writes of a device's disks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceResponses {
    pub name: String,
    /// A time in nanoseconds, within one per cent, and how many requests of the
    /// disks that it has now took that, by time.
    pub counts: Vec<(u64, u64)>,
}

/// Response times of all devices.
pub fn responses(host: &Host) -> ResponsesReport {
    let of = |status: &Status| sums(status.disks.iter().flat_map(recorded));
    let statuses = host.statuses();
    let device =
        statuses.iter().map(|(d, s)| DeviceResponses { name: d.name.clone(), counts: of(s) });
    ResponsesReport { devices: device.collect() }
}

fn op_report(op: &OpStatus) -> OpReport {
    let ms = |ns: u64| ns as f64 / 1e6;
    let latency = (!op.latency_ns.is_empty()).then(|| Latency {
        mean_ms: op.latency_ns.mean() / 1e6,
        p50_ms: ms(op.latency_ns.value_at_quantile(0.5)),
        p99_ms: ms(op.latency_ns.value_at_quantile(0.99)),
        max_ms: ms(op.latency_ns.max()),
    });
    OpReport { requests: op.requests, bytes: op.bytes, errors: op.errors, latency }
}

// State of caches, as JSON: of the whole, of each disk and of each process of its guest. The keys
// stay.

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
fn finite(metrics: &[(&'static str, f64)]) -> BTreeMap<String, f64> {
    let finite = metrics.iter().filter(|(_, value)| value.is_finite());
    finite.map(|(key, value)| ((*key).to_string(), *value)).collect()
}

/// The report on a cache that these disks share.
fn cache_report<'a>(
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
fn disk_cache_report(disk: &DiskCache) -> DiskCacheReport {
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

// The daemon's confinement, as JSON.

/// The daemon's confinement.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SandboxReport {
    /// `on` or `off`.
    pub mode: String,
    /// The kernel's version of landlock; absent when it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landlock_abi: Option<u32>,
    /// Do the rings of the reactors take only what these need?
    #[serde(default)]
    pub io_uring_restricted: bool,
    /// By kind: `control`, `reactor`, `front_end`, `helper`, `rings`; of those of which there were
    /// threads.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub threads: BTreeMap<String, ThreadsReport>,
    /// Problems of the confinement, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Do core dumps leave out the memory of guests, of caches, and of NBD's buffers? In every mode.
    #[serde(default)]
    pub dumps_without_guests: bool,
}

/// Confinement of the threads of a kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ThreadsReport {
    pub no_new_privs: bool,
    /// `full`, `partial` (an older kernel), or `none`.
    pub landlock: String,
    /// Do their system calls go through a filter?
    pub seccomp: bool,
    /// Those that are left, by name; absent when they could not be dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
}

fn sandbox_report() -> SandboxReport {
    let status = sandbox::status();
    let problems = status.problems();
    let sandbox::Status { is_on, landlock_abi, threads, rings } = status;
    let threads = threads.into_iter().map(|(kind, taken)| (kind.name().into(), of_threads(taken)));
    SandboxReport {
        mode: if is_on { "on" } else { "off" }.into(),
        landlock_abi,
        io_uring_restricted: matches!(rings, Some(Ok(()))),
        threads: threads.collect(),
        problems,
        dumps_without_guests: sandbox::dumps_are_clean(),
    }
}

fn of_threads(taken: Measures) -> ThreadsReport {
    ThreadsReport {
        no_new_privs: taken.no_new_privs.is_ok(),
        landlock: match taken.landlock {
            Ok(Restriction::Full) => "full",
            Ok(Restriction::Partial) => "partial",
            Ok(Restriction::Absent) | Err(_) => "none",
        }
        .into(),
        seccomp: taken.seccomp.is_ok(),
        capabilities: taken.capabilities.ok(),
    }
}

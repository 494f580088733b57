//! State of the whole daemon, as JSON. The keys stay.

use super::counts::{Counts, class_of_ns};
use super::figures::{
    Figures, Metric, causes, count, gauge, gauge_if, metric, named, seconds, times,
};
use crate::host::{Device, FailedDisk, Host, Pending, ServedDisk};
use crate::reactor::{
    CacheStatus, DiskCache, DiskStatus, Fairness, INTERVAL, Message, OpKind, OpStatus,
    ProcessCache, Served, SlowRequest, Status,
};
use crate::sandbox::{self, Kind, Measures, Restriction};
use crate::throttle;
use hdrhistogram::Histogram;
use seekway_core::units::{Instant, Nanos};
use seekway_stack::cache::Usage;
use seekway_stack::dispatcher::Withheld;
use seekway_stack::stack::limit::DiskLimits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

report! {
    HostReport(host: &Host, statuses: &[(Arc<Device>, Status)], silent: Vec<String>) {
        version: String = env!("CARGO_PKG_VERSION").into();
        process: u32 = std::process::id();
        /// Seconds since it was started.
        uptime_s: f64 = host.started.elapsed().as_secs_f64();
        /// Where it can be reached: kind and address.
        sockets: Vec<(String, String)> = owned(host.addresses(None));
        /// Its confinement.
        [default] sandbox: SandboxReport = sandbox_report();
        /// Groups of disks: name and limits.
        [default, skip_serializing_if = "BTreeMap::is_empty"] groups: BTreeMap<String, String> =
            host.groups().into_iter().map(|(n, l)| (n.to_string(), l.to_string())).collect();
        /// One for each device.
        devices: Vec<DeviceReport> =
            statuses.iter().map(|(d, s)| DeviceReport::of(host, d, s)).collect();
        /// Devices that do not answer: their reactors wait for disks that may hang.
        [default, skip_serializing_if = "Vec::is_empty"] silent: Vec<String> = silent;
        /// Disks that are being attached, detached or resized.
        [default, skip_serializing_if = "Vec::is_empty"]
        pending: Vec<PendingReport> = host.pending().iter().map(PendingReport::of).collect();
        /// Disks of the configuration that are not served.
        [default, skip_serializing_if = "Vec::is_empty"]
        failed: Vec<FailedReport> = host.failed().iter().map(FailedReport::of).collect();
    }
}

report! {
    /// A disk that is being attached, detached or resized.
    PendingReport(pending: &Pending) {
        disk: String = pending.disk.clone();
        /// `attach`, `detach` or `resize`.
        change: String = pending.change.name().into();
        /// Absent while it is not known.
        [default, skip_serializing_if = "Option::is_none"]
        device: Option<String> = pending.device.as_ref().map(|device| device.name.clone());
        /// Seconds since it was asked for.
        time_s: f64 = pending.since.elapsed().as_secs_f64();
    }
}

report! {
    /// A disk of the configuration whose image could not be opened.
    FailedReport(failed: &FailedDisk) {
        name: String = failed.config.name.clone();
        path: String = absolute(&failed.config.path);
        [default] read_only: bool = failed.config.read_only;
        /// The disk was to come from another daemon.
        [default] incoming: bool = failed.config.incoming;
        /// Why, when it was last tried.
        error: String = failed.error.clone();
        /// The daemon tries it again by itself.
        [default] retried: bool = failed.is_retried;
    }
}

report! {
    DeviceReport(host: &Host, device: &Device, status: &Status) {
        name: String = device.name.clone();
        /// Seconds that it has been served for: when this was so.
        time_s: f64 = status.now.as_secs_f64();
        policy: String = status.policy.clone();
        /// Commands that the device takes at once.
        depth: u32 = status.depth => gauge "seekway_device_depth";
        /// Commands on the device.
        in_flight: u32 = status.in_flight => gauge "seekway_device_in_flight";
        /// Requests that have arrived and not completed.
        outstanding: u64 = status.outstanding as u64;
        /// Requests dispatched.
        requests: u64 = status.stats.requests => count "seekway_device_requests";
        /// Commands that these requests were coalesced into.
        commands: u64 = status.stats.commands => count "seekway_device_commands";
        /// Requests dispatched against the policy because of the hard limit.
        forced: u64 = status.stats.forced => count "seekway_device_forced";
        /// Device time withheld by the policy, by cause; in JSON causes with none are left out.
        held_ms: BTreeMap<String, f64> = held_ms(&status.holds.held)
            => causes "seekway_device_held_seconds";
        /// Times that the policy withheld work.
        waits_tried: u64 = status.holds.tried => count "seekway_device_waits";
        /// Times that withholding work paid.
        waits_paid: u64 = status.holds.paid => count "seekway_device_waits_paid";
        /// Reads and writes that the device has done.
        served: ServedReport = ServedReport::of(&status.served);
        /// Fairness in the last whole interval.
        fairness: FairnessReport = FairnessReport::of(&status.fairness);
        /// Commands by the 64th of the device where they began: its number and how many.
        [default]
        regions: Counts = (0..).zip(status.regions).filter(|(_, count)| *count > 0).collect();
        /// Figures of the policy's own.
        policy_metrics: BTreeMap<String, f64> = finite(&status.policy_metrics)
            => named "seekway_policy";
        /// When another device is emulated.
        [skip_serializing_if = "Option::is_none"] emulated: Option<EmulationReport> =
            status.throttle.as_ref().map(|t| EmulationReport::of(t, status.model_now));
        /// The cache, when there is one.
        [default, skip_serializing_if = "Option::is_none"] cache: Option<CacheReport> =
            status.cache.as_ref().map(|cache| CacheReport::of(cache, status, host.is_cache_auto()));
        /// Where the journal is written.
        [skip_serializing_if = "Option::is_none"]
        journal: Option<String> = device.journal.as_ref().map(|p| p.display().to_string());
        disks: Vec<DiskReport> = disk_reports(host, status);
    }
}

report! {
    /// Commands of reads and writes that are done, since the start.
    #[derive(Copy)]
    ServedReport(served: &Served) {
        commands: u64 = served.commands;
        /// Their time on the device, together: each from the later of its dispatch and
        /// the completion before it.
        service_ms: f64 = served.service.as_millis_f64();
        /// Their time on the device, together, each from its own dispatch.
        service_from_dispatch_ms: f64 = served.service_from_dispatch.as_millis_f64();
    }
}

report! {
    /// Fairness among a device's disks in the last whole interval; docs/prometheus.md says
    /// which disks count.
    #[derive(Copy)]
    FairnessReport(fair: &Fairness) {
        interval_s: f64 = INTERVAL.as_secs_f64();
        /// Disks that had a request outstanding for half of the last whole interval.
        busy_disks: u64 = fair.busy_disks as u64 => gauge "seekway_fairness_busy_disks";
        /// Jain's index of what busy disks got of their shares.
        [skip_serializing_if = "Option::is_none"]
        jain: Option<f64> = fair.jain => gauge_if "seekway_fairness_jain";
        /// Device time of the worst disk over its max-min share.
        [skip_serializing_if = "Option::is_none"]
        max_min_share: Option<f64> = fair.max_min_share => gauge_if "seekway_fairness_max_min";
        /// VMCD's φ for equal demands, of the bandwidths in MiB/s of the disks that would have
        /// taken more than their shares.
        [skip_serializing_if = "Option::is_none"]
        phi_mib_s: Option<f64> = fair.phi_mib_s => gauge_if "seekway_fairness_phi_mib_s";
    }
}

report! {
    /// The emulation of a device.
    EmulationReport(t: &throttle::Report, model_now: Option<Instant>) {
        profile: String = t.profile.clone();
        /// Factor on all times of the emulated device.
        k: f64 = t.k => gauge "seekway_emulation_k";
        /// Commands done on the emulated device.
        commands: u64 = t.commands => count "seekway_emulation_commands";
        /// Commands that the real device did later than the model.
        late: u64 = t.late => count "seekway_emulation_late";
        /// By how much, together.
        late_by_ms: f64 = t.late_by.as_millis_f64();
        /// Delay that timers and the daemon's other work added to the model's times, together.
        overslept_ms: f64 = t.overslept.as_millis_f64();
        /// Mean service time from the later of dispatch and previous completion, as
        /// guests saw it; absent while there is none.
        [skip_serializing_if = "Option::is_none"]
        service_mean_ms: Option<f64> = mean_ms(t.service, t.commands);
        /// Mean service time in the model's time, without k.
        [skip_serializing_if = "Option::is_none"]
        model_service_mean_ms: Option<f64> = mean_ms(t.model_service, t.commands);
        /// Seconds that have passed in the model's time, k times slower than the real.
        model_time_s: f64 = model_now.map_or(0.0, Instant::as_secs_f64);
        /// Service times of the commands done, together, in the model's time: each from
        /// the later of its dispatch and the completion before it.
        model_service_ms: f64 = t.model_service.as_millis_f64();
        /// Service times in the model's time, each from its own dispatch.
        model_service_from_dispatch_ms: f64 = t.model_service_from_dispatch.as_millis_f64();
        /// Figures of the model's own.
        model_metrics: BTreeMap<String, f64> = finite(&t.model_metrics);
        /// Changes of k, the latest last: seconds since the start, k, why.
        changes: Vec<(f64, f64, String)> =
            t.changes.iter().map(|(at, k, why)| (at.as_secs_f64(), *k, (*why).into())).collect();
    }
}

report! {
    DiskReport(host: &Host, disk: &Arc<ServedDisk>, status: &DiskStatus, now: Instant) {
        name: String = status.name.clone();
        path: String = disk.config.path.display().to_string();
        /// Where it can be reached: kind and address.
        sockets: Vec<(String, String)> = owned(host.addresses(Some(disk)));
        /// Share, relative to the others'.
        weight: u32 = status.weight => gauge "seekway_weight";
        /// Size.
        capacity_bytes: u64 = status.capacity_bytes => gauge "seekway_capacity_bytes";
        /// Logical block size that guests see; 0 from an older daemon.
        [default] block_bytes: u32 = disk.limits().logical_block_bytes;
        /// The serial number that its guest sees; empty from an older daemon.
        [default] serial: String = disk.config.serial_number();
        /// Writes are refused.
        read_only: bool = disk.limits().read_only;
        /// I/O goes past the host's page cache (O_DIRECT).
        [default] direct: bool = disk.is_direct;
        /// Another daemon has the image: the guest has migrated there, or is to come from there.
        [default, skip_serializing_if = "std::ops::Not::not"] elsewhere: bool = disk.is_elsewhere();
        /// Warnings about the image for the operator, one sentence each; seldom any.
        [default, skip_serializing_if = "Vec::is_empty"]
        warnings: Vec<String> = disk.warnings.all();
        /// Vrings and connections that are open.
        ports: u32 = status.ports => gauge "seekway_ports";
        /// Requests that have arrived and not completed.
        outstanding: u32 = status.outstanding => gauge "seekway_outstanding_requests";
        /// Seconds until it takes requests again: `ctl freeze`. Absent while it takes them.
        [default, skip_serializing_if = "Option::is_none"] frozen_s: Option<f64> =
            status.frozen_until.map(|until| until.max(now).since(now).as_secs_f64());
        /// Its rate limits and its group, as `ctl limit` takes them; `none` without.
        [default = "none"] limits: String = status.limits.to_string();
        /// Requests of those outstanding that wait for the disk's rate limits or its group's.
        [default] limited: u64 = status.limited as u64 => gauge "seekway_disk_limited_requests";
        /// Time in which requests of the disk waited for its rate limits or its group's.
        [default] limited_ms: f64 = status.limited_time.as_millis_f64()
            => seconds "seekway_disk_limited_seconds";
        /// Time in which reads or writes of the disk waited for their turn at the device.
        [default] queued_ms: f64 = status.queued_time.as_millis_f64()
            => seconds "seekway_disk_queued_seconds";
        /// Received fraction of its share of the device in the last whole interval: 1 is all of it,
        /// 0 is a disk that starves. Absent where it asked for nothing.
        [default, skip_serializing_if = "Option::is_none"]
        share: Option<f64> = status.share.filter(|share| share.is_finite())
            => gauge_if "seekway_share_ratio";
        /// Device time withheld while the disk was served last, by cause.
        held_ms: BTreeMap<String, f64> = held_ms(&status.held) => causes "seekway_held_seconds";
        /// Device time of the disk's commands, flushes and discards included.
        device_time_ms: f64 = status.device_time.as_millis_f64()
            => seconds "seekway_service_seconds";
        /// Figures that the policy has for this disk.
        policy_metrics: BTreeMap<String, f64> = finite(&status.policy_metrics)
            => named "seekway_policy_disk";
        /// Its use of the device's cache; absent where there is none, or not for it.
        [default, skip_serializing_if = "Option::is_none"]
        cache: Option<DiskCacheReport> = status.cache.as_ref().map(DiskCacheReport::of);
        /// By operation: read, write, flush, discard.
        ops: BTreeMap<String, OpReport> = op_reports(&status.ops);
        /// Number of reads and writes by response time: `[c, n]` are `n` that took from 2^(c/4) to
        /// 2^((c+1)/4) µs.
        [default] responses: Counts = sums(
            READ_AND_WRITE
                .into_iter()
                .flat_map(|kind| recorded(&status.ops[kind as usize]))
                .map(|(ns, count)| (class_of_ns(ns), count)),
        );
    }
}

fn none() -> String {
    DiskLimits::default().to_string()
}

report! {
    /// Work done by one operation.
    OpReport(op: &OpStatus) {
        /// Guests' requests done.
        requests: u64 = op.requests => count "seekway_requests";
        /// Bytes of requests that succeeded.
        bytes: u64 = op.bytes => count "seekway_bytes";
        /// Guests' requests that failed.
        errors: u64 = op.errors => count "seekway_errors";
        /// From arrival to completion; absent while there is none.
        [skip_serializing_if = "Option::is_none"]
        latency: Option<Latency> = (!op.latency_ns.is_empty()).then(|| Latency::of(&op.latency_ns));
        /// Number of requests by response time, as the disk's `responses`.
        [default, skip_serializing_if = "Vec::is_empty"] responses: Counts =
            sums(recorded(op).map(|(ns, count)| (class_of_ns(ns), count)));
        /// Time from a request's arrival to its completion.
        [skip] times: Option<Arc<Histogram<u64>>> = Some(op.latency_ns.clone())
            => times "seekway_request_duration_seconds";
    }
}

report! {
    /// A distribution of times, in milliseconds.
    #[derive(Copy)]
    Latency(times: &Histogram<u64>) {
        /// Arithmetic mean.
        mean_ms: f64 = times.mean() / 1e6;
        /// Half are below.
        p50_ms: f64 = times.value_at_quantile(0.5) as f64 / 1e6;
        /// 99 % are below.
        p99_ms: f64 = times.value_at_quantile(0.99) as f64 / 1e6;
        max_ms: f64 = times.max() as f64 / 1e6;
    }
}

pub fn report(host: &Host) -> HostReport {
    let (statuses, silent) = host.ask_statuses();
    HostReport::of(host, &statuses, silent)
}

/// The path from the root: the reader may have another working directory.
fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.into()).display().to_string()
}

fn owned(pairs: Vec<(&'static str, String)>) -> Vec<(String, String)> {
    pairs.into_iter().map(|(kind, address)| (kind.to_string(), address)).collect()
}

/// Without disks that have gone since the reactor was asked.
fn disk_reports(host: &Host, status: &Status) -> Vec<DiskReport> {
    let of = |d: &DiskStatus| Some(DiskReport::of(host, &host.disk(&d.name).ok()?, d, status.now));
    status.disks.iter().filter_map(of).collect()
}

pub(super) fn op_reports(ops: &[OpStatus]) -> BTreeMap<String, OpReport> {
    let of = |kind: OpKind| (kind.name().into(), OpReport::of(&ops[kind as usize]));
    OpKind::ALL.into_iter().map(of).collect()
}

fn mean_ms(sum: Nanos, count: u64) -> Option<f64> {
    (count > 0).then(|| sum.as_millis_f64() / count as f64)
}

fn held_ms(held: &Withheld) -> BTreeMap<String, f64> {
    let some = held.iter().filter(|(_, cause)| cause.time > Nanos::ZERO);
    some.map(|(why, cause)| (why.to_string(), cause.time.as_millis_f64())).collect()
}

const READ_AND_WRITE: [OpKind; 2] = [OpKind::Read, OpKind::Write];

/// Response times of an operation: nanoseconds, and the number of requests.
fn recorded(op: &OpStatus) -> impl Iterator<Item = (u64, u64)> {
    let steps = op.latency_ns.iter_recorded();
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
    /// Those of `counts` that are reads.
    #[serde(default)]
    pub reads: Vec<(u64, u64)>,
    /// Those of `counts` that are writes.
    #[serde(default)]
    pub writes: Vec<(u64, u64)>,
}

/// Response times of all devices.
pub fn responses(host: &Host) -> ResponsesReport {
    let of = |(device, status): &(Arc<Device>, Status)| {
        let of_op =
            |kind: OpKind| status.disks.iter().flat_map(move |d| recorded(&d.ops[kind as usize]));
        let [reads, writes] = READ_AND_WRITE.map(|kind| sums(of_op(kind)));
        let counts = sums(reads.iter().chain(&writes).copied());
        DeviceResponses { name: device.name.clone(), counts, reads, writes }
    };
    ResponsesReport { devices: host.statuses().iter().map(of).collect() }
}

/// The last slow requests of all devices.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SlowReport {
    /// Oldest first.
    pub requests: Vec<SlowRequestReport>,
}

report! {
    /// A slow request, with where its time went.
    #[derive(Default)]
    SlowRequestReport(from: &Device, now: Instant, request: &SlowRequest, disk_name: String) {
        device: String = from.name.clone();
        disk: String = disk_name;
        /// `read`, `write`, `flush` or `discard`.
        op: String = request.op.name().into();
        /// Where on the disk; 0 for a flush.
        offset_bytes: u64 = request.offset_bytes;
        len_bytes: u64 = request.len_bytes;
        /// Did it succeed?
        ok: bool = request.ok;
        /// Seconds since it was done.
        ago_s: f64 = now.max(request.done).since(request.done).as_secs_f64();
        /// From its arrival until it was done: the sum of those below.
        response_ms: f64 = request.response.as_millis_f64();
        /// Held by rate limits.
        limited_ms: f64 = request.stages.limited.as_millis_f64();
        /// In the policy's queue: until the device got the first of it.
        queued_ms: f64 = request.stages.queued.as_millis_f64();
        /// On the device, until it was done.
        device_ms: f64 = request.stages.device.as_millis_f64();
    }
}

/// The last requests that took at least `over_ms`; of one disk, if it is given.
///
/// # Errors
/// A time that is negative or no number, an unknown disk.
pub(super) fn slow(host: &Host, over_ms: f64, disk: Option<&str>) -> Result<SlowReport, String> {
    if !(0.0..=1e9).contains(&over_ms) {
        return Err(format!("slow: {over_ms} ms: expected 0 to 1e9"));
    }
    if let Some(name) = disk {
        host.disk(name).map_err(|e| e.to_string())?;
    }
    let over = Nanos::new((over_ms * 1e6) as u64);
    let mut requests = Vec::new();
    for (device, status) in host.statuses() {
        let slow = device.handle().ask(|reply| Message::Slow(over, reply)).unwrap_or_default();
        let name = |request: &SlowRequest| {
            let disk = status.disks.iter().find(|disk| disk.id == request.disk);
            disk.map(|disk| disk.name.clone())
        };
        let named = slow.iter().filter_map(|request| Some((request, name(request)?)));
        let wanted = named.filter(|(_, name)| disk.is_none_or(|disk| disk == name));
        let of = |(request, disk)| SlowRequestReport::of(&device, status.now, request, disk);
        requests.extend(wanted.map(of));
    }
    requests.sort_by(|a, b| b.ago_s.total_cmp(&a.ago_s));
    Ok(SlowReport { requests })
}

// State of caches, as JSON: of the whole, of each disk and of each process of its guest. The keys
// stay.

/// Bytes of a sector, the unit in which the cache counts.
const SECTOR: u64 = seekway_core::units::SECTOR_BYTES;

report! {
    /// The cache of a device.
    CacheReport(cache: &CacheStatus, status: &Status, auto: bool) {
        /// Its size follows the host's memory.
        [default] auto: bool = auto;
        /// Bytes of data that the cache holds at most.
        capacity_bytes: u64 = cache.capacity_bytes => gauge "seekway_cache_capacity_bytes";
        /// Bytes of data at most if `ctl cache` makes it as large as it can be while the daemon
        /// runs.
        [default] room_bytes: u64 = cache.room_bytes;
        /// Bytes of memory that the cache has.
        [default] memory_bytes: u64 = cache.memory_bytes => gauge "seekway_cache_memory_bytes";
        /// Bytes of data there, or on their way.
        resident_bytes: u64 =
            status.disks.iter().filter_map(|d| d.cache.as_ref()).map(|d| d.resident_bytes).sum();
        prefetcher: String = cache.prefetcher.clone();
        /// Bandwidth of the device's reads at best; absent until it is known.
        [skip_serializing_if = "Option::is_none"]
        bandwidth_bytes_per_s: Option<u64> = cache.bandwidth_bytes_per_s
            => gauge_if "seekway_cache_bandwidth_bytes";
        /// Reads into the cache under way.
        fetching: u64 = cache.fetching as u64;
        /// Bytes that the device has read, into the cache and past it.
        device_read_bytes: u64 = cache.device_read_bytes => count "seekway_device_read_bytes";
        /// Requests of prefetches dispatched.
        background: u64 = status.stats.background => count "seekway_device_background";
        /// Commands that they were coalesced into.
        background_commands: u64 = status.stats.background_commands;
        /// Bytes that prefetches read.
        [default] background_bytes: u64 = status.stats.background_bytes
            => count "seekway_device_background_bytes";
        /// Requests of prefetches taken back before they were dispatched.
        withdrawn: u64 = status.stats.withdrawn => count "seekway_device_withdrawn";
        /// Figures of the prefetcher's own.
        prefetcher_metrics: BTreeMap<String, f64> = finite(&cache.prefetcher_metrics)
            => named "seekway_prefetcher";
    }
}

report! {
    /// A disk's share of the cache.
    DiskCacheReport(disk: &DiskCache) {
        /// Bytes of the disk's data in the cache, or on their way.
        resident_bytes: u64 = disk.resident_bytes => gauge "seekway_cache_resident_bytes";
        /// Use by its guest.
        [flatten] usage: UsageReport = UsageReport::of(&disk.usage);
        /// Streams of the disk's reads that the prefetcher follows.
        streams: u32 = disk.streams().0 => gauge "seekway_prefetch_streams";
        /// Streams that are prefetched for.
        armed: u32 = disk.streams().1 => gauge "seekway_prefetch_armed";
        /// Use by each process of the guest that is told apart.
        processes: Vec<ProcessReport> = disk.processes.iter().map(ProcessReport::of).collect();
    }
}

report! {
    /// Use of the cache by a process inside a guest.
    ProcessReport(process: &ProcessCache) {
        /// As the agent in the guest tagged it; absent for all that is not tagged.
        [skip_serializing_if = "Option::is_none"]
        tag: Option<u16> = process.tag.map(|tag| tag.get());
        [flatten] usage: UsageReport = UsageReport::of(&process.usage);
        /// Streams of its reads that the prefetcher follows.
        streams: u32 = process.streams;
        /// Those of them that are prefetched for.
        armed: u32 = process.armed;
        /// The highest aggressiveness S among them; absent without streams.
        [skip_serializing_if = "Option::is_none"]
        scale_max: Option<f64> = process.scale_max.filter(|s| s.is_finite());
    }
}

report! {
    /// Use of a cache, from the attach of the disk on.
    #[derive(Copy)]
    UsageReport(usage: &Usage) {
        /// Reads.
        reads: u64 = usage.reads;
        /// Bytes that they asked for.
        read_bytes: u64 = usage.read * SECTOR;
        /// Of them, found in the cache.
        hit_bytes: u64 = usage.cached * SECTOR;
        /// Of them, found being prefetched.
        late_bytes: u64 = usage.late * SECTOR;
        /// Of them, read from the device for them.
        missed_bytes: u64 = usage.missed * SECTOR;
        /// Bytes whose prefetch began.
        prefetched_bytes: u64 = usage.prefetched * SECTOR => count "seekway_prefetched_bytes";
        /// Of them, read by the guest since.
        used_bytes: u64 = usage.used * SECTOR;
        /// Of them, gone from the cache without.
        wasted_bytes: u64 = usage.wasted * SECTOR;
        /// Of them, never fetched: demand wanted the device.
        dropped_bytes: u64 = usage.dropped * SECTOR;
        /// Prefetches that a guest's read took over while they waited.
        promoted: u64 = usage.promoted => count "seekway_prefetch_promoted";
        /// Prefetched and used, of all that was used; 0 to 1.
        accuracy: f64 = usage.accuracy() => gauge "seekway_prefetch_accuracy";
        /// Prefetched and unused, of all that was used or prefetched; 0 to 1.
        cost: f64 = usage.cost() => gauge "seekway_prefetch_cost";
    }
}

/// Metrics by name. JSON knows no infinities: those are left out.
fn finite(metrics: &[(&'static str, f64)]) -> BTreeMap<String, f64> {
    let finite = metrics.iter().filter(|(_, value)| value.is_finite());
    finite.map(|(key, value)| ((*key).to_string(), *value)).collect()
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

report! {
    /// Confinement of the threads of a kind.
    #[derive(Eq)]
    ThreadsReport(taken: Measures) {
        no_new_privs: bool = taken.no_new_privs.is_ok();
        /// `full`, `partial` (an older kernel), or `none`.
        landlock: String = match taken.landlock {
            Ok(Restriction::Full) => "full",
            Ok(Restriction::Partial) => "partial",
            Ok(Restriction::Absent) | Err(_) => "none",
        }
        .into();
        /// Do their system calls go through a filter?
        seccomp: bool = taken.seccomp.is_ok();
        /// Those that are left, by name; absent when they could not be dropped.
        [default, skip_serializing_if = "Option::is_none"]
        capabilities: Option<Vec<String>> = taken.capabilities.ok();
    }
}

fn sandbox_report() -> SandboxReport {
    let status = sandbox::status();
    let problems = status.problems();
    let sandbox::Status { is_on, landlock_abi, threads, rings } = status;
    let of = |(kind, taken): (Kind, Measures)| (kind.name().into(), ThreadsReport::of(taken));
    SandboxReport {
        mode: if is_on { "on" } else { "off" }.into(),
        landlock_abi,
        io_uring_restricted: matches!(rings, Some(Ok(()))),
        threads: threads.into_iter().map(of).collect(),
        problems,
        dumps_without_guests: sandbox::dumps_are_clean(),
    }
}

//! Metrics for Prometheus, in the text form of OpenMetrics 1.0. There is no
//! state here: each scrape asks the reactors how they stand, and this writes that down.

use crate::reactor::{CacheStatus, DiskCache, DiskStatus, OpKind, OpStatus, Status};
use Value::{Count, Gauge, Seconds, Whole};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use seekway_core::units::{Nanos, SECTOR_BYTES};
use seekway_policy::schedulers;
use seekway_stack::cache::Usage;
use seekway_stack::dispatcher::{Cause, Withheld};
use std::fmt;

/// Upper ends of the latency histogram's buckets, in seconds. They never
/// change: what Prometheus has stored stays comparable.
pub const BUCKETS_S: [f64; 17] = [
    50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3,
    1.0, 2.5, 5.0, 10.0,
];

/// All metrics of devices that answer, by name; of those that do not, and of disks of the
/// configuration that are not served, there is their name only.
pub fn render(devices: Vec<(String, Status)>, silent: Vec<String>, failed: Vec<String>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape { devices, silent, failed }));
    let mut text = String::new();
    match text::encode(&mut text, &registry) {
        Ok(()) => text,
        Err(fmt::Error) => unreachable!("writing to a String does not fail"),
    }
}

#[derive(Debug)]
struct Scrape {
    devices: Vec<(String, Status)>,
    /// Devices that do not answer: all that can be said of them is this.
    silent: Vec<String>,
    /// Disks of the configuration that are not served.
    failed: Vec<String>,
}

type Labels = Vec<(&'static str, String)>;
/// Values of a metric, each with its labels.
type Samples<'a> = Vec<(Labels, Value<'a>)>;

enum Value<'a> {
    Count(u64),
    Seconds(Nanos),
    Gauge(f64),
    Whole(u64),
    Info,
    Times(&'a OpStatus),
}

impl Value<'_> {
    fn metric_type(&self) -> MetricType {
        match self {
            Value::Count(_) | Value::Seconds(_) => MetricType::Counter,
            Value::Gauge(_) | Value::Whole(_) => MetricType::Gauge,
            Value::Info => MetricType::Info,
            Value::Times(_) => MetricType::Histogram,
        }
    }

    fn encode(&self, encoder: &mut MetricEncoder<'_>, labels: &Labels) -> fmt::Result {
        if let Value::Info = self {
            return encoder.encode_info(labels);
        }
        let mut encoder = encoder.encode_family(labels)?;
        match self {
            Value::Count(n) => encoder.encode_counter::<NoLabelSet, _, u64>(n, None),
            Value::Seconds(span) => {
                encoder.encode_counter::<NoLabelSet, _, u64>(&span.as_secs_f64(), None)
            }
            Value::Gauge(value) => encoder.encode_gauge(value),
            Value::Whole(n) => encoder.encode_gauge(&i64::try_from(*n).unwrap_or(i64::MAX)),
            Value::Times(op) => {
                let (buckets, sum_s) = buckets(op);
                encoder.encode_histogram::<NoLabelSet>(sum_s, op.latency_ns.len(), &buckets, None)
            }
            Value::Info => Ok(()),
        }
    }
}

/// Latencies in [`BUCKETS_S`], and their sum. The histogram rounds within its
/// precision; a value counts where that puts it.
fn buckets(op: &OpStatus) -> (Vec<(f64, u64)>, f64) {
    let mut buckets: Vec<(f64, u64)> = BUCKETS_S.iter().map(|upper| (*upper, 0)).collect();
    buckets.push((f64::INFINITY, 0));
    let mut sum_s = 0.0;
    for step in op.latency_ns.iter_recorded() {
        let value_s = step.value_iterated_to() as f64 / 1e9;
        let count = step.count_since_last_iteration();
        let at = buckets.partition_point(|(upper, _)| *upper < value_s);
        buckets[at].1 += count;
        sum_s += value_s * count as f64;
    }
    (buckets, sum_s)
}

impl Scrape {
    fn of_devices<'a>(
        &'a self,
        e: &mut DescriptorEncoder<'_>,
        metrics: &[Metric<Status>],
    ) -> fmt::Result {
        for Metric { name, help, samples } in metrics {
            let of = |(device, status): (String, &'a Status)| {
                labelled(vec![("device", device)], samples(status))
            };
            family(e, name, help, self.named().flat_map(of).collect())?;
        }
        Ok(())
    }

    fn of_disks<'a>(
        &'a self,
        e: &mut DescriptorEncoder<'_>,
        metrics: &[Metric<DiskStatus>],
    ) -> fmt::Result {
        for Metric { name, help, samples } in metrics {
            let of = |(device, status): (String, &'a Status)| {
                let policy = status.policy.split(':').next().unwrap_or_default().to_string();
                let own = move |disk: &DiskStatus| {
                    let [device, disk] = [device.clone(), disk.name.clone()];
                    vec![("device", device), ("disk", disk), ("policy", policy.clone())]
                };
                status.disks.iter().flat_map(move |disk| labelled(own(disk), samples(disk)))
            };
            family(e, name, help, self.named().flat_map(of).collect())?;
        }
        Ok(())
    }

    fn named(&self) -> impl Iterator<Item = (String, &Status)> {
        self.devices.iter().map(|(name, status)| (name.clone(), status))
    }

    fn failed(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of = |name: &String| (vec![("disk", name.clone())], Whole(1));
        let help = "1 for a disk of the configuration that is not served";
        family(e, "seekway_disk_failed", help, self.failed.iter().map(of).collect())
    }

    fn answers(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of = |name: &String, value| (vec![("device", name.clone())], Whole(value));
        let answer = self.devices.iter().map(|(name, _)| of(name, 1));
        let silent = self.silent.iter().map(|name| of(name, 0));
        let help = "1 for a device that answers, 0 for one whose other metrics are missing";
        family(e, "seekway_device_answers", help, answer.chain(silent).collect())
    }
}

/// A metric of each device or disk, without a suffix such as `_total`.
struct Metric<T: 'static> {
    name: &'static str,
    help: &'static str,
    samples: fn(&T) -> Samples<'_>,
}

/// Metrics, each with its help, name and samples.
macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $name:literal => $samples:expr;)+) => {
        &[$(Metric {
            name: $name,
            help: concat!($($help),+).trim_ascii_start(),
            samples: $samples,
        }),+]
    };
}

static DISKS: &[Metric<DiskStatus>] = metrics! {
    /// Guests' requests done
    "seekway_requests" => |d| by_op(d, |op| Count(op.requests));
    /// Bytes of requests that succeeded
    "seekway_bytes" => |d| by_op(d, |op| Count(op.bytes));
    /// Guests' requests that failed
    "seekway_errors" => |d| by_op(d, |op| Count(op.errors));
    /// Time from a request's arrival to its completion
    "seekway_request_duration_seconds" => |d| by_op(d, Value::Times);
    /// Device time withheld while this disk was served last
    "seekway_held_seconds" => |d| held(&d.held);
    /// Device time of this disk's commands, flushes and discards included
    "seekway_service_seconds" => |d| one(Seconds(d.device_time));
    /// Figures that the policy has for a disk
    "seekway_policy_disk" => |d| known(&d.policy_metrics);
    /// Time in which requests of this disk waited for its rate limits or its group's
    "seekway_disk_limited_seconds" => |d| one(Seconds(d.limited_time));
    /// Time in which reads or writes of this disk waited for their turn at the device
    "seekway_disk_queued_seconds" => |d| one(Seconds(d.queued_time));
    /// Received fraction of this disk's share of the device in the last whole 10 s
    "seekway_share_ratio" => |d| one(d.share.map(Gauge));
    /// Requests that wait for rate limits
    "seekway_disk_limited_requests" => |d| one(Whole(d.limited as u64));
    /// Requests that have arrived and not completed
    "seekway_outstanding_requests" => |d| one(Whole(d.outstanding.into()));
    /// Size
    "seekway_capacity_bytes" => |d| one(Whole(d.capacity_bytes));
    /// Share, relative to the others'
    "seekway_weight" => |d| one(Whole(d.weight.into()));
    /// Time within which 99 of 100 requests of this disk are to be done
    "seekway_latency_target_seconds" => |d| one(d.limits.limits.latency.map(|t| Gauge(t.as_secs_f64())));
    /// Vrings and connections that are open
    "seekway_ports" => |d| one(Whole(d.ports.into()));
};

static DEVICES: &[Metric<Status>] = metrics! {
    /// The policy and what is emulated
    "seekway_device" => |s| {
        let emulated = s.throttle.as_ref().map(|t| t.profile.clone()).unwrap_or_default();
        vec![(vec![("policy", s.policy.clone()), ("emulated", emulated)], Value::Info)]
    };
    /// Commands that the device takes at once
    "seekway_device_depth" => |s| one(Whole(s.depth.into()));
    /// Commands on the device
    "seekway_device_in_flight" => |s| one(Whole(s.in_flight.into()));
    /// Requests dispatched
    "seekway_device_requests" => |s| one(Count(s.stats.requests));
    /// Commands that they were coalesced into
    "seekway_device_commands" => |s| one(Count(s.stats.commands));
    /// Requests dispatched against the policy, for the hard limit
    "seekway_device_forced" => |s| one(Count(s.stats.forced));
    /// Device time withheld by the policy
    "seekway_device_held_seconds" => |s| held(&s.holds.held);
    /// Times that the policy withheld work
    "seekway_device_waits" => |s| one(Count(s.holds.tried));
    /// Times that this paid
    "seekway_device_waits_paid" => |s| one(Count(s.holds.paid));
    /// Figures of the policy's own
    "seekway_policy" => |s| known(&s.policy_metrics);
    /// Disks that had a request outstanding for half of the last whole 10 s
    "seekway_fairness_busy_disks" => |s| one(Whole(s.fairness.busy_disks as u64));
    /// Jain's index of what they got of their shares
    "seekway_fairness_jain" => |s| index(s.fairness.jain);
    /// Device time of the worst disk over its max-min share
    "seekway_fairness_max_min" => |s| index(s.fairness.max_min_share);
    /// VMCD's phi of the bandwidths in MiB/s of disks that would take more than their shares
    "seekway_fairness_phi_mib_s" => |s| index(s.fairness.phi_mib_s);
    /// Factor on all times of the emulated device
    "seekway_emulation_k" => |s| one(s.throttle.as_ref().map(|t| Gauge(t.k)));
    /// Commands done on the emulated device
    "seekway_emulation_commands" => |s| one(s.throttle.as_ref().map(|t| Count(t.commands)));
    /// Commands that the real device did too late
    "seekway_emulation_late" => |s| one(s.throttle.as_ref().map(|t| Count(t.late)));
};

/// A sample for each operation.
fn by_op<'a>(disk: &'a DiskStatus, value: fn(&'a OpStatus) -> Value<'a>) -> Samples<'a> {
    let of =
        |kind: OpKind| (vec![("op", kind.name().to_string())], value(&disk.ops[kind as usize]));
    OpKind::ALL.into_iter().map(of).collect()
}

/// Fairness in the last whole interval; an index that is not defined has no sample.
fn index(value: Option<f64>) -> Samples<'static> {
    one(value.filter(|value| value.is_finite()).map(Gauge))
}

/// A sample without labels of its own, or none.
fn one<'a>(value: impl Into<Option<Value<'a>>>) -> Samples<'a> {
    value.into().map(|value| (Labels::new(), value)).into_iter().collect()
}

/// Returns the samples with `own` before their labels.
fn labelled(own: Labels, mut samples: Samples<'_>) -> Samples<'_> {
    samples.iter_mut().for_each(|(labels, _)| _ = labels.splice(0..0, own.iter().cloned()));
    samples
}

/// A policy's own figures.
fn known(metrics: &[(&'static str, f64)]) -> Samples<'static> {
    let label = |name: &str| vec![("metric", name.to_string())];
    metrics.iter().map(|(name, value)| (label(name), Gauge(*value))).collect()
}

/// Time withheld, by cause, also of causes that have not occurred: a series that
/// begins late has no rate.
fn held(held: &Withheld) -> Samples<'static> {
    let mut all = held.clone();
    schedulers::hold_causes().into_iter().for_each(|cause| all.add(cause, Cause::default()));
    let label = |why: &str| vec![("cause", why.to_string())];
    all.iter().map(|(why, cause)| (label(why), Seconds(cause.time))).collect()
}

/// A metric with all its samples, which have to stand together.
fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: Samples<'_>,
) -> fmt::Result {
    let Some((_, first)) = samples.first() else {
        return Ok(());
    };
    let metric_type = first.metric_type();
    let mut encoder = encoder.encode_descriptor(name, help, None, metric_type)?;
    for (labels, value) in &samples {
        value.encode(&mut encoder, labels)?;
    }
    Ok(())
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.failed(&mut encoder)?;
        self.answers(&mut encoder)?;
        self.of_disks(&mut encoder, DISKS)?;
        self.of_devices(&mut encoder, DEVICES)?;
        self.of_devices(&mut encoder, CACHE_DEVICES)?;
        self.of_disks(&mut encoder, CACHE_DISKS)
    }
}

// Metrics of caches: of devices and of disks. Those of the processes inside
// guests are in the status only: their number is guests' to choose.

/// A value of a label, and the part of a disk's use that it stands for.
type Part = (&'static str, fn(&Usage) -> u64);

/// Bytes of reads by how the cache had them: the label `found`, and its part.
const FOUND: [Part; 3] = [("hit", |u| u.cached), ("late", |u| u.late), ("missed", |u| u.missed)];
/// Prefetched bytes by what came of them: the label `fate`, and its part.
const FATES: [Part; 3] =
    [("used", |u| u.used), ("wasted", |u| u.wasted), ("dropped", |u| u.dropped)];

/// A device without a cache has no sample.
static CACHE_DEVICES: &[Metric<Status>] = metrics! {
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

/// Metrics of each disk that has a part of a cache.
static CACHE_DISKS: &[Metric<DiskStatus>] = metrics! {
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

#[cfg(test)]
mod tests;

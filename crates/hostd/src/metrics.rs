//! Metrics for Prometheus, in the text form of OpenMetrics 1.0. There is no
//! state here: each scrape asks the reactors how they stand and writes that down.

mod cache;

use crate::daemon::{Device, Host};
use crate::reactor::{DiskStatus, OpKind, OpStatus, Status};
use crate::throttle::Report;
use Value::{Count, Gauge, Seconds, Whole};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use seekway_policy::dispatcher::{Cause, Withheld};
use seekway_policy::schedulers;
use seekway_policy::units::Nanos;
use std::fmt;
use std::sync::Arc;

/// What HTTP says of [`render`]'s text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper ends of the latency histogram's buckets, in seconds. They never
/// change: what Prometheus has stored stays comparable.
pub const BUCKETS_S: [f64; 17] = [
    50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3,
    1.0, 2.5, 5.0, 10.0,
];

/// All metrics of a daemon.
pub fn render(host: &Host) -> String {
    let (statuses, silent) = host.ask_statuses();
    let of = |(d, status): (Arc<Device>, Status)| (d.name.clone(), Arc::new(status));
    let devices = statuses.into_iter().map(of).collect();
    let failed = host.failed().into_iter().map(|failed| failed.config.name).collect();
    encode(Scrape { devices, silent, failed })
}

/// All metrics of these devices, by name.
pub fn render_statuses(devices: Vec<(String, Arc<Status>)>) -> String {
    encode(Scrape { devices, silent: Vec::new(), failed: Vec::new() })
}

fn encode(scrape: Scrape) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    match text::encode(&mut text, &registry) {
        Ok(()) => text,
        Err(fmt::Error) => unreachable!("writing to a String does not fail"),
    }
}

#[derive(Debug)]
struct Scrape {
    devices: Vec<(String, Arc<Status>)>,
    /// Devices that do not answer: all that can be said of them is this.
    silent: Vec<String>,
    /// Disks of the configuration that are not served.
    failed: Vec<String>,
}

type Labels = Vec<(&'static str, String)>;
/// What a metric has, each with its labels.
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
    /// A metric with one sample for each device.
    fn by_device<'a>(
        &'a self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        samples: impl Fn(&'a Status) -> Samples<'a>,
    ) -> fmt::Result {
        let of = |(device, status): &'a (String, Arc<Status>)| {
            labelled(vec![("device", device.clone())], samples(status))
        };
        family(encoder, name, help, self.devices.iter().flat_map(of).collect())
    }

    /// A metric of each disk.
    fn by_disk<'a>(
        &'a self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        samples: impl Fn(&'a DiskStatus) -> Samples<'a>,
    ) -> fmt::Result {
        self.by_device(encoder, name, help, |status| {
            let policy = status.policy.split(':').next().unwrap_or_default();
            let of = |disk: &'a DiskStatus| {
                let own = vec![("disk", disk.name.clone()), ("policy", policy.to_string())];
                labelled(own, samples(disk))
            };
            status.disks.iter().flat_map(of).collect()
        })
    }

    /// A metric of each disk and operation.
    fn by_op<'a>(
        &'a self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&'a OpStatus) -> Value<'a>,
    ) -> fmt::Result {
        self.by_disk(encoder, name, help, |disk| {
            let of = |kind: &OpKind| {
                (vec![("op", kind.name().to_string())], value(&disk.ops[*kind as usize]))
            };
            OpKind::ALL.iter().map(of).collect()
        })
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

    fn disks(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.by_op(e, "seekway_requests", "Guests' requests done", |op| Count(op.requests))?;
        let help = "Bytes of requests that succeeded";
        self.by_op(e, "seekway_bytes", help, |op| Count(op.bytes))?;
        let help = "Guests' requests that failed";
        self.by_op(e, "seekway_errors", help, |op| Count(op.errors))?;
        let help = "Time from a request's arrival to its completion";
        self.by_op(e, "seekway_request_duration_seconds", help, Value::Times)?;
        let help = "Device time withheld while this disk was served last";
        self.by_disk(e, "seekway_held_seconds", help, |disk| held(&disk.held))?;
        let help = "Device time of this disk's commands, flushes and discards included";
        self.by_disk(e, "seekway_service_seconds", help, |d| one(Seconds(d.device_time)))?;
        let help = "What the policy alone knows of a disk";
        self.by_disk(e, "seekway_policy_disk", help, |disk| known(&disk.policy_metrics))?;
        let help = "Time in which requests of this disk waited for its rate limits or its group's";
        self.by_disk(e, "seekway_disk_limited_seconds", help, |d| one(Seconds(d.limited_time)))?;
        let help = "Time in which reads or writes of this disk waited for their turn at the device";
        self.by_disk(e, "seekway_disk_queued_seconds", help, |d| one(Seconds(d.queued_time)))?;
        let help = "What this disk got of its share of the device in the last whole 10 s";
        self.by_disk(e, "seekway_share_ratio", help, |d| one(d.share.map(Gauge)))?;
        let help = "Requests that wait for rate limits";
        self.by_disk(e, "seekway_disk_limited_requests", help, |d| one(Whole(d.limited as u64)))?;
        let help = "Requests that have arrived and not completed";
        let of = |d: &DiskStatus| one(Whole(d.outstanding.into()));
        self.by_disk(e, "seekway_outstanding_requests", help, of)?;
        self.by_disk(e, "seekway_capacity_bytes", "Size", |d| one(Whole(d.capacity_bytes)))?;
        let help = "Share, relative to the others'";
        self.by_disk(e, "seekway_weight", help, |d| one(Whole(d.weight.into())))?;
        let help = "Time within which 99 of 100 requests of this disk are to be done";
        let of = |d: &DiskStatus| one(d.limits.limits.latency.map(|t| Gauge(t.as_secs_f64())));
        self.by_disk(e, "seekway_latency_target_seconds", help, of)?;
        let help = "Vrings and connections that are open";
        self.by_disk(e, "seekway_ports", help, |d| one(Whole(d.ports.into())))
    }

    fn devices(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.by_device(e, "seekway_device", "The policy and what is emulated", |s| {
            let emulated = s.throttle.as_ref().map(|t| t.profile.clone()).unwrap_or_default();
            vec![(vec![("policy", s.policy.clone()), ("emulated", emulated)], Value::Info)]
        })?;
        let help = "Commands that the device takes at once";
        self.by_device(e, "seekway_device_depth", help, |s| one(Whole(s.depth.into())))?;
        let help = "Commands on the device";
        self.by_device(e, "seekway_device_in_flight", help, |s| one(Whole(s.in_flight.into())))?;
        let help = "Requests dispatched";
        self.by_device(e, "seekway_device_requests", help, |s| one(Count(s.stats.requests)))?;
        let help = "Commands that they were coalesced into";
        self.by_device(e, "seekway_device_commands", help, |s| one(Count(s.stats.commands)))?;
        let help = "Requests dispatched against the policy, for the hard limit";
        self.by_device(e, "seekway_device_forced", help, |s| one(Count(s.stats.forced)))?;
        let help = "Device time withheld by the policy";
        self.by_device(e, "seekway_device_held_seconds", help, |s| held(&s.holds.held))?;
        let help = "Times that the policy withheld work";
        self.by_device(e, "seekway_device_waits", help, |s| one(Count(s.holds.tried)))?;
        let help = "Times that this paid";
        self.by_device(e, "seekway_device_waits_paid", help, |s| one(Count(s.holds.paid)))?;
        let help = "What the policy alone knows";
        self.by_device(e, "seekway_policy", help, |s| known(&s.policy_metrics))
    }

    /// Over the last whole interval; an index that is not defined has no sample.
    fn fairness(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let index = |value: Option<f64>| one(value.filter(|v| v.is_finite()).map(Gauge));
        let help = "Disks that had a request outstanding for half of the last whole 10 s";
        let busy = |s: &Status| one(Whole(s.fairness.busy_disks as u64));
        self.by_device(e, "seekway_fairness_busy_disks", help, busy)?;
        let help = "Jain's index of what they got of their shares";
        self.by_device(e, "seekway_fairness_jain", help, |s| index(s.fairness.jain))?;
        let help = "Device time of the worst disk over its max-min share";
        self.by_device(e, "seekway_fairness_max_min", help, |s| index(s.fairness.max_min_share))?;
        let help =
            "VMCD's phi of the bandwidths in MiB/s of disks that would take more than their shares";
        self.by_device(e, "seekway_fairness_phi_mib_s", help, |s| index(s.fairness.phi_mib_s))
    }

    fn throttles(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of =
            |s: &Status, value: fn(&Report) -> Value<'static>| one(s.throttle.as_ref().map(value));
        let help = "Factor on all times of the emulated device";
        self.by_device(e, "seekway_emulation_k", help, |s| of(s, |t| Gauge(t.k)))?;
        let help = "Commands done on the emulated device";
        self.by_device(e, "seekway_emulation_commands", help, |s| of(s, |t| Count(t.commands)))?;
        let help = "Commands that the real device did too late";
        self.by_device(e, "seekway_emulation_late", help, |s| of(s, |t| Count(t.late)))
    }
}

/// A sample without labels of its own, or none.
fn one<'a>(value: impl Into<Option<Value<'a>>>) -> Samples<'a> {
    value.into().map(|value| (Labels::new(), value)).into_iter().collect()
}

/// The same samples with `own` before their labels.
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
        self.disks(&mut encoder)?;
        self.devices(&mut encoder)?;
        self.fairness(&mut encoder)?;
        self.throttles(&mut encoder)?;
        self.caches(&mut encoder)
    }
}

#[cfg(test)]
mod tests;

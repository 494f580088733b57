//! Metrics for Prometheus, in the text form of OpenMetrics 1.0: the report in other words.

use super::figures::{Figures, Labels, Metric, Number, Samples, Value, metric};
use super::report::{
    CacheReport, DeviceReport, DiskCacheReport, DiskReport, EmulationReport, FairnessReport,
    HostReport, OpReport, UsageReport, report,
};
use crate::host::Host;
use hdrhistogram::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use seekway_stack::stack::limit::DiskLimits;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Upper ends of the latency histogram's buckets, in seconds. They never
/// change: what Prometheus has stored stays comparable.
const BUCKETS_S: [f64; 17] = [
    50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3,
    1.0, 2.5, 5.0, 10.0,
];

/// The metrics of all devices and disks, as text.
pub(super) fn metrics(host: &Host) -> String {
    render(report(host))
}

/// The metrics, up to a second old: those who scrape share them.
pub(super) fn recent_metrics(host: &Host) -> Arc<String> {
    host.recent_metrics.get(Instant::now(), || metrics(host))
}

fn render(report: HostReport) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(report)));
    let mut text = String::new();
    match text::encode(&mut text, &registry) {
        Ok(()) => text,
        Err(fmt::Error) => unreachable!("writing to a String does not fail"),
    }
}

#[derive(Debug)]
struct Scrape(HostReport);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (e, Scrape(report)) = (&mut encoder, self);
        let gauge = |label, name: &str, value: u64| {
            (vec![(label, name.to_string())], Value::Gauge(Number::Whole(value)))
        };
        let failed = report.failed.iter().map(|failed| gauge("disk", &failed.name, 1)).collect();
        let help = "1 for a disk of the configuration that is not served";
        family(e, "seekway_disk_failed", help, failed)?;
        let answers = report.devices.iter().map(|device| gauge("device", &device.name, 1));
        let silent = report.silent.iter().map(|name| gauge("device", name, 0));
        let help = "1 for a device that answers, 0 for one whose other metrics are missing";
        family(e, "seekway_device_answers", help, answers.chain(silent).collect())?;

        let devices: Rows<'_, DeviceReport> =
            report.devices.iter().map(|d| (vec![("device", d.name.clone())], d)).collect();
        families(e, DEVICES, &devices)?;
        families(e, DeviceReport::METRICS, &devices)?;
        families(e, FairnessReport::METRICS, &of_each(&devices, |d| Some(&d.fairness)))?;
        families(e, EmulationReport::METRICS, &of_each(&devices, |d| d.emulated.as_ref()))?;
        let caches = of_each(&devices, |d| d.cache.as_ref());
        families(e, CACHES, &caches)?;
        families(e, CacheReport::METRICS, &caches)?;

        let disks: Rows<'_, DiskReport> = report.devices.iter().flat_map(of_disks).collect();
        families(e, DISKS, &disks)?;
        families(e, DiskReport::METRICS, &disks)?;
        families(e, OpReport::METRICS, &disks.iter().flat_map(of_ops).collect::<Vec<_>>())?;
        families(e, DiskCacheReport::METRICS, &of_each(&disks, |d| d.cache.as_ref()))?;
        // Of processes inside guests the status has more: their number is guests' to choose.
        let usages = of_each(&disks, |d| d.cache.as_ref().map(|cache| &cache.usage));
        families(e, USAGES, &usages)?;
        families(e, UsageReport::METRICS, &usages)
    }
}

/// Parts of the report, each with its labels.
type Rows<'a, T> = Vec<(Labels, &'a T)>;

fn of_disks(device: &DeviceReport) -> impl Iterator<Item = (Labels, &DiskReport)> {
    let policy = device.policy.split(':').next().unwrap_or_default();
    let labels = move |disk: &str| {
        let labels = [("device", device.name.as_str()), ("disk", disk), ("policy", policy)];
        labels.map(|(label, value)| (label, value.to_string())).to_vec()
    };
    device.disks.iter().map(move |disk| (labels(&disk.name), disk))
}

fn of_ops<'a>((own, disk): &(Labels, &'a DiskReport)) -> Rows<'a, OpReport> {
    let labels = |op: &String| [&own[..], &[("op", op.clone())]].concat();
    disk.ops.iter().map(|(op, of)| (labels(op), of)).collect()
}

fn of_each<'a, T, U>(rows: &Rows<'a, T>, part: fn(&'a T) -> Option<&'a U>) -> Rows<'a, U> {
    rows.iter().filter_map(|(labels, of)| Some((labels.clone(), part(of)?))).collect()
}

// Metrics that are not one key of the report.

const DISKS: &[Option<Metric<DiskReport>>] = &[metric(
    "seekway_latency_target_seconds",
    "Time within which 99 of 100 requests of this disk are to be done",
    |d| {
        let limits = DiskLimits::parse(&d.limits).unwrap_or_default().limits;
        let target = limits.latency.map(|target| Value::Gauge(target.as_secs_f64().into()));
        target.map(|target| (Labels::new(), target)).into_iter().collect()
    },
)];

const DEVICES: &[Option<Metric<DeviceReport>>] =
    &[metric("seekway_device", "The policy and what is emulated", |d| {
        let emulated = d.emulated.as_ref().map(|e| e.profile.clone()).unwrap_or_default();
        vec![(vec![("policy", d.policy.clone()), ("emulated", emulated)], Value::Info)]
    })];

const CACHES: &[Option<Metric<CacheReport>>] = &[metric("seekway_cache", "The prefetcher", |c| {
    vec![(vec![("prefetcher", c.prefetcher.clone())], Value::Info)]
})];

const USAGES: &[Option<Metric<UsageReport>>] = &[
    metric("seekway_cache_read_bytes", "Bytes of reads, by how the cache had them", |u| {
        let found = [("hit", u.hit_bytes), ("late", u.late_bytes), ("missed", u.missed_bytes)];
        counts("found", found)
    }),
    metric("seekway_prefetch_fate_bytes", "Prefetched bytes, by what came of them", |u| {
        let fates =
            [("used", u.used_bytes), ("wasted", u.wasted_bytes), ("dropped", u.dropped_bytes)];
        counts("fate", fates)
    }),
];

fn counts(label: &'static str, parts: [(&str, u64); 3]) -> Samples {
    let of = |(part, count): (&str, u64)| {
        (vec![(label, part.to_string())], Value::Count(Number::Whole(count)))
    };
    parts.map(of).into()
}

// The text.

/// All metrics of these, each with its samples, which have to stand together.
fn families<T>(
    encoder: &mut DescriptorEncoder<'_>,
    metrics: &[Option<Metric<T>>],
    rows: &[(Labels, &T)],
) -> fmt::Result {
    for Metric { name, help, samples } in metrics.iter().flatten() {
        let of = |(own, of): &(Labels, &T)| {
            let labelled =
                |(labels, value): (Labels, Value)| ([&own[..], &labels[..]].concat(), value);
            samples(of).into_iter().map(labelled).collect::<Samples>()
        };
        family(encoder, name, help, rows.iter().flat_map(of).collect())?;
    }
    Ok(())
}

fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: Samples,
) -> fmt::Result {
    let Some((_, first)) = samples.first() else {
        return Ok(());
    };
    let help = help.trim().trim_end_matches('.');
    let mut encoder = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    samples.iter().try_for_each(|(labels, value)| value.encode(&mut encoder, labels))
}

impl Value {
    fn metric_type(&self) -> MetricType {
        match self {
            Value::Count(_) => MetricType::Counter,
            Value::Gauge(_) => MetricType::Gauge,
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
            Value::Count(Number::Whole(n)) => encoder.encode_counter::<NoLabelSet, _, u64>(n, None),
            Value::Count(Number::Real(n)) => encoder.encode_counter::<NoLabelSet, _, u64>(n, None),
            Value::Gauge(Number::Whole(n)) => {
                encoder.encode_gauge(&i64::try_from(*n).unwrap_or(i64::MAX))
            }
            Value::Gauge(Number::Real(n)) => encoder.encode_gauge(n),
            Value::Times(times) => {
                let (buckets, sum_s) = buckets(times);
                encoder.encode_histogram::<NoLabelSet>(sum_s, times.len(), &buckets, None)
            }
            Value::Info => Ok(()),
        }
    }
}

/// Times in [`BUCKETS_S`], and their sum. The histogram rounds within its
/// precision; a value counts where that puts it.
fn buckets(times_ns: &Histogram<u64>) -> (Vec<(f64, u64)>, f64) {
    let mut buckets: Vec<(f64, u64)> = BUCKETS_S.iter().map(|upper| (*upper, 0)).collect();
    buckets.push((f64::INFINITY, 0));
    let mut sum_s = 0.0;
    for step in times_ns.iter_recorded() {
        let value_s = step.value_iterated_to() as f64 / 1e9;
        let count = step.count_since_last_iteration();
        let at = buckets.partition_point(|(upper, _)| *upper < value_s);
        buckets[at].1 += count;
        sum_s += value_s * count as f64;
    }
    (buckets, sum_s)
}

#[cfg(test)]
mod tests;

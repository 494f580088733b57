//! The text is read back by a parser as strict as OpenMetrics 1.0 is, and its
//! figures are compared with those that went in.

use super::*;
use crate::control::report::op_reports;
use crate::reactor::{DiskCache, OpStatus, ProcessCache};
use seekway_stack::cache::Usage;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// A sample's name and labels.
type Key = (String, Vec<(String, String)>);
type Samples = BTreeMap<Key, f64>;

/// Read OpenMetrics text, or panic with the line that breaks its rules.
fn parse(text: &str) -> Samples {
    let body = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
    let mut samples = Samples::new();
    let mut families = BTreeSet::new();
    let mut family: Option<(String, String)> = None;
    let mut helped = None;
    for line in body.lines() {
        assert!(!line.is_empty() && line.trim() == line, "{line:?}");
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').expect(line);
            assert!(!text.is_empty() && families.insert(name.to_string()), "twice: {line}");
            helped = Some(name.to_string());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect(line);
            assert_eq!(helped.as_deref(), Some(name), "{line}");
            assert!(["counter", "gauge", "histogram", "info"].contains(&kind), "{line}");
            family = Some((name.to_string(), kind.to_string()));
        } else {
            let (family, kind) = family.as_ref().expect(line);
            let (name, labels, value) = sample(line);
            let suffix = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{line}"));
            let suffixes: &[&str] = match kind.as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                "info" => &["_info"],
                _ => &["_bucket", "_sum", "_count"],
            };
            assert!(suffixes.contains(&suffix), "{line}");
            assert!(kind == "gauge" || value >= 0.0, "{line}");
            assert!(samples.insert((name, labels), value).is_none(), "twice: {line}");
        }
    }
    check_histograms(&samples);
    samples
}

fn sample(line: &str) -> (String, Vec<(String, String)>, f64) {
    let (name, rest) = line.split_once('{').expect(line);
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    assert!(name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit()));
    let mut labels = Vec::new();
    let mut rest = rest;
    loop {
        let (key, after) = rest.split_once("=\"").expect(line);
        assert!(key.starts_with(first) && key.chars().all(first), "{line}");
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect(line) {
                (at, '"') => break at,
                (_, '\\') => match chars.next().expect(line).1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    other => panic!("\\{other} in {line}"),
                },
                (_, c) => value.push(c),
            }
        };
        assert!(labels.iter().all(|(k, _)| k != key), "{line}");
        labels.push((key.to_string(), value));
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    let value = rest.strip_prefix("} ").expect(line);
    (name.to_string(), labels, value.parse().expect(line))
}

/// Buckets ascend, end with +Inf, and agree with the count.
fn check_histograms(samples: &Samples) {
    let mut series: BTreeMap<Key, Vec<(f64, f64)>> = BTreeMap::new();
    for ((name, labels), value) in samples {
        let Some(family) = name.strip_suffix("_bucket") else { continue };
        let (le, own): (Vec<_>, Vec<_>) = labels.iter().cloned().partition(|(k, _)| k == "le");
        let upper = le[0].1.parse().expect("a number");
        series.entry((family.to_string(), own)).or_default().push((upper, *value));
    }
    assert!(!series.is_empty());
    for ((family, labels), mut buckets) in series {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{buckets:?}");
        let last = buckets.last().expect("some");
        assert_eq!(last.0, f64::INFINITY);
        assert_eq!(samples[&(format!("{family}_count"), labels.clone())], last.1);
        assert!(samples.contains_key(&(format!("{family}_sum"), labels)));
    }
}

fn op(latencies_ns: &[u64]) -> OpStatus {
    let mut latency_ns = Histogram::new(2).expect("in range");
    latencies_ns.iter().for_each(|ns| latency_ns.record(*ns).expect("in range"));
    let requests = latencies_ns.len() as u64;
    OpStatus { requests, bytes: requests * 4096, errors: 1, latency_ns: Arc::new(latency_ns) }
}

fn disk_cache() -> DiskCache {
    let usage = Usage {
        reads: 9,
        read: 100,
        cached: 60,
        late: 10,
        missed: 30,
        prefetched: 80,
        used: 50,
        wasted: 20,
        dropped: 5,
        promoted: 2,
    };
    let process = |streams, armed| ProcessCache { streams, armed, ..ProcessCache::default() };
    DiskCache { resident_bytes: 4096, usage, processes: vec![process(2, 1), process(3, 2)] }
}

fn disk(name: &str) -> DiskReport {
    let disk = json!({
        "name": name, "path": "", "sockets": [], "weight": 4, "capacity_bytes": 1u64 << 50,
        "read_only": false, "ports": 2, "outstanding": 3, "limits": "latency=20ms", "limited": 2,
        "limited_ms": 250.0, "queued_ms": 750.000_001, "share": 1.0, "device_time_ms": 2500.0,
        "held_ms": { "anticipation": 1500.0 }, "policy_metrics": { "vm_credits": 3.0 }, "ops": {},
    });
    let ops = [op(&[49_000, 51_000, 2_000_000, 60_000_000_000]), op(&[]), op(&[]), op(&[])];
    DiskReport {
        ops: op_reports(&ops),
        cache: Some(DiskCacheReport::of(&disk_cache())),
        ..serde_json::from_value(disk).expect("a disk")
    }
}

fn device(name: &str) -> DeviceReport {
    let device = json!({
        "name": name, "time_s": 9.0, "depth": 1, "in_flight": 1, "outstanding": 4, "requests": 10,
        // No policy is called so; labels stand it.
        "policy": "cfq:issuer=\"vm\\\n",
        "commands": 7, "forced": 1, "held_ms": { "anticipation": 1500.0 }, "waits_tried": 5,
        "waits_paid": 3, "policy_metrics": { "credits": 2.5 }, "disks": [],
        "served": { "commands": 0, "service_ms": 0.0, "service_from_dispatch_ms": 0.0 },
        "fairness": { "interval_s": 10.0, "busy_disks": 2, "jain": 1.0, "max_min_share": 1.0,
            "phi_mib_s": 0.0 },
        "emulated": { "profile": "seagate-1tb-7200", "k": 1.25, "commands": 7, "late": 2,
            "late_by_ms": 0.0, "overslept_ms": 0.0, "model_time_s": 0.0, "model_service_ms": 0.0,
            "model_service_from_dispatch_ms": 0.0, "model_metrics": {}, "changes": [] },
        "cache": { "capacity_bytes": 1u64 << 31, "resident_bytes": 0, "fetching": 3,
            "prefetcher": "vio:interval=0.5s", "bandwidth_bytes_per_s": 550_000_000,
            "device_read_bytes": 1 << 20, "background": 0, "background_commands": 0,
            "withdrawn": 0, "prefetcher_metrics": { "streams": 2.0 } },
    });
    let device: DeviceReport = serde_json::from_value(device).expect("a device");
    DeviceReport { disks: vec![disk("web"), disk("db")], ..device }
}

fn host(devices: Vec<DeviceReport>) -> HostReport {
    let host =
        json!({ "version": "1", "process": 7, "uptime_s": 9.5, "sockets": [], "devices": [] });
    HostReport { devices, ..serde_json::from_value(host).expect("a report") }
}

#[test]
fn the_text_is_open_metrics_and_says_what_is() {
    let mut other = DeviceReport { emulated: None, cache: None, disks: vec![], ..device("sdb") };
    (other.fairness.busy_disks, other.fairness.jain) = (0, None);
    let text = render(host(vec![device("sda"), other]));
    let samples = parse(&text);
    let get = |name: &str, labels: &[(&str, &str)]| {
        let is = |(k, v): &(&str, &str), of: &[(String, String)]| {
            of.iter().any(|(key, value)| key == k && value == v)
        };
        let mut found = samples
            .iter()
            .filter(|((n, of), _)| n == name && labels.iter().all(|label| is(label, of)));
        let value = *found.next().unwrap_or_else(|| panic!("no {name} {labels:?} in {text}")).1;
        assert!(found.next().is_none(), "{name} {labels:?} is not one sample");
        value
    };
    let read = [("disk", "web"), ("device", "sda"), ("policy", "cfq"), ("op", "read")];
    assert_eq!(get("seekway_requests_total", &read), 4.0);
    assert_eq!(get("seekway_bytes_total", &read), 16384.0);
    assert_eq!(get("seekway_errors_total", &read), 1.0);
    let bucket =
        |le| get("seekway_request_duration_seconds_bucket", &[&read[..], &[("le", le)]].concat());
    // 49 and 51 us are told apart, and 60 s lies beyond the last bucket.
    assert_eq!([bucket("0.00005"), bucket("0.0001"), bucket("0.0025")], [1.0, 2.0, 3.0]);
    assert_eq!([bucket("10.0"), bucket("+Inf")], [3.0, 4.0]);
    let sum = get("seekway_request_duration_seconds_sum", &read);
    assert!((sum / 60.0021 - 1.0).abs() < 0.01, "{sum}");
    let web = [("disk", "web")];
    assert_eq!(get("seekway_capacity_bytes", &web), (1u64 << 50) as f64);
    assert_eq!(get("seekway_weight", &web), 4.0);
    assert_eq!(get("seekway_ports", &web), 2.0);
    assert_eq!(get("seekway_outstanding_requests", &web), 3.0);
    assert_eq!(get("seekway_latency_target_seconds", &web), 0.02);
    assert_eq!(get("seekway_disk_limited_requests", &web), 2.0);
    assert_eq!(get("seekway_disk_limited_seconds_total", &web), 0.25);
    let cause = ("cause", "anticipation");
    assert_eq!(get("seekway_held_seconds_total", &[web[0], cause]), 1.5);
    let sda = ("device", "sda");
    assert_eq!(get("seekway_device_held_seconds_total", &[sda, cause]), 1.5);
    assert_eq!(get("seekway_device_requests_total", &[sda]), 10.0);
    assert_eq!(get("seekway_device_commands_total", &[sda]), 7.0);
    assert_eq!(get("seekway_device_forced_total", &[sda]), 1.0);
    assert_eq!(get("seekway_device_waits_total", &[sda]), 5.0);
    assert_eq!(get("seekway_device_waits_paid_total", &[sda]), 3.0);
    assert_eq!(get("seekway_policy", &[sda, ("metric", "credits")]), 2.5);
    assert_eq!(get("seekway_device_info", &[sda, ("policy", "cfq:issuer=\"vm\\\n")]), 1.0);
    assert_eq!(get("seekway_emulation_k", &[sda]), 1.25);
    assert_eq!(get("seekway_emulation_late_total", &[sda]), 2.0);
    assert_eq!(get("seekway_service_seconds_total", &web), 2.5);
    assert_eq!(get("seekway_policy_disk", &[web[0], ("metric", "vm_credits")]), 3.0);
    assert_eq!(get("seekway_fairness_busy_disks", &[sda]), 2.0);
    assert_eq!(get("seekway_fairness_jain", &[sda]), 1.0);
    assert_eq!(get("seekway_fairness_max_min", &[sda]), 1.0);
    assert_eq!(get("seekway_share_ratio", &web), 1.0);
    assert_eq!(get("seekway_disk_queued_seconds_total", &web), 0.750_000_001);
    assert_eq!(get("seekway_fairness_phi_mib_s", &[sda]), 0.0);
    assert_eq!(get("seekway_cache_info", &[sda, ("prefetcher", "vio:interval=0.5s")]), 1.0);
    assert_eq!(get("seekway_cache_capacity_bytes", &[sda]), (1u64 << 31) as f64);
    assert_eq!(get("seekway_device_read_bytes_total", &[sda]), (1 << 20) as f64);
    assert_eq!(get("seekway_prefetcher", &[sda, ("metric", "streams")]), 2.0);
    for (name, label, value, sectors) in [
        ("seekway_cache_read_bytes_total", "found", "hit", 60),
        ("seekway_cache_read_bytes_total", "found", "late", 10),
        ("seekway_cache_read_bytes_total", "found", "missed", 30),
        ("seekway_prefetch_fate_bytes_total", "fate", "used", 50),
        ("seekway_prefetch_fate_bytes_total", "fate", "wasted", 20),
        ("seekway_prefetch_fate_bytes_total", "fate", "dropped", 5),
    ] {
        assert_eq!(get(name, &[web[0], (label, value)]), f64::from(sectors * 512), "{value}");
    }
    assert_eq!(get("seekway_prefetched_bytes_total", &web), 40_960.0);
    assert_eq!(get("seekway_prefetch_accuracy", &web), 0.5);
    assert_eq!(get("seekway_prefetch_cost", &web), 25.0 / 125.0);
    assert_eq!(get("seekway_prefetch_streams", &web), 5.0);
    assert_eq!(get("seekway_prefetch_armed", &web), 3.0);
    let sdb = |name: &str| samples.keys().any(|(n, l)| n == name && l[0].1 == "sdb");
    assert!(sdb("seekway_device_depth") && !sdb("seekway_emulation_k"));
    assert!(!sdb("seekway_cache_capacity_bytes") && !sdb("seekway_device_background_total"));
    assert!(sdb("seekway_fairness_busy_disks") && !sdb("seekway_fairness_jain"));
}

#[test]
fn a_silent_device_is_named_and_has_no_other_metric() {
    let silent = vec!["sdb".into()];
    let samples = parse(&render(HostReport { silent, ..host(vec![device("sda")]) }));
    let of_sdb = |((_, labels), _): &(&Key, &f64)| labels[0].1 == "sdb";
    let silent: Vec<_> = samples.iter().filter(of_sdb).collect();
    let device = |name: &str| vec![("device".to_string(), name.to_string())];
    let answers = |name: &str| ("seekway_device_answers".to_string(), device(name));
    assert_eq!(silent, [(&answers("sdb"), &0.0)]);
    assert_eq!(samples[&answers("sda")], 1.0);
}

#[test]
fn nothing_served_is_an_empty_text() {
    assert_eq!(render(host(Vec::new())), "# EOF\n");
}

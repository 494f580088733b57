//! The real traces in `shared/traces` against figures counted independently
//! (its README; `zcat | wc`). Skipped where they are absent.

use seekway_core::units::{Instant, Nanos};
use seekway_workload::replay::{Layout, Pace, ReplayOptions, TimeScale, TraceSource};
use seekway_workload::traces::{Format, Scan, TraceOptions, keep, scan};
use seekway_workload::{Issue, Source};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

/// Path of a trace in `shared/traces`; `None` where it is absent.
fn sample(name: &str) -> Option<PathBuf> {
    seekway_testing::shared(&format!("traces/{name}"))
}

fn check(name: &str, format: Format, requests: u64, volumes: usize) -> Option<Scan> {
    let scanned = scan(&sample(name)?, &TraceOptions::default()).unwrap();
    assert_eq!(scanned.format, format, "{name}");
    assert_eq!(scanned.stats.requests(), requests, "{name}");
    assert_eq!(scanned.volumes.len(), volumes, "{name}");
    assert_eq!(scanned.stats.clamped, 0, "{name}: the window is too small");
    Some(scanned)
}

fn percent(part: u64, scanned: &Scan) -> u64 {
    (part * 100 + scanned.stats.requests() / 2) / scanned.stats.requests()
}

fn seconds(scanned: &Scan) -> u64 {
    (scanned.stats.duration.as_secs_f64()).round() as u64
}

#[test]
fn the_cloudphysics_vm() {
    let Some(s) = check("vm/cloudPhysicsIO.vscsi", Format::Vscsi, 113_872, 1) else { return };
    assert_eq!(percent(s.stats.ops.read, &s), 41);
    assert_eq!(seconds(&s), 7200);
    assert_eq!(s.volumes[0].name, "cloudPhysicsIO");
}

#[test]
fn the_mysql_server() {
    let Some(s) = check("host/linux-mysql.load.gz", Format::Blkreplay, 80_794, 1) else { return };
    assert_eq!(percent(s.stats.ops.write, &s), 91);
    assert_eq!(seconds(&s), 3600);
}

#[test]
fn msr_systor_tencent_and_mqsim() {
    check("samples/msr-cambridge1-sample.csv", Format::Msr, 1_000, 1);
    if let Some(s) = check("samples/systor17-additional-sample.csv.gz", Format::Systor, 999, 1) {
        assert!(s.stats.reordered > 0);
    }
    check("samples/cloud_storage-sample.bz2", Format::Tencent, 50_000, 2_038);
    check("samples/tpcc-small.trace", Format::Mqsim, 6_999, 16);
}

#[test]
fn the_measured_drives() {
    for (name, blocks) in [
        ("drives/cheetah9LP/cheetah9LP.trace", 17_783_240),
        ("drives/atlas10k/atlas10k.trace", 17_938_986),
        ("drives/cheetah15k5/random.trace", 286_749_487),
    ] {
        let Some(s) = check(name, Format::Disksim, 10_000, 1) else { return };
        assert!(s.volumes[0].capacity().get() <= blocks, "{name}");
    }
}

/// A device that takes 100 µs for each request, one after the other: what was issued, and the end.
fn run(source: &mut TraceSource) -> (Vec<Issue>, Instant) {
    let mut queue: VecDeque<Issue> = VecDeque::new();
    let (mut now, mut done, mut out) = (Instant::ZERO, Vec::new(), Vec::new());
    loop {
        source.poll(now, &mut out).unwrap();
        for issue in out.drain(..) {
            let disk = &source.vms()[usize::from(issue.vm)];
            assert!(issue.start.get() + issue.len.get() <= disk.capacity.get());
            queue.push_back(issue);
        }
        if let Some(issue) = queue.pop_front() {
            now = now + Nanos::from_micros(100);
            source.completed(now, issue.token);
            done.push(issue);
        } else if let Some(wake) = source.next_wake() {
            now = now.max(wake);
        } else {
            assert!(source.finished());
            return (done, now);
        }
    }
}

#[test]
fn replayed_whole_in_every_way() {
    let timed = |factor| Pace::Timed {
        time_scale: TimeScale::new(factor).unwrap(),
        outstanding_max: 1 << 14,
    };
    let split = |vms_max| Layout::Split { vms_max };
    let closed = Pace::Outstanding { per_vm: 2 };
    for (name, pace, layout, vms, requests) in [
        ("vm/cloudPhysicsIO.vscsi", timed(1.0), Layout::OneVm, 1, 113_872),
        ("vm/cloudPhysicsIO.vscsi", closed, Layout::OneVm, 1, 113_872),
        ("host/linux-mysql.load.gz", timed(0.5), Layout::OneVm, 1, 80_794),
        ("samples/msr-cambridge1-sample.csv", timed(1.0), split(4), 1, 1_000),
        ("samples/cloud_storage-sample.bz2", closed, split(4096), 2_038, 50_000),
        ("samples/cloud_storage-sample.bz2", timed(1.0), Layout::OneVm, 1, 50_000),
        ("samples/tpcc-small.trace", closed, split(4096), 16, 6_999),
    ] {
        let Some(path) = sample(name) else { return };
        let options = ReplayOptions { pace, layout, ..ReplayOptions::default() };
        let scanned = scan(&path, &options.trace).unwrap();
        let mut source = TraceSource::with_scan(&path, &scanned, None, &options).unwrap();
        assert_eq!(source.vms().len(), vms, "{name}");
        let (done, end) = run(&mut source);
        assert_eq!(done.len(), requests, "{name}");
        let kept = Some(Arc::new(keep(&path, &options.trace, &scanned).unwrap().unwrap()));
        let mut kept = TraceSource::with_scan(&path, &scanned, kept.as_ref(), &options).unwrap();
        assert!(run(&mut kept) == (done, end), "{name}: from memory it is the same");
        assert!(source.apps().iter().all(|app| app.finished.is_some()), "{name}");
    }
}

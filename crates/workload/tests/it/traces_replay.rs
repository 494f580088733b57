//! Replay in open and closed loop, with one VM and with several.

use proptest::prelude::*;
use seekway_core::request::Op;
use seekway_core::units::{Instant, Sectors};
use seekway_workload::replay::{Layout, Pace, ReplayOptions, TimeScale, TraceSource};
use seekway_workload::traces::{TraceError, TraceOptions, keep, scan};
use seekway_workload::{Issue, Source};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// A file that is removed at the end.
struct File(PathBuf, #[allow(dead_code)] TempDir);

impl File {
    fn new(name: &str, text: &str) -> File {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        File(path, dir)
    }

    fn open(&self, options: &ReplayOptions) -> Result<TraceSource, TraceError> {
        let scanned = scan(&self.0, &options.trace)?;
        TraceSource::with_scan(&self.0, &scanned, None, options)
    }
}

/// Three volumes: a (four requests), b (two), c (one). Nanoseconds, MQSim.
const THREE: &str = "100 1 0 8 1\n200 1 8 8 1\n300 2 5000 8 0\n400 1 16 8 1\n\
                     500 3 7 1 1\n600 1 24 8 1\n700 2 0 8 0\n";

fn poll(source: &mut TraceSource, now: u64) -> Vec<Issue> {
    let mut out = Vec::new();
    source.poll(Instant::from_nanos(now), &mut out).unwrap();
    out
}

fn places(issues: &[Issue]) -> Vec<(u16, u64)> {
    issues.iter().map(|i| (i.vm, i.start.get())).collect()
}

fn timed(factor: f64) -> Pace {
    Pace::Timed { time_scale: TimeScale::new(factor).unwrap(), outstanding_max: 1000 }
}

#[test]
fn open_loop_issues_at_scaled_times_whatever_is_outstanding() {
    let file = File::new("open", THREE);
    let options = ReplayOptions { pace: timed(2.0), ..ReplayOptions::default() };
    let mut source = file.open(&options).unwrap();
    assert_eq!(source.next_wake(), Some(Instant::ZERO));
    // Volume 2 begins at the next MiB behind volume 1, volume 3 behind that.
    assert_eq!(places(&poll(&mut source, 0)), [(0, 0)]);
    assert_eq!(source.next_wake(), Some(Instant::from_nanos(200)));
    assert_eq!(poll(&mut source, 199), []);
    assert_eq!(places(&poll(&mut source, 400)), [(0, 8), (0, 2048 + 5000)]);
    let rest = poll(&mut source, 1200);
    assert_eq!(places(&rest), [(0, 16), (0, 8192 + 7), (0, 24), (0, 2048)]);
    assert_eq!(source.next_wake(), None);
    assert!(!source.finished());
    assert_eq!(source.vms()[0].capacity, Sectors::new(8192 + 8));
}

#[test]
fn open_loop_waits_when_the_queue_is_full() {
    let file = File::new("full", THREE);
    let pace = Pace::Timed { time_scale: TimeScale::ONE, outstanding_max: 2 };
    let mut source = file.open(&ReplayOptions { pace, ..ReplayOptions::default() }).unwrap();
    let two = poll(&mut source, 10_000);
    assert_eq!(two.len(), 2);
    assert_eq!(source.next_wake(), None);
    source.completed(Instant::from_nanos(11_000), two[0].token);
    assert_eq!(poll(&mut source, 11_000).len(), 1);
}

#[test]
fn a_turn_begins_elsewhere_in_time_and_place_and_ends_with_what_lies_before() {
    let text = "100 0 0 2048 1\n200 0 2048 2048 1\n300 0 4096 2048 1\n400 0 6144 2048 1\n";
    let file = File::new("turn", text);
    let issued = |turn_millionths| {
        let options =
            ReplayOptions { pace: timed(1.0), turn_millionths, ..ReplayOptions::default() };
        let scanned = scan(&file.0, &options.trace).unwrap();
        let kept = keep(&file.0, &options.trace, &scanned).unwrap().map(Arc::new);
        let source = TraceSource::with_scan(&file.0, &scanned, kept.as_ref(), &options);
        let (mut source, mut issued) = (source.unwrap(), Vec::new());
        while let Some(at) = source.next_wake() {
            let issues = poll(&mut source, at.as_nanos());
            issued.extend(places(&issues).into_iter().map(|(_, place)| (at.as_nanos(), place)));
        }
        issued
    };
    // 300 ns and a mean gap of 100 ns: half of it is 200 ns, and half of the disk 4096 sectors.
    assert_eq!(issued(500_000), [(0, 0), (100, 2048), (200, 4096), (300, 6144)]);
    // It begins with a request: the first one after 120 ns. A quarter of the disk is 2048 sectors.
    assert_eq!(issued(300_000), [(0, 6144), (100, 0), (200, 2048), (300, 4096)]);
    // None comes after 388 ns.
    assert_eq!(issued(970_000), [(0, 6144), (100, 0), (200, 2048), (300, 4096)]);
}

#[test]
fn closed_loop_keeps_each_vm_busy() {
    let file = File::new("closed", THREE);
    let options = ReplayOptions {
        pace: Pace::Outstanding { per_vm: 1 },
        layout: Layout::Split { vms_max: 10 },
        ..ReplayOptions::default()
    };
    let mut source = file.open(&options).unwrap();
    let names: Vec<_> = source.vms().iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["1", "2", "3"]);
    let mut first = poll(&mut source, 0);
    assert_eq!(places(&first), [(0, 0), (1, 5000), (2, 7)]);
    // VM 1's second request lies behind two of VM 0, which wait.
    source.completed(Instant::from_nanos(5), first[1].token);
    let second = poll(&mut source, 5);
    assert_eq!(places(&second), [(1, 0)]);
    source.completed(Instant::from_nanos(6), second[0].token);
    assert_eq!(poll(&mut source, 6), []);
    let (mut now, mut starts) = (7, Vec::new());
    first.retain(|issue| issue.vm != 1);
    while let Some(issue) = first.pop() {
        source.completed(Instant::from_nanos(now), issue.token);
        first.extend(poll(&mut source, now));
        starts.push(issue.start.get());
        now += 1;
    }
    assert_eq!(starts, [7, 0, 8, 16, 24]);
    assert!(source.finished());
    let finished: Vec<_> = source.apps().iter().map(|a| a.finished.unwrap().as_nanos()).collect();
    assert_eq!(finished, [11, 6, 7]);
    assert_eq!(source.apps()[0].bytes, 4 * 4096);
}

#[test]
fn the_busiest_volumes_are_taken_and_the_rest_dropped() {
    let file = File::new("top", THREE);
    let layout = Layout::Split { vms_max: 2 };
    let options = ReplayOptions { pace: timed(1.0), layout, ..ReplayOptions::default() };
    let mut source = file.open(&options).unwrap();
    assert_eq!(source.vms().len(), 2);
    // The one request of the third volume is dropped.
    assert_eq!(poll(&mut source, 1000).len(), 6);
}

#[test]
fn a_disk_too_small_wraps() {
    let file = File::new("small", THREE);
    let layout = Layout::Split { vms_max: 3 };
    let options = ReplayOptions {
        pace: timed(1.0),
        layout,
        capacity: Some(Sectors::new(16)),
        ..ReplayOptions::default()
    };
    let mut source = file.open(&options).unwrap();
    let issues = poll(&mut source, 1000);
    assert_eq!(issues.len(), 7);
    assert!(issues.iter().all(|i| i.start.get() + i.len.get() <= 16));
    // Those that fit stay where they are; 16, 24 and 5000 do not.
    let mut starts: Vec<u64> = issues.iter().map(|i| i.start.get()).collect();
    starts.sort_unstable();
    assert_eq!(starts, [0, 0, 5, 6, 7, 7, 8]);
}

#[test]
fn a_file_that_changes_between_scan_and_replay_is_an_error() {
    let options = ReplayOptions { pace: timed(1.0), ..ReplayOptions::default() };
    let before = File::new("before", "100 1 0 8 1\n200 1 8 8 1\n");
    let scanned = scan(&before.0, &options.trace).unwrap();
    for (now, says) in [
        ("100 1 0 8 1\n200 2 8 8 1\n", "a volume more than before"),
        ("100 1 0 8 1\n200 1 9 8 1\n", "a request ends at sector 17 of a disk of 16"),
    ] {
        fs::write(&before.0, now).unwrap();
        let mut source = TraceSource::with_scan(&before.0, &scanned, None, &options).unwrap();
        let failed = source.poll(Instant::from_nanos(1000), &mut Vec::new()).unwrap_err();
        assert!(failed.to_string().contains(says), "{failed}");
    }
}

#[test]
fn a_trace_without_times_cannot_be_timed() {
    let file = File::new("fio2", "fio version 2 iolog\na read 0 512\na sync 0 0\na trim 0 512\n");
    let message = file.open(&ReplayOptions::default()).err().unwrap().to_string();
    assert!(message.contains("closed loop"), "{message}");
    let pace = Pace::Outstanding { per_vm: 8 };
    let mut source = file.open(&ReplayOptions { pace, ..ReplayOptions::default() }).unwrap();
    let ops: Vec<Op> = poll(&mut source, 0).iter().map(|i| i.op).collect();
    assert_eq!(ops, [Op::Read, Op::Flush, Op::Discard]);
}

#[test]
fn limits_hold_for_scan_and_replay_alike() {
    let file = File::new("limit", THREE);
    let trace = TraceOptions { limit: Some(3), ..TraceOptions::default() };
    assert_eq!(scan(&file.0, &trace).unwrap().stats.requests(), 3);
    let layout = Layout::Split { vms_max: 10 };
    let options = ReplayOptions { trace, pace: timed(1.0), layout, ..ReplayOptions::default() };
    let mut source = file.open(&options).unwrap();
    let issues = poll(&mut source, 1000);
    assert_eq!(places(&issues), [(0, 0), (0, 8), (1, 5000)]);
    issues.iter().for_each(|i| source.completed(Instant::from_nanos(2000), i.token));
    assert!(source.finished());
    let empty = File::new("empty", "fio version 3 iolog\n0 a add\n");
    let trace = TraceOptions {
        format: Some(seekway_workload::traces::Format::Fio),
        ..TraceOptions::default()
    };
    let message = scan(&empty.0, &trace).unwrap_err().to_string();
    assert!(message.contains("no requests in this trace"), "{message}");
}

#[test]
fn time_scales_have_bounds() {
    assert!(TimeScale::new(0.0).is_none());
    assert!(TimeScale::new(-1.0).is_none());
    assert!(TimeScale::new(f64::NAN).is_none());
    assert!(TimeScale::new(f64::INFINITY).is_none());
    assert_eq!(TimeScale::new(1.0), Some(TimeScale::ONE));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// In whatever order requests are done, each is issued once, each VM's in
    /// the trace's order, never more than allowed, and the replay ends.
    #[test]
    fn closed_loops_lose_nothing(
        volumes in prop::collection::vec(0..5u64, 1..80),
        per_vm in 1..4u32,
        vms_max in 1..6usize,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 80),
    ) {
        let row = |(i, v): (usize, &u64)| format!("{i}000 {v} {} 8 {}\n", i * 8, i % 2);
        let text: String = volumes.iter().enumerate().map(row).collect();
        let options = ReplayOptions {
            pace: Pace::Outstanding { per_vm },
            layout: Layout::Split { vms_max },
            ..ReplayOptions::default()
        };
        let file = File::new(&format!("random-{:?}", std::thread::current().id()), &text);
        let scanned = scan(&file.0, &options.trace).unwrap();
        let mut source = file.open(&options).unwrap();
        let mut outstanding: Vec<Issue> = poll(&mut source, 0);
        let mut seen = vec![Vec::new(); source.vms().len()];
        let mut picks = picks.iter().cycle();
        while !outstanding.is_empty() {
            for vm in 0..seen.len() {
                let own = outstanding.iter().filter(|i| usize::from(i.vm) == vm).count();
                prop_assert!(own <= per_vm as usize);
            }
            let done = outstanding.swap_remove(picks.next().unwrap().index(outstanding.len()));
            seen[usize::from(done.vm)].push(done.start.get());
            source.completed(Instant::from_nanos(1), done.token);
            outstanding.extend(poll(&mut source, 1));
        }
        prop_assert!(source.finished());
        for (vm, mut starts) in seen.into_iter().enumerate() {
            let name = &source.vms()[vm].name;
            let own = |(i, v): (usize, &u64)| (v.to_string() == *name).then_some(i as u64 * 8);
            let expected: Vec<u64> = volumes.iter().enumerate().filter_map(own).collect();
            if per_vm == 1 { prop_assert_eq!(&starts, &expected); }
            starts.sort_unstable();
            prop_assert_eq!(starts, expected);
        }
        prop_assert_eq!(source.vms().len(), scanned.volumes.len().min(vms_max));
    }
}

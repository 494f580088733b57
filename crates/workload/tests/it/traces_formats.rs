//! Every format against its fixture, as text in `golden/formats.txt`.
//! `UPDATE_EXPECT=1 cargo test -p seekway-workload --test it traces_formats` rewrites it.

use crate::names;
use expect_test::{expect, expect_file};
use names::{FIXTURES, fixture};
use seekway_core::units::{Instant, Nanos};
use seekway_workload::replay::{Layout, Pace, ReplayOptions, TimeScale, TraceSource};
use seekway_workload::traces::{
    BlktraceEvent, Format, Record, Scan, TraceOptions, TraceReader, keep, scan, scannable,
};
use seekway_workload::{Issue, Source};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

fn line(reader: &TraceReader, r: &Record) -> String {
    let sync = if r.sync { " sync" } else { "" };
    let process = if r.process == 0 { String::new() } else { format!(" pid {}", r.process) };
    let volume = reader.volume_name(r.volume);
    format!("{} {volume} {}{sync} {}+{}{process}", r.at, r.op.letter(), r.start, r.len)
}

/// The first eight records and all counts.
fn render(path: &Path, options: &TraceOptions) -> String {
    let mut text = String::new();
    let mut reader = match TraceReader::open(path, options) {
        Ok(reader) => reader,
        Err(e) => return format!("{e}\n").replace(env!("CARGO_MANIFEST_DIR"), "."),
    };
    writeln!(text, "{}", reader.format()).unwrap();
    loop {
        match reader.next_record() {
            Ok(Some(record)) if reader.stats().requests() <= 8 => {
                writeln!(text, "{}", line(&reader, &record)).unwrap();
            }
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(e) => {
                let message = e.to_string().replace(env!("CARGO_MANIFEST_DIR"), ".");
                writeln!(text, "{message}").unwrap();
                break;
            }
        }
    }
    let s = reader.stats();
    let ops = s.ops;
    writeln!(text, "R {} W {} F {} D {}", ops.read, ops.write, ops.flush, ops.discard).unwrap();
    writeln!(
        text,
        "ignored {} reordered {} clamped {} rounded {} duration {}",
        s.ignored, s.reordered, s.clamped, s.rounded, s.duration
    )
    .unwrap();
    for (number, volume) in s.volumes.iter().enumerate() {
        writeln!(text, "{} ends at {}", reader.volume_name(number as u32), volume.end).unwrap();
    }
    text
}

/// Counts of `kernel-loop.blktrace` are those that `blkparse` prints: see the fixtures' README.
#[test]
fn each_fixture_is_read_as_it_was() {
    let plain = FIXTURES.into_iter().filter(|name| name.matches('.').count() == 1);
    let mut text = String::new();
    let mut add = |name: &str, blktrace_event| {
        let options = TraceOptions { blktrace_event, ..TraceOptions::default() };
        let of = if blktrace_event == Some(BlktraceEvent::Issued) { ", issued" } else { "" };
        writeln!(text, "{name}{of}:\n{}", render(&fixture(name), &options)).unwrap();
    };
    plain.for_each(|name| add(name, None));
    add("kernel-loop.blktrace", Some(BlktraceEvent::Issued));
    expect_file!["../golden/formats.txt"].assert_eq(&text);
}

#[test]
fn a_missing_file_and_a_folder() {
    let text = ["no-such-file", "", "README.md"]
        .map(|name| render(&fixture(name), &TraceOptions::default()))
        .concat();
    expect![[r#"
        ./tests/fixtures/no-such-file: cannot open the trace: No such file or directory (os error 2)
        ./tests/fixtures/: cannot open the trace: is a directory
        ./tests/fixtures/README.md: trace format not recognised; name it with --input-format: blktrace, vscsi, fio, blkreplay, msr, systor, tencent, alibaba, spc, fiu, mqsim, disksim, blkparse, perf, biosnoop, fio-log, disksim-ascii, oracle-general, cachesim, csv; or list its columns: --columns time_us,op,offset_bytes,size_bytes
    "#]]
    .assert_eq(&text);
}

#[test]
fn packed_in_several_members() {
    let plain = scan(&fixture("msr.csv"), &TraceOptions::default()).unwrap();
    for name in ["msr.csv.gz", "msr.csv.bz2", "msr.csv.xz", "msr.csv.zst"] {
        assert_eq!(scan(&fixture(name), &TraceOptions::default()).unwrap(), plain, "{name}");
    }
}

/// Name and example of each row of the page's table; no example for a binary format.
fn examples() -> Vec<(String, Option<String>)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/traces.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("## Formats\n").expect("the section");
    let rows =
        section.lines().skip_while(|l| !l.starts_with("| `")).take_while(|l| l.starts_with('|'));
    let row = |line: &str| {
        let (name, example) = line.strip_prefix("| `")?.split_once("` | ")?;
        let code = example.split('`').skip(1).step_by(2).collect::<Vec<_>>().join("\n");
        Some((name.to_string(), (!example.starts_with("binary: ")).then_some(code)))
    };
    rows.map(|line| row(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

#[test]
fn the_page_has_an_example_of_each_format_that_is_read() {
    let examples = examples();
    let names: Vec<_> = examples.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, Format::all().map(Format::name).collect::<Vec<_>>());
    for (name, example) in examples {
        let Some(text) = example else { continue };
        let options = TraceOptions::default();
        let input = Box::new(Cursor::new(text.clone().into_bytes()));
        let mut reader = TraceReader::from_read("traces.md", input, &options)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(reader.format().name(), name);
        let read: Result<Vec<_>, _> = reader.by_ref().collect();
        let read = read.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(read.len(), 1, "{name}: {text}");
    }
}

/// The name of a file's format, or its refusal.
fn told(path: &Path) -> Result<&'static str, String> {
    let reader = TraceReader::open(path, &TraceOptions::default());
    reader.map(|reader| reader.format().name()).map_err(|e| e.to_string())
}

#[test]
fn each_fixture_is_told_as_the_format_that_it_is() {
    let formats = [
        ("vscsi1.vscsi", "vscsi"),
        ("vscsi2.vscsi", "vscsi"),
        ("fio2.log", "fio"),
        ("fio3.log", "fio"),
        ("trace-cmd.txt", "perf"),
        ("iosnoop.txt", "biosnoop"),
        ("fio-latency.log", "fio-log"),
        ("fio2-latency.log", "fio-log"),
        ("own.csv", "csv"),
        ("own-frame.csv", "csv"),
        ("own-tabs.tsv", "csv"),
        ("kernel-loop.blktrace", "blktrace"),
    ];
    for name in FIXTURES {
        let stem = name.split('.').next().unwrap_or(name);
        let format = formats.iter().find(|(file, _)| *file == name).map_or(stem, |(_, of)| of);
        assert_eq!(told(&fixture(name)).as_deref(), Ok(format), "{name}");
    }
}

#[test]
fn each_sample_is_told_as_the_format_that_it_is() {
    for (name, format) in [
        ("vm/cloudPhysicsIO.vscsi", "vscsi"),
        ("host/linux-mysql.load.gz", "blkreplay"),
        ("samples/msr-cambridge1-sample.csv", "msr"),
        ("samples/systor17-additional-sample.csv.gz", "systor"),
        ("samples/cloud_storage-sample.bz2", "tencent"),
        ("samples/tpcc-small.trace", "mqsim"),
        ("drives/cheetah9LP/cheetah9LP.trace", "disksim"),
        ("drives/atlas10k/atlas10k.trace", "disksim"),
        ("drives/cheetah15k5/random.trace", "disksim"),
    ] {
        let Some(path) = seekway_testing::shared(&format!("traces/{name}")) else { return };
        assert_eq!(told(&path).as_deref(), Ok(format), "{name}");
        let scanned = scan(&path, &TraceOptions::default()).unwrap();
        assert_eq!(scanned.warnings(), [""; 0], "{name}");
    }
}

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

fn records(path: &Path) -> Vec<Record> {
    let reader = TraceReader::open(path, &TraceOptions::default()).unwrap();
    reader.map(Result::unwrap).collect()
}

/// A named pipe that somebody writes `bytes` into, a few at a time.
struct Pipe(PathBuf, #[allow(dead_code)] TempDir);

impl Pipe {
    fn with(name: &str, bytes: Vec<u8>) -> Pipe {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success(), "mkfifo {}", path.display());
        let to = path.clone();
        std::thread::spawn(move || {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(to).unwrap();
            for piece in bytes.chunks(37) {
                // The reader may have gone: it stops at an error or a limit.
                if pipe.write_all(piece).is_err() {
                    return;
                }
            }
        });
        Pipe(path, dir)
    }
}

#[test]
fn a_named_pipe_gives_what_the_file_gives() {
    for name in FIXTURES {
        let file = fixture(name);
        let pipe = Pipe::with(name, std::fs::read(&file).unwrap());
        assert!(scannable(&file) && !scannable(&pipe.0));
        assert_eq!(records(&pipe.0), records(&file), "{name}");
    }
}

const CHILD: &str = "SEEKWAY_TEST_READS_STDIN";

/// Does nothing, except in the process that `the_standard_input` starts.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        println!("{:?}", records(Path::new("-")));
    }
}

#[test]
fn the_standard_input() {
    for name in FIXTURES {
        let bytes = std::fs::read(fixture(name)).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "traces_formats::child", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let expected = format!("{:?}", records(&fixture(name)));
        assert!(text.contains(&expected), "{name}: {text}");
    }
}
